#include "base/error.h"
#include "base/rng.h"
#include "engine/bench/bench.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Uniform in [-limit, limit), a function of (seed, stream); four from one draw. */
static void draw(float *x, int64_t n, float limit, uint64_t seed, uint64_t stream)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++, bits >>= 16) {
        if (i % 4 == 0) bits = cot_mix64(seed ^ stream << 32 ^ (uint64_t)i);
        x[i] = (float)(int16_t)bits * (limit / 32768);
    }
}

/* Bits of MXFP4 in `rows` for `count` columns, all codes alike: their root mean square is 2.93. */
static void draw_mxfp4(uint8_t *b, int64_t k, int64_t n, int64_t n0, int64_t count, uint8_t *rows,
                       uint64_t seed)
{
    const uint8_t scale = (uint8_t)(127 + lrintf(log2f(1 / (2.93f * sqrtf((float)k)))));
    for (int64_t i = 0; i < count * k / 2; i++)
        rows[i] = (uint8_t)(cot_mix64(seed ^ (uint64_t)(n0 + 1) << 32 ^ (uint64_t)i / 8) >> i % 8 * 8);
    memset(rows + count * k / 2, scale, (size_t)(count * k / 32));
    const cot_pack_source stored = {rows, rows + count * k / 2, k / 2, k / 32};
    cot_pack_stored(b, COT_FORMAT_MXFP4, k, n, n0, count, &stored);
}

/* A [k][n] whose products keep the size of what they multiply, panel after panel. */
static void draw_matrix(uint8_t *b, cot_format format, int64_t k, int64_t n, float *columns, uint64_t seed)
{
    for (int64_t n0 = 0; n0 < n; n0 += COT_PANEL) {
        int64_t count = n - n0 < COT_PANEL ? n - n0 : COT_PANEL;
        if (format == COT_FORMAT_MXFP4) {
            draw_mxfp4(b, k, n, n0, count, (uint8_t *)columns, seed);
            continue;
        }
        draw(columns, count * k, sqrtf(3 / (float)k), seed, (uint64_t)n0 + 1);
        cot_pack_columns(b, format, k, n, n0, count, columns, COT_F32, k);
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
        draw_matrix(slot + layout.gate, shape->up, hidden, width, columns, key);
        draw_vector(slot + layout.gate_bias, shape->biased ? width : 0, key);
    }
    draw_matrix(slot + layout.up, shape->up, hidden, width, columns, key + 1);
    draw_vector(slot + layout.up_bias, shape->biased ? width : 0, key + 1);
    draw_matrix(slot + layout.down, shape->down, width, hidden, columns, key + 2);
    draw_vector(slot + layout.down_bias, shape->biased ? hidden : 0, key + 2);
    free(columns);
    return COT_OK;
}
