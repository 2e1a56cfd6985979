/* Products of whole numbers: rows of A rounded to them, and tiles of int32 sums. Included by gemm.h.
 *
 * A word of B holds four rows of a column. Where I_DOT multiplies such words (VPDPBUSD), A's are bytes, 128 added to
 * make them unsigned; 128 times the column's sum is taken off again. Elsewhere int16 pairs are multiplied and added
 * (VPMADDWD, never saturated): a word becomes its even bytes and its odd ones, and A's words are made to match. */
#ifdef I_DOT
enum { FOUR_WORDS = 1 };
#else
enum { FOUR_WORDS = 2 };
#endif

/* `count` elements of a row, rounded; factor and scale as kernels.h has them. Without a branch: it runs in vectors. */
static float round_row(int8_t *whole, const float *x, int64_t count)
{
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff; // magnitudes in the order of floats, what is not finite last
        most = bits > most ? bits : most;
    }
    float size, scale;
    memcpy(&size, &most, 4);
    float factor = size > 0 ? 127 / size : 0;
    if (factor > 0x1p127f) factor = 0;
    scale = factor > 0 ? size / 127 : 0;
    if (most >= 0x7f800000) {
        factor = 0;
        scale = NAN;
    }
    const float shift = 0x1.8p23f; // rounds to whole numbers, to even, in its last bits
    for (int64_t i = 0; i < count; i++) {
        float product = x[i] * factor;
        float shifted = product + shift;
        int32_t bits;
        memcpy(&bits, &shifted, 4);
        whole[i] = (int8_t)(scale > 0 ? bits : 0);
    }
    return scale;
}

/* Elements at .. at+k-1 of A, by blocks: words to `out`, scales. */
static void quantise_row(float *out, float *scales, const void *a, cot_dtype type, int64_t at, int64_t k)
{
    uint32_t *words = (uint32_t *)(void *)out;
    for (int64_t k0 = 0; k0 < k; k0 += COT_QUANT_K) {
        const int64_t count = k - k0 < COT_QUANT_K ? k - k0 : COT_QUANT_K;
        float wide[COT_QUANT_K];
        int8_t whole[COT_QUANT_K + 4] = {0};
        if (type == COT_F32)
            memcpy(wide, (const float *)a + at + k0, (size_t)count * 4);
        else
            for (int64_t i = 0; i < count; i++) wide[i] = cot_bf16_to_f32(((const uint16_t *)a)[at + k0 + i]);
        *scales++ = round_row(whole, wide, count);
        for (int64_t i = 0; i < (count + 3) / 4; i++) {
#ifdef I_DOT
            uint32_t four;
            memcpy(&four, whole + 4 * i, 4);
            *words++ = four ^ 0x80808080u;
#else
            const int8_t *four = whole + 4 * i;
            *words++ = (uint16_t)four[0] | (uint32_t)(uint16_t)four[2] << 16;
            *words++ = (uint16_t)four[1] | (uint32_t)(uint16_t)four[3] << 16;
#endif
        }
    }
}

/* C += sums times scales. */
INLINE void store_products(const ivec *sums, int rows, int vectors, const struct tile *t)
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const vec scale = v_set(t->row_scales[r * SCALES]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            const char *panel = (const char *)t->column_scales + v / PANEL_VECTORS * t->b_panel_bytes;
            float *c = t->c + r * t->c_stride + v * LANES;
            vec factor = v_mul(scale, v_load((const float *)(const void *)panel + v % PANEL_VECTORS * LANES));
            v_store(c, v_fma(i_to_f32(sums[r * vectors + v]), factor, t->accumulate ? v_load(c) : v_zero()));
        }
    }
}

/* Few rows: `k` of the tile counts steps of four rows of B. The first tile of columns sums their offsets for those that take their
 * turn after it. */
INLINE void few_i8(int rows, int vectors, bool first, const struct tile *t)
{
    const int32_t *a = (const int32_t *)(const void *)t->a;
    const char *b = t->b, *next = t->next;
    ivec sums[MOST_SUMS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * vectors; i++) sums[i] = i_zero();
#ifdef I_DOT
    ivec offsets[MOST_SUMS];
#pragma GCC unroll 16
    for (int v = 0; v < vectors && first; v++) offsets[v] = i_zero();
#else
    (void)first;
#endif
    for (int64_t k = t->k; k > 0; k--, a += FOUR_WORDS, b += COT_PANEL * 4, next += t->next_step) {
        if (FOUR_WORDS > 1 || rows > 1) // else the processor's own prefetchers bring more
            fetch(SECOND_CACHE, vectors, next, t->b_panel_bytes);
        ivec four[MOST_SUMS];
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            four[v] = i_load(b + v / PANEL_VECTORS * t->b_panel_bytes + v % PANEL_VECTORS * LANES * 4);
#ifdef I_DOT
#pragma GCC unroll 16
        for (int v = 0; v < vectors && first; v++)
            offsets[v] = i_dot(i_set((int32_t)0x80808080u), four[v], offsets[v]);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const ivec x = i_set(a[r * FEW_STRIDE]);
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] = i_dot(x, four[v], sums[r * vectors + v]);
        }
#else
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            const ivec even = i_even(four[v]), odd = i_odd(four[v]);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                ivec *sum = &sums[r * vectors + v];
                *sum = i_pair_dot(i_set(a[r * FEW_STRIDE]), even, *sum);
                *sum = i_pair_dot(i_set(a[r * FEW_STRIDE + 1]), odd, *sum);
            }
        }
#endif
    }
#ifdef I_DOT
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++)
        if (first)
            i_store(t->offsets + v * LANES, offsets[v]);
        else
            offsets[v] = i_load(t->offsets + v * LANES);
#pragma GCC unroll 32
    for (int i = 0; i < rows * vectors; i++) sums[i] = i_sub(sums[i], offsets[i % vectors]);
#endif
    store_products(sums, rows, vectors, t);
}

#ifndef I_DOT
/* Many rows: `k` counts words of A. */
INLINE void tall_i8(int rows, const struct tile *t)
{
    const int32_t *a = (const int32_t *)(const void *)t->a, *b = t->b;
    ivec sums[MOST_SUMS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * TALL_VECTORS; i++) sums[i] = i_zero();
#pragma GCC unroll 4
    for (int64_t k = t->k; k > 0; k--, a++, b += TALL_COLUMNS) {
        ivec waiting[TALL_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < TALL_VECTORS; v++) waiting[v] = i_load(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const ivec x = i_set(a[r * A_STRIDE]);
#pragma GCC unroll 16
            for (int v = 0; v < TALL_VECTORS; v++) {
                ivec *sum = &sums[r * TALL_VECTORS + v];
                *sum = i_pair_dot(x, waiting[v], *sum);
            }
        }
    }
    store_products(sums, rows, TALL_VECTORS, t);
}

/* A strip of B for tall tiles, of k rows: its words taken apart. */
static const void *make_i8_strip(float *strip, const char *b, int64_t k)
{
    int32_t *out = (int32_t *)(void *)strip;
    for (int64_t i = 0; i < (k + 3) / 4; i++, b += COT_PANEL * 4, out += 2 * TALL_COLUMNS)
        for (int v = 0; v < TALL_VECTORS; v++) {
            const ivec four = i_load(b + v * LANES * 4);
            i_store(out + v * LANES, i_even(four));
            i_store(out + TALL_COLUMNS + v * LANES, i_odd(four));
        }
    return strip;
}
#endif
