/* Families whose gates score by a sigmoid, as DeepSeek-V3's do, but whose attention has queries in groups. */
#include "checkpoint/family_rows.h"

const cot_family cot_family_dots1 = {
    .model_type = "dots1",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0),
              V3_EXPERTS(0), [COT_SIZE_WINDOW] = {"sliding_window", .nullable = true},
              [COT_SIZE_WINDOW_LAYERS] = {"max_window_layers", .absent = 62}},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .qk_norm = COT_QK_NORM_HEAD,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .window = COT_WINDOW_ABOVE,
    V3_SCORES,
    .normalise = {"norm_topk_prob", false},
    .scoring_alias = "noaux_tc",
    .scaling = 1,
};

const cot_family cot_family_solar_open = {
    .model_type = "solar_open",
    .fixed = "{\"attention_bias\": false, \"use_qk_norm\": false}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), V3_EXPERTS(0)},
    .norm_eps = 1e-5,
    .rope_theta = 1e6,
    V3_GATE,
    .scaling = 1,
};

const cot_family cot_family_hy_v3 = {
    .model_type = "hy_v3",
    .fixed = "{\"attention_bias\": false, \"mlp_bias\": false, \"route_norm\": true}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_experts"),
              [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),
              [COT_SIZE_MOE_INTERMEDIATE] = TOLD("moe_intermediate_size"),
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size"},
              [COT_SIZE_SHARED_EXPERTS] = {"num_shared_experts", .absent = 1, .nullable = true},
              [COT_SIZE_FIRST_MOE_LAYER] = {"first_k_dense_replace", .absent = 1},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    .norm_eps = 1e-5,
    .rope_theta = 11158840,
    .qk_norm = COT_QK_NORM_HEAD,
    .qk_normed = {"qk_norm", true},
    .normalise = {.absent = true},
    .score = COT_GATE_SIGMOID,
    .epsilon = 1e-20f,
    .scaling = 2.826,
    .scaling_field = "router_scaling_factor",
    .gate_correction = true,
    .tensors = {[COT_WEIGHT_GATE] = TENSOR("mlp.router.gate.weight"),
                [COT_WEIGHT_GATE_CORRECTION] = TENSOR("mlp.expert_bias"),
                NETWORK(SHARED, "mlp.shared_mlp.")},
};

const cot_family cot_family_glm4_moe = {
    .model_type = "glm4_moe",
    .gguf = {.architecture = "glm4moe", .config = "{}", .ffn_norm = GGUF("post_attention_norm.weight")},
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), V3_EXPERTS(1)},
    .norm_eps = 1e-5,
    .rope_theta = 1e4,
    .rotary = 0.5,
    .qk_norm = COT_QK_NORM_HEAD,
    .qk_normed = {"use_qk_norm", false},
    .qkv_bias = {"attention_bias", false},
    V3_GATE,
    .scaling = 1,
};

const cot_family cot_family_minimax_m2 = {
    .model_type = "minimax_m2",
    .fixed =
        "{\"scoring_func\": \"sigmoid\", \"use_routing_bias\": true, \"use_qk_norm\": true, "
        "\"qk_norm_type\": "
        "\"per_layer\", \"attn_type_list\": 1, \"shared_intermediate_size\": 0, \"sliding_window\": null}",
    .gguf = {.architecture = "minimax-m2", .config = "{}"},
    .sizes =
        {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_local_experts"),
         [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),
         [COT_SIZE_MOE_INTERMEDIATE] = TOLD("intermediate_size"), [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    .norm_eps = 1e-6,
    .rope_theta = 5e6,
    .rotary = 1,
    .rotary_dim = true,
    .qk_norm = COT_QK_NORM_WIDTH,
    .normalise = {.absent = true},
    .score = COT_GATE_SIGMOID,
    .gate_correction = true,
    .tensors = {[COT_WEIGHT_GATE] = TENSOR("block_sparse_moe.gate.weight"),
                [COT_WEIGHT_GATE_CORRECTION] = TENSOR("block_sparse_moe.e_score_correction_bias"),
                BLOCK_SPARSE_EXPERTS},
};

/* Norms before branches and behind them, gated attention, and no rotation in layers without a window. */
const cot_family cot_family_afmoe = {
    .model_type = "afmoe",
    .fixed = "{\"attention_bias\": false, \"score_func\": \"sigmoid\", \"route_norm\": true, \"n_group\": 1, "
             "\"topk_group\": 1, "
             "\"num_expert_groups\": 1, \"num_limited_groups\": 1}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_experts"),
              [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),
              [COT_SIZE_MOE_INTERMEDIATE] = TOLD("moe_intermediate_size"),
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size"},
              [COT_SIZE_SHARED_EXPERTS] = {"num_shared_experts", .absent = 2, .nullable = true},
              [COT_SIZE_FIRST_MOE_LAYER] = {"num_dense_layers", .absent = 1},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1}, [COT_SIZE_WINDOW] = TOLD("sliding_window"),
              [COT_SIZE_WINDOW_LAYERS] = {"global_attn_every_n_layers", .absent = 4}},
    .norm_eps = 1e-5,
    .rope_theta = 1e4,
    .norms = COT_NORMS_BOTH,
    .qk_norm = COT_QK_NORM_HEAD,
    .window = COT_WINDOW_BETWEEN,
    .unrotated = true,
    .attention_gated = true,
    .embedding_rooted = {"mup_enabled", false},
    .normalise = {.absent = true},
    .score = COT_GATE_SIGMOID,
    .epsilon = 1e-20f,
    .scaling = 1,
    .scaling_field = "route_scale",
    .gate_correction = true,
    .tensors = {[COT_WEIGHT_ATTENTION_AFTER_NORM] = TENSOR("post_attention_layernorm.weight"),
                [COT_WEIGHT_FFN_NORM] = TENSOR("pre_mlp_layernorm.weight"),
                [COT_WEIGHT_FFN_AFTER_NORM] = TENSOR("post_mlp_layernorm.weight"),
                [COT_WEIGHT_ATTENTION_GATE] = TENSOR("self_attn.gate_proj.weight"),
                [COT_WEIGHT_GATE] = TENSOR("mlp.router.gate.weight"),
                [COT_WEIGHT_GATE_CORRECTION] = TENSOR("mlp.expert_bias")},
};

