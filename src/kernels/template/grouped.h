/* Formats with scales, but for INT8 by rounded rows: COT_SUM_K rows of a panel, a group here, are widened once and multiplied
 * with every row of A, however many those are. So a sum is the same chain whatever the company. By few rows a group's words are
 * read once in their order and widened in registers, where the sums of all columns wait: their chains hide each other's
 * latency. For more rows a group is widened into a strip that the first cache keeps, and tiles go down it.
 *
 * The floor, 64 bytes of four bits by one row on Zen 4: VPERMW and shifts have two of the four units of 256 bits, VDPBF16PS two, one of
 * them shared: 22 halves in 7.3 cycles by bf16; by whole numbers 14 halves on all four in 3.5.
 *
 * What an instruction set brings (x86/avx512_widen.h and the like):
 *
 *   w_scales(bytes)               LANES scales of E8M0
 *   w_pairs(words, codes, pairs)  LANES words of eight elements of four bits: four vectors of pairs of bf16, k ascending
 *   w_first(pairs), w_second(pairs)   the halves of a vector of pairs, as fp32
 *   w_pair(first, second)         pairs of bf16 of two vectors of fp32 that are bf16; where V_DOT is
 *   w_bytes(words, codes, bytes)  LANES words of eight elements of four bits: their whole numbers with codes->offset added, in
 *                                 two vectors of four unsigned bytes a lane: rows 0, 4, 1, 5 and rows 2, 6, 3, 7
 *   w_dot(bytes, a, sum)          sum + the products of a group's eight such vectors with eight words of signed bytes; without I_DOT
 *   v_dot_word(word, b, sum), i_dot_word(b, word, sum)   V_DOT's and I_DOT's product by a word of memory
 *   w_byte(words, place)          byte `place` of LANES words, as signed whole numbers in fp32
 *   w_e4m3(words, place)          the same as E4M3
 *   w_e4m3_pairs(words, pairs)    words of four bytes of E4M3: two vectors of pairs of bf16; where V_DOT is
 *
 *   grouped_rows.h    A's rows, as they are laid out
 *   grouped_group.h   a panel's group: its words, scales and offsets, and where its sums go
 *   grouped_fp32.h    products by few rows of fp32, and of bf16 without V_DOT
 *   grouped_bf16.h    by few rows of bf16, in pairs
 *   grouped_whole.h   by few rows that are rounded to whole numbers; without I_DOT by any number of them
 *   grouped_tall.h    all of them by more rows
 *
 * Included by gemm.h. */
#include "kernels/template/grouped_rows.h"

#include "kernels/template/grouped_group.h"

#include "kernels/template/grouped_fp32.h"

#ifdef V_DOT
#include "kernels/template/grouped_bf16.h"
#endif

#include "kernels/template/grouped_whole.h"

#include "kernels/template/grouped_tall.h"

static panels_function *panels_of(const struct block *block)
{
    const cot_gemm *g = block->g;
    const enum elements of = elements_of(g);
    if (g->rounded) {
#ifdef I_DOT
        return block->rows > PAIR_ROWS ? strips[FOUR][of] : whole_of_rows[of][block->rows];
#else
        return of == FOUR_BITS ? whole_nibbles : whole_bytes;
#endif
    }
#ifdef V_DOT
    if (g->type == COT_BF16) return block->rows > PAIR_ROWS ? strips[PAIR][of] : dot_panels[of][block->rows];
#endif
    return block->rows > FMA_ROWS ? strips[ONE][of] : fma_panels[of][block->rows];
}

INLINE const char *panel_of(const cot_gemm *g, int64_t panel)
{
    return (const char *)g->b + cot_gemm_panel_at(g, panel);
}

/* Whether the block's product goes down two panels at once. */
static bool goes_side_by_side(const struct block *block)
{
    const cot_gemm *g = block->g;
#ifdef I_DOT
    if (g->rounded && block->rows <= PAIR_ROWS) return side_of(block->rows) > 1;
#endif
#ifdef V_DOT
    if (!g->rounded && g->type == COT_BF16 && block->rows <= PAIR_ROWS) return side_of(block->rows) > 1;
#endif
    (void)g;
    return true;
}

/* Where two panels are gone down side by side, each of the two goes on in memory where it was: panels of two matrices in turn, or those
 * of one from its beginning and from its middle on. */
struct sides {
    int count;
    int64_t apart, step; // from one to the other, and to what is read after it
};
static struct sides sides_of(const struct block *block)
{
    const int64_t panels = block->p1 - block->p0;
    if (panels < 2 || !goes_side_by_side(block)) return (struct sides){1, 0, 1};
    return block->g->b_pair_bytes ? (struct sides){2, 1, 2} : (struct sides){2, panels / 2, 1};
}

