/* What every warp of the fused operator's launch begins with. */
#ifndef COT_CUDA_RUN_H
#define COT_CUDA_RUN_H
#include "cuda/process.h"
#include "cuda/schedule.h"
#include "cuda/subscribe.h"

namespace cot {

/* The last of a rank's warps to leave makes ready for the next call. By one thread, for all that it met at a barrier. */
COT_DEVICE void leave(fused_state *state, uint32_t parties)
{
    if (COT_EITHER(fused_leave, add_acq_rel<scope::gpu>(&state->left, 1u),
                   add_relaxed<scope::gpu>(&state->left, 1u)) != parties - 1)
        return;
    state->epoch++;
    store_relaxed<scope::gpu>(&state->next, 0u);
    store_relaxed<scope::gpu>(&state->published, 0u);
    store_relaxed<scope::gpu>(&state->finished, 0u);
    store_relaxed<scope::gpu>(&state->left, 0u);
    store_relaxed<scope::gpu>(&state->unsound, ~0u);
}

COT_DEVICE int rank_of_block(const cot_cuda_fused &c, int block)
{
    int r = 0;
    while (c.first_block[r + 1] <= block) r++;
    return r;
}

/* Of a rank's first block: nobody has told anything yet. By one thread, before all others of the block. */
template <scope S> COT_DEVICE void begin_rank(const fused_warp<S> &w)
{
    w.shared->news = w.shared->gated = 0;
    for (int i = 0; i < w.net.ranks; i++) w.shared->owed[i] = 0;
}

template <typename Engine, scope S> COT_DEVICE void run_fused(const cot_cuda_fused &c)
{
    const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32,
              r = rank_of_block(c, block);
    if (COT_EITHER(fused_rank_1_is_silent, false, r == 1)) return;
    const bool first = block == c.first_block[r];
    if (!first && warp > 3) return;
    const fused_rank &rank = c.ranks[r];
    unsigned char *const memory = static_cast<unsigned char *>(shared_memory());
    fused_shared *const shared = reinterpret_cast<fused_shared *>(
        memory + fused_shared_bytes<Engine>(c.gate.experts) - sizeof(fused_shared));
    const uint64_t epoch = epoch_of_call(*rank.state);
    fused_warp<S> w = {c, rank, c.fabric, epoch, shared, memory, rank.tokens[0], rank.tokens[1]};
    w.net.rank = r;
    if (first) {
        if (threadIdx.x == 0) begin_rank(w);
        COT_UNLESS(fused_first_barrier) __syncthreads();
    }
    if (warp < 4) {
        process<Engine>(w);
    } else if (warp == 4) {
        subscribe(w);
    } else {
        run_schedule<Engine>(w);
    }
    if (threadIdx.x % 32 == 0 && (warp == 0 || warp > 3))
        leave(rank.state, static_cast<uint32_t>(w.processors() + 2));
}

} // namespace cot

#endif
