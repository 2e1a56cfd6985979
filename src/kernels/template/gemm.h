/* The product, for one instruction set: included once by its file, after the words of its vectors (x86/avx2.h
 * and the like), and a few choices:
 *
 *   TALL(X)   X(rows, vectors) for every height up to TALL_ROWS that rows are cut into; the width divides a
 *             panel
 *   SHORT(X)  heights 1 .. SHORT_ROWS over a whole panel, for when there are no more rows
 *   WIDE(X)   heights 1 .. WIDE_ROWS over WIDE_PANELS panels: as many chains of sums as the multiply-add's
 *             latency asks
 *   V_DOT     defined where v_dot(pairs of a, pairs of b, c) exists
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
    NEAR_BYTES = 768,
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

/* How a row of B, or a pair of rows, lies in memory, and which of them is meant. */
enum form { F32_ROW, BF16_FIRST, BF16_SECOND, BF16_PAIR };

/* Vector v of a row of B: beyond a panel's last vector the next panel goes on. */
INLINE vec load_b(enum form form, const void *b, int v, int64_t b_panel_stride)
{
    int64_t at = v / PANEL_VECTORS * b_panel_stride, column = v % PANEL_VECTORS * LANES;
    if (form == F32_ROW) return v_load((const float *)b + at + column);
    const uint16_t *pairs = (const uint16_t *)b + at + 2 * column;
    return form == BF16_FIRST    ? v_first(pairs)
           : form == BF16_SECOND ? v_second(pairs)
                                 : v_load((const void *)pairs);
}

INLINE vec multiply(enum form form, vec a, vec b, vec sum)
{
#ifdef V_DOT
    if (form == BF16_PAIR) return v_dot(a, b, sum);
#endif
    (void)form;
    return v_fma(a, b, sum);
}

/* sums += a's column times b's row. The fewer of the two operands wait in registers. */
INLINE void multiply_add(vec *sums, int rows, int vectors, const float *a, enum form form, const void *b,
                         int64_t b_panel_stride)
{
    vec waiting[MOST_SUMS];
    if (rows < vectors) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) waiting[r] = v_set(a[r * A_STRIDE]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            vec y = load_b(form, b, v, b_panel_stride);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                sums[r * vectors + v] = multiply(form, waiting[r], y, sums[r * vectors + v]);
        }
    } else {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) waiting[v] = load_b(form, b, v, b_panel_stride);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vec x = v_set(a[r * A_STRIDE]);
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] = multiply(form, x, waiting[v], sums[r * vectors + v]);
        }
    }
}

/* What a tile is given. While it goes down its rows of B it asks for those `ahead` bytes further on. With many
 * rows that is what comes next: the tiles that come then find it in the second cache while these multiply. With
 * few, reading is all the work, and a short way ahead in the same panels reads fastest (Zen 3, two threads: 36
 * GB/s against 31). */
struct tile {
    const float *a;
    const void *b;
    int64_t b_panel_stride, ahead, k;
    float *c;
    int64_t c_stride;
    bool accumulate;
};

/* The lines of one step: 32 columns of 4 bytes a panel in either type. */
INLINE void fetch(const struct tile *t, int vectors, const void *b, int64_t panel_bytes)
{
    const char *next = (const char *)b + t->ahead;
#pragma GCC unroll 16
    for (int byte = 0; byte < vectors * LANES * 4; byte += 64)
        __builtin_prefetch(next + byte / (COT_PANEL * 4) * panel_bytes + byte % (COT_PANEL * 4), 0, 2);
}

INLINE void tile_f32(int rows, int vectors, const struct tile *t)
{
    const float *a = t->a, *b = t->b;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, vectors, t->c, t->c_stride, t->accumulate);
    for (int64_t k = t->k; k > 0; k--, a++, b += COT_PANEL) {
        fetch(t, vectors, b, t->b_panel_stride * 4);
        multiply_add(sums, rows, vectors, a, F32_ROW, b, t->b_panel_stride);
    }
    store_sums(sums, rows, vectors, t->c, t->c_stride);
}

INLINE void tile_bf16(int rows, int vectors, const struct tile *t)
{
    const float *a = t->a;
    const uint16_t *b = t->b;
    int64_t k = t->k;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, vectors, t->c, t->c_stride, t->accumulate);
#ifdef V_DOT
    for (; k > 0; k -= 2, a++, b += 2 * COT_PANEL) {
        fetch(t, vectors, b, t->b_panel_stride * 2);
        multiply_add(sums, rows, vectors, a, BF16_PAIR, b, t->b_panel_stride);
    }
#else
    for (; k > 1; k -= 2, a += 2, b += 2 * COT_PANEL) {
        fetch(t, vectors, b, t->b_panel_stride * 2);
        multiply_add(sums, rows, vectors, a, BF16_FIRST, b, t->b_panel_stride);
        multiply_add(sums, rows, vectors, a + 1, BF16_SECOND, b, t->b_panel_stride);
    }
    if (k) multiply_add(sums, rows, vectors, a, BF16_FIRST, b, t->b_panel_stride);
