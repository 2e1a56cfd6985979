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

/* A group of `count` panels by few rows of pairs, whose sums wait in registers. */
INLINE void dot_group(int rows, int count, enum elements of, const struct panels *all, int64_t k)
{
    const struct spot at = spot_of(all, k);
    const int lines = lines_of(of), step = rows_of_line(of), across = count * PANEL_VECTORS,
              at_once =
                  count > 1 ? 1 : PANEL_VECTORS; // by more rows an element of A is read once for both vectors
    const struct nibbles *codes = nibbles_of(all->block->g);
    const float *a = all->block->a + k / 2;
    struct group groups[WIDE_PANELS];
    vec sum[SIDE_SUMS];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) groups[i] = group_of(&all->of[i], &at, asks(rows));
#pragma GCC unroll 16
    for (int i = 0; i < rows * across; i++) sum[i] = v_zero();
#pragma GCC unroll 8
    for (int l = 0; l < lines; l++, a += step / 2)
#pragma GCC unroll 8
        for (int i = 0; i < across; i += at_once) {
            const struct group *g = &groups[i / PANEL_VECTORS];
            vec pairs[PANEL_VECTORS][MOST_WIDE / 2];
#pragma GCC unroll 2
            for (int v = 0; v < at_once; v++)
                widen_pairs(of, words_of_group(g, l, (i + v) % PANEL_VECTORS * LANES, asks(rows)), codes,
                            pairs[v]);
#pragma GCC unroll 4
            for (int j = 0; j < step / 2; j++)
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                    for (int v = 0; v < at_once; v++)
                        sum[r * across + i + v] =
                            v_dot_word(a + r * REACH * FEW_STRIDE + j, pairs[v][j], sum[r * across + i + v]);
        }
    add_groups_of(rows, count, all, groups, k, sum, all->of[0].sums);
}

#define DEFINE_DOT(rows, kind)                                                                               \
    static void dot_##rows##_##kind(const struct panels *all)                                                \
    {                                                                                                        \
        for (int64_t k = 0; k < all->block->k; k += GROUP)                                                   \
            if (side_of(rows) > 1 && all->count > 1)                                                         \
                dot_group(rows, side_of(rows), kind, all, k);                                                \
            else                                                                                             \
                dot_group(rows, 1, kind, all, k);                                                            \
    }
#define DOT_OF(rows, kind) [kind][rows] = dot_##rows##_##kind,
#define EACH_PAIR_ROWS(X)                                                                                    \
    EACH_ELEMENTS(X, 1)                                                                                      \
    EACH_ELEMENTS(X, 2)                                                                                      \
    EACH_ELEMENTS(X, 3)                                                                                      \
    EACH_ELEMENTS(X, 4) EACH_ELEMENTS(X, 5) EACH_ELEMENTS(X, 6) EACH_ELEMENTS(X, 7) EACH_ELEMENTS(X, 8)
EACH_PAIR_ROWS(DEFINE_DOT)
static panels_function *const dot_panels[][PAIR_ROWS + 1] = {EACH_PAIR_ROWS(DOT_OF)};
