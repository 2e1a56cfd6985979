#include "engine/saving.h"

#include <stdlib.h>
#include <string.h>

void cot_saving_begin(cot_saving *s, double foreseen_ns)
{
    s->state = s->steps < COT_SAVING_STEPS ? COT_SAVING_STILL : COT_SAVING_MOVING;
    s->foreseen_ns = foreseen_ns;
    s->steps = 0;
    memcpy(s->before, s->step, sizeof s->before);
}

void cot_saving_end(cot_saving *s)
{
    if (s->state != COT_SAVING_MOVING) return;
    s->state = COT_SAVING_OVER;
    s->steps = 0;
}

void cot_saving_forget(cot_saving *s)
{
    s->state = COT_SAVING_STILL;
    s->steps = 0;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What experts take of most steps, more or less. */
static double median_of_experts(const cot_saving_step *step, const double weight[COT_COST_TERMS])
{
    double ns[COT_SAVING_STEPS];
    for (int i = 0; i < COT_SAVING_STEPS; i++)
        ns[i] = step[i].ns - weight[COT_COST_FIXED] - weight[COT_COST_TOKENS] * (double)step[i].held.tokens -
                weight[COT_COST_POSITIONS] * (double)step[i].held.positions -
                weight[COT_COST_PAIRS] * (double)step[i].held.pairs;
    qsort(ns, COT_SAVING_STEPS, sizeof *ns, by_size);
    return (ns[COT_SAVING_STEPS / 2 - 1] + ns[COT_SAVING_STEPS / 2]) / 2;
}

bool cot_saving_add(double *realised_ns, cot_saving *s, const cot_cost_step *held, double ns,
                    const double weight[COT_COST_TERMS])
{
    s->step[s->steps++ % COT_SAVING_STEPS] = (cot_saving_step){ns, *held};
    if (s->state != COT_SAVING_OVER || s->steps < COT_SAVING_STEPS) return false;
    s->state = COT_SAVING_STILL;
    *realised_ns = median_of_experts(s->before, weight) - median_of_experts(s->step, weight);
    return true;
}
