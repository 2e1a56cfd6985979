/* The fused operator on the device: gate, dispatch, experts, combine and shared experts of all ranks in one cooperative
 * launch. The pass, its packets and its signals are the CPU's (src/moe/fused/layout.h, docs/FUSED.md).
 *
 *   rank r = blocks first_block[r] to first_block[r + 1] - 1, of 192 threads
 *     warps 0 to 3 of each block   a processor: takes tasks from the rank's queue        process.h
 *     warp 4 of the first block    the subscriber: looks at signals, makes tiles          subscribe.h
 *     warp 5 of the first block    the scheduler: puts tasks in the queue                 schedule.h
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

constexpr int FUSED_TILE_ROWS = 64, FUSED_TEAM = 128, FUSED_THREADS = 192, FUSED_LANES = 32;
constexpr int FUSED_CHUNK = 16; // tokens that are gated, or combined, together
constexpr int FUSED_RANKS_MOST = 64, FUSED_EXPERTS_MOST = 960;
constexpr int PHASE_DISPATCH = 0, PHASE_COMBINE = 1, PHASE_METADATA = 3, PHASES = 5; // cot_phase

enum class activation { swiglu, gelu, relu };

/* As cot_ffn_shape; and where the parts of one network lie, in bytes, multiples of 16:
 * up [2I][H], rows of gate and up in turn, or without a gate [I][H]; down [H][I]; biases in fp32, in the same order. */
struct network {
    int32_t hidden, intermediate;
    activation act;
    int32_t biased; // 0 or 1
    float limit, alpha;
    size_t up, down, up_bias, down_bias, bytes;
};

__host__ __device__ constexpr int32_t up_columns(const network &n)
{
    return n.act == activation::swiglu ? 2 * n.intermediate : n.intermediate;
}

/* How a call ended on a rank; where the fabric's failure is set, that counts and not this. */
enum class outcome : int32_t { fine = 1, unsound, empty };

/* Words of a rank that its blocks share. */
struct fused_state {
    uint64_t epoch;          // of the last call
    uint32_t next, finished; // tasks taken, and told to be done
    uint32_t left;           // warps and processors that are done
    uint32_t unsound;        // the lowest token that cannot be routed, or all ones
    int32_t outcome, unsound_token;
};

/* What one rank has. S: the layout's tokens. */
struct fused_rank {
    const int32_t *tokens; // T <= S
    const float *x;        // [T][H]
    float *y;              // [T][H] out
    uint16_t *experts;     // [T][K] out, or the routing that is given
    float *weights;        // [T][K]
    const unsigned char *slots;
    fused_state *state;
    uint16_t *routed;               // [S][K]
    float *routed_weights;          // [S][K]
    int32_t *replica;               // [S][K] which replica serves it
    uint64_t *ready, *finished;     // [tasks]
    int32_t *released;              // [tiles] in the order in which they may run
    int32_t *tile_slot, *tile_rows; // [tiles]
    int32_t *tile_row;              // [tiles][64] row of the dispatch region
    float *tile_weight;             // [tiles][64]
    int32_t *tile_home, *tile_at;   // [tiles][64] reply row `at` of that rank
    int32_t *lane_tile;             // [FUSED_LANES]; -1 - i: the i-th tile of the shared expert
    unsigned char *activations;     // [FUSED_LANES][64][widest I]
    float *shared_rows;             // [S][H]
};

} // namespace cot

/* What a launch is given, the same for every rank. */
struct cot_cuda_fused {
    cot_fused_layout layout;
    size_t dispatch_at, replies_at, dispatch_signals, reply_signals; // in every region
    cot::fabric fabric;                                              // `rank` is each block's own
    cot::gate_rules gate;
    int32_t given, unsound_pass; // 0 or 1: the routing is an input; a token that cannot be routed is no error
    cot::network networks[2];    // of experts, and of the shared expert, whose I is 0 where there is none
    const unsigned char *shared_weights;
    const float *shared_gate;                                   // [H] or null
    const int32_t *replica_rank, *replica_slot, *replica_begin; // as cot_expert_replicas
    int32_t slots, reply_bf16;                                  // experts a rank holds at most; 0 or 1
    const cot::fused_rank *ranks;                               // [P]
    const int32_t *first_block;                                 // [P + 1]
};

namespace cot {

/* Tasks: the word is epoch << 28 | kind << 25 | number. */
enum class task : uint32_t { gate, send, up, down, combine, end };
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

/* Shared memory of a block: the processor's stages (or its gate's scratch), then what follows. */
struct fused_shared {
    uint64_t task;                          // of the processor
    int32_t token[COT_FUSED_CELL_TOKENS];   // a packet in the making: its rows,
    int32_t entries[COT_FUSED_CELL_TOKENS]; // how many entries each has,
    int32_t before[COT_FUSED_CELL_TOKENS];  // and how many come before them
    int32_t packet_rows, packet_entries;
    uint64_t news;                   // from the subscriber to the scheduler: news_of
    uint32_t owed[FUSED_RANKS_MOST]; // likewise: 1 + entries of a rank whose packets are decoded; 0: not yet
    uint32_t gated; // from the scheduler to the subscriber: own flags, once all tokens are routed
    /* The subscriber's own. */
    uint32_t seen[FUSED_RANKS_MOST], entered[FUSED_RANKS_MOST];
    int32_t open[FUSED_EXPERTS_MOST]; // tile << 7 | rows of a slot's tile that fills, or -1
};

template <typename Engine> __host__ __device__ constexpr size_t fused_shared_bytes(int experts)
{
    const size_t scratch = 4 * sizeof(float) * static_cast<size_t>(gate_scratch_floats(experts)),
                 stages = static_cast<size_t>(Engine::SHARED_BYTES);
    return (scratch > stages ? (scratch + 15) / 16 * 16 : stages) + sizeof(fused_shared);
}

/* A warp's view of the call. */
template <scope S> struct fused_warp {
    const cot_cuda_fused &call;
    const fused_rank &rank;
    fabric net;
    uint64_t epoch;
    fused_shared *shared;
    unsigned char *stages;
    int tokens; // T of this rank

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
    __device__ __forceinline__ bool failed() const { return load_relaxed<S>(net.failure) != 0; }
};

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
