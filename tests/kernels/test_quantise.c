/* INT4's scales and codes against all scales tried one by one in plain words: the same to the bit. */
#include "harness/kernels/check.h"

#include "kernels/quantise.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 32, POISON = 0x55 };

static float code_of_number(float x, float scale)
{
    return fmaxf(-8, fminf(7, rintf(x * (1 / scale))));
}

/* What is left of 32 numbers: eight sums, of each eighth number, added up in order. */
static float left_over(const float *x, float scale)
{
    float all = 0, part[8] = {0};
    for (int i = 0; i < GROUP; i++) {
        const float error = x[i] - code_of_number(x[i], scale) * scale;
        part[i % 8] += error * error;
    }
    for (int i = 0; i < 8; i++) all += part[i];
    return all;
}

/* The scale that the header tells of; 0 where none leaves a number that is finite. */
static float plain_scale(const float *x)
{
    float most = 0, best = 0, least = INFINITY;
    for (int i = 0; i < GROUP; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    if (most < 0x1p-100f) return 1;
    for (float reach = 5.5f; reach <= 9; reach += 0.25f)
        for (int sign = 0; sign < 2; sign++) {
            const float scale = cot_bf16_to_f32(cot_f32_to_bf16((sign ? most : -most) / reach)),
                        error = left_over(x, scale);
            if (error < least) {
                least = error;
                best = scale;
            }
        }
    return best;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static void expect_row(const float *x, int64_t k, const char *kind)
{
    const int64_t groups = (k + GROUP - 1) / GROUP;
    int8_t *codes = malloc((size_t)k + 1);
    float *scales = malloc((size_t)(groups + 1) * sizeof *scales);
    memset(codes, POISON, (size_t)k + 1);
    memset(scales, POISON, (size_t)(groups + 1) * sizeof *scales);
    const float poison = scales[groups];
    cot_quantise_row(codes, scales, COT_FORMAT_INT4, x, k);
    CHECK(codes[k] == POISON && bits_of(scales[groups]) == bits_of(poison), "%s, %lld: wrote beyond", kind,
          (long long)k);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t n = k - g * GROUP < GROUP ? k - g * GROUP : GROUP;
        float all[GROUP] = {0};
        memcpy(all, x + g * GROUP, (size_t)n * sizeof *all);
        const float scale = plain_scale(all);
        CHECK(bits_of(scales[g]) == bits_of(scale), "%s, group %lld of %lld numbers: scale %a, expected %a",
              kind, (long long)g, (long long)k, (double)scales[g], (double)scale);
        for (int64_t i = 0; i < n && isfinite(scale) && scale != 0; i++) {
            const bool nothing = scale == 1 && fabsf(all[i]) < 0x1p-100f;
            const int code = nothing ? 0 : (int)code_of_number(all[i], scale);
            CHECK(codes[g * GROUP + i] == code, "%s, number %lld of %lld (%a by %a): %d, expected %d", kind,
                  (long long)(g * GROUP + i), (long long)k, (double)all[i], (double)scale,
                  codes[g * GROUP + i], code);
        }
    }
    free(codes);
    free(scales);
}

/* ---- numbers of many kinds ---- */

static float draw_normal(check_draws *draws)
{
    return random_value(draws, 1);
}

static float draw_even(check_draws *draws)
{
    return (float)random_between(draws, -1000, 1000) / 1000;
}

static float draw_far(check_draws *draws) // few are great
{
    const float x = random_value(draws, 1);
    return x * x * x;
}

static float draw_half(check_draws *draws)
{
    return cot_bf16_to_f32(cot_f32_to_bf16(random_value(draws, 0.02f)));
}

static float draw_positive(check_draws *draws)
{
    return fabsf(random_value(draws, 1));
}

static float draw_sparse(check_draws *draws)
{
    return random_between(draws, 0, 9) ? 0 : random_value(draws, 1);
}

static float draw_equal(check_draws *draws) // magnitudes
{
    return random_between(draws, 0, 1) ? 1 : -1;
}

/* Halves of a scale: between two codes, and about where codes end. */
static float draw_tie(check_draws *draws)
{
    const float x = 0.5f * (float)random_between(draws, -18, 18);
    const int64_t way = random_between(draws, -1, 1);
    return way < 0 ? nextafterf(x, -20) : way > 0 ? nextafterf(x, 20) : x;
}

static float draw_edge(check_draws *draws) // most of them where 8 begins
{
    const float x = random_between(draws, 0, 15) ? 7.5f : 0.25f * (float)random_between(draws, 28, 36);
    const int64_t way = random_between(draws, -1, 1);
    return way < 0 ? nextafterf(x, 0) : way > 0 ? nextafterf(x, 20) : x;
}

static float draw_two_edges(check_draws *draws)
{
    return random_between(draws, 0, 1) ? draw_edge(draws) : -draw_edge(draws);
}

static const struct {
    const char *name;
    float (*draw)(check_draws *draws);
} kinds[] = {{"normal", draw_normal},      {"even", draw_even},         {"far", draw_far},
             {"bf16", draw_half},          {"positive", draw_positive}, {"sparse", draw_sparse},
             {"equal", draw_equal},        {"ties", draw_tie},          {"edge", draw_edge},
             {"two edges", draw_two_edges}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void some_row(check_draws *draws, int64_t k)
{
    const int kind = (int)random_between(draws, 0, KINDS - 1);
    float *x = malloc((size_t)k * sizeof *x + 1);
    // From where nothing can be told from 0 to where squares are infinite, and those with few bits or none.
    const int64_t way = random_between(draws, 0, 3);
    const int power =
        way > 1 ? 0 : (int)(way ? random_between(draws, -110, 80) : random_between(draws, -80, -60));
    const float sign = random_between(draws, 0, 1) ? 1 : -1;
    for (int64_t i = 0; i < k; i++) x[i] = sign * ldexpf(kinds[kind].draw(draws), power);
    expect_row(x, k, kinds[kind].name);
    free(x);
}

/* Nothing else is promised of them than that no scale comes of it, and that nothing crashes. */
static void no_number(check_draws *draws)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float x[GROUP];
        for (int k = 0; k < GROUP; k++) x[k] = random_value(draws, 1);
        x[random_between(draws, 0, GROUP - 1)] = odd[i];
        expect_row(x, GROUP, "not finite");
    }
}

