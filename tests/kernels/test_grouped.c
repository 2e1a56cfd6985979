/* Products with formats that have scales, decoded by this file's own words, against sums in double, the oracle's bits, and the
 * law that a row depends on itself. */
#include "harness/kernels/check.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    cot_gemm g;
    guarded a, b, c, rows;
    uint8_t *codes, *packed, *exponents; // [n][k] codes; MXFP4: two of them a byte, [n][k / 32]
    float *scales, *offsets;             // [n][groups]
    int64_t groups;
} problem;

/* Packed in pieces, MXFP4 as a checkpoint stores it. */
static void pack(check_draws *draws, problem *p)
{
    const int64_t n = p->g.n, k = p->g.k;
    const cot_format format = p->g.format;
    for (int64_t i = 0; i < n * k / 2 && format == COT_FORMAT_MXFP4; i++)
        p->packed[i] = (uint8_t)(p->codes[2 * i] | p->codes[2 * i + 1] << 4);
    for (int64_t n0 = 0, count; n0 < n; n0 += count) {
        count = random_between(draws, 1, n - n0);
        const cot_pack_source piece = {p->packed + n0 * k / 2, p->exponents + n0 * k / 32, k / 2, k / 32};
        const cot_codes rows = {(int8_t *)p->codes + n0 * k, p->scales + n0 * p->groups,
                                p->offsets + n0 * p->groups};
        if (format == COT_FORMAT_MXFP4)
            cot_pack_stored(p->b.data, format, k, n, n0, count, &piece);
        else
            cot_pack_codes(p->b.data, format, k, n, n0, count, &rows);
    }
}

/* Scales within 2^+-spread of 1, all codes alike but NaN. The rows of A lie apart. */
static problem make(check_draws *draws, cot_format format, cot_dtype type, bool rounded, int64_t m, int64_t n,
                    int64_t k, int spread)
{
    problem p = {.g = {.type = type, .format = format, .rounded = rounded, .m = m, .n = n, .k = k}};
    cot_gemm *g = &p.g;
    const cot_format kind = cot_format_kind(format);
    g->a_stride = k + random_between(draws, 0, 5);
    g->c_stride = n + random_between(draws, 0, 5);
    g->b_panel_bytes = cot_panel_bytes(format, k);
    p.a = guarded_random(draws, (m + 1) * g->a_stride + k, type, 1);
    if (random_between(draws, 0, 1)) {
        p.rows = guard(m * 4);
        for (int64_t i = 0; i < m; i++)
            ((int32_t *)p.rows.data)[i] = (int32_t)random_between(draws, 0, m + 1);
        g->a_rows = p.rows.data;
    }
    p.groups = cot_format_groups(format, k);
    p.codes = malloc((size_t)(n * k));
    p.packed = malloc((size_t)(n * k));
    p.exponents = malloc((size_t)(n * p.groups));
    p.scales = malloc((size_t)(n * p.groups) * 4);
    p.offsets = malloc((size_t)(n * p.groups) * 4);
    for (int64_t i = 0; i < n * k; i++) {
        p.codes[i] = (uint8_t)random_between(draws, 0, kind == COT_FORMAT_MXFP4 ? 15 : 255);
        if (kind == COT_FORMAT_INT4) p.codes[i] = (uint8_t)random_between(draws, -8, 7);
        if (kind == COT_FORMAT_FP8 && (p.codes[i] & 0x7f) == 0x7f) p.codes[i]--;
    }
    for (int64_t i = 0; i < n * p.groups; i++) {
        p.exponents[i] = (uint8_t)random_between(draws, 127 - spread, 127 + spread);
        p.scales[i] = ldexpf((float)random_between(draws, 128, 255) / 128, p.exponents[i] - 127);
        p.offsets[i] = (float)(kind == COT_FORMAT_INT8 ? random_between(draws, -127, 128)
                                                       : random_between(draws, -8, 8));
        if (kind == COT_FORMAT_MXFP4) p.scales[i] = ldexpf(1, p.exponents[i] - 127);
    }
    p.b = guard(cot_packed_bytes(format, k, n));
    pack(draws, &p);
    p.c = guard(((m - 1) * g->c_stride + n) * 4);
    g->a = p.a.data, g->b = p.b.data, g->c = p.c.data;
    return p;
}

