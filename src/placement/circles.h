/* Bellman and Ford's relaxation in twofold numbers: from potentials that are nearly those of an optimal flow it finds the
 * exact ones after a few steps, or else a circle of negative cost, which the caller turns. */
#ifndef COT_PLACEMENT_CIRCLES_H
#define COT_PLACEMENT_CIRCLES_H
#include "coterie/status.h"
#include "placement/twofold.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_circles {
    cot_twofold *potential; // [V]
    int32_t V;
    int32_t *from;  // [V] the vertex that gave it its potential, or -1
    int32_t *queue; // ring of V
    bool *queued;   // [V]
    int32_t begin, length;
    void *flow; // the caller's
    /* Calls cot_circles_improve for every residual arc out of u. */
    void (*relax)(struct cot_circles *circles, int32_t u);
    /* Sends one unit round the circle of `from` that `start` is on. */
    void (*turn)(struct cot_circles *circles, int32_t start);
} cot_circles;

/* The arc from u to v costs so much: whether that lowers v's potential. */
static inline bool cot_circles_improve(cot_circles *r, int32_t u, int32_t v, cot_twofold cost)
{
    cot_twofold there = cot_twofold_add(r->potential[u], cost);
    if (!cot_twofold_less(there, r->potential[v])) return false;
    r->potential[v] = there;
    r->from[v] = u;
    if (!r->queued[v]) {
        r->queued[v] = true;
        r->queue[(r->begin + r->length++) % r->V] = v;
    }
    return true;
}
/* Until no arc lowers a potential and no circle is left. Fill in potential, V, flow, relax, turn; the rest is its own.
 * Errors: OUT_OF_MEMORY. */
cot_status cot_circles_turn_all(cot_circles *circles, cot_error *error);

#endif
