/* Groups by rows of bf16, in pairs (grouped.h). */
/* A vector of columns of a line, as pairs of rows. */
INLINE void widen_pairs(enum elements of, const char *words, const struct nibbles *codes, vec *pairs)
{
    if (of == FOUR_BITS) {
        w_pairs(words, codes, pairs);
        return;
    }
    const ivec x = i_load(words);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) pairs[i] = w_pair(widen_byte(of, x, 2 * i), widen_byte(of, x, 2 * i + 1));
}

/* A group by few rows of pairs. */
INLINE void dot_group(int rows, enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                      int64_t line)
{
    const int lines = lines_of(of), step = rows_of_line(of);
    const struct nibbles *codes = nibbles_of(all->block->g);
    const struct group g = group_of(all, p, k, line);
    const float *a = all->block->a + k / 2;
    vec sum[PAIR_ROWS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows * PANEL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 8
    for (int l = 0; l < lines; l++, a += step / 2) {
        vec pairs[PANEL_VECTORS][MOST_WIDE / 2];
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++)
            widen_pairs(of, words_of_group(&g, l, v * LANES), codes, pairs[v]);
#pragma GCC unroll 4
        for (int i = 0; i < step / 2; i++)
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec x = v_set(a[r * REACH * FEW_STRIDE + i]);
#pragma GCC unroll 2
                for (int v = 0; v < PANEL_VECTORS; v++)
                    sum[r * PANEL_VECTORS + v] = v_dot(x, pairs[v][i], sum[r * PANEL_VECTORS + v]);
            }
    }
    add_group(rows, PANEL_VECTORS, all, &g, 0, 0, k, sum, p->sums);
}

/* By more rows: a strip of pairs. */
struct dot_strip {
    const struct panels *all;
    const struct group *group;
    int64_t k;
    float *sums;
    alignas(64) float pairs[GROUP / 2 * COT_PANEL];
};
typedef void dot_function(const struct dot_strip *s, int64_t row);

INLINE void dot_tile(int rows, const struct dot_strip *s, int64_t row)
{
    vec sum[MOST_SUMS];
    const float *a = s->all->block->a + row * FEW_STRIDE + s->k / 2;
#pragma GCC unroll 32
    for (int i = 0; i < rows * PANEL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 4
    for (int i = 0; i < GROUP / 2; i++)
        multiply_add(sum, rows, PANEL_VECTORS, a + i, FEW_STRIDE, BF16_PAIR, s->pairs + i * COT_PANEL, 0);
    add_group(rows, PANEL_VECTORS, s->all, s->group, row, 0, s->k, sum, s->sums);
}
#define DEFINE_DOT_TILE(rows, vectors)                                                                       \
    static void dot_tile_##rows(const struct dot_strip *s, int64_t row)                                      \
    {                                                                                                        \
        dot_tile(rows, s, row);                                                                              \
    }
#define DOT_TILE(rows, vectors) [rows] = dot_tile_##rows,
SHORT(DEFINE_DOT_TILE)
static dot_function *const dot_tiles[SHORT_ROWS + 1] = {SHORT(DOT_TILE)};

INLINE void dot_strip_group(enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                            int64_t line)
{
    const int lines = lines_of(of), step = rows_of_line(of);
    const struct nibbles *codes = nibbles_of(all->block->g);
    const struct group g = group_of(all, p, k, line);
    struct dot_strip s = {.all = all, .group = &g, .k = k, .sums = p->sums};
    float *out = s.pairs;
    for (int l = 0; l < lines; l++, out += step / 2 * COT_PANEL)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++) {
            vec pairs[MOST_WIDE / 2];
            widen_pairs(of, words_of_group(&g, l, v * LANES), codes, pairs);
#pragma GCC unroll 4
            for (int i = 0; i < step / 2; i++) v_store(out + i * COT_PANEL + v * LANES, pairs[i]);
        }
    CUT_ROWS(all->block->rows, dot_tiles, &s);
}

#define DEFINE_DOT(rows, kind)                                                                               \
    DEFINE_PANELS(dot_##rows##_##kind, dot_group(rows, kind, all, &all->of[i], k, line))
#define DEFINE_DOT_STRIP(rows, kind)                                                                         \
    DEFINE_PANELS(dot_strip_##kind, dot_strip_group(kind, all, &all->of[i], k, line))
#define DOT_OF(rows, kind) [kind][rows] = dot_##rows##_##kind,
#define DOT_STRIP_OF(rows, kind) [kind][0] = dot_strip_##kind,
#define EACH_PAIR_ROWS(X)                                                                                    \
    EACH_ELEMENTS(X, 1)                                                                                      \
    EACH_ELEMENTS(X, 2)                                                                                      \
    EACH_ELEMENTS(X, 3)                                                                                      \
    EACH_ELEMENTS(X, 4) EACH_ELEMENTS(X, 5) EACH_ELEMENTS(X, 6) EACH_ELEMENTS(X, 7) EACH_ELEMENTS(X, 8)
EACH_PAIR_ROWS(DEFINE_DOT)
EACH_ELEMENTS(DEFINE_DOT_STRIP, 0)
static panels_function *const dot_panels[][PAIR_ROWS + 1] = {EACH_PAIR_ROWS(DOT_OF)
                                                                 EACH_ELEMENTS(DOT_STRIP_OF, 0)};
