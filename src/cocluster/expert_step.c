#include "cocluster/solver.h"

#include "base/error.h"
#include "placement/rounds.h"

#include <stdlib.h>

void cot_cocluster_worth(double *worth, const cot_cocluster *p, const int32_t *token_rank)
{
    const cot_affinity *a = &p->affinity;
    for (int64_t i = 0; i < (int64_t)p->E * p->D; i++) worth[i] = 0;
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            worth[(int64_t)a->expert[k] * p->D + token_rank[i]] += a->count[k];
}

cot_status cot_cocluster_assign(int32_t *expert_rank, const cot_cocluster *p, const double *worth,
                                cot_error *error)
{
    const size_t E = (size_t)p->E, D = (size_t)p->D;
    double *cost = calloc(E * E, sizeof *cost);
    int32_t *match = malloc(2 * E * sizeof *match), *rank_of = match + E; // a column for each place on a rank
    cot_status status = COT_OK;
    if (!cost || !match) {
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an assignment of %d experts", p->E);
    } else {
        size_t column = 0;
        for (int32_t d = 0; d < p->D; d++)
            for (int32_t j = 0; j < p->size[d]; j++) rank_of[column++] = d;
        for (size_t e = 0; e < E; e++)
            for (size_t c = 0; c < E; c++) cost[e * E + c] = -worth[e * D + (size_t)rank_of[c]];
        status = cot_match(match, cost, p->E, error);
        for (size_t e = 0; status == COT_OK && e < E; e++) expert_rank[e] = rank_of[match[e]];
    }
    free(cost);
    free(match);
    return status;
}

cot_status cot_cocluster_expert_step(int32_t *expert_rank, const cot_cocluster *p, const int32_t *token_rank,
                                     cot_error *error)
{
    double *worth = malloc((size_t)p->E * (size_t)p->D * sizeof *worth);
    if (!worth)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an assignment of %d experts", p->E);
    cot_cocluster_worth(worth, p, token_rank);
    const cot_status status = cot_cocluster_assign(expert_rank, p, worth, error);
    free(worth);
    return status;
}

void cot_cocluster_repair_sizes(int32_t *expert_rank, const cot_cocluster *p, const double *affinity_of)
{
    int32_t held[COT_TRACE_MAX_RANKS] = {0};
    for (int32_t e = 0; e < p->E; e++) held[expert_rank[e]]++;
    for (;;) { // the cheapest move from a rank with too many to one with too few
        int32_t expert = -1, to = -1;
        double least = 0;
        for (int32_t e = 0; e < p->E; e++) {
            const int32_t from = expert_rank[e];
            if (held[from] <= p->size[from]) continue;
            for (int32_t d = 0; d < p->D; d++) {
                const double loss =
                    affinity_of[(int64_t)e * p->D + from] - affinity_of[(int64_t)e * p->D + d];
                if (held[d] >= p->size[d] || (expert >= 0 && loss >= least)) continue;
                expert = e;
                to = d;
                least = loss;
            }
        }
        if (expert < 0) return;
        held[expert_rank[expert]]--;
        held[to]++;
        expert_rank[expert] = to;
    }
}
