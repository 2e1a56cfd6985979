/* Few rows: reading B is most of the work, or as much as multiplying, so that it is read once and straight from memory.
 * Up to SHORT_ROWS take a panel in one or two tiles; more are cut into such. Where there are several tiles they take turns
 * every NEAR_K rows of B, which the first cache keeps for the next tile, and each asks for its share of the NEAR_K rows
 * that come then: memory never waits for the multiply-adds. A single tile asks for what comes NEAR_BYTES further on.
 * Included by gemm.h. */
INLINE void few_f32(int rows, int vectors, const struct tile *t)
{
    const float *a = t->a, *b = t->b;
    const char *next = t->next;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, vectors, t->c, t->c_stride, t->accumulate);
    for (int64_t k = t->k; k > 0; k--, a++, b += COT_PANEL, next += t->next_step) {
        fetch(vectors, next, t->b_panel_stride * 4);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, F32_ROW, b, t->b_panel_stride);
    }
    store_sums(sums, rows, vectors, t->c, t->c_stride);
}

INLINE void few_bf16(int rows, int vectors, const struct tile *t)
{
    const float *a = t->a;
    const uint16_t *b = t->b;
    const char *next = t->next;
    int64_t k = t->k;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, vectors, t->c, t->c_stride, t->accumulate);
#ifdef V_DOT
    for (; k > 0; k -= 2, a++, b += 2 * COT_PANEL, next += t->next_step) {
        fetch(vectors, next, t->b_panel_stride * 2);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_PAIR, b, t->b_panel_stride);
    }
#else
    for (; k > 1; k -= 2, a += 2, b += 2 * COT_PANEL, next += t->next_step) {
        fetch(vectors, next, t->b_panel_stride * 2);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_FIRST, b, t->b_panel_stride);
        multiply_add(sums, rows, vectors, a + 1, FEW_STRIDE, BF16_SECOND, b, t->b_panel_stride);
    }
    if (k) multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_FIRST, b, t->b_panel_stride);
#endif
    store_sums(sums, rows, vectors, t->c, t->c_stride);
}

#define DEFINE_FEW(rows, vectors)                                                                            \
    static void few_f32_##rows##_##vectors(const struct tile *t)                                             \
    {                                                                                                        \
        few_f32(rows, vectors, t);                                                                           \
    }                                                                                                        \
    static void few_bf16_##rows##_##vectors(const struct tile *t)                                            \
    {                                                                                                        \
        few_bf16(rows, vectors, t);                                                                          \
    }
#define DEFINE_FEW_I8(rows, vectors)                                                                         \
    static void few_i8_##rows##_##vectors(const struct tile *t)                                              \
    {                                                                                                        \
        few_i8(rows, vectors, t);                                                                            \
    }
#define FEW_I8(rows, vectors) [rows] = few_i8_##rows##_##vectors,
#define FEW_F32(rows, vectors) [rows] = few_f32_##rows##_##vectors,
#define FEW_BF16(rows, vectors) [rows] = few_bf16_##rows##_##vectors,
SHORT(DEFINE_FEW)
SHORT(DEFINE_FEW_I8)
WIDE(DEFINE_FEW)
WIDE(DEFINE_FEW_I8)

static tile_function *const short_tiles[KINDS][SHORT_ROWS + 1] = {
    {SHORT(FEW_F32)}, {SHORT(FEW_BF16)}, {SHORT(FEW_I8)}};
static tile_function *const wide_tiles[KINDS][WIDE_ROWS + 1] = {
    {WIDE(FEW_F32)}, {WIDE(FEW_BF16)}, {WIDE(FEW_I8)}};

#define FEW_VECTORS(rows, vectors) [rows] = (vectors),
static const int short_vectors[SHORT_ROWS + 1] = {SHORT(FEW_VECTORS)};

/* Tiles that a panel and so many rows make. */
static int64_t few_passes(int64_t rows, int64_t cuts)
{
    int64_t passes = 0;
    for (int64_t t = 0; t < cuts; t++)
        passes += PANEL_VECTORS / short_vectors[rows * (t + 1) / cuts - rows * t / cuts];
    return passes;
}

