/* The product, for one instruction set: included once by its file, after the words of its vectors (x86/avx2.h
 * and the like), and a few choices:
 *
 *   TALL(X)   X(rows, vectors) for every height up to TALL_ROWS that rows are cut into; the width divides a
 * panel SHORT(X)  heights 1 .. SHORT_ROWS over a whole panel, for when there are no more rows WIDE(X) heights
 * 1 .. WIDE_ROWS over WIDE_PANELS panels: as many chains of sums as the multiply-add's latency asks V_DOT
 * defined where v_dot(pairs of a, pairs of b, c) exists
 *
 * A tile keeps its sums in registers and goes down k; a sum is one chain of multiply-adds in order of k,
 * whatever tile it is in. Rows of A are first laid out in a small buffer, so that a tile finds them at
 * constant distances and as its multiply-add wants them: BLOCK_ROWS of them stay in the second cache while
 * BLOCK_K rows of the panels stream past.
 *
 *             k ->                    panel: 32 columns
 *        +-----------+                +-------+-------+
 *   rows | a a a ... |     x    k     | b0 b1 | b2 b3 |     =  sums[rows][vectors]
 *        +-----------+                +-------+-------+ */
#include "kernels/kernels.h"
#include "kernels/pack.h"

#include <stdalign.h>
#include <string.h>

enum {
    PANEL_VECTORS = COT_PANEL / LANES,
    BLOCK_ROWS = 96,
    BLOCK_K = 512,
    A_STRIDE = BLOCK_K + 16, // no power of two: rows would share a few sets of the first cache
    MOST_COLUMNS = WIDE_PANELS * COT_PANEL,
    MOST_SUMS = 32
};

#define INLINE static inline __attribute__((always_inline))

/* `x` of a tile's sums: the starting value, a step, and the end. */
INLINE void load_sums(vec *sums, int rows, int vectors, const float *c, int64_t c_stride, bool accumulate)
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            sums[r * vectors + v] = accumulate ? v_load(c + r * c_stride + v * LANES) : v_zero();
}

INLINE void store_sums(const vec *sums, int rows, int vectors, float *c, int64_t c_stride)
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) v_store(c + r * c_stride + v * LANES, sums[r * vectors + v]);
}

INLINE void multiply_add(vec *sums, int rows, int vectors, const float *a, const vec *b)
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        vec x = v_set(a[r * A_STRIDE]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) sums[r * vectors + v] = v_fma(x, b[v], sums[r * vectors + v]);
    }
}

/* Vector v of a row of B, `width` elements a column: beyond a panel's last vector the next panel goes on. */
INLINE int64_t b_at(int v, int width, int64_t b_panel_stride)
{
    return v / PANEL_VECTORS * b_panel_stride + v % PANEL_VECTORS * LANES * width;
}

INLINE void tile_f32(int rows, int vectors, const void *a_block, const void *b_panel, int64_t b_panel_stride,
                     int64_t k, float *c, int64_t c_stride, bool accumulate)
{
    const float *a = a_block, *b = b_panel;
    vec sums[MOST_SUMS], row[MOST_SUMS];
    load_sums(sums, rows, vectors, c, c_stride, accumulate);
    for (; k > 0; k--, a++, b += COT_PANEL) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) row[v] = v_load(b + b_at(v, 1, b_panel_stride));
        multiply_add(sums, rows, vectors, a, row);
    }
    store_sums(sums, rows, vectors, c, c_stride);
}

#ifdef V_DOT
typedef uint32_t a_bf16; // a pair as it was
enum { A_BF16_STRIDE = A_STRIDE / 2 };

INLINE void tile_bf16(int rows, int vectors, const void *a_block, const void *b_panel, int64_t b_panel_stride,
                      int64_t k, float *c, int64_t c_stride, bool accumulate)
{
    const uint32_t *a = a_block;
    const uint16_t *b = b_panel;
    vec sums[MOST_SUMS];
    pairs row[MOST_SUMS];
    load_sums(sums, rows, vectors, c, c_stride, accumulate);
    for (; k > 0; k -= 2, a++, b += 2 * COT_PANEL) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) row[v] = v_load_pair(b + b_at(v, 2, b_panel_stride));
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            pairs x = v_set_pair(a[r * A_BF16_STRIDE]);
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) sums[r * vectors + v] = v_dot(x, row[v], sums[r * vectors + v]);
        }
    }
    store_sums(sums, rows, vectors, c, c_stride);
}

