/* Bellman and Ford's relaxation in double-double numbers: from potentials that are nearly those of an optimal flow it
 * finds the exact ones after a few steps, or else a cycle of negative cost, which the caller turns. */
#ifndef COT_PLACEMENT_CYCLES_H
#define COT_PLACEMENT_CYCLES_H
#include "coterie/status.h"
#include "placement/double_double.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_cycles {
    cot_double_double *potential; // [V]
    int32_t V;
    int32_t *from;  // [V] the vertex that gave it its potential, or -1
    int32_t *queue; // ring of V
    bool *queued;   // [V]
    int32_t begin, length;
    void *flow; // the caller's
    /* Calls cot_cycles_improve for every residual arc out of u. */
    void (*relax)(struct cot_cycles *cycles, int32_t u);
    /* Sends one unit round the cycle of `from` that `start` is on. */
    void (*turn)(struct cot_cycles *cycles, int32_t start);
} cot_cycles;

/* Takes note of an arc from u to v of that cost; returns whether it lowers v's potential. */
static inline bool cot_cycles_improve(cot_cycles *r, int32_t u, int32_t v, cot_double_double cost)
{
    cot_double_double there = cot_double_double_add(r->potential[u], cost);
    if (!cot_double_double_less(there, r->potential[v])) return false;
    r->potential[v] = there;
    r->from[v] = u;
    if (!r->queued[v]) {
        r->queued[v] = true;
        r->queue[(r->begin + r->length++) % r->V] = v;
    }
    return true;
}
/* Relaxes arcs and turns cycles until no arc lowers a potential any more. The caller fills in potential, V, flow, relax
 * and turn; the rest is the function's own. Errors: OUT_OF_MEMORY. */
cot_status cot_cycles_cancel_all(cot_cycles *cycles, cot_error *error);

#endif
