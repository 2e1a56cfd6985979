/* The product, for one instruction set: included once by its file, after the words of its vectors (x86/avx2.h
 * and the like), and a few choices:
 *
 *   FEW_ROWS, FEW_ROWS_I8
 *             rows of floats or bf16, and of whole numbers, that few.h multiplies: all, or up to where it takes longer
 *             to take words of B apart for every tile than to make a strip of them once (tall.h). Words that V_DOT and
 *             I_DOT multiply are not taken apart: all rows are few.
 *   TALL(X)   X(rows, vectors) for every height up to TALL_ROWS that many rows are cut into; the width divides a
 *             panel
 *   SHORT(X)  heights 1 .. SHORT_ROWS for few rows; the width divides a panel
 *   WIDE(X)   heights 1 .. WIDE_ROWS over WIDE_PANELS panels: as many chains of sums as the multiply-add's
 *             latency asks, and fewer words of A for each of B
 *   WIDE_TURNS, WIDE_TURNS_I8
 *             how many such tiles of floats or bf16, and of whole numbers, take turns over WIDE_PANELS panels before
 *             more rows go down one panel at a time
 *   V_DOT     defined where v_dot(pairs of a, pairs of b, c) exists
 *   I_DOT     defined where i_dot(fours of unsigned bytes, fours of signed bytes, c) exists
 *
 * A tile keeps its sums in registers and goes down k; a sum is one chain of multiply-adds in order of k,
 * whatever tile it is in. Rows of A are first laid out in a small buffer, so that a tile finds them at constant
 * distances and as its multiply-add wants them.
 *
 *             k ->                    panel: 32 columns
 *        +-----------+                +-------+-------+
 *   rows | a a a ... |     x    k     | b0 b1 | b2 b3 |     =  sums[rows][vectors]
 *        +-----------+                +-------+-------+ */
#include "kernels/template/tile.h"

#include "kernels/blocks.h"
#include "kernels/extents.h"
#include "kernels/template/quantise.h"

/* Rows of A in the buffer, a range of k. */
struct block {
    const cot_gemm *g;
    int64_t m0, rows, k0, k; // rows of A from m0 on, and of each k elements from k0 on
    int64_t p0, p1;          // the panels that the caller asked for; of few rows alone
    bool accumulate;
    float *a;
    float *scales; // of whole numbers: [rows][SCALES], one for each COT_QUANT_K elements from k0 on
};

/* Bytes of k rows of a column in a panel. */
INLINE int64_t word_bytes(const cot_gemm *g, int64_t k)
{
    return k * cot_format_row_of(g->format)->bits / 8;
}

/* Whether so many rows, at most BLOCK_ROWS, are few (few.h) or many (tall.h). */
INLINE bool are_few(const cot_gemm *g, int64_t rows)
{
    const int64_t most = g->format == COT_FORMAT_INT8 ? FEW_ROWS_I8 : FEW_ROWS;
    return most == BLOCK_ROWS || rows <= most;
}

/* Words of the buffer that k elements of a row take. */
INLINE int64_t words_of(const cot_gemm *g, int64_t k)
{
    if (g->rounded) return (k + 3) / 4 * FOUR_WORDS;
#ifdef V_DOT
    if (g->type == COT_BF16) return (k + 1) / 2;
#endif
    (void)g;
    return k;
}

static void lay_out_bf16(float *out, const uint16_t *row, int64_t k)
{
#ifdef V_DOT // the pairs as they are, the last one's second zero
    memset(out + k / 2, 0, 4);
    memcpy(out, row, (size_t)k * 2);
#else
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) v_store(out + i, v_load_bf16(row + i));
    for (; i < k; i++) out[i] = cot_bf16_to_f32(row[i]);
#endif
}

static void lay_out_rows(const struct block *block, int64_t stride)
{
    const cot_gemm *g = block->g;
    for (int64_t r = 0; r < block->rows; r++) {
        int64_t row = g->a_rows ? g->a_rows[block->m0 + r] : block->m0 + r,
                at = row * g->a_stride + block->k0;
        if (g->rounded)
            quantise_row(block->a + r * stride, block->scales + r * SCALES, g->a, g->type, at, block->k);
        else if (g->type == COT_F32)
            memcpy(block->a + r * stride, (const float *)g->a + at, (size_t)block->k * 4);
        else
            lay_out_bf16(block->a + r * stride, (const uint16_t *)g->a + at, block->k);
    }
}

/* Bytes of B from a panel to the next (pairs of panels begin at an even one). */
INLINE int64_t panel_step(const cot_gemm *g)
{
    return g->b_pair_bytes ? g->b_pair_bytes : g->b_panel_bytes;
}

/* Of a panel, before its words. */
INLINE int64_t scales_bytes(const cot_gemm *g)
{
    return g->format == COT_FORMAT_INT8 ? COT_WORDS_BYTES : 0;
}

/* B from a column on, and from a row of which a step of the tiles begins. */
INLINE const char *strip_at(const cot_gemm *g, int64_t column, int64_t k)
{
    return (const char *)g->b + cot_gemm_panel_at(g, column / COT_PANEL) + scales_bytes(g) +
           word_bytes(g, k) * COT_PANEL + column % COT_PANEL * 4;
}

/* The scales of B's columns from `column` on. Where it has none the pointer means nothing and is never read. */
INLINE const float *column_scales(const cot_gemm *g, int64_t column)
{
    return (const float *)(const void *)(strip_at(g, column, 0) - scales_bytes(g));
}

#include "kernels/template/few.h"
#include "kernels/template/tall.h"

#include "kernels/template/grouped.h"

static void run_words(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    alignas(64) float a[BLOCK_ROWS * FEW_STRIDE]; // tall.h uses less of it
    _Static_assert((int)A_STRIDE <= (int)FEW_STRIDE, "the buffer holds either layout");
    _Static_assert((int)BLOCK_K == (int)COT_QUANT_K &&
                       (int)SCALES * (int)COT_QUANT_K / 4 * (int)FOUR_WORDS <= (int)FEW_WORDS,
                   "whole blocks, and the buffer holds them");
    float scales[BLOCK_ROWS * SCALES];
    struct block block = {.g = g, .a = a, .scales = scales};
    for (block.m0 = m0; block.m0 < m1; block.m0 += BLOCK_ROWS) {
        block.rows = m1 - block.m0 < BLOCK_ROWS ? m1 - block.m0 : BLOCK_ROWS;
        if (cot_format_groups(g->format, g->k) && !(g->rounded && g->format == COT_FORMAT_INT8))
            run_grouped(&block, p0, p1);
        else if (are_few(g, block.rows))
            run_few(&block, p0, p1);
        else
            run_tall(&block, p0, p1);
    }
}

#include "kernels/template/strips.h"

static void gemm(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
#ifdef COT_LOOKS_AT_EXTENTS
    cot_gemm_look(g, m0, m1, p0, p1);
#endif
    if (cot_format_blocks(g->format))
        run_strips(g, m0, m1, p0, p1);
    else
        run_words(g, m0, m1, p0, p1);
}
