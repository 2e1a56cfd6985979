/* Tiles: sums in registers that go down k. Included by gemm.h. */
#include "kernels/kernels.h"

#include <math.h>
#include <stdalign.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { PANEL_VECTORS = COT_PANEL / LANES, TALL_COLUMNS = TALL_VECTORS * LANES, MOST_SUMS = 32, LINE = 64 };

/* Sizes for products of many rows (tall.h). */
enum {
    BLOCK_ROWS = 96,        // rows of A in the buffer at a time
    BLOCK_K = 256,          // and how many of their elements
    A_STRIDE = BLOCK_K + 16 // no power of two: rows would share a few sets of the first cache
};

/* Sizes for products of few rows (few.h). */
enum {
    WIDE_PANELS = 2, // side by side, also where they are of two matrices
    FEW_WORDS = 512, // words of a row of A in the buffer at a time
    FEW_STRIDE = FEW_WORDS + 16,
    SCALES = 4,                         // of a row of A in the buffer, one for each COT_QUANT_K elements
    GROUPS = SCALES * COT_QUANT_K / 32, // of such a row, of grouped.h's
    NEAR_BYTES = 4096, // of B in a chunk, and how far ahead it is asked for: memory's latency at 8 rows' pace
    TURNS_BYTES =
        16384, // the same where several tiles take turns over a chunk, which the first cache keeps for them
    FAR_BYTES =
        1 << 17, // of B, at least, that comes from memory: a model of smaller products stays in caches
    STEP_BYTES = COT_PANEL * 4 // of a panel: a row of floats, a pair of bf16
};

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
INLINE vec load_b(enum form form, const void *b, int v, int64_t b_panel_bytes)
{
    const char *panel = (const char *)b + v / PANEL_VECTORS * b_panel_bytes;
    const int column = v % PANEL_VECTORS * LANES;
    if (form == F32_ROW) return v_load((const float *)(const void *)panel + column);
    const uint16_t *pairs = (const uint16_t *)(const void *)panel + 2 * column;
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
INLINE void multiply_add(vec *sums, int rows, int vectors, const float *a, int64_t a_stride, enum form form,
                         const void *b, int64_t b_panel_bytes)
{
    vec waiting[MOST_SUMS];
    if (rows < vectors) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) waiting[r] = v_set(a[r * a_stride]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            vec y = load_b(form, b, v, b_panel_bytes);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                sums[r * vectors + v] = multiply(form, waiting[r], y, sums[r * vectors + v]);
        }
    } else {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) waiting[v] = load_b(form, b, v, b_panel_bytes);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vec x = v_set(a[r * a_stride]);
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] = multiply(form, x, waiting[v], sums[r * vectors + v]);
        }
    }
}

/* What a tile is given: rows of A laid out, B from its first row and column on, k rows of it. */
struct tile {
    const float *a;
    const void *b;
    int64_t b_panel_bytes, k;
    const char *next; // to be fetched meanwhile, `next_step` bytes further on at each step
    int64_t next_step;
    float *c;
    int64_t c_stride;
    bool accumulate;
    /* of whole numbers: */
    const float *row_scales, *column_scales; // the rows' are SCALES apart, the columns' in each panel
    int32_t *offsets;                        // of few rows: 128 times the sums of B's columns; where I_DOT is
};
typedef void tile_function(const struct tile *t);

/* The cache that what is asked for comes to. */
enum cache { FIRST_CACHE, SECOND_CACHE };

/* Asks memory for a tile's share, in one step, of what is read next: both cache lines of a panel where the tile is as wide
 * as a panel or wider, else one. */
INLINE void fetch(enum cache cache, int vectors, const char *next, int64_t panel_bytes)
{
#pragma GCC unroll 16
    for (int byte = 0; byte < vectors * LANES * 4; byte += LINE) {
        const char *line = next + byte / STEP_BYTES * panel_bytes + byte % STEP_BYTES;
        if (cache == FIRST_CACHE)
            __builtin_prefetch(line, 0, 3);
        else
            __builtin_prefetch(line, 0, 2);
    }
}

/* A tile of rows by `width` columns of which C has `columns`: where that is fewer it works on a copy. */
static void run_tile(tile_function *run, const struct tile *t, int64_t rows, int64_t width, int64_t columns)
{
    float copy[MOST_SUMS * LANES];
    if (columns >= width) {
        run(t);
        return;
    }
    size_t here = (size_t)columns * 4;
    if (t->accumulate)
        for (int64_t i = 0; i < rows; i++) {
            memset(copy + i * width, 0, (size_t)width * 4);
            memcpy(copy + i * width, t->c + i * t->c_stride, here);
        }
    struct tile whole = *t;
    whole.c = copy;
    whole.c_stride = width;
    run(&whole);
    for (int64_t i = 0; i < rows; i++) memcpy(t->c + i * t->c_stride, copy + i * width, here);
}
