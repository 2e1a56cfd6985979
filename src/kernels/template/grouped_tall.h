/* Groups by many rows (grouped.h). The words of a few groups are widened into a strip that the first cache keeps, beside their scales
 * and zero points in fp32, and tiles of rows go down it. 32 registers hold a tile's sums of a group and those of all groups: with
 * twice as many rows, whose sums of all groups the first cache holds, a row takes a tenth longer (Zen 4). */
enum {
    STRIP_FLOATS = COT_QUANT_K / 2 * COT_PANEL, // 16 KiB
    STRIP_GROUPS = COT_QUANT_K / GROUP,
    STRIP_ROWS = 6 // of a tile
};

/* What a word of a row of A holds: an element, two of bf16, or four whole numbers. */
enum words { ONE, PAIR, FOUR };
INLINE int words_of_group_by(enum words words)
{
    return words == FOUR ? GROUP / 4 : words == PAIR ? GROUP / 2 : GROUP;
}

struct group_strip {
    const struct panels *all;
    int64_t k, groups; // where in the block it begins, and how many
    float *sums;       // [rows][COT_PANEL], from the strip's first column on
    alignas(64) float scales[STRIP_GROUPS][TALL_COLUMNS], offsets[STRIP_GROUPS][TALL_COLUMNS];
    alignas(64) float words[STRIP_FLOATS]; // [groups][words of a group][TALL_COLUMNS]
};

/* A vector of columns of a line, as so many words. */
INLINE void widen_words(enum words words, enum elements of, const char *line, const struct nibbles *codes,
                        float *out)
{
#ifdef I_DOT
    if (words == FOUR) {
        ivec fours[2];
        whole_line(of, line, codes, fours);
        for (int i = 0; i < rows_of_line(of) / 4; i++) i_store(out + i * TALL_COLUMNS, fours[i]);
        return;
    }
#endif
    (void)words;
    vec wide[MOST_WIDE];
#ifdef V_DOT
    if (words == PAIR) {
        widen_pairs(of, line, codes, wide);
#pragma GCC unroll 4
        for (int i = 0; i < rows_of_line(of) / 2; i++) v_store(out + i * TALL_COLUMNS, wide[i]);
        return;
    }
#endif
    widen_line(of, line, codes, wide);
#pragma GCC unroll 8
    for (int i = 0; i < rows_of_line(of); i++) v_store(out + i * TALL_COLUMNS, wide[i]);
}

INLINE void widen_group(struct group_strip *s, enum words words, enum elements of, const struct group *g,
                        int64_t group, int column)
{
    const struct nibbles *codes = nibbles_of(s->all->block->g);
    const int of_line = words_of_group_by(words) / lines_of(of);
    float *out = s->words + group * words_of_group_by(words) * TALL_COLUMNS;
#pragma GCC unroll 4
    for (int v = 0; v < TALL_VECTORS; v++) {
        v_store(s->scales[group] + v * LANES, scales_from(s->all, g, column + v * LANES));
        v_store(s->offsets[group] + v * LANES, offsets_from(s->all, g, column + v * LANES));
    }
#pragma GCC unroll 8
    for (int l = 0; l < lines_of(of); l++, out += of_line * TALL_COLUMNS)
#pragma GCC unroll 4
        for (int v = 0; v < TALL_VECTORS; v++)
            widen_words(words, of, words_of_group(g, l, column + v * LANES, true), codes, out + v * LANES);
}

