/* A model's architecture as data: what config.json says, resolved so that one forward pass serves every
 * family. */
#ifndef COT_CHECKPOINT_CONFIG_H
#define COT_CHECKPOINT_CONFIG_H
#include "base/dtype.h"
#include "coterie/status.h"
#include "checkpoint/quantisation.h"
#include "moe/gate.h"
#include <jansson.h>
#include <stdbool.h>

typedef struct cot_family cot_family; // family.h: tensor names and defaults

typedef enum cot_attention_type { COT_ATTENTION_GQA, COT_ATTENTION_MLA } cot_attention_type;
typedef enum cot_qk_norm { COT_QK_NORM_NONE, COT_QK_NORM_HEAD, COT_QK_NORM_WIDTH } cot_qk_norm;

/* Where a branch of a layer is normed: what it reads, what it gives before that is added, or both. */
typedef enum cot_branch_norms { COT_NORMS_BEFORE, COT_NORMS_AFTER, COT_NORMS_BOTH } cot_branch_norms;

/* What a layer does between its norms (model/mixer.h). */
typedef enum cot_mixer_kind {
    COT_MIXER_FULL,    // attention over all keys
    COT_MIXER_SLIDING, // over those in a window
    COT_MIXER_MLA,
    COT_MIXER_DELTA, // Gated DeltaNet: a state of one size, whatever came before
    COT_MIXER_KINDS
} cot_mixer_kind;

typedef struct cot_layer_config {
    cot_mixer_kind mixer;
    bool moe;       // else a dense feed-forward network
    int64_t window; // a token sees this many keys, itself included; 0: all
    bool unrotated; // no RoPE
    int64_t kept;   // its number among the layers that have keys, or among those that have a state
} cot_layer_config;

typedef struct cot_config {
    char architecture[64]; // as config.json spells it
    const cot_family *family;
    bool gguf;                                  // tensors are called as in GGUF
    int64_t vocab, hidden, layers, max_context; // V, H, L, tokens
    const char *
        context_field; // the field that max_context is cut to, up to where attention is what is computed; NULL: none
    bool nested; // a model of texts in a wider one's folder: text_config, and prefixes of tensors
    float norm_eps;
    cot_branch_norms norms;
    bool zero_centred; // files have what norms multiply by less 1; not of DELTA_NORM
    bool layer_norm;   // norms take the mean away and add a bias (LayerNorm), else they are RMSNorm
    float embedding_scale, branch_scale,
        logits_scale; // multiply embeddings, what branches add, logits; 1: nothing
    bool head_bias;
    bool tied_embeddings;
    cot_layer_config *layer; // [layers]
    int64_t moe_layers;
    int64_t key_layers, state_layers; // that have keys, and a state instead

    /* Attention. Query head h reads KV head h / (heads / kv_heads). MLA is described as GQA of the absorbed
     * form: one KV head of key width kv_lora_rank + rope_dim whose first kv_lora_rank columns are the values.
     */
    cot_attention_type attention;
    int64_t heads, kv_heads;
    int64_t head_dim; // of a key: GQA: also of q and v; MLA: kv_lora_rank + rope_dim
    float softmax_scale;
    bool qkv_bias, output_bias; // MLA: qkv_bias is that of q_a_proj and kv_a_proj_with_mqa
    cot_qk_norm qk_norm;
    bool qk_norm_late;     // behind RoPE
    bool attention_gated;  // ATTENTION_GATE, or where Q has it; GQA alone
    bool gates_in_queries; // Q has [query; gate] of each head
    double
        query_beta; // queries at position p are multiplied by 1 + query_beta ln(1 + floor(p / query_tokens)); 0: they are not
    double query_tokens;
    float clip_qkv; // 0: none
    bool sinks;
    int64_t q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_dim; // MLA; q_lora_rank 0: q_proj alone
    float mla_norm_eps;

    /* Gated DeltaNet. Value head h reads key head h / (values / keys). Its convolution goes over the channels [q; k; v]. */
    struct {
        int64_t keys, values;       // heads
        int64_t key_dim, value_dim; // of one
        int64_t taps;               // of the convolution
        bool
            by_head; // QKV has [q; k; v; z] of each key head, and BETA [beta; decay], v, z, beta and decay of all its value heads
    } delta;

    /* RoPE over the first rope_width elements of a head (GQA), or the last (MLA: rope_dim). */
    int64_t rope_width;
    bool rope_interleaved;
    float *inverse_frequency; // [rope_width / 2]
    float rope_factor;        // multiplies cosines and sines (YaRN's attention factor)

    /* Feed-forward. */
    int64_t dense_intermediate, moe_intermediate, shared_intermediate; // 0: none
    bool ffn_bias, expert_bias; // of dense and shared networks; of routed experts
    bool shared_gated;
    float swiglu_limit, swiglu_alpha; // of routed experts; limit 0: plain SwiGLU
    cot_gate gate; // weight, bias, correction NULL; bias and correction exist where the flags say
    bool gate_bias, gate_correction;

    cot_quantisation quantisation;
    bool mxfp4;                                // quantization_config says that experts are stored so
    int64_t fp8_block_rows, fp8_block_columns; // 0 where quantization_config gives none
    int32_t *eos; // ids that end generation: config.json's and generation_config.json's
    size_t eos_count;
    int32_t bos; // -1: none
} cot_config;

/* Parses config.json's text (and generation_config.json's, or NULL). Fields that change the result are
 * honoured or refused by name; `name` stands in messages. The caller frees with cot_config_clear. Errors:
 * MALFORMED, UNSUPPORTED, INVALID_ARGUMENT, OUT_OF_MEMORY. On failure `*config` is empty. */
cot_status cot_config_parse(cot_config *config, const char *text, size_t bytes, const char *generation,
                            size_t generation_bytes, const char *name, cot_error *error);
/* The same of objects. */
cot_status cot_config_resolve(cot_config *config, const json_t *object, const json_t *generation,
                              const char *name, cot_error *error);
/* The same of a model: a folder, or a GGUF file. Errors also: NOT_FOUND, IO. */
cot_status cot_config_read(cot_config *config, const char *folder, cot_error *error);
/* Adds what the text of a file beside config.json says of quantisation, by `method` if it names none. `*config` is whole before; the
 * caller clears it after a failure too. */
cot_status cot_config_quantise(cot_config *config, const char *text, size_t bytes, const char *method,
                               const char *name, cot_error *error);
/* The same of the folder's quantize_config.json (GPTQ) or quant_config.json (AWQ), if there is one: where packers put it
 * before config.json had a place for it. Errors also: IO, MALFORMED (there are both, and they differ). */
cot_status cot_config_read_beside(cot_config *config, const char *folder, cot_error *error);
/* The same of its hf_quant_config.json (ModelOpt). */
cot_status cot_config_read_modelopt(cot_config *config, const char *folder, cot_error *error);
void cot_config_clear(cot_config *config);
/* The numbers of its MoE layers, ascending; layers [moe_layers]. */
void cot_config_list_moe_layers(int32_t *layers, const cot_config *config);

#endif
