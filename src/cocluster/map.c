#include "coterie/group_layers.h"

cot_status cot_layer_groups_map(cot_expert_map *map, const cot_layer_groups *groups, const int32_t *layers,
                                cot_error *error)
{
    const size_t L = (size_t)groups->n_layers, E = (size_t)groups->n_experts, D = (size_t)groups->n_ranks;
    int32_t slots = 1;
    for (size_t l = 0; l < L; l++) {
        int32_t held[COT_TRACE_MAX_RANKS] = {0};
        for (size_t e = 0; e < E; e++) {
            const int32_t d = groups->expert_rank[l * E + e];
            if (++held[d] > slots) slots = held[d];
        }
    }
    const cot_status status =
        cot_expert_map_new(map, groups->n_layers, groups->n_experts, groups->n_ranks, slots, error);
    for (size_t l = 0; status == COT_OK && l < L; l++) {
        size_t filled[COT_TRACE_MAX_RANKS] = {0};
        if (layers) map->layers[l] = layers[l];
        for (size_t e = 0; e < E; e++) {
            const size_t d = (size_t)groups->expert_rank[l * E + e];
            map->expert[(l * D + d) * (size_t)slots + filled[d]++] = (int32_t)e;
        }
    }
    return status;
}
