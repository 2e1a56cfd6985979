/* Few rows: reading B is most of the work, or as much as multiplying, so that it is read once and straight from memory.
 * Tiles go down a strip of B: WIDE_PANELS panels where the rows are fewest (wide_rows), else one panel; in one tile, or in
 * several that take turns. A strip goes by in chunks that the first cache keeps. While the tiles of a chunk multiply, each
 * for its share, they ask for the chunk that is read next; behind a strip's last chunk that is the first one of the next
 * strip. So memory never waits for the multiply-adds, nor they for memory. Included by gemm.h. */
INLINE void few_f32(int rows, int vectors, const struct tile *t)
{
    const float *a = t->a, *b = t->b;
    const char *next = t->next;
    vec sums[MOST_SUMS];
    load_sums(sums, rows, vectors, t->c, t->c_stride, t->accumulate);
    for (int64_t k = t->k; k > 0; k--, a++, b += COT_PANEL, next += t->next_step) {
        fetch(SECOND_CACHE, vectors, next, t->b_panel_bytes);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, F32_ROW, b, t->b_panel_bytes);
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
    /* A tile that goes down its strip alone finds in the first cache what it asked for. With one row or two the core's own
     * prefetchers bring as much, and what tiles take turns over comes for all of them. */
    const enum cache cache = rows > 2 && t->next_step == STEP_BYTES ? FIRST_CACHE : SECOND_CACHE;
    for (; k > 0; k -= 2, a++, b += 2 * COT_PANEL, next += t->next_step) {
        fetch(cache, vectors, next, t->b_panel_bytes);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_PAIR, b, t->b_panel_bytes);
    }
#else
    for (; k > 1; k -= 2, a += 2, b += 2 * COT_PANEL, next += t->next_step) {
        fetch(SECOND_CACHE, vectors, next, t->b_panel_bytes);
        multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_FIRST, b, t->b_panel_bytes);
        multiply_add(sums, rows, vectors, a + 1, FEW_STRIDE, BF16_SECOND, b, t->b_panel_bytes);
    }
    if (k) multiply_add(sums, rows, vectors, a, FEW_STRIDE, BF16_FIRST, b, t->b_panel_bytes);
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
        few_i8(rows, vectors, true, t);                                                                      \
    }
#define FEW_I8(rows, vectors) [rows] = few_i8_##rows##_##vectors,
#define FEW_F32(rows, vectors) [rows] = few_f32_##rows##_##vectors,
#define FEW_BF16(rows, vectors) [rows] = few_bf16_##rows##_##vectors,
SHORT(DEFINE_FEW)
SHORT(DEFINE_FEW_I8)
WIDE(DEFINE_FEW)
WIDE(DEFINE_FEW_I8)

static tile_function *const short_tiles[][SHORT_ROWS + 1] = {[COT_FORMAT_FP32] = {SHORT(FEW_F32)},
                                                             [COT_FORMAT_BF16] = {SHORT(FEW_BF16)},
                                                             [COT_FORMAT_INT8] = {SHORT(FEW_I8)}};
static tile_function *const wide_tiles[][WIDE_ROWS + 1] = {[COT_FORMAT_FP32] = {WIDE(FEW_F32)},
                                                           [COT_FORMAT_BF16] = {WIDE(FEW_BF16)},
                                                           [COT_FORMAT_INT8] = {WIDE(FEW_I8)}};

#ifdef I_DOT
#define DEFINE_LATER_I8(rows, vectors)                                                                       \
    static void later_i8_##rows##_##vectors(const struct tile *t)                                            \
    {                                                                                                        \
        few_i8(rows, vectors, false, t);                                                                     \
    }
#define LATER_I8(rows, vectors) [rows] = later_i8_##rows##_##vectors,
SHORT(DEFINE_LATER_I8)
WIDE(DEFINE_LATER_I8)
static tile_function *const short_later_i8[SHORT_ROWS + 1] = {SHORT(LATER_I8)};
static tile_function *const wide_later_i8[WIDE_ROWS + 1] = {WIDE(LATER_I8)};
#endif

#define FEW_VECTORS(rows, vectors) [rows] = (vectors),
static const int short_vectors[SHORT_ROWS + 1] = {SHORT(FEW_VECTORS)};

/* Panels side by side that tiles go down together, and how. */
struct strip {
    int64_t panel, panels;
    bool wide;
    int64_t cuts;   // into how many tiles, one below the other, the rows of A are divided
    int64_t passes; // tiles in all that a chunk of the strip takes
    int64_t near;   // rows of B in a chunk
};

static int64_t strip_width(const struct strip *s, int64_t height)
{
    return s->wide ? WIDE_PANELS * COT_PANEL : short_vectors[height] * LANES;
}

/* Up to how many rows of A a strip is of WIDE_PANELS: from memory two streams that go far ahead of the tiles are faster than
 * one. Words of bf16 each tile takes apart for itself, which costs more than that gains where B comes from a cache. */
static int64_t wide_rows(const struct block *block)
{
    const cot_gemm *g = block->g;
    if (g->format == COT_FORMAT_INT8) return WIDE_TURNS_I8 * WIDE_ROWS;
    if (g->type == COT_BF16) {
#ifdef V_DOT
        return WIDE_ROWS; // pairs are multiplied as they are, and that takes longer than reading
#else
        if ((block->p1 - block->p0) * COT_PANEL * word_bytes(g, g->k) < FAR_BYTES) return WIDE_ROWS;
#endif
    }
    return WIDE_TURNS * WIDE_ROWS;
}

