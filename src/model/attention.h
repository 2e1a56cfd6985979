/* Attention of one rank's heads. */
#ifndef COT_MODEL_ATTENTION_H
#define COT_MODEL_ATTENTION_H
#include "model/runner.h"

/* Its weights, its KV pages, and what a step makes on its way through them. */
typedef struct cot_runner_heads {
    const cot_attention_weights *weights; // [L]
    cot_attention_weights *own_weights;   // the same where heads are split
    cot_kv kv;
    cot_attend *attend;
    cot_run *runs; // [N]
    int64_t run_count;
    float *cosines, *sines; // [N][rope_width / 2]
    float *input;           // [N][attention's input columns]
    float *width_sums;      // [N][2] sums of squares over whole-width q and k
    float *q;               // [N][heads][nope + rope]: MLA with q_lora
    void *q_latent;         // [N][q_lora] typed
    void *q_nope;           // [N][heads][nope] typed
    float *absorbed;        // [N][heads][kv_lora]
    void *queries;          // [N][heads][key_width] typed
    void *values;           // [N][heads][value_width] typed: what attention gives
    float *expanded;        // [N][heads][v]: MLA
    void *output;           // [N][heads][v] typed: what the output product reads (GQA: values)
    cot_gemm *gemms;        // [heads]
} cot_runner_heads;

/* The weights, into `load`; an arena that measures records nothing. */
void cot_runner_lay_out_head_weights(cot_runner *r, cot_arena *arena, cot_loader *load);
/* The pages and a step's memory. */
void cot_runner_lay_out_heads(cot_runner *r, cot_arena *arena);
/* rows.branch = this rank's heads' part of attention over rows.x, without the output bias. */
cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);

#endif
