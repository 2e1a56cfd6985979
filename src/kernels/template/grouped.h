/* Formats with scales, but for INT8 by rounded rows: COT_SUM_K rows of a few columns, a group here, are widened once, into
 * registers or into a strip that the first cache keeps, and then multiplied with every row of A, however many those are. So a
 * sum is the same chain whatever the company. What an instruction set brings (x86/avx512_widen.h and the like):
 *
 *   w_scales(bytes)               LANES scales of E8M0
 *   w_pairs(words, codes, pairs)  LANES words of eight elements of four bits: four vectors of pairs of bf16, k ascending
 *   w_first(pairs), w_second(pairs)   the halves of a vector of pairs, as fp32
 *   w_pair(first, second)         pairs of bf16 of two vectors of fp32 that are bf16; where V_DOT is
 *   w_bytes(words, codes, bytes)  LANES words of eight elements of four bits: their whole numbers with codes->offset added, in
 *                                 two vectors of four unsigned bytes a lane: rows 0, 4, 1, 5 and rows 2, 6, 3, 7
 *   w_dot(bytes, a, sum)          sum + the products of a group's eight such vectors with eight words of signed bytes
 *   w_byte(words, place)          byte `place` of LANES words, as signed whole numbers in fp32
 *   w_e4m3(words, place)          the same as E4M3
 *
 * Included by gemm.h. */
enum {
    GROUP = COT_SUM_K,       // rows of a group
    GROUP_LOADS = GROUP / 8, // lines of words of it, of four bits
    BYTE_LOADS = GROUP / 4,  // and of bytes
    WHOLE_WORDS = GROUP / 4, // of a rounded row of A
    AHEAD_BYTES = 4096       // of each panel, how far on words are asked for: memory's latency
};

/* What rows of A are laid out for, besides the rows themselves: [rows][GROUPS] of each. */
struct grouped_rows {
    int32_t offsets[BLOCK_ROWS * GROUPS]; // what codes' offset adds to a rounded group's sum, to be taken off
    float sums[BLOCK_ROWS * GROUPS];      // of a group's elements, for zero points
};

/* Codes of four bits. */
INLINE const struct nibbles *nibbles_of(const cot_gemm *g)
{
    return cot_format_kind(g->format) == COT_FORMAT_INT4 ? &int4_nibbles : &e2m1_nibbles;
}
INLINE bool is_of_bytes(const cot_gemm *g)
{
    return cot_format_row_of(g->format)->bits == 8;
}

/* Rounded rows as w_dot wants them, 0 beyond k; their scales, and each group's sums. */
static void lay_out_whole_row(float *out, float *scales, int32_t *offsets, float *sums, const cot_gemm *g,
                              int64_t at, int64_t k)
{
    const struct nibbles *codes = nibbles_of(g);
    uint8_t *bytes = (uint8_t *)(void *)out;
    for (int64_t k0 = 0; k0 < k; k0 += COT_QUANT_K) {
        const int64_t count = k - k0 < COT_QUANT_K ? k - k0 : COT_QUANT_K;
        float wide[COT_QUANT_K];
        int8_t whole[COT_QUANT_K] = {0};
        if (g->type == COT_F32)
            memcpy(wide, (const float *)g->a + at + k0, (size_t)count * 4);
        else
            for (int64_t i = 0; i < count; i++)
                wide[i] = cot_bf16_to_f32(((const uint16_t *)g->a)[at + k0 + i]);
        *scales++ = round_row(whole, wide, count) * codes->unit;
        for (int64_t i = 0; i < count; i += GROUP) {
            int32_t sum = 0;
            for (int64_t j = i; j < i + GROUP; j++) sum += whole[j];
            *offsets++ = -codes->offset * sum;
            *sums++ = (float)sum;
            for (int64_t j = i; j < i + GROUP; j += 8, bytes += 8) {
                const int8_t *w = whole + j, eight[8] = {w[0], w[4], w[1], w[5], w[2], w[6], w[3], w[7]};
                memcpy(bytes, eight, 8);
            }
        }
    }
}

