/* What a fused operator holds, and how its actors share it.
 *
 *   subscriber   polls the signals, decodes packets into tiles                      subscribe.c
 *   scheduler    knows what may run now, hands out tasks, takes note of their end   schedule.c
 *   processors   run tasks                                                          process.c, send.c
 *   the caller   begins and ends calls (call.c), drives all three (drive.c)
 *
 * The subscriber and the scheduler are no threads of their own: whoever asks for a task is both for a moment,
 * under `lock`. Any thread may be a processor: the rank's own, workers of the pool, and threads of other ranks
 * that have nothing to do. What a processor touches while it runs is its task's alone; all else of this struct
 * is read and written under the lock, but for what a call sets before the first task.
 *
 *   GATE (chunk of tokens) -> SEND (chunk, in order) -> put_signal ... packets of all ranks
 *     -> tile (rows of one expert) -> UP (columns of I) ... all of them -> DOWN (columns of H) ... all of them
 *     -> REPLY (put) ... all rows of one home -> SIGNAL ... of all ranks -> COMBINE (chunk of tokens) */
#ifndef COT_MOE_FUSED_STATE_H
#define COT_MOE_FUSED_STATE_H
#include "base/arena.h"
#include "moe/fused/layout.h"
#include "moe/route.h"

#include <stdatomic.h>

typedef enum cot_fused_op {
    COT_FUSED_GATE,
    COT_FUSED_SEND,
    COT_FUSED_UP,    // the paper's GEMM0: C = activation(A B + D), gate and up at once
    COT_FUSED_DOWN,  // GEMM1: C = weight (A B + D)
    COT_FUSED_REPLY, // the outgoing half of the paper's tile transfer
    COT_FUSED_SIGNAL,
    COT_FUSED_COMBINE
} cot_fused_op;

_Static_assert(COT_MAX_RANKS <= 64, "a task's homes are a bit for each rank");

/* A task: metadata, operands, operator, activation (FlashMoE, section 3.1; D, the bias, lies behind B). */
typedef struct cot_fused_task {
    cot_fused_op op;
    int32_t lane;               // UP, DOWN, REPLY of `exact`: the lane that it works for
    int64_t begin, end;         // tokens of a chunk, columns, complete rows
    cot_rank_set homes;         // SIGNAL: which ranks
    const cot_ffn_shape *shape; // its activation
    const void *a;              // rows of `type` ...
    const int32_t *a_rows;      // ... and which of them, or NULL: in order
    int64_t rows;               // bM or fewer
    const uint8_t *b;           // the expert's weights
    void *c;                    // the lane's activations (UP)
    int32_t worker;             // whose scratch it uses
    bool last;                  // SEND: no packet comes after
    cot_status status;          // GATE: whether the routing is sound, else worker_error says why
    int64_t begin_ns, end_ns;
} cot_fused_task;

/* Rows that one pass over an expert's weights serves. */
typedef struct cot_fused_tile {
    int32_t slot; // -1: the shared expert, on this rank's own tokens from `first` on
    int32_t rows;
    int64_t first;
} cot_fused_tile;

/* Where a tile's row goes: exact: reply row `at` of rank `home`. reduced: entry `at` of received row `home`. */
typedef struct cot_fused_target {
    int32_t home, at;
} cot_fused_target;

/* A tile at work: room for its activations and its replies. */
typedef struct cot_fused_lane {
    int32_t tile;                                   // -1: free
    int64_t columns[2], parts[2], next[2], done[2]; // of UP and DOWN
    uint8_t *act;                                   // [bM][max I]
    uint8_t *out;                                   // exact: [bM] reply rows
} cot_fused_lane;

/* What is known of one rank's tokens at this rank. */
typedef struct cot_fused_source {
    int64_t rows;        // decoded so far
    int64_t outstanding; // replies that it still waits for: entries (exact) or rows (reduced)
    unsigned flags;      // FINAL once all is decoded
    bool signalled;      // told that it has all its replies
    bool replied;        // it told this rank so
} cot_fused_source;

/* A packet in the making. */
typedef struct cot_fused_cell_out {
    int64_t rows, sent; // rows in the cell, and rows sent before it
    int64_t entries;
} cot_fused_cell_out;

