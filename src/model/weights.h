/* Weights as the forward pass reads them: packed, cut by rank where they are cut. */
#ifndef COT_MODEL_WEIGHTS_H
#define COT_MODEL_WEIGHTS_H
#include "fabric/fabric.h"
#include "checkpoint/embedding.h"
#include "model/loader.h"
#include "model/networks.h"
#include "moe/moe.h"

/* One layer's attention: the weights of a range of query heads and of the KV heads that they read. H is the hidden
 * size, d a head's width; q_lora, kv_lora, nope, rope and v are MLA's widths (config.h).
 *
 *   GQA    input   packed [H][q: heads d | k: kv_heads d | v: kv_heads d], and behind it [heads d] of gates where there are
 *   MLA    input   packed [H][q_lora | kv_lora + rope], or [H][heads (nope + rope) | kv_lora + rope] without q_lora
 *          q_b     packed [q_lora][heads (nope + rope)], or empty without q_lora
 *          absorb  packed [nope][kv_lora], one for each head: takes the nope part of a query to the latent's space
 *          expand  packed [kv_lora][v], one for each head: makes the head's value of a latent
 *   both   output  packed [heads v][H], for GQA with v = d
 *   delta  input   packed [H][q: kv_heads dk | k: kv_heads dk | v: heads dv | z: heads dv | beta: heads | decay: heads]
 *          output  packed [heads dv][H]
 *          with keys' heads for KV heads, and values' heads for heads (config.h: delta)
 *
 * Matrices side by side that are of several formats are as many parts, whose columns follow each other. */
typedef struct cot_attention_weights {
    int64_t head0, heads, kv_head0, kv_heads;
    cot_packed_parts input;
    cot_packed q_b, output;
    cot_packed absorb, expand;         // of the first head
    size_t absorb_bytes, expand_bytes; // of one head
    const float *input_bias;           // [input_biases] of input's first columns, or NULL
    int64_t input_biases;
    const float *q_norm, *k_norm;      // [d], or of a norm over the whole width the parts of these heads
    const float *q_a_norm, *kv_a_norm; // MLA
    const float *sinks;                // [heads] or NULL
    const float *taps;                 // delta: [taps][channels], channels as the columns of q, k, v
    const float *decay_log, *decay_bias, *state_norm; // delta: [heads], [heads], [dv]
} cot_attention_weights;

/* Of RMSNorm, or LayerNorm. weight NULL: nothing is normed. */
typedef struct cot_norm {
    const float *weight; // [H]
    const float *bias;   // [H] or NULL: RMSNorm
} cot_norm;

typedef struct cot_layer_weights {
    cot_norm attention_norm, ffn_norm;   // of what branches read
    cot_norm attention_after, ffn_after; // of what they give
    const float *output_bias;            // [H] or NULL: attention's, added once after the heads' sum
    const uint8_t *dense;                // a dense layer's network, else NULL
    cot_gate gate;                       // an MoE layer's
    const uint8_t *shared;
    const float *shared_mix; // [H] or NULL
} cot_layer_weights;

/* What every rank holds whole: one read-only copy a process. */
typedef struct cot_whole_weights {
    cot_arena arena;
    cot_embedding embedding;
    cot_layer_weights *layers;        // [L]
    cot_attention_weights *attention; // [L] all heads (data-parallel attention), or NULL
    cot_norm final_norm;
    cot_packed output;        // [H][V]
    const float *output_bias; // [V] or NULL
} cot_whole_weights;

/* Sets the head ranges of a layer: the query heads that `rank` of `ranks` has, and the KV heads that those read (none on a
 * rank without query heads). All else becomes zero. */
void cot_attention_heads(cot_attention_weights *weights, const cot_config *config, int64_t layer, int rank,
                         int ranks);

/* Each walk goes over its weights: it takes memory for them from the arena and records what to load there. With an
 * arena that measures, the walk only adds up how much memory that will be. */

/* What every rank holds whole, an MoE layer's gate and shared expert as `moe` keeps them; with `attention` also
 * weights->attention, whose head ranges are set. */
void cot_whole_weights_walk(cot_whole_weights *weights, const cot_checkpoint *checkpoint,
                            cot_precision precision, const cot_networks *networks, const cot_moe_weights *moe,
                            bool attention, cot_arena *arena, cot_loader *load);
/* The attention of all layers, `attention` [L], whose head ranges (cot_attention_heads) are set. Where heads are cut inside groups of
 * the output's rows, these become shorter, of the same scales, or they are widened; blocks that are cut stay whole in both parts. */
void cot_attention_weights_walk(cot_attention_weights *attention, const cot_checkpoint *checkpoint,
                                cot_precision precision, cot_arena *arena, cot_loader *load);
/* Bytes of the matrices of one layer's attention. */
size_t cot_attention_weights_bytes(const cot_attention_weights *weights);
/* One routed expert, into its slot; it takes nothing from an arena. */
void cot_expert_walk(const cot_networks *networks, const cot_moe_weights *weights, int64_t layer,
                     int64_t expert, uint8_t *slot, cot_loader *load);

#endif
