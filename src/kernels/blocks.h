/* GGUF's blocks: elements of a row in few bits, with scales among them; folders' NVFP4 is laid out so, too. */
#ifndef COT_KERNELS_BLOCKS_H
#define COT_KERNELS_BLOCKS_H
#include "kernels/kernels.h"

enum {
    COT_BLOCKS_GROUP = 32,
    COT_BLOCKS_LONGEST = 256
}; // elements that share a scale, of forms that keep it; of a block

/* Whether blocks of this kind are read. */
bool cot_blocks_are_read(cot_tensor_blocks kind);
/* Bytes of n elements, which are whole blocks. */
size_t cot_blocks_bytes(cot_tensor_blocks kind, int64_t n);
/* n elements, which are whole blocks, as floats: each exactly what the format says in fp32 arithmetic. */
void cot_blocks_decode(float *out, const void *blocks, cot_tensor_blocks kind, int64_t n);

/* The format that holds blocks of this kind without rounding, or COT_FORMATS: there is none, they have to be widened. */
cot_format cot_blocks_format(cot_tensor_blocks kind);
/* Of blocks that INT4 or INT8 hold, 32 elements from element `at` of a tensor on, a multiple of 32: their codes; returns the scale. */
float cot_blocks_codes(int8_t codes[COT_BLOCKS_GROUP], const void *tensor, cot_tensor_blocks kind,
                       int64_t at);
/* Of a block of MXFP4, 32 elements from element `at` on: two codes a byte, neighbours, the first one low; and the scale. */
void cot_blocks_turn(uint8_t codes[COT_BLOCKS_GROUP / 2], uint8_t *scale, const void *tensor, int64_t at);

/* Whether n elements, which are whole blocks of a format of blocks, are neither NaN nor infinite, whatever their codes. */
bool cot_blocks_are_finite(const void *blocks, cot_tensor_blocks kind, int64_t n);
/* Block `at` of column `column` of a packed panel, as floats, its column's scale included. */
void cot_blocks_of_panel(float *out, const void *panel, cot_format format, int64_t column, int64_t at);
/* Rows [k0, k0 + rows) of a panel of a product whose B is of blocks, as a packed panel of FP32 of whole pairs of rows. */
void cot_blocks_strip(float *strip, const cot_gemm *gemm, int64_t panel, int64_t k0, int64_t rows);
/* Of NVFP4, whose elements lie two a byte, neighbours, the first one low, with a scale (E4M3) for each 16: `n` elements, a multiple of
 * 16, as blocks; beyond n they are zero. */
void cot_blocks_gather(uint8_t *blocks, const uint8_t *codes, const uint8_t *scales, int64_t n);

#endif