static void lay_out_bf16(a_bf16 *out, const uint16_t *row, int64_t k)
{
    if (k % 2) out[k / 2] = row[k - 1]; // the pair's second is zero
    memcpy(out, row, (size_t)(k / 2) * 4);
}
#else
typedef float a_bf16;
enum { A_BF16_STRIDE = A_STRIDE };

INLINE void tile_bf16(int rows, int vectors, const void *a_block, const void *b_panel, int64_t b_panel_stride,
                      int64_t k, float *c, int64_t c_stride, bool accumulate)
{
    const float *a = a_block;
    const uint16_t *b = b_panel;
    vec sums[MOST_SUMS], row[MOST_SUMS];
    load_sums(sums, rows, vectors, c, c_stride, accumulate);
    for (; k > 1; k -= 2, a += 2, b += 2 * COT_PANEL) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) row[v] = v_first(b + b_at(v, 2, b_panel_stride));
        multiply_add(sums, rows, vectors, a, row);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) row[v] = v_second(b + b_at(v, 2, b_panel_stride));
        multiply_add(sums, rows, vectors, a + 1, row);
    }
    if (k) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) row[v] = v_first(b + b_at(v, 2, b_panel_stride));
        multiply_add(sums, rows, vectors, a, row);
    }
    store_sums(sums, rows, vectors, c, c_stride);
}

static void lay_out_bf16(a_bf16 *out, const uint16_t *row, int64_t k)
{
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) v_store(out + i, v_load_bf16(row + i));
    for (; i < k; i++) out[i] = cot_bf16_to_f32(row[i]);
}
#endif

typedef void tile_function(const void *a, const void *b, int64_t b_panel_stride, int64_t k, float *c,
                           int64_t c_stride, bool accumulate);

#define DEFINE_TILE(type, rows, vectors)                                                                     \
    static void tile_##type##_##rows##_##vectors(const void *a, const void *b, int64_t b_panel_stride,       \
                                                 int64_t k, float *c, int64_t c_stride, bool accumulate)     \
    {                                                                                                        \
        tile_##type(rows, vectors, a, b, b_panel_stride, k, c, c_stride, accumulate);                        \
    }
#define DEFINE_TILES(rows, vectors) DEFINE_TILE(f32, rows, vectors) DEFINE_TILE(bf16, rows, vectors)
#define F32_TILE(rows, vectors) [rows] = tile_f32_##rows##_##vectors,
#define BF16_TILE(rows, vectors) [rows] = tile_bf16_##rows##_##vectors,
TALL(DEFINE_TILES)
#ifdef SHORT
SHORT(DEFINE_TILES)
#else
#define SHORT TALL
#endif
WIDE(DEFINE_TILES)

static tile_function *const tall_tiles[2][TALL_ROWS + 1] = {{TALL(F32_TILE)}, {TALL(BF16_TILE)}};
static tile_function *const short_tiles[2][SHORT_ROWS + 1] = {{SHORT(F32_TILE)}, {SHORT(BF16_TILE)}};
static tile_function *const wide_tiles[2][WIDE_ROWS + 1] = {{WIDE(F32_TILE)}, {WIDE(BF16_TILE)}};

/* What the tiles of one block have in common: rows of A in the buffer, a range of k. */
struct block {
    const cot_gemm *g;
    int64_t m0, rows, k0, k; // k: how many from k0
    bool accumulate;
    const void *a;
};

