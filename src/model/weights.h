/* Weights as the forward pass reads them: packed, cut by rank where they are cut. */
#ifndef COT_MODEL_WEIGHTS_H
#define COT_MODEL_WEIGHTS_H
#include "fabric/fabric.h"
#include "model/load.h"
#include "moe/moe.h"

/* Arithmetic: of everything but the gate, which is fp32; quantised: of routed and shared experts in int8 instead. */
typedef struct cot_precision {
    cot_dtype type; // F32 or BF16: also payload
    bool quantised;
} cot_precision;

/* One layer's attention for a range of query heads and the KV heads they read. With q-heads h, head width d,
 * MLA ranks r:
 *
 *   GQA   input  packed [H][q heads d | k heads d | v heads d]
 *   MLA   input  packed [H][q_lora | kv_lora + rope]   or, without q_lora,   [H][heads (nope + rope) |
 * kv_lora + rope] q_b    packed [q_lora][heads (nope + rope)] absorb packed [nope][kv_lora], one a head: a
 * query's nope part in terms of the latent expand packed [kv_lora][v], one a head: the latent's value both
 * output packed [heads v][H] */
typedef struct cot_attention_weights {
    int64_t head0, heads, kv_head0, kv_heads;
    int64_t input_columns;
    const void *input, *q_b, *output;
    const uint8_t *absorb, *expand;
    size_t absorb_bytes, expand_bytes; // of one head
    const float *input_bias;           // [input_columns] or NULL
    const float *q_norm, *k_norm;      // HEAD: [d]; WIDTH: the slices of these heads
    const float *q_a_norm, *kv_a_norm; // MLA
    const float *sinks;                // [heads] or NULL
} cot_attention_weights;

typedef struct cot_layer_weights {
    const float *attention_norm, *ffn_norm; // [H]
    const float *output_bias;               // [H] or NULL: attention's, added once after the heads' sum
    const uint8_t *dense;                   // a dense layer's network, else NULL
    cot_gate gate;                          // an MoE layer's
    const uint8_t *shared;
    const float *shared_mix; // [H] or NULL
} cot_layer_weights;

/* What every rank holds whole: one read-only copy a process. */
typedef struct cot_whole_weights {
    cot_arena arena;
    cot_layer_weights *layers;        // [L]
    cot_attention_weights *attention; // [L] all heads (data-parallel attention), or NULL
    const float *final_norm;          // [H]
    const void *output;               // packed [H][V]
} cot_whole_weights;

/* How networks look at this precision. intermediate is 0 where the model has none of that kind. */
cot_ffn_shape cot_expert_shape(const cot_config *config, cot_precision precision);
cot_ffn_shape cot_shared_shape(const cot_config *config, cot_precision precision);
cot_ffn_shape cot_dense_shape(const cot_config *config, cot_dtype type);

/* The heads of one rank of P, and the KV heads they read (none on a rank without query heads). */
void cot_attention_heads(cot_attention_weights *weights, const cot_config *config, int rank, int ranks);

/* Each walks its weights: takes memory from the arena and records what to load into it (an arena that
 * measures only adds up). The structures and names of the layout are the same in both passes. */
void cot_whole_weights_walk(cot_whole_weights *weights, const cot_config *config, cot_precision precision,
                            bool attention, cot_arena *arena, cot_load *load);
/* attention [L], whose head ranges are set; */
void cot_attention_weights_walk(cot_attention_weights *attention, const cot_config *config, cot_dtype type,
                                cot_arena *arena, cot_load *load);
/* One expert into its slot. */
void cot_expert_walk(const cot_config *config, cot_precision precision, int64_t layer, int64_t expert,
                     uint8_t *slot, cot_load *load);

#endif
