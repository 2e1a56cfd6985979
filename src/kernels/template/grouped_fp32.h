/* Groups by few rows of fp32 (grouped.h). */
/* A vector of columns of a line, row by row. */
INLINE void widen_line(enum elements of, const char *words, const struct nibbles *codes, vec *wide)
{
    if (of == FOUR_BITS) {
        vec pairs[4];
        w_pairs(words, codes, pairs);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            wide[2 * i] = w_first(pairs[i]);
            wide[2 * i + 1] = w_second(pairs[i]);
        }
        return;
    }
    const ivec x = i_load(words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) wide[i] = widen_byte(of, x, i);
}
/* A group by few rows of fp32. */
INLINE void fma_group(int rows, enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                      const struct spot *at)
{
    const int lines = lines_of(of), step = rows_of_line(of);
    const struct nibbles *codes = nibbles_of(all->block->g);
    const struct group g = group_of(p, at, true);
    const float *a = all->block->a + k;
    vec sum[FMA_ROWS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows * PANEL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 1
    for (int l = 0; l < lines; l++, a += step)
#pragma GCC unroll 4
        for (int v = 0; v < PANEL_VECTORS; v++) {
            vec wide[MOST_WIDE];
            widen_line(of, words_of_group(&g, l, v * LANES, true), codes, wide);
#pragma GCC unroll 8
            for (int i = 0; i < step; i++)
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    sum[r * PANEL_VECTORS + v] =
                        v_fma(v_set(a[r * REACH * FEW_STRIDE + i]), wide[i], sum[r * PANEL_VECTORS + v]);
        }
    add_group(rows, PANEL_VECTORS, all, &g, 0, 0, k, sum, p->sums);
}

#define DEFINE_FMA(rows, kind)                                                                               \
    DEFINE_PANELS(fma_##rows##_##kind, fma_group(rows, kind, all, &all->of[i], k, &at))
#define FMA_OF(rows, kind) [kind][rows] = fma_##rows##_##kind,
EACH_ELEMENTS(DEFINE_FMA, 1)
EACH_ELEMENTS(DEFINE_FMA, 2)
static panels_function *const fma_panels[][FMA_ROWS + 1] = {EACH_ELEMENTS(FMA_OF, 1)
                                                                EACH_ELEMENTS(FMA_OF, 2)};
