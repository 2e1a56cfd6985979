/* The flow that is optimal for rounded costs is optimal for the costs themselves, or nearly: Bellman and Ford's
 * relaxation in twofold numbers, begun from its potentials, finds the exact ones after a few steps, or else a circle
 * of negative cost, which is turned. */
#include "placement/chain.h"

#include "base/error.h"

#include <stdlib.h>

typedef struct relaxing {
    cot_chain *c;
    cot_twofold *potential; // [G + C + 1]
    int32_t *from;          // [G + C + 1] the vertex that gave it its potential
    int32_t *queue;         // ring of G + C + 1
    bool *queued;
    int32_t begin, length, V;
} relaxing;

static void improve(relaxing *r, int32_t u, int32_t v, cot_twofold cost)
{
    cot_twofold there = cot_twofold_add(r->potential[u], cost);
    if (!cot_twofold_less(there, r->potential[v])) return;
    r->potential[v] = there;
    r->from[v] = u;
    if (!r->queued[v]) {
        r->queued[v] = true;
        r->queue[(r->begin + r->length++) % r->V] = v;
    }
}

/* All residual arcs out of u; the sink is the last vertex. */
static void relax(relaxing *r, int32_t u)
{
    const cot_chain *c = r->c;
    const cot_twofold nothing = {0, 0};
    int32_t sink = r->V - 1;
    if (u == sink) {
        for (int32_t g = 0; g < c->G; g++)
            if (c->used[g] > 0) improve(r, sink, g, nothing);
    } else if (u < c->G) {
        if (c->used[u] < c->cap[u]) improve(r, u, sink, nothing);
        for (int32_t l = 0; l < c->L; l++) {
            size_t at = (size_t)u * (size_t)c->L + (size_t)l;
            if (c->count[at]) improve(r, u, c->G + c->class_of[at], nothing);
        }
    } else {
        int32_t k = u - c->G, l = c->layer[k];
        for (int32_t i = c->group_first[k]; i < c->group_first[k + 1]; i++) {
            int32_t g = c->group[i];
            if (c->count[(size_t)g * (size_t)c->L + (size_t)l] < c->cap_layer[g]) improve(r, u, g, nothing);
        }
        if (!cot_chain_last(c, k) && c->below[k] > 0)
            improve(r, u, u + 1, cot_chain_pay_exactly(c, k, c->below[k] - 1));
        if (k > c->class_first[l] && c->below[k - 1] < c->E)
            improve(r, u, u - 1, cot_twofold_negative(cot_chain_pay_exactly(c, k - 1, c->below[k - 1])));
    }
}

/* A vertex on a circle of `from`, or -1. */
static int32_t find_circle(relaxing *r)
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

/* Sends one expert round the circle. */
static void turn(relaxing *r, int32_t start)
{
    cot_chain *c = r->c;
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

static void begin(relaxing *r)
{
    r->begin = 0;
    r->length = r->V;
    for (int32_t v = 0; v < r->V; v++) {
        r->queue[v] = v;
        r->queued[v] = true;
        r->from[v] = -1;
    }
}

cot_status cot_chain_polish(cot_chain *chain, cot_twofold *potential, cot_error *error)
{
    relaxing r = {.c = chain, .potential = potential, .V = chain->G + chain->C + 1};
    size_t V = (size_t)r.V;
    for (int32_t v = 0; v < r.V; v++) potential[v] = cot_twofold_of(v < r.V - 1 ? chain->potential[v] : 0);
    if (chain->exact) return COT_OK;
    r.from = malloc(V * sizeof *r.from);
    r.queue = malloc(V * sizeof *r.queue);
    r.queued = malloc(V * sizeof *r.queued);
    bool good = r.from && r.queue && r.queued;
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
    free(r.queue);
    free(r.queued);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
}