static struct strip strip_of(const struct block *block, int64_t panel)
{
    const cot_gemm *g = block->g;
    struct strip s = {.panel = panel, .panels = 1};
    s.wide = block->rows <= wide_rows(block) && panel + WIDE_PANELS <= block->p1;
    if (s.wide) s.panels = WIDE_PANELS;
    const int64_t most = s.wide ? WIDE_ROWS : SHORT_ROWS;
    s.cuts = (block->rows + most - 1) / most;
    for (int64_t t = 0; t < s.cuts; t++)
        s.passes +=
            s.panels * COT_PANEL / strip_width(&s, block->rows * (t + 1) / s.cuts - block->rows * t / s.cuts);
    const int64_t bytes = s.passes > 1 ? TURNS_BYTES : NEAR_BYTES;
    s.near = g->format == COT_FORMAT_INT8 ? COT_QUANT_K : bytes / (s.panels * COT_PANEL * word_bytes(g, 1));
    return s;
}

/* The tile of the block's rows from r on and of columns from `column` on, rows k .. k+count-1 of its range. */
static struct tile few_tile(const struct block *block, int64_t r, int64_t column, int64_t k, int64_t count)
{
    const cot_gemm *g = block->g;
    struct tile tile = {.a = block->a + r * FEW_STRIDE + words_of(g, k),
                        .b = strip_at(g, column, block->k0 + k),
                        .b_panel_bytes = panel_step(g),
                        .k = g->format == COT_FORMAT_INT8 ? (count + 3) / 4 : count,
                        .c = g->c + (block->m0 + r) * g->c_stride + column,
                        .c_stride = g->c_stride,
                        .accumulate = block->accumulate || k};
    tile.row_scales = block->scales + r * SCALES + k / COT_QUANT_K;
    tile.column_scales = column_scales(g, column);
    return tile;
}

/* All rows of the block by rows k .. k+count-1 of a strip of its range; `next` is asked for meanwhile. */
static void run_chunk(const struct block *block, const struct strip *s, int64_t k, int64_t count,
                      const char *next)
{
    const cot_gemm *g = block->g;
    const int64_t share = word_bytes(g, s->near) * COT_PANEL / s->passes, p = s->panel * COT_PANEL;
    tile_function *const *tiles = s->wide ? wide_tiles[g->format] : short_tiles[g->format];
    alignas(64) int32_t offsets[WIDE_PANELS * COT_PANEL];
    for (int64_t t = 0; t < s->cuts; t++) {
#ifdef I_DOT
        if (t == 1 && g->format == COT_FORMAT_INT8) tiles = s->wide ? wide_later_i8 : short_later_i8;
#endif
        const int64_t r = block->rows * t / s->cuts, height = block->rows * (t + 1) / s->cuts - r;
        const int64_t width = strip_width(s, height);
        for (int64_t i = 0; i < s->panels * COT_PANEL && p + i < g->n; i += width, next += share) {
            struct tile tile = few_tile(block, r, p + i, k, count);
            tile.offsets = offsets + i;
            tile.next = next;
            tile.next_step = STEP_BYTES / s->passes;
            run_tile(tiles[height], &tile, height, width, g->n - p - i);
        }
    }
}

/* Where B is read next when rows before k of a strip are done. Perhaps that is not there: asking for it does nothing. */
static const char *read_next(const struct block *block, const struct strip *s, int64_t k)
{
    const cot_gemm *g = block->g;
    const int64_t next = s->panel + s->panels;
    if (k < block->k) return strip_at(g, s->panel * COT_PANEL, block->k0 + k);
    if (next < block->p1) return strip_at(g, next * COT_PANEL, block->k0);
    if (block->k0 + block->k < g->k) return strip_at(g, block->p0 * COT_PANEL, block->k0 + block->k);
    return strip_at(g, next * COT_PANEL, 0); // of the caller's next call, if it goes on there
}

/* A single tile asks for what it reads itself a chunk later, so that it goes on until the last chunk begins. */
static void run_strip(const struct block *block, const struct strip *s)
{
    const bool alone = s->passes == 1 && block->g->format != COT_FORMAT_INT8;
    int64_t k = 0;
    do { // also where there are no rows of B: C is set
        const int64_t left = block->k - k, before_last = (left - s->near) / 2 * 2;
        int64_t count = alone && before_last > s->near ? before_last : s->near;
        if (count > left) count = left;
        run_chunk(block, s, k, count, read_next(block, s, k + s->near));
        k += count;
    } while (k < block->k);
}

/* Rows of B by which rows of A are laid out at a time. */
static int64_t few_range(const cot_gemm *g)
{
    if (g->rounded) return SCALES * COT_QUANT_K;
    return words_of(g, 2) == 1 ? 2 * FEW_WORDS : FEW_WORDS;
}

static void run_few(struct block *block, int64_t p0, int64_t p1)
{
    const cot_gemm *g = block->g;
    block->p0 = p0;
    block->p1 = p1;
    const int64_t range = few_range(g);
    for (block->k0 = 0; block->k0 == 0 || block->k0 < g->k; block->k0 += range) {
        block->k = g->k - block->k0 < range ? g->k - block->k0 : range;
        block->accumulate = g->accumulate || block->k0 > 0;
        lay_out_rows(block, FEW_STRIDE);
        for (int64_t p = p0; p < p1;) {
            const struct strip s = strip_of(block, p);
            run_strip(block, &s);
            p += s.panels;
        }
    }
}