static void drop(problem *p)
{
    unguard(p->a), unguard(p->b), unguard(p->c);
    if (p->rows.map) unguard(p->rows);
    free(p->codes), free(p->packed), free(p->exponents), free(p->scales), free(p->offsets);
}

static int64_t group_at(const problem *p, int64_t k, int64_t n)
{
    const int64_t group = cot_format_group(p->g.format);
    return n * p->groups + (group ? k / group : 0);
}

/* An element without its scale: E2M1 and E4M3 as OCP has them. */
static double code_value(const problem *p, int64_t k, int64_t n)
{
    const int code = p->codes[n * p->g.k + k];
    const double zero = cot_format_zeros(p->g.format) ? (double)p->offsets[group_at(p, k, n)] : 0;
    double size;
    switch (cot_format_kind(p->g.format)) {
    case COT_FORMAT_INT4:
    case COT_FORMAT_INT8:
        return (code < 128 ? code : code - 256) + zero;
    case COT_FORMAT_FP8:
        size = code & 0x78 ? ldexp(8 + (code & 7), (code >> 3 & 15) - 10) : ldexp(code & 7, -9);
        return code & 0x80 ? -size : size;
    default:
        size = code & 6 ? ldexp(1 + 0.5 * (code & 1), (code >> 1 & 3) - 1) : 0.5 * (code & 1);
        return code & 8 ? -size : size;
    }
}

/* Of the terms it is summed from: an element may be zero where its code and offset are not. */
static double code_size(const problem *p, int64_t k, int64_t n)
{
    return fabs(code_value(p, k, n)) + (cot_format_zeros(p->g.format) ? 16 : 0);
}

static double scale_value(const problem *p, int64_t k, int64_t n)
{
    return (double)p->scales[group_at(p, k, n)];
}

static float start(int64_t m, int64_t n)
{
    return (float)((m * 7 + n * 3) % 11) - 5;
}

static void fill_c(const cot_gemm *g)
{
    for (int64_t m = 0; m < g->m; m++)
        for (int64_t n = 0; n < g->n; n++) g->c[m * g->c_stride + n] = start(m, n);
}

static float a_at(const cot_gemm *g, int64_t m, int64_t k)
{
    return get_element(g->a, g->type, (g->a_rows ? g->a_rows[m] : m) * g->a_stride + k);
}

/* What a row's element becomes where rows are rounded: blocks of COT_QUANT_K by their greatest magnitude. */
static void round_all(double *out, const cot_gemm *g, int64_t m)
{
    for (int64_t k0 = 0; k0 < g->k; k0 += COT_QUANT_K) {
        const int64_t k1 = g->k - k0 < COT_QUANT_K ? g->k : k0 + COT_QUANT_K;
        float most = 0;
        for (int64_t k = k0; k < k1; k++) most = fmaxf(most, fabsf(a_at(g, m, k)));
        for (int64_t k = k0; k < k1; k++)
            out[k] = most > 0 ? (double)rintf(a_at(g, m, k) * (127 / most)) * (double)most / 127 : 0;
    }
}

