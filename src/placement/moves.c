/* What ranks have to fetch between two maps, under the best names for the ranks, and in which rounds. */
#include "coterie/place.h"

#include "base/error.h"
#include "placement/rounds.h"

#include <stdlib.h>
#include <string.h>

static cot_status same_sizes(const cot_expert_map *from, const cot_expert_map *to, cot_error *error)
{
    if (from->n_experts == to->n_experts && from->n_ranks == to->n_ranks) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "one placement has %d experts on %d ranks, the other %d on %d",
                    from->n_experts, from->n_ranks, to->n_experts, to->n_ranks);
}

static const int32_t *row_of(const cot_expert_map *map, int32_t layer)
{
    for (int32_t i = 0; i < map->n_layers; i++)
        if (map->layers[i] == layer)
            return map->expert + (size_t)i * (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    return NULL;
}

/* Marks in `held` [E] how often a rank holds each expert, or takes the marks away. */
static void mark(int32_t *held, const int32_t *slot, int32_t k, int32_t by)
{
    for (int32_t i = 0; slot && i < k; i++)
        if (slot[i] >= 0) held[slot[i]] += by;
}

/* Experts in the slots `now` beyond those held; `held` is as before on return. */
static int64_t missing(int32_t *held, const int32_t *now, int32_t k)
{
    int64_t n = 0;
    for (int32_t i = 0; i < k; i++)
        if (now[i] >= 0) n += held[now[i]]-- <= 0;
    for (int32_t i = 0; i < k; i++)
        if (now[i] >= 0) held[now[i]]++;
    return n;
}

/* Fetches of rank b of `to` if it were rank a of `from`, over all layers. */
static int64_t fetches(int32_t *held, const cot_expert_map *from, int32_t a, const cot_expert_map *to,
                       int32_t b)
{
    int64_t n = 0;
    for (int32_t l = 0; l < to->n_layers; l++) {
        const int32_t *row = row_of(from, to->layers[l]);
        const int32_t *was = row ? row + (size_t)a * (size_t)from->slots_per_rank : NULL;
        const int32_t *now =
            to->expert + ((size_t)l * (size_t)to->n_ranks + (size_t)b) * (size_t)to->slots_per_rank;
        mark(held, was, from->slots_per_rank, 1);
        n += missing(held, now, to->slots_per_rank);
        mark(held, was, from->slots_per_rank, -1);
    }
    return n;
}

cot_status cot_place_moves(int64_t *moves, const cot_expert_map *from, const cot_expert_map *to,
                           cot_error *error)
{
    cot_status status = same_sizes(from, to, error);
    if (status != COT_OK) return status;
    int32_t *held = calloc((size_t)to->n_experts, sizeof *held);
    if (!held) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to count moves");
    *moves = 0;
    for (int32_t r = 0; r < to->n_ranks; r++) *moves += fetches(held, from, r, to, r);
    free(held);
    return COT_OK;
}

static void rename_ranks(cot_expert_map *map, const int32_t *name, int32_t *row)
{
    size_t k = (size_t)map->slots_per_rank, n = (size_t)map->n_ranks * k;
    for (int32_t l = 0; l < map->n_layers; l++) {
        int32_t *slots = map->expert + (size_t)l * n;
        memcpy(row, slots, n * sizeof *row);
        for (int32_t r = 0; r < map->n_ranks; r++)
            memcpy(slots + (size_t)name[r] * k, row + (size_t)r * k, k * sizeof *row);
    }
}

cot_status cot_place_relabel(int64_t *moves, const cot_expert_map *from, cot_expert_map *to, cot_error *error)
{
    size_t S = (size_t)to->n_ranks;
    cot_status status = same_sizes(from, to, error);
    if (status != COT_OK) return status;
    int32_t *held = calloc((size_t)to->n_experts, sizeof *held), *name = malloc(S * sizeof *name),
            *row = malloc(S * (size_t)to->slots_per_rank * sizeof *row);
    double *cost = malloc(S * S * sizeof *cost);
    if (!held || !name || !row || !cost)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to name ranks");
    for (size_t b = 0; status == COT_OK && b < S; b++)
        for (size_t a = 0; a < S; a++)
            cost[b * S + a] = (double)fetches(held, from, (int32_t)a, to, (int32_t)b);
    if (status == COT_OK) status = cot_match(name, cost, to->n_ranks, error);
    if (status == COT_OK) {
        rename_ranks(to, name, row);
        status = cot_place_moves(moves, from, to, error);
    }
    free(held);
    free(name);
    free(row);
    free(cost);
    return status;
}

/* The rank that holds an expert and has sent and fetched least so far; -1 when none holds it. */
static int32_t sender(const int32_t *was, int32_t S, int32_t k, int32_t e, const int32_t *busy)
{
    int32_t best = -1;
    for (int32_t r = 0; was && r < S; r++)
        for (int32_t i = 0; i < k; i++)
            if (was[(size_t)r * (size_t)k + (size_t)i] == e) {
                if (best < 0 || busy[r] < busy[best]) best = r;
                break;
            }
    return best;
}

cot_status cot_place_transfers(cot_transfer **transfers, int64_t *n, int32_t *rounds,
                               const cot_expert_map *from, const cot_expert_map *to, cot_error *error)
{
    int64_t most;
    *transfers = NULL;
    *n = 0;
    *rounds = 0;
    cot_status status = cot_place_moves(&most, from, to, error);
    if (status != COT_OK) return status;
    int32_t *held = calloc((size_t)to->n_experts, sizeof *held),
            *busy = calloc((size_t)to->n_ranks, sizeof *busy);
    cot_transfer *list = malloc((size_t)most * sizeof *list + 1);
    if (!held || !busy || !list) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for transfers");
    for (int32_t l = 0; status == COT_OK && l < to->n_layers; l++)
        for (int32_t r = 0; r < to->n_ranks; r++) {
            const int32_t *row = row_of(from, to->layers[l]);
            const int32_t *was = row ? row + (size_t)r * (size_t)from->slots_per_rank : NULL;
            const int32_t *now =
                to->expert + ((size_t)l * (size_t)to->n_ranks + (size_t)r) * (size_t)to->slots_per_rank;
            mark(held, was, from->slots_per_rank, 1);
            for (int32_t i = 0; i < to->slots_per_rank; i++) {
                if (now[i] < 0 || held[now[i]]-- > 0) continue;
                int32_t s = sender(row, from->n_ranks, from->slots_per_rank, now[i], busy);
                list[(*n)++] = (cot_transfer){to->layers[l], now[i], s, r, -1};
                if (s >= 0) {
                    busy[s]++;
                    busy[r]++;
                }
            }
            memset(held, 0, (size_t)to->n_experts * sizeof *held);
        }
    if (status == COT_OK) status = cot_colour_transfers(list, *n, to->n_ranks, rounds, error);
    free(held);
    free(busy);
    if (status == COT_OK)
        *transfers = list;
    else
        free(list);
    return status;
}
