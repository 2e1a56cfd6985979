/* Products of whole numbers: the oracle's bits in every table, its error against exact products, and rows alone. */
#include "harness/kernels/check.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    cot_gemm g;
    guarded a, b, c;
    float *plain; // B, [n][k]
    int64_t b_bytes;
} problem;

static problem make(check_draws *draws, cot_dtype type, int64_t m, int64_t n, int64_t k)
{
    problem p = {.g = {.type = type, .format = COT_FORMAT_INT8, .rounded = true, .m = m, .n = n, .k = k}};
    cot_gemm *g = &p.g;
    g->a_stride = k + random_between(draws, 0, 5);
    g->c_stride = n + random_between(draws, 0, 5);
    g->b_panel_bytes = cot_panel_bytes(COT_FORMAT_INT8, k);
    p.a = guarded_random(draws, (m - 1) * g->a_stride + k, type, 1);
    p.plain = malloc((size_t)(n * k) * 4);
    for (int64_t i = 0; i < n * k; i++) p.plain[i] = random_value(draws, 1);
    p.b = guard(cot_packed_bytes(COT_FORMAT_INT8, k, n));
    cot_pack_columns(p.b.data, COT_FORMAT_INT8, k, n, 0, n, p.plain, COT_F32, k);
    p.c = guard(((m - 1) * g->c_stride + n) * 4);
    g->a = p.a.data, g->b = p.b.data, g->c = p.c.data;
    return p;
}

static void drop(problem *p)
{
    unguard(p->a), unguard(p->b), unguard(p->c);
    free(p->plain);
}

static size_t c_bytes(const cot_gemm *g)
{
    return (size_t)((g->m - 1) * g->c_stride + g->n) * 4;
}

static void oracle_bits(check_draws *draws, const cot_kernels *kernels, const problem *p)
{
    cot_gemm g = p->g;
    guarded c = guard((int64_t)c_bytes(&g));
    g.c = c.data;
    if (g.accumulate) memcpy(c.data, p->g.c, c_bytes(&g));
    for (int64_t m0 = 0, m1; m0 < g.m; m0 = m1) { // in pieces
        m1 = m0 + random_between(draws, 1, g.m - m0);
        for (int64_t p0 = 0, p1; p0 < cot_panels(g.n); p0 = p1) {
            p1 = p0 + random_between(draws, 1, cot_panels(g.n) - p0);
            kernels->gemm(&g, m0, m1, p0, p1);
        }
    }
    cot_gemm oracle = p->g;
    cot_isa_ref.kernels.gemm(&oracle, 0, g.m, 0, cot_panels(g.n));
    for (int64_t i = 0; i < g.m; i++)
        CHECK(memcmp(g.c + i * g.c_stride, oracle.c + i * g.c_stride, (size_t)g.n * 4) == 0,
              "%s %s row %lld, m %lld n %lld k %lld", kernels->name, cot_dtype_name(g.type), (long long)i,
              (long long)g.m, (long long)g.n, (long long)g.k);
    CHECK(memcmp(c.data, p->c.data, c_bytes(&g)) == 0, "%s wrote between rows", kernels->name);
    unguard(c);
}

/* Root of the mean square of errors over that of exact results; the documentation states it. */
static double relative_error(check_draws *draws, cot_dtype type, int64_t m, int64_t n, int64_t k)
{
    problem p = make(draws, type, m, n, k);
    const cot_gemm *g = &p.g;
    double errors = 0, squares = 0;
    cot_isa_ref.kernels.gemm(g, 0, m, 0, cot_panels(n));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double exact = 0;
            for (int64_t l = 0; l < k; l++)
                exact += (double)get_element(g->a, type, i * g->a_stride + l) * (double)p.plain[j * k + l];
            double error = g->c[i * g->c_stride + j] - exact;
            errors += error * error;
            squares += exact * exact;
        }
    drop(&p);
    return sqrt(errors / squares);
}

static void not_finite(check_draws *draws, const cot_kernels *kernels, cot_dtype type)
{
    problem p = make(draws, type, 11, 70, 300);
    put_element(p.a.data, type, 1 * p.g.a_stride + 299, NAN);
    put_element(p.a.data, type, 9 * p.g.a_stride + 3, -INFINITY);
    for (int64_t i = 0; i < 300; i++)
        put_element(p.a.data, type, 5 * p.g.a_stride + i, i % 2 ? 1e-39f : -0.0f);
    kernels->gemm(&p.g, 0, 11, 0, 3);
    for (int64_t i = 0; i < 11; i++)
        for (int64_t j = 0; j < 70; j++) {
            float c = p.g.c[i * p.g.c_stride + j];
            CHECK(i == 1 || i == 9 ? isnan(c) : isfinite(c), "%s row %lld is %g", kernels->name, (long long)i,
                  (double)c);
            CHECK(i != 5 || c == 0, "%s: %g of what is too small", kernels->name, (double)c);
        }
    drop(&p);
}

/* The ends of int8: nothing saturates. */
static void greatest(check_draws *draws, const cot_kernels *kernels)
{
    problem p = make(draws, COT_F32, 13, 64, 1024);
    for (int64_t i = 0; i < 64 * 1024; i++) p.plain[i] = i / 1024 % 2 ? 2.0f : -2.0f;
    cot_pack_columns(p.b.data, COT_FORMAT_INT8, 1024, 64, 0, 64, p.plain, COT_F32, 1024);
    for (int64_t i = 0; i < 13; i++)
        for (int64_t j = 0; j < 1024; j++) ((float *)p.a.data)[i * p.g.a_stride + j] = i % 2 ? 3.0f : -3.0f;
    kernels->gemm(&p.g, 0, 13, 0, 2);
    for (int64_t i = 0; i < 13; i++)
        for (int64_t j = 0; j < 64; j++) {
            double exact = (i % 2 ? 3.0 : -3.0) * (j % 2 ? 2 : -2) * 1024;
            CHECK(fabs(p.g.c[i * p.g.c_stride + j] / exact - 1) < 1e-6, "%s: %g, expected %g", kernels->name,
                  (double)p.g.c[i * p.g.c_stride + j], exact);
        }
    drop(&p);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    static const cot_dtype types[] = {COT_F32, COT_BF16};
    FOR_EACH_TABLE(kernels)
    {
        printf("%s\n", kernels->name);
        greatest(draws, kernels);
        for (int t = 0; t < 2; t++) {
            not_finite(draws, kernels, types[t]);
            for (int i = 0; i < 60; i++) {
                problem p = make(draws, types[t], i < 30 ? i + 1 : random_between(draws, 1, 12),
                                 random_between(draws, 1, 140), random_between(draws, 1, i % 4 ? 90 : 700));
                p.g.accumulate = random_between(draws, 0, 1);
                if (p.g.accumulate) memset(p.c.data, 0, c_bytes(&p.g));
                oracle_bits(draws, kernels, &p);
                drop(&p);
            }
            problem p = make(draws, types[t], 103, 70, 2500); // longer than any block
            oracle_bits(draws, kernels, &p);
            drop(&p);
            p = make(draws, types[t], 3, 130, 2500);
            oracle_bits(draws, kernels, &p);
            drop(&p);
        }
    }
    for (int t = 0; t < 2; t++) {
        double error = relative_error(draws, types[t], 16, 64, 2048);
        printf("error %s: %.4f\n", cot_dtype_name(types[t]), error);
        CHECK(error > 0.001 && error < 0.015, "%g", error);
    }
    return 0;
}
