/* The gate of a shared expert, where it has one. */
#ifndef COT_MOE_SHARED_H
#define COT_MOE_SHARED_H
#include "kernels/kernels.h"

/* y [H] *= sigmoid(x . gate), the sum in one fixed order. */
void cot_moe_shared_gate(const cot_kernels *kernels, float *y, const float *x, const float *gate,
                         int64_t hidden);

#endif