#endif
    store_sums(sums, rows, vectors, t->c, t->c_stride);
}

typedef void tile_function(const struct tile *t);

#define DEFINE_TILE(type, rows, vectors)                                                                     \
    static void tile_##type##_##rows##_##vectors(const struct tile *t)                                       \
    {                                                                                                        \
        tile_##type(rows, vectors, t);                                                                       \
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
    const float *a;
};

/* The tile of rows r .. r+rows-1 of the block and `columns` from `column` of C. Where C ends within it, it
 * works on a copy. `ahead`: elements of B to what comes after these columns. */
static void run_tile(const struct block *block, tile_function *run, int64_t r, int64_t rows, int64_t column,
                     int64_t columns, int64_t ahead)
{
    const cot_gemm *g = block->g;
    const int64_t bytes = g->type == COT_F32 ? 4 : 2,
                  width = 4 / bytes; // elements of a column of B side by side
    int64_t at = column / COT_PANEL * g->b_panel_stride + block->k0 * COT_PANEL + column % COT_PANEL * width;
    struct tile tile = {.a = block->a + r * A_STRIDE,
                        .b = (const char *)g->b + at * bytes,
                        .b_panel_stride = g->b_panel_stride,
                        .ahead = ahead * bytes,
                        .k = block->k,
                        .c = g->c + (block->m0 + r) * g->c_stride + column,
                        .c_stride = g->c_stride,
                        .accumulate = block->accumulate};
    if (g->n - column >= columns) {
        run(&tile);
        return;
    }
    float copy[TALL_ROWS * MOST_COLUMNS], *c = tile.c;
    size_t here = (size_t)(g->n - column) * 4;
    if (block->accumulate)
        for (int64_t i = 0; i < rows; i++) {
            memset(copy + i * columns, 0, (size_t)columns * 4);
            memcpy(copy + i * columns, c + i * g->c_stride, here);
        }
    tile.c = copy;
    tile.c_stride = columns;
    run(&tile);
    for (int64_t i = 0; i < rows; i++) memcpy(c + i * g->c_stride, copy + i * columns, here);
}

/* All rows of the block by one panel, in tiles of at most `height` rows by `vectors` vectors: as few as can
 * be, as equal as can be. The first to come by fetches what comes next. */
static void run_panel(const struct block *block, tile_function *const *tiles, int64_t height, int64_t vectors,
                      int64_t panel, int64_t ahead)
{
    int64_t cuts = (block->rows + height - 1) / height;
    int64_t end = (panel + 1) * COT_PANEL < block->g->n ? (panel + 1) * COT_PANEL : block->g->n;
    for (int64_t column = panel * COT_PANEL; column < end; column += vectors * LANES)
        for (int64_t t = 0; t < cuts; t++) {
            int64_t r = block->rows * t / cuts, rows = block->rows * (t + 1) / cuts - r;
            run_tile(block, tiles[rows], r, rows, column, vectors * LANES, t ? 0 : ahead);
        }
}

static void run_block(const struct block *block, int64_t p0, int64_t p1)
{
    const int type = block->g->type != COT_F32;
    const int64_t rows = block->rows, stride = block->g->b_panel_stride, near = NEAR_BYTES / (type ? 2 : 4);
    /* From the last panel it goes on with the first panel's next rows of B, or nowhere. */
    const int64_t turn = block->k0 + block->k < block->g->k ? block->k * COT_PANEL : 0;
    for (int64_t p = p0, step; p < p1; p += step) {
        step = rows <= WIDE_ROWS && p + WIDE_PANELS <= p1 ? WIDE_PANELS : 1;
        int64_t ahead = p + 2 * step <= p1 ? step * stride : turn ? turn - (p - p0) * stride : 0;
        if (step == WIDE_PANELS)
            run_tile(block, wide_tiles[type][rows], 0, rows, p * COT_PANEL, MOST_COLUMNS, near);
        else if (rows <= FEW_ROWS)
            run_panel(block, short_tiles[type], SHORT_ROWS, PANEL_VECTORS, p, near);
        else
            run_panel(block, tall_tiles[type], TALL_ROWS, TALL_VECTORS, p, ahead);
    }
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

static void lay_out_rows(float *out, const struct block *block)
{
    const cot_gemm *g = block->g;
    for (int64_t r = 0; r < block->rows; r++) {
        int64_t row = g->a_rows ? g->a_rows[block->m0 + r] : block->m0 + r,
                at = row * g->a_stride + block->k0;
        if (g->type == COT_F32)
            memcpy(out + r * A_STRIDE, (const float *)g->a + at, (size_t)block->k * 4);
        else
            lay_out_bf16(out + r * A_STRIDE, (const uint16_t *)g->a + at, block->k);
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