/* Ling 2's layout, which Sarvam's models have, too. */
#define LING_TENSORS                                                                                         \
    .tensors = {[COT_WEIGHT_EMBEDDING] = "model.word_embeddings.weight",                                     \
                [COT_WEIGHT_Q] = TENSOR("attention.query_key_value.weight"),                                 \
                [COT_WEIGHT_K] = TENSOR("attention.query_key_value.weight"),                                 \
                [COT_WEIGHT_V] = TENSOR("attention.query_key_value.weight"),                                 \
                [COT_WEIGHT_O] = TENSOR("attention.dense.weight"),                                           \
                [COT_WEIGHT_Q_NORM] = TENSOR("attention.query_layernorm.weight"),                            \
                [COT_WEIGHT_K_NORM] = TENSOR("attention.key_layernorm.weight"),                              \
                [COT_WEIGHT_GATE_CORRECTION] = TENSOR("mlp.gate.expert_bias")}
#define LING_EXPERTS(shared, first_moe_layer, groups, group_limit)                                           \
    [COT_SIZE_EXPERTS] = TOLD("num_experts"), [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),                \
    [COT_SIZE_MOE_INTERMEDIATE] = TOLD("moe_intermediate_size"),                                             \
    [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size"},                                                   \
    [COT_SIZE_SHARED_EXPERTS] = {"num_shared_experts", .absent = shared, .nullable = true},                  \
    [COT_SIZE_FIRST_MOE_LAYER] = {"first_k_dense_replace", .absent = first_moe_layer},                       \
    [COT_SIZE_SPARSE_STEP] = {.absent = 1},                                                                  \
    [COT_SIZE_GROUPS] = {"n_group", .absent = groups, .nullable = true},                                     \
    [COT_SIZE_GROUP_LIMIT] = {"topk_group", .absent = group_limit, .nullable = true}

const cot_family cot_family_sarvam_moe = {
    .model_type = "sarvam_moe",
    .fixed =
        "{\"attention_bias\": false, \"use_qkv_bias\": false, \"use_bias\": false, \"use_qk_norm\": true, "
        "\"score_function\": \"sigmoid\"}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), LING_EXPERTS(0, 0, 1, 1)},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .rotary = 1,
    .qk_norm = COT_QK_NORM_HEAD,
    V3_GATE,
    .scaling = 1,
    LING_TENSORS,
};

/* Its model_type, "bailing_moe", is that of Ling 1, too, whose gates score by a softmax: the architecture decides. */
const cot_family cot_family_bailing_moe_v2 = {
    .model_type = "bailing_moe_v2",
    .fixed = "{\"use_qkv_bias\": false, \"use_bias\": false, \"use_qk_norm\": true, \"score_function\": "
             "\"sigmoid\", "
             "\"norm_topk_prob\": true, \"moe_router_enable_expert_bias\": true}",
    .sizes = {TOLD_SIZES, GQA_SIZES(4, 128), LING_EXPERTS(1, 1, 8, 4)},
    .norm_eps = 1e-6,
    .rope_theta = 6e5,
    .rotary = 1,
    .qk_norm = COT_QK_NORM_HEAD,
    V3_GATE,
    .scaling = 1,
    LING_TENSORS,
};
