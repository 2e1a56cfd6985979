#include "cuda/fused_many.h"

using in_bf16 = cot::mma_engine;
using in_f32 = cot::fma_engine;

COT_KERNEL __launch_bounds__(cot::FUSED_THREADS, 2)
    cot_cuda_fused_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::run_fused<in_bf16, cot::scope::gpu>(call);
}

COT_KERNEL __launch_bounds__(cot::FUSED_THREADS, 2)
    cot_cuda_fused_f32(const __grid_constant__ cot_cuda_fused call)
{
    cot::run_fused<in_f32, cot::scope::gpu>(call);
}

#ifdef COT_90A
/* In the place of cot_cuda_fused_bf16 where a call's tiles have 128 rows: blocks of BULK_WGMMA_THREADS with FUSED_MANY_BYTES, one a
 * multiprocessor. */
COT_KERNEL __launch_bounds__(cot::BULK_WGMMA_THREADS, 1)
    cot_cuda_fused_many_256_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::run_fused_many<cot::scope::gpu>(call);
}
#endif
