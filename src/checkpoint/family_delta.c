/* Families most of whose layers have a state instead of keys. */
#include "checkpoint/family_rows.h"

#define QWEN                                                                                                 \
    .norm_eps = 1e-6, .rope_theta = 1e4, .rotary = 0.25, .qk_norm = COT_QK_NORM_HEAD, .zero_centred = true,  \
    .attention_gated = true, .gates_in_queries = true, .shared_gated = true
#define QWEN_SIZES(experts, top_k)                                                                           \
    [COT_SIZE_EXPERTS] = {"num_experts", "num_local_experts", .absent = experts},                            \
    [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = top_k},                                             \
    [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = 512},                                  \
    [COT_SIZE_SHARED_INTERMEDIATE] = {"shared_expert_intermediate_size", .absent = 512}, DELTA_SIZES

const cot_family cot_family_qwen3_next = {
    .model_type = "qwen3_next",
    .fixed = "{\"attention_bias\": false}",
    .sizes = {COMMON_SIZES(151936, 2048, 48, 16, 32768), GQA_SIZES(2, 256),
              QWEN_SIZES(512, 10), [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size", .absent = 5632},
              [COT_SIZE_SPARSE_STEP] = {"decoder_sparse_step", .absent = 1}},
    QWEN,
    .delta_by_head = true,
    .normalise = {"norm_topk_prob", true},
    .tensors = {NETWORK(SHARED, "mlp.shared_expert."),
                [COT_WEIGHT_DELTA_QKV] = TENSOR("linear_attn.in_proj_qkvz.weight"),
                [COT_WEIGHT_DELTA_BETA] = TENSOR("linear_attn.in_proj_ba.weight"), DELTA_TENSORS},
};

const cot_family cot_family_qwen3_5_moe = {
    .model_type = "qwen3_5_moe",
    .other_type = "qwen3_5_moe_text",
    .fixed = "{\"attention_bias\": false, \"attn_output_gate\": true}",
    .sizes = {COMMON_SIZES(248320, 2048, 40, 16, 32768), GQA_SIZES(2, 256),
              QWEN_SIZES(256, 8), [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    QWEN,
    .normalise = {.absent = true},
    .tensors = {NETWORK(SHARED, "mlp.shared_expert."),
                [COT_WEIGHT_DELTA_QKV] = TENSOR("linear_attn.in_proj_qkv.weight"),
                [COT_WEIGHT_DELTA_Z] = TENSOR("linear_attn.in_proj_z.weight"),
                [COT_WEIGHT_DELTA_BETA] = TENSOR("linear_attn.in_proj_b.weight"),
                [COT_WEIGHT_DELTA_DECAY] = TENSOR("linear_attn.in_proj_a.weight"), DELTA_TENSORS},
};
