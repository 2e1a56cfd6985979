#include "kernels/quantise.h"

#include <assert.h>
#include <math.h>

enum { GROUP = 32, LANES = 8 }; // sums of squares in lanes, so that they run in vectors

static float greatest(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* To whole numbers, to even; |x| < 2^22. */
static inline float round_whole(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* ---- INT8 and FP8 ---- */

static float greatest_code(cot_format kind)
{
    return kind == COT_FORMAT_INT8 ? 127 : 448;
}

float cot_quantise_scale(cot_format kind, float most)
{
    const float factor = most > 0 ? greatest_code(kind) / most : 0;
    return factor > 0 && factor <= 0x1p127f ? most / greatest_code(kind) : 1;
}

/* The nearest number of E4M3, ties to even; |x| <= 448 but for rounding. */
static uint8_t e4m3_of(float x)
{
    int exponent;
    const float size = fabsf(x) > 448 ? 448 : fabsf(x);
    (void)frexpf(size, &exponent);                            // size in [2^(exponent-1), 2^exponent)
    if (size == 0 || exponent < -5) exponent = -5;            // below 2^-6 steps are 2^-9
    const int steps = (int)rintf(ldexpf(size, 4 - exponent)); // 8 .. 16 of a normal number's steps, or fewer
    const int code = steps + (exponent + 5) * 8;
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

void cot_quantise_by_most(int8_t *codes, cot_format kind, const float *x, int64_t n, float most)
{
    float factor = most > 0 ? greatest_code(kind) / most : 0;
    if (factor > 0x1p127f) factor = 0;
    if (kind == COT_FORMAT_INT8)
        for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)round_whole(x[i] * factor);
    else
        for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)e4m3_of(x[i] * factor);
}

/* ---- groups of four bits ---- */

/* Sum of squares of what INT4 by this scale leaves of a group. */
static float int4_error(const float x[GROUP], float scale)
{
    const float factor = 1 / scale;
    float sums[LANES] = {0}, sum = 0;
    for (int i = 0; i < GROUP; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float code = round_whole(x[i + l] * factor);
            code = code < -8 ? -8 : code;
            code = code > 7 ? 7 : code;
            const float error = x[i + l] - code * scale;
            sums[l] += error * error;
        }
    for (int l = 0; l < LANES; l++) sum += sums[l];
    return sum;
}

/* Scales that make the greatest magnitude a code from 5.5 to 9, of either sign: -8 reaches further than 7. */
static float int4_scale(const float x[GROUP], float most)
{
    float best = 0, least = INFINITY;
    for (int i = 0; i < 15; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const float scale =
                cot_bf16_to_f32(cot_f32_to_bf16((float)sign * most / (5.5f + 0.25f * (float)i)));
            const float error = int4_error(x, scale);
            if (error < least) {
                least = error;
                best = scale;
            }
        }
    return best;
}

static const float e2m1[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};

/* The nearest number of E2M1, ties to even, 6 at most. */
static inline int e2m1_of(float size)
{
    return (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
           (size >= 3.5f) + (size > 5);
}

static float mxfp4_error(const float x[GROUP], float scale)
{
    const float factor = 1 / scale;
    float sum = 0;
    for (int i = 0; i < GROUP; i++) {
        const float size = fabsf(x[i]), error = size - e2m1[e2m1_of(size * factor)] * scale;
        sum += error * error;
    }
    return sum;
}

/* The power of two by which the greatest magnitude lies in [4, 8), or one of its neighbours. */
static float mxfp4_scale(const float x[GROUP], float most)
{
    int exponent;
    (void)frexpf(most, &exponent);
    float best = 0, least = INFINITY;
    for (int e = exponent - 4; e <= exponent - 2; e++) {
        const float scale = ldexpf(1, e < -126 ? -126 : e), error = mxfp4_error(x, scale);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

float cot_quantise_group(int8_t *codes, cot_format kind, const float *x, int64_t n)
{
    assert(n <= GROUP && (kind == COT_FORMAT_INT4 || kind == COT_FORMAT_MXFP4));
    float group[GROUP] = {0};
    for (int64_t i = 0; i < n; i++) group[i] = x[i];
    const float most = greatest(group, GROUP);
    if (most < 0x1p-100f) { // nothing that a scale's reciprocal could reach
        memset(codes, 0, (size_t)n);
        return 1;
    }
    const float scale = kind == COT_FORMAT_INT4 ? int4_scale(group, most) : mxfp4_scale(group, most),
                factor = 1 / scale;
    for (int64_t i = 0; i < n; i++) {
        if (kind == COT_FORMAT_INT4) {
            const float code = round_whole(x[i] * factor);
            codes[i] = (int8_t)(code < -8 ? -8 : code > 7 ? 7 : code);
        } else {
            codes[i] = (int8_t)(e2m1_of(fabsf(x[i]) * factor) | (signbit(x[i]) ? 8 : 0));
        }
    }
    return scale;
}

void cot_quantise_row(int8_t *codes, float *scales, cot_format kind, const float *x, int64_t k)
{
    if (!cot_format_group(kind)) {
        const float most = greatest(x, k);
        *scales = cot_quantise_scale(kind, most);
        cot_quantise_by_most(codes, kind, x, k, most);
        return;
    }
    for (int64_t i = 0; i < k; i += GROUP)
        *scales++ = cot_quantise_group(codes + i, kind, x + i, k - i < GROUP ? k - i : GROUP);
}
