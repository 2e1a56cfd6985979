/* What one rank's heads do between the norms of a layer. */
#ifndef COT_MODEL_ATTENTION_H
#define COT_MODEL_ATTENTION_H
#include "model/runner.h"
#include "model/state.h"

/* Where a run's states are copied on the way, in the order of positions. */
typedef struct cot_runner_copies {
    const cot_state_copy *first;
    int32_t count;
} cot_runner_copies;

/* Its weights, its KV pages, and what a step makes on its way through them. */
typedef struct cot_runner_heads {
    const cot_attention_weights *weights; // [L]
    cot_attention_weights *own_weights;   // the same where heads are split
    cot_kv kv;
    cot_state state;
    cot_attend *attend;
    cot_run *runs;             // [N]
    cot_runner_copies *copies; // [N] of each run
    int64_t run_count;
    float *cosines, *sines; // [N][rope_width / 2]
    float *input;           // [N][attention's input columns]
    float *width_sums;      // [N][2] sums of squares over whole-width q and k
    void *queries;          // [N][heads][key_width] typed
    void *output;           // [N][heads][v] typed: what the output product reads

    /* MLA's own. */
    float *q;        // [N][heads][nope + rope]: with q_lora
    void *q_latent;  // [N][q_lora] typed
    void *q_nope;    // [N][heads][nope] typed
    float *absorbed; // [N][heads][kv_lora]
    void *values;    // [N][heads][kv_lora] typed: what attention gives
    float *expanded; // [N][heads][v]
    cot_gemm *gemms; // [heads]

    /* Gated DeltaNet's own. */
    float *mixed; // [N][channels] q, k, v behind the convolution
    float *ones;  // [channels]
} cot_runner_heads;

/* The weights, into `load`; an arena that measures records nothing. */
void cot_runner_lay_out_head_weights(cot_runner *r, cot_arena *arena, cot_loader *load);
/* The pages and a step's memory. */
void cot_runner_lay_out_heads(cot_runner *r, cot_arena *arena);
/* rows.branch = this rank's heads' part of what the layer's mixer makes of rows.x, without the output bias. */
cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);

/* What rows of the mixers' table are made of. Query heads are cut evenly, and KV heads are on all ranks that read them. */
void cot_attention_heads_cut(cot_attention_weights *weights, const cot_config *config, int rank, int ranks);
void cot_attention_heads_share(cot_attention_weights *weights, int64_t heads, int64_t kv_heads, int rank,
                               int ranks);
/* RMSNorm in place over n elements whose squares sum to `sum` over `width` elements. */
void cot_runner_normalise(const cot_runner *r, float *x, int64_t n, float sum, int64_t width, float epsilon,
                          const float *weight);
/* RoPE of a head at the row's position. */
void cot_runner_rotate(const cot_runner *r, float *head, int64_t row);
/* What queries at the row's position are multiplied by. */
float cot_runner_query_scale(const cot_runner *r, int64_t row);
/* out [N][heads][value_width] typed = what heads.queries find in the KV pages; `group` query heads of the model share a KV head. */
void cot_runner_attend(cot_runner *r, const cot_attention_weights *weights, int64_t layer, int64_t group,
                       void *out);

#endif
