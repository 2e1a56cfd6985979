/* Groups by few rows of bf16, in pairs (grouped.h). */
/* A vector of columns of a line, as pairs of rows. */
INLINE void widen_pairs(enum elements of, const char *words, const struct nibbles *codes, vec *pairs)
{
    if (of == FOUR_BITS) {
        w_pairs(words, codes, pairs);
        return;
    }
    if (of == E4M3_BYTES) {
        w_e4m3_pairs(words, pairs);
        return;
    }
    const ivec x = i_load(words);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) pairs[i] = w_pair(w_byte(x, 2 * i), w_byte(x, 2 * i + 1));
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

#define DEFINE_DOT(rows, kind)                                                                               \
    DEFINE_PANELS(dot_##rows##_##kind, dot_group(rows, kind, all, &all->of[i], k, line))
#define DOT_OF(rows, kind) [kind][rows] = dot_##rows##_##kind,
#define EACH_PAIR_ROWS(X)                                                                                    \
    EACH_ELEMENTS(X, 1)                                                                                      \
    EACH_ELEMENTS(X, 2)                                                                                      \
    EACH_ELEMENTS(X, 3)                                                                                      \
    EACH_ELEMENTS(X, 4) EACH_ELEMENTS(X, 5) EACH_ELEMENTS(X, 6) EACH_ELEMENTS(X, 7) EACH_ELEMENTS(X, 8)
EACH_PAIR_ROWS(DEFINE_DOT)
static panels_function *const dot_panels[][PAIR_ROWS + 1] = {EACH_PAIR_ROWS(DOT_OF)};
