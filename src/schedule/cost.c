#include "schedule/cost.h"

#include "coterie/trace.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { ENOUGH = 8, SWEEPS = 30, ROUTINGS = 100 };
static const double memory = 0.99, error_memory = 0.99, // what a step before counts of one now
    outlier = 4, // a step that took so many times what was expected counts as that: something else went on
    cold = 0.1,  // what one of the first steps counts: memory is touched for the first time
    hold = 0.1;  // so many steps in which a term is all that takes time weigh as much as its prior

void cot_cost_init(cot_cost *cost, const double prior[COT_COST_TERMS], int64_t experts, int64_t chosen,
                   int64_t at_once)
{
    *cost = (cot_cost){.experts = (double)experts,
                       .chosen = (double)chosen,
                       .at_once = (double)at_once,
                       .most = (double)experts,
                       .rows = (double)chosen,
                       .told = {1, 1, 1}};
    memcpy(cost->prior, prior, sizeof cost->prior);
    if (!chosen) cost->prior[COT_COST_EXPERTS] = cost->prior[COT_COST_ROWS] = cost->prior[COT_COST_SENDS] = 0;
}

void cot_cost_add_span(cot_cost_step *step, int64_t position, int64_t tokens)
{
    if (!tokens) return;
    step->tokens += tokens;
    step->positions += position + tokens;
    step->pairs += tokens * position + tokens * (tokens + 1) / 2;
}

/* ---- experts ---- */

/* What each rank has to do of something in a layer. */
typedef struct per_rank {
    int64_t of[COT_TRACE_MAX_RANKS], all;
} per_rank;

static void add(per_rank *p, int rank)
{
    p->of[rank]++;
    p->all++;
}

/* What is waited for where the busiest rank has `most` of `all`: that rank, or how long all take as many at once as can be. */
static double waited_for(const cot_cost *cost, double most, double all)
{
    return fmax(most, all / cost->at_once);
}

/* What the layer waits for. */
static double busiest(const cot_cost *cost, const per_rank *p, int ranks)
{
    int64_t most = 0;
    for (int r = 0; r < ranks; r++)
        if (p->of[r] > most) most = p->of[r];
    return waited_for(cost, (double)most, (double)p->all);
}

void cot_cost_place(cot_cost *cost, const cot_expert_layout *layout)
{
    memset(cost->routed, 0, sizeof cost->routed);
    memset(cost->distinct, 0, sizeof cost->distinct);
    cost->told = (cot_cost_load){1, 1, 1};
    cost->tellings = 0;
    cost->most = 0;
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        per_rank held = {{0}, 0};
        for (int32_t i = 0; i < r.begin[layout->n_experts]; i++) add(&held, r.rank[i]);
        cost->most += busiest(cost, &held, layout->n_ranks);
    }
    if (layout->n_layers) cost->most /= layout->n_layers;
}

/* One layer's tokens; at_doubling [COT_COST_DOUBLINGS] are added to. */
static cot_cost_load load_of(const cot_cost *cost, double *at_doubling, const uint16_t *experts,
                             int64_t tokens, const cot_expert_replicas *replicas, int ranks,
                             uint64_t *scratch)
{
    const int64_t k = (int64_t)cost->chosen;
    per_rank distinct = {{0}, 0}, rows = {{0}, 0}, sends = {{0}, 0};
    int doubling = 0;
    memset(scratch, 0, (size_t)cost->experts * sizeof *scratch);
    for (int64_t t = 0; t < tokens; t++) {
        const int home = (int)(t % ranks);
        uint64_t reached = (uint64_t)1 << home;
        for (int64_t i = 0; i < k; i++) {
            const uint16_t e = experts[t * k + i];
            const int rank = replicas ? replicas->rank[cot_expert_replica(replicas, e, home, t)] : 0;
            const uint64_t bit = (uint64_t)1 << rank;
            add(&rows, rank);
            if (!(scratch[e] & bit)) add(&distinct, rank);
            if (!(reached & bit)) add(&sends, rank);
            scratch[e] |= bit;
            reached |= bit;
        }
        if (doubling < COT_COST_DOUBLINGS && t + 1 == (int64_t)1 << doubling)
            at_doubling[doubling++] += busiest(cost, &distinct, ranks);
    }
    return (cot_cost_load){busiest(cost, &distinct, ranks), busiest(cost, &rows, ranks),
                           busiest(cost, &sends, ranks)};
}

