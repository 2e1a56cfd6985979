/* The operator `cuda`: the fused operator as one launch for all ranks, behind moe's seam; and `cuda-bulk`, its baseline. Ranks are threads of one process; they
 * arrive, and the last one launches for all (docs/DEVICE.md). */
#ifndef COT_CUDA_MODULE_OPERATOR_H
#define COT_CUDA_MODULE_OPERATOR_H
#include "cuda/module/device.h"

#define COT_CUDA_OPERATOR "cuda"
#define COT_CUDA_BULK_OPERATOR "cuda-bulk"
extern const cot_moe_operator cot_cuda_operator, cot_cuda_bulk_operator;

/* The device that operators are opened on from now on; those that are open keep theirs. NULL: none, and open refuses. */
void cot_cuda_operator_use(const cot_cuda_device *device);

/* forward whose y, experts, weights and x are device memory, of a device that this process's primary context is of. Where some
 * ranks call this and some the other, each has its rows where it says. After an error what y holds is not known. Errors: also
 * INVALID_ARGUMENT, on all ranks and with nothing launched, where x is not aligned to 16 bytes (to 4 where 4 does not divide H), y
 * and weights to 4, experts to 2. */
cot_status cot_cuda_forward_device(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                   float *weights, const float *x, int64_t tokens, cot_error *error);

#endif
