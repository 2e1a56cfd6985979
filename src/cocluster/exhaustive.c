#include "cocluster/exhaustive.h"

#include <math.h>

/* Ranks of one size are alike unless there are bonuses: of groupings that differ by their names alone the one counts
 * whose first experts rise. */
static bool are_alike(const cot_cocluster *p, int32_t r, int32_t d)
{
    return !p->options.bonus && p->size[r] == p->size[d];
}

/* Whether expert e may be the next of rank d when those before it are placed. */
static bool may(const cot_cocluster *p, const int32_t *held, int32_t d)
{
    if (held[d] >= p->size[d]) return false;
    return held[d] || !d || !are_alike(p, d - 1, d) || held[d - 1];
}

/* The next grouping in lexical order, or, not begun, the first; false: there is none. */
static bool advance(int32_t *rank, const cot_cocluster *p, bool begun)
{
    int32_t held[COT_EXHAUSTIVE_EXPERTS] = {0};
    int32_t e = 0;
    if (begun) {
        for (int32_t k = 0; k < p->E; k++) held[rank[k]]++;
        e = p->E - 1;
        held[rank[e]]--;
    } else {
        rank[0] = -1;
    }
    while (e >= 0) { // rank[e] is the latest tried of expert e; what is before e is placed
        int32_t d = rank[e] + 1;
        while (d < p->D && !may(p, held, d)) d++;
        if (d < p->D) {
            rank[e] = d;
            held[d]++;
            if (++e == p->E) return true;
            rank[e] = -1;
        } else if (--e >= 0) {
            held[rank[e]]--;
        }
    }
    return false;
}

void cot_exhaustive_begin(cot_exhaustive *all, const cot_cocluster *p)
{
    *all = (cot_exhaustive){.bound = 0};
    if (p->E > COT_EXHAUSTIVE_EXPERTS) return;
    double groupings = 1; // E! / (size! ...), alike ones once
    int32_t e = 0;
    for (int32_t d = 0, alike = 0; d < p->D; d++) {
        for (int32_t k = 1; k <= p->size[d]; k++) groupings *= (double)++e / k;
        alike = d && are_alike(p, d - 1, d) ? alike + 1 : 1;
        groupings /= alike;
    }
    all->few = groupings < COT_EXHAUSTIVE_MOST + 0.5;
}

void cot_exhaustive_step(cot_exhaustive *all, cot_cocluster *p)
{
    for (int k = 0; k < COT_EXHAUSTIVE_STEP; k++) {
        if (!advance(all->rank, p, all->begun)) {
            p->done = true;
            cot_cocluster_bound_is(p, all->bound);
            return;
        }
        all->begun = true;
        if (!cot_cocluster_is_within(p, all->rank)) continue;
        cot_cocluster_gains(p->gain, p, all->rank);
        for (int32_t d = 0; d < p->D; d++) p->price[d] = 0;
        cot_cocluster_token_prices(p->trial + p->E, p->price, 0, p, p->gain);
        const double had = (double)p->best.local + p->best.bonus;
        const double bound = cot_cocluster_token_bound(p->price, fmax(had, all->bound), p, p->gain);
        all->bound = fmax(all->bound, bound);
        if (bound >= had) cot_cocluster_offer(p, all->rank, NULL);
    }
}
