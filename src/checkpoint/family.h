/* The families of models: what each calls its fields and tensors in files, and what a field means where
 * config.json leaves it out. One table a family (family.c); everything else reads these rows. */
#ifndef COT_CHECKPOINT_FAMILY_H
#define COT_CHECKPOINT_FAMILY_H
#include "checkpoint/checkpoint.h"

/* The whole numbers of a config.json. X(NAME, what its range is: see `ranges` in config.c) */
// clang-format off
#define COT_SIZE_LIST(X) \
    X(VOCAB) X(HIDDEN) X(LAYERS) X(HEADS) X(KV_HEADS) X(HEAD_DIM) X(CONTEXT) X(EXPERTS) X(TOP_K) \
    X(MOE_INTERMEDIATE) X(DENSE_INTERMEDIATE) X(SHARED_INTERMEDIATE) X(SHARED_EXPERTS) \
    X(FIRST_MOE_LAYER) X(LAST_MOE_LAYER) X(SPARSE_STEP) X(WINDOW) X(WINDOW_LAYERS) X(Q_LORA) X(KV_LORA) X(NOPE_DIM) \
    X(ROPE_DIM) X(V_DIM) X(GROUPS) X(GROUP_LIMIT) X(DENSE_CONTEXT) X(FULL_INTERVAL) X(DELTA_KEYS) X(DELTA_VALUES) \
    X(DELTA_KEY_DIM) X(DELTA_VALUE_DIM) X(DELTA_TAPS)
// clang-format on

typedef enum cot_size_field {
#define COT_SIZE_ENUM(name) COT_SIZE_##name,
    COT_SIZE_LIST(COT_SIZE_ENUM)
#undef COT_SIZE_ENUM
        COT_SIZES
} cot_size_field;

/* One number's field. Without a name the family has no such field and the number is always `absent`. */
typedef struct cot_size_rule {
    const char *name, *alias; // the alias may stand instead
    int64_t absent;           // what leaving it out means; COT_REQUIRED where it may not be left out
    bool nullable;            // null is allowed, and means 0: "none", or "derived from others"
    bool listed;              // a list of it, once for each layer, may stand instead
    const char *fallback;     // the field that it is where it is left out; NULL: none
} cot_size_rule;
#define COT_REQUIRED INT64_MIN

/* A yes or no. Without a name the answer is always `absent`. */
typedef struct cot_switch_rule {
    const char *name;
    bool absent;
} cot_switch_rule;

typedef enum cot_window_rule {
    COT_WINDOW_NEVER,
    COT_WINDOW_ALL,            // every layer, where sliding_window is given (Mixtral)
    COT_WINDOW_SWITCHED,       // every layer, where use_sliding_window says so (Qwen3)
    COT_WINDOW_TYPES,          // layer_types, else every even layer (gpt-oss)
    COT_WINDOW_SWITCHED_TYPES, // Qwen2: where use_sliding_window says so, layer_types, else every even layer
                               // below max_window_layers
    COT_WINDOW_BETWEEN,        // layer_types, else all but every so many-th layer (afmoe)
    COT_WINDOW_ABOVE, // layer_types, else every layer from max_window_layers on, where sliding_window is given (dots1)
} cot_window_rule;

/* What a family is called in GGUF, and what conversion to it leaves unsaid. */
typedef struct cot_gguf_family {
    const char *architecture; // general.architecture; NULL: the format has none for it
    const char *config;       // fields of config.json for which it has no key, as JSON
    bool pairs;               // rows of q and k were turned, so that RoPE rotates neighbours
    const char *ffn_norm;     // where it differs from the common name
} cot_gguf_family;

struct cot_family {
    const char *model_type, *other_type; // other_type: read as well, NULL: none
    const char *other_architecture;      // likewise, beside that of the table
    const char *
        fixed; // JSON of fields that have to be these where they are given, each item of a list likewise; NULL: none
    cot_gguf_family gguf;
    cot_size_rule sizes[COT_SIZES];
    double norm_eps, rope_theta;
    double rotary;   // the part of a head that is rotated where no field says; 0: heads are rotated whole
    bool rotary_dim; // that field says how many of a head's numbers are
    cot_attention_type attention;
    cot_qk_norm qk_norm;
    bool qk_norm_late;
    cot_switch_rule qk_normed; // whether there is one; without a name there is
    bool tied;                 // tie_word_embeddings where absent
    cot_switch_rule qkv_bias, output_bias, ffn_bias, rope_interleaved, normalise;
    cot_window_rule window;
    bool unrotated;    // layers without a window have no RoPE
    bool longrope;     // RoPE of that type
    bool rope_alpha;   // and "dynamic", where alpha lifts the base
    bool query_scaled; // llama_4_scaling_beta
    cot_branch_norms norms;
    bool layer_norm, zero_centred, attention_gated, gates_in_queries;
    bool delta_by_head; // and there are DELTA sizes where some layers have a state
    bool multiplied;    // embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling
    cot_switch_rule embedding_rooted; // the embedding is multiplied by the root of H
    cot_switch_rule head_bias;
    bool clips; // clip_qkv
    bool sinks;
    bool gate_bias, gate_correction, expert_bias, shared_gated;
    bool clamped;             // swiglu_limit, swiglu_alpha; hidden_act is not a field
    const char *default_rope; // rope_parameters where config.json has none, as JSON; NULL: plain
    cot_gate_score score;
    cot_gate_group_score group_score;
    float epsilon;  // of the normalisation
    double scaling; // of the gate's weights where the field is absent; 0: no such field, and 1 is meant
    const char *scaling_field; // NULL: routed_scaling_factor
    const char *scoring_func,
        *scoring_alias; // the value that is this family's, and what is written for it too; NULL: no such field
    const char *plain_method, *group_method; // topk_method's values; NULL: no such value
    bool group_by_default;                   // topk_method where absent
    bool normalise_refused;           // norm_topk_prob true with K > 1: the field's implementations disagree
                                      // (DeepSeek-V2)
    bool width_is_hidden;             // heads x head_dim must be H (OLMoE)
    bool stacked;                     // a layer's experts in one tensor, gate and up interleaved
    const char *tensors[COT_WEIGHTS]; // where they differ from cot_weight_template's common ones
};

/* The family of that architecture ("...ForCausalLM", or "...Model" of a base model), or of that model_type; NULL if there is none. */
const cot_family *cot_family_of(const char *architecture, const char *model_type);
/* As config.json spells it. */
const char *cot_family_architecture(const cot_family *family);
/* The weight's tensor name with {layer} and {expert} in it; and in GGUF, where it is in the container's table. */
const char *cot_weight_template(const cot_family *family, cot_weight weight);
const char *cot_weight_gguf_template(const cot_family *family, cot_weight weight);
/* Whether several weights are in one tensor, because they are called the same; not gpt-oss's, which are interleaved. */
bool cot_family_shares_tensors(const cot_family *family);
/* The family of that general.architecture; of several the one whose gates score so. NULL if there is none. */
const cot_family *cot_family_of_gguf(const char *architecture, cot_gate_score score);
/* A number's key in GGUF without the architecture before it, or NULL. */
const char *cot_family_gguf_key(cot_size_field size);

#endif
