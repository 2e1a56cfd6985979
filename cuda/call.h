/* What a launch of the fused operator is given, and what lies in device memory: plain structures that the host, nvcc and the
 * emulator compile alike. Pointers are of device memory. */
#ifndef COT_CUDA_CALL_H
#define COT_CUDA_CALL_H
#include "cuda/tile_map.h"
#include "moe/fused/layout.h"

#ifdef __CUDACC__
#define COT_BOTH __host__ __device__
#else
#define COT_BOTH
#endif

namespace cot {

enum class gate_score { softmax, sigmoid, chosen_softmax };
enum class gate_group_score { max, top2_sum };

constexpr int GATE_EXPERTS_MOST = 2048, GATE_TOP_K_MOST = 64, GATE_GROUPS_MOST = 64;
constexpr int GATE_TOKENS_A_WARP = 4;

/* As cot_gate of src/moe/gate.h, but that weights are [E][H], not packed. */
struct gate_rules {
    int32_t hidden, experts, top_k;
    gate_score score;
    int32_t groups, group_limit;
    gate_group_score group_score;
    int32_t normalise; // 0 or 1
    float epsilon, scaling;
    const float *weight;     // [E][H]
    const float *bias;       // [E] or null
    const float *correction; // [E] or null
};

/* Shared memory of one warp: scores of its tokens, a group's score each, weights of the chosen. */
COT_BOTH constexpr int gate_scratch_floats(int experts)
{
    return GATE_TOKENS_A_WARP * experts + GATE_GROUPS_MOST + GATE_TOP_K_MOST;
}

/* Bytes and messages from one rank to another: a put or put_signal is one message, whatever its size; signal words
 * count no bytes, and what a rank puts to itself counts nothing. */
struct traffic {
    uint64_t bytes, messages;
};

struct fabric {
    unsigned char *const *regions; // [ranks], 16-byte aligned
    traffic *counters;             // [phases][ranks from][ranks to]
    /* 0, or how the first rank failed (failure_of): every wait watches it, and returns false once it is set. */
    uint64_t *failure;
    uint64_t timeout_ns; // that a wait takes at most
    int32_t ranks, rank; // P, and which of them this warp works for
};

/* A tile has so many rows of one expert at most, as the call says: by a shift, so that nothing is divided by it. */
constexpr int FUSED_TILE_SHIFT = 6, FUSED_TILE_ROWS = 1 << FUSED_TILE_SHIFT;
constexpr int FUSED_TEAM = 128, FUSED_THREADS = 192, FUSED_LANES = 32;
constexpr int FUSED_CHUNK =
    16; // tokens that are gated, or combined, together, where there are many; rows of a REPLY
constexpr int FUSED_RANKS_MOST = 64, FUSED_EXPERTS_MOST = 960;
constexpr int PHASE_DISPATCH = 0, PHASE_COMBINE = 1, PHASE_METADATA = 3, PHASES = 6; // cot_phase

/* Whose routing counts: the gate's; the one that is given, without a gate; that one, though the gate computes its own. */
enum class routing : int32_t { gated, given, replayed };

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

COT_BOTH constexpr int32_t up_columns(const network &n)
{
    return n.act == activation::swiglu ? 2 * n.intermediate : n.intermediate;
}

/* How a call ended on a rank; where the fabric's failure is set, that counts and not this. */
enum class outcome : int32_t { fine = 1, unsound, empty };

constexpr uint32_t TILE_DOWN = 1u << 16;

/* Words of a rank that its blocks share. */
struct fused_state {
    uint64_t epoch;          // calls that have ended
    uint32_t next, finished; // tasks taken; ends told to the scheduler
    uint32_t left;           // warps and processors that are done
    uint32_t unsound;        // the lowest token that cannot be routed, or all ones
    int32_t outcome, unsound_token;
    uint32_t published; // places of the queue given out
    /* Parts that have not ended: set by the scheduler before they may run, units of entries by the subscriber. */
    uint32_t gates_left, combines_left, units_left;
    uint32_t tiles_left;             // alone: tiles whose DOWNs may not run yet
    uint32_t tile_left[FUSED_LANES]; // of UP, and of DOWN times TILE_DOWN
};

/* What one rank has. S: the layout's tokens. */
struct fused_rank {
    const int32_t *tokens; // [2]: T <= S, and how many of the call's came in passes before
    const float *x;        // [T][H]; where 4 divides H, aligned to 16 bytes
    float *y;              // [T][H] out
    uint16_t *experts;     // [T][K] out, or the routing that is given
    float *weights;        // [T][K]
    const unsigned char *slots;
    const tile_map *maps; // [2] of the slots' first and second matrices, for tiles of 128 rows
    fused_state *state;
    uint16_t *routed;               // [S][K]
    float *routed_weights;          // [S][K]
    int32_t *replica;               // [S][K] which replica serves it
    float *logits;                  // [S][E]
    uint32_t *chunk_left;           // [gate_chunks_most(S)] parts of a chunk's GATE that have not ended
    uint64_t *ready, *finished;     // [tasks]: the queue; what has ended
    int32_t *released;              // [tiles] in the order in which they may run: tile << 8 | rows
    int32_t *ordered;               // fused, tiles of 128 rows: [tiles] in the order in which they begin
    uint32_t *ordered_counts;       // likewise: [slots]
    int32_t *tile_slot, *tile_rows; // [tiles]
    int32_t *tile_row;              // [tiles][rows of a tile] row of the dispatch region
    float *tile_weight;             // likewise
    int32_t *tile_home,
        *tile_at;          // likewise: reply row `at` of that rank; reduced: entry `at` of that received row
    uint32_t *slot_count;  // [slots] entries that are counted for it, and have no rows yet
    int32_t *slot_row;     // [2][slots] where they go (subscribe.h)
    int32_t *entry_number; // [P S K] an entry's number among those that are counted with it for its slot
    uint32_t *entered;     // [P] replies that are owed to a rank for entries that are counted
    int32_t *lane_tile;    // [FUSED_LANES]; -1 - i: the i-th tile of the shared expert
    unsigned char *activations; // [FUSED_LANES][rows of a tile][widest I]
    float *shared_rows;         // [S][H]
    uint32_t *columns_done;     // [done_words]: parts of a token's columns that are there; 0 between calls
    /* reduced, else null; a received row is s S + n: the n-th that rank s sent, or its own n-th token. */
    float *partial; // [P S min(K, slots)][H] weighted rows of entries
    int32_t *row_left,
        *row_entries;  // [P S] entries to come; how many: the first is the row's number times min(K, slots)
    int32_t *complete; // [P S] rows whose entries are all there; the last of a task: -1 - row
    int32_t *sent_row; // [S][P] how many-th row of that rank an own token was, where it was one
};

/* When a processor began or ended a task, for kernels that are built with COT_TIMELINE; others do not look at it. */
struct fused_moment {
    uint64_t ns, task; // %globaltimer; the task's word
    int32_t block;
    int8_t kind, ended; // 0 or 1: it ended
    int16_t team;       // of the block's; of a product of more than one, the first
};
struct fused_moments {
    uint32_t count, room; // how many there were, of which the first `room` are written
    fused_moment *at;
};

/* How the gate and the combine of T tokens are cut into tasks: chunks of so many tokens, each in so many parts. A few tokens are cut
 * finely, so that they take as long as one of them does where there are processors enough; many coarsely, so that more is done
 * with what is read. */
struct fused_cut {
    int32_t tokens, columns, chunks, parts; // columns: experts of the gate, of the combine elements of a row
};

constexpr int FUSED_FEW_TOKENS = 128, FUSED_FEW_COLUMNS = 1024;
constexpr int FUSED_GATE_TASKS = 256; // about as many as there are processors

COT_BOTH constexpr int32_t fused_pieces(int64_t all, int64_t piece)
{
    return static_cast<int32_t>((all + piece - 1) / piece);
}
constexpr int GATE_TILE_EXPERTS = 32; // of a tile of the gate (gate_tile.h), by a chunk of tokens

/* A part is one token by 4 experts, where these are no more than processors; or 4 by 4, or 16 by 16, or 16 by 32 where many tokens are
 * gated in tiles. */
COT_BOTH constexpr fused_cut gate_cut(int64_t tokens, int32_t experts, routing from, bool tiles = false)
{
    const bool few = tokens <= FUSED_FEW_TOKENS;
    const int32_t side = few ? GATE_TOKENS_A_WARP : FUSED_CHUNK,
                  columns = tiles && !few ? GATE_TILE_EXPERTS : side,
                  parts = from == routing::given ? 1 : fused_pieces(experts, columns),
                  together = few && tokens * parts <= FUSED_GATE_TASKS ? 1 : side;
    return {together, columns, fused_pieces(tokens, together), parts};
}
/* A part is 1,024 elements of one token, or 16 tokens. */
COT_BOTH constexpr fused_cut combine_cut(int64_t tokens, int32_t hidden)
{
    const bool few = tokens <= FUSED_FEW_TOKENS;
    const int32_t columns = few ? FUSED_FEW_COLUMNS : hidden, side = few ? 1 : FUSED_CHUNK;
    return {side, columns, fused_pieces(tokens, side), fused_pieces(hidden, columns)};
}
COT_BOTH constexpr int64_t fused_cut_tasks(const fused_cut &c)
{
    return static_cast<int64_t>(c.chunks) * c.parts;
}

/* A rank that is alone with few tokens has no COMBINE: each DOWN of a token's experts counts the columns that it has, in pieces of 64
 * of so many together, and the last one adds them up. */
constexpr int FUSED_DONE_COLUMNS = 128, FUSED_DONE_PIECE = 64;
COT_BOTH constexpr bool fused_is_alone(int32_t ranks, int32_t reduced, int64_t tokens)
{
    return ranks == 1 && !reduced && tokens <= FUSED_FEW_TOKENS;
}
COT_BOTH constexpr int64_t fused_done_words(int64_t tokens, int32_t hidden)
{
    return (tokens < FUSED_FEW_TOKENS ? tokens : FUSED_FEW_TOKENS) * fused_pieces(hidden, FUSED_DONE_COLUMNS);
}

/* Of up to `tokens`, which is the worst of few or of all of them. */
COT_BOTH constexpr int64_t fused_most(int64_t few, int64_t all)
{
    return few > all ? few : all;
}
COT_BOTH constexpr int64_t gate_chunks_most(int64_t tokens)
{
    return fused_most(FUSED_FEW_TOKENS, fused_pieces(tokens, FUSED_CHUNK));
}

/* Entries come into tiles by units: so many of own tokens', or a cell of another rank's packets. A rank's i-th unit has the number
 * rank * fused_units_most + i. */
constexpr int FUSED_UNIT = 128;
COT_BOTH constexpr int32_t fused_own_units(int64_t tokens, int64_t top_k)
{
    return fused_pieces(tokens * top_k, FUSED_UNIT);
}
COT_BOTH constexpr int32_t fused_units_most(const cot_fused_layout &l)
{
    const int32_t own = fused_own_units(l.tokens, l.top_k), cells = fused_pieces(l.tokens, l.cell_tokens);
    return own > cells ? own : cells;
}

/* Tasks of a rank in one call, at most: of so many tiles, each cut in at most that many parts, its last blocks included; and 32
 * words more, since the scheduler looks at so many at once. */
COT_BOTH constexpr int64_t fused_tasks_most(const cot_fused_layout &l, int32_t hidden, int32_t experts,
                                            int64_t tiles, int64_t parts, int reduced, int64_t blocks)
{
    return FUSED_GATE_TASKS +
           fused_most(fused_cut_tasks(gate_cut(FUSED_FEW_TOKENS, experts, routing::gated)),
                      fused_cut_tasks(gate_cut(l.tokens, experts, routing::gated))) +
           fused_most(fused_cut_tasks(combine_cut(FUSED_FEW_TOKENS, hidden)),
                      fused_cut_tasks(combine_cut(l.tokens, hidden))) +
           l.ranks + 2 * l.ranks * fused_units_most(l) + (tiles + l.tokens / FUSED_TILE_ROWS + 1) * parts +
           (reduced ? tiles + l.ranks * l.tokens / FUSED_CHUNK : 0) + blocks + 32;
}

} // namespace cot

