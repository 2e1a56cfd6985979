/* EPLB, DeepSeek's expert-parallel load balancer, as its public reference computes it: in float32, ties to the smaller
 * index. Groups of experts are packed onto nodes, the busiest experts of a node get its spare slots, and the replicas
 * are packed onto the node's GPUs. Where the nodes do not divide the groups, all experts are one group on one node. */
#include "coterie/placement.h"

#include "base/error.h"
#include "placement/sort.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_SLOTS = 1 << 24 }; // a layer

typedef struct shape {
    int32_t experts, slots, groups, nodes, gpus;
} shape;

typedef struct keyed {
    float key;
    int32_t index;
} keyed;

/* Memory for one layer. A "place" is a number that experts get when they are laid out node after node. */
typedef struct room {
    double *load;           // [slots] of the items to pack, float32 numbers
    float *place_load;      // [E] of the expert at each place
    cot_sort_item *scratch; // [2 slots]
    int32_t *order;         // [slots] items by falling load
    keyed *heap;            // [slots]
    int32_t *pack;          // [slots] which pack an item went to,
    int32_t *seat;          // [slots] and where in it
    int32_t *filled;        // [slots] items in each pack
    int32_t *expert;        // [E] the expert at each place
    int32_t *count;         // [E] replicas of the expert at each place
    int32_t *place;         // [slots] which place a replica is of,
    int32_t *rank;          // [slots] and how many replicas of it came before
} room;

static bool before(keyed a, keyed b)
{
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

/* Restores the order of a heap, the least at 0, after element `i` grew. */
static void sift(keyed *heap, int32_t n, int32_t i)
{
    keyed moved = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Packs `n` items of r->load into `packs` of equally many: the heaviest first, each into the lightest pack with room. */
static void pack(room *r, int32_t n, int32_t packs)
{
    int32_t each = n / packs, open = packs;
    for (int32_t i = 0; i < n; i++) {
        r->pack[i] = i;
        r->seat[i] = 0;
    }
    if (each == 1) return;
    cot_sort_indices(r->order, r->load, n, true, r->scratch);
    for (int32_t p = 0; p < packs; p++) {
        r->heap[p] = (keyed){0, p};
        r->filled[p] = 0;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t item = r->order[i], p = r->heap[0].index;
        r->pack[item] = p;
        r->seat[item] = r->filled[p]++;
        r->heap[0].key += (float)r->load[item];
        if (r->filled[p] == each) r->heap[0] = r->heap[--open];
        if (open) sift(r->heap, open, 0);
    }
}

/* Gives `slots` slots to the experts at places [first, first + experts): one each, then each next one to the expert with
 * the most load a replica. Fills place and rank [slots] and count. */
static void replicate(room *r, int32_t first, int32_t experts, int32_t slots)
{
    for (int32_t i = 0; i < experts; i++) {
        r->place[i] = first + i;
        r->rank[i] = 0;
        r->count[first + i] = 1;
        r->heap[i] = (keyed){-r->place_load[first + i], i};
    }
    for (int32_t i = experts / 2; i-- > 0;) sift(r->heap, experts, i);
    for (int32_t i = experts; i < slots; i++) {
        int32_t place = first + r->heap[0].index;
        r->place[i] = place;
        r->rank[i] = r->count[place]++;
        r->heap[0].key = -(r->place_load[place] / (float)r->count[place]);
        sift(r->heap, experts, 0);
    }
}

static void rebalance_layer(int64_t *physical_to_logical, int64_t *ranks, int64_t *replicas,
                            const double *weight, const shape *s, room *r)
{
    int32_t group = s->experts / s->groups, on_node = s->experts / s->nodes, slots = s->slots / s->nodes;
    int32_t gpus = s->gpus / s->nodes, each = s->slots / s->gpus;
    for (int32_t g = 0; g < s->groups; g++) {
        float sum = 0;
        for (int32_t i = 0; i < group; i++) sum += (float)weight[g * group + i];
        r->load[g] = (double)sum;
    }
    pack(r, s->groups, s->nodes);
    for (int32_t g = 0; g < s->groups; g++)
        for (int32_t i = 0; i < group; i++)
            r->expert[r->pack[g] * on_node + r->seat[g] * group + i] = g * group + i;
    for (int32_t p = 0; p < s->experts; p++) r->place_load[p] = (float)weight[r->expert[p]];
    for (int32_t node = 0; node < s->nodes; node++) {
        replicate(r, node * on_node, on_node, slots);
        for (int32_t i = 0; i < slots; i++)
            r->load[i] = (double)(r->place_load[r->place[i]] / (float)r->count[r->place[i]]);
        pack(r, slots, gpus);
        for (int32_t i = 0; i < slots; i++) {
            int32_t slot = node * slots + r->pack[i] * each + r->seat[i];
            physical_to_logical[slot] = r->expert[r->place[i]];
            ranks[slot] = r->rank[i];
        }
    }
    for (int32_t p = 0; p < s->experts; p++) replicas[r->expert[p]] = r->count[p];
}

static bool room_open(room *r, const shape *s)
{
    size_t n = (size_t)s->slots, E = (size_t)s->experts;
    r->load = malloc(n * sizeof *r->load);
    r->place_load = malloc(E * sizeof *r->place_load);
    r->scratch = malloc(2 * n * sizeof *r->scratch);
    r->order = malloc(n * sizeof *r->order);
    r->heap = malloc(n * sizeof *r->heap);
    r->pack = malloc(n * sizeof *r->pack);
    r->seat = malloc(n * sizeof *r->seat);
    r->filled = malloc(n * sizeof *r->filled);
    r->expert = malloc(E * sizeof *r->expert);
    r->count = malloc(E * sizeof *r->count);
    r->place = malloc(n * sizeof *r->place);
    r->rank = malloc(n * sizeof *r->rank);
    return r->load && r->place_load && r->scratch && r->order && r->heap && r->pack && r->seat && r->filled &&
           r->expert && r->count && r->place && r->rank;
}

static void room_close(room *r)
{
    void *const all[] = {r->load, r->place_load, r->scratch, r->order, r->heap,  r->pack,
                         r->seat, r->filled,     r->expert,  r->count, r->place, r->rank};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Refuses sizes that the reference cannot split. */
static cot_status check_sizes(const cot_eplb_sizes *s, cot_error *error)
{
    const int64_t layers = s->layers, experts = s->experts, slots = s->slots, groups = s->groups,
                  nodes = s->nodes, gpus = s->gpus;
    if (layers < 0 || experts < 1 || slots < 1 || groups < 1 || nodes < 1 || gpus < 1 || slots > MAX_SLOTS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "cannot balance %" PRId64 " layers, %" PRId64 " experts in %" PRId64
                        " groups and %" PRId64 " slots over %" PRId64 " GPUs of %" PRId64 " nodes",
                        layers, experts, groups, slots, gpus, nodes);
    if (slots < experts)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId64 " slots are too few for %" PRId64 " experts",
                        slots, experts);
    if (slots % gpus)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId64 " GPUs do not divide %" PRId64 " slots", gpus,
                        slots);
    if (groups % nodes) return COT_OK; // the global policy knows no groups
    if (experts % groups)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId64 " groups do not divide %" PRId64 " experts",
                        groups, experts);
    if (gpus % nodes)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId64 " nodes do not divide %" PRId64 " GPUs",
                        nodes, gpus);
    return COT_OK;
}

