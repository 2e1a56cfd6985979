/* The fused operator on the device: gate, dispatch, experts, combine and shared experts of all ranks in one cooperative
 * launch. The pass, its packets and its signals are the CPU's (src/moe/fused/layout.h, docs/FUSED.md).
 *
 *   rank r = blocks first_block[r] to first_block[r + 1] - 1, of 192 threads
 *     warps 0 to 3 of each block   a processor: takes tasks from the rank's queue        process.h
 *     warp 4 of the first block    the subscriber: looks at signals, makes tiles          subscribe.h
 *     warp 5 of the first block    the scheduler: begins tiles, tells homes               schedule.h
 *     the queue itself, and what puts what follows from a task in it                      queue.h
 *   (warps 4 and 5 of other blocks leave at once)
 *
 * Everything that a graph may replay with other values lies in device memory: tokens, epoch, placement, weights. */
#ifndef COT_CUDA_FUSED_H
#define COT_CUDA_FUSED_H
#include "cuda/fabric.h"
#include "cuda/gate.h"
#include "cuda/tile.h"
#include "moe/fused/layout.h"

namespace cot {

/* The epoch of a call as words have it, in 36 bits: that of the calls before it and one more, and beyond 2^36 - 1 again from 1. It is
 * never 0, as fresh memory is. */
COT_DEVICE uint64_t epoch_of_call(const fused_state &state)
{
    return state.epoch % ((uint64_t{1} << 36) - 1) + 1;
}

/* Tasks: the word is epoch << 28 | kind << 25 | number. */
enum class task : uint32_t { gate, send, enter, up, down, reply, combine, end };
constexpr int TASK_NUMBERS = 25;

COT_DEVICE uint64_t task_word(uint64_t epoch, task kind, int number)
{
    return epoch << 28 | static_cast<uint64_t>(kind) << TASK_NUMBERS | static_cast<uint64_t>(number);
}
COT_DEVICE task kind_of(uint64_t word)
{
    return static_cast<task>(word >> TASK_NUMBERS & 7);
}
COT_DEVICE int number_of(uint64_t word)
{
    return static_cast<int>(word & ((1u << TASK_NUMBERS) - 1));
}

/* What a rank's last dispatch signal says (cot_fused_signal). */
COT_DEVICE uint32_t last_flags(bool unsound, bool any_tokens)
{
    return static_cast<uint32_t>(COT_FUSED_FINAL) | (unsound ? static_cast<uint32_t>(COT_FUSED_BAD) : 0u) |
           (any_tokens ? static_cast<uint32_t>(COT_FUSED_TOKENS) : 0u);
}

/* What the subscriber has found, as one word: tiles that may run, ranks whose packets are all decoded, ranks that have
 * answered, and the flags of all packets so far. */
COT_DEVICE uint64_t news_of(int released, int finals, int replied, uint32_t flags)
{
    return static_cast<uint64_t>(released) << 20 | static_cast<uint64_t>(finals) << 12 |
           static_cast<uint64_t>(replied) << 4 | flags;
}
COT_DEVICE int released_of(uint64_t news)
{
    return static_cast<int>(news >> 20);
}
COT_DEVICE int finals_of(uint64_t news)
{
    return static_cast<int>(news >> 12 & 0xff);
}
COT_DEVICE int replied_of(uint64_t news)
{
    return static_cast<int>(news >> 4 & 0xff);
}

/* A tile that may run, and its rows, of which a tile has fewer than 256. */
COT_DEVICE int32_t released_tile(int tile, int rows)
{
    return tile << 8 | rows;
}

static_assert(FUSED_TILE_ROWS == mma_engine::ROWS && FUSED_TILE_ROWS == fma_engine::ROWS &&
                  FUSED_BF16_STAGES == mma_engine::SHARED_BYTES &&
                  FUSED_F32_STAGES == fma_engine::SHARED_BYTES &&
                  FUSED_BF16_RING == mma_some::STAGES * mma_some::K &&
                  FUSED_BF16_RING == mma_least::STAGES * mma_least::K &&
                  FUSED_BF16_RING > mma_few::STAGES * mma_few::K &&
                  FUSED_F32_RING == fma_shape::STAGES * fma_shape::K &&
                  FUSED_BF16_STAGES == mma_many_engine::SHARED_BYTES &&
                  FUSED_BF16_RING > mma_most::STAGES * mma_most::K,
              "what the host asks for");
template <typename Engine> __host__ __device__ constexpr size_t fused_shared_bytes(int experts)
{
    return fused_shared_bytes(Engine::SHARED_BYTES, experts);
}

/* A warp's view of the call. */
template <scope S> struct fused_warp {
    const cot_cuda_fused &call;
    const fused_rank &rank;
    fabric net;
    uint64_t epoch;
    fused_shared *shared;
    unsigned char *stages;
    int tokens, before; // T of this rank, and how many of its tokens came in passes before
    bool teams =
        false; // whether it is of a block of several (fused_many.h), of which each is so many threads

    /* Of the block's teams; told by the thread's number, so that it stands in no register. */
    __device__ __forceinline__ int team() const { return teams ? thread_number() / FUSED_TEAM : 0; }
    /* A reply's or packet's place in a region. */
    __device__ __forceinline__ size_t row_at(int64_t row) const
    {
        return call.dispatch_at + static_cast<size_t>(row * call.layout.row_bytes);
    }
    __device__ __forceinline__ unsigned char *region() const { return net.regions[net.rank]; }
    __device__ __forceinline__ size_t dispatch_signal(int source) const
    {
        return call.dispatch_signals + static_cast<size_t>(source) * COT_FUSED_LINE;
    }
    __device__ __forceinline__ size_t reply_signal(int source) const
    {
        return call.reply_signals + static_cast<size_t>(source) * COT_FUSED_LINE;
    }
    __device__ __forceinline__ int processors() const // of this rank
    {
        return call.first_block[net.rank + 1] - call.first_block[net.rank];
    }
    __device__ __forceinline__ int tile_rows() const
    {
        return 1 << call.tile_shift;
    } // that a tile has at most
    /* Where what is known of a tile's rows begins, or an own token's number, of a tile of the shared expert. */
    __device__ __forceinline__ int64_t first_of(int tile) const
    {
        return static_cast<int64_t>(tile) << call.tile_shift;
    }
    /* reduced: places that a received row has for entries. */
    __device__ __forceinline__ int entries_a_row() const
    {
        return call.gate.top_k < call.slots ? call.gate.top_k : call.slots;
    }
    __device__ __forceinline__ bool failed() const { return has_failed<S>(net); }
    __device__ __forceinline__ bool alone() const
    {
        return call.tile_shift == FUSED_TILE_SHIFT && fused_is_alone(net.ranks, call.reduced, tokens);
    }
};

/* Teams' threads are the first of a block. */
constexpr int TEAM_BARRIER = 1; // and one more for each further team
template <scope S> COT_DEVICE void team_barrier(const fused_warp<S> &w)
{
    barrier_sync(TEAM_BARRIER + w.team(), FUSED_TEAM);
}
template <scope S> COT_DEVICE int team_thread(const fused_warp<S> &w)
{
    return w.teams ? thread_number() % FUSED_TEAM : thread_number();
}
template <scope S> COT_DEVICE tile_team this_team(const fused_warp<S> &w)
{
    return {static_cast<uint32_t>(team_thread(w)), TEAM_BARRIER + w.team()};
}

/* The replica of an expert that serves token t of rank `home`, as cot_expert_replica has it. */
COT_DEVICE int replica_of(const cot_cuda_fused &c, int expert, int home, int t)
{
    const int begin = c.replica_begin[expert], count = c.replica_begin[expert + 1] - begin;
    for (int i = 0; i < count; i++)
        if (c.replica_rank[begin + i] == home) return begin + i;
    return begin + (home + t) % count;
}

} // namespace cot

/* 192 threads a block, all blocks resident at once, fused_shared_bytes<Engine>(E) of dynamic shared memory. For ranks of one
 * device; run_fused with scope::sys is for regions on several. */
COT_KERNEL cot_cuda_fused_bf16(const __grid_constant__ cot_cuda_fused call);
COT_KERNEL cot_cuda_fused_f32(const __grid_constant__ cot_cuda_fused call);

#endif
