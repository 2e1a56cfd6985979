/* Rows of A for products with groups (grouped.h). */
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
