#include "harness/moe/oracle_gate.h"

#include "harness/poisoned.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>

void oracle_gate_pack(struct oracle_gate *o)
{
    cot_pack_columns(o->weight, COT_FORMAT_FP32, o->gate.hidden, o->gate.experts, 0, o->gate.experts,
                     o->plain, COT_F32, o->gate.hidden);
}

struct oracle_gate oracle_gate_new(const cot_gate *rules, bool with_bias, bool with_correction,
                                   struct draw *draw)
{
    struct oracle_gate o = {.gate = *rules};
    int64_t hidden = rules->hidden, experts = rules->experts;
    o.plain = draw_floats(draw, hidden * experts, 3 / sqrt((double)hidden));
    o.weight = poisoned((size_t)cot_packed_bytes(COT_FORMAT_FP32, hidden, experts));
    if (with_bias) o.bias = draw_floats(draw, experts, 1);
    if (with_correction) o.correction = draw_floats(draw, experts, 0.3);
    o.gate.weight = o.weight, o.gate.bias = o.bias, o.gate.correction = o.correction;
    oracle_gate_pack(&o);
    return o;
}

void oracle_gate_set_weight(struct oracle_gate *o, float value)
{
    for (int64_t i = 0; i < o->gate.experts * o->gate.hidden; i++)
        o->plain[i] = i / o->gate.hidden % 2 ? -value : value;
    oracle_gate_pack(o);
}

void oracle_gate_free(struct oracle_gate *o)
{
    free(o->plain), free(o->weight), free(o->bias), free(o->correction);
}

/* Whether fp32 could see the two the other way round. */
static bool too_close(double a, double b)
{
    return fabs(a - b) < 1e-5 * fmax(fabs(a), fabs(b)) + 1e-9;
}

/* Marks the `take` highest of n values, the lower index first among equals. False where it is too close to
 * call; two exact zeros (masked scores) and two exclusions are not. */
static bool mark_best(bool *marked, const double *values, int64_t n, int64_t take)
{
    for (int64_t j = 0; j < n; j++) marked[j] = false;
    double lowest = 0, next = -INFINITY;
    for (int64_t i = 0; i < take; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++)
            if (!marked[j] && (best < 0 || values[j] > values[best])) best = j;
        marked[best] = true;
        lowest = values[best];
    }
    for (int64_t j = 0; j < n; j++)
        if (!marked[j] && values[j] > next) next = values[j];
    return take == n || next == -INFINITY || (next == 0 && lowest == 0) || !too_close(lowest, next);
}

bool oracle_route(int64_t *experts, double *weights, const struct oracle_gate *o, const float *x)
{
    const cot_gate *g = &o->gate;
    int64_t n = g->experts, size = n / g->groups;
    double *scores = calloc((size_t)n * 2, sizeof *scores), *choice = scores + n, top = -INFINITY, sum = 0;
    bool *marked = calloc((size_t)n, sizeof *marked), sure = true;
    for (int64_t e = 0; e < n; e++) {
        scores[e] = o->bias ? (double)o->bias[e] : 0;
        for (int64_t h = 0; h < g->hidden; h++)
            scores[e] += (double)o->plain[e * g->hidden + h] * (double)x[h];
        if (scores[e] > top) top = scores[e];
    }
    for (int64_t e = 0; e < n; e++) sum += exp(scores[e] - top);
    for (int64_t e = 0; e < n; e++) {
        if (g->score == COT_GATE_SOFTMAX) scores[e] = exp(scores[e] - top) / sum;
        if (g->score == COT_GATE_SIGMOID) scores[e] = 1 / (1 + exp(-scores[e]));
        choice[e] = scores[e] + (o->correction ? (double)o->correction[e] : 0);
    }
    if (g->group_limit < g->groups) {
        double by_group[COT_MAX_GROUPS] = {0};
        bool open[COT_MAX_GROUPS];
        for (int64_t i = 0; i < g->groups; i++) {
            double best = -INFINITY, second = -INFINITY;
            for (int64_t e = i * size; e < (i + 1) * size; e++) {
                second = fmax(second, fmin(best, choice[e]));
                best = fmax(best, choice[e]);
            }
            by_group[i] = g->group_score == COT_GROUP_TOP2_SUM ? best + second : best;
        }
        sure = mark_best(open, by_group, g->groups, g->group_limit);
        for (int64_t e = 0; e < n; e++) {
            if (open[e / size]) continue;
            choice[e] = g->score == COT_GATE_SOFTMAX && !o->correction ? 0 : -INFINITY;
            scores[e] = 0;
        }
    }
    sure = mark_best(marked, choice, n, g->top_k) && sure;
    int64_t k = 0;
    sum = 0;
    for (int64_t e = 0; e < n; e++) {
        if (!marked[e]) continue;
        experts[k] = e;
        weights[k] = g->score == COT_GATE_CHOSEN_SOFTMAX ? exp(scores[e] - top) : scores[e];
        sum += weights[k++];
    }
    bool divide = g->normalise || g->score == COT_GATE_CHOSEN_SOFTMAX;
    for (k = 0; k < g->top_k; k++)
        weights[k] = (divide ? weights[k] / (sum + (double)g->epsilon) : weights[k]) * (double)g->scaling;
    free(scores), free(marked);
    return sure;
}
