/* The forms that a weight has in memory. One row of a table says what each is; whoever reads, packs, weighs or multiplies
 * weights reads that row.
 *
 * Every packed matrix B [K][N] is made of panels, each of 32 columns:
 *
 *   panel p = columns 32p .. 32p+31; columns and rows beyond N and K are zero
 *
 *   and a panel of blocks, each of a group of rows, or of as many as fill a cache line with scales:
 *
 *       scales [groups][32]          one for each group of rows of a column; none where the format has no scales
 *       offsets [groups][32]         of bf16, only where the format has zero points; scales and offsets together are
 *                                    rounded up to 64 bytes
 *       words  [rows / step][32]     of 32 bits: `step` rows of a column, K rounded up to `unit`; the last block's may be fewer
 *
 *   so that who goes down a panel reads memory in its order, which is what processors fetch ahead.
 *
 *   fp32    a word is one row
 *   bf16    a word is two rows, the first one low
 *   int8    a word is four rows, byte k % 4; the element is the whole number times its group's scale
 *   fp8     the same with bytes of E4M3
 *   int4    a word is eight rows of four signed bits, the even ones in its low half, the odd ones in its high half, the first
 *           of each lowest; the element is the whole number times its group's scale
 *   mxfp4   the same with four bits of E2M1; scales are E8M0
 *
 *   q4_1 .. nvfp4   GGUF's blocks as files have them (blocks.h), elements, scales and minima in one: instead of scales and words a
 *           panel has [blocks of a column][32] blocks, each of a column's next 32, 64 or 256 rows; those of the first block that
 *           come before the matrix's own rows, and those beyond K, are left as they are and mean nothing (cot_format_skip).
 *           Where the table names a type of scales, as of nvfp4, a scale for each column is before them: [32]
 *
 * With zero points the element is (whole number + offset) times scale. A file's unsigned code q with zero point z is the whole
 * number q - 8 (of eight bits: q - 128), and its offset is 8 - z (128 - z), which bf16 holds exactly.
 *
 * One layout for every instruction set: a 512-bit load holds a word of 16 columns, as VDPBF16PS and VPDPBUSD want them; a
 * 256-bit load holds 8. */
#ifndef COT_KERNELS_FORMAT_H
#define COT_KERNELS_FORMAT_H
#include "base/tensor.h"
#include <stdbool.h>

/* X(NAME, "name", bits, unit, group, type of scales, products, blocks) */
// clang-format off
#define COT_FORMAT_LIST(X) \
    X(FP32, "fp32", 32, 2, 0, COT_DTYPE_COUNT, COT_BY_FP32, COT_BLOCKS_NONE) \
    X(BF16, "bf16", 16, 2, 0, COT_DTYPE_COUNT, COT_BY_BF16, COT_BLOCKS_NONE) \
    X(INT8, "int8", 8, 32, 0, COT_F32, COT_BY_FP32 | COT_BY_BF16 | COT_BY_INT8, COT_BLOCKS_NONE) \
    X(FP8, "fp8", 8, 32, 0, COT_F32, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_NONE) \
    X(INT4, "int4", 4, 32, 32, COT_BF16, COT_BY_FP32 | COT_BY_BF16 | COT_BY_INT8, COT_BLOCKS_NONE) \
    X(MXFP4, "mxfp4", 4, 32, 32, COT_F8_E8M0, COT_BY_FP32 | COT_BY_BF16 | COT_BY_INT8, COT_BLOCKS_NONE) \
    X(Q4_1, "q4_1", 5, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q4_1) \
    X(Q5_0, "q5_0", 5, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q5_0) \
    X(Q5_1, "q5_1", 6, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q5_1) \
    X(IQ4_NL, "iq4_nl", 4, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_IQ4_NL) \
    X(Q2_K, "q2_k", 2, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q2_K) \
    X(Q4_K, "q4_k", 4, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q4_K) \
    X(Q5_K, "q5_k", 5, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q5_K) \
    X(Q6_K, "q6_k", 6, 1, 0, COT_DTYPE_COUNT, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_Q6_K) \
    X(NVFP4, "nvfp4", 4, 1, 0, COT_F32, COT_BY_FP32 | COT_BY_BF16, COT_BLOCKS_NVFP4)
// clang-format on

/* A kind of elements: a row of the table. cot_format_with makes further formats of a kind, whose groups, scales or zero points
 * are not those that the row has; they are numbers beyond COT_FORMATS. */
typedef enum cot_format {
#define COT_FORMAT_ENUM(name, text, bits, unit, group, scale, products, blocks) COT_FORMAT_##name,
    COT_FORMAT_LIST(COT_FORMAT_ENUM)
#undef COT_FORMAT_ENUM
        COT_FORMATS
} cot_format;

/* What the rows of the other operand are when they are multiplied. */
typedef enum cot_format_products {
    COT_BY_FP32 = 1, // rows of fp32
    COT_BY_BF16 = 2, // rows of bf16
    COT_BY_INT8 = 4  // rows of either, rounded to whole numbers (kernels.h)
} cot_format_products;

