/* How the device's operator keeps weights: networks as cuda/call.h has them, rows of gate and up in turn, in bf16 or fp32; the
 * router's [E][H]. */
#ifndef COT_CUDA_MODULE_WEIGHTS_H
#define COT_CUDA_MODULE_WEIGHTS_H
#include "cuda/module/house.h"

extern const cot_moe_weights cot_cuda_weights;

/* Of a shape of F32 or BF16; all zeros but H and I where I is 0. */
cot::network cot_cuda_network_of(const cot_ffn_shape *shape);

#endif
