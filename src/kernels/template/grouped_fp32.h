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
/* A group of `count` panels from the first one on by few rows of fp32. */
INLINE void fma_group(int rows, int first, int count, enum elements of, const struct panels *all, int64_t k,
                      const struct spot *at)
{
    const int lines = lines_of(of), step = rows_of_line(of), across = count * PANEL_VECTORS;
    const struct nibbles *codes = nibbles_of(all->block->g);
    const float *a = all->block->a + k;
    struct group groups[WIDE_PANELS];
    vec sum[SIDE_SUMS];
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) groups[i] = group_of(&all->of[first + i], at, true);
#pragma GCC unroll 16
    for (int i = 0; i < rows * across; i++) sum[i] = v_zero();
#pragma GCC unroll 1
    for (int l = 0; l < lines; l++, a += step)
#pragma GCC unroll 8
        for (int v = 0; v < across; v++) {
            vec wide[MOST_WIDE];
            widen_line(of, words_of_group(&groups[v / PANEL_VECTORS], l, v % PANEL_VECTORS * LANES, true),
                       codes, wide);
#pragma GCC unroll 8
            for (int i = 0; i < step; i++)
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    sum[r * across + v] =
                        v_fma(v_set(a[r * REACH * FEW_STRIDE + i]), wide[i], sum[r * across + v]);
        }
    add_groups_of(rows, count, all, groups, k, sum, all->of[first].sums);
}

/* By one row the chains of one panel's sums are too few to hide each other's latency. */
#define DEFINE_FMA(rows, kind)                                                                               \
    static void fma_##rows##_##kind(const struct panels *all)                                                \
    {                                                                                                        \
        for (int64_t k = 0; k < all->block->k; k += GROUP) {                                                 \
            const struct spot at = spot_of(all, k);                                                          \
            if (rows == 1 && all->count == WIDE_PANELS)                                                      \
                fma_group(rows, 0, WIDE_PANELS, kind, all, k, &at);                                          \
            else                                                                                             \
                for (int i = 0; i < all->count; i++) fma_group(rows, i, 1, kind, all, k, &at);               \
        }                                                                                                    \
    }
#define FMA_OF(rows, kind) [kind][rows] = fma_##rows##_##kind,
EACH_ELEMENTS(DEFINE_FMA, 1)
EACH_ELEMENTS(DEFINE_FMA, 2)
static panels_function *const fma_panels[][FMA_ROWS + 1] = {EACH_ELEMENTS(FMA_OF, 1)
                                                                EACH_ELEMENTS(FMA_OF, 2)};
