/* Several products at once, cut into tasks over a pool. No sum is cut: tasks are pieces of rows and panels. */
#ifndef COT_KERNELS_MATMUL_H
#define COT_KERNELS_MATMUL_H
#include "base/pool.h"
#include "kernels/kernels.h"

/* Runs `count` independent products (their C do not overlap). pool may be NULL. Never allocates. Results do not depend on
 * the pool. */
void cot_matmul(const cot_kernels *kernels, cot_pool *pool, const cot_gemm *gemms, int64_t count);

#endif