typedef struct cot_format_row {
    const char *name; // as --weights spells it, and of blocks the file's type
    int bits;  // of an element; 32 / bits rows make a word; of blocks with what its scales take, rounded down
    int unit;  // panels have whole multiples of so many rows
    int group; // rows of a column that share a scale; 0: all of them
    cot_dtype scale;          // type of scales; COT_DTYPE_COUNT: there are none
    unsigned products;        // of COT_BY_*
    cot_tensor_blocks blocks; // NONE: panels of words
} cot_format_row;

extern const cot_format_row cot_formats[COT_FORMATS];

/* The kind of a format, and that kind's row. */
static inline cot_format cot_format_kind(cot_format format)
{
    return (cot_format)((uint32_t)format & 0xff);
}
static inline const cot_format_row *cot_format_row_of(cot_format format)
{
    return &cot_formats[cot_format_kind(format)];
}
/* A kind with other groups (of a multiple of 32 rows below 2^20, or 0: the whole column), scales of F32, F16 or BF16 (INT4; INT8 has F32 or
 * F16, FP8 F32) and perhaps zero points (INT4, INT8). The plain number of the kind where all is as its row says. */
cot_format cot_format_with(cot_format kind, int64_t group, cot_dtype scale, bool zeros);
int64_t cot_format_group(cot_format format); // 0: the whole column
/* The format with the longest groups in which matrices of either can be as they are (a group in several parts, all of its scale),
 * or COT_FORMATS. The other: that of a matrix cut at multiples of so many rows. COT_FORMATS: in no groups of 32 rows and more.
 * Blocks join with their like alone, and whatever is cut keeps them whole (cot_format_skip). */
cot_format cot_format_join(cot_format a, cot_format b);
cot_format cot_format_cut(cot_format format, int64_t rows);
/* Of blocks: a matrix that begins with row `rows` of its first block, of 0 .. the block's elements - 1; and how many rows those are. */
cot_format cot_format_skip(cot_format format, int64_t rows);
int64_t cot_format_skipped(cot_format format);
/* The kind of a format's blocks, NONE where it has words; and how many blocks a column of k rows takes. */
static inline cot_tensor_blocks cot_format_blocks(cot_format format)
{
    return cot_format_row_of(format)->blocks;
}
int64_t cot_format_block_count(cot_format format, int64_t k);
/* Of blocks: bytes of a panel before them, of its columns' scales. */
int64_t cot_format_block_scales(cot_format format);
cot_dtype cot_format_scale(cot_format format);
bool cot_format_zeros(cot_format format);

enum { COT_PANEL = 32, COT_WORDS_BYTES = COT_PANEL * 4 }; // columns of a panel, and a line of their words

/* The format of that name to which numbers can be rounded, or COT_FORMATS. */
cot_format cot_format_parse(const char *name);
/* That of plain numbers of a type: F32 or BF16. */
static inline cot_format cot_format_of(cot_dtype type)
{
    return type == COT_F32 ? COT_FORMAT_FP32 : COT_FORMAT_BF16;
}
/* Whether rows of that type, rounded or not, can be multiplied with it. */
bool cot_format_multiplies(cot_format format, cot_dtype type, bool rounded);

/* Rows of a word; not of blocks. */
static inline int cot_format_step(cot_format format)
{
    return 32 / cot_format_row_of(format)->bits;
}
/* Groups of a column of k rows; 0 without scales. */
int64_t cot_format_groups(cot_format format, int64_t k);
/* The blocks of a panel; one of all rows where a column has one scale, or none. */
typedef struct cot_panel_blocks {
    int64_t rows, groups; // of a block, but for the last; groups 0: no scales
    int64_t scale_bytes;  // of a group's scales
    int64_t offsets; // bytes of a block before its offsets, and before its words, the latter a multiple of 64
    int64_t words;
    int64_t row_bytes; // of words; of rows in whole steps
    int64_t bytes;     // from one block to the next
} cot_panel_blocks;
cot_panel_blocks cot_panel_blocks_of(cot_format format, int64_t k);

/* Bytes of a panel before the words of row k, which begins a word, before group g's scales, and before its offsets. */
static inline int64_t cot_words_at(const cot_panel_blocks *b, int64_t k)
{
    return k / b->rows * b->bytes + b->words + k % b->rows * b->row_bytes;
}
static inline int64_t cot_scales_at(const cot_panel_blocks *b, int64_t g)
{
    return g / b->groups * b->bytes + g % b->groups * b->scale_bytes;
}
static inline int64_t cot_scales_offsets_at(const cot_panel_blocks *b, int64_t g)
{
    return g / b->groups * b->bytes + b->offsets + g % b->groups * COT_PANEL * 2;
}

/* Bytes from one panel to the next of a packed B with k rows; a multiple of 64. */
int64_t cot_panel_bytes(cot_format format, int64_t k);
static inline int64_t cot_panels(int64_t n)
{
    return (n + COT_PANEL - 1) / COT_PANEL;
}
/* Bytes of a packed [k][n]; a multiple of 64. */
int64_t cot_packed_bytes(cot_format format, int64_t k, int64_t n);

#endif