/* Sums of a row's groups, in order. */
static void add_groups(float *sums, const cot_gemm *g, int64_t at, int64_t k)
{
    for (int64_t i = 0; i < k; i += GROUP, sums++) {
        *sums = 0;
        for (int64_t j = i; j < i + GROUP && j < k; j++)
            *sums += g->type == COT_F32 ? ((const float *)g->a)[at + j]
                                        : cot_bf16_to_f32(((const uint16_t *)g->a)[at + j]);
    }
}

/* The block's rows, whole groups of them. */
static void lay_out_grouped(const struct block *block, struct grouped_rows *rows)
{
    const cot_gemm *g = block->g;
    const int64_t whole = (block->k + GROUP - 1) / GROUP * GROUP;
    for (int64_t r = 0; r < block->rows; r++) {
        const int64_t row = g->a_rows ? g->a_rows[block->m0 + r] : block->m0 + r,
                      at = row * g->a_stride + block->k0;
        float *out = block->a + r * FEW_STRIDE;
        if (g->rounded) {
            lay_out_whole_row(out, block->scales + r * SCALES, rows->offsets + r * GROUPS,
                              rows->sums + r * GROUPS, g, at, block->k);
            continue;
        }
        if (cot_format_zeros(g->format)) add_groups(rows->sums + r * GROUPS, g, at, block->k);
        if (whole > block->k)
            memset(out + words_of(g, block->k) - 1, 0,
                   (size_t)(words_of(g, whole) - words_of(g, block->k) + 1) * 4);
        if (g->type == COT_F32)
            memcpy(out, (const float *)g->a + at, (size_t)block->k * 4);
        else
            lay_out_bf16(out, (const uint16_t *)g->a + at, block->k);
    }
}

/* A panel's words and sums for a range of k; its scales and offsets for all k. */
struct panel {
    const char *words, *end, *next; // next: of what is read after these; perhaps that is not there
    const uint8_t *scales, *offsets;
    float *sums; // [rows][COT_PANEL]
};

/* Panels side by side, whose groups are read in turn: memory gives two streams more than one. */
struct panels {
    const struct block *block;
    const struct grouped_rows *rows;
    int count;
    int64_t group_bytes, scale_bytes; // of a group's words, of one scale
    cot_dtype scale_type;
    bool zeros;
    struct panel of[WIDE_PANELS];
};

/* A panel's group from row k of the block on. */
struct group {
    const char *words, *ahead; // ahead: a group that is read later
    const uint8_t *scales, *offsets;
};

/* Behind the panel's end what is read next is asked for. `line`: which of the panel's scales the group has. */
INLINE struct group group_of(const struct panels *all, const struct panel *p, int64_t k, int64_t line)
{
    struct group g = {.words = p->words + k / GROUP * all->group_bytes,
                      .scales = p->scales + line * COT_PANEL * all->scale_bytes,
                      .offsets = p->offsets + line * COT_PANEL * 2};
    g.ahead = g.words + AHEAD_BYTES;
    if (g.ahead >= p->end) g.ahead = p->next + (g.ahead - p->end);
    __builtin_prefetch(g.scales + AHEAD_BYTES / 512 * COT_PANEL * all->scale_bytes, 0, 3);
    return g;
}

/* The line of scales that the group from row k of the block on has. */
INLINE int64_t scale_line(const struct block *block, int64_t k)
{
    const int64_t rows = cot_format_group(block->g->format);
    return rows == GROUP ? (block->k0 + k) / GROUP
           : rows        ? (int64_t)((uint32_t)(block->k0 + k) / (uint32_t)rows)
                         : 0;
}

INLINE vec scales_from(const struct panels *all, const struct group *g, int column)
{
    const void *at = g->scales + column * all->scale_bytes;
    switch (all->scale_type) {
    case COT_F32:
        return v_load(at);
    case COT_BF16:
        return v_load_bf16(at);
    case COT_F16:
        return v_load_f16(at);
    default:
        return w_scales(at);
    }
}