/* The tile at row r of the block and `column` of C. Where C ends within the tile it works on a copy. */
static void run_tile(const struct block *block, tile_function *tile, int64_t r, int64_t rows, int64_t column,
                     int64_t columns)
{
    const cot_gemm *g = block->g;
    const bool is_f32 = g->type == COT_F32;
    const void *a = is_f32 ? (const void *)((const float *)block->a + r * A_STRIDE)
                           : (const void *)((const a_bf16 *)block->a + r * A_BF16_STRIDE);
    int64_t at = column / COT_PANEL * g->b_panel_stride + block->k0 * COT_PANEL;
    const void *b = is_f32 ? (const void *)((const float *)g->b + at + column % COT_PANEL)
                           : (const void *)((const uint16_t *)g->b + at + column % COT_PANEL * 2);
    float *c = g->c + (block->m0 + r) * g->c_stride + column, copy[TALL_ROWS * MOST_COLUMNS];
    int64_t here = g->n - column < columns ? g->n - column : columns;
    if (here == columns) {
        tile(a, b, g->b_panel_stride, block->k, c, g->c_stride, block->accumulate);
        return;
    }
    if (block->accumulate)
        for (int64_t i = 0; i < rows; i++) {
            memset(copy + i * columns, 0, (size_t)columns * 4);
            memcpy(copy + i * columns, c + i * g->c_stride, (size_t)here * 4);
        }
    tile(a, b, g->b_panel_stride, block->k, copy, columns, block->accumulate);
    for (int64_t i = 0; i < rows; i++) memcpy(c + i * g->c_stride, copy + i * columns, (size_t)here * 4);
}

/* Rows 0 .. block->rows by one panel's columns: as few tiles as can be, as equal as can be. */
static void run_tall(const struct block *block, int64_t panel)
{
    int64_t tiles = (block->rows + TALL_ROWS - 1) / TALL_ROWS;
    int64_t end = (panel + 1) * COT_PANEL < block->g->n ? (panel + 1) * COT_PANEL : block->g->n;
    for (int64_t column = panel * COT_PANEL; column < end; column += TALL_VECTORS * LANES)
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = block->rows * t / tiles, rows = block->rows * (t + 1) / tiles - r;
            run_tile(block, tall_tiles[block->g->type != COT_F32][rows], r, rows, column,
                     TALL_VECTORS * LANES);
        }
}

static void run_block(const struct block *block, int64_t p0, int64_t p1)
{
    const int type = block->g->type != COT_F32;
    for (int64_t p = p0; p < p1;) {
        if (block->rows <= WIDE_ROWS && p + WIDE_PANELS <= p1) {
            run_tile(block, wide_tiles[type][block->rows], 0, block->rows, p * COT_PANEL, MOST_COLUMNS);
            p += WIDE_PANELS;
        } else if (block->rows <= SHORT_ROWS) {
            run_tile(block, short_tiles[type][block->rows], 0, block->rows, p * COT_PANEL, COT_PANEL);
            p++;
        } else {
            run_tall(block, p);
            p++;
        }
    }
}

static void lay_out_rows(void *out, const struct block *block)
{
    const cot_gemm *g = block->g;
    for (int64_t r = 0; r < block->rows; r++) {
        int64_t row = g->a_rows ? g->a_rows[block->m0 + r] : block->m0 + r,
                at = row * g->a_stride + block->k0;
        if (g->type == COT_F32)
            memcpy((float *)out + r * A_STRIDE, (const float *)g->a + at, (size_t)block->k * 4);
        else
            lay_out_bf16((a_bf16 *)out + r * A_BF16_STRIDE, (const uint16_t *)g->a + at, block->k);
    }
}

static void gemm(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    alignas(64) float a[BLOCK_ROWS * A_STRIDE];
    struct block block = {.g = g, .a = a};
    for (block.m0 = m0; block.m0 < m1; block.m0 += BLOCK_ROWS) {
        block.rows = m1 - block.m0 < BLOCK_ROWS ? m1 - block.m0 : BLOCK_ROWS;
        block.k0 = 0;
        do { // also where k is zero: C is set
            block.k = g->k - block.k0 < BLOCK_K ? g->k - block.k0 : BLOCK_K;
            block.accumulate = g->accumulate || block.k0 > 0;
            lay_out_rows(a, &block);
            run_block(&block, p0, p1);
            block.k0 += BLOCK_K;
        } while (block.k0 < g->k);
    }
}
