/* In a build with the address sanitizer: tiles are left out of it (flags.cmake), and a product looks before it begins at all that
 * it may touch. */
#ifndef COT_KERNELS_EXTENTS_H
#define COT_KERNELS_EXTENTS_H
#include "kernels/kernels.h"

/* Rows [m0, m1) by panels [p0, p1) of the product, as of cot_kernels' gemm; ends the process with the sanitizer's report where memory
 * that they read or write is not there. Thread-safe. */
void cot_gemm_look(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1);

#endif
