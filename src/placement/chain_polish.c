/* The flow that is optimal for rounded costs is optimal for the costs themselves, or nearly: what is left to turn are a few
 * cycles. */
#include "placement/chain.h"
#include "placement/cycles.h"

/* All residual arcs out of u; the sink is the last vertex. */
static void relax(cot_cycles *r, int32_t u)
{
    const cot_chain *c = r->flow;
    const cot_double_double nothing = {0, 0};
    int32_t sink = r->V - 1;
    if (u == sink) {
        for (int32_t g = 0; g < c->G; g++)
            if (c->used[g] > 0) cot_cycles_improve(r, sink, g, nothing);
    } else if (u < c->G) {
        if (c->used[u] < c->cap[u]) cot_cycles_improve(r, u, sink, nothing);
        for (int32_t l = 0; l < c->L; l++) {
            size_t at = (size_t)u * (size_t)c->L + (size_t)l;
            if (c->count[at]) cot_cycles_improve(r, u, c->G + c->class_of[at], nothing);
        }
    } else {
        int32_t k = u - c->G, l = c->layer[k];
        for (int32_t i = c->group_first[k]; i < c->group_first[k + 1]; i++) {
            int32_t g = c->group[i];
            if (c->count[(size_t)g * (size_t)c->L + (size_t)l] < c->cap_layer[g])
                cot_cycles_improve(r, u, g, nothing);
        }
        if (!cot_chain_last(c, k) && c->below[k] > 0)
            cot_cycles_improve(r, u, u + 1, cot_chain_pay_exactly(c, k, c->below[k] - 1));
        if (k > c->class_first[l] && c->below[k - 1] < c->E)
            cot_cycles_improve(r, u, u - 1,
                               cot_double_double_negative(cot_chain_pay_exactly(c, k - 1, c->below[k - 1])));
    }
}

/* Sends one expert round the cycle. */
static void turn(cot_cycles *r, int32_t start)
{
    cot_chain *c = r->flow;
    int32_t sink = r->V - 1, v = start;
    do {
        int32_t u = r->from[v];
        if (u == sink)
            c->used[v]--;
        else if (v == sink)
            c->used[u]++;
        else if (u < c->G)
            c->count[(size_t)u * (size_t)c->L + (size_t)c->layer[v - c->G]]--;
        else if (v < c->G)
            c->count[(size_t)v * (size_t)c->L + (size_t)c->layer[u - c->G]]++;
        else if (v == u + 1)
            c->below[u - c->G]--;
        else
            c->below[v - c->G]++;
        v = u;
    } while (v != start);
}

cot_status cot_chain_polish(cot_chain *chain, cot_double_double *potential, cot_error *error)
{
    cot_cycles cycles = {
        .potential = potential, .V = chain->G + chain->C + 1, .flow = chain, .relax = relax, .turn = turn};
    for (int32_t v = 0; v < cycles.V; v++)
        potential[v] = cot_double_double_of(v < cycles.V - 1 ? chain->potential[v] : 0);
    return chain->exact ? COT_OK : cot_cycles_cancel_all(&cycles, error);
}
