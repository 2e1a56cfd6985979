/* Drawing inputs, and the mixture in double precision: plain loops over unpacked weights, nothing of src/ but
 * exact conversions of scalars. Only packing for the code under test goes through pack.h. */
#ifndef COT_TESTS_MOE_ORACLE_H
#define COT_TESTS_MOE_ORACLE_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/pack.h"
#include "moe/ffn.h"
#include "moe/gate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct draw {
    uint64_t seed, stream, position;
};

static inline uint64_t draw_seed(void)
{
    const char *given = getenv("COT_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)cot_now_ns() % 1000000;
    printf("seed %llu (COT_SEED=%llu repeats it)\n", (unsigned long long)seed, (unsigned long long)seed);
    return seed;
}

static inline int64_t draw_below(struct draw *draw, int64_t n)
{
    return (int64_t)(cot_random_bits(draw->seed, draw->stream, draw->position++) % (uint64_t)n);
}

/* Uniform in [-scale, scale), rounded to `type`. */
static inline float draw_float(struct draw *draw, double scale, cot_dtype type)
{
    double uniform = cot_random_uniform(draw->seed, draw->stream, draw->position++);
    float value = (float)((2 * uniform - 1) * scale);
    return type == COT_BF16 ? cot_bf16_to_f32(cot_f32_to_bf16(value)) : value;
}

static inline void *poisoned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(memory);
    memset(memory, 0xff, (bytes + 63) / 64 * 64 + 64); // NaN as any float type
    return memory;
}

