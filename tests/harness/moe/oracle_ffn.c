#include "harness/moe/oracle_ffn.h"

#include "harness/cmocka.h"
#include "harness/moe/near.h"
#include "harness/poisoned.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void oracle_store(const struct oracle_ffn *o, const cot_moe_weights *weights, uint8_t *slot,
                         cot_ffn_part part, const float *from, int64_t rows, int64_t columns)
{
    for (int64_t row = 0, count; from && row < rows; row += count) {
        count = rows - row < COT_PANEL ? rows - row : COT_PANEL; // in several pieces, as files come
        const cot_moe_rows some = {
            row, count, {.numbers = from + row * columns, .type = COT_F32, .stride = columns}};
        weights->store_expert(slot, &o->shape, part, &some);
    }
}

void oracle_ffn_store(const struct oracle_ffn *o, const cot_moe_weights *weights, uint8_t *slot)
{
    const int64_t hidden = o->shape.hidden, width = o->shape.intermediate;
    oracle_store(o, weights, slot, COT_FFN_GATE, o->gate, width, hidden);
    oracle_store(o, weights, slot, COT_FFN_UP, o->up, width, hidden);
    oracle_store(o, weights, slot, COT_FFN_DOWN, o->down, hidden, width);
    oracle_store(o, weights, slot, COT_FFN_GATE_BIAS, o->gate_bias, 1, width);
    oracle_store(o, weights, slot, COT_FFN_UP_BIAS, o->up_bias, 1, width);
    oracle_store(o, weights, slot, COT_FFN_DOWN_BIAS, o->down_bias, 1, hidden);
}

struct oracle_ffn oracle_ffn_new(const cot_ffn_shape *shape, struct draw *draw)
{
    struct oracle_ffn o = {.shape = *shape};
    const int64_t hidden = shape->hidden, width = shape->intermediate;
    const bool gated = shape->activation == COT_FFN_SWIGLU;
    const double up = 3 / sqrt((double)hidden), down = 3 / sqrt((double)width);
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    assert_int_equal((at.gate | at.up | at.down | at.gate_bias | at.up_bias | at.down_bias | at.bytes) % 64,
                     0);
    if (gated) o.gate = draw_typed(draw, hidden * width, up, shape->type);
    o.up = draw_typed(draw, hidden * width, up, shape->type);
    o.down = draw_typed(draw, hidden * width, down, shape->type);
    if (shape->biased) {
        if (gated) o.gate_bias = draw_floats(draw, width, 1);
        o.up_bias = draw_floats(draw, width, 1);
        o.down_bias = draw_floats(draw, hidden, 1);
    }
    o.packed = poisoned(at.bytes);
    oracle_ffn_store(&o, &cot_moe_packed, o.packed);
    return o;
}

void oracle_ffn_free(struct oracle_ffn *o)
{
    free(o->gate), free(o->up), free(o->down), free(o->gate_bias), free(o->up_bias), free(o->down_bias);
    free(o->packed);
}

static double oracle_activation(const cot_ffn_shape *shape, double gate, double up)
{
    double limit = (double)shape->limit, alpha = (double)shape->alpha;
    if (shape->activation == COT_FFN_GELU) return up * (1 + erf(up / sqrt(2))) / 2;
    if (shape->activation == COT_FFN_RELU) return fmax(up, 0);
    if (limit <= 0) return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, limit), up = fmax(fmin(up, limit), -limit);
    return (up + 1) * gate / (1 + exp(-alpha * gate));
}

void oracle_ffn_apply(double *y, const struct oracle_ffn *o, const float *x)
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
