/* Groups by rows that are rounded to whole numbers (grouped.h). */
/* Whole numbers. `totals`: of the COT_QUANT_K elements in hand. */
#ifdef I_DOT
struct whole_group {
    const struct panels *all;
    const struct panel *panel;
    int64_t k, line;
    float *totals;
    ivec bytes[WHOLE_WORDS][PANEL_VECTORS]; // of many rows alone
};
typedef void whole_function(const struct whole_group *s, int64_t row);

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
INLINE void whole_few(int rows, const struct whole_group *s)
{
    const struct block *block = s->all->block;
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(s->all, s->panel, s->k, s->line);
    const int32_t *a = (const int32_t *)(const void *)block->a + s->k / 4;
    ivec sum[PAIR_ROWS * PANEL_VECTORS];
    set_offsets(rows, REACH, s, 0, sum);
#pragma GCC unroll 4
    for (int l = 0; l < GROUP_LOADS; l++, a += 2) {
        ivec bytes[PANEL_VECTORS][2];
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++) w_bytes(words_of_group(&g, l, v * LANES), codes, bytes[v]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            ivec of[PANEL_VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < PANEL_VECTORS; v++) of[v] = bytes[v][i];
            dot_bytes(rows, REACH, a + i, of, sum);
        }
    }
    add_whole_group(rows, s, &g, 0, sum);
}

/* By more rows, from bytes. */
INLINE void whole_tile(int rows, const struct whole_group *s, int64_t row)
{
    const struct block *block = s->all->block;
    const struct group g = group_of(s->all, s->panel, s->k, s->line);
    const int32_t *a = (const int32_t *)(const void *)block->a + row * FEW_STRIDE + s->k / 4;
    ivec sum[MOST_SUMS];
    set_offsets(rows, 1, s, row, sum);
#pragma GCC unroll 8
    for (int i = 0; i < WHOLE_WORDS; i++) dot_bytes(rows, 1, a + i, s->bytes[i], sum);
    add_whole_group(rows, s, &g, row, sum);
}

#define DEFINE_WHOLE(rows, vectors)                                                                          \
    static void whole_tile_##rows(const struct whole_group *s, int64_t row)                                  \
    {                                                                                                        \
        whole_tile(rows, s, row);                                                                            \
    }
#define WHOLE_TILE(rows, vectors) [rows] = whole_tile_##rows,
SHORT(DEFINE_WHOLE)
static whole_function *const whole_tiles[SHORT_ROWS + 1] = {SHORT(WHOLE_TILE)};

static void whole_group(const struct panels *all, const struct panel *p, int64_t k, int64_t line,
                        float *totals)
{
    const struct block *block = all->block;
    struct whole_group s;
    s.all = all, s.panel = p, s.k = k, s.line = line, s.totals = totals;
    switch (block->rows) {
#define WHOLE_FEW(rows)                                                                                      \
    case rows:                                                                                               \
        whole_few(rows, &s);                                                                                 \
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
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(all, p, k, line);
#pragma GCC unroll 4
    for (int l = 0; l < GROUP_LOADS; l++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++) {
            ivec bytes[2];
            w_bytes(words_of_group(&g, l, v * LANES), codes, bytes);
            s.bytes[2 * l][v] = bytes[0];
            s.bytes[2 * l + 1][v] = bytes[1];
        }
    CUT_ROWS(block->rows, whole_tiles, &s);
}
#else
/* A group of one vector of columns waits in registers. */
static void whole_group(const struct panels *all, const struct panel *p, int64_t k, int64_t line,
                        float *totals)
{
    const struct block *block = all->block;
    const int64_t reach = all->rows->reach;
    const struct nibbles *codes = nibbles_of(block->g);
    const struct group g = group_of(all, p, k, line);
    for (int v = 0; v < PANEL_VECTORS; v++) {
        ivec bytes[WHOLE_WORDS];
#pragma GCC unroll 4
        for (int l = 0; l < GROUP_LOADS; l++) w_bytes(words_of_group(&g, l, v * LANES), codes, bytes + 2 * l);
        const vec scale = scales_from(all, &g, v * LANES), zero = offsets_from(all, &g, v * LANES);
        const int32_t *a = (const int32_t *)(const void *)block->a + k / 4,
                      *offset = all->rows->offsets + k / GROUP;
        float *t = totals + v * LANES;
        for (int64_t r = 0; r < block->rows;
             r++, a += reach * FEW_STRIDE, offset += reach * GROUPS, t += COT_PANEL) {
            const vec sum = i_to_f32(w_dot(bytes, a, i_set(*offset)));
            v_store(t, v_fma(add_offset(all, sum, zero, r, k), scale, v_load(t)));
        }
    }
}
#endif

static void whole_panels(const struct panels *all)
{
    alignas(64) float totals[WIDE_PANELS][BLOCK_ROWS * COT_PANEL];
    const struct block *block = all->block;
    for (int64_t k0 = 0; k0 < block->k; k0 += COT_QUANT_K) {
        const int64_t k1 = block->k - k0 < COT_QUANT_K ? block->k : k0 + COT_QUANT_K;
        for (int i = 0; i < all->count; i++) memset(totals[i], 0, (size_t)(block->rows * COT_PANEL) * 4);
        for (int64_t k = k0; k < k1; k += GROUP) {
            const int64_t line = scale_line(block, k);
            for (int i = 0; i < all->count; i++) whole_group(all, &all->of[i], k, line, totals[i]);
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