/* The tile of the block's rows from r on and of columns from `column` on, rows k .. k+count-1 of its range. */
static struct tile few_tile(const struct block *block, int64_t r, int64_t column, int64_t k, int64_t count)
{
    const cot_gemm *g = block->g;
    const char *b = strip_at(g, column, block->k0 + k);
    struct tile tile = {.a = block->a + r * FEW_STRIDE + words_of(g, k),
                        .b = b,
                        .b_panel_stride = panel_step(g),
                        .next = b + NEAR_BYTES,
                        .next_step = STEP_BYTES,
                        .k = g->quantised ? (count + 3) / 4 : count,
                        .c = g->c + (block->m0 + r) * g->c_stride + column,
                        .c_stride = g->c_stride,
                        .accumulate = block->accumulate || k};
    tile.row_scales = block->scales + r * SCALES + k / COT_QUANT_K;
    tile.column_scales = column_scales(g, column);
    return tile;
}

/* All rows of the block by rows k .. k+count-1 of a panel of its range. */
static void run_near(const struct block *block, int64_t panel, int64_t k, int64_t count, int64_t cuts,
                     int64_t passes)
{
    const cot_gemm *g = block->g;
    const int64_t near_bytes = (g->quantised ? COT_QUANT_K : NEAR_K) * COT_PANEL * b_bytes(g);
    const char *next = strip_at(g, panel * COT_PANEL, block->k0 + k) + near_bytes;
    for (int64_t t = 0; t < cuts; t++) {
        const int64_t r = block->rows * t / cuts, height = block->rows * (t + 1) / cuts - r;
        const int64_t width = short_vectors[height] * LANES;
        for (int64_t i = 0; i < COT_PANEL; i += width, next += near_bytes / passes) {
            const int64_t column = panel * COT_PANEL + i;
            if (column >= g->n) break;
            struct tile tile = few_tile(block, r, column, k, count);
            if (passes > 1) {
                tile.next = next;
                tile.next_step = STEP_BYTES / passes;
            }
            run_tile(short_tiles[kind_of(g)][height], &tile, height, width, g->n - column);
        }
    }
}

static void run_few_panel(const struct block *block, int64_t panel)
{
    const int64_t cuts = (block->rows + SHORT_ROWS - 1) / SHORT_ROWS, passes = few_passes(block->rows, cuts);
    const int64_t step = block->g->quantised ? COT_QUANT_K : passes == 1 ? FEW_K : NEAR_K;
    int64_t k = 0;
    do { // also where there are none: C is set
        run_near(block, panel, k, block->k - k < step ? block->k - k : step, cuts, passes);
        k += step;
    } while (k < block->k);
}

static void run_wide(const struct block *block, int64_t panel)
{
    const cot_gemm *g = block->g;
    const int64_t column = panel * COT_PANEL, step = g->quantised ? COT_QUANT_K : FEW_K;
    int64_t k = 0;
    do {
        const struct tile tile = few_tile(block, 0, column, k, block->k - k < step ? block->k - k : step);
        run_tile(wide_tiles[kind_of(g)][block->rows], &tile, block->rows, WIDE_PANELS * COT_PANEL,
                 g->n - column);
        k += step;
    } while (k < block->k);
}

static void run_few(struct block *block, int64_t p0, int64_t p1)
{
    const cot_gemm *g = block->g;
    for (block->k0 = 0; block->k0 == 0 || block->k0 < g->k; block->k0 += FEW_K) {
        block->k = g->k - block->k0 < FEW_K ? g->k - block->k0 : FEW_K;
        block->accumulate = g->accumulate || block->k0 > 0;
        lay_out_rows(block, FEW_STRIDE);
        for (int64_t p = p0, step; p < p1; p += step) {
            const bool wide =
                block->rows <= WIDE_ROWS && p + WIDE_PANELS <= p1 && (WIDE_PANELS == 2 || !g->b_pair_stride);
            step = wide ? WIDE_PANELS : 1;
            if (wide)
                run_wide(block, p);
            else
                run_few_panel(block, p);
        }
    }
}