cot_cost_load cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers, int64_t stride,
                                     int64_t tokens, const cot_expert_layout *layout, uint64_t *scratch)
{
    double at_doubling[COT_COST_DOUBLINGS] = {0};
    cot_cost_load mean = {0};
    if (!tokens || !layers || cost->chosen < 1) return mean;
    for (int64_t layer = 0; layer < layers; layer++) {
        cot_expert_replicas replicas;
        if (layout) replicas = cot_expert_layout_layer(layout, (int32_t)layer);
        const cot_cost_load one =
            load_of(cost, at_doubling, experts + layer * stride * (int64_t)cost->chosen, tokens,
                    layout ? &replicas : NULL, layout ? layout->n_ranks : 1, scratch);
        mean.experts += one.experts;
        mean.rows += one.rows;
        mean.sends += one.sends;
    }
    mean.experts /= (double)layers;
    mean.rows /= (double)layers;
    mean.sends /= (double)layers;
    const int64_t seen = cost->routed[0] < ROUTINGS ? cost->routed[0] + 1 : ROUTINGS;
    cost->rows += (mean.rows / (double)tokens - cost->rows) / (double)seen;
    cost->sends += (mean.sends / (double)tokens - cost->sends) / (double)seen;
    for (int d = 0; d < COT_COST_DOUBLINGS && (int64_t)1 << d <= tokens; d++) {
        if (cost->routed[d] < ROUTINGS) cost->routed[d]++;
        cost->distinct[d] += (at_doubling[d] / (double)layers - cost->distinct[d]) / (double)cost->routed[d];
    }
    return mean;
}

/* By what was seen at powers of two; between them on straight lines, beyond them untouched experts become fewer at the rate
 * of the last doubling. Where nothing was seen, by chance. */
double cot_cost_distinct(const cot_cost *cost, int64_t tokens)
{
    const double all = cost->most, n = (double)tokens;
    double before = 0, last = 0, from = 0, to = 0; // distinct among `from` and among `to` tokens
    if (!cost->chosen || tokens < 1) return 0;
    for (int d = 0; d < COT_COST_DOUBLINGS && cost->routed[d]; d++) {
        before = last;
        from = to;
        to = (double)((int64_t)1 << d);
        last = fmin(fmax(before, cost->distinct[d]), all);
        if (n <= to) return before + (last - before) * (n - from) / (to - from);
    }
    if (last >= all) return all;
    const double left = to > 0 ? (all - last) / (all - before) : 1 - cost->chosen / cost->experts;
    return all - (all - last) * pow(left, (n - to) / fmax(to - from, 1));
}

/* ---- time ---- */

/* By routing alone. */
static cot_cost_load routed_load(const cot_cost *cost, int64_t tokens)
{
    return (cot_cost_load){cot_cost_distinct(cost, tokens), cost->rows * (double)tokens,
                           cost->sends * (double)tokens};
}

static cot_cost_load expected_load(const cot_cost *cost, int64_t tokens)
{
    const cot_cost_load routed = routed_load(cost, tokens), *told = &cost->told;
    return (cot_cost_load){routed.experts * told->experts, routed.rows * told->rows,
                           routed.sends * told->sends};
}

static void learn_told(double *told, double served, double routed, int64_t seen)
{
    if (routed > 0) *told += (served / routed - *told) / (double)seen;
}

cot_cost_load cot_cost_learn_served(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *served,
                                    int ranks, int64_t layers)
{
    cot_cost_load most = {0}, all = {0};
    for (int r = 0; r < ranks; r++) {
        most = (cot_cost_load){fmax(most.experts, served[r].experts), fmax(most.rows, served[r].rows),
                               fmax(most.sends, served[r].sends)};
        all.experts += served[r].experts;
        all.rows += served[r].rows;
        all.sends += served[r].sends;
    }
    const double n = (double)layers;
    const cot_cost_load load = {waited_for(cost, most.experts, all.experts) / n,
                                waited_for(cost, most.rows, all.rows) / n,
                                waited_for(cost, most.sends, all.sends) / n},
                        routed = routed_load(cost, step->tokens);
    if (cost->tellings < ROUTINGS) cost->tellings++;
    learn_told(&cost->told.experts, load.experts, routed.experts, cost->tellings);
    learn_told(&cost->told.rows, load.rows, routed.rows, cost->tellings);
    learn_told(&cost->told.sends, load.sends, routed.sends, cost->tellings);
    return load;
}

/* What takes time in a step of this load. */
static void terms_of(const cot_cost_step *step, const cot_cost_load *load, double x[COT_COST_TERMS])
{
    x[COT_COST_FIXED] = 1;
    x[COT_COST_EXPERTS] = load->experts;
    x[COT_COST_ROWS] = load->rows;
    x[COT_COST_SENDS] = load->sends;
    x[COT_COST_TOKENS] = (double)step->tokens;
    x[COT_COST_POSITIONS] = (double)step->positions;
    x[COT_COST_PAIRS] = (double)step->pairs;
}

double cot_cost_predict(const cot_cost *cost, const cot_cost_step *step)
{
    double x[COT_COST_TERMS], ns = 0;
    if (cost->steps < ENOUGH) return 0;
    const cot_cost_load load = expected_load(cost, step->tokens);
    terms_of(step, &load, x);
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

void cot_cost_learn(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *load, double ns)
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
    const cot_cost_load expected_one = expected_load(cost, step->tokens);
    terms_of(step, load ? load : &expected_one, x);
    for (int i = 0; i < COT_COST_TERMS; i++) {
        const double share = (warm ? 1 : cold) * x[i] / ns;
        cost->sum[i] = memory * cost->sum[i] + share;
        for (int j = 0; j < COT_COST_TERMS; j++)
            cost->square[i][j] = memory * cost->square[i][j] + share * (x[j] / ns);
    }
    solve(cost);
}
