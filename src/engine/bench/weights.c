#include "base/error.h"
#include "base/rng.h"
#include "engine/bench/bench.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>

/* Uniform in [-limit, limit), a function of (seed, stream); four from one draw. */
static void draw(float *x, int64_t n, float limit, uint64_t seed, uint64_t stream)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++, bits >>= 16) {
        if (i % 4 == 0) bits = cot_mix64(seed ^ stream << 32 ^ (uint64_t)i);
        x[i] = (float)(int16_t)bits * (limit / 32768);
    }
}

/* A [k][n] whose products keep the size of what they multiply, panel after panel. */
static void draw_matrix(uint8_t *b, cot_dtype type, int64_t k, int64_t n, float *columns, uint64_t seed)
{
    for (int64_t n0 = 0; n0 < n; n0 += COT_PANEL) {
        int64_t count = n - n0 < COT_PANEL ? n - n0 : COT_PANEL;
        draw(columns, count * k, sqrtf(3 / (float)k), seed, (uint64_t)n0 + 1);
        cot_pack_columns(b, type, k, n, n0, count, columns, COT_F32, k);
    }
}

static void draw_vector(uint8_t *b, int64_t n, uint64_t seed)
{
    draw((float *)(void *)b, n, 0.1f, seed, 0);
}

cot_status cot_bench_draw_expert(uint8_t *slot, const cot_ffn_shape *shape, uint64_t seed, int64_t e,
                                 cot_error *error)
{
    int64_t hidden = shape->hidden, width = shape->intermediate, longest = hidden > width ? hidden : width;
    float *columns = malloc((size_t)(longest * COT_PANEL) * sizeof *columns);
    if (!columns) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d columns", COT_PANEL);
    cot_ffn_layout layout = cot_ffn_layout_of(shape);
    uint64_t key = cot_random_bits(seed, 0, (uint64_t)e);
    if (cot_ffn_is_gated(shape)) {
        draw_matrix(slot + layout.gate, cot_ffn_weight_type(shape), hidden, width, columns, key);
        draw_vector(slot + layout.gate_bias, shape->biased ? width : 0, key);
    }
    draw_matrix(slot + layout.up, cot_ffn_weight_type(shape), hidden, width, columns, key + 1);
    draw_vector(slot + layout.up_bias, shape->biased ? width : 0, key + 1);
    draw_matrix(slot + layout.down, cot_ffn_weight_type(shape), width, hidden, columns, key + 2);
    draw_vector(slot + layout.down_bias, shape->biased ? hidden : 0, key + 2);
    free(columns);
    return COT_OK;
}
