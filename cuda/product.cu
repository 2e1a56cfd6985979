#include "cuda/tile.h"

using in_bf16 = cot::mma_engine;
using in_f32 = cot::fma_engine;

template <typename Engine> COT_DEVICE void multiply_all(const cot_cuda_product_of<typename Engine::Value> &p)
{
    using Job = cot::tile_job<typename Engine::Value>;
    const cot::tile_team team = {threadIdx.x, 1};
    int number = 0; // of tiles, of which every block takes its share
    for (int m = 0; m < p.a.rows; m += Engine::ROWS) {
        Job job = cot::job_from(Job{p.a, p.b, p.pick, 0, m}, m);
        if (job.a.rows > Engine::ROWS) job.a.rows = Engine::ROWS;
        for (int n = 0; n < p.b.rows; n += Engine::columns_of(job.a.rows), number++) {
            if (number % static_cast<int>(gridDim.x) != static_cast<int>(blockIdx.x)) continue;
            job.n = n;
            Engine::compute(
                static_cast<unsigned char *>(cot::shared_memory()), job, team, [&](int first, int begin) {
                    return [&p, first, begin](int row, int column, float v, float next) {
                        if (first + row >= p.a.rows) return;
                        float *const c = p.c + static_cast<int64_t>(first + row) * p.b.rows + begin + column;
                        if (begin + column < p.b.rows) c[0] = v;
                        if (begin + column + 1 < p.b.rows) c[1] = next;
                    };
                });
            COT_UNLESS(tile_done_by_all) cot::barrier_sync(team.barrier, Engine::THREADS);
        }
    }
}

COT_KERNEL __launch_bounds__(in_bf16::THREADS, 2) cot_cuda_product_kernel(cot_cuda_product p)
{
    multiply_all<in_bf16>(p);
}

COT_KERNEL __launch_bounds__(in_f32::THREADS, 3) cot_cuda_product_f32_kernel(cot_cuda_product_f32 p)
{
    multiply_all<in_f32>(p);
}