/* What zero points add to a row's sums; `offset` means nothing without them. */
INLINE vec offsets_from(const struct panels *all, const struct group *g, int column)
{
    return all->zeros ? v_load_bf16((const uint16_t *)(const void *)g->offsets + column) : v_zero();
}
INLINE vec add_offset(const struct panels *all, vec sum, vec offset, int64_t row, int64_t k)
{
    if (!all->zeros) return sum;
    return v_fma(offset, v_set(all->rows->sums[row * GROUPS + k / GROUP]), sum);
}

/* Line l of a group's words, of which the columns from `column` on; memory is asked for as much of the group ahead, so that it
 * is a little each time. */
INLINE const char *words_of_group(const struct group *g, int l, int column)
{
    const int at = l * COT_WORDS_BYTES + column * 4;
    if (at % LINE == 0) __builtin_prefetch(g->ahead + at, 0, 2);
    return g->words + at;
}

/* Row `place` of a line of four rows of bytes. */
INLINE vec widen_byte(const cot_gemm *g, ivec words, int place)
{
    return cot_format_kind(g->format) == COT_FORMAT_FP8 ? w_e4m3(words, place) : w_byte(words, place);
}

#ifdef V_DOT
/* A group of one vector of columns, all sixteen pairs of rows. */
INLINE void widen_pairs(const cot_gemm *gemm, const struct group *g, int column, vec pairs[GROUP / 2])
{
    if (is_of_bytes(gemm)) {
#pragma GCC unroll 8
        for (int l = 0; l < BYTE_LOADS; l++) {
            const ivec x = i_load(words_of_group(g, l, column));
            pairs[2 * l] = w_pair(widen_byte(gemm, x, 0), widen_byte(gemm, x, 1));
            pairs[2 * l + 1] = w_pair(widen_byte(gemm, x, 2), widen_byte(gemm, x, 3));
        }
        return;
    }
    const struct nibbles *codes = nibbles_of(gemm);
#pragma GCC unroll 4
    for (int l = 0; l < GROUP_LOADS; l++) w_pairs(words_of_group(g, l, column), codes, pairs + 4 * l);
}

/* They wait in registers. */
INLINE void dot_rows(int rows, const struct panels *all, int64_t row, int64_t k, const vec *pairs, vec scale,
                     vec offset, float *sums)
{
    vec sum[4];
    const float *a = all->block->a + row * FEW_STRIDE + k / 2;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r] = v_zero();
#pragma GCC unroll 16
    for (int p = 0; p < GROUP / 2; p++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r] = v_dot(v_set(a[r * FEW_STRIDE + p]), pairs[p], sum[r]);
    sums += row * COT_PANEL;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        v_store(sums + r * COT_PANEL,
                v_fma(add_offset(all, sum[r], offset, row + r, k), scale, v_load(sums + r * COT_PANEL)));
}

static void pairs_group(const struct panels *all, const struct panel *p, int64_t k, int64_t line)
{
    const struct block *block = all->block;
    const struct group g = group_of(all, p, k, line);
#pragma GCC unroll 2
    for (int v = 0; v < PANEL_VECTORS; v++) {
        vec pairs[GROUP / 2];
        widen_pairs(block->g, &g, v * LANES, pairs);
        const vec scale = scales_from(all, &g, v * LANES), offset = offsets_from(all, &g, v * LANES);
        float *sums = p->sums + v * LANES;
        int64_t r = 0;
        for (; r + 4 <= block->rows; r += 4) dot_rows(4, all, r, k, pairs, scale, offset, sums);
        if (block->rows - r >= 2) {
            dot_rows(2, all, r, k, pairs, scale, offset, sums);
            r += 2;
        }
        if (r < block->rows) dot_rows(1, all, r, k, pairs, scale, offset, sums);
    }
}
#endif

