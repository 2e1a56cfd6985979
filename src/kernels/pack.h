/* The packed form of a weight (or of a KV page): what the second operand of cot_gemm looks like in memory.
 *
 *   panel p = columns 32p .. 32p+31 of B [K][N], K rounded up to even, columns and rows beyond N and K are zero
 *
 *   F32:   b[p][k][32]           k = 0 .. K-1          column n, row k at  p * stride + k * 32 + n % 32
 *   BF16:  b[p][k / 2][32][2]    pairs of rows         column n, row k at  p * stride + (k / 2) * 64 + n % 32 * 2 + k % 2
 *
 *   I8:    s[p][32], then b[p][k / 4][32][4], K rounded up to 4; the element is the whole number times s[p][n % 32] (fp32),
 *          column n, row k at  p * stride + 128 + (k / 4) * 128 + n % 32 * 4 + k % 4
 *
 * One layout for every instruction set: a 512-bit load holds 16 columns of a pair of rows, as VDPBF16PS wants them; a
 * 256-bit load holds 8, which a shift and a mask turn into two fp32 vectors. */
#ifndef COT_KERNELS_PACK_H
#define COT_KERNELS_PACK_H
#include "base/dtype.h"
#include <stdint.h>

enum { COT_PANEL = 32 };

/* Elements from one panel to the next of a B of F32, BF16 or I8 with k rows. */
int64_t cot_panel_stride(cot_dtype type, int64_t k);
enum { COT_SCALE_BYTES = COT_PANEL * 4 }; // before the whole numbers of an I8 panel
/* Elements from one panel to the next of a B of F32 or BF16 with k rows: 32 * k, k rounded up to even. */
int64_t cot_panel_elements(int64_t k);
static inline int64_t cot_panels(int64_t n)
{
    return (n + COT_PANEL - 1) / COT_PANEL;
}
/* Bytes of a packed [k][n] of type F32, BF16 or I8; a multiple of 64. */
int64_t cot_packed_bytes(cot_dtype type, int64_t k, int64_t n);

/* Packs columns n0 .. n0+count-1 of B, given as `count` rows of k elements (a checkpoint's [out][in] weight), `stride`
 * elements apart, of source type F32, BF16 or F16. The column that completes the last panel (n0 + count == n) also
 * zeroes that panel's columns beyond n; rows beyond k are zeroed always. `b` needs no clearing before. `source` may be
 * at any alignment. Thread-safe on disjoint panels. I8: a column's scale is its greatest magnitude over 127, so that the
 * error of an element is at most half of that (elements are finite). */
void cot_pack_columns(void *b, cot_dtype type, int64_t k, int64_t n, int64_t n0, int64_t count,
                      const void *source, cot_dtype source_type, int64_t stride);
/* Packs rows k0 .. k0+count-1 of B, given as `count` rows of n elements, `stride` apart. The same zeroing: columns beyond n
 * always, the padding row with the last row. Rows come in ascending order, whole pairs at a time but for the last. */
void cot_pack_rows(void *b, cot_dtype type, int64_t k, int64_t n, int64_t k0, int64_t count,
                   const void *source, cot_dtype source_type, int64_t stride);

/* KV pages: one column (k floats) or one row (n floats) of a B that was zeroed when its page was handed out, panels
 * `panel_stride` elements apart. Bytes of other columns and rows are untouched. */
void cot_pack_column(void *b, cot_dtype type, int64_t panel_stride, int64_t column, const float *x,
                     int64_t k);
void cot_pack_row(void *b, cot_dtype type, int64_t panel_stride, int64_t row, const float *x, int64_t n);

#endif
