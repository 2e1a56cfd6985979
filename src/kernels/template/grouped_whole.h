/* Groups by rows that are rounded to whole numbers (grouped.h); of many rows, where I_DOT is, grouped_tall.h has tiles. */
/* `totals`: of the COT_QUANT_K elements in hand. */
#ifdef I_DOT
/* A vector of columns of a line: fours of bytes that something was added to (whole_offset). */
INLINE void whole_line(enum elements of, const char *words, const struct nibbles *codes, ivec fours[2])
{
    if (of == FOUR_BITS)
        w_bytes(words, codes, fours);
    else
        fours[0] = i_flip(i_load(words), (int32_t)0x80808080u);
}

INLINE void dot_bytes(int rows, int reach, const int32_t *a, const ivec bytes[PANEL_VECTORS], ivec *sum)
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const ivec x = i_set(a[r * reach * FEW_STRIDE]);
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++)
            sum[r * PANEL_VECTORS + v] = i_dot(bytes[v], x, sum[r * PANEL_VECTORS + v]);
    }
}

/* A group of `count` panels by few rows, whose sums wait in registers. */
INLINE void whole_group(int rows, int count, enum elements of, const struct panels *all, int64_t k,
                        float *totals)
{
    const struct block *block = all->block;
    const int lines = lines_of(of), step = rows_of_line(of) / 4, across = count * PANEL_VECTORS;
    const struct spot at = spot_of(all, k);
    const struct nibbles *codes = nibbles_of(block->g);
    const int32_t *a = (const int32_t *)(const void *)block->a + k / 4,
                  *offset = all->rows->offsets + k / GROUP;
    struct group groups[WIDE_PANELS];
    ivec sum[SIDE_SUMS];
    vec wide[SIDE_SUMS];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) groups[i] = group_of(&all->of[i], &at, asks(rows));
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < across; i++) sum[r * across + i] = i_set(offset[r * REACH * GROUPS]);
#pragma GCC unroll 8
    for (int l = 0; l < lines; l++, a += step)
#pragma GCC unroll 8
        for (int i = 0; i < across; i++) {
            const struct group *g = &groups[i / PANEL_VECTORS];
            const int column = i % PANEL_VECTORS * LANES;
            ivec fours[2];
            whole_line(of, words_of_group(g, l, column, asks(rows)), codes, fours);
#pragma GCC unroll 2
            for (int j = 0; j < step; j++)
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sum[r * across + i] =
                        i_dot_word(fours[j], a + r * REACH * FEW_STRIDE + j, sum[r * across + i]);
        }
#pragma GCC unroll 16
    for (int i = 0; i < rows * across; i++) wide[i] = i_to_f32(sum[i]);
    add_groups_of(rows, count, all, groups, k, wide, totals);
}

INLINE void whole_few(int rows, int count, enum elements of, const struct panels *all)
{
    alignas(64) float totals[SIDE_SUMS * LANES];
    const struct block *block = all->block;
    const int vectors = rows * count * PANEL_VECTORS;
    float *sums = all->of[0].sums;
    for (int64_t k0 = 0; k0 < block->k; k0 += COT_QUANT_K) {
        const int64_t k1 = block->k - k0 < COT_QUANT_K ? block->k : k0 + COT_QUANT_K;
#pragma GCC unroll 16
        for (int i = 0; i < vectors; i++) v_store(totals + i * LANES, v_zero());
        for (int64_t k = k0; k < k1; k += GROUP) whole_group(rows, count, of, all, k, totals);
#pragma GCC unroll 16
        for (int i = 0; i < vectors; i++) {
            const float *scale = block->scales + i / PANEL_VECTORS % rows * REACH * SCALES + k0 / COT_QUANT_K;
            float *c = sums + i * LANES;
            v_store(c, v_fma(v_load(totals + i * LANES), v_set(*scale), v_load(c)));
        }
    }
}

#define DEFINE_WHOLE(rows, kind)                                                                             \
    static void whole_##rows##_##kind(const struct panels *all)                                              \
    {                                                                                                        \
        if (side_of(rows) > 1 && all->count > 1)                                                             \
            whole_few(rows, side_of(rows), kind, all);                                                       \
        else                                                                                                 \
            whole_few(rows, 1, kind, all);                                                                   \
    }
#define WHOLE_OF(rows, kind) [kind][rows] = whole_##rows##_##kind,
#define EACH_WHOLE(X, kind)                                                                                  \
    X(1, kind) X(2, kind) X(3, kind) X(4, kind) X(5, kind) X(6, kind) X(7, kind) X(8, kind)
