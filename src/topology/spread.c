#include "topology/paths.h"

#include "base/error.h"
#include "base/rng.h"
#include "topology/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- a table of distances ---- */

typedef struct table {
    cot_distance_count *slots; // free: no pairs
    size_t room, used;         // room: a power of two, twice what is used at least
} table;

/* The slot of that distance, or the free one where it belongs. */
static cot_distance_count *slot_of(const table *t, double distance)
{
    uint64_t bits;
    memcpy(&bits, &distance, sizeof bits);
    size_t at = (size_t)cot_mix64(bits) & (t->room - 1);
    while (t->slots[at].pairs && t->slots[at].distance != distance) at = (at + 1) & (t->room - 1);
    return &t->slots[at];
}

static bool grow(table *t)
{
    const table before = *t;
    t->room = before.room ? 2 * before.room : 64;
    t->slots = calloc(t->room, sizeof *t->slots);
    if (t->slots)
        for (size_t i = 0; i < before.room; i++)
            if (before.slots[i].pairs) *slot_of(t, before.slots[i].distance) = before.slots[i];
    free(before.slots);
    return t->slots != NULL;
}

static bool count(table *t, double distance, int64_t pairs)
{
    if (2 * t->used >= t->room && !grow(t)) return false;
    cot_distance_count *slot = slot_of(t, distance);
    t->used += !slot->pairs;
    slot->distance = distance;
    slot->pairs += pairs;
    return true;
}

static int by_distance(const void *a, const void *b)
{
    const cot_distance_count *x = a, *y = b;
    return (x->distance > y->distance) - (x->distance < y->distance);
}

/* The slots in use, ascending, in the table's own memory. */
static void sort(table *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->room; i++)
        if (t->slots[i].pairs) t->slots[n++] = t->slots[i];
    if (n) qsort(t->slots, n, sizeof *t->slots, by_distance);
}

/* ---- ranks alike ---- */

/* Two ranks that nothing is forwarded through, with equal links to and from the same vertices, can change places: one's
 * distances to the others are the other's. */
static bool are_alike(const cot_topology *t, int32_t a, int32_t b)
{
    const struct cot_topology_owner *o = t->owner;
    for (int into = 0; into < 2; into++) {
        const int64_t *first = into ? o->into_first : o->first;
        const int64_t n = first[a + 1] - first[a], m = first[b + 1] - first[b];
        if (n != m) return false;
        for (int64_t i = 0; i < n; i++) {
            const cot_topology_link *x = &t->links[into ? o->into[first[a] + i] : first[a] + i],
                                    *y = &t->links[into ? o->into[first[b] + i] : first[b] + i];
            if ((into ? x->from != y->from : x->to != y->to) || x->hops != y->hops ||
                x->latency_us != y->latency_us || x->bandwidth_gbps != y->bandwidth_gbps)
                return false;
        }
    }
    return true;
}

/* For each rank the first one that is like it, found among its first neighbour's. */
static void find_alike(int32_t *alike, const cot_topology *t)
{
    const struct cot_topology_owner *o = t->owner;
    for (int32_t r = 0; r < t->n_ranks; r++) {
        alike[r] = r;
        if (t->ranks_forward || o->first[r] == o->first[r + 1]) continue;
        const int32_t near = t->links[o->first[r]].to;
        for (int64_t i = o->into_first[near]; i < o->into_first[near + 1]; i++) {
            const int32_t other = t->links[o->into[i]].from;
            if (other >= r) break; // ascending, but for vertices, which come after all ranks
            if (alike[other] == other && are_alike(t, other, r)) {
                alike[r] = other;
                break;
            }
        }
    }
}

cot_status cot_topology_spread(cot_distance_count **counts, size_t *n, const cot_topology *topology,
                               cot_metric metric, cot_error *error)
{
    const int32_t S = topology->n_ranks;
    double *distance = malloc((size_t)S * sizeof *distance);
    int32_t *alike = malloc((size_t)S * sizeof *alike), *size = calloc((size_t)S, sizeof *size);
    table t = {0};
    cot_paths paths;
    cot_status status = COT_OK;
    *counts = NULL;
    *n = 0;
    if (!cot_paths_open(&paths, topology) || !distance || !alike || !size)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for distances in '%s'", topology->name);
    else {
        find_alike(alike, topology);
        for (int32_t r = 0; r < S; r++) size[alike[r]]++;
    }
    for (int32_t r = 0; status == COT_OK && r < S; r++) {
        if (!size[r]) continue;
        status = cot_paths_row(distance, &paths, topology, metric, r, false, error);
        for (int32_t to = 0; status == COT_OK && to < S; to++)
            if (to != r && !count(&t, distance[to], size[r]))
                status =
                    cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for distances in '%s'", topology->name);
    }
    cot_paths_close(&paths);
    free(distance);
    free(alike);
    free(size);
    if (status != COT_OK || !t.used) {
        free(t.slots);
        return status;
    }
    sort(&t);
    *counts = t.slots;
    *n = t.used;
    return COT_OK;
}
