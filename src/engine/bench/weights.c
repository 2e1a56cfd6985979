#include "base/error.h"
#include "base/rng.h"
#include "engine/bench/bench.h"

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

/* Bits of MXFP4 for `count` rows of k: all codes alike, their root mean square is 2.93. */
static cot_pack_source draw_mxfp4(int64_t k, int64_t n0, int64_t count, uint8_t *rows, uint64_t seed)
{
    const uint8_t scale = (uint8_t)(127 + lrintf(log2f(1 / (2.93f * sqrtf((float)k)))));
    for (int64_t i = 0; i < count * k / 2; i++)
        rows[i] = (uint8_t)(cot_mix64(seed ^ (uint64_t)(n0 + 1) << 32 ^ (uint64_t)i / 8) >> i % 8 * 8);
    memset(rows + count * k / 2, scale, (size_t)(count * k / 32));
    return (cot_pack_source){rows, rows + count * k / 2, k / 2, k / 32};
}

/* A network in the making. */
struct network {
    const cot_moe_weights *weights;
    uint8_t *slot;
    const cot_ffn_shape *shape;
    float *rows; // scratch
};

/* A matrix of n rows of k whose products keep the size of what they multiply, panel after panel. */
static void draw_matrix(const struct network *to, cot_ffn_part part, int64_t n, int64_t k, uint64_t seed)
{
    const cot_format format = part == COT_FFN_DOWN ? to->shape->down
                              : part == COT_FFN_UP ? to->shape->up
                                                   : to->shape->gate;
    for (int64_t n0 = 0; n0 < n; n0 += COT_PANEL) {
        cot_moe_rows rows = {
            n0, n - n0 < COT_PANEL ? n - n0 : COT_PANEL, {.numbers = to->rows, .type = COT_F32, .stride = k}};
        cot_pack_source stored;
        if (format == COT_FORMAT_MXFP4) {
            stored = draw_mxfp4(k, n0, rows.count, (uint8_t *)to->rows, seed);
            rows.in = (cot_pack_input){.stored = &stored};
        } else {
            draw(to->rows, rows.count * k, sqrtf(3 / (float)k), seed, (uint64_t)n0 + 1);
        }
        to->weights->store_expert(to->slot, to->shape, part, &rows);
    }
}

static void draw_vector(const struct network *to, cot_ffn_part part, int64_t n, uint64_t seed)
{
    const cot_moe_rows row = {0, 1, {.numbers = to->rows, .type = COT_F32, .stride = n}};
    if (!to->shape->biased) return;
    draw(to->rows, n, 0.1f, seed, 0);
    to->weights->store_expert(to->slot, to->shape, part, &row);
}

cot_status cot_bench_draw_expert(uint8_t *slot, const cot_moe_weights *weights, const cot_ffn_shape *shape,
                                 uint64_t seed, int64_t e, cot_error *error)
{
    int64_t hidden = shape->hidden, width = shape->intermediate, longest = hidden > width ? hidden : width;
    float *rows = malloc((size_t)(longest * COT_PANEL) * sizeof *rows);
    if (!rows) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d rows of a matrix", COT_PANEL);
    const struct network to = {weights, slot, shape, rows};
    uint64_t key = cot_random_bits(seed, 0, (uint64_t)e);
    if (cot_ffn_is_gated(shape)) {
        draw_matrix(&to, COT_FFN_GATE, width, hidden, key);
        draw_vector(&to, COT_FFN_GATE_BIAS, width, key);
    }
    draw_matrix(&to, COT_FFN_UP, width, hidden, key + 1);
    draw_vector(&to, COT_FFN_UP_BIAS, width, key + 1);
    draw_matrix(&to, COT_FFN_DOWN, hidden, width, key + 2);
    draw_vector(&to, COT_FFN_DOWN_BIAS, hidden, key + 2);
    free(rows);
    return COT_OK;
}
