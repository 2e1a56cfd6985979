/* The product: against a sum in double, against the oracle's bits, and the room's law that a row depends on
 * itself. */
#include "harness/kernels/check.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct problem {
    cot_gemm g;
    guarded a, b, c, rows;
    int64_t a_count;
} problem;

static int64_t bytes_of(cot_dtype type)
{
    return (int64_t)cot_dtype_bytes(type);
}

static problem make(check_draws *draws, cot_dtype type, int64_t m, int64_t n, int64_t k, bool gather,
                    bool dense)
{
    problem p = {.g = {.type = type, .format = cot_format_of(type), .m = m, .n = n, .k = k}};
    cot_gemm *g = &p.g;
    g->a_stride = k + (dense ? 0 : random_between(draws, 0, 5));
    g->c_stride = n + (dense ? 0 : random_between(draws, 0, 5));
    const int64_t panel = cot_panel_bytes(g->format, k);
    g->b_panel_bytes = panel + (dense ? 0 : 128 * random_between(draws, 0, 2));
    p.a_count = gather ? m + 3 : m;
    p.a = guarded_random(draws, (p.a_count - 1) * g->a_stride + k, type, 1);
    g->a = p.a.data;
    if (gather) {
        p.rows = guard(m * 4);
        for (int64_t i = 0; i < m; i++)
            ((int32_t *)p.rows.data)[i] = (int32_t)random_between(draws, 0, p.a_count - 1);
        g->a_rows = p.rows.data;
    }
    int64_t panels = cot_panels(n);
    p.b = guard((panels - 1) * g->b_panel_bytes + panel);
    float *row = malloc((size_t)n * 4);
    for (int64_t i = 0; i < panels; i++) // as a page that was zeroed when it was handed out
        memset((char *)p.b.data + i * g->b_panel_bytes, 0, (size_t)panel);
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < n; j++) row[j] = random_value(draws, 1);
        cot_pack_row(p.b.data, g->format, g->b_panel_bytes, i, row, n);
    }
    free(row);
    g->b = p.b.data;
    p.c = guard(((m - 1) * g->c_stride + n) * 4);
    g->c = p.c.data;
    return p;
}

static void drop(problem *p)
{
    unguard(p->a);
    unguard(p->b);
    unguard(p->c);
    if (p->rows.map) unguard(p->rows);
}

static float b_at(const cot_gemm *g, int64_t k, int64_t n)
{
    const char *panel = (const char *)g->b + n / 32 * g->b_panel_bytes;
    return g->type == COT_F32 ? get_element(panel, COT_F32, k * 32 + n % 32)
                              : get_element(panel, COT_BF16, (k / 2) * 64 + n % 32 * 2 + k % 2);
}

static void fill_c(cot_gemm *g)
{
    for (int64_t m = 0; m < g->m; m++)
        for (int64_t n = 0; n < g->n; n++) g->c[m * g->c_stride + n] = (float)((m * 7 + n * 3) % 11) - 5;
}

static void against_double(const cot_kernels *kernels, problem *p, bool accumulate)
{
    cot_gemm *g = &p->g;
    g->accumulate = accumulate;
    if (accumulate) fill_c(g);
    kernels->gemm(g, 0, g->m, 0, cot_panels(g->n));
    for (int64_t m = 0; m < g->m; m++) {
        int64_t row = (g->a_rows ? g->a_rows[m] : m) * g->a_stride;
        for (int64_t n = 0; n < g->n; n++) {
            double sum = accumulate ? (double)((m * 7 + n * 3) % 11) - 5 : 0, size = fabs(sum) + 1e-30;
            for (int64_t k = 0; k < g->k; k++) {
                double term = (double)get_element(g->a, g->type, row + k) * b_at(g, k, n);
                sum += term;
                size += fabs(term);
            }
            double error = error_of(g->c[m * g->c_stride + n], sum, size);
            CHECK(error < 1e-7 * (4 + sqrt((double)g->k)),
                  "%s %s m %lld n %lld k %lld at %lld,%lld: %g expected %g", kernels->name,
                  cot_dtype_name(g->type), (long long)g->m, (long long)g->n, (long long)g->k, (long long)m,
                  (long long)n, (double)g->c[m * g->c_stride + n], sum);
        }
        for (int64_t n = g->n; n < g->c_stride && m + 1 < g->m; n++)
            CHECK(is_poison(g->c[m * g->c_stride + n]), "%s wrote column %lld of %lld", kernels->name,
                  (long long)n, (long long)g->n);
    }
}

