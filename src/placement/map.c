#include "coterie/placement.h"

#include "base/error.h"
#include "placement/seats.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_expert_map_new(cot_expert_map *map, int32_t layers, int32_t experts, int32_t ranks,
                              int32_t slots_per_rank, cot_error *error)
{
    *map = (cot_expert_map){0};
    if (layers < 1 || layers > COT_TRACE_MAX_LAYERS || experts < 1 || experts > COT_TRACE_MAX_EXPERTS ||
        ranks < 1 || ranks > COT_MAP_MAX_RANKS || slots_per_rank < 1 || slots_per_rank > COT_MAP_MAX_SLOTS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no map can have %" PRId32 " layers, %" PRId32 " experts and %" PRId32
                        " ranks of %" PRId32 " slots",
                        layers, experts, ranks, slots_per_rank);
    size_t slots = (size_t)layers * (size_t)ranks * (size_t)slots_per_rank; // at most 2^42
    map->n_layers = layers;
    map->n_experts = experts;
    map->n_ranks = ranks;
    map->slots_per_rank = slots_per_rank;
    map->layers = malloc((size_t)layers * sizeof *map->layers);
    map->expert = malloc(slots * sizeof *map->expert);
    map->dense = calloc((size_t)layers, 1);
    if (!map->layers || !map->expert || !map->dense) {
        cot_expert_map_free(map);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a map of %zu slots", slots);
    }
    for (int32_t l = 0; l < layers; l++) map->layers[l] = l;
    for (size_t i = 0; i < slots; i++) map->expert[i] = -1;
    return COT_OK;
}

void cot_expert_map_free(cot_expert_map *map)
{
    free(map->layers);
    free(map->expert);
    free(map->dense);
    *map = (cot_expert_map){0};
}

cot_status cot_expert_map_check(const cot_expert_map *map, const char *subject, cot_error *error)
{
    size_t slots = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    int32_t *seen = calloc((size_t)map->n_experts, sizeof *seen),
            E = map->n_experts; // layer it was last seen in, + 1
    cot_status status = COT_OK;
    if (!seen) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot check '%s': out of memory", subject);
    for (int32_t l = 0; status == COT_OK && l < map->n_layers; l++) {
        const int32_t *row = map->expert + (size_t)l * slots;
        int32_t layer = map->layers[l], found = 0, missing = 0;
        if (layer < 0 || (l && layer <= map->layers[l - 1]))
            status = cot_fail(error, COT_MALFORMED, "'%s': layer number %" PRId32 " does not ascend", subject,
                              layer);
        for (size_t i = 0; status == COT_OK && i < slots; i++) {
            if (row[i] < -1 || row[i] >= E) {
                status = cot_fail(error, COT_MALFORMED,
                                  "'%s': layer %" PRId32 ", slot %zu holds expert %" PRId32
                                  ", expected -1 to %" PRId32,
                                  subject, layer, i, row[i], E - 1);
            } else if (row[i] >= 0 && seen[row[i]] != l + 1) {
                seen[row[i]] = l + 1;
                found++;
            }
        }
        while (found < E && missing < E && seen[missing] == l + 1) missing++;
        if (status == COT_OK && found < E)
            status = cot_fail(error, COT_MALFORMED, "'%s': layer %" PRId32 " has no slot for expert %" PRId32,
                              subject, layer, missing);
    }
    free(seen);
    return status;
}

cot_status cot_expert_map_ranks(int32_t *expert_rank, int64_t *replicas, const cot_expert_map *map,
                                const cot_trace *trace, const char *subject, cot_error *error)
{
    const int32_t E = trace->n_experts;
    int64_t several = 0;
    cot_seats seats;
    if (map->n_experts != E)
        return cot_fail(error, COT_MALFORMED, "'%s' places %" PRId32 " experts, the trace has %" PRId32,
                        subject, map->n_experts, E);
    cot_status status = cot_seats_open(&seats, map, error);
    for (int32_t l = 0; status == COT_OK && l < trace->n_layers; l++, expert_rank += E) {
        const int32_t row = cot_map_row(map, trace->layers[l]);
        status = row < 0 || map->dense[row]
                     ? cot_fail(error, COT_MALFORMED, "'%s' has no layer %" PRId32 ", the trace does",
                                subject, trace->layers[l])
                     : cot_seats_find(&seats, map, row, error);
        for (int32_t e = 0; status == COT_OK && e < E; e++) {
            expert_rank[e] = seats.rank[seats.first[e]];
            several += seats.first[e + 1] - seats.first[e] > 1;
        }
    }
    cot_seats_close(&seats);
    if (replicas) *replicas = several;
    return status;
}
