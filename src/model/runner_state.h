/* Inside a runner: shared by runner.c (memory and loading) and one step's rows.c, attention.c, forward.c. */
#ifndef COT_MODEL_RUNNER_STATE_H
#define COT_MODEL_RUNNER_STATE_H
#include "model/runner.h"
#include "placement/epoch.h"

/* Scratch of one step. N = step_tokens; "typed" is the runner's arithmetic type. */
typedef struct cot_step_scratch {
    float *x;    // [N][H] residual stream of this rank's rows
    void *typed; // [N][H]
    /* What the operator reads and writes, side by side from `normed` on: rows_bytes of the kind of memory that it names. */
    float *normed;     // [N][H]
    float *branch;     // [N][H] what a branch adds to the residual stream
    uint16_t *experts; // [MoE layers][N][K] of the home rows
    float *weights;
    uint16_t *replayed_experts; // [N][K] of the home rows in the layer in hand, where routing is replayed
    float *replayed_weights;
    size_t rows_bytes;
    void *payload;          // [N][H] typed, and bytes that ride with rows: what is sent
    float *input;           // [N][attention's input columns]
    float *q;               // [N][heads][nope + rope]: MLA with q_lora
    void *q_latent;         // [N][q_lora] typed
    void *q_nope;           // [N][heads][nope] typed
    float *absorbed;        // [N][heads][kv_lora]
    void *queries;          // [N][heads][key_width] typed
    void *values;           // [N][heads][value_width] typed: what attention gives
    void *output;           // [N][heads][v] typed: what the output product reads (GQA: values)
    float *expanded;        // [N][heads][v]: MLA
    float *width_sums;      // [N][2] sums of squares over whole-width q and k
    float *cosines, *sines; // [N][rope_width / 2]
    uint8_t *dense_scratch; // one network's over N rows
    cot_gemm *gemms;        // [heads]
    int32_t *recorded;      // [N] the trace's sequence that each row is of, where routing is replayed
    /* Where rows go home in one hop (pipeline.h); M: most rows at home. */
    float *home_x;           // [M][H] the rows at home, with what attention gives
    float *update;           // [M][H] what the layer adds to them
    int32_t *token_row;      // [N] of the tables
    int16_t *home;           // [MoE layers + 1][N], the last row for dense layers
    const int16_t *home_of;  // that of the layer in hand
    int16_t *held;           // [MoE layers][N] the rank of most of a row's experts
    int16_t *guess;          // [N] the rank that the gate guessed for the next MoE layer; -1: none
    uint16_t *sure;          // [N] how surely
    uint16_t *asked_experts; // [M][K] what the next gate says too early ...
    float *asked_weights, *asked_logits;    // [M][K], [M][E]
    int16_t *ranks_before;                  // [COT_PREDICT_MAX_ORDER][N]
    int32_t *order;                         // [N] rows as they travel ...
    int32_t order_begin[COT_MAX_RANKS + 1]; // ... and where each rank's begin
    cot_homes_scratch homes;
    float *routed;                // [N][K] scratch of rank 0 where routing is kept
    int32_t *position, *sequence; // [N] of this rank's rows
    cot_run *runs;                // [N]
    int64_t run_count, rows;      // this rank's attention rows
    int64_t home0, home1;         // its home rows among them
    void *hidden;                 // [step_logits][H] typed: final rows that want logits
    int32_t *hidden_row;          // [step_logits] where a row of logits finds its hidden row
    float *columns;               // [step_logits][this rank's columns of V]
    float *logits;                // [step_logits][V], rank 0
    uint8_t *unsound;             // [N] by span, rank 0: a row of it is not finite
} cot_step_scratch;

struct cot_runner {
    cot_runner_options o;
    cot_expert_epoch epoch[2];       // the one in force, and room for the one that follows
    const cot_expert_layout *layout; // of the epoch in force
    const cot_config *c;
    cot_fabric *fabric;
    cot_arena arena;
    const cot_attention_weights *attention; // [L]
    cot_attention_weights *own_attention;   // the same where heads are split
    cot_kv kv;
    cot_attend *attend;
    cot_collectives *collectives;
    cot_moe *moe;
    bool pinned; // its rows are
    size_t slot_bytes;
    cot_sym experts_at;                           // [MoE layers][slots of a rank][slot_bytes]
    cot_sym logits_at;                            // on rank 0: for each rank, [logits][its columns]
    cot_sym routed_experts_at, routed_weights_at; // on rank 0: [MoE layers][N][K]
    cot_sym unsound_at;                           // on rank 0: [N] by span, zero between steps
    cot_sym stats_at, counts_at;                  // on rank 0: [P]
    cot_sym
        calls_at; // [P][MoE layers][E] uint64: a rank counts in its own part; on rank 0 those of all, as of stats
    cot_sym sent_at; // [P][exchanges][P] uint64: bytes of the last step, a rank counts in its own part
    cot_sym sums_at,
        sums_signals; // [P]: the checksum of the last chunk of each rank, and a signal that raises with it
    uint64_t copies;  // commands to copy so far
    cot_sym done_at;  // on rank 0: a signal a rank
    uint64_t calls;   // steps and stats so far
    cot_rank_stats stats;
    uint64_t seen[COT_MAX_RANKS][COT_PHASES]; // bytes of the exchanges that are behind
    cot_step_scratch s;
};