/* The result of a row alone must be that of the row in company. */
static void rows_alone(const cot_kernels *kernels, problem *p)
{
    cot_gemm *g = &p->g;
    float *alone = malloc((size_t)g->n * 4);
    for (int64_t m = 0; m < g->m; m++) {
        cot_gemm one = *g;
        int64_t row = g->a_rows ? g->a_rows[m] : m;
        one.a = (const char *)g->a + row * g->a_stride * bytes_of(g->type);
        one.a_rows = NULL;
        one.m = 1;
        one.c = alone;
        for (int64_t n = 0; n < g->n; n++) alone[n] = g->accumulate ? (float)((m * 7 + n * 3) % 11) - 5 : NAN;
        kernels->gemm(&one, 0, 1, 0, cot_panels(g->n));
        CHECK(memcmp(alone, g->c + m * g->c_stride, (size_t)g->n * 4) == 0,
              "%s %s row %lld of %lld, n %lld, k %lld", kernels->name, cot_dtype_name(g->type), (long long)m,
              (long long)g->m, (long long)g->n, (long long)g->k);
    }
    free(alone);
}

/* So must that of pieces of rows, panels and (at even places) of k. */
static void pieces(check_draws *draws, const cot_kernels *kernels, problem *p)
{
    cot_gemm cut = p->g;
    guarded c = guard(((cut.m - 1) * cut.c_stride + cut.n) * 4);
    cut.c = c.data;
    if (cut.accumulate) fill_c(&cut);
    int64_t step = 2 * random_between(draws, 1, cut.k / 2 + 1);
    for (int64_t k0 = 0; k0 < p->g.k; k0 += step) {
        cut.k = p->g.k - k0 < step ? p->g.k - k0 : step;
        cut.accumulate = p->g.accumulate || k0 > 0;
        cut.a = (const char *)p->g.a + k0 * bytes_of(cut.type);
        cut.b = (const char *)p->g.b + k0 * 32 * bytes_of(cut.type);
        for (int64_t m0 = 0, m1; m0 < cut.m; m0 = m1) {
            m1 = m0 + random_between(draws, 1, cut.m - m0);
            for (int64_t p0 = 0, p1; p0 < cot_panels(cut.n); p0 = p1) {
                p1 = p0 + random_between(draws, 1, cot_panels(cut.n) - p0);
                kernels->gemm(&cut, m0, m1, p0, p1);
            }
        }
    }
    CHECK(memcmp(c.data, p->g.c, (size_t)((cut.m - 1) * cut.c_stride + cut.n) * 4) == 0,
          "%s %s m %lld n %lld k %lld", kernels->name, cot_dtype_name(cut.type), (long long)cut.m,
          (long long)cut.n, (long long)p->g.k);
    unguard(c);
}

/* All but VDPBF16PS compute the oracle's very bits. */
static void oracle_bits(const cot_kernels *kernels, problem *p)
{
    if (p->g.type == COT_BF16 && strcmp(kernels->name, "avx512_bf16") == 0) return;
    cot_gemm g = p->g;
    guarded c = guard(((g.m - 1) * g.c_stride + g.n) * 4);
    g.c = c.data;
    if (g.accumulate) fill_c(&g);
    cot_isa_ref.kernels.gemm(&g, 0, g.m, 0, cot_panels(g.n));
    CHECK(memcmp(c.data, p->g.c, (size_t)((g.m - 1) * g.c_stride + g.n) * 4) == 0,
          "%s %s m %lld n %lld k %lld", kernels->name, cot_dtype_name(g.type), (long long)g.m, (long long)g.n,
          (long long)g.k);
    unguard(c);
}

static void all_of(check_draws *draws, const cot_kernels *kernels, cot_dtype type, int64_t m, int64_t n,
                   int64_t k)
{
    problem p = make(draws, type, m, n, k, random_between(draws, 0, 1), random_between(draws, 0, 1));
    against_double(kernels, &p, random_between(draws, 0, 1));
    oracle_bits(kernels, &p);
    rows_alone(kernels, &p);
    pieces(draws, kernels, &p);
    drop(&p);
}

static void nan_and_infinity_propagate(check_draws *draws, const cot_kernels *kernels, cot_dtype type)
{
    problem p = make(draws, type, 3, 40, 9, false, true);
    put_element(p.a.data, type, 1 * p.g.a_stride + 8, NAN);
    put_element(p.a.data, type, 2 * p.g.a_stride + 3, INFINITY);
    kernels->gemm(&p.g, 0, 3, 0, 2);
    for (int n = 0; n < 40; n++) {
        CHECK(isfinite(p.g.c[n]), "%s row 0 is touched by its neighbours", kernels->name);
        CHECK(isnan(p.g.c[p.g.c_stride + n]), "%s lost a NaN", kernels->name);
        CHECK(!isfinite(p.g.c[2 * p.g.c_stride + n]), "%s lost an infinity", kernels->name);
    }
    drop(&p);
}

