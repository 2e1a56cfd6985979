/* Functions of rows: against double on every length up to a few vectors, guard pages at both ends of a row.
 */
#include "harness/kernels/check.h"

#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 150 };

static const cot_dtype types[] = {COT_F32, COT_BF16};

static double tolerance(cot_dtype type)
{
    return type == COT_F32 ? 1e-6 : 3.95e-3;
}

static void expect(const cot_kernels *kernels, const char *what, const void *out, cot_dtype type, int64_t i,
                   int64_t n, double exact, double scale)
{
    double found = get_element(out, type, i), error = error_of(found, exact, scale + 1e-37);
    CHECK(error < tolerance(type), "%s %s %s: %lld of %lld: %g, expected %g", kernels->name, what,
          cot_dtype_name(type), (long long)i, (long long)n, found, exact);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void length(check_draws *draws, const cot_kernels *kernels, int64_t n)
{
    guarded gx = guarded_random(draws, n, COT_F32, 4), gy = guarded_random(draws, n, COT_F32, 4);
    float *x = gx.data, *y = gy.data, factor = random_value(draws, 2);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    float squares = kernels->sum_squares(x, n);
    CHECK(error_of(squares, sum, sum) < 1e-6, "%s sum_squares %lld: %g, expected %g", kernels->name,
          (long long)n, (double)squares, sum);

    for (int t = 0; t < 2; t++) {
        cot_dtype type = types[t];
        guarded out = guard(n * (int64_t)cot_dtype_bytes(type));
        kernels->scale(out.data, type, x, factor, n);
        for (int64_t i = 0; i < n; i++) { // one rounding to fp32, one to bf16: to the bit
            float exact = factor * x[i], found = get_element(out.data, type, i);
            if (type == COT_BF16) exact = cot_bf16_to_f32(cot_f32_to_bf16(exact));
            CHECK(found == exact, "%s scale %s %lld of %lld", kernels->name, cot_dtype_name(type),
                  (long long)i, (long long)n);
        }
        kernels->swiglu(out.data, type, x, y, n);
        for (int64_t i = 0; i < n; i++) {
            double exact = x[i] * sigmoid(x[i]) * y[i];
            expect(kernels, "swiglu", out.data, type, i, n, exact, fabs(exact));
        }
        kernels->swiglu_clamped(out.data, type, x, y, n, 3, 1.702f);
        for (int64_t i = 0; i < n; i++) {
            double g = fmin(x[i], 3), u = fmin(fmax(y[i], -3), 3),
                   exact = (u + 1) * g * sigmoid((double)1.702f * g);
            expect(kernels, "swiglu_clamped", out.data, type, i, n, exact,
                   2 * fabs(exact) + 1e-7); // alpha g is rounded
        }
        kernels->gelu(out.data, type, x, n);
        for (int64_t i = 0; i < n; i++) {
            double exact = 0.5 * x[i] * erfc(-x[i] * sqrt(0.5));
            expect(kernels, "gelu", out.data, type, i, n, exact, fabs(exact) + 0.2);
        }
        kernels->relu(out.data, type, x, n);
        for (int64_t i = 0; i < n; i++)
            CHECK(get_element(out.data, type, i) == (x[i] < 0 ? 0
                                                     : type == COT_F32
                                                         ? x[i]
                                                         : cot_bf16_to_f32(cot_f32_to_bf16(x[i]))),
                  "%s relu %s", kernels->name, cot_dtype_name(type));
        guarded z = guarded_random(draws, n, type, 4);
        memcpy(out.data, z.data, (size_t)n * cot_dtype_bytes(type));
        guarded sum_of = guarded_random(draws, n, COT_F32, 2);
        float *s = sum_of.data, *before = malloc((size_t)n * 4);
        memcpy(before, s, (size_t)n * 4);
        kernels->add(s, z.data, type, n);
        for (int64_t i = 0; i < n; i++)
            CHECK(s[i] == before[i] + get_element(z.data, type, i), "%s add %s", kernels->name,
                  cot_dtype_name(type));
        free(before);
        unguard(sum_of);
        unguard(z);
        unguard(out);
    }

    guarded out = guard(n * 4);
    float *z = out.data;
    kernels->scale_by(z, x, factor, y, n);
    for (int64_t i = 0; i < n; i++)
        CHECK(z[i] == (factor * x[i]) * y[i], "%s scale_by %lld of %lld", kernels->name, (long long)i,
              (long long)n);
    memcpy(z, y, (size_t)n * 4);
    kernels->add_scaled(z, x, factor, n);
    for (int64_t i = 0; i < n; i++) {
        float once = fmaf(factor, x[i], y[i]);
        CHECK(z[i] == once, "%s add_scaled %lld of %lld", kernels->name, (long long)i, (long long)n);
    }
    memcpy(z, x, (size_t)n * 4);
    kernels->scale(z, COT_F32, z, factor, n); // in place
    for (int64_t i = 0; i < n; i++) CHECK(z[i] == factor * x[i], "%s scale in place", kernels->name);
    unguard(out);
    unguard(gx);
    unguard(gy);
}

static void rope(check_draws *draws, const cot_kernels *kernels, int64_t half, bool interleaved)
{
    guarded gx = guarded_random(draws, 2 * half, COT_F32, 1), gc = guard(half * 4), gs = guard(half * 4);
    float *x = gx.data, *c = gc.data, *s = gs.data, *before = malloc((size_t)half * 8);
    for (int64_t i = 0; i < half; i++) {
        double angle = random_value(draws, 10);
        c[i] = (float)cos(angle);
        s[i] = (float)sin(angle);
    }
    memcpy(before, x, (size_t)half * 8);
    kernels->rope(x, c, s, half, interleaved);
    for (int64_t i = 0; i < half; i++) {
        int64_t i0 = interleaved ? 2 * i : i, i1 = interleaved ? 2 * i + 1 : i + half;
        double a = before[i0], b = before[i1], size = fabs(a) + fabs(b);
        expect(kernels, "rope", x, COT_F32, i0, half, a * c[i] - b * s[i], size);
        expect(kernels, "rope", x, COT_F32, i1, half, b * c[i] + a * s[i], size);
    }
    free(before);
    unguard(gx);
    unguard(gc);
    unguard(gs);
}

static void conversions(check_draws *draws, const cot_kernels *kernels)
{ // every half and every bfloat, at every place in a vector
    static const cot_dtype halves[] = {COT_BF16, COT_F16};
    uint16_t bits[65536];
    static float wide[65536], again[65536];
    for (int i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        int64_t n = 65536 - random_between(draws, 0, 40);
        kernels->to_f32(wide, bits, halves[t], n);
        for (int64_t i = 0; i < n; i++) {
            float exact = get_element(bits, halves[t], i);
            CHECK(isnan(exact) ? isnan(wide[i]) : memcmp(&exact, &wide[i], 4) == 0, "%s to_f32 %s %04x",
                  kernels->name, cot_dtype_name(halves[t]), bits[i]);
        }
    }
    kernels->to_f32(again, wide, COT_F32, 65500);
    CHECK(memcmp(again, wide, 65500 * 4) == 0, "%s to_f32 F32", kernels->name);
    for (int64_t n = 1; n <= 70; n++)
        for (int t = 0; t < 2; t++) {
            guarded x = guarded_random(draws, n, halves[t], 1), out = guard(n * 4);
            kernels->to_f32(out.data, x.data, halves[t], n);
            for (int64_t i = 0; i < n; i++)
                CHECK(((float *)out.data)[i] == get_element(x.data, halves[t], i), "%s to_f32 %lld of %lld",
                      kernels->name, (long long)i, (long long)n);
            unguard(x);
            unguard(out);
        }
    enum { MANY = 20000 };
    float *x = malloc(MANY * 4);
    uint16_t *rounded = malloc(MANY * 2);
    for (int i = 0; i < MANY; i++) {
        uint32_t any = (uint32_t)cot_random_bits(draws->seed, 3, draws->position++);
        if (i % 3 == 0) any = (any & 0xffff0000u) | 0x8000u; // halfway
        memcpy(&x[i], &any, 4);
    }
    kernels->scale(rounded, COT_BF16, x, 1, MANY);
    for (int i = 0; i < MANY; i++)
        CHECK(isnan(x[i]) ? isnan(cot_bf16_to_f32(rounded[i])) : rounded[i] == cot_f32_to_bf16(x[i]),
              "%s to bf16 of %a: %04x", kernels->name, (double)x[i], rounded[i]);
    free(x);
    free(rounded);
}

/* exp through silu: relative error over the whole range, and what happens at its ends. */
static void exponential(check_draws *draws, const cot_kernels *kernels)
{
    enum { MANY = 40000 };
    float *x = malloc(MANY * 4), *one = malloc(MANY * 4), *out = malloc(MANY * 4);
    for (int i = 0; i < MANY; i++) {
        x[i] = -87 + 174 * (float)i / MANY + random_value(draws, 1e-3f);
        one[i] = 1;
    }
    kernels->swiglu(out, COT_F32, x, one, MANY);
    double worst = 0;
    for (int i = 0; i < MANY; i++) {
        double exact = x[i] * sigmoid(x[i]);
        worst = fmax(worst, error_of(out[i], exact, fabs(exact)));
    }
    CHECK(worst < 5e-7, "%s silu's relative error is %g", kernels->name, worst);
    static const float ends[] = {-INFINITY, -1e30f, -200, -104, -89, 89, 104, 200, 1e30f, INFINITY, NAN, 0};
    int n = (int)(sizeof ends / sizeof *ends);
    kernels->swiglu(out, COT_F32, ends, one, n);
    for (int i = 0; i < n; i++) {
        double exact = ends[i] / (1 + exp(-(double)ends[i]));
        CHECK(isnan(exact) ? isnan(out[i]) : error_of(out[i], exact, fabs(exact) + 1e-30) < 1e-6,
              "%s silu(%g) = %g", kernels->name, (double)ends[i], (double)out[i]);
    }
    static const float seven[] = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
    kernels->swiglu_clamped(out, COT_F32, ends, seven, n, 7, 1.702f);
    for (int i = 0; i < n; i++)
        if (!isinf(ends[i]))
            CHECK(isnan(ends[i]) ? isnan(out[i]) : isfinite(out[i]), "%s clamped at %g: %g", kernels->name,
                  (double)ends[i], (double)out[i]);
    free(x);
    free(one);
    free(out);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    FOR_EACH_TABLE(kernels)
    {
        printf("%s\n", kernels->name);
        for (int64_t n = 1; n <= LONGEST; n++) length(draws, kernels, n);
        length(draws, kernels, 2048);
        for (int64_t half = 1; half <= 70; half++) {
            rope(draws, kernels, half, false);
            rope(draws, kernels, half, true);
        }
        conversions(draws, kernels);
        exponential(draws, kernels);
    }
    return 0;
}