/* A group of TALL_COLUMNS columns, as rows of fp32 in the first cache. */
INLINE void widen_strip(const cot_gemm *gemm, const struct group *g, int column, float *strip)
{
    const struct nibbles *codes = nibbles_of(gemm);
    if (is_of_bytes(gemm)) {
        for (int l = 0; l < BYTE_LOADS; l++)
            for (int v = 0; v < TALL_VECTORS; v++) {
                const ivec x = i_load(words_of_group(g, l, column + v * LANES));
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                    v_store(strip + (4 * l + i) * TALL_COLUMNS + v * LANES, widen_byte(gemm, x, i));
            }
        return;
    }
    for (int l = 0; l < GROUP_LOADS; l++)
        for (int v = 0; v < TALL_VECTORS; v++) {
            vec pairs[4];
            w_pairs(words_of_group(g, l, column + v * LANES), codes, pairs);
            float *out = strip + l * 8 * TALL_COLUMNS + v * LANES;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++, out += 2 * TALL_COLUMNS) {
                v_store(out, w_first(pairs[i]));
                v_store(out + TALL_COLUMNS, w_second(pairs[i]));
            }
        }
}

INLINE void strip_rows(int rows, const struct panels *all, int64_t row, int64_t k, const float *strip,
                       const vec *scale, const vec *offset, float *sums)
{
    vec sum[MOST_SUMS];
    const float *a = all->block->a + row * FEW_STRIDE + k;
#pragma GCC unroll 32
    for (int i = 0; i < rows * TALL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 4
    for (int i = 0; i < GROUP; i++)
        multiply_add(sum, rows, TALL_VECTORS, a + i, FEW_STRIDE, F32_ROW, strip + i * TALL_COLUMNS, 0);
    sums += row * COT_PANEL;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < TALL_VECTORS; v++) {
            float *c = sums + r * COT_PANEL + v * LANES;
            const vec whole = add_offset(all, sum[r * TALL_VECTORS + v], offset[v], row + r, k);
            v_store(c, v_fma(whole, scale[v], v_load(c)));
        }
}

static void strip_group(const struct panels *all, const struct panel *p, int64_t k, int64_t line)
{
    enum { HALF = TALL_ROWS / 2 };
    alignas(64) float strip[GROUP * TALL_COLUMNS];
    const struct block *block = all->block;
    const struct group g = group_of(all, p, k, line);
    for (int column = 0; column < COT_PANEL; column += TALL_COLUMNS) {
        vec scale[TALL_VECTORS], offset[TALL_VECTORS];
        for (int v = 0; v < TALL_VECTORS; v++) {
            scale[v] = scales_from(all, &g, column + v * LANES);
            offset[v] = offsets_from(all, &g, column + v * LANES);
        }
        widen_strip(block->g, &g, column, strip);
        float *sums = p->sums + column;
        int64_t r = 0;
        for (; r + TALL_ROWS <= block->rows; r += TALL_ROWS)
            strip_rows(TALL_ROWS, all, r, k, strip, scale, offset, sums);
        for (; r + HALF <= block->rows; r += HALF) strip_rows(HALF, all, r, k, strip, scale, offset, sums);
        for (; r < block->rows; r++) strip_rows(1, all, r, k, strip, scale, offset, sums);
    }
}

/* Whole numbers: a group of one vector of columns waits in registers. `totals`: of the COT_QUANT_K elements in hand. */
static void whole_group(const struct panels *all, const struct panel *p, int64_t k, int64_t line,
                        float *totals)
{
    const struct block *block = all->block;
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
        for (int64_t r = 0; r < block->rows; r++, a += FEW_STRIDE, offset += GROUPS, t += COT_PANEL) {
            const vec sum = i_to_f32(w_dot(bytes, a, i_set(*offset)));
            v_store(t, v_fma(add_offset(all, sum, zero, r, k), scale, v_load(t)));
        }
    }
}

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
                const vec scale = v_set(block->scales[r * SCALES + k0 / COT_QUANT_K]);
                for (int v = 0; v < PANEL_VECTORS; v++) {
                    float *c = all->of[i].sums + r * COT_PANEL + v * LANES;
                    v_store(c, v_fma(v_load(totals[i] + r * COT_PANEL + v * LANES), scale, v_load(c)));
                }
            }
    }
}

static void float_panels(const struct panels *all)
{
    const struct block *block = all->block;
    for (int64_t k = 0; k < block->k; k += GROUP) {
        const int64_t line = scale_line(block, k);
        for (int i = 0; i < all->count; i++) {
#ifdef V_DOT
            if (block->g->type == COT_BF16)
                pairs_group(all, &all->of[i], k, line);
            else
#endif
                strip_group(all, &all->of[i], k, line);
        }
    }
}