/* What is read when a panel's rows of the block are done. */
static const char *read_after(const struct panels *all, int64_t panel, const struct sides *sides)
{
    const struct block *block = all->block;
    const cot_gemm *g = block->g;
    const int64_t next = panel + sides->step, rows_after = block->k0 + block->k;
    const bool goes_on = next < block->p1, more = rows_after < g->k;
    const int64_t k = goes_on ? block->k0 : more ? rows_after : 0; // perhaps of the caller's next call
    return panel_of(g, goes_on || !more ? next : block->p0) + cot_words_at(&all->blocks, k) -
           (k % all->blocks.rows ? 0 : all->blocks.words);
}

static int64_t columns_of(const cot_gemm *g, int64_t panel)
{
    return g->n - panel * COT_PANEL < COT_PANEL ? g->n - panel * COT_PANEL : COT_PANEL;
}

/* Panels, the first one and those beside it, by the block's rows and range of k; C's part of them is copied in and out. */
static void run_panels(struct panels *all, int64_t first, const struct sides *sides)
{
    alignas(64) float sums[WIDE_PANELS * BLOCK_ROWS * COT_PANEL];
    const struct block *block = all->block;
    const cot_gemm *g = block->g;
    const int64_t last = block->k0 + (block->k - 1) / GROUP * GROUP;
    all->count = sides->count;
    for (int i = 0; i < all->count; i++) {
        const int64_t at = first + i * sides->apart, columns = columns_of(g, at);
        const float *c = g->c + block->m0 * g->c_stride + at * COT_PANEL;
        float *sums_of = sums + i * block->rows * COT_PANEL;
        all->of[i] = (struct panel){.b = panel_of(g, at),
                                    .end = panel_of(g, at) + cot_words_at(&all->blocks, last) +
                                           GROUP * all->blocks.row_bytes,
                                    .next = read_after(all, at, sides),
                                    .sums = sums_of};
        if (!block->accumulate || columns < COT_PANEL)
            memset(sums_of, 0, (size_t)(block->rows * COT_PANEL) * 4);
        for (int64_t r = 0; r < block->rows && block->accumulate; r++)
            memcpy(sums_of + r * COT_PANEL, c + r * g->c_stride, (size_t)columns * 4);
    }
    panels_of(block)(all);
    for (int i = 0; i < all->count; i++) {
        const int64_t at = first + i * sides->apart;
        for (int64_t r = 0; r < block->rows; r++)
            memcpy(g->c + (block->m0 + r) * g->c_stride + at * COT_PANEL, all->of[i].sums + r * COT_PANEL,
                   (size_t)columns_of(g, at) * 4);
    }
}

static struct panels panels_by(const struct block *block, const struct grouped_rows *rows)
{
    const cot_gemm *g = block->g;
    struct panels all = {.block = block,
                         .rows = rows,
                         .blocks = cot_panel_blocks_of(g->format, g->k),
                         .scale_type = cot_format_scale(g->format),
                         .zeros = cot_format_zeros(g->format)};
    const int64_t of_block = all.blocks.rows;
    all.scale_bytes = all.blocks.scale_bytes / COT_PANEL;
    all.shift = of_block >= g->k ? 31 : of_block & (of_block - 1) ? 0 : __builtin_ctzll((uint64_t)of_block);
    return all;
}

static void run_grouped(struct block *block, int64_t p0, int64_t p1)
{
    struct grouped_rows rows;
    const cot_gemm *g = block->g;
    rows.reach = reach_of(block);
    const int64_t range = few_range(g) * rows.reach;
    block->p0 = p0;
    block->p1 = p1 < cot_panels(g->n) ? p1 : cot_panels(g->n);
    struct panels all = panels_by(block, &rows);
    const struct sides sides = sides_of(block), alone = {1, 0, 1};
    const int64_t turns = (block->p1 - p0) / sides.count;
    for (block->k0 = 0; block->k0 == 0 || block->k0 < g->k; block->k0 += range) {
        block->k = g->k - block->k0 < range ? g->k - block->k0 : range;
        block->accumulate = g->accumulate || block->k0 > 0;
        lay_out_grouped(block, &rows);
        for (int64_t i = 0; i < turns; i++) run_panels(&all, p0 + i * sides.step, &sides);
        if (turns * sides.count < block->p1 - p0) run_panels(&all, block->p1 - 1, &alone);
    }
}
