/* Making the packed form of a weight (format.h), or of a KV page: what the second operand of cot_gemm looks like in
 * memory. */
#ifndef COT_KERNELS_PACK_H
#define COT_KERNELS_PACK_H
#include "kernels/format.h"
#include "kernels/quantise.h"

/* Packs columns n0 .. n0+count-1 of B, given as `count` rows of k elements (a checkpoint's [out][in] weight), `stride`
 * elements apart, of source type F32, BF16 or F16. The column that completes the last panel (n0 + count == n) also
 * zeroes that panel's columns beyond n; rows beyond k are zeroed always. `b` needs no clearing before. `source` may be
 * at any alignment. Thread-safe on disjoint panels. Formats with scales, plain kinds alone: elements, which are finite, are
 * rounded (quantise.h); of INT8 a column's scale is its greatest magnitude over 127, so that the error of an element is at
 * most half of that. */
void cot_pack_columns(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                      const void *source, cot_dtype source_type, int64_t stride);

/* The same of rows that have codes already; every format with scales. Scales and offsets must be numbers that the format's types
 * hold: nothing is rounded. */
void cot_pack_codes(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                    const cot_codes *rows);

/* A stored matrix that keeps its form: `columns` rows of k elements, as a checkpoint has them. MXFP4: two elements a byte, the
 * first one low; a scale (E8M0) for each 32. Blocks: those of a row from the one on that has its first element; of NVFP4 a scale
 * (F32) for each row, else none. */
typedef struct cot_pack_source {
    const uint8_t *data, *scales;
    int64_t stride, scale_stride; // bytes from row to row
} cot_pack_source;

/* The same of rows that are stored in the packed format (MXFP4, k a multiple of 32; blocks): nothing is rounded. */
void cot_pack_stored(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                     const cot_pack_source *source);

/* Rows of a matrix [out][in] as a checkpoint has them, in one of three forms: as they are stored, as codes, or as numbers. */
typedef struct cot_pack_input {
    const cot_pack_source *stored; // or NULL
    const cot_codes *codes;        // or NULL
    const void *numbers;           // F32, BF16 or F16, rows `stride` elements apart
    cot_dtype type;
    int64_t stride;
} cot_pack_input;

/* cot_pack_stored, cot_pack_codes or cot_pack_columns. */
void cot_pack_any(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                  const cot_pack_input *rows);
/* `n` numbers of type F32, BF16 or F16, at any alignment, as floats. */
void cot_pack_floats(float *out, const void *source, cot_dtype source_type, int64_t n);

/* Packs rows k0 .. k0+count-1 of B, FP32 or BF16, given as `count` rows of n elements, `stride` apart. The same zeroing:
 * columns beyond n always, the padding row with the last row. Rows come in ascending order, whole pairs at a time but for the
 * last. */
void cot_pack_rows(void *b, cot_format format, int64_t k, int64_t n, int64_t k0, int64_t count,
                   const void *source, cot_dtype source_type, int64_t stride);

/* KV pages: one column (k floats) or one row (n floats) of a B that was zeroed when its page was handed out, panels
 * `panel_bytes` apart; FP32 or BF16. Bytes of other columns and rows are untouched. */
void cot_pack_column(void *b, cot_format format, int64_t panel_bytes, int64_t column, const float *x,
                     int64_t k);
void cot_pack_row(void *b, cot_format format, int64_t panel_bytes, int64_t row, const float *x, int64_t n);

#endif
