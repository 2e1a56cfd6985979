/* Of equally good placements the one of smaller peak load: on every layer's most loaded rank, moves and exchanges that
 * leave the cost what it is, to the last bit. */
#include "placement/pairs.h"

#include "base/error.h"

#include <stdlib.h>

typedef struct evening {
    const cot_problem *p;
    int32_t *rank; // [E] of the layer at hand
    int32_t l;
    double *sum;   // [S] loads of the layer
    int32_t *held; // [S] experts of the layer
    int32_t *used; // [S] experts of all layers
} evening;

/* An expert of the peak rank goes to another one, from where another comes in its place (-1: none). */
typedef struct change {
    int32_t expert, with, to;
    double peak; // of both ranks then
} change;

/* Whether a sum of two numbers is another's. */
static bool same(double a, double b, double c, double d)
{
    cot_double_double x = cot_double_double_sum(a, b), y = cot_double_double_sum(c, d);
    return x.high == y.high && x.low == y.low;
}

static void consider(change *best, const evening *w, int32_t e, int32_t with, int32_t b)
{
    const cot_problem *p = w->p;
    const double *load = p->load + (size_t)w->l * (size_t)p->E;
    int32_t a = w->rank[e];
    double less = load[e] - (with < 0 ? 0 : load[with]), left = w->sum[a] - less, right = w->sum[b] + less;
    double peak = left > right ? left : right;
    if (b == a || less <= 0 || peak >= best->peak) return;
    double back = with < 0 ? 0 : cot_problem_cost(p, w->l, with, b),
           there = with < 0 ? 0 : cot_problem_cost(p, w->l, with, a);
    if (same(cot_problem_cost(p, w->l, e, a), back, cot_problem_cost(p, w->l, e, b), there))
        *best = (change){e, with, b, peak};
}

/* Lowers the load of rank `a` if that is possible. */
static bool lower(evening *w, int32_t a)
{
    const cot_problem *p = w->p;
    const double *load = p->load + (size_t)w->l * (size_t)p->E;
    change best = {-1, -1, -1, w->sum[a] * (1 - 1e-12)};
    for (int32_t e = 0; e < p->E; e++) {
        if (w->rank[e] != a) continue;
        for (int32_t b = 0; b < p->S; b++)
            if (w->held[b] < p->c_layer[b] && w->used[b] < p->c_exp[b]) consider(&best, w, e, -1, b);
        for (int32_t f = 0; f < p->E; f++) consider(&best, w, e, f, w->rank[f]);
    }
    if (best.expert < 0) return false;
    double less = load[best.expert] - (best.with < 0 ? 0 : load[best.with]);
    w->sum[a] -= less;
    w->sum[best.to] += less;
    w->rank[best.expert] = best.to;
    if (best.with >= 0)
        w->rank[best.with] = a;
    else {
        w->held[a]--;
        w->used[a]--;
        w->held[best.to]++;
        w->used[best.to]++;
    }
    return true;
}

cot_status cot_pairs_even(cot_assignment *assignment, const cot_problem *p, cot_error *error)
{
    size_t S = (size_t)p->S, E = (size_t)p->E, n = (size_t)p->L * E;
    evening w = {.p = p, .sum = malloc(S * sizeof *w.sum), .held = calloc(2 * S, sizeof *w.held)};
    if (!w.sum || !w.held) {
        free(w.sum);
        free(w.held);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    }
    w.used = w.held + S;
    for (size_t i = 0; i < n; i++) w.used[assignment->rank[i]]++;
    for (w.l = 0; w.l < p->L; w.l++) {
        w.rank = assignment->rank + (size_t)w.l * E;
        for (size_t s = 0; s < S; s++) w.sum[s] = w.held[s] = 0;
        for (size_t e = 0; e < E; e++) {
            w.sum[w.rank[e]] += p->load[(size_t)w.l * E + e];
            w.held[w.rank[e]]++;
        }
        bool lowered = true;
        for (int64_t steps = 0; lowered && steps < 64 * (int64_t)S; steps++) {
            int32_t peak = 0;
            for (int32_t s = 1; s < p->S; s++)
                if (w.sum[s] > w.sum[peak]) peak = s;
            lowered = lower(&w, peak);
        }
    }
    free(w.sum);
    free(w.held);
    return COT_OK;
}