/* Where a slot begins, on every rank. */
static inline cot_sym cot_runner_slot_at(const cot_runner *r, int32_t layer, int32_t slot)
{
    return r->experts_at + ((size_t)layer * (size_t)r->layout->slots_per_rank + (size_t)slot) * r->slot_bytes;
}
/* Words of one rank's part of sent_at; 0 where exchanges are not counted. */
static inline size_t cot_runner_sent_words(const cot_runner *r, int ranks)
{
    return !r->o.count_exchanges ? 0 : cot_runner_exchanges(r->c->layers) * (size_t)ranks;
}
/* A step begins: no exchange has been; and one of a layer, of these phases (bits), is over. */
void cot_runner_begin_exchanges(cot_runner *r);
void cot_runner_exchanged(cot_runner *r, int64_t layer, int exchange, unsigned phases);
enum { COT_ROWS_HOME = 1u << COT_PHASE_ATTENTION | 1u << COT_PHASE_METADATA };

/* Counters of one rank: an expert's of a layer each. */
static inline size_t cot_runner_calls(const cot_runner *r)
{
    return (size_t)(r->c->moe_layers * r->c->gate.experts);
}
/* A rank's counters in this rank's memory [MoE layers][E]. */
static inline uint64_t *cot_runner_calls_of(const cot_runner *r, int rank)
{
    return (uint64_t *)cot_local(r->fabric, r->calls_at) + (size_t)rank * cot_runner_calls(r);
}
static inline bool cot_runner_splits_heads(const cot_runner *r)
{
    return !r->o.data_parallel && r->fabric->ranks > 1;
}
/* Whether rows go home and back by themselves: in one hop, or shuffled on a ring. */
static inline bool cot_runner_goes_home(const cot_runner *r)
{
    return cot_runner_splits_heads(r) && cot_pipeline_goes_home(&r->o.pipeline);
}
/* Row `row` of a typed [rows][width]. */
static inline uint8_t *cot_runner_row(const cot_runner *r, void *typed, int64_t row, int64_t width)
{
    return (uint8_t *)typed + (size_t)(row * width) * cot_dtype_bytes(r->o.precision.type);
}
/* The columns of the vocabulary whose logits this rank computes: whole panels. */
void cot_runner_logit_columns(const cot_runner *r, int rank, int64_t *begin, int64_t *end);

/* s.normed[i] = RMSNorm(x[i]) weight, s.typed the same typed, for rows of x [rows][H]. */
void cot_runner_norm(cot_runner *r, const float *weight, const float *x, int64_t rows);
/* branch = this rank's heads' part of attention over s.x, without the output bias. */
cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);
/* Where rows go home. A step with these ids begins; */
void cot_runner_begin_homes(cot_runner *r, const int32_t *ids);
/* a layer begins: which rows are at home where (its number among MoE layers, and whether it is one); */
void cot_runner_choose_homes(cot_runner *r, int64_t moe_layer, bool moe);
/* all ranks' parts of attention, in s.branch, become the update of the rows at home, with the layer's bias: there are
 * `*rows`, and s.home_x has them so; */
cot_status cot_runner_go_home(cot_runner *r, int64_t layer, int64_t *rows, cot_error *error);
/* s.branch's first rows, what the network makes of them, join the update, which all ranks add to s.x. */
cot_status cot_runner_return(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error);
/* The row of s.x that is the i-th at home in the layer in hand. */
int64_t cot_runner_row_at_home(const cot_runner *r, int64_t i);
/* x [n] becomes the sum over ranks, added in their order: metadata, in one hop. */
cot_status cot_runner_add_up(cot_runner *r, float *x, int64_t n, cot_error *error);
/* Bytes of an exchange in one hop, and of what is gathered, at most. */
size_t cot_runner_exchange_bytes(const cot_runner_options *options, int64_t hidden, int ranks);
size_t cot_runner_gathered_bytes(const cot_runner_options *options, int64_t hidden, int ranks);
/* body(r, row) for each row, the pool helping. */
void cot_runner_rows(cot_runner *r, int64_t rows,
                     void (*body)(cot_runner *r, int64_t row, const void *context), const void *context);
/* What the operator is given of an MoE layer: layer of all, moe_layer of those. */
cot_moe_layer cot_runner_moe_layer(const cot_runner *r, int64_t layer, int64_t moe_layer);
/* C [rows][n] = A B for typed A [rows][k]. */
void cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c);

#endif
