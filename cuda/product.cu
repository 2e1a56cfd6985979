#include "cuda/tile.h"

template <typename Engine> COT_DEVICE void multiply_all(const cot_cuda_product_of<typename Engine::Value> &p)
{
    const int across = (p.b.rows + Engine::N - 1) / Engine::N,
              tiles = (p.a.rows + Engine::M - 1) / Engine::M * across;
    const cot::tile_team team = {static_cast<int>(threadIdx.x), 1};
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const int m = tile / across * Engine::M, n = tile % across * Engine::N;
        cot::tile_compute<Engine>(static_cast<unsigned char *>(cot::shared_memory()), p.a, p.b, m, n, team,
                                  [&](int row, int column, float v, float next) {
                                      if (m + row >= p.a.rows) return;
                                      float *const c =
                                          p.c + static_cast<int64_t>(m + row) * p.b.rows + n + column;
                                      if (n + column < p.b.rows) c[0] = v;
                                      if (n + column + 1 < p.b.rows) c[1] = next;
                                  });
    }
}

COT_KERNEL __launch_bounds__(cot::mma_tile::THREADS) cot_cuda_product_kernel(cot_cuda_product p)
{
    multiply_all<cot::mma_tile>(p);
}

COT_KERNEL __launch_bounds__(cot::fma_tile::THREADS) cot_cuda_product_f32_kernel(cot_cuda_product_f32 p)
{
    multiply_all<cot::fma_tile>(p);
}
