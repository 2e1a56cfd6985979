/* What ranks have to fetch between two maps, under the best names for the ranks, and in which rounds. */
#include "coterie/place.h"

#include "base/error.h"
#include "placement/fetches.h"
#include "placement/rounds.h"
#include "placement/seats.h"

#include <stdlib.h>
#include <string.h>

static cot_status same_sizes(const cot_expert_map *from, const cot_expert_map *to, cot_error *error)
{
    if (from->n_experts == to->n_experts && from->n_ranks == to->n_ranks) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "one placement has %d experts on %d ranks, the other %d on %d",
                    from->n_experts, from->n_ranks, to->n_experts, to->n_ranks);
}

int32_t cot_fetches(int32_t *fetched, const int32_t *was, int32_t n_was, const int32_t *now, int32_t n_now,
                    bool *marked)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_was; i++)
        if (was[i] >= 0) marked[was[i]] = true;
    for (int32_t i = 0; i < n_now; i++) {
        if (now[i] < 0 || marked[now[i]]) continue;
        marked[now[i]] = true;
        if (fetched) fetched[n] = now[i];
        n++;
    }
    for (int32_t i = 0; i < n_was; i++)
        if (was[i] >= 0) marked[was[i]] = false;
    for (int32_t i = 0; i < n_now; i++)
        if (now[i] >= 0) marked[now[i]] = false;
    return n;
}

/* The slots of a rank in a row of a map; NULL in row -1. */
static const int32_t *slots_of(const cot_expert_map *map, int32_t row, int32_t rank)
{
    if (row < 0) return NULL;
    return map->expert + ((size_t)row * (size_t)map->n_ranks + (size_t)rank) * (size_t)map->slots_per_rank;
}

/* What rank b of `to` fetches in its row l if it were rank a of `from`: as cot_fetches, all where `from` lacks the layer. */
static int32_t layer_fetches(int32_t *fetched, const cot_expert_map *from, int32_t a,
                             const cot_expert_map *to, int32_t l, int32_t b, bool *marked)
{
    const int32_t *was = slots_of(from, cot_map_row(from, to->layers[l]), a);
    return cot_fetches(fetched, was, was ? from->slots_per_rank : 0, slots_of(to, l, b), to->slots_per_rank,
                       marked);
}

/* How many those are over all layers. */
static int64_t fetches(const cot_expert_map *from, int32_t a, const cot_expert_map *to, int32_t b,
                       bool *marked)
{
    int64_t n = 0;
    for (int32_t l = 0; l < to->n_layers; l++) n += layer_fetches(NULL, from, a, to, l, b, marked);
    return n;
}

cot_status cot_place_moves(int64_t *moves, const cot_expert_map *from, const cot_expert_map *to,
                           cot_error *error)
{
    cot_status status = same_sizes(from, to, error);
    if (status != COT_OK) return status;
    bool *marked = calloc((size_t)to->n_experts, sizeof *marked);
    if (!marked) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to count moves");
    *moves = 0;
    for (int32_t r = 0; r < to->n_ranks; r++) *moves += fetches(from, r, to, r, marked);
    free(marked);
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
    bool *marked = calloc((size_t)to->n_experts, sizeof *marked);
    int32_t *name = malloc(S * sizeof *name), *row = malloc(S * (size_t)to->slots_per_rank * sizeof *row);
    double *cost = malloc(S * S * sizeof *cost);
    if (!marked || !name || !row || !cost)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to name ranks");
    for (size_t b = 0; status == COT_OK && b < S; b++)
        for (size_t a = 0; a < S; a++)
            cost[b * S + a] = (double)fetches(from, (int32_t)a, to, (int32_t)b, marked);
    if (status == COT_OK) status = cot_match(name, cost, to->n_ranks, error);
    if (status == COT_OK) {
        rename_ranks(to, name, row);
        status = cot_place_moves(moves, from, to, error);
    }
    free(marked);
    free(name);
    free(row);
    free(cost);
    return status;
}

/* The rank that holds an expert in a row of `from` and has sent and fetched least so far; -1 when none holds it. */
static int32_t sender(const cot_expert_map *from, int32_t row, int32_t e, const int32_t *busy)
{
    int32_t best = -1;
    for (int32_t r = 0; row >= 0 && r < from->n_ranks; r++) {
        const int32_t *slot = slots_of(from, row, r);
        for (int32_t i = 0; i < from->slots_per_rank; i++)
            if (slot[i] == e) {
                if (best < 0 || busy[r] < busy[best]) best = r;
                break;
            }
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
    bool *marked = calloc((size_t)to->n_experts, sizeof *marked);
    int32_t *busy = calloc((size_t)to->n_ranks, sizeof *busy),
            *fetched = malloc((size_t)to->slots_per_rank * sizeof *fetched);
    cot_transfer *list = malloc((size_t)most * sizeof *list + 1);
    if (!marked || !busy || !fetched || !list)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for transfers");
    for (int32_t l = 0; status == COT_OK && l < to->n_layers; l++)
        for (int32_t r = 0; r < to->n_ranks; r++) {
            int32_t row = cot_map_row(from, to->layers[l]),
                    count = layer_fetches(fetched, from, r, to, l, r, marked);
            for (int32_t i = 0; i < count; i++) {
                int32_t s = sender(from, row, fetched[i], busy);
                list[(*n)++] = (cot_transfer){to->layers[l], fetched[i], s, r, -1};
                if (s < 0) continue;
                busy[s]++;
                busy[r]++;
            }
        }
    if (status == COT_OK) status = cot_colour_transfers(list, *n, to->n_ranks, rounds, error);
    free(marked);
    free(busy);
    free(fetched);
    if (status == COT_OK)
        *transfers = list;
    else
        free(list);
    return status;
}
