#include "placement/cycles.h"

#include "base/error.h"

#include <stdlib.h>

/* A vertex on a cycle of `from`, or -1. */
static int32_t find_cycle(const cot_cycles *r)
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

static void begin(cot_cycles *r)
{
    r->begin = 0;
    r->length = r->V;
    for (int32_t v = 0; v < r->V; v++) {
        r->queue[v] = v;
        r->queued[v] = true;
        r->from[v] = -1;
    }
}

static void turn_all(cot_cycles *r)
{
    int64_t relaxed = 0;
    for (begin(r); r->length; relaxed++) {
        int32_t u = r->queue[r->begin], at;
        r->begin = (r->begin + 1) % r->V;
        r->length--;
        r->queued[u] = false;
        r->relax(r, u);
        if (relaxed % r->V == r->V - 1 && (at = find_cycle(r)) >= 0) {
            r->turn(r, at);
            begin(r);
        }
    }
}

cot_status cot_cycles_cancel_all(cot_cycles *r, cot_error *error)
{
    const size_t V = (size_t)r->V;
    r->from = malloc(V * sizeof *r->from);
    r->queue = malloc(V * sizeof *r->queue);
    r->queued = malloc(V * sizeof *r->queued);
    const bool good = r->from && r->queue && r->queued;
    if (good) turn_all(r);
    free(r->from);
    free(r->queue);
    free(r->queued);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
}
