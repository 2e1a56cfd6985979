/* Rows of A for products with groups (grouped.h). */
enum {
    GROUP = COT_SUM_K,       // rows of a group
    GROUP_LOADS = GROUP / 8, // lines of words of it, of four bits
    BYTE_LOADS = GROUP / 4,  // and of bytes
    WHOLE_WORDS = GROUP / 4, // of a rounded row of A
    AHEAD_BYTES = 5120,      // how far on memory is asked for: its latency, and a strip of four bits
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

/* What is added to whole numbers to make them unsigned, as I_DOT wants bytes; w_bytes adds it to those of four bits anyway. */
INLINE int32_t whole_offset(const cot_gemm *g)
{
    if (!is_of_bytes(g)) return nibbles_of(g)->offset;
    return FOUR_WORDS == 1 ? 128 : 0;
}
/* Words of a rounded row's four elements: of bytes as i_pair_dot wants them two. */
INLINE int whole_words_of_four(bool bytes)
{
    return bytes ? FOUR_WORDS : 1;
}

/* Bytes of eight rows as rows 0, 4, 1, 5, 2, 6, 3, 7, which is how w_bytes has them. */
INLINE uint64_t interleave(uint64_t eight)
{
    uint64_t low = eight & 0xffffffffu, high = eight >> 32;
    low = (low | low << 16) & 0x0000ffff0000ffffu;
    high = (high | high << 16) & 0x0000ffff0000ffffu;
    return ((low | low << 8) & 0x00ff00ff00ff00ffu) | ((high | high << 8) & 0x00ff00ff00ff00ffu) << 8;
}

/* The sum of a group of signed bytes: made unsigned, in sums of 16 bits. */
INLINE int32_t sum_bytes_of(const uint64_t eights[GROUP / 8])
{
    const uint64_t even = 0x00ff00ff00ff00ffu;
    uint64_t sums = 0;
    for (int i = 0; i < GROUP / 8; i++) {
        const uint64_t x = eights[i] ^ 0x8080808080808080u;
        sums += (x & even) + (x >> 8 & even);
    }
    return (int32_t)(sums * 0x0001000100010001u >> 48) - GROUP * 128;
}

/* A block of whole numbers, 0 beyond it: interleaved; for words of bytes in order, or as pairs of even ones and of odd ones. */
static void put_whole(float *out, const int8_t *whole, uint64_t *eights, bool of_bytes)
{
    int16_t halves[COT_QUANT_K];
    if (of_bytes && FOUR_WORDS > 1) {
        for (int i = 0; i < COT_QUANT_K; i++) halves[i] = whole[i / 4 * 4 + i % 2 * 2 + i % 4 / 2];
        memcpy(out, halves, sizeof halves);
        return;
    }
    for (int i = 0; i < COT_QUANT_K / 8 && !of_bytes; i++) eights[i] = interleave(eights[i]);
    memcpy(out, eights, COT_QUANT_K);
}

static void load_block(float *wide, const cot_gemm *g, int64_t at, int64_t count)
{
    if (g->type == COT_F32)
        memcpy(wide, (const float *)g->a + at, (size_t)count * sizeof *wide);
    else
        for (int64_t i = 0; i < count; i++) wide[i] = cot_bf16_to_f32(((const uint16_t *)g->a)[at + i]);
}

/* Rounded rows, 0 beyond k; their scales, and each group's sums. */
static void lay_out_whole_row(float *out, float *scales, int32_t *offsets, float *sums, const cot_gemm *g,
                              int64_t at, int64_t k)
{
    const bool of_bytes = is_of_bytes(g);
    const int32_t offset = whole_offset(g);
    const float unit = of_bytes ? 1 : nibbles_of(g)->unit;
    for (int64_t k0 = 0; k0 < k; k0 += COT_QUANT_K) {
        const int64_t count = k - k0 < COT_QUANT_K ? k - k0 : COT_QUANT_K;
        float wide[COT_QUANT_K];
        int8_t whole[COT_QUANT_K] = {0};
        uint64_t eights[COT_QUANT_K / 8];
        load_block(wide, g, at + k0, count);
        *scales++ = round_row(whole, wide, count) * unit;
        memcpy(eights, whole, sizeof eights);
        for (int64_t i = 0; i < count; i += GROUP) {
            const int32_t sum = sum_bytes_of(eights + i / 8);
            *offsets++ = -offset * sum;
            *sums++ = (float)sum;
        }
        put_whole(out, whole, eights, of_bytes);
        out += COT_QUANT_K / 4 * whole_words_of_four(of_bytes);
    }
}

/* Sums of a row's groups, each in order; those of a block side by side. */
static void add_groups(float *sums, const cot_gemm *g, int64_t at, int64_t k)
{
    enum { BLOCK_GROUPS = COT_QUANT_K / GROUP };
    for (int64_t k0 = 0; k0 < k; k0 += COT_QUANT_K) {
        const int64_t count = k - k0 < COT_QUANT_K ? k - k0 : COT_QUANT_K;
        float wide[COT_QUANT_K] = {0}, sum[BLOCK_GROUPS] = {0};
        load_block(wide, g, at + k0, count);
        for (int j = 0; j < GROUP; j++)
#pragma GCC unroll 8
            for (int i = 0; i < BLOCK_GROUPS; i++) sum[i] += wide[i * GROUP + j];
        for (int64_t i = 0; i * GROUP < count; i++) *sums++ = sum[i];
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
