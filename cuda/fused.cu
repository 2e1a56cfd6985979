#include "cuda/run.h"

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
