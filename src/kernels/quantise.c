#include "kernels/quantise.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

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

static inline float sum_of(const float lanes[LANES])
{
    float sum = 0;
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

/* Sum of squares of what codes from `least` to `most`, each times the scale, leave of a group; `factor` is 1 / scale. */
static float int4_error(const float x[GROUP], float scale, float factor, float least, float most)
{
    float sums[LANES] = {0};
    for (int i = 0; i < GROUP; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float code = round_whole(x[i + l] * factor);
            code = code < least ? least : code;
            code = code > most ? most : code;
            const float error = x[i + l] - code * scale;
            sums[l] += error * error;
        }
    return sum_of(sums);
}

/* The same where no code comes to an end of their range. */
static float int4_error_inside(const float x[GROUP], float scale, float factor)
{
    float sums[LANES] = {0};
    for (int i = 0; i < GROUP; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const float error = x[i + l] - round_whole(x[i + l] * factor) * scale;
            sums[l] += error * error;
        }
    return sum_of(sums);
}

typedef struct best_scale {
    float scale, error;
} best_scale;

static inline void try_scale(best_scale *best, float scale, float error)
{
    if (error < best->error) *best = (best_scale){scale, error};
}

/* The greatest number of a group and that of its negatives, 0 at least. */
static void find_ends(float *up, float *down, const float x[GROUP])
{
    float most[LANES] = {0}, least[LANES] = {0};
    for (int i = 0; i < GROUP; i += LANES)
        for (int l = 0; l < LANES; l++) {
            most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
            least[l] = x[i + l] < least[l] ? x[i + l] : least[l];
        }
    *up = *down = 0;
    for (int l = 0; l < LANES; l++) {
        *up = most[l] > *up ? most[l] : *up;
        *down = -least[l] > *down ? -least[l] : *down;
    }
}

/* Of scales that make the greatest magnitude a code from 5.5 to 9, of either sign, the first that leaves least: -8 reaches further than 7.
 *
 * Codes by -scale are those by the scale with their signs turned, but for where they end: at -7 and 8 instead of -8 and 7. So one sum does for
 * both where no code comes beyond 7. Where codes of one sign alone do, and the greatest is 7.7 and more, the end at 8 has to be on their
 * side: of the greatest the other leaves 0.4 squares of the scale more, of the rest no less, and rounding the sums hides a
 * ten-thousandth of such a square (unless squares are so small that they lose bits). */
static float int4_scale(const float x[GROUP], float most)
{
    enum { SCALES = 15, BEYOND = 9 }; // from that one on the greatest is 7.7 and more
    float scales[SCALES], factors[SCALES], up, down;
    best_scale best = {0, INFINITY};
    find_ends(&up, &down, x);
    for (int i = 0; i < SCALES; i++) {
        scales[i] = cot_bf16_to_f32(cot_f32_to_bf16(most / (5.5f + 0.25f * (float)i)));
        factors[i] = 1 / scales[i];
    }
    for (int i = 0; i < SCALES; i++) {
        const float scale = scales[i], factor = factors[i], code = round_whole(most * factor);
        const bool one_side =
            i >= BEYOND && most > 0x1p-60f && round_whole((up < down ? up : down) * factor) <= 7;
        if (code <= 7 || (one_side && code <= 8)) {
            const bool negative = code <= 7 || up > down;
            try_scale(&best, negative ? -scale : scale, int4_error_inside(x, scale, factor));
            continue;
        }
        if (!one_side || up > down) try_scale(&best, -scale, int4_error(x, scale, factor, -7, 8));
        if (!one_side || down > up) try_scale(&best, scale, int4_error(x, scale, factor, -8, 7));
    }
    return best.scale;
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
