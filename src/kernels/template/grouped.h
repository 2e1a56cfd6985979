/* Formats with scales, but for INT8 by rounded rows: COT_SUM_K rows of a panel, a group here, are widened once and multiplied
 * with every row of A, however many those are. So a sum is the same chain whatever the company. By few rows a group's words are
 * read once in their order and widened in registers, where the sums of all columns wait: their chains hide each other's
 * latency. For more rows a group is widened into a strip that the first cache keeps, and tiles go down it.
 *
 * The floor, 64 bytes of four bits by one row on Zen 4: VPERMW and shifts have two of the four units of 256 bits, VDPBF16PS two, one of
 * them shared: 22 halves in 7.3 cycles by bf16; by whole numbers 14 halves on all four in 3.5.
 *
 * What an instruction set brings (x86/avx512_widen.h and the like):
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
    AHEAD_LINES = 16,        // and of their scales
    AHEAD_BYTES = 4096,      // of each panel, how far on words are asked for: memory's latency
    PAIR_ROWS = 8,           // up to here rows' sums of a group wait in registers while its words are widened
    FMA_ROWS = 2,            // the same of rows of fp32
    REACH = BLOCK_ROWS / PAIR_ROWS // and they have the room of so many: a range of k that is longer by that
};

/* What rows of A are laid out for, besides the rows themselves: [rows][reach GROUPS] of each. */
struct grouped_rows {
    int64_t reach;                        // 1 or REACH
    int32_t offsets[BLOCK_ROWS * GROUPS]; // what codes' offset adds to a rounded group's sum, to be taken off
    float sums[BLOCK_ROWS * GROUPS];      // of a group's elements, for zero points
};

static int64_t reach_of(const struct block *block)
{
#ifdef V_DOT
    const bool pairs = block->g->rounded || block->g->type == COT_BF16;
#else
    const bool pairs = block->g->rounded;
#endif
    return block->rows <= (pairs ? PAIR_ROWS : FMA_ROWS) ? REACH : 1;
}

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
    const int64_t groups = rows->reach * GROUPS, whole = (block->k + GROUP - 1) / GROUP * GROUP;
    for (int64_t r = 0; r < block->rows; r++) {
        const int64_t row = g->a_rows ? g->a_rows[block->m0 + r] : block->m0 + r,
                      at = row * g->a_stride + block->k0;
        float *out = block->a + r * rows->reach * FEW_STRIDE;
        if (g->rounded) {
            lay_out_whole_row(out, block->scales + r * rows->reach * SCALES, rows->offsets + r * groups,
                              rows->sums + r * groups, g, at, block->k);
            continue;
        }
        if (cot_format_zeros(g->format)) add_groups(rows->sums + r * groups, g, at, block->k);
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
    __builtin_prefetch(g.scales + AHEAD_LINES * COT_PANEL * all->scale_bytes, 0, 3);
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
    return v_fma(offset, v_set(all->rows->sums[row * all->rows->reach * GROUPS + k / GROUP]), sum);
}

/* Line l of a group's words, of which the columns from `column` on; memory is asked for as much of the group ahead, so that it
 * is a little each time. */
INLINE const char *words_of_group(const struct group *g, int l, int column)
{
    const int at = l * COT_WORDS_BYTES + column * 4;
    if (at % LINE == 0) __builtin_prefetch(g->ahead + at, 0, 2);
    return g->words + at;
}

/* What a line of words holds, known where it is compiled: eight rows of four bits, or four rows of bytes. */
enum elements { FOUR_BITS, WHOLE_BYTES, E4M3_BYTES };
INLINE enum elements elements_of(const cot_gemm *g)
{
    return !is_of_bytes(g)                                ? FOUR_BITS
           : cot_format_kind(g->format) == COT_FORMAT_FP8 ? E4M3_BYTES
                                                          : WHOLE_BYTES;
}
INLINE vec widen_byte(enum elements of, ivec words, int place)
{
    return of == E4M3_BYTES ? w_e4m3(words, place) : w_byte(words, place);
}

/* Sums of a group, of the rows from `row` on and some vectors of columns, scaled and added to those of all groups. */
INLINE void add_group(int rows, int vectors, const struct panels *all, const struct group *g, int64_t row,
                      int column, int64_t k, const vec *sum, float *sums)
{
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++, column += LANES) {
        const vec scale = scales_from(all, g, column), offset = offsets_from(all, g, column);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            float *c = sums + (row + r) * COT_PANEL + column;
            const vec whole = add_offset(all, sum[r * vectors + v], offset, row + r, k);
            v_store(c, v_fma(whole, scale, v_load(c)));
        }
    }
}

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
enum { MOST_WIDE = 8 };
INLINE int rows_of_line(enum elements of)
{
    return of == FOUR_BITS ? 8 : 4;
}
INLINE int lines_of(enum elements of)
{
    return of == FOUR_BITS ? GROUP_LOADS : BYTE_LOADS;
}

