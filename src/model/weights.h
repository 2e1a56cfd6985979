/* Weights as the forward pass reads them: packed, cut by rank where they are cut. */
#ifndef COT_MODEL_WEIGHTS_H
#define COT_MODEL_WEIGHTS_H
#include "fabric/fabric.h"
#include "checkpoint/embedding.h"
#include "model/loader.h"
#include "moe/moe.h"

/* What weights become: as they are stored, if that is of `kind` (COT_FORMATS: of any) and can be multiplied; else `other`. */
typedef struct cot_weight_rule {
    cot_format kind, other;
} cot_weight_rule;

/* What the arithmetic is done in. The gate, and what MLA absorbs, have weights of the type's own (the gate: fp32). */
typedef struct cot_precision {
    cot_dtype type; // F32 or BF16, of all but the gate; what ranks send each other is of this type, too
    bool
        rounded; // rows are rounded to whole numbers within products (kernels.h): those with networks, and with other weights
    // that can be multiplied so
    cot_format experts, shared, dense; // the networks' weights
    cot_weight_rule attention, head;
} cot_precision;

/* What a checkpoint stores networks as; COT_FORMATS where these have to be widened or rounded. */
typedef struct cot_stored_formats {
    cot_format experts, shared, dense;
} cot_stored_formats;
cot_stored_formats cot_checkpoint_formats(const cot_checkpoint *checkpoint);

/* What weights are to be: a cot_format, or COT_FORMATS: as stored. */
enum { COT_WEIGHTS_OF_NETWORKS = -1 }; // as networks, but where these have less than 8 bits as stored or int8
typedef struct cot_weight_kinds {
    int networks, attention, head;
} cot_weight_kinds;

/* Sets what weights are, of a precision whose other fields are set. As stored: what they are stored as if such weights can be
 * multiplied in this precision, else the precision's own kind (INT8 of networks whose rows are rounded). A format: that
 * kind, as it is stored where it is stored so, and where not rounded to it. Errors: INVALID_ARGUMENT (a format that is not multiplied so). */
cot_status cot_precision_set_weights(cot_precision *precision, cot_weight_kinds kinds,
                                     cot_stored_formats stored, cot_error *error);
/* What weights that are stored as `stored` become by a rule. */
cot_format cot_weight_format(const cot_precision *precision, cot_weight_rule rule, cot_format stored);

/* One layer's attention: the weights of a range of query heads and of the KV heads that they read. H is the hidden
 * size, d a head's width; q_lora, kv_lora, nope, rope and v are MLA's widths (config.h).
 *
 *   GQA    input   packed [H][q: heads d | k: kv_heads d | v: kv_heads d]
 *   MLA    input   packed [H][q_lora | kv_lora + rope], or [H][heads (nope + rope) | kv_lora + rope] without q_lora
 *          q_b     packed [q_lora][heads (nope + rope)], or empty without q_lora
 *          absorb  packed [nope][kv_lora], one for each head: takes the nope part of a query to the latent's space
 *          expand  packed [kv_lora][v], one for each head: makes the head's value of a latent
 *   both   output  packed [heads v][H], for GQA with v = d */
typedef struct cot_attention_weights {
    int64_t head0, heads, kv_head0, kv_heads;
    cot_packed input, q_b, output;
    cot_packed absorb, expand;         // of the first head
    size_t absorb_bytes, expand_bytes; // of one head
    const float *input_bias;           // [input's columns] or NULL
    const float *q_norm, *k_norm;      // [d], or of a norm over the whole width the parts of these heads
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
    cot_embedding embedding;
    cot_layer_weights *layers;        // [L]
    cot_attention_weights *attention; // [L] all heads (data-parallel attention), or NULL
    const float *final_norm;          // [H]
    cot_packed output;                // [H][V]
} cot_whole_weights;

/* The shapes of the model's networks in this precision: of a routed expert, of the shared expert and of a dense
 * layer. `intermediate` is 0 where the model has no network of that kind. */
cot_ffn_shape cot_model_expert_shape(const cot_config *config, cot_precision precision);
cot_ffn_shape cot_model_shared_shape(const cot_config *config, cot_precision precision);
cot_ffn_shape cot_model_dense_shape(const cot_config *config, cot_precision precision);

/* Sets the head ranges: the query heads that `rank` of `ranks` has, and the KV heads that those read (none on a rank
 * without query heads). All else becomes zero. */
void cot_attention_heads(cot_attention_weights *weights, const cot_config *config, int rank, int ranks);

/* Each walk goes over its weights: it takes memory for them from the arena and records what to load there. With an
 * arena that measures, the walk only adds up how much memory that will be. */

/* What every rank holds whole, an MoE layer's gate and shared expert as `moe` keeps them; with `attention` also
 * weights->attention, whose head ranges are set. */
void cot_whole_weights_walk(cot_whole_weights *weights, const cot_checkpoint *checkpoint,
                            cot_precision precision, const cot_moe_weights *moe, bool attention,
                            cot_arena *arena, cot_loader *load);
/* The attention of all layers, `attention` [L], whose head ranges (cot_attention_heads) are set. Where heads are cut inside groups of
 * the output's rows, these become shorter, of the same scales, or they are widened. */
void cot_attention_weights_walk(cot_attention_weights *attention, const cot_checkpoint *checkpoint,
                                cot_precision precision, cot_arena *arena, cot_loader *load);
/* Bytes of the matrices of one layer's attention. */
size_t cot_attention_weights_bytes(const cot_attention_weights *weights);
/* One routed expert, into its slot; it takes nothing from an arena. */
void cot_expert_walk(const cot_config *config, cot_precision precision, const cot_moe_weights *weights,
                     int64_t layer, int64_t expert, uint8_t *slot, cot_loader *load);

#endif
