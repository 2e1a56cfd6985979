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

struct whole_group {
    const struct panels *all;
    const struct panel *panel;
    int64_t k, line;
    float *totals;
};

INLINE void set_offsets(int rows, int reach, const struct whole_group *s, int64_t row, ivec *sum)
{
    const int32_t *offset = s->all->rows->offsets + row * reach * GROUPS + s->k / GROUP;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++)
            sum[r * PANEL_VECTORS + v] = i_set(offset[r * reach * GROUPS]);
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

INLINE void add_whole_group(int rows, const struct whole_group *s, const struct group *g, int64_t row,
                            const ivec *sum)
{
    vec wide[MOST_SUMS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * PANEL_VECTORS; i++) wide[i] = i_to_f32(sum[i]);
    add_group(rows, PANEL_VECTORS, s->all, g, row, 0, s->k, wide, s->totals);
}

/* By few rows. */
INLINE void whole_few(int rows, enum elements of, const struct whole_group *s)
{
    const struct block *block = s->all->block;
    const int lines = lines_of(of), step = rows_of_line(of) / 4;
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(s->all, s->panel, s->k, s->line);
    const int32_t *a = (const int32_t *)(const void *)block->a + s->k / 4;
    ivec sum[PAIR_ROWS * PANEL_VECTORS];
    set_offsets(rows, REACH, s, 0, sum);
#pragma GCC unroll 8
    for (int l = 0; l < lines; l++, a += step) {
        ivec fours[PANEL_VECTORS][2];
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++)
            whole_line(of, words_of_group(&g, l, v * LANES), codes, fours[v]);
#pragma GCC unroll 2
        for (int i = 0; i < step; i++) {
            ivec bytes[PANEL_VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < PANEL_VECTORS; v++) bytes[v] = fours[v][i];
            dot_bytes(rows, REACH, a + i, bytes, sum);
        }
    }
    add_whole_group(rows, s, &g, 0, sum);
}

INLINE void whole_group(enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                        int64_t line, float *totals)
{
    struct whole_group s;
    s.all = all, s.panel = p, s.k = k, s.line = line, s.totals = totals;
    switch (all->block->rows) {
#define WHOLE_FEW(rows)                                                                                      \
    case rows:                                                                                               \
        whole_few(rows, of, &s);                                                                             \
        return;
        WHOLE_FEW(1)
        WHOLE_FEW(2)
        WHOLE_FEW(3)
        WHOLE_FEW(4)
        WHOLE_FEW(5)
        WHOLE_FEW(6)
        WHOLE_FEW(7)
        WHOLE_FEW(8)
    default:;
    }
}
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
INLINE void whole_group(enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                        int64_t line, float *totals)
{
    const struct block *block = all->block;
    const int64_t reach = all->rows->reach;
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(all, p, k, line);
    for (int v = 0; v < PANEL_VECTORS; v++) {
        ivec bytes[WHOLE_WORDS], halves[2 * BYTE_LOADS];
#pragma GCC unroll 4
        for (int l = 0; l < GROUP_LOADS && of == FOUR_BITS; l++)
            w_bytes(words_of_group(&g, l, v * LANES), codes, bytes + 2 * l);
#pragma GCC unroll 8
        for (int l = 0; l < BYTE_LOADS && of == WHOLE_BYTES; l++) {
            const ivec four = i_load(words_of_group(&g, l, v * LANES));
            halves[2 * l] = i_even(four), halves[2 * l + 1] = i_odd(four);
        }
        const vec scale = scales_from(all, &g, v * LANES), zero = offsets_from(all, &g, v * LANES);
        const int32_t *a = (const int32_t *)(const void *)block->a +
                           k / 4 * whole_words_of_four(of == WHOLE_BYTES),
                      *offset = all->rows->offsets + k / GROUP;
        float *t = totals + v * LANES;
        for (int64_t r = 0; r < block->rows;
             r++, a += reach * FEW_STRIDE, offset += reach * GROUPS, t += COT_PANEL) {
            const vec sum =
                i_to_f32(of == FOUR_BITS ? w_dot(bytes, a, i_set(*offset)) : dot_halves(halves, a));
            v_store(t, v_fma(add_offset(all, sum, zero, r, k), scale, v_load(t)));
        }
    }
}
#endif

INLINE void whole_panels(enum elements of, const struct panels *all)
{
    alignas(64) float totals[WIDE_PANELS][BLOCK_ROWS * COT_PANEL];
    const struct block *block = all->block;
    for (int64_t k0 = 0; k0 < block->k; k0 += COT_QUANT_K) {
        const int64_t k1 = block->k - k0 < COT_QUANT_K ? block->k : k0 + COT_QUANT_K;
        for (int i = 0; i < all->count; i++) memset(totals[i], 0, (size_t)(block->rows * COT_PANEL) * 4);
        for (int64_t k = k0; k < k1; k += GROUP) {
            const int64_t line = scale_line(all, k);
            for (int i = 0; i < all->count; i++) whole_group(of, all, &all->of[i], k, line, totals[i]);
        }
        for (int i = 0; i < all->count; i++)
            for (int64_t r = 0; r < block->rows; r++) {
                const vec scale = v_set(block->scales[r * all->rows->reach * SCALES + k0 / COT_QUANT_K]);
                for (int v = 0; v < PANEL_VECTORS; v++) {
                    float *c = all->of[i].sums + r * COT_PANEL + v * LANES;
                    v_store(c, v_fma(v_load(totals[i] + r * COT_PANEL + v * LANES), scale, v_load(c)));
                }
            }
    }
}

static void whole_nibbles(const struct panels *all)
{
    whole_panels(FOUR_BITS, all);
}
static void whole_bytes(const struct panels *all)
{
    whole_panels(WHOLE_BYTES, all);
}
