#include "cocluster/measure.h"

void cot_group_calls(double *calls, const cot_affinity *affinity, const int32_t *expert_rank,
                     const int32_t *token_rank, int32_t D)
{
    for (int64_t i = 0; i < affinity->n_tokens; i++)
        for (int64_t k = affinity->offsets[i]; k < affinity->offsets[i + 1]; k++)
            calls[token_rank[i] * D + expert_rank[affinity->expert[k]]] += affinity->count[k];
}

cot_group_value cot_group_value_of(const double *calls, int32_t D)
{
    double tokens[COT_TRACE_MAX_RANKS] = {0}, experts[COT_TRACE_MAX_RANKS] = {0}, local = 0, total = 0;
    for (int32_t from = 0; from < D; from++)
        for (int32_t to = 0; to < D; to++) {
            const double n = calls[from * D + to];
            total += n;
            local += from == to ? n : 0;
            tokens[from] += n;
            experts[to] += n;
        }
    return (cot_group_value){.local = (uint64_t)local,
                             .total = (uint64_t)total,
                             .token_peak = cot_load_peak(tokens, D),
                             .expert_peak = cot_load_peak(experts, D)};
}