EACH_WHOLE(DEFINE_WHOLE, FOUR_BITS)
EACH_WHOLE(DEFINE_WHOLE, WHOLE_BYTES)
static panels_function *const whole_of_rows[][PAIR_ROWS + 1] = {EACH_WHOLE(WHOLE_OF, FOUR_BITS)
                                                                    EACH_WHOLE(WHOLE_OF, WHOLE_BYTES)};
#else
/* Bytes of a group of a vector of columns: pairs of their rows, as i_pair_dot multiplies. */
INLINE ivec dot_halves(const ivec halves[2 * BYTE_LOADS], const int32_t *a)
{
    ivec sum = i_zero();
#pragma GCC unroll 16
    for (int i = 0; i < 2 * BYTE_LOADS; i++) sum = i_pair_dot(i_set(a[i]), halves[i], sum);
    return sum;
}

/* A group of one vector of columns waits in registers, or of bytes in the first cache. */
INLINE void whole_group(int64_t rows, enum elements of, const struct panels *all, const struct panel *p,
                        int64_t k, const struct spot *at, float *totals)
{
    const struct block *block = all->block;
    const int64_t reach = all->rows->reach;
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(p, at, true);
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; v++) {
        ivec bytes[WHOLE_WORDS], halves[2 * BYTE_LOADS];
#pragma GCC unroll 4
        for (int l = 0; l < GROUP_LOADS && of == FOUR_BITS; l++)
            w_bytes(words_of_group(&g, l, v * LANES, true), codes, bytes + 2 * l);
#pragma GCC unroll 8
        for (int l = 0; l < BYTE_LOADS && of == WHOLE_BYTES; l++) {
            const ivec four = i_load(words_of_group(&g, l, v * LANES, true));
            halves[2 * l] = i_even(four), halves[2 * l + 1] = i_odd(four);
        }
        const vec scale = scales_from(all, &g, v * LANES), zero = offsets_from(all, &g, v * LANES);
        const int32_t *a = (const int32_t *)(const void *)block->a +
                           k / 4 * whole_words_of_four(of == WHOLE_BYTES),
                      *offset = all->rows->offsets + k / GROUP;
        float *t = totals + v * LANES;
        for (int64_t r = 0; r < rows;
             r++, a += reach * FEW_STRIDE, offset += reach * GROUPS, t += COT_PANEL) {
            const vec sum =
                i_to_f32(of == FOUR_BITS ? w_dot(bytes, a, i_set(*offset)) : dot_halves(halves, a));
            v_store(t, v_fma(add_offset(all, sum, zero, r, k), scale, v_load(t)));
        }
    }
}

/* By a number of rows that is known where it is compiled, or any. */
INLINE void whole_rows(int64_t rows, enum elements of, const struct panels *all)
{
    alignas(64) float totals[WIDE_PANELS][BLOCK_ROWS * COT_PANEL];
    const struct block *block = all->block;
    for (int64_t k0 = 0; k0 < block->k; k0 += COT_QUANT_K) {
        const int64_t k1 = block->k - k0 < COT_QUANT_K ? block->k : k0 + COT_QUANT_K;
        for (int i = 0; i < all->count; i++) memset(totals[i], 0, (size_t)(rows * COT_PANEL) * 4);
        for (int64_t k = k0; k < k1; k += GROUP) {
            const struct spot at = spot_of(all, k);
            for (int i = 0; i < all->count; i++) whole_group(rows, of, all, &all->of[i], k, &at, totals[i]);
        }
        for (int i = 0; i < all->count; i++)
            for (int64_t r = 0; r < rows; r++) {
                const vec scale = v_set(block->scales[r * all->rows->reach * SCALES + k0 / COT_QUANT_K]);
                for (int v = 0; v < PANEL_VECTORS; v++) {
                    float *c = all->of[i].sums + r * COT_PANEL + v * LANES;
                    v_store(c, v_fma(v_load(totals[i] + r * COT_PANEL + v * LANES), scale, v_load(c)));
                }
            }
    }
}

INLINE void whole_panels(enum elements of, const struct panels *all)
{
    if (all->block->rows == 1)
        whole_rows(1, of, all);
    else
        whole_rows(all->block->rows, of, all);
}

static void whole_nibbles(const struct panels *all)
{
    whole_panels(FOUR_BITS, all);
}
static void whole_bytes(const struct panels *all)
{
    whole_panels(WHOLE_BYTES, all);
}
#endif
