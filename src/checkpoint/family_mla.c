/* Families with multi-head latent attention. */
#include "checkpoint/family_rows.h"

const cot_family cot_family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .gguf = {.architecture = "deepseek2", .config = "{}"},
    .sizes = {COMMON_SIZES(102400, 4096, 32, 32, 2048),
              MLA_SIZES, [COT_SIZE_EXPERTS] = {"n_routed_experts", "num_experts", .absent = 64},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = COT_REQUIRED},
              [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = 1407},
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size", .absent = 11008},
              [COT_SIZE_SHARED_EXPERTS] = {"n_shared_experts", .absent = 2, .nullable = true},
              [COT_SIZE_FIRST_MOE_LAYER] = {"first_k_dense_replace", .absent = 0},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1}, [COT_SIZE_GROUPS] = {"n_group", .nullable = true},
              [COT_SIZE_GROUP_LIMIT] = {"topk_group", .nullable = true}},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .attention = COT_ATTENTION_MLA,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .ffn_bias = {"mlp_bias", false},
    .rope_interleaved = {.absent = true},
    .normalise = {"norm_topk_prob", false},
    .normalise_refused = true,
    .group_score = COT_GROUP_MAX,
    .scaling = 1,
    .scoring_func = "softmax",
    .plain_method = "greedy",
    .group_method = "group_limited_greedy",
};

const cot_family cot_family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .gguf = {.architecture = "deepseek2", .config = "{}"},
    .sizes = {COMMON_SIZES(129280, 7168, 61, 128, 4096),
              MLA_SIZES, [COT_SIZE_EXPERTS] = {"n_routed_experts", "num_local_experts", .absent = 256},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 8},
              [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = 2048},
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size", .absent = 18432},
              [COT_SIZE_SHARED_EXPERTS] = {"n_shared_experts", .absent = 1, .nullable = true},
              [COT_SIZE_FIRST_MOE_LAYER] = {"first_k_dense_replace", .absent = 3},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1},
              [COT_SIZE_GROUPS] = {"n_group", .absent = 8, .nullable = true},
              [COT_SIZE_GROUP_LIMIT] = {"topk_group", .absent = 4, .nullable = true}},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .attention = COT_ATTENTION_MLA,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .rope_interleaved = {"rope_interleave", true},
    .normalise = {"norm_topk_prob", true},
    .score = COT_GATE_SIGMOID,
    .group_score = COT_GROUP_TOP2_SUM,
    .epsilon = 1e-20f,
    .scaling = 2.5,
    .scoring_func = "sigmoid",
    .group_method = "noaux_tc",
    .group_by_default = true,
    .gate_correction = true,
};

/* What those that follow have of DeepSeek-V3. */
#define V3_ATTENTION                                                                                         \
    .rope_theta = 1e4, .attention = COT_ATTENTION_MLA, .qkv_bias = {"attention_bias", false},                \
    .output_bias = {"attention_bias", false}, .rope_interleaved = {"rope_interleave", true}

const cot_family cot_family_glm4_moe_lite = {
    .model_type = "glm4_moe_lite",
    .sizes = {TOLD_SIZES, MLA_SIZES, V3_EXPERTS(1)},
    .norm_eps = 1e-5,
    V3_ATTENTION,
    V3_GATE,
    .scaling = 1.8,
};

/* Sparse attention keeps index_topk tokens: up to so many it is dense. */
const cot_family cot_family_deepseek_v32 = {
    .model_type = "deepseek_v32",
    .fixed = "{\"rope_interleave\": true}",
    .sizes = {TOLD_SIZES, MLA_SIZES,
              V3_EXPERTS_IN(3, 8, 4), [COT_SIZE_DENSE_CONTEXT] = {"index_topk", .absent = 2048}},
    .norm_eps = 1e-6,
    V3_ATTENTION,
    V3_GATE,
    .scaling = 2.5,
};

const cot_family cot_family_glm_moe_dsa = {
    .model_type = "glm_moe_dsa",
    .fixed = "{\"rope_interleave\": true}",
    .sizes = {TOLD_SIZES, MLA_SIZES,
              V3_EXPERTS(3), [COT_SIZE_DENSE_CONTEXT] = {"index_topk", .absent = 2048}},
    .norm_eps = 1e-5,
    V3_ATTENTION,
    V3_GATE,
    .scaling = 2.5,
};

const cot_family cot_family_mistral4 = {
    .model_type = "mistral4",
    .fixed = "{\"n_group\": 1, \"topk_group\": 1}",
    .sizes = {TOLD_SIZES, MLA_SIZES, V3_EXPERTS(0)},
    .norm_eps = 1e-6,
    V3_ATTENTION,
    .query_scaled = true,
    .default_rope =
        "{\"rope_type\": \"yarn\", \"rope_theta\": 1e4, \"factor\": 128, "
        "\"original_max_position_embeddings\": 8192, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1, "
        "\"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1}",
    .normalise = {"norm_topk_prob", true},
    .scaling = 1,
};
