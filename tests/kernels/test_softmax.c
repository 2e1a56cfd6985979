/* Softmax over a window of a row: against double, in place, at its extremes, shifted, and in pieces. */
#include "harness/kernels/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void against_double(check_draws *draws, const cot_kernels *kernels, cot_dtype type, bool in_place,
                           const float *sink, float spread)
{
    int64_t n = random_between(draws, 1, 300), begin = random_between(draws, 0, n - 1),
            end = random_between(draws, begin + 1, n);
    float scale = (float)random_between(draws, 1, 20) / 10;
    guarded s = guarded_random(draws, n, COT_F32, spread), p = guard(n * (int64_t)cot_dtype_bytes(type));
    float *x = s.data, *copy = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        if (i < begin || i >= end) x[i] = NAN; // not to be looked at
    memcpy(copy, x, (size_t)n * 4);
    void *out = in_place ? s.data : p.data;
    cot_softmax_sums before = {sink ? *sink : -INFINITY, sink != NULL};
    float left = kernels->softmax(out, type, x, n, begin, end, scale, sink || n % 2 ? &before : NULL);
    double max = sink ? (double)*sink : -INFINITY, sum = 0;
    for (int64_t i = begin; i < end; i++) max = fmax(max, (double)(scale * copy[i]));
    for (int64_t i = begin; i < end; i++) sum += exp((double)(scale * copy[i]) - max);
    if (sink) sum += exp((double)*sink - max);
    const double of_sink = sink ? exp((double)*sink - max) / sum : 0;
    CHECK(fabs(left - of_sink) < 1e-6 + 1e-5 * of_sink, "%s: %g is the sink's, not %g", kernels->name,
          of_sink, (double)left);
    if (sink || n % 2) {
        CHECK(before.max == (float)max && fabs(before.sum - sum) < 1e-5 * sum, "%s: knows %g, %g of %g, %g",
              kernels->name, (double)before.max, (double)before.sum, max, sum);
    }
    for (int64_t i = 0; i < n; i++) {
        double depth =
            i < begin || i >= end ? 0 : max - (double)(scale * copy[i]); // known to 2^-24 of its size
        double exact = i < begin || i >= end ? 0 : exp((double)(scale * copy[i]) - max) / sum;
        double error = error_of(get_element(out, type, i), exact, exact + 1e-30);
        CHECK(error < (type == COT_F32 ? 1e-6 + 6e-8 * depth : 4e-3),
              "%s %s %lld of [%lld, %lld) of %lld: error %g", kernels->name, cot_dtype_name(type),
              (long long)i, (long long)begin, (long long)end, (long long)n, error);
    }
    free(copy);
    unguard(p);
    unguard(s);
}

static void shifted(check_draws *draws, const cot_kernels *kernels, cot_dtype type)
{
    int64_t shift = 32 * random_between(draws, 1, 4), n = random_between(draws, 1, 200),
            begin = random_between(draws, 0, n - 1);
    int64_t end = random_between(draws, begin + 1, n);
    guarded s = guarded_random(draws, n, COT_F32, 4), t = guard((n + shift) * 4);
    memcpy((float *)t.data + shift, s.data, (size_t)n * 4);
    guarded p = guard(n * 4), q = guard((n + shift) * 4);
    size_t bytes = cot_dtype_bytes(type);
    kernels->softmax(p.data, type, s.data, n, begin, end, 0.7f, NULL);
    kernels->softmax(q.data, type, t.data, n + shift, begin + shift, end + shift, 0.7f, NULL);
    CHECK(memcmp(p.data, (char *)q.data + (size_t)shift * bytes, (size_t)n * bytes) == 0,
          "%s %s: [%lld, %lld) of %lld by %lld", kernels->name, cot_dtype_name(type), (long long)begin,
          (long long)end, (long long)n, (long long)shift);
    unguard(s);
    unguard(t);
    unguard(p);
    unguard(q);
}

/* A row in two to five pieces, each shrinking what the earlier ones gave, is the row at once. */
static void in_pieces(check_draws *draws, const cot_kernels *kernels)
{
    int64_t n = 32 * random_between(draws, 5, 12);
    guarded s = guarded_random(draws, n, COT_F32, 6), whole = guard(n * 4), part = guard(n * 4);
    float *p = part.data, *q = whole.data, sink = random_value(draws, 5);
    cot_softmax_sums all = {sink, 1}, before = all;
    kernels->softmax(q, COT_F32, s.data, n, 0, n, 0.9f, &all);
    for (int64_t begin = 0, end; begin < n; begin = end) {
        end = begin + 32 * random_between(draws, 1, 3);
        if (end > n) end = n;
        float left = kernels->softmax(p + begin, COT_F32, (float *)s.data + begin, end - begin, 0,
                                      end - begin, 0.9f, &before);
        for (int64_t i = 0; i < begin; i++) p[i] *= left;
    }
    for (int64_t i = 0; i < n; i++)
        CHECK(fabsf(p[i] - q[i]) <= 1e-8f + 2e-5f * q[i], "%s: %g in pieces, %g at once", kernels->name,
              (double)p[i], (double)q[i]);
    CHECK(before.max == all.max && fabsf(before.sum - all.sum) <= 2e-5f * all.sum, "%s", kernels->name);
    unguard(s);
    unguard(whole);
    unguard(part);
}

static void extremes(const cot_kernels *kernels)
{
    float s[5] = {-INFINITY, 1e30f, -1e30f, 1e30f, 3}, p[5];
    cot_softmax_sums sink = {2e30f, 1}, low = {-INFINITY, 1};
    kernels->softmax(p, COT_F32, s, 5, 0, 5, 1, NULL);
    CHECK(p[0] == 0 && p[1] == 0.5f && p[2] == 0 && p[3] == 0.5f && p[4] == 0, "%s", kernels->name);
    kernels->softmax(p, COT_F32, s, 5, 0, 5, 1, &sink); // all the weight is the sink's
    for (int i = 0; i < 5; i++) CHECK(p[i] == 0, "%s", kernels->name);
    kernels->softmax(p, COT_F32, s, 5, 4, 5, 1, &low); // and none
    CHECK(p[4] == 1 && p[3] == 0, "%s", kernels->name);
    float with_nan[3] = {1, NAN, 2};
    kernels->softmax(p, COT_F32, with_nan, 3, 0, 3, 1, NULL);
    CHECK(isnan(p[0]) && isnan(p[1]) && isnan(p[2]), "%s lost a NaN", kernels->name);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    FOR_EACH_TABLE(kernels)
    {
        printf("%s\n", kernels->name);
        extremes(kernels);
        for (int i = 0; i < 200; i++) {
            float sink = random_value(draws, 5);
            against_double(draws, kernels, COT_F32, i % 2, i % 3 ? NULL : &sink, i % 5 ? 2 : 40);
            against_double(draws, kernels, COT_BF16, false, i % 3 ? NULL : &sink, 2);
            shifted(draws, kernels, i % 2 ? COT_F32 : COT_BF16);
            in_pieces(draws, kernels);
        }
    }
    return 0;
}
