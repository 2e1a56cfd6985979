#include "cuda/gate_tile.h"

COT_KERNEL __launch_bounds__(cot::gate_tile::THREADS, 3) cot_cuda_gate_tile_kernel(cot_cuda_gate_product p)
{
    using cot::gate_tile;
    const int across = (p.rules.experts + gate_tile::EXPERTS - 1) / gate_tile::EXPERTS,
              down = (p.tokens + gate_tile::TOKENS - 1) / gate_tile::TOKENS;
    const cot::tile_team team = {threadIdx.x, 1};
    for (int i = static_cast<int>(blockIdx.x); i < down * across; i += static_cast<int>(gridDim.x)) {
        const int t = i / across * gate_tile::TOKENS, first = i % across * gate_tile::EXPERTS,
                  left = p.tokens - t, end = first + gate_tile::EXPERTS;
        gate_tile::compute(p.rules, p.x + static_cast<int64_t>(t) * p.rules.hidden,
                           left < gate_tile::TOKENS ? left : gate_tile::TOKENS, first,
                           end < p.rules.experts ? end : p.rules.experts,
                           p.logits + static_cast<int64_t>(t) * p.rules.experts,
                           static_cast<unsigned char *>(cot::shared_memory()), team);
    }
}
