#include "cuda/tile.h"

COT_KERNEL __launch_bounds__(cot::mma_tile::THREADS) cot_cuda_product_kernel(cot_cuda_product p)
{
    using cot::mma_tile;
    const int across = (p.b.rows + mma_tile::N - 1) / mma_tile::N,
              tiles = (p.a.rows + mma_tile::M - 1) / mma_tile::M * across;
    const cot::tile_team team = {static_cast<int>(threadIdx.x), 1};
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const int m = tile / across * mma_tile::M, n = tile % across * mma_tile::N;
        mma_tile engine;
        cot::tile_run(engine, static_cast<unsigned char *>(cot::shared_memory()), p.a, p.b, m, n, team);
        engine.store(team.thread, [&](int row, int column, float v, float next) {
            if (m + row >= p.a.rows) return;
            float *const c = p.c + static_cast<int64_t>(m + row) * p.b.rows + n + column;
            if (n + column < p.b.rows) c[0] = v;
            if (n + column + 1 < p.b.rows) c[1] = next;
        });
    }
}