/* Of a row by its greatest number; 1 where there is none, or none that a factor of fp32 brings to the greatest code. */
static void scales_of_whole_rows(void)
{
    static const struct {
        cot_format kind;
        float greatest;
    } forms[] = {{COT_FORMAT_INT8, 127}, {COT_FORMAT_FP8, 448}};
    for (int i = 0; i < 2; i++) {
        const float of = forms[i].greatest;
        const float numbers[][2] = {{0, 1},
                                    {-1, 1},
                                    {NAN, 1},
                                    {of, 1},
                                    {3 * of, 3},
                                    {of * 0x1p-100f, 0x1p-100f},
                                    {of * 0x1p-127f, 0x1p-127f},
                                    {of * 0x1p-128f, 1}};
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            const float scale = cot_quantise_scale(forms[i].kind, numbers[n][0]);
            CHECK(scale == numbers[n][1], "%a of %a, expected %a", (double)scale, (double)numbers[n][0],
                  (double)numbers[n][1]);
        }
    }
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    static const float zeros[70];
    for (int i = 0; i < 12000; i++) some_row(draws, random_between(draws, 1, 4) * GROUP);
    for (int64_t k = 0; k < 150; k++) some_row(draws, k);
    for (int64_t k = 1; k <= 70; k++) expect_row(zeros, k, "zeros");
    for (int i = 0; i < 20; i++) no_number(draws);
    scales_of_whole_rows();
    return 0;
}
