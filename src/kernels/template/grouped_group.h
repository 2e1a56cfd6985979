/* A group of a panel, and what goes over panels side by side (grouped.h). */
/* A panel, and its sums for a range of k. */
struct panel {
    const char *b, *end, *next; // end of the range, and what is read after it; perhaps that is not there
    float *sums;                // [rows][COT_PANEL]
};

/* What a line of words holds, known where it is compiled: eight rows of four bits, or four rows of bytes. */
enum elements { FOUR_BITS, WHOLE_BYTES, E4M3_BYTES };

/* Panels side by side, whose groups are read in turn, by few rows of V_DOT or I_DOT: the chains of their sums hide each other's
 * latency. */
enum { SIDE_SUMS = 16 };
INLINE int side_of(int64_t rows)
{
    return rows <= 3 ? WIDE_PANELS : 1;
}
/* Whether memory is asked for what is read later. By fewer rows the processor's own prefetchers bring more, as long as nothing is
 * asked for beside what is read in order. */
INLINE bool asks(int64_t rows)
{
    return rows > 2;
}

struct panels {
    const struct block *block;
    const struct grouped_rows *rows;
    int count;
    cot_panel_blocks blocks;
    int shift;           // a block's rows are 1 << shift; 0: they are no power of two, 31: all
    int64_t scale_bytes; // of one
    cot_dtype scale_type;
    bool zeros;
    struct panel of[WIDE_PANELS];
};

/* A panel's group from row k of the block on. */
struct group {
    const char *words, *ahead; // ahead: a group that is read later
    const uint8_t *scales, *offsets;
};

/* Where in a panel the group from row k of the block on is. */
struct spot {
    int64_t words, scales, offsets;
    int64_t header; // bytes before its words where it begins a block, else 0
};
INLINE struct spot spot_of(const struct panels *all, int64_t k)
{
    const cot_panel_blocks *b = &all->blocks;
    const uint32_t at = (uint32_t)(all->block->k0 + k),
                   block = all->shift ? at >> all->shift : at / (uint32_t)b->rows;
    const int64_t begin = block * b->bytes, row = at - block * b->rows,
                  group = b->groups > 1 ? row / GROUP : 0; // groups of more rows have a block each
    return (struct spot){begin + b->words + row * b->row_bytes, begin + group * b->scale_bytes,
                         begin + b->offsets + group * COT_PANEL * 2, row ? 0 : b->words};
}

/* What is read AHEAD_BYTES later: behind the panel's end, of what is read next. */
INLINE const char *ahead_of(const struct panel *p, const char *at)
{
    at += AHEAD_BYTES;
    return at < p->end ? at : p->next + (at - p->end);
}
INLINE struct group group_of(const struct panel *p, const struct spot *at, bool ask)
{
    struct group g = {.words = p->b + at->words,
                      .scales = (const uint8_t *)p->b + at->scales,
                      .offsets = (const uint8_t *)p->b + at->offsets};
    if (!ask) return g;
    g.ahead = ahead_of(p, g.words);
    for (int64_t before = at->header; before > 0; before -= LINE)
        __builtin_prefetch(ahead_of(p, g.words - before), 0, 2);
    return g;
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
INLINE const char *words_of_group(const struct group *g, int l, int column, bool ask)
{
    const int at = l * COT_WORDS_BYTES + column * 4;
    if (ask && at % LINE == 0) __builtin_prefetch(g->ahead + at, 0, 2);
    return g->words + at;
}

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

/* Sums of a group of `count` panels by few rows, scaled and added to those of all groups: sums [count][rows][COT_PANEL]. */
INLINE void add_groups_of(int rows, int count, const struct panels *all, const struct group *groups,
                          int64_t k, const vec *sum, float *sums)
{
    const int across = count * PANEL_VECTORS;
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < PANEL_VECTORS; v++) {
            const vec scale = scales_from(all, &groups[i], v * LANES),
                      offset = offsets_from(all, &groups[i], v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                float *c = sums + (i * rows + r) * COT_PANEL + v * LANES;
                const vec whole = add_offset(all, sum[r * across + i * PANEL_VECTORS + v], offset, r, k);
                v_store(c, v_fma(whole, scale, v_load(c)));
            }
        }
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

/* Panels side by side by all rows of the block. */
typedef void panels_function(const struct panels *all);
#define EACH_ELEMENTS(X, rows) X(rows, FOUR_BITS) X(rows, WHOLE_BYTES) X(rows, E4M3_BYTES)
/* Rows cut into tiles of about one height, at most SHORT_ROWS of them. */
#define CUT_ROWS(rows, tiles, ...)                                                                           \
    for (int64_t cuts = ((rows) + SHORT_ROWS - 1) / SHORT_ROWS, t = 0; t < cuts; t++)                        \
    tiles[(rows) * (t + 1) / cuts - (rows)*t / cuts](__VA_ARGS__, (rows)*t / cuts)