typedef struct cot_fused {
    cot_moe moe; // first: a cot_moe * of this operator is a cot_fused *
    cot_moe_options options;
    cot_fused_layout layout;
    cot_sym dispatch_at, replies_at, dispatch_signals, reply_signals;
    uint8_t *received, *replies; // this rank's memory at dispatch_at and replies_at
    cot_moe_times times;
    int64_t tiles_most, entries_most, scratch_floats;
    cot_arena arena;

    // The call in hand.
    const cot_moe_layer *layer;
    const uint8_t *slots;
    const float *x; // [T of the call][H]
    float *y;
    cot_moe_routing routing;            // of all its tokens
    int64_t call_tokens, first, tokens; // tokens of the call; of them the pass has `tokens`, from `first` on

    atomic_flag lock;
    // The pass in hand.
    uint64_t epoch;
    int running;
    bool wire;                              // a task that puts is running: there is one at a time
    int64_t gate_end, gate_next, gate_done; // tokens of the call to gate or copy in this pass
    int64_t send_next;                      // tokens of the pass sent so far
    bool sent;                              // all packets are out
    bool bad, gave_up;                      // this rank's routing is not sound; this pass is void
    int64_t bad_token;
    cot_error bad_error;
    _Atomic uint64_t progress; // grows whenever anything happened, for those who wait for that
    int finals, signalled, replied;
    bool closed; // all ranks' packets are in tiles
    cot_fused_source *source;
    int64_t combine_next, combine_done;

    uint8_t *gated;                   // [chunks of S]
    float *scratch;                   // [threads][scratch_floats]
    bool *worker_taken;               // [threads]
    cot_error *worker_error;          // [threads]
    uint8_t *staging;                 // [P] cells
    uint32_t *staging_heads;          // [P][C]
    cot_fused_entry *staging_entries; // [P][C K]
    cot_fused_cell_out *cell;         // [P]
    int32_t *slot_replies;            // [slots] of a cell
    int32_t *reply_row;               // exact: [S][K] where the reply of a token's k-th expert comes to lie
    int64_t reply_rows;               // so many are given out
    int32_t *open_tile, *full_tile;   // [slots] tiles that fill, and full ones held back; -1: none
    cot_fused_tile *tile;             // [tiles]
    int32_t *tile_row;                // [tiles][bM]
    float *tile_weight;               // [tiles][bM]
    cot_fused_target *tile_target;    // [tiles][bM]
    int32_t tiles, *ready;            // [tiles] in the order of readiness
    int32_t ready_begin, ready_end, shared_next;
    cot_fused_lane *lane;
    int lanes;
    int32_t *reply_lane; // [lanes] whose replies wait
    int reply_lanes;
    float *shared; // [S][H] the shared expert's rows
    int64_t shared_done;
    // reduced
    float *partial;  // [entries][H]
    int32_t entries; // how many of them are in use
    int32_t *row_left, *row_entry,
        *row_entries;  // [P][S] of a received row: entries to come, the first one, how many
    int32_t *complete; // [P][S] received rows whose entries are all there
    int64_t complete_begin, complete_end;
    int32_t *sent_row; // [T of pass][P]: how many-th row of that rank a token was, or -1
} cot_fused;

static inline bool cot_fused_is_exact(const cot_fused *moe)
{
    return moe->options.combine == COT_COMBINE_EXACT;
}
/* Own tokens' rows as they are dispatched. */
static inline uint8_t *cot_fused_own_rows(const cot_fused *moe)
{
    return moe->received + moe->options.fabric->rank * moe->layout.block_rows * moe->layout.row_bytes;
}

void cot_fused_lock(cot_fused *moe);
void cot_fused_unlock(cot_fused *moe);

/* The subscriber: looks at all signals and decodes what has come. Under the lock. */
void cot_fused_poll(cot_fused *moe);
/* Adds one row of rank `source` to the tiles of its experts here; places of replies count from row `first` of its own. */
void cot_fused_add_row(cot_fused *moe, int source, int64_t first, int64_t row, int64_t number,
                       const cot_fused_entry *entries, int64_t count);

enum { COT_FUSED_CHUNK = 32 }; // tokens that are gated and sent together; S is a multiple of it

/* A call: begins its first pass (the routing is an input where the layer has no gate). */
void cot_fused_begin_call(cot_fused *moe, const cot_moe_layer *layer, float *y, const uint16_t *experts,
                          const float *weights, const float *x, int64_t tokens);
/* A pass is over: begins the next one and returns true, or ends the call, with what forward returns and leaves
 * in experts and weights. */
bool cot_fused_end_pass(cot_fused *moe, cot_status *status, uint16_t *experts, float *weights,
                        cot_error *error);
/* moe.h's forward: a call, driven by threads. */
cot_status cot_fused_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                             float *weights, const float *x, int64_t tokens, cot_error *error);

/* The scheduler. begin_pass makes all ready for tokens [first, first + tokens) of the call. */
void cot_fused_begin_pass(cot_fused *moe);
/* Whether a pass is void: what begins no more, what is owed no more. Under the lock. */
void cot_fused_judge(cot_fused *moe);
/* Takes a task that may run now: false when there is none. */
bool cot_fused_take(cot_fused *moe, cot_fused_task *task);
void cot_fused_finish(cot_fused *moe, const cot_fused_task *task);
/* Whether the pass is over on this rank; else whom it waits for. Under the lock. */
bool cot_fused_is_over(const cot_fused *moe, int *waits_for, cot_phase *phase);
/* Rows of a tile are complete (it is full, or nothing more comes): it may run. */
void cot_fused_release(cot_fused *moe, int32_t tile);

/* A processor runs one task; no lock. */
void cot_fused_run(cot_fused *moe, cot_fused_task *task);
void cot_fused_send(cot_fused *moe, const cot_fused_task *task);
void cot_fused_reply(cot_fused *moe, const cot_fused_task *task);
void cot_fused_tell(cot_fused *moe, const cot_fused_task *task);
/* What the own last dispatch signal says. */
unsigned cot_fused_flags(const cot_fused *moe);
/* The entries of own token t (of the pass) for rank `to`: how many. Their places are those among the token's experts. */
int64_t cot_fused_entries_for(const cot_fused *moe, cot_fused_entry *entries, int64_t token, int to);

#endif
