/* As chain_polish.c, on the places and ranks of the general flow. */
#include "placement/pairs.h"

#include "base/error.h"

#include <stdlib.h>

typedef struct relaxing {
    cot_pairs *p;
    cot_twofold *potential;
    int32_t *from, *moved; // the vertex that gave it its potential, and the expert that moves
    int32_t *queue;
    bool *queued;
    int32_t begin, length, V;
} relaxing;

static void improve(relaxing *r, int32_t u, int32_t v, int32_t moved, cot_twofold cost)
{
    cot_twofold there = cot_twofold_add(r->potential[u], cost);
    if (!cot_twofold_less(there, r->potential[v])) return;
    r->potential[v] = there;
    r->from[v] = u;
    r->moved[v] = moved;
    if (!r->queued[v]) {
        r->queued[v] = true;
        r->queue[(r->begin + r->length++) % r->V] = v;
    }
}

static cot_twofold exactly(const cot_problem *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e;
    return p->cost ? cot_twofold_product(p->load[at], p->cost[(size_t)l * (size_t)p->S + (size_t)s])
                   : cot_twofold_of(p->pair_cost[at * (size_t)p->S + (size_t)s]);
}

static void relax(relaxing *r, int32_t u)
{
    const cot_pairs *p = r->p;
    const cot_twofold nothing = {0, 0};
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
            cot_twofold here = exactly(p->problem, l, e, s);
            for (int32_t t = 0; t < p->S; t++)
                if (t != s)
                    improve(r, u, l * p->S + t, e, cot_twofold_subtract(exactly(p->problem, l, e, t), here));
        }
    }
}

static int32_t find_circle(const relaxing *r)
{
    for (int32_t start = 0; start < r->V; start++) {
        int32_t v = start, slow = start;
        for (int32_t n = 0; v >= 0 && n <= r->V; n++) {
            v = r->from[v];
            if (n % 2) slow = r->from[slow];
            if (v >= 0 && v == slow) return v;
        }
    }
    return -1;
}

static void turn(relaxing *r, int32_t start)
{
    int32_t v = start, S = r->p->S;
    do {
        if (r->moved[v] >= 0) cot_pairs_move(r->p, v / S, r->moved[v], v % S);
        v = r->from[v];
    } while (v != start);
}

static void begin(relaxing *r)
{
    r->begin = 0;
    r->length = r->V;
    for (int32_t v = 0; v < r->V; v++) {
        r->queue[v] = v;
        r->queued[v] = true;
        r->from[v] = r->moved[v] = -1;
    }
}

cot_status cot_pairs_polish(cot_pairs *pairs, cot_twofold *potential, cot_error *error)
{
    relaxing r = {.p = pairs, .potential = potential, .V = (pairs->L + 1) * pairs->S + 1};
    size_t V = (size_t)r.V;
    for (size_t v = 0; v < V; v++) potential[v] = cot_twofold_of(pairs->potential[v]);
    if (pairs->exact) return COT_OK;
    r.from = malloc(V * sizeof *r.from);
    r.moved = malloc(V * sizeof *r.moved);
    r.queue = malloc(V * sizeof *r.queue);
    r.queued = malloc(V * sizeof *r.queued);
    bool good = r.from && r.moved && r.queue && r.queued;
    if (good) {
        int64_t relaxed = 0;
        for (begin(&r); r.length; relaxed++) {
            int32_t u = r.queue[r.begin], at;
            r.begin = (r.begin + 1) % r.V;
            r.length--;
            r.queued[u] = false;
            relax(&r, u);
            if (relaxed % r.V == r.V - 1 && (at = find_circle(&r)) >= 0) {
                turn(&r, at);
                begin(&r);
            }
        }
    }
    free(r.from);
    free(r.moved);
    free(r.queue);
    free(r.queued);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
}