/* What a launch is given, the same for every rank. */
struct cot_cuda_fused {
    cot_fused_layout layout;
    size_t dispatch_at, replies_at, dispatch_signals, reply_signals; // in every region
    cot::fabric fabric;                                              // `rank` is each block's own
    cot::gate_rules gate;
    cot::routing routing;
    int32_t unsound_pass;     // 0 or 1: a token that cannot be routed is no error
    cot::network networks[2]; // of experts, and of the shared expert, whose I is 0 where there is none
    const unsigned char *shared_weights;
    const cot::tile_map *shared_maps;                           // [2] likewise, of one slot
    const float *shared_gate;                                   // [H] or null
    const int32_t *replica_rank, *replica_slot, *replica_begin; // as cot_expert_replicas
    int32_t slots, reply_bf16;                                  // experts a rank holds at most; 0 or 1
    int32_t reduced;                                            // 0 or 1
    int32_t tile_shift;                                         // a tile has 1 << tile_shift rows at most
    const cot::fused_rank *ranks;                               // [P]
    const int32_t *first_block;                                 // [P + 1]
    cot::fused_moments *moments;                                // or null
};

namespace cot {

constexpr uint64_t NO_TASK = ~uint64_t{0}; // nor is it any task's word
constexpr uint32_t NO_TICKET = ~0u;

/* Shared memory of a block: the processor's stages (or its gate's scratch), then what follows. */
struct fused_shared {
    uint64_t task;   // of the processor
    uint64_t coming; // the one behind it, where it was ready, or NO_TASK
    uint32_t ticket; // that was taken early, and whose place was empty, or NO_TICKET
    /* How its tasks are cut; read from here for each, so that they stand in no register beside a tile's sums. */
    fused_cut gate, combine;
    int32_t up_parts, down_parts;           // of a tile at most: steps of the numbers of UPs and DOWNs
    int32_t processors;                     // of the rank
    uint32_t dry;                           // beside the task: queue.h
    uint32_t last_part;                     // whether the processor's was the last of a chunk's gate
    int32_t token[COT_FUSED_CELL_TOKENS];   // a packet in the making: its rows,
    int32_t entries[COT_FUSED_CELL_TOKENS]; // how many entries each has,
    int32_t before[COT_FUSED_CELL_TOKENS];  // and how many come before them
    int32_t packet_rows, packet_entries;
    uint64_t news;                   // from the subscriber to the scheduler: news_of
    uint32_t owed[FUSED_RANKS_MOST]; // likewise: 1 + replies to a rank whose packets are decoded; 0: not yet
    uint32_t gated; // from the scheduler to the subscriber: own flags, once all tokens are routed
    /* The subscriber's own. */
    uint32_t seen[FUSED_RANKS_MOST];  // rows of a rank that were heard of; all ones behind the last
    int32_t open[FUSED_EXPERTS_MOST]; // tile << 7 | rows of a slot's tile that fills, or -1
};

/* Bytes of an engine's stages, and values of k that they have under way at once, at most (tile.h). */
constexpr int FUSED_BF16_STAGES = 73728, FUSED_F32_STAGES = 32768, FUSED_BF16_RING = 256, FUSED_F32_RING = 64;

constexpr int BULK_GATE_BYTES = 40960; // of shared memory, that a gate in tiles takes (gate_tile.h)
/* Tiles of up to 128 rows: the call's tile_shift; by mma.sync a block has FUSED_TEAM threads with FUSED_BF16_STAGES bytes, by wgmma (many.h) as
 * follows, and maps of so many columns. */
constexpr int BULK_MANY_SHIFT = 7, BULK_WGMMA_THREADS = 384, BULK_WGMMA_BYTES = 214080,
              BULK_MAP_COLUMNS = 256;

/* What a block of the fused launch for many tokens is told beside its teams' fused_shared (fused_many.h). */
constexpr int FUSED_MANY_TEAMS = 2;
struct fused_dealt {
    uint64_t brought[2];                // the n-th product whose stages are brought, at n % 2; or the end
    uint64_t task[FUSED_MANY_TEAMS][2]; // of each team: its n-th task, at n % 2
    uint32_t given[FUSED_MANY_TEAMS];   // how many tasks it was given,
    uint32_t ended[FUSED_MANY_TEAMS];   // and how many of them it has ended
};
constexpr size_t FUSED_MANY_BYTES =
    BULK_WGMMA_BYTES + FUSED_MANY_TEAMS * sizeof(fused_shared) + sizeof(fused_dealt);

/* Dynamic shared memory of a block. */
COT_BOTH constexpr size_t fused_shared_bytes(int stages, int experts)
{
    const size_t scratch = 4 * sizeof(float) * static_cast<size_t>(gate_scratch_floats(experts)),
                 wanted = static_cast<size_t>(stages);
    return (scratch > wanted ? (scratch + 15) / 16 * 16 : wanted) + sizeof(fused_shared);
}

} // namespace cot

#endif