static void against_double(const cot_kernels *kernels, const problem *p)
{
    const cot_gemm *g = &p->g;
    double *a = malloc((size_t)g->k * sizeof *a);
    if (g->accumulate) fill_c(g);
    kernels->gemm(g, 0, g->m, 0, cot_panels(g->n));
    for (int64_t m = 0; m < g->m; m++) {
        if (g->rounded)
            round_all(a, g, m);
        else
            for (int64_t k = 0; k < g->k; k++) a[k] = (double)a_at(g, m, k);
        for (int64_t n = 0; n < g->n; n++) {
            double sum = g->accumulate ? (double)start(m, n) : 0, size = fabs(sum) + 1e-30;
            for (int64_t k = 0; k < g->k; k++) {
                const double term = a[k] * code_value(p, k, n) * scale_value(p, k, n);
                sum += term;
                size += fabs(a[k]) * code_size(p, k, n) * scale_value(p, k, n);
            }
            const double error = error_of((double)g->c[m * g->c_stride + n], sum, size);
            CHECK(error < 1e-7 * (4 + sqrt((double)g->k)),
                  "%s %s %x by %s%s m %lld n %lld k %lld at %lld,%lld: %g expected %g", kernels->name,
                  cot_format_row_of(g->format)->name, (unsigned)g->format, cot_dtype_name(g->type),
                  g->rounded ? " rounded" : "", (long long)g->m, (long long)g->n, (long long)g->k,
                  (long long)m, (long long)n, (double)g->c[m * g->c_stride + n], sum);
        }
        for (int64_t n = g->n; n < g->c_stride && m + 1 < g->m; n++)
            CHECK(is_poison(g->c[m * g->c_stride + n]), "%s wrote beyond columns", kernels->name);
    }
    free(a);
}

static void same_rows(const cot_gemm *a, const cot_gemm *b, const char *what)
{
    for (int64_t m = 0; m < a->m; m++)
        CHECK(memcmp(a->c + m * a->c_stride, b->c + m * b->c_stride, (size_t)a->n * 4) == 0,
              "%s: %s%s row %lld of %lld, n %lld, k %lld", what, cot_dtype_name(a->type),
              a->rounded ? " rounded" : "", (long long)m, (long long)a->m, (long long)a->n, (long long)a->k);
}

/* In pieces of rows and panels, one row alone, and by the oracle: all the same bits, but for VDPBF16PS the oracle's. */
static void same_bits(check_draws *draws, const cot_kernels *kernels, const problem *p)
{
    cot_gemm cut = p->g;
    guarded c = guard(((cut.m - 1) * cut.c_stride + cut.n) * 4);
    cut.c = c.data;
    if (cut.accumulate) fill_c(&cut);
    for (int64_t m0 = 0, m1; m0 < cut.m; m0 = m1) {
        m1 = m0 + random_between(draws, 1, cut.m - m0);
        for (int64_t p0 = 0, p1; p0 < cot_panels(cut.n); p0 = p1) {
            p1 = p0 + random_between(draws, 1, cot_panels(cut.n) - p0);
            kernels->gemm(&cut, m0, m1, p0, p1);
        }
    }
    same_rows(&cut, &p->g, kernels->name);
    CHECK(memcmp(c.data, p->c.data, (size_t)((cut.m - 1) * cut.c_stride + cut.n) * 4) == 0,
          "%s wrote between rows", kernels->name);
    for (int64_t m = 0; m < cut.m; m++) {
        if (cut.accumulate)
            for (int64_t n = 0; n < cut.n; n++) cut.c[m * cut.c_stride + n] = start(m, n);
        kernels->gemm(&cut, m, m + 1, 0, cot_panels(cut.n));
    }
    same_rows(&cut, &p->g, kernels->name);
    if (cut.rounded || cut.type == COT_F32 || strcmp(kernels->name, "avx512_bf16") != 0) {
        if (cut.accumulate) fill_c(&cut);
        cot_isa_ref.kernels.gemm(&cut, 0, cut.m, 0, cot_panels(cut.n));
        same_rows(&cut, &p->g, kernels->name);
    }
    unguard(c);
}

static void all_of(check_draws *draws, const cot_kernels *kernels, cot_format format, cot_dtype type,
                   bool rounded, int64_t m, int64_t n, int64_t k)
{
    problem p = make(draws, format, type, rounded, m, n, k, 6);
    p.g.accumulate = random_between(draws, 0, 1);
    against_double(kernels, &p);
    same_bits(draws, kernels, &p);
    drop(&p);
}

