#include "coterie/place.h"

#include "base/error.h"

cot_status cot_place_contiguous(cot_expert_map *map, const cot_costs *costs, int32_t slots, cot_error *error)
{
    const int64_t E = costs->n_experts, S = costs->n_ranks;
    *map = (cot_expert_map){0};
    if (slots && (slots < E || (slots > E && slots % S)))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d slots cannot hold %d experts on %d ranks", slots,
                        costs->n_experts, costs->n_ranks);
    const int64_t each = slots > E ? slots / S : (E + S - 1) / S;
    cot_status status =
        cot_expert_map_new(map, costs->n_layers, costs->n_experts, costs->n_ranks, (int32_t)each, error);
    for (int64_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        map->layers[l] = costs->layers[l];
        for (int64_t r = 0; r < S; r++) {
            int32_t *slot = map->expert + (l * S + r) * each;
            const int64_t first = slots > E ? r * each : r * E / S,
                          end = slots > E ? first + each : (r + 1) * E / S;
            for (int64_t i = first; i < end; i++) slot[i - first] = (int32_t)(i % E);
        }
    }
    return status;
}

double cot_place_between_nodes(const double *traffic, const cot_topology *topology)
{
    const size_t S = (size_t)topology->n_ranks;
    double sum = 0;
    for (size_t r = 0; r < S; r++)
        for (size_t s = 0; s < S; s++)
            if (topology->host[r] != topology->host[s]) sum += traffic[r * S + s];
    return sum;
}