/* A panel's words from row k on. */
INLINE const char *words_at(const cot_gemm *g, int64_t panel, int64_t k)
{
    return (const char *)g->b + panel_at(g, panel) + cot_scales_bytes(g->format, g->k) +
           word_bytes(g, k) * COT_PANEL;
}

/* The words that are read when those of a panel are done, `count` panels side by side. */
static const char *next_words(const struct block *block, int64_t panel, int count, int64_t range)
{
    const cot_gemm *g = block->g;
    if (panel + count < block->p1) return words_at(g, panel + count, block->k0);
    if (block->k0 + range < g->k)
        return words_at(g, block->p0 + (panel - block->p0) % count, block->k0 + range);
    return words_at(g, panel + count, 0); // of the caller's next call, if it goes on there
}

static int64_t columns_of(const cot_gemm *g, int64_t panel)
{
    return g->n - panel * COT_PANEL < COT_PANEL ? g->n - panel * COT_PANEL : COT_PANEL;
}

/* `count` panels by the block's rows and range of k; C's part of them is copied in and out. */
static void run_panels(const struct block *block, int64_t first, int count, int64_t range,
                       const struct grouped_rows *rows)
{
    alignas(64) float sums[WIDE_PANELS][BLOCK_ROWS * COT_PANEL];
    const cot_gemm *g = block->g;
    struct panels all = {.block = block,
                         .rows = rows,
                         .count = count,
                         .group_bytes = word_bytes(g, GROUP) * COT_PANEL,
                         .scale_type = cot_format_scale(g->format),
                         .zeros = cot_format_zeros(g->format)};
    all.scale_bytes = (int64_t)cot_dtype_bytes(all.scale_type);
    for (int i = 0; i < count; i++) {
        const int64_t at = first + i, columns = columns_of(g, at);
        const char *words = words_at(g, at, block->k0);
        const uint8_t *scales = (const uint8_t *)g->b + panel_at(g, at);
        const float *c = g->c + block->m0 * g->c_stride + at * COT_PANEL;
        all.of[i] = (struct panel){.words = words,
                                   .end = words + (block->k + GROUP - 1) / GROUP * all.group_bytes,
                                   .next = next_words(block, at, count, range),
                                   .scales = scales,
                                   .offsets = scales + cot_scales_offsets_at(g->format, g->k),
                                   .sums = sums[i]};
        if (!block->accumulate || columns < COT_PANEL)
            memset(sums[i], 0, (size_t)(block->rows * COT_PANEL) * 4);
        for (int64_t r = 0; r < block->rows && block->accumulate; r++)
            memcpy(sums[i] + r * COT_PANEL, c + r * g->c_stride, (size_t)columns * 4);
    }
    if (g->rounded)
        whole_panels(&all);
    else
        float_panels(&all);
    for (int i = 0; i < count; i++)
        for (int64_t r = 0; r < block->rows; r++)
            memcpy(g->c + (block->m0 + r) * g->c_stride + (first + i) * COT_PANEL, sums[i] + r * COT_PANEL,
                   (size_t)columns_of(g, first + i) * 4);
}

static void run_grouped(struct block *block, int64_t p0, int64_t p1)
{
    struct grouped_rows rows;
    const cot_gemm *g = block->g;
    const int64_t range = few_range(g);
    if (p1 > cot_panels(g->n)) p1 = cot_panels(g->n);
    block->p0 = p0;
    block->p1 = p1;
    for (block->k0 = 0; block->k0 == 0 || block->k0 < g->k; block->k0 += range) {
        block->k = g->k - block->k0 < range ? g->k - block->k0 : range;
        block->accumulate = g->accumulate || block->k0 > 0;
        lay_out_grouped(block, &rows);
        for (int64_t p = p0; p < p1; p += WIDE_PANELS)
            run_panels(block, p, p + WIDE_PANELS <= p1 ? WIDE_PANELS : (int)(p1 - p), range, &rows);
    }
}
