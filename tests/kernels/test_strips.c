/* Products by blocks as files have them: against sums in double of the numbers that a row of blocks stands for, the oracle's bits, rows
 * alone and in pieces; matrices that begin inside a block, tails, and pairs. */
#include "harness/kernels/check.h"

#include "kernels/blocks.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    cot_gemm g;
    cot_tensor_blocks kind;
    guarded a, b, c;
    float *numbers; // [n][k]
} problem;

/* Blocks whose numbers are all finite and not large. */
static void draw_blocks(check_draws *draws, uint8_t *to, cot_tensor_blocks kind, int64_t count)
{
    static const int halves[COT_BLOCKS_COUNT][2] = {
        [COT_BLOCKS_Q4_1] = {0, 2}, [COT_BLOCKS_Q5_1] = {0, 2}, [COT_BLOCKS_Q2_K] = {80, 82},
        [COT_BLOCKS_Q4_K] = {0, 2}, [COT_BLOCKS_Q5_K] = {0, 2}, [COT_BLOCKS_Q6_K] = {208, 208}};
    const int bytes = cot_tensor_block_bytes(kind);
    for (int64_t i = 0; i < count; i++, to += bytes) {
        for (int b = 0; b < bytes; b++) to[b] = (uint8_t)random_between(draws, 0, 255);
        if (kind == COT_BLOCKS_NVFP4) // E4M3, but for NaN, either sign
            for (int g = 0; g < 4; g++)
                while ((to[g] & 0x7f) == 0x7f) to[g] = (uint8_t)random_between(draws, 0, 255);
        for (int h = 0; h < 2 && kind != COT_BLOCKS_NVFP4; h++) { // of about 2^-8, either sign
            uint8_t *high = to + halves[kind][h] + 1;
            *high = (uint8_t)((*high & 0x83) | 0x1c);
        }
    }
}

static problem make(check_draws *draws, cot_format kind, cot_dtype type, int64_t m, int64_t n, int64_t k)
{
    problem p = {.kind = cot_format_blocks(kind)};
    const int64_t elements = cot_tensor_block_elements(p.kind), bytes = cot_tensor_block_bytes(p.kind),
                  skipped = random_between(draws, 0, 1) ? 0 : random_between(draws, 0, elements - 1);
    const cot_format format = cot_format_skip(kind, skipped);
    const int64_t blocks = cot_format_block_count(format, k), panel = cot_panel_bytes(format, k);
    uint8_t *rows = malloc((size_t)(n * blocks * bytes));
    float *all = malloc((size_t)(blocks * elements) * sizeof *all);
    p.numbers = malloc((size_t)(n * k) * sizeof *p.numbers);
    float *scales = malloc((size_t)n * sizeof *scales); // of columns, which NVFP4 has
    draw_blocks(draws, rows, p.kind, n * blocks);
    for (int64_t i = 0; i < n; i++) {
        scales[i] = (float)random_between(draws, 1, 1000) / 77777;
        cot_blocks_decode(all, rows + i * blocks * bytes, p.kind, blocks * elements);
        for (int64_t j = 0; j < k; j++)
            p.numbers[i * k + j] = all[skipped + j] * (p.kind == COT_BLOCKS_NVFP4 ? scales[i] : 1);
    }
    p.b = guard(cot_panels(n) * panel);
    const int64_t half = random_between(draws, 0, n); // in two goes, as blocks of rows come
    for (int64_t n0 = 0, count = half; n0 < n; n0 += count, count = n - n0)
        cot_pack_stored(p.b.data, format, k, n, n0, count,
                        &(cot_pack_source){.data = rows + n0 * blocks * bytes,
                                           .stride = blocks * bytes,
                                           .scales = (const uint8_t *)(scales + n0),
                                           .scale_stride = sizeof *scales});
    free(rows), free(all), free(scales);
    p.a = guarded_random(draws, m * k, type, 1);
    p.c = guard(((m - 1) * (n + 3) + n) * 4);
    p.g = (cot_gemm){.type = type,
                     .format = format,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = p.a.data,
                     .a_stride = k,
                     .b = p.b.data,
                     .b_panel_bytes = panel,
                     .c = p.c.data,
                     .c_stride = n + 3};
    return p;
}

static void drop(problem *p)
{
    unguard(p->a), unguard(p->b), unguard(p->c);
    free(p->numbers);
}

