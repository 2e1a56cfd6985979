#include "engine/cost.h"

#include <math.h>

enum { ENOUGH = 16, SWEEPS = 30 };
static const double memory = 0.998, error_memory = 0.99, // what a step before counts of one now
    outlier = 4; // a step that took so many times what was expected counts as that: something else went on

void cot_cost_init(cot_cost *cost, int64_t experts, int64_t chosen)
{
    *cost = (cot_cost){.left_out = experts > chosen ? 1 - (double)chosen / (double)experts : chosen ? 0 : 1};
}

/* Of a size about 1 where steps are of some dozen tokens. */
static void terms_of(const cot_cost *cost, int64_t tokens, int64_t positions, double x[COT_COST_TERMS])
{
    x[0] = 1;
    x[1] = 1 - pow(cost->left_out, (double)tokens);
    x[2] = (double)tokens / 64;
    x[3] = (double)positions / 4096;
}

static double predict(const cot_cost *cost, const double x[COT_COST_TERMS])
{
    double ns = 0;
    for (int i = 0; i < COT_COST_TERMS; i++) ns += cost->weight[i] * x[i];
    return ns;
}

double cot_cost_predict(const cot_cost *cost, int64_t tokens, int64_t positions)
{
    double x[COT_COST_TERMS];
    if (cost->steps < ENOUGH) return 0;
    terms_of(cost, tokens, positions, x);
    return predict(cost, x);
}

/* Least squares without negative weights, by coordinates: each in turn is the best that it can be beside the others. */
static void solve(cot_cost *cost)
{
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 0; i < COT_COST_TERMS; i++) {
            double rest = cost->sum[i];
            for (int j = 0; j < COT_COST_TERMS; j++)
                if (j != i) rest -= cost->square[i][j] * cost->weight[j];
            if (cost->square[i][i] > 0) cost->weight[i] = fmax(rest / cost->square[i][i], 0);
        }
}

void cot_cost_learn(cot_cost *cost, int64_t tokens, int64_t positions, double ns)
{
    double x[COT_COST_TERMS];
    terms_of(cost, tokens, positions, x);
    const double expected = predict(cost, x);
    cost->predicted_ns = expected;
    cost->observed_ns = ns;
    if (cost->steps >= ENOUGH) {
        const double error = fabs(expected - ns) / ns;
        cost->error = cost->steps == ENOUGH ? error : error_memory * cost->error + (1 - error_memory) * error;
        ns = fmin(ns, outlier * expected);
    }
    cost->steps++;
    if (!(ns > 0)) return; // all that was expected was nothing
    for (int i = 0; i < COT_COST_TERMS; i++) {
        cost->sum[i] = memory * cost->sum[i] + x[i] / ns;
        for (int j = 0; j < COT_COST_TERMS; j++)
            cost->square[i][j] = memory * cost->square[i][j] + x[i] / ns * (x[j] / ns);
    }
    solve(cost);
}