/* Every code, and of MXFP4 every scale that a finite number may have, one by one. */
static void every_code(check_draws *draws, const cot_kernels *kernels, cot_format format, cot_dtype type)
{
    problem p = make(draws, format, type, false, 1, 255, 32, 0);
    const bool mxfp4 = format == COT_FORMAT_MXFP4;
    for (int code = 0; code < (cot_format_row_of(format)->bits == 4 ? 16 : 256); code++) {
        if (format == COT_FORMAT_FP8 && (code & 0x7f) == 0x7f) continue;
        memset(p.codes, format == COT_FORMAT_INT4 && code > 7 ? code - 16 : code, 255 * 32);
        for (int64_t n = 0; n < 255 && mxfp4; n++) {
            p.exponents[n] = (uint8_t)n;
            p.scales[n] = ldexpf(1, (int)n - 127);
        }
        pack(draws, &p);
        const int64_t row = p.g.a_rows ? p.g.a_rows[0] : 0, place = random_between(draws, 0, 31);
        for (int64_t i = 0; i < 32; i++) put_element(p.a.data, type, row * p.g.a_stride + i, 0);
        put_element(p.a.data, type, row * p.g.a_stride + place, 0.25f);
        kernels->gemm(&p.g, 0, 1, 0, 8);
        for (int64_t n = 0; n < 255; n++) {
            const float expected = (float)(0.25 * code_value(&p, place, n) * scale_value(&p, 0, n));
            CHECK(p.g.c[n] == expected, "%s %s code %d scale %d: %g, expected %g", kernels->name,
                  cot_format_row_of(format)->name, code, (int)n, (double)p.g.c[n], (double)expected);
        }
    }
    drop(&p);
}

static void not_finite(check_draws *draws, const cot_kernels *kernels, cot_format format, cot_dtype type,
                       bool rounded)
{
    problem p = make(draws, format, type, rounded, 7, 70, 320, 3);
    for (int32_t i = 0; i < 7 && p.g.a_rows; i++) ((int32_t *)p.rows.data)[i] = i;
    put_element(p.a.data, type, 1 * p.g.a_stride + 319, NAN);
    put_element(p.a.data, type, 5 * p.g.a_stride + 3, -INFINITY);
    for (int64_t i = 0; i < 320; i++)
        put_element(p.a.data, type, 3 * p.g.a_stride + i, i % 2 ? 1e-39f : -0.0f);
    kernels->gemm(&p.g, 0, 7, 0, 3);
    for (int64_t i = 0; i < 7; i++)
        for (int64_t j = 0; j < 70; j++) {
            const float c = p.g.c[i * p.g.c_stride + j];
            CHECK(i == 1   ? isnan(c)
                  : i == 5 ? !isfinite(c)
                           : isfinite(c),
                  "%s row %lld is %g", kernels->name, (long long)i, (double)c);
            CHECK(i != 3 || !rounded || c == 0, "%s: %g of what is too small", kernels->name, (double)c);
        }
    drop(&p);
}

/* The ends of whole numbers: nothing saturates. */
static void greatest(check_draws *draws, const cot_kernels *kernels, cot_format format)
{
    problem p = make(draws, format, COT_F32, true, 5, 64, 512, 0);
    const bool mxfp4 = format == COT_FORMAT_MXFP4;
    const int least = -(1 << (cot_format_row_of(format)->bits - 1));
    for (int64_t i = 0; i < 64 * 512; i++)
        p.codes[i] = (uint8_t)(i / 512 % 2 ? -1 - least : mxfp4 ? 15 : least);
    for (int64_t i = 0; i < 64 * p.groups; i++) p.scales[i] = 1;
    pack(draws, &p);
    for (int64_t i = 0; i < 6 * p.g.a_stride + 512; i++)
        ((float *)p.a.data)[i] = i / p.g.a_stride % 2 ? 3.0f : -3.0f;
    kernels->gemm(&p.g, 0, 5, 0, 2);
    for (int64_t i = 0; i < 5; i++)
        for (int64_t j = 0; j < 64; j++) {
            const int64_t row = p.g.a_rows ? p.g.a_rows[i] : i;
            double exact = 0, size = 0;
            for (int64_t k = 0; k < 512; k++) {
                exact += (row % 2 ? 3.0 : -3.0) * code_value(&p, k, j);
                size += 3 * code_size(&p, k, j);
            }
            CHECK(fabs((double)p.g.c[i * p.g.c_stride + j] - exact) < 1e-6 * size, "%s: %g, expected %g",
                  kernels->name, (double)p.g.c[i * p.g.c_stride + j], exact);
        }
    drop(&p);
}

