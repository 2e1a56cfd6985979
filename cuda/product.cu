#include "cuda/tile.h"

using in_bf16 = cot::mma_engine;
using in_bf16_many = cot::mma_many_engine;
using in_f32 = cot::fma_engine;

template <typename Engine> COT_DEVICE void multiply_all(const cot_cuda_product_of<typename Engine::Value> &p)
{
    const auto rows_at = [&](int m) { return p.a.rows - m < Engine::ROWS ? p.a.rows - m : Engine::ROWS; };
    const auto across = [&](int m) {
        return (p.b.rows + Engine::columns_of(rows_at(m)) - 1) / Engine::columns_of(rows_at(m));
    };
    /* Tiles are numbered by rows, each cut in as many parts as the least columns ask for, of which some are not there. */
    const int most = (p.b.rows + Engine::N - 1) / Engine::N,
              all = (p.a.rows + Engine::ROWS - 1) / Engine::ROWS * most, blocks = static_cast<int>(gridDim.x);
    const auto from = [=](int tile) {
        while (tile < all && tile % most >= across(tile / most * Engine::ROWS)) tile += blocks;
        return tile < all ? tile : -1;
    };
    const auto job = [=](int tile) {
        const int m = tile / most * Engine::ROWS, rows = rows_at(m);
        cot::tile_job<typename Engine::Value> part = {p.a, p.b, p.pick, 0};
        part = cot::job_from(part, m);
        part.a.rows = rows;
        part.n = tile % most * Engine::columns_of(rows);
        return part;
    };
    cot::tile_compute_all<Engine>(
        static_cast<unsigned char *>(cot::shared_memory()), {threadIdx.x, 1},
        from(static_cast<int>(blockIdx.x)), [=](int tile) { return from(tile + blocks); }, job,
        [=](int tile) {
            const int first = tile / most * Engine::ROWS,
                      begin = tile % most * Engine::columns_of(rows_at(first));
            return [=](int row, int column, float v, float next) {
                if (first + row >= p.a.rows) return;
                float *const c = p.c + static_cast<int64_t>(first + row) * p.b.rows + begin + column;
                if (begin + column < p.b.rows) c[0] = v;
                if (begin + column + 1 < p.b.rows) c[1] = next;
            };
        });
}

COT_KERNEL __launch_bounds__(in_bf16::THREADS, 2) cot_cuda_product_kernel(cot_cuda_product p)
{
    multiply_all<in_bf16>(p);
}

COT_KERNEL __launch_bounds__(in_bf16_many::THREADS, 2) cot_cuda_product_many_kernel(cot_cuda_product p)
{
    multiply_all<in_bf16_many>(p);
}

COT_KERNEL __launch_bounds__(in_f32::THREADS, 3) cot_cuda_product_f32_kernel(cot_cuda_product_f32 p)
{
    multiply_all<in_f32>(p);
}