static cot_status check_loads(const double *load, int64_t layer, int64_t experts, cot_error *error)
{
    for (int64_t e = 0; e < experts; e++)
        if (!(load[e] >= 0) || isinf((float)load[e]))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "layer %" PRId64 ", expert %" PRId64
                            " has a load of %g, expected a float32 of 0 or more",
                            layer, e, load[e]);
    return COT_OK;
}

/* One layer's slots by expert and replica, from its experts and replicas by slot. */
static cot_status invert(int64_t *logical_to_physical, const int64_t *physical_to_logical,
                         const int64_t *ranks, int64_t layer, int64_t experts, int64_t slots,
                         int64_t max_replicas, cot_error *error)
{
    for (int64_t i = 0; i < experts * max_replicas; i++) logical_to_physical[i] = -1;
    for (int64_t i = 0; i < slots; i++) {
        if (ranks[i] >= max_replicas)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "layer %" PRId64 ", expert %" PRId64 " has over %" PRId64 " replicas", layer,
                            physical_to_logical[i], max_replicas);
        logical_to_physical[physical_to_logical[i] * max_replicas + ranks[i]] = i;
    }
    return COT_OK;
}

cot_status cot_eplb_rebalance(int64_t *physical_to_logical, int64_t *logical_to_physical, int64_t *replicas,
                              const double *weight, const cot_eplb_sizes *sizes, cot_error *error)
{
    cot_status status = check_sizes(sizes, error);
    if (status != COT_OK) return status;
    const int64_t experts = sizes->experts, slots = sizes->slots, groups = sizes->groups,
                  nodes = sizes->nodes, max_replicas = sizes->max_replicas;
    bool global = groups % nodes != 0;
    shape s = {(int32_t)experts, (int32_t)slots, global ? 1 : (int32_t)groups, global ? 1 : (int32_t)nodes,
               (int32_t)sizes->gpus};
    room r = {0};
    int64_t *ranks = malloc((size_t)slots * sizeof *ranks);
    if (!ranks || !room_open(&r, &s))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to balance %" PRId64 " slots", slots);
    for (int64_t l = 0; status == COT_OK && l < sizes->layers; l++) {
        int64_t *p2l = physical_to_logical + l * slots;
        status = check_loads(weight + l * experts, l, experts, error);
        if (status != COT_OK) break;
        rebalance_layer(p2l, ranks, replicas + l * experts, weight + l * experts, &s, &r);
        if (logical_to_physical)
            status = invert(logical_to_physical + l * experts * max_replicas, p2l, ranks, l, experts, slots,
                            max_replicas, error);
    }
    free(ranks);
    room_close(&r);
    return status;
}
