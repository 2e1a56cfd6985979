#include "cuda/run.h"

COT_KERNEL __launch_bounds__(cot::FUSED_THREADS, 2)
    cot_cuda_fused_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::run_fused<cot::mma_tile, cot::scope::gpu>(call);
}

COT_KERNEL __launch_bounds__(cot::FUSED_THREADS, 2)
    cot_cuda_fused_f32(const __grid_constant__ cot_cuda_fused call)
{
    cot::run_fused<cot::fma_tile, cot::scope::gpu>(call);
}