static inline float *draw_typed(struct draw *draw, int64_t n, double scale, cot_dtype type)
{
    float *values = poisoned((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = draw_float(draw, scale, type);
    return values;
}

static inline float *draw_floats(struct draw *draw, int64_t n, double scale)
{
    return draw_typed(draw, n, scale, COT_F32);
}

#define near(found, expected, tolerance) near_at(found, expected, tolerance, __FILE__, __LINE__)
static inline void near_at(double found, double expected, double tolerance, const char *file, int line)
{
    if (fabs(found - expected) <= tolerance) return;
    print_error("%.9g found, %.9g expected within %g\n", found, expected, tolerance);
    _fail(file, line);
}

static inline double rounded(double value, cot_dtype type)
{
    return type == COT_BF16 ? (double)cot_bf16_to_f32(cot_f32_to_bf16((float)value)) : value;
}

/* The gate. */

struct oracle_gate {
    cot_gate gate; // points to the following
    float *plain;  // [E][H]
    float *weight, *bias, *correction;
};

static inline void oracle_gate_pack(struct oracle_gate *o)
{
    cot_pack_columns(o->weight, COT_F32, o->gate.hidden, o->gate.experts, 0, o->gate.experts, o->plain,
                     COT_F32, o->gate.hidden);
}

/* A gate of these sizes and rules with drawn weights; with_bias and with_correction: drawn, too. */
static inline struct oracle_gate oracle_gate_new(const cot_gate *rules, bool with_bias, bool with_correction,
                                                 struct draw *draw)
{
    struct oracle_gate o = {.gate = *rules};
    int64_t hidden = rules->hidden, experts = rules->experts;
    o.plain = draw_floats(draw, hidden * experts, 3 / sqrt((double)hidden));
    o.weight = poisoned((size_t)cot_packed_bytes(COT_F32, hidden, experts));
    if (with_bias) o.bias = draw_floats(draw, experts, 1);
    if (with_correction) o.correction = draw_floats(draw, experts, 0.3);
    o.gate.weight = o.weight, o.gate.bias = o.bias, o.gate.correction = o.correction;
    oracle_gate_pack(&o);
    return o;
}

/* Every weight of even experts becomes `value`, of odd ones -value. */
static inline void oracle_gate_set_weight(struct oracle_gate *o, float value)
{
    for (int64_t i = 0; i < o->gate.experts * o->gate.hidden; i++)
        o->plain[i] = i / o->gate.hidden % 2 ? -value : value;
    oracle_gate_pack(o);
}

static inline void oracle_gate_free(struct oracle_gate *o)
{
    free(o->plain), free(o->weight), free(o->bias), free(o->correction);
}

/* Whether fp32 could see the two the other way round. */
static inline bool too_close(double a, double b)
{
    return fabs(a - b) < 1e-5 * fmax(fabs(a), fabs(b)) + 1e-9;
}

/* Marks the `take` highest of n values, the lower index first among equals. False where it is too close to
 * call; two exact zeros (masked scores) and two exclusions are not. */
static inline bool mark_best(bool *marked, const double *values, int64_t n, int64_t take)
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

/* Routes x [H]: experts ascending, their weights beside. False where fp32 may rightly choose otherwise. */
static inline bool oracle_route(int64_t *experts, double *weights, const struct oracle_gate *o,
                                const float *x)
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
        double by_group[COT_MAX_GROUPS];
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

/* A network. */

struct oracle_ffn {
    cot_ffn_shape shape;
    float *gate, *up, *down;                // [I][H], [I][H], [H][I]; no gate: NULL
    float *gate_bias, *up_bias, *down_bias; // [I], [I], [H]
    uint8_t *packed;                        // as cot_ffn_layout_of lays it out
};

/* A matrix of n rows of k, drawn, packed to `to`. */
static inline float *oracle_matrix(uint8_t *to, const cot_ffn_shape *shape, int64_t k, int64_t n,
                                   struct draw *draw)
{
    float *plain = draw_typed(draw, n * k, 3 / sqrt((double)k), shape->type);
    cot_pack_columns(to, cot_ffn_weight_type(shape), k, n, 0, n, plain, COT_F32, k);
    return plain;
}

static inline float *oracle_bias(uint8_t *to, int64_t n, struct draw *draw)
{
    float *bias = draw_floats(draw, n, 1);
    memcpy(to, bias, (size_t)n * sizeof *bias);
    return bias;
}

static inline struct oracle_ffn oracle_ffn_new(const cot_ffn_shape *shape, struct draw *draw)
{
    struct oracle_ffn o = {.shape = *shape};
    const int64_t hidden = shape->hidden, width = shape->intermediate;
    const bool gated = shape->activation == COT_FFN_SWIGLU;
    cot_ffn_layout at = cot_ffn_layout_of(shape);
    assert_int_equal((at.gate | at.up | at.down | at.gate_bias | at.up_bias | at.down_bias | at.bytes) % 64,
                     0);
    o.packed = poisoned(at.bytes);
    if (gated) o.gate = oracle_matrix(o.packed + at.gate, shape, hidden, width, draw);
    o.up = oracle_matrix(o.packed + at.up, shape, hidden, width, draw);
    o.down = oracle_matrix(o.packed + at.down, shape, width, hidden, draw);
    if (!shape->biased) return o;
    if (gated) o.gate_bias = oracle_bias(o.packed + at.gate_bias, width, draw);
    o.up_bias = oracle_bias(o.packed + at.up_bias, width, draw);
    o.down_bias = oracle_bias(o.packed + at.down_bias, hidden, draw);
    return o;
}

static inline void oracle_ffn_free(struct oracle_ffn *o)
{
    free(o->gate), free(o->up), free(o->down), free(o->gate_bias), free(o->up_bias), free(o->down_bias);
    free(o->packed);
}

static inline double oracle_activation(const cot_ffn_shape *shape, double gate, double up)
{
    double limit = (double)shape->limit, alpha = (double)shape->alpha;
    if (shape->activation == COT_FFN_GELU) return up * (1 + erf(up / sqrt(2))) / 2;
    if (shape->activation == COT_FFN_RELU) return fmax(up, 0);
    if (limit <= 0) return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, limit), up = fmax(fmin(up, limit), -limit);
    return (up + 1) * gate / (1 + exp(-alpha * gate));
}

/* y [H] of x [H]; activations are rounded to the shape's type where the network rounds them. */
static inline void oracle_ffn_apply(double *y, const struct oracle_ffn *o, const float *x)
{
    int64_t hidden = o->shape.hidden, width = o->shape.intermediate;
    double *act = calloc((size_t)width, sizeof *act);
    for (int64_t i = 0; i < width; i++) {
        double gate = o->gate_bias ? (double)o->gate_bias[i] : 0, up = o->up_bias ? (double)o->up_bias[i] : 0;
        for (int64_t h = 0; h < hidden; h++) {
            double value = rounded((double)x[h], o->shape.type);
            if (o->gate) gate += (double)o->gate[i * hidden + h] * value;
            up += (double)o->up[i * hidden + h] * value;
        }
        act[i] = rounded(oracle_activation(&o->shape, gate, up), o->shape.type);
    }
    for (int64_t h = 0; h < hidden; h++) {
        y[h] = o->down_bias ? (double)o->down_bias[h] : 0;
        for (int64_t i = 0; i < width; i++) y[h] += (double)o->down[h * width + i] * act[i];
    }
    free(act);
}

#endif
