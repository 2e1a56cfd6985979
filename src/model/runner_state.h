/* Inside a runner: shared by runner.c (memory and loading) and one step's rows.c, attention.c, forward.c. */
#ifndef COT_MODEL_RUNNER_STATE_H
#define COT_MODEL_RUNNER_STATE_H
#include "model/runner.h"

/* Scratch of one step. N = step_tokens; "typed" is the runner's arithmetic type. */
typedef struct cot_step_scratch {
    float *x;               // [N][H] residual stream of this rank's rows
    float *normed;          // [N][H]
    void *typed;            // [N][H]
    float *branch;          // [N][H] what a branch adds to the residual stream
    void *payload;          // [N][H] typed: what allgather carries
    float *input;           // [N][input_columns]
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
    uint16_t *experts;      // [MoE layers][N][K] of the home rows
    float *weights;
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
    const cot_config *c;
    cot_fabric *fabric;
    cot_arena arena;
    const cot_attention_weights *attention; // [L]
    cot_attention_weights *own_attention;   // the same where heads are split
    cot_kv kv;
    cot_attend *attend;
    cot_collectives *collectives;
    cot_moe *moe;
    size_t slot_bytes;
    cot_sym experts_at;                           // [MoE layers][slots of a rank][slot_bytes]
    cot_sym logits_at;                            // on rank 0: for each rank, [logits][its columns]
    cot_sym routed_experts_at, routed_weights_at; // on rank 0: [MoE layers][N][K]
    cot_sym unsound_at;                           // on rank 0: [N] by span, zero between steps
    cot_sym stats_at;                             // on rank 0: [P]
    cot_sym done_at;                              // on rank 0: a signal a rank
    uint64_t calls;                               // steps and stats so far
    cot_rank_stats stats;
    cot_step_scratch s;
};

static inline bool cot_runner_splits_heads(const cot_runner *r)
{
    return !r->o.data_parallel && r->fabric->ranks > 1;
}
/* Row `row` of a typed [rows][width]. */
static inline uint8_t *cot_runner_row(const cot_runner *r, void *typed, int64_t row, int64_t width)
{
    return (uint8_t *)typed + (size_t)(row * width) * cot_dtype_bytes(r->o.type);
}
/* The columns of the vocabulary whose logits this rank computes: whole panels. */
void cot_runner_logit_columns(const cot_runner *r, int rank, int64_t *begin, int64_t *end);

/* normed[i] = RMSNorm(x[i]) weight, and the same typed (either may be NULL), rows [row0, row0 + rows). */
void cot_runner_norm(cot_runner *r, const float *weight, int64_t row0, int64_t rows);
/* branch = this rank's heads' part of attention over s.x, without the output bias. */
cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);
/* body(r, row) for each row, the pool helping. */
void cot_runner_rows(cot_runner *r, int64_t rows,
                     void (*body)(cot_runner *r, int64_t row, const void *context), const void *context);
/* C = A B for typed A [rows][k] and a packed B. */
void cot_runner_product(cot_runner *r, const void *a, int64_t rows, int64_t k, const void *b, int64_t n,
                        float *c);

#endif