/* Two matrices in turn: the bits of either alone. */
static void pairs(check_draws *draws, const cot_kernels *kernels, cot_dtype type)
{
    int64_t m = random_between(draws, 1, 20), k = random_between(draws, 1, 700),
            panels = random_between(draws, 1, 4);
    problem both = make(draws, type, m, 2 * panels * 32, k, false, true);
    cot_gemm g = both.g;
    g.b_pair_bytes = panels * g.b_panel_bytes; // the first half of the panels, then the second
    kernels->gemm(&g, 0, m, 0, 2 * panels);
    float *in_turn = malloc((size_t)(m * g.c_stride) * 4);
    memcpy(in_turn, g.c, (size_t)(m * g.c_stride) * 4);
    kernels->gemm(&both.g, 0, m, 0, 2 * panels);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < 2 * panels; p++)
            CHECK(memcmp(in_turn + i * g.c_stride + p * 32,
                         both.g.c + i * g.c_stride + (p / 2 + p % 2 * panels) * 32, 32 * 4) == 0,
                  "%s %s m %lld k %lld", kernels->name, cot_dtype_name(type), (long long)m, (long long)k);
    free(in_turn);
    drop(&both);
}

static void no_terms(check_draws *draws, const cot_kernels *kernels)
{
    problem p = make(draws, COT_F32, 5, 33, 1, false, true);
    p.g.k = 0;
    kernels->gemm(&p.g, 0, 5, 0, 2);
    for (int i = 0; i < 5 * 33; i++) CHECK(p.g.c[i] == 0, "%s: no terms make zero", kernels->name);
    fill_c(&p.g);
    p.g.accumulate = true;
    kernels->gemm(&p.g, 0, 5, 0, 2);
    CHECK(p.g.c[0] == -5, "%s: no terms change nothing", kernels->name);
    drop(&p);
}

#ifdef __SANITIZE_ADDRESS__
enum { MATRICES = 4 };

/* The product of matrices on the heap, of which one is a byte short; MATRICES: none is. */
static void multiply_short(const cot_kernels *kernels, cot_dtype type, int which)
{
    cot_gemm g = {.type = type,
                  .format = cot_format_of(type),
                  .m = 5,
                  .n = 96,
                  .k = 38,
                  .a_stride = 38,
                  .c_stride = 96};
    const int64_t panel = cot_panel_bytes(g.format, g.k),
                  bytes[] = {g.m * g.k * bytes_of(type), cot_panels(g.n) * panel, g.m * g.n * 4, g.m * 4};
    void *of[MATRICES];
    for (int i = 0; i < MATRICES; i++) of[i] = calloc(1, (size_t)(bytes[i] - (i == which)));
    for (int i = 0; i < g.m - (which == 3); i++) ((int32_t *)of[3])[i] = i;
    g.a = of[0], g.b = of[1], g.c = of[2], g.a_rows = of[3], g.b_panel_bytes = panel;
    kernels->gemm(&g, 0, g.m, 0, cot_panels(g.n));
    for (int i = 0; i < MATRICES; i++) free(of[i]);
}

/* Tiles are not instrumented (kernels/extents.h). */
static void what_is_not_there_is_reported(const cot_kernels *kernels, cot_dtype type)
{
    for (int which = 0; which <= MATRICES; which++) {
        int how;
        const pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            multiply_short(kernels, type, which);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &how, 0) == child, "no child");
        CHECK((how == 0) == (which == MATRICES), "%s, matrix %d: status %d", kernels->name, which, how);
    }
}
#endif

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    static const cot_dtype types[] = {COT_F32, COT_BF16};
    FOR_EACH_TABLE(kernels)
    {
        printf("%s\n", kernels->name);
        no_terms(draws, kernels);
        for (int t = 0; t < 2; t++) {
#ifdef __SANITIZE_ADDRESS__
            what_is_not_there_is_reported(kernels, types[t]);
#endif
            nan_and_infinity_propagate(draws, kernels, types[t]);
            for (int i = 0; i < 20; i++) pairs(draws, kernels, types[t]);
            for (int64_t m = 1; m <= 30; m++) // every height of a tile
                all_of(draws, kernels, types[t], m, random_between(draws, 1, 140),
                       random_between(draws, 1, 70));
            for (int64_t m = 5; m <= 26; m++) // tiles that take turns, over pairs of panels and the odd one
                all_of(draws, kernels, types[t], m, random_between(draws, 97, 230),
                       random_between(draws, 700, 1100));
            for (int i = 0; i < 40; i++)
                all_of(draws, kernels, types[t], random_between(draws, 1, 9), random_between(draws, 1, 200),
                       random_between(draws, 1, 40));
            all_of(draws, kernels, types[t], 1, 1, 1);
            all_of(draws, kernels, types[t], 137, 200, 97);
            all_of(draws, kernels, types[t], 2, 65, 20001); // longer than any block of k
            all_of(draws, kernels, types[t], 7, 33, 3501);
            all_of(draws, kernels, types[t], 101, 40, 601);
        }
    }
    return 0;
}
