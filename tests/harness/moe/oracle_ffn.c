#include "harness/moe/oracle_ffn.h"

#include "harness/cmocka.h"
#include "harness/moe/near.h"
#include "harness/poisoned.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A matrix of n rows of k, drawn, packed to `to`. */
static float *oracle_matrix(uint8_t *to, const cot_ffn_shape *shape, cot_format format, int64_t k, int64_t n,
                            struct draw *draw)
{
    float *plain = draw_typed(draw, n * k, 3 / sqrt((double)k), shape->type);
    cot_pack_columns(to, format, k, n, 0, n, plain, COT_F32, k);
    return plain;
}

static float *oracle_bias(uint8_t *to, int64_t n, struct draw *draw)
{
    float *bias = draw_floats(draw, n, 1);
    memcpy(to, bias, (size_t)n * sizeof *bias);
    return bias;
}

struct oracle_ffn oracle_ffn_new(const cot_ffn_shape *shape, struct draw *draw)
{
    struct oracle_ffn o = {.shape = *shape};
    const int64_t hidden = shape->hidden, width = shape->intermediate;
    const bool gated = shape->activation == COT_FFN_SWIGLU;
    cot_ffn_layout at = cot_ffn_layout_of(shape);
    assert_int_equal((at.gate | at.up | at.down | at.gate_bias | at.up_bias | at.down_bias | at.bytes) % 64,
                     0);
    o.packed = poisoned(at.bytes);
    if (gated) o.gate = oracle_matrix(o.packed + at.gate, shape, shape->up, hidden, width, draw);
    o.up = oracle_matrix(o.packed + at.up, shape, shape->up, hidden, width, draw);
    o.down = oracle_matrix(o.packed + at.down, shape, shape->down, width, hidden, draw);
    if (!shape->biased) return o;
    if (gated) o.gate_bias = oracle_bias(o.packed + at.gate_bias, width, draw);
    o.up_bias = oracle_bias(o.packed + at.up_bias, width, draw);
    o.down_bias = oracle_bias(o.packed + at.down_bias, hidden, draw);
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