/* A group by few rows of fp32. */
INLINE void fma_group(int rows, enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                      int64_t line)
{
    const int lines = lines_of(of), step = rows_of_line(of);
    const struct nibbles *codes = nibbles_of(all->block->g);
    const struct group g = group_of(all, p, k, line);
    const float *a = all->block->a + k;
    vec sum[FMA_ROWS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows * PANEL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 1
    for (int l = 0; l < lines; l++, a += step)
#pragma GCC unroll 4
        for (int v = 0; v < PANEL_VECTORS; v++) {
            vec wide[MOST_WIDE];
            widen_line(of, words_of_group(&g, l, v * LANES), codes, wide);
#pragma GCC unroll 8
            for (int i = 0; i < step; i++)
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    sum[r * PANEL_VECTORS + v] =
                        v_fma(v_set(a[r * REACH * FEW_STRIDE + i]), wide[i], sum[r * PANEL_VECTORS + v]);
        }
    add_group(rows, PANEL_VECTORS, all, &g, 0, 0, k, sum, p->sums);
}

INLINE void strip_rows(int rows, const struct panels *all, const struct group *g, int64_t row, int column,
                       int64_t k, const float *strip, float *sums)
{
    vec sum[MOST_SUMS];
    const float *a = all->block->a + row * FEW_STRIDE + k;
#pragma GCC unroll 32
    for (int i = 0; i < rows * TALL_VECTORS; i++) sum[i] = v_zero();
#pragma GCC unroll 4
    for (int i = 0; i < GROUP; i++)
        multiply_add(sum, rows, TALL_VECTORS, a + i, FEW_STRIDE, F32_ROW, strip + i * TALL_COLUMNS, 0);
    add_group(rows, TALL_VECTORS, all, g, row, column, k, sum, sums);
}

/* By more rows: TALL_COLUMNS columns at a time, as rows of fp32 in the first cache. */
INLINE void strip_group(enum elements of, const struct panels *all, const struct panel *p, int64_t k,
                        int64_t line)
{
    enum { HALF = TALL_ROWS / 2 };
    alignas(64) float strip[GROUP * TALL_COLUMNS];
    const int64_t rows = all->block->rows;
    const int lines = lines_of(of), step = rows_of_line(of);
    const struct nibbles *codes = nibbles_of(all->block->g);
    const struct group g = group_of(all, p, k, line);
    for (int column = 0; column < COT_PANEL; column += TALL_COLUMNS) {
        float *out = strip;
        for (int l = 0; l < lines; l++, out += step * TALL_COLUMNS)
            for (int v = 0; v < TALL_VECTORS; v++) {
                vec wide[MOST_WIDE];
                widen_line(of, words_of_group(&g, l, column + v * LANES), codes, wide);
#pragma GCC unroll 8
                for (int i = 0; i < step; i++) v_store(out + i * TALL_COLUMNS + v * LANES, wide[i]);
            }
        int64_t r = 0;
        for (; r + TALL_ROWS <= rows; r += TALL_ROWS)
            strip_rows(TALL_ROWS, all, &g, r, column, k, strip, p->sums);
        for (; r + HALF <= rows; r += HALF) strip_rows(HALF, all, &g, r, column, k, strip, p->sums);
        for (; r < rows; r++) strip_rows(1, all, &g, r, column, k, strip, p->sums);
    }
}

/* Panels side by side by all rows of the block. */
typedef void panels_function(const struct panels *all);
#define EACH_ELEMENTS(X, rows) X(rows, FOUR_BITS) X(rows, WHOLE_BYTES) X(rows, E4M3_BYTES)
#define DEFINE_PANELS(name, call)                                                                            \
    static void name(const struct panels *all)                                                               \
    {                                                                                                        \
        for (int64_t k = 0; k < all->block->k; k += GROUP) {                                                 \
            const int64_t line = scale_line(all->block, k);                                                  \
            for (int i = 0; i < all->count; i++) call;                                                       \
        }                                                                                                    \
    }
#define DEFINE_FMA(rows, kind)                                                                               \
    DEFINE_PANELS(fma_##rows##_##kind, fma_group(rows, kind, all, &all->of[i], k, line))
#define DEFINE_STRIP(rows, kind) DEFINE_PANELS(strip_##kind, strip_group(kind, all, &all->of[i], k, line))
#define FMA_OF(rows, kind) [kind][rows] = fma_##rows##_##kind,
#define STRIP_OF(rows, kind) [kind] = strip_##kind,
EACH_ELEMENTS(DEFINE_FMA, 1)
EACH_ELEMENTS(DEFINE_FMA, 2)
EACH_ELEMENTS(DEFINE_STRIP, 0)
static panels_function *const fma_panels[][FMA_ROWS + 1] = {EACH_ELEMENTS(FMA_OF, 1)
                                                                EACH_ELEMENTS(FMA_OF, 2)};
static panels_function *const strip_panels[] = {EACH_ELEMENTS(STRIP_OF, 0)};

/* Rows cut into tiles of about one height, at most SHORT_ROWS of them. */
#define CUT_ROWS(rows, tiles, ...)                                                                           \
    for (int64_t cuts = ((rows) + SHORT_ROWS - 1) / SHORT_ROWS, t = 0; t < cuts; t++)                        \
    tiles[(rows) * (t + 1) / cuts - (rows)*t / cuts](__VA_ARGS__, (rows)*t / cuts)

#ifdef V_DOT
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
#endif

/* Rows of fp32 or bf16; those of many rows are entry 0. */
static void float_panels(const struct panels *all)
{
    const struct block *block = all->block;
    const enum elements of = elements_of(block->g);
#ifdef V_DOT
    if (block->g->type == COT_BF16) {
        dot_panels[of][block->rows <= PAIR_ROWS ? block->rows : 0](all);
        return;
    }
#endif
    if (block->rows <= FMA_ROWS)
        fma_panels[of][block->rows](all);
    else
        strip_panels[of](all);
}

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
    rows.reach = reach_of(block);
    const int64_t range = few_range(g) * rows.reach;
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
