#include "cocluster/solver.h"

#include <math.h>
#include <string.h>

void cot_cocluster_gains(float *gain, const cot_cocluster *p, const int32_t *expert_rank)
{
    const cot_affinity *a = &p->affinity;
    for (int64_t i = 0; i < p->N; i++) {
        for (int32_t d = 0; d < p->D; d++)
            gain[d * p->N + i] = p->options.bonus ? p->options.bonus[i * p->D + d] : 0;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            gain[expert_rank[a->expert[k]] * p->N + i] += (float)a->count[k];
    }
}

/* By how much the peaks are over what is asked; 0 where that is met. */
static double excess(const cot_grouping *g, const cot_cocluster *p)
{
    return fmax(0, g->token_peak - p->token_asked) + fmax(0, g->expert_peak - p->expert_asked);
}

static double worth_of(const cot_grouping *g)
{
    return (double)g->local + g->bonus;
}

/* Activations are whole; sums with bonuses are as good as doubles are. */
static bool reaches(const cot_grouping *g, bool bonus)
{
    return bonus ? worth_of(g) >= g->bound * (1 - 1e-9) : (double)g->local >= floor(g->bound + 1e-6);
}

void cot_cocluster_measure(cot_grouping *g, const cot_cocluster *p)
{
    const cot_affinity *a = &p->affinity;
    double token_load[COT_TRACE_MAX_RANKS] = {0}, expert_load[COT_TRACE_MAX_RANKS] = {0};
    g->local = 0;
    g->bonus = 0;
    for (int64_t i = 0; i < p->N; i++) {
        const int32_t d = g->token_rank[i];
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            g->local += g->expert_rank[a->expert[k]] == d ? a->count[k] : 0;
        if (p->options.bonus) g->bonus += (double)p->options.bonus[i * p->D + d];
        token_load[d] += (double)p->token_load[i];
    }
    for (int32_t e = 0; e < p->E; e++) expert_load[g->expert_rank[e]] += (double)p->expert_load[e];
    g->total = p->total;
    g->token_peak = cot_load_peak(token_load, p->D);
    g->expert_peak = cot_load_peak(expert_load, p->D);
    g->feasible = excess(g, p) <= 0;
    g->proven = g->feasible && reaches(g, p->options.bonus != NULL);
}

void cot_cocluster_offer(cot_cocluster *p, const int32_t *expert_rank, const int32_t *token_rank)
{
    int32_t *expert = p->trial, *token = p->trial + p->E;
    memcpy(expert, expert_rank, (size_t)p->E * sizeof *expert);
    memset(p->price, 0, (size_t)p->D * sizeof *p->price);
    cot_cocluster_gains(p->gain, p, expert);
    if (!cot_cocluster_is_within(p, expert)) {
        cot_cocluster_token_step(token, p->price, p, p->gain);
        cot_cocluster_worth(p->worth, p, token_rank ? token_rank : token);
        cot_cocluster_mend(expert, p, p->worth);
        cot_cocluster_gains(p->gain, p, expert);
    }
    if (token_rank) {
        memcpy(token, token_rank, (size_t)p->N * sizeof *token);
        cot_cocluster_token_repair(token, p, p->gain);
    } else {
        const double most = cot_cocluster_token_prices(token, p->price, 0, p, p->gain);
        if (p->best.expert_rank && excess(&p->best, p) <= 0 && most * (1 + 0x1p-8) <= worth_of(&p->best))
            return;
        cot_cocluster_token_settle(token, p->price, 1, 0, p, p->gain);
    }
    cot_grouping offered = p->best;
    offered.expert_rank = expert;
    offered.token_rank = token;
    cot_cocluster_measure(&offered, p);
    if (p->best.expert_rank) {
        const double less = excess(&p->best, p) - excess(&offered, p);
        if (less < 0 || (less <= 0 && worth_of(&offered) <= worth_of(&p->best))) return;
    }
    memcpy(p->expert_rank, expert, (size_t)p->E * sizeof *expert);
    memcpy(p->token_rank, token, (size_t)p->N * sizeof *token);
    offered.expert_rank = p->expert_rank;
    offered.token_rank = p->token_rank;
    p->best = offered;
    cot_cocluster_bound_is(p, p->best.bound);
}

void cot_cocluster_bound_is(cot_cocluster *p, double bound)
{
    cot_grouping *g = &p->best;
    g->bound = fmax(fmin(g->bound, bound), worth_of(g));
    g->proven = g->feasible && reaches(g, p->options.bonus != NULL);
}
