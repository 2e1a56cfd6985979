#include "schedule/cost.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { ENOUGH = 8, SWEEPS = 30, ROUTINGS = 100 };
static const double memory = 0.99, error_memory = 0.99, // what a step before counts of one now
    outlier = 4, // a step that took so many times what was expected counts as that: something else went on
    cold = 0.1,  // what one of the first steps counts: memory is touched for the first time
    hold = 0.1;  // so many steps in which a term is all that takes time weigh as much as its prior

void cot_cost_init(cot_cost *cost, const double prior[COT_COST_TERMS], int64_t experts, int64_t chosen)
{
    *cost = (cot_cost){.experts = (double)experts, .chosen = (double)chosen};
    memcpy(cost->prior, prior, sizeof cost->prior);
    if (!chosen) cost->prior[COT_COST_EXPERTS] = 0;
}

void cot_cost_add_span(cot_cost_step *step, int64_t position, int64_t tokens)
{
    if (!tokens) return;
    step->tokens += tokens;
    step->positions += position + tokens;
    step->pairs += tokens * position + tokens * (tokens + 1) / 2;
}

/* ---- experts ---- */

double cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers, int64_t stride,
                              int64_t tokens, bool *scratch)
{
    const int64_t k = (int64_t)cost->chosen;
    int64_t at_doubling[COT_COST_DOUBLINGS] = {0}, all = 0;
    if (!tokens || !layers || !k) return 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        int64_t distinct = 0, doubling = 0;
        memset(scratch, 0, (size_t)cost->experts);
        for (int64_t t = 0; t < tokens; t++) {
            distinct += cot_cost_touch(scratch, experts + (layer * stride + t) * k, k);
            if (doubling < COT_COST_DOUBLINGS && t + 1 == (int64_t)1 << doubling)
                at_doubling[doubling++] += distinct;
        }
        all += distinct;
    }
    for (int d = 0; d < COT_COST_DOUBLINGS && (int64_t)1 << d <= tokens; d++) {
        const double seen = (double)at_doubling[d] / (double)layers;
        if (cost->routed[d] < ROUTINGS) cost->routed[d]++;
        cost->distinct[d] += (seen - cost->distinct[d]) / (double)cost->routed[d];
    }
    return (double)all / (double)layers;
}

/* By what was seen at powers of two; between them on straight lines, beyond them untouched experts become fewer at the rate
 * of the last doubling. Where nothing was seen, by chance. */
double cot_cost_distinct(const cot_cost *cost, int64_t tokens)
{
    const double all = cost->experts, n = (double)tokens;
    double before = 0, last = 0, from = 0, to = 0; // distinct among `from` and among `to` tokens
    if (!cost->chosen || tokens < 1) return 0;
    for (int d = 0; d < COT_COST_DOUBLINGS && cost->routed[d]; d++) {
        before = last;
        from = to;
        to = (double)((int64_t)1 << d);
        last = fmax(before, cost->distinct[d]);
        if (n <= to) return before + (last - before) * (n - from) / (to - from);
    }
    if (last >= all) return all;
    const double left = to > 0 ? (all - last) / (all - before) : 1 - cost->chosen / all;
    return all - (all - last) * pow(left, (n - to) / fmax(to - from, 1));
}

/* ---- time ---- */

/* What takes time in a step that touches so many distinct experts. */
static void terms_of(const cot_cost_step *step, double distinct, double x[COT_COST_TERMS])
{
    x[COT_COST_FIXED] = 1;
    x[COT_COST_EXPERTS] = distinct;
    x[COT_COST_TOKENS] = (double)step->tokens;
    x[COT_COST_POSITIONS] = (double)step->positions;
    x[COT_COST_PAIRS] = (double)step->pairs;
}

double cot_cost_predict(const cot_cost *cost, const cot_cost_step *step)
{
    double x[COT_COST_TERMS], ns = 0;
    if (cost->steps < ENOUGH) return 0;
    terms_of(step, cot_cost_distinct(cost, step->tokens), x);
    for (int i = 0; i < COT_COST_TERMS; i++) ns += cost->weight[i] * x[i];
    return ns;
}

/* The factor by which the prior fits best. */
static double scale_of(const cot_cost *cost)
{
    double once = 0, twice = 0;
    for (int i = 0; i < COT_COST_TERMS; i++) {
        once += cost->prior[i] * cost->sum[i];
        for (int j = 0; j < COT_COST_TERMS; j++)
            twice += cost->prior[i] * cost->prior[j] * cost->square[i][j];
    }
    return twice > 0 ? once / twice : 0;
}

/* Least squares without negative weights, by coordinates: each in turn is the best that it can be beside the others. What a
 * weight is of its prior costs the square of what it differs from 1. */
static void solve(cot_cost *cost)
{
    const double scale = scale_of(cost);
    double unit[COT_COST_TERMS];
    for (int i = 0; i < COT_COST_TERMS; i++) unit[i] = scale * cost->prior[i];
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 0; i < COT_COST_TERMS; i++) {
            double rest = unit[i] * cost->sum[i] + hold;
            for (int j = 0; j < COT_COST_TERMS; j++)
                if (j != i) rest -= unit[i] * cost->square[i][j] * cost->weight[j];
            cost->weight[i] = unit[i] * fmax(rest / (unit[i] * unit[i] * cost->square[i][i] + hold), 0);
        }
}

void cot_cost_expect(cot_cost *cost, const cot_cost_step *step)
{
    cost->predicted_ns = cot_cost_predict(cost, step);
}

void cot_cost_learn(cot_cost *cost, const cot_cost_step *step, double distinct, double ns)
{
    double x[COT_COST_TERMS];
    const double expected = cost->predicted_ns;
    const bool warm = cost->steps >= ENOUGH;
    cost->observed_ns = ns;
    if (warm) {
        const double error = fabs(expected - ns) / ns;
        cost->error = cost->steps == ENOUGH ? error : error_memory * cost->error + (1 - error_memory) * error;
        if (expected > 0) ns = fmin(ns, outlier * expected);
    }
    cost->steps++;
    terms_of(step, distinct < 0 ? cot_cost_distinct(cost, step->tokens) : distinct, x);
    for (int i = 0; i < COT_COST_TERMS; i++) {
        const double share = (warm ? 1 : cold) * x[i] / ns;
        cost->sum[i] = memory * cost->sum[i] + share;
        for (int j = 0; j < COT_COST_TERMS; j++)
            cost->square[i][j] = memory * cost->square[i][j] + share * (x[j] / ns);
    }
    solve(cost);
}