/* The sums of a group by some rows, of elements without scale and offset. */
INLINE void multiply_group(int rows, enum words words, const struct group_strip *s, int64_t row,
                           int64_t group, vec *sum)
{
    const int n = words_of_group_by(words);
    const float *a = s->all->block->a + row * FEW_STRIDE + (s->k / GROUP + group) * n,
                *b = s->words + group * n * TALL_COLUMNS;
#ifdef I_DOT
    if (words == FOUR) {
        const int32_t *offset = s->all->rows->offsets + row * GROUPS + s->k / GROUP + group;
        ivec whole[MOST_SUMS];
#pragma GCC unroll 32
        for (int i = 0; i < rows * TALL_VECTORS; i++) whole[i] = i_set(offset[i / TALL_VECTORS * GROUPS]);
#pragma GCC unroll 8
        for (int i = 0; i < n; i++, a++, b += TALL_COLUMNS) {
            ivec bytes[TALL_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < TALL_VECTORS; v++) bytes[v] = i_load(b + v * LANES);
            dot_bytes(rows, 1, (const int32_t *)(const void *)a, bytes, whole);
        }
#pragma GCC unroll 32
        for (int i = 0; i < rows * TALL_VECTORS; i++) sum[i] = i_to_f32(whole[i]);
        return;
    }
#endif
#pragma GCC unroll 32
    for (int i = 0; i < rows * TALL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        multiply_add(sum, rows, TALL_VECTORS, a + i, FEW_STRIDE, words == PAIR ? BF16_PAIR : F32_ROW,
                     b + i * TALL_COLUMNS, 0);
}

/* totals += a group's sums, with its offsets, times its scales. */
INLINE void scale_group(int rows, const struct group_strip *s, int64_t row, int64_t group, vec *sum,
                        vec *totals)
{
    if (s->all->zeros) {
        const float *of_row = s->all->rows->sums + row * GROUPS + s->k / GROUP + group;
#pragma GCC unroll 4
        for (int v = 0; v < TALL_VECTORS; v++) {
            const vec offset = v_load(s->offsets[group] + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                sum[r * TALL_VECTORS + v] =
                    v_fma(offset, v_set(of_row[r * GROUPS]), sum[r * TALL_VECTORS + v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < TALL_VECTORS; v++) {
        const vec scale = v_load(s->scales[group] + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            totals[r * TALL_VECTORS + v] =
                v_fma(sum[r * TALL_VECTORS + v], scale, totals[r * TALL_VECTORS + v]);
    }
}

INLINE void group_tile(int rows, enum words words, const struct group_strip *s, int64_t row)
{
    vec totals[MOST_SUMS];
    float *sums = s->sums + row * COT_PANEL;
    load_sums(totals, rows, TALL_VECTORS, sums, COT_PANEL, words != FOUR);
    for (int64_t group = 0; group < s->groups; group++) {
        vec sum[MOST_SUMS];
        multiply_group(rows, words, s, row, group, sum);
        scale_group(rows, s, row, group, sum, totals);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows && words == FOUR; r++) { // whose scales are yet to come
        const vec scale = v_set(s->all->block->scales[(row + r) * SCALES + s->k / COT_QUANT_K]);
#pragma GCC unroll 4
        for (int v = 0; v < TALL_VECTORS; v++)
            totals[r * TALL_VECTORS + v] =
                v_fma(totals[r * TALL_VECTORS + v], scale, v_load(sums + r * COT_PANEL + v * LANES));
    }
    store_sums(totals, rows, TALL_VECTORS, sums, COT_PANEL);
}

typedef void group_tile_function(const struct group_strip *s, int64_t row);
#define EACH_HEIGHT(X, words) X(1, words) X(2, words) X(3, words) X(4, words) X(5, words) X(6, words)
#define DEFINE_GROUP_TILE(rows, words)                                                                       \
    static void group_tile_##rows##_##words(const struct group_strip *s, int64_t row)                        \
    {                                                                                                        \
        group_tile(rows, words, s, row);                                                                     \
    }
#define GROUP_TILE(rows, words) [words][rows] = group_tile_##rows##_##words,
#ifdef V_DOT
#define EACH_WORDS(X) X(ONE) X(FOUR) X(PAIR)
#define EACH_STRIP(X) EACH_ELEMENTS(X, ONE) EACH_ELEMENTS(X, PAIR) X(FOUR, FOUR_BITS) X(FOUR, WHOLE_BYTES)
#elif defined(I_DOT)
#define EACH_WORDS(X) X(ONE) X(FOUR)
#define EACH_STRIP(X) EACH_ELEMENTS(X, ONE) X(FOUR, FOUR_BITS) X(FOUR, WHOLE_BYTES)
#else
#define EACH_WORDS(X) X(ONE)
#define EACH_STRIP(X) EACH_ELEMENTS(X, ONE)
#endif
#define DEFINE_TILES(words) EACH_HEIGHT(DEFINE_GROUP_TILE, words)
#define TILES_OF(words) EACH_HEIGHT(GROUP_TILE, words)
EACH_WORDS(DEFINE_TILES)
static group_tile_function *const group_tiles[][STRIP_ROWS + 1] = {EACH_WORDS(TILES_OF)};

/* Panels side by side by all rows of the block, cut into tiles of about one height. */
INLINE void strip_panels(enum words words, enum elements of, const struct panels *all)
{
    const struct block *block = all->block;
    const int64_t room = STRIP_FLOATS / (words_of_group_by(words) * TALL_COLUMNS),
                  groups = room < STRIP_GROUPS ? room : STRIP_GROUPS,
                  cuts = (block->rows + STRIP_ROWS - 1) / STRIP_ROWS;
    struct group_strip s;
    s.all = all;
    for (s.k = 0; s.k < block->k; s.k += groups * GROUP) {
        const int64_t left = (block->k - s.k + GROUP - 1) / GROUP;
        s.groups = left < groups ? left : groups;
        for (int i = 0; i < all->count * (COT_PANEL / TALL_COLUMNS); i++) {
            const struct panel *p = &all->of[i / (COT_PANEL / TALL_COLUMNS)];
            const int column = i % (COT_PANEL / TALL_COLUMNS) * TALL_COLUMNS;
            s.sums = p->sums + column;
            for (int64_t g = 0; g < s.groups; g++) {
                const struct spot at = spot_of(all, s.k + g * GROUP);
                const struct group group = group_of(p, &at, true);
                widen_group(&s, words, of, &group, g, column);
            }
            for (int64_t t = 0; t < cuts; t++) {
                const int64_t row = block->rows * t / cuts;
                group_tiles[words][block->rows * (t + 1) / cuts - row](&s, row);
            }
        }
    }
}

#define DEFINE_STRIPS(words, kind)                                                                           \
    static void strip_##words##_##kind(const struct panels *all)                                             \
    {                                                                                                        \
        strip_panels(words, kind, all);                                                                      \
    }
#define STRIPS_OF(words, kind) [words][kind] = strip_##words##_##kind,
EACH_STRIP(DEFINE_STRIPS)
static panels_function *const strips[][E4M3_BYTES + 1] = {EACH_STRIP(STRIPS_OF)};
