/* Rounding numbers to few bits: the one place that decides scales and codes, whoever packs or writes them. Deterministic and
 * the same on every machine. */
#ifndef COT_KERNELS_QUANTISE_H
#define COT_KERNELS_QUANTISE_H
#include "kernels/format.h"

/* Rows of codes, one a byte: whole numbers (INT8, INT4), bytes of E4M3 (FP8) or four bits of E2M1 (MXFP4). */
typedef struct cot_codes {
    int8_t *codes;  // [rows][k]
    float *scales;  // [rows][groups]
    float *offsets; // [rows][groups], or NULL without zero points
} cot_codes;

/* INT8 and FP8 of numbers whose greatest magnitude is `most`: the scale is that over 127 or 448. Where it is too small for
 * its reciprocal all codes are 0, and the scale is 1. */
float cot_quantise_scale(cot_format kind, float most);
void cot_quantise_by_most(int8_t *codes, cot_format kind, const float *x, int64_t n, float most);
/* INT4 and MXFP4 of a group of n <= 32 finite numbers; returns the scale, bf16 or a power of two, by which the squares of
 * errors are least among a few dozen (INT4) or three (MXFP4). */
float cot_quantise_group(int8_t *codes, cot_format kind, const float *x, int64_t n);

/* A row of k finite numbers in the kind's own groups: codes [k], scales [groups]. */
void cot_quantise_row(int8_t *codes, float *scales, cot_format kind, const float *x, int64_t k);

#endif
