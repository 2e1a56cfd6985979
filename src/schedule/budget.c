#include "schedule/budget.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MOST = COT_BUDGET_BINS / 4, REST = 8 }; // bins of a move; looks until the split may turn
static const double enough = 0.005,            // of a step's time that another split must save
    enough_to_turn = 0.02;                     // where memory goes back

const char *const cot_budget_reason_names[COT_BUDGET_REASONS + 1] = {
    [COT_BUDGET_BEST] = "no other split saves more",
    [COT_BUDGET_LITTLE] = "another split saves too little more",
    [COT_BUDGET_ONCE] = "another split is looked at once more",
    [COT_BUDGET_TURNED] = "memory moved the other way lately",
    [COT_BUDGET_PAGES] = "pages save more",
    [COT_BUDGET_SLOTS] = "replicas save more"};

/* The split that saves the most, of those that save as much but for rounding the nearest. */
static int best_split(const cot_budget *b, const double *pages_ns, const double *slots_ns, double step_ns)
{
    const double close = 1e-4 * step_ns;
    double most = -INFINITY;
    int best = b->pages;
    for (int i = b->least; i <= COT_BUDGET_BINS; i++)
        most = fmax(most, pages_ns[i] + slots_ns[COT_BUDGET_BINS - i]);
    for (int d = COT_BUDGET_BINS; d >= 0; d--)
        for (int side = -1; side <= 1; side += 2) {
            const int i = b->pages + side * d;
            if (i >= b->least && i <= COT_BUDGET_BINS &&
                pages_ns[i] + slots_ns[COT_BUDGET_BINS - i] >= most - close)
                best = i;
        }
    return best;
}

static cot_budget_reason judge(const cot_budget *b, int wanted, double step_ns)
{
    const bool turns = b->direction && wanted != b->direction;
    if (!wanted) return COT_BUDGET_BEST;
    if (!(b->gain_ns > (turns ? enough_to_turn : enough) * step_ns)) return COT_BUDGET_LITTLE;
    if (b->direction && b->wanted != wanted) return COT_BUDGET_ONCE;
    if (turns && b->looks - b->moved < REST) return COT_BUDGET_TURNED;
    return wanted > 0 ? COT_BUDGET_PAGES : COT_BUDGET_SLOTS;
}

void cot_budget_look(cot_budget *b, const double *pages_ns, const double *slots_ns, double step_ns)
{
    const int best = best_split(b, pages_ns, slots_ns, step_ns), wanted = best > b->pages   ? 1
                                                                          : best < b->pages ? -1
                                                                                            : 0;
    b->looks++;
    b->gain_ns = fmax(pages_ns[best] + slots_ns[COT_BUDGET_BINS - best] - pages_ns[b->pages] -
                          slots_ns[COT_BUDGET_BINS - b->pages],
                      0);
    b->reason = judge(b, wanted, step_ns);
    b->wanted = wanted;
    b->by_reason[b->reason]++;
    if (b->reason != COT_BUDGET_PAGES && b->reason != COT_BUDGET_SLOTS) return;
    const int far = abs(best - b->pages);
    b->pages += wanted * (far < MOST ? far : MOST);
    b->turns += b->direction && wanted != b->direction;
    b->direction = wanted;
    b->moved = b->looks;
}
