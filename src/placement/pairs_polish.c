/* As chain_polish.c, on the places and ranks of the general flow. */
#include "placement/pairs.h"

#include "base/error.h"
#include "placement/cycles.h"

#include <stdlib.h>

typedef struct moving {
    cot_pairs *p;
    int32_t *moved; // [V] the expert that moves along the arc which gave a vertex its potential, or -1
} moving;

static void improve(cot_cycles *r, int32_t u, int32_t v, int32_t moved, cot_double_double cost)
{
    if (cot_cycles_improve(r, u, v, cost)) ((moving *)r->flow)->moved[v] = moved;
}

static cot_double_double exactly(const cot_problem *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e;
    return p->cost ? cot_double_double_product(p->load[at], p->cost[(size_t)l * (size_t)p->S + (size_t)s])
                   : cot_double_double_of(p->pair_cost[at * (size_t)p->S + (size_t)s]);
}

static void relax(cot_cycles *r, int32_t u)
{
    const cot_pairs *p = ((const moving *)r->flow)->p;
    const cot_double_double nothing = {0, 0};
    int32_t ranks = p->L * p->S, sink = r->V - 1;
    if (u == sink) {
        for (int32_t s = 0; s < p->S; s++)
            if (p->used[s] > 0) improve(r, sink, ranks + s, -1, nothing);
    } else if (u >= ranks) {
        if (p->used[u - ranks] < p->problem->c_exp[u - ranks]) improve(r, u, sink, -1, nothing);
        for (int32_t l = 0; l < p->L; l++)
            if (p->count[l * p->S + u - ranks]) improve(r, u, l * p->S + u - ranks, -1, nothing);
    } else {
        int32_t l = u / p->S, s = u % p->S;
        if (p->count[u] < p->problem->c_layer[s]) improve(r, u, ranks + s, -1, nothing);
        for (int32_t e = p->head[u]; e >= 0; e = p->next[(size_t)l * (size_t)p->E + (size_t)e]) {
            cot_double_double here = exactly(p->problem, l, e, s);
            for (int32_t t = 0; t < p->S; t++)
                if (t != s)
                    improve(r, u, l * p->S + t, e,
                            cot_double_double_subtract(exactly(p->problem, l, e, t), here));
        }
    }
}

static void turn(cot_cycles *r, int32_t start)
{
    const moving *m = r->flow;
    int32_t v = start, S = m->p->S;
    do {
        if (m->moved[v] >= 0) cot_pairs_move(m->p, v / S, m->moved[v], v % S);
        v = r->from[v];
    } while (v != start);
}

cot_status cot_pairs_polish(cot_pairs *pairs, cot_double_double *potential, cot_error *error)
{
    const int32_t V = (pairs->L + 1) * pairs->S + 1;
    for (int32_t v = 0; v < V; v++) potential[v] = cot_double_double_of(pairs->potential[v]);
    if (pairs->exact) return COT_OK;
    moving m = {pairs, malloc((size_t)V * sizeof *m.moved)};
    if (!m.moved) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
    cot_cycles cycles = {.potential = potential, .V = V, .flow = &m, .relax = relax, .turn = turn};
    cot_status status = cot_cycles_cancel_all(&cycles, error);
    free(m.moved);
    return status;
}