static void against_double(const cot_kernels *kernels, problem *p, bool accumulate)
{
    cot_gemm *g = &p->g;
    g->accumulate = accumulate;
    for (int64_t m = 0; m < g->m && accumulate; m++)
        for (int64_t n = 0; n < g->n; n++) g->c[m * g->c_stride + n] = 3;
    kernels->gemm(g, 0, g->m, 0, cot_panels(g->n));
    for (int64_t m = 0; m < g->m; m++) {
        for (int64_t n = 0; n < g->n; n++) {
            double sum = accumulate ? 3 : 0, size = sum + 1e-30;
            for (int64_t k = 0; k < g->k; k++) {
                const double term =
                    (double)get_element(g->a, g->type, m * g->k + k) * (double)p->numbers[n * g->k + k];
                sum += term;
                size += fabs(term);
            }
            const float found = g->c[m * g->c_stride + n];
            CHECK(error_of(found, sum, size) < 1e-7 * (4 + sqrt((double)g->k)),
                  "%s %s %s m %lld n %lld k %lld at %lld,%lld: %g expected %g", kernels->name,
                  cot_format_row_of(g->format)->name, cot_dtype_name(g->type), (long long)g->m,
                  (long long)g->n, (long long)g->k, (long long)m, (long long)n, (double)found, sum);
        }
        for (int64_t n = g->n; n < g->c_stride && m + 1 < g->m; n++)
            CHECK(is_poison(g->c[m * g->c_stride + n]), "%s wrote column %lld of %lld", kernels->name,
                  (long long)n, (long long)g->n);
    }
}

/* Another table, and any cut into pieces, gives the same bits. */
static void same_bits(const cot_kernels *kernels, const problem *p, int64_t rows, int64_t panels)
{
    cot_gemm g = p->g;
    g.c = malloc((size_t)(g.m * g.c_stride) * sizeof *g.c);
    for (int64_t i = 0; i < g.m * g.c_stride && g.accumulate; i++) g.c[i] = 3;
    for (int64_t m = 0; m < g.m; m += rows)
        for (int64_t q = 0; q < cot_panels(g.n); q += panels)
            kernels->gemm(&g, m, m + rows < g.m ? m + rows : g.m, q,
                          q + panels < cot_panels(g.n) ? q + panels : cot_panels(g.n));
    for (int64_t m = 0; m < g.m; m++)
        CHECK(!memcmp(g.c + m * g.c_stride, p->g.c + m * g.c_stride, (size_t)g.n * 4),
              "%s %s %s row %lld of %lld, n %lld, k %lld", kernels->name, cot_format_row_of(g.format)->name,
              cot_dtype_name(g.type), (long long)m, (long long)g.m, (long long)g.n, (long long)g.k);
    free(g.c);
}

/* Rows by a list, and two matrices in turn. */
static void gathered_pairs(check_draws *draws, const cot_kernels *kernels, cot_format kind, cot_dtype type)
{
    enum { M = 7, PANELS = 2 };
    problem p = make(draws, kind, type, M, 2 * PANELS * COT_PANEL, random_between(draws, 1, 300));
    int32_t rows[M];
    float in_turn[M * 2 * PANELS * COT_PANEL];
    for (int i = 0; i < M; i++) rows[i] = (int32_t)random_between(draws, 0, M - 1);
    kernels->gemm(&p.g, 0, M, 0, 2 * PANELS);
    cot_gemm g = p.g;
    g.c = in_turn;
    g.c_stride = g.n;
    g.a_rows = rows;
    g.b_pair_bytes = PANELS * g.b_panel_bytes;
    kernels->gemm(&g, 0, M, 0, 2 * PANELS);
    for (int i = 0; i < M; i++)
        for (int q = 0; q < 2 * PANELS; q++)
            CHECK(!memcmp(in_turn + i * g.n + q * COT_PANEL,
                          p.g.c + rows[i] * p.g.c_stride + (q / 2 + q % 2 * PANELS) * COT_PANEL,
                          COT_PANEL * 4),
                  "%s %s row %d panel %d", kernels->name, cot_format_row_of(kind)->name, i, q);
    drop(&p);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    FOR_EACH_TABLE(kernels)
    for (int f = 0; f < COT_FORMATS; f++)
        for (int t = 0; t < 2 && cot_formats[f].blocks; t++) {
            const cot_format kind = (cot_format)f;
            const cot_dtype type = t ? COT_BF16 : COT_F32;
            for (int i = 0; i < 6; i++) {
                const int64_t m = i == 5 ? 101 : random_between(draws, 1, 40);
                problem p = make(draws, kind, type, m, random_between(draws, 1, 70),
                                 i ? random_between(draws, 1, 700) : 1);
                against_double(kernels, &p, i & 1);
                same_bits(&cot_isa_ref.kernels, &p, m, cot_panels(p.g.n));
                same_bits(kernels, &p, 1, 1);
                same_bits(kernels, &p, random_between(draws, 1, m), random_between(draws, 1, 3));
                drop(&p);
            }
            gathered_pairs(draws, kernels, kind, type);
        }
    return 0;
}
