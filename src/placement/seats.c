#include "placement/seats.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_seats_open(cot_seats *seats, const cot_expert_map *map, cot_error *error)
{
    size_t slots = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    seats->first = malloc(((size_t)map->n_experts + 2) * sizeof *seats->first);
    seats->rank = malloc(slots * sizeof *seats->rank);
    if (seats->first && seats->rank) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu slots of a layer", slots);
}

void cot_seats_close(cot_seats *seats)
{
    free(seats->first);
    free(seats->rank);
    *seats = (cot_seats){0};
}

cot_status cot_seats_find(cot_seats *seats, const cot_expert_map *map, int32_t row, cot_error *error)
{
    size_t n = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    const int32_t *expert = map->expert + (size_t)row * n;
    for (int32_t e = 0; e <= map->n_experts; e++) seats->first[e] = 0;
    for (size_t i = 0; i < n; i++) {
        if (expert[i] < -1 || expert[i] >= map->n_experts)
            return cot_fail(error, COT_MALFORMED, "layer %d: slot %zu holds expert %d of %d",
                            map->layers[row], i, expert[i], map->n_experts);
        if (expert[i] >= 0) seats->first[expert[i] + 1]++;
    }
    for (int32_t e = 0; e < map->n_experts; e++) {
        if (!seats->first[e + 1])
            return cot_fail(error, COT_MALFORMED, "layer %d has no slot for expert %d", map->layers[row], e);
        seats->first[e + 1] += seats->first[e];
    }
    for (size_t i = 0; i < n; i++)
        if (expert[i] >= 0)
            seats->rank[seats->first[expert[i]]++] = (int32_t)(i / (size_t)map->slots_per_rank);
    memmove(seats->first + 1, seats->first, (size_t)map->n_experts * sizeof *seats->first);
    seats->first[0] = 0;
    return COT_OK;
}

cot_status cot_seats_find_layer(cot_seats *seats, const cot_expert_map *map, const cot_costs *costs,
                                int32_t l, cot_error *error)
{
    const int32_t row = cot_map_row(map, costs->layers[l]);
    if (map->n_experts != costs->n_experts || map->n_ranks != costs->n_ranks)
        return cot_fail(error, COT_MALFORMED, "the placement has %d experts on %d ranks, the load %d on %d",
                        map->n_experts, map->n_ranks, costs->n_experts, costs->n_ranks);
    if (row < 0) return cot_fail(error, COT_MALFORMED, "the placement lacks layer %d", costs->layers[l]);
    return cot_seats_find(seats, map, row, error);
}

int32_t cot_seats_nearest(int32_t *at, int32_t n, const double *cost)
{
    double least = INFINITY;
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) least = fmin(least, cost[at[i]]);
    for (int32_t i = 0; i < n; i++)
        if (cost[at[i]] <= least) {
            int32_t other = at[kept];
            at[kept++] = at[i];
            at[i] = other;
        }
    return kept;
}

int32_t cot_map_row(const cot_expert_map *map, int32_t layer)
{
    for (int32_t i = 0; i < map->n_layers; i++)
        if (map->layers[i] == layer) return i;
    return -1;
}