/* Two matrices in turn: the bits of either alone. */
static void pairs(check_draws *draws, const cot_kernels *kernels, cot_format format, cot_dtype type,
                  bool rounded)
{
    const int64_t m = random_between(draws, 1, 20), k = 32 * random_between(draws, 1, 12),
                  panels = random_between(draws, 1, 4);
    problem both = make(draws, format, type, rounded, m, 2 * panels * 32, k, 3);
    cot_gemm g = both.g;
    g.b_pair_bytes = panels * g.b_panel_bytes;
    kernels->gemm(&g, 0, m, 0, 2 * panels);
    const size_t bytes = (size_t)((m - 1) * g.c_stride + g.n) * 4;
    float *in_turn = malloc(bytes);
    memcpy(in_turn, g.c, bytes);
    kernels->gemm(&both.g, 0, m, 0, 2 * panels);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < 2 * panels; p++)
            CHECK(memcmp(in_turn + i * g.c_stride + p * 32,
                         both.g.c + i * g.c_stride + (p / 2 + p % 2 * panels) * 32, 32 * 4) == 0,
                  "%s m %lld k %lld", kernels->name, (long long)m, (long long)k);
    free(in_turn);
    drop(&both);
}

/* Of INT8 by rounded rows: root of the mean square of errors over that of exact results; the documentation states it. */
static double error_of_rounding(check_draws *draws, cot_dtype type)
{
    enum { M = 16, N = 64, K = 2048 };
    problem p = make(draws, COT_FORMAT_INT8, type, true, M, N, K, 0);
    float *plain = malloc((size_t)N * K * sizeof *plain);
    double errors = 0, squares = 0;
    for (int64_t i = 0; i < N * K; i++) plain[i] = random_value(draws, 1);
    cot_pack_columns(p.b.data, COT_FORMAT_INT8, K, N, 0, N, plain, COT_F32, K);
    cot_isa_ref.kernels.gemm(&p.g, 0, M, 0, cot_panels(N));
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double exact = 0;
            for (int64_t k = 0; k < K; k++) exact += (double)a_at(&p.g, m, k) * (double)plain[n * K + k];
            const double error = p.g.c[m * p.g.c_stride + n] - exact;
            errors += error * error;
            squares += exact * exact;
        }
    free(plain);
    drop(&p);
    return sqrt(errors / squares);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    CHECK(cot_panel_bytes(COT_FORMAT_MXFP4, 32) == 64 + 512 &&
              cot_panel_bytes(COT_FORMAT_MXFP4, 96) == 128 + 3 * 512,
          "panels");
    CHECK(cot_panel_bytes(COT_FORMAT_INT4, 64) == 2 * 64 + 2 * 512 && // 4.5 bits an element
              cot_panel_bytes(cot_format_with(COT_FORMAT_INT4, 128, COT_F16, true), 160) ==
                  2 * 64 + 2 * 64 + 5 * 512 &&
              cot_panel_bytes(cot_format_with(COT_FORMAT_FP8, 128, COT_F32, false), 256) ==
                  2 * 128 + 256 * 32,
          "panels");
    const cot_panel_blocks two = cot_panel_blocks_of(COT_FORMAT_MXFP4, 96),
                           zeros =
                               cot_panel_blocks_of(cot_format_with(COT_FORMAT_INT4, 128, COT_F16, true), 160),
                           column = cot_panel_blocks_of(COT_FORMAT_INT8, 100);
    CHECK(cot_scales_at(&two, 0) == 0 && cot_words_at(&two, 0) == 64 && cot_scales_at(&two, 1) == 32 &&
              cot_words_at(&two, 32) == 64 + 512 && cot_scales_at(&two, 2) == 64 + 1024 &&
              cot_words_at(&two, 64) == 64 + 1024 + 64,
          "scales of two groups, then their words");
    CHECK(cot_scales_at(&zeros, 1) == 128 + 4 * 512 &&
              cot_scales_offsets_at(&zeros, 1) == 128 + 4 * 512 + 64 &&
              cot_words_at(&zeros, 96) == 128 + 3 * 512 && cot_words_at(&zeros, 128) == 2 * 128 + 4 * 512,
          "scales and offsets of a group, then its words");
    CHECK(cot_scales_at(&column, 0) == 0 && cot_words_at(&column, 96) == 128 + 96 * 32, "one block");
    const cot_format formats[] = {COT_FORMAT_MXFP4,
                                  COT_FORMAT_INT4,
                                  COT_FORMAT_INT8,
                                  COT_FORMAT_FP8,
                                  cot_format_with(COT_FORMAT_INT4, 128, COT_F16, true),
                                  cot_format_with(COT_FORMAT_INT4, 0, COT_F32, false),
                                  cot_format_with(COT_FORMAT_INT4, 96, COT_BF16, true),
                                  cot_format_with(COT_FORMAT_INT8, 64, COT_F32, true),
                                  cot_format_with(COT_FORMAT_INT8, 32, COT_F32, false),
                                  cot_format_with(COT_FORMAT_FP8, 128, COT_F32, false)};
    FOR_EACH_TABLE(kernels)
    {
        printf("%s\n", kernels->name);
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            const cot_format format = formats[f];
            if (f >= 4 && random_between(draws, 0, 1)) continue;      // of further ones half at a time
            const int64_t unit = format == COT_FORMAT_MXFP4 ? 32 : 1; // only that has whole groups always
            if (f < 4)
                for (int t = 0; t < 2; t++) every_code(draws, kernels, format, t ? COT_BF16 : COT_F32);
            const bool whole = cot_format_multiplies(format, COT_F32, true);
            if (whole) greatest(draws, kernels, format);
            for (int way = 0; way < 4; way++) {
                const cot_dtype type = way & 1 ? COT_BF16 : COT_F32;
                const bool rounded = way & 2;
                if (rounded && !whole) continue;
                CHECK(cot_format_multiplies(format, type, rounded), "it does multiply");
                not_finite(draws, kernels, format, type, rounded);
                for (int i = 0; i < 4; i++) pairs(draws, kernels, format, type, rounded);
                for (int64_t m = random_between(draws, 1, 3); m <= 26; m += random_between(draws, 1, 4)) {
                    const int64_t k = random_between(draws, 1, 6) * 32 - random_between(draws, 0, 31) / unit;
                    all_of(draws, kernels, format, type, rounded, m, random_between(draws, 1, 100),
                           k / unit * unit + (k < unit ? unit : 0));
                }
                // Tiles of few.h that take turns, over pairs of panels and the odd one.
                const int64_t most = format == COT_FORMAT_INT8 && rounded ? 26 : 0;
                for (int64_t m = 5; m <= most; m += random_between(draws, 1, 3))
                    all_of(draws, kernels, format, type, rounded, m, random_between(draws, 33, 110),
                           random_between(draws, 250, 1300));
                all_of(draws, kernels, format, type, rounded, 1, 1, 32);
                all_of(draws, kernels, format, type, rounded, 3, 33, 2880); // longer than any range of k
                all_of(draws, kernels, format, type, rounded, 9, 33, 1312);
                all_of(draws, kernels, format, type, rounded, 99, 33, 64); // more than a block of rows
            }
        }
    }
    for (int t = 0; t < 2; t++) {
        const double error = error_of_rounding(draws, t ? COT_BF16 : COT_F32);
        CHECK(error > 0.001 && error < 0.015, "%g", error);
    }
    return 0;
}
