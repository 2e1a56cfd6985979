/* What rows of the table of families are written with. */
#ifndef COT_CHECKPOINT_FAMILY_ROWS_H
#define COT_CHECKPOINT_FAMILY_ROWS_H
#include "checkpoint/family.h"

/* Fields that all families spell alike; what leaving them out means differs. */
#define COMMON_SIZES(vocab, hidden, layers, heads, context)                                                  \
    [COT_SIZE_VOCAB] = {"vocab_size", .absent = vocab},                                                      \
    [COT_SIZE_HIDDEN] = {"hidden_size", .absent = hidden},                                                   \
    [COT_SIZE_LAYERS] = {"num_hidden_layers", .absent = layers},                                             \
    [COT_SIZE_HEADS] = {"num_attention_heads", .absent = heads},                                             \
    [COT_SIZE_CONTEXT] = {"max_position_embeddings", .absent = context}
/* null, and 0 here, mean as many KV heads as heads, and head_dim = hidden_size / heads. */
#define GQA_SIZES(kv_heads, head_dim)                                                                        \
    [COT_SIZE_KV_HEADS] = {"num_key_value_heads", .absent = kv_heads, .nullable = true},                     \
    [COT_SIZE_HEAD_DIM] = {"head_dim", .absent = head_dim, .nullable = (head_dim) == 0}
#define MLA_SIZES                                                                                            \
    [COT_SIZE_Q_LORA] = {"q_lora_rank", .absent = 1536, .nullable = true},                                   \
    [COT_SIZE_KV_LORA] = {"kv_lora_rank", .absent = 512},                                                    \
    [COT_SIZE_NOPE_DIM] = {"qk_nope_head_dim", .absent = 128},                                               \
    [COT_SIZE_ROPE_DIM] = {"qk_rope_head_dim", .absent = 64},                                                \
    [COT_SIZE_V_DIM] = {"v_head_dim", .absent = 128}
/* Of families whose files always say them. */
#define TOLD(name)                                                                                           \
    {                                                                                                        \
        name, .absent = COT_REQUIRED                                                                         \
    }
#define TOLD_SIZES COMMON_SIZES(COT_REQUIRED, COT_REQUIRED, COT_REQUIRED, COT_REQUIRED, COT_REQUIRED)
/* Numbers of experts as DeepSeek-V3 spells them, in one group where no field says. */
#define V3_EXPERTS(first_moe_layer) V3_EXPERTS_IN(first_moe_layer, 1, 1)
#define V3_EXPERTS_IN(first_moe_layer, groups, group_limit)                                                  \
    [COT_SIZE_EXPERTS] = {"n_routed_experts", "num_local_experts", .absent = COT_REQUIRED},                  \
    [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),                                                          \
    [COT_SIZE_MOE_INTERMEDIATE] = TOLD("moe_intermediate_size"),                                             \
    [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size"},                                                   \
    [COT_SIZE_SHARED_EXPERTS] = {"n_shared_experts", .absent = 1, .nullable = true},                         \
    [COT_SIZE_FIRST_MOE_LAYER] = {"first_k_dense_replace", .absent = first_moe_layer},                       \
    [COT_SIZE_SPARSE_STEP] = {.absent = 1},                                                                  \
    [COT_SIZE_GROUPS] = {"n_group", .absent = groups, .nullable = true},                                     \
    [COT_SIZE_GROUP_LIMIT] = {"topk_group", .absent = group_limit, .nullable = true}
/* A sigmoid of each logit, a correction to choose by, groups by their best two. */
#define V3_SCORES                                                                                            \
    .score = COT_GATE_SIGMOID, .group_score = COT_GROUP_TOP2_SUM, .epsilon = 1e-20f,                         \
    .scoring_func = "sigmoid", .group_method = "noaux_tc", .group_by_default = true, .gate_correction = true
#define V3_GATE V3_SCORES, .normalise = {"norm_topk_prob", true}

#define TENSOR(name) "model.layers.{layer}." name
#define LINEAR(prefix, name)                                                                                 \
    [COT_WEIGHT_##prefix] = TENSOR(name ".weight"), [COT_WEIGHT_##prefix##_BIAS] = TENSOR(name ".bias")
/* A gated network's three matrices and their biases. */
#define NETWORK(prefix, path)                                                                                \
    LINEAR(prefix##_GATE, path "gate_proj"), LINEAR(prefix##_UP, path "up_proj"),                            \
        LINEAR(prefix##_DOWN, path "down_proj")

/* Experts as Mixtral calls them. */
#define BLOCK_SPARSE_EXPERTS                                                                                 \
    [COT_WEIGHT_EXPERT_GATE] = TENSOR("block_sparse_moe.experts.{expert}.w1.weight"),                        \
    [COT_WEIGHT_EXPERT_UP] = TENSOR("block_sparse_moe.experts.{expert}.w3.weight"),                          \
    [COT_WEIGHT_EXPERT_DOWN] = TENSOR("block_sparse_moe.experts.{expert}.w2.weight")
#define GGUF(name) "blk.{layer}." name

/* Beside attention, layers of Gated DeltaNet. */
#define DELTA_SIZES                                                                                          \
    [COT_SIZE_FULL_INTERVAL] = {"full_attention_interval", .absent = 4},                                     \
    [COT_SIZE_DELTA_KEYS] = {"linear_num_key_heads", .absent = 16},                                          \
    [COT_SIZE_DELTA_VALUES] = {"linear_num_value_heads", .absent = 32},                                      \
    [COT_SIZE_DELTA_KEY_DIM] = {"linear_key_head_dim", .absent = 128},                                       \
    [COT_SIZE_DELTA_VALUE_DIM] = {"linear_value_head_dim", .absent = 128},                                   \
    [COT_SIZE_DELTA_TAPS] = {"linear_conv_kernel_dim", .absent = 4}
#define DELTA_TENSORS                                                                                        \
    [COT_WEIGHT_DELTA_CONVOLUTION] = TENSOR("linear_attn.conv1d.weight"),                                    \
    [COT_WEIGHT_DELTA_DECAY_BIAS] = TENSOR("linear_attn.dt_bias"),                                           \
    [COT_WEIGHT_DELTA_DECAY_LOG] = TENSOR("linear_attn.A_log"),                                              \
    [COT_WEIGHT_DELTA_NORM] = TENSOR("linear_attn.norm.weight"),                                             \
    [COT_WEIGHT_DELTA_O] = TENSOR("linear_attn.out_proj.weight")

/* The rows: of gates that score by a softmax (family_softmax.c), by a sigmoid (family_sigmoid.c), of multi-head latent attention
 * (family_mla.c), and of layers with a state (family_delta.c). */
extern const cot_family cot_family_mixtral, cot_family_olmoe, cot_family_qwen2_moe, cot_family_qwen3_moe,
    cot_family_gpt_oss, cot_family_ernie4_5_moe, cot_family_flex_olmo, cot_family_hunyuan_v1_moe,
    cot_family_granitemoe, cot_family_granitemoeshared, cot_family_phimoe;
extern const cot_family cot_family_afmoe, cot_family_sarvam_moe, cot_family_bailing_moe_v2,
    cot_family_glm4_moe, cot_family_minimax_m2, cot_family_dots1, cot_family_solar_open, cot_family_hy_v3;
extern const cot_family cot_family_deepseek_v2, cot_family_deepseek_v3, cot_family_deepseek_v32,
    cot_family_glm4_moe_lite, cot_family_glm_moe_dsa, cot_family_mistral4;
extern const cot_family cot_family_qwen3_next, cot_family_qwen3_5_moe;

#endif
