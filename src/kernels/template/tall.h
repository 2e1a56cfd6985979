/* Many rows: multiplying is most of the work. A strip of B, BLOCK_K rows by a tile's width, is made dense and fp32
 * (or pairs of int16): it waits in the first cache while tiles go over the rows of A in the
 * second. What comes next, of B and of A, is fetched meanwhile, a little by each tile. Included by gemm.h.
 *
 * The floor, AVX2 on Zen 3: a step of 6 x 2 sums is 12 multiply-adds and 8 loads, 20 operations in 6 cycles. Alone, a
 * core takes 6 of them a cycle; beside a busy sibling thread 3.2, as measured here, so that nothing else has room in
 * the loop: no conversion, no fetching, and counting once in 8 steps. */
INLINE void tall(int rows, const struct tile *t)
{
    const float *a = t->a, *b = t->b;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, TALL_VECTORS, t->c, t->c_stride, t->accumulate);
#pragma GCC unroll 8
    for (int64_t k = t->k; k > 0; k--, a++, b += TALL_COLUMNS)
        multiply_add(sums, rows, TALL_VECTORS, a, A_STRIDE, F32_ROW, b, 0);
    store_sums(sums, rows, TALL_VECTORS, t->c, t->c_stride);
}

#define DEFINE_TALL(rows, vectors)                                                                           \
    static void tall_f32_##rows(const struct tile *t)                                                        \
    {                                                                                                        \
        tall(rows, t);                                                                                       \
    }
#define TALL_F32(rows, vectors) [rows] = tall_f32_##rows,
TALL(DEFINE_TALL)
static tile_function *const tall_tiles[TALL_ROWS + 1] = {TALL(TALL_F32)};

#ifndef I_DOT
#define DEFINE_TALL_I8(rows, vectors)                                                                        \
    static void tall_i8_##rows(const struct tile *t)                                                         \
    {                                                                                                        \
        tall_i8(rows, t);                                                                                    \
    }
#define TALL_I8(rows, vectors) [rows] = tall_i8_##rows,
TALL(DEFINE_TALL_I8)
static tile_function *const tall_i8_tiles[TALL_ROWS + 1] = {TALL(TALL_I8)};
#endif

/* The strip that begins at `b`, dense. */
static const void *make_strip(float *strip, const cot_gemm *g, const void *b, int64_t k)
{
#ifndef I_DOT
    if (g->format == COT_FORMAT_INT8) return make_i8_strip(strip, b, k);
#endif
    if (g->type == COT_F32) {
        const float *row = b;
        for (int64_t i = 0; i < k; i++, row += COT_PANEL)
            for (int v = 0; v < TALL_VECTORS; v++)
                v_store(strip + i * TALL_COLUMNS + v * LANES, v_load(row + v * LANES));
        return strip;
    }
    const uint16_t *pair = b;
    for (int64_t i = 0; i < k; i += 2, pair += 2 * COT_PANEL)
        for (int v = 0; v < TALL_VECTORS; v++) { // of an odd k the second row is padding
            v_store(strip + i * TALL_COLUMNS + v * LANES, v_first(pair + 2 * v * LANES));
            v_store(strip + (i + 1) * TALL_COLUMNS + v * LANES, v_second(pair + 2 * v * LANES));
        }
    return strip;
}

/* Lines that will be needed: `rows` pieces of `lines` each, `stride` bytes apart. */
struct ahead {
    const char *at;
    int64_t stride, lines, rows, line;
};

static void fetch_some(struct ahead *f, int64_t count)
{
    for (; count > 0 && f->rows > 0; count--) {
        __builtin_prefetch(f->at + f->line * LINE, 0, 2);
        if (++f->line < f->lines) continue;
        f->line = 0;
        f->at += f->stride;
        f->rows--;
    }
}

/* The block's rows of A in the next range of k. */
static void fetch_rows(const struct block *block, int64_t *done, int64_t count)
{
    const cot_gemm *g = block->g;
    const int64_t k0 = block->k0 + BLOCK_K, left = g->k - k0 < BLOCK_K ? g->k - k0 : BLOCK_K,
                  bytes = (int64_t)cot_dtype_bytes(g->type);
    if (left <= 0) return;
    const int64_t lines = (left * bytes + LINE - 1) / LINE;
    for (; count > 0 && *done < block->rows * lines; count--, ++*done) {
        int64_t row = block->m0 + *done / lines;
        if (g->a_rows) row = g->a_rows[row];
        __builtin_prefetch((const char *)g->a + (row * g->a_stride + k0) * bytes + *done % lines * LINE, 0,
                           2);
    }
}

static void run_tall_block(const struct block *block, int64_t p0, int64_t p1)
{
    alignas(64) float strip[BLOCK_K * TALL_COLUMNS];
    const cot_gemm *g = block->g;
    const int64_t words = words_of(g, block->k), a_lines = BLOCK_K * (int64_t)cot_dtype_bytes(g->type) / LINE;
    tile_function *const *tiles = tall_tiles;
#ifndef I_DOT
    if (g->format == COT_FORMAT_INT8) tiles = tall_i8_tiles;
#endif
    const int64_t cuts = (block->rows + TALL_ROWS - 1) / TALL_ROWS, columns = (p1 - p0) * COT_PANEL;
    const int64_t strips = columns / TALL_COLUMNS, strip_rows = word_bytes(g, block->k) / 4,
                  strip_lines = TALL_COLUMNS * 4 / LINE > 0 ? TALL_COLUMNS * 4 / LINE : 1;
    const int64_t b_share = strip_rows * strip_lines / cuts + 1,
                  a_share = block->rows * a_lines / (strips * cuts) + 1;
    int64_t fetched = 0;
    for (int64_t column = p0 * COT_PANEL, next; column < p1 * COT_PANEL && column < g->n; column = next) {
        next = column + TALL_COLUMNS;
        const char *b = strip_at(g, column, block->k0);
        const struct tile common = {.b = make_strip(strip, g, b, block->k),
                                    .k = words,
                                    .c_stride = g->c_stride,
                                    .accumulate = block->accumulate,
                                    .column_scales = column_scales(g, column)};
        struct ahead ahead = {.at = next < p1 * COT_PANEL ? strip_at(g, next, block->k0)
                                                          : strip_at(g, p0 * COT_PANEL, block->k0 + BLOCK_K),
                              .stride = COT_PANEL * 4,
                              .lines = strip_lines,
                              .rows = strip_rows};
        for (int64_t t = 0; t < cuts; t++) {
            const int64_t r = block->rows * t / cuts, height = block->rows * (t + 1) / cuts - r;
            struct tile tile = common;
            tile.a = block->a + r * A_STRIDE;
            tile.row_scales = block->scales + r * SCALES;
            tile.c = g->c + (block->m0 + r) * g->c_stride + column;
            run_tile(tiles[height], &tile, height, TALL_COLUMNS, g->n - column);
            fetch_some(&ahead, b_share);
            fetch_rows(block, &fetched, a_share);
        }
    }
}

static void run_tall(struct block *block, int64_t p0, int64_t p1)
{
    const cot_gemm *g = block->g;
    for (block->k0 = 0; block->k0 == 0 || block->k0 < g->k; block->k0 += BLOCK_K) {
        block->k = g->k - block->k0 < BLOCK_K ? g->k - block->k0 : BLOCK_K;
        block->accumulate = g->accumulate || block->k0 > 0;
        lay_out_rows(block, A_STRIDE);
        run_tall_block(block, p0, p1);
    }
}
