#include "cuda/bulk_many.h"

using in_bf16 = cot::bulk_by<cot::mma_engine>;
using in_f32 = cot::bulk_by<cot::fma_engine>;
using in_bf16_many = cot::bulk_by<cot::mma_many_engine>;

#define COT_BULK_KERNEL COT_KERNEL __launch_bounds__(cot::FUSED_TEAM, 3)

/* 128 threads a block; receive: 32, and a block a rank. Dynamic shared memory: what cuda/module/group.cpp says of each. */
COT_BULK_KERNEL cot_cuda_bulk_gate_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_gate<in_bf16::engine>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_gate_f32(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_gate<in_f32::engine>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_route(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_route(call);
}
COT_BULK_KERNEL cot_cuda_bulk_dispatch(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_dispatch(call);
}
COT_BULK_KERNEL cot_cuda_bulk_count(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_count(call);
}
COT_BULK_KERNEL cot_cuda_bulk_receive(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_receive(call);
}
COT_BULK_KERNEL cot_cuda_bulk_enter(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_enter(call);
}
COT_BULK_KERNEL cot_cuda_bulk_up_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_up<in_bf16>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_up_f32(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_up<in_f32>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_down_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_down<in_bf16>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_down_f32(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_down<in_f32>(call);
}
COT_BULK_KERNEL cot_cuda_bulk_combine(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_combine(call);
}

/* In the place of cot_cuda_bulk_up_bf16 and cot_cuda_bulk_down_bf16 where a call's tiles have up to 128 rows: as these, but two blocks a multiprocessor. */
#define COT_MANY_KERNEL COT_KERNEL __launch_bounds__(cot::FUSED_TEAM, 2)

COT_MANY_KERNEL cot_cuda_bulk_many_up_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_up<in_bf16_many>(call);
}
COT_MANY_KERNEL cot_cuda_bulk_many_down_bf16(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_down<in_bf16_many>(call);
}

#ifdef COT_90A
/* In the place of these two where the device has wgmma and maps: blocks of BULK_WGMMA_THREADS with BULK_WGMMA_BYTES, one a multiprocessor. */
#define COT_WGMMA_KERNEL COT_KERNEL __launch_bounds__(cot::BULK_WGMMA_THREADS, 1)

COT_WGMMA_KERNEL cot_cuda_bulk_many_256_up(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_up<cot::bulk_by_wgmma>(call);
}
COT_WGMMA_KERNEL cot_cuda_bulk_many_256_down(const __grid_constant__ cot_cuda_fused call)
{
    cot::bulk_down<cot::bulk_by_wgmma>(call);
}
#endif
