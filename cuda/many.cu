#include "cuda/many.h"

template <typename Engine> COT_DEVICE void multiply_all(const cot_cuda_many_product &p)
{
    const int across = (p.columns + Engine::N - 1) / Engine::N,
              all = (p.a.rows + Engine::ROWS - 1) / Engine::ROWS * across,
              blocks = static_cast<int>(gridDim.x);
    const auto from = [=](int tile) { return tile < all ? tile : -1; };
    const auto job = [=](int tile) {
        const int m = tile / across * Engine::ROWS, left = p.a.rows - m;
        const cot::tile_job<uint16_t> rows = cot::job_from(cot::tile_job<uint16_t>{p.a, {}, p.pick, 0}, m);
        cot::many_job part = {rows.a, rows.pick, p.b, p.slot, tile % across * Engine::N};
        part.a.rows = left < Engine::ROWS ? left : Engine::ROWS;
        return part;
    };
    Engine::know(p.b);
    Engine::compute_all(
        cot::shared_memory(), from(static_cast<int>(blockIdx.x)),
        [=](int tile) { return from(tile + blocks); }, job,
        [=](int tile) {
            const int first = tile / across * Engine::ROWS, begin = tile % across * Engine::N;
            return [=](int row, int column, float v, float next) {
                if (first + row >= p.a.rows) return;
                float *const c = p.c + static_cast<int64_t>(first + row) * p.columns + begin + column;
                if (begin + column < p.columns) c[0] = v;
                if (begin + column + 1 < p.columns) c[1] = next;
            };
        });
}

using by_256 = cot::many_engine<256>;
using by_128 = cot::many_engine<128>;

COT_KERNEL __launch_bounds__(by_256::THREADS, 1) cot_cuda_many_256_kernel(cot_cuda_many_product p)
{
    multiply_all<by_256>(p);
}
COT_KERNEL __launch_bounds__(by_128::THREADS, 1) cot_cuda_many_128_kernel(cot_cuda_many_product p)
{
    multiply_all<by_128>(p);
}
