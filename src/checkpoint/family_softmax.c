/* Families whose gates score by a softmax. */
#include "checkpoint/family_rows.h"

const cot_family cot_family_mixtral = {
    .model_type = "mixtral",
    .gguf = {.architecture = "llama", .config = "{}", .pairs = true},
    .sizes =
        {COMMON_SIZES(32000, 4096, 32, 32, 131072),
         GQA_SIZES(8, 0), [COT_SIZE_EXPERTS] = {"num_local_experts", "num_experts", .absent = 8},
         [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 2},
         [COT_SIZE_MOE_INTERMEDIATE] = {"intermediate_size", .absent = 14336},
         [COT_SIZE_SPARSE_STEP] = {.absent = 1}, [COT_SIZE_WINDOW] = {"sliding_window", .nullable = true}},
    .norm_eps = 1e-5,
    .rope_theta = 1e6,
    .normalise = {.absent = true},
    .window = COT_WINDOW_ALL,
    .tensors = {[COT_WEIGHT_GATE] = TENSOR("block_sparse_moe.gate.weight"), BLOCK_SPARSE_EXPERTS},
};

const cot_family cot_family_olmoe = {
    .model_type = "olmoe",
    .gguf = {.architecture = "olmoe", .config = "{\"norm_topk_prob\": false}"},
    .sizes = {COMMON_SIZES(50304, 2048, 16, 16, 4096),
              GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = {"num_experts", "num_local_experts", .absent = 64},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 8},
              [COT_SIZE_MOE_INTERMEDIATE] = {"intermediate_size", .absent = 2048},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    .norm_eps = 1e-5,
    .rope_theta = 1e4,
    .qk_norm = COT_QK_NORM_WIDTH,
    .width_is_hidden = true,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .normalise = {"norm_topk_prob", false},
    .clips = true,
};

const cot_family cot_family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .gguf = {.architecture = "qwen2moe", .config = "{\"norm_topk_prob\": false}"},
    .sizes = {COMMON_SIZES(151936, 2048, 24, 16, 32768),
              GQA_SIZES(16, 0), [COT_SIZE_EXPERTS] = {"num_experts", .absent = 60},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 4},
              [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = 1408},
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size", .absent = 5632},
              [COT_SIZE_SHARED_INTERMEDIATE] = {"shared_expert_intermediate_size", .absent = 5632},
              [COT_SIZE_SPARSE_STEP] = {"decoder_sparse_step", .absent = 1},
              [COT_SIZE_WINDOW] = {"sliding_window", .absent = 4096, .nullable = true},
              [COT_SIZE_WINDOW_LAYERS] = {"max_window_layers", .absent = 28}},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .qkv_bias = {"qkv_bias", true},
    .normalise = {"norm_topk_prob", false},
    .window = COT_WINDOW_SWITCHED_TYPES,
    .shared_gated = true,
    .tensors = {NETWORK(SHARED, "mlp.shared_expert.")},
};

const cot_family cot_family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .gguf = {.architecture = "qwen3moe", .config = "{\"norm_topk_prob\": true}"},
    .sizes = {COMMON_SIZES(151936, 2048, 24, 32, 32768),
              GQA_SIZES(4, 0), [COT_SIZE_EXPERTS] = {"num_experts", "num_local_experts", .absent = 128},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 8},
              [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = 768},
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size", .absent = 6144},
              [COT_SIZE_SPARSE_STEP] = {"decoder_sparse_step", .absent = 1},
              [COT_SIZE_WINDOW] = {"sliding_window", .absent = 4096, .nullable = true}},
    .norm_eps = 1e-6,
    .rope_theta = 1e4,
    .qk_norm = COT_QK_NORM_HEAD,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .normalise = {"norm_topk_prob", false},
    .window = COT_WINDOW_SWITCHED,
};

const cot_family cot_family_gpt_oss = {
    .model_type = "gpt_oss",
    .gguf = {.architecture = "gpt-oss", .config = "{}", .ffn_norm = GGUF("post_attention_norm.weight")},
    .sizes = {COMMON_SIZES(201088, 2880, 36, 64, 131072),
              GQA_SIZES(8, 64), [COT_SIZE_EXPERTS] = {"num_local_experts", "num_experts", .absent = 128},
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 4},
              [COT_SIZE_MOE_INTERMEDIATE] = {"intermediate_size", .absent = 2880},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1},
              [COT_SIZE_WINDOW] = {"sliding_window", .absent = 128, .nullable = true}},
    .norm_eps = 1e-5,
    .rope_theta = 150000,
    .qkv_bias = {"attention_bias", true},
    .output_bias = {"attention_bias", true},
    .window = COT_WINDOW_TYPES,
    .sinks = true,
    .gate_bias = true,
    .expert_bias = true,
    .clamped = true,
    .default_rope = "{\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 4096, "
                    "\"beta_fast\": 32, \"beta_slow\": 1, \"truncate\": false}",
    .score = COT_GATE_CHOSEN_SOFTMAX,
    .stacked = true,
    .tensors = {[COT_WEIGHT_GATE] = TENSOR("mlp.router.weight"),
                [COT_WEIGHT_GATE_BIAS] = TENSOR("mlp.router.bias"),
                [COT_WEIGHT_EXPERT_GATE] = TENSOR("mlp.experts.gate_up_proj"),
                [COT_WEIGHT_EXPERT_GATE_BIAS] = TENSOR("mlp.experts.gate_up_proj_bias"),
                [COT_WEIGHT_EXPERT_UP] = TENSOR("mlp.experts.gate_up_proj"),
                [COT_WEIGHT_EXPERT_UP_BIAS] = TENSOR("mlp.experts.gate_up_proj_bias"),
                [COT_WEIGHT_EXPERT_DOWN] = TENSOR("mlp.experts.down_proj"),
                [COT_WEIGHT_EXPERT_DOWN_BIAS] = TENSOR("mlp.experts.down_proj_bias")},
};

const cot_family cot_family_ernie4_5_moe = {
    .model_type = "ernie4_5_moe",
    .fixed = "{\"use_bias\": false, \"moe_gate\": \"topk\", \"moe_norm_min\": 1e-12}",
    .sizes = {TOLD_SIZES, GQA_SIZES(4, 0), [COT_SIZE_EXPERTS] = TOLD("moe_num_experts"),
              [COT_SIZE_TOP_K] = TOLD("moe_k"), [COT_SIZE_MOE_INTERMEDIATE] = TOLD("moe_intermediate_size"),
              [COT_SIZE_DENSE_INTERMEDIATE] = {"intermediate_size"},
              [COT_SIZE_SHARED_EXPERTS] = {"moe_num_shared_experts", .absent = 2, .nullable = true},
              [COT_SIZE_FIRST_MOE_LAYER] = {"moe_layer_start_index", .absent = 1},
              [COT_SIZE_LAST_MOE_LAYER] = {"moe_layer_end_index", .absent = -1},
              [COT_SIZE_SPARSE_STEP] = {"moe_layer_interval", .absent = 1}},
    .norm_eps = 1e-5,
    .rope_theta = 5e5,
    .rope_interleaved = {.absent = true},
    .normalise = {.absent = true},
    .gate_correction = true,
    .tied = true,
    .tensors = {[COT_WEIGHT_GATE_CORRECTION] = TENSOR("mlp.moe_statics.e_score_correction_bias")},
};

/* Branches are normed behind, not before. */
const cot_family cot_family_flex_olmo = {
    .model_type = "flex_olmo",
    .fixed = "{\"attention_bias\": false}",
    .sizes =
        {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_experts"),
         [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),
         [COT_SIZE_MOE_INTERMEDIATE] = TOLD("intermediate_size"), [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    .norm_eps = 1e-6,
    .rope_theta = 5e5,
    .norms = COT_NORMS_AFTER,
    .qk_norm = COT_QK_NORM_WIDTH,
    .normalise = {"norm_topk_prob", false},
    .tensors = {[COT_WEIGHT_ATTENTION_AFTER_NORM] = TENSOR("post_attention_layernorm.weight"),
                [COT_WEIGHT_FFN_AFTER_NORM] = TENSOR("post_feedforward_layernorm.weight")},
};

const cot_family cot_family_hunyuan_v1_moe = {
    .model_type = "hunyuan_v1_moe",
    .fixed = "{\"attention_bias\": false, \"mlp_bias\": false, \"use_cla\": false, \"norm_type\": \"rms\", "
             "\"use_mixed_mlp_moe\": true}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_experts"),
              [COT_SIZE_TOP_K] = {"moe_topk", .absent = COT_REQUIRED, .listed = true},
              [COT_SIZE_MOE_INTERMEDIATE] = {"moe_intermediate_size", .absent = COT_REQUIRED, .listed = true,
                                             .fallback = "intermediate_size"},
              [COT_SIZE_SHARED_EXPERTS] = {"num_shared_expert", .absent = 1, .listed = true},
              [COT_SIZE_SPARSE_STEP] = {.absent = 1}},
    .norm_eps = 1e-5,
    .rope_theta = 1e4,
    .rope_alpha = true,
    .qk_norm = COT_QK_NORM_HEAD,
    .qk_norm_late = true,
    .qk_normed = {"use_qk_norm", true},
    .normalise = {.absent = true},
    .tensors = {[COT_WEIGHT_Q_NORM] = TENSOR("self_attn.query_layernorm.weight"),
                [COT_WEIGHT_K_NORM] = TENSOR("self_attn.key_layernorm.weight"),
                [COT_WEIGHT_GATE] = TENSOR("mlp.gate.wg.weight"),
                NETWORK(SHARED, "mlp.shared_mlp.")},
};

#define GRANITE                                                                                              \
    .fixed = "{\"attention_bias\": false}", .norm_eps = 1e-6, .rope_theta = 1e4, .multiplied = true,         \
    .score = COT_GATE_CHOSEN_SOFTMAX
#define GRANITE_SIZES                                                                                        \
    TOLD_SIZES, GQA_SIZES(0, 0),                                                                             \
        [COT_SIZE_EXPERTS] = TOLD("num_local_experts"), [COT_SIZE_TOP_K] = TOLD("num_experts_per_tok"),      \
        [COT_SIZE_MOE_INTERMEDIATE] = TOLD("intermediate_size"), [COT_SIZE_SPARSE_STEP] = {.absent = 1}
#define GRANITE_EXPERTS                                                                                      \
    [COT_WEIGHT_GATE] = TENSOR("block_sparse_moe.router.layer.weight"),                                      \
    [COT_WEIGHT_EXPERT_GATE] = TENSOR("block_sparse_moe.input_linear.weight"),                               \
    [COT_WEIGHT_EXPERT_UP] = TENSOR("block_sparse_moe.input_linear.weight"),                                 \
    [COT_WEIGHT_EXPERT_DOWN] = TENSOR("block_sparse_moe.output_linear.weight")

const cot_family cot_family_granitemoe = {
    .model_type = "granitemoe",
    GRANITE,
    .sizes = {GRANITE_SIZES},
    .tensors = {GRANITE_EXPERTS},
};

const cot_family cot_family_granitemoeshared = {
    .model_type = "granitemoeshared",
    GRANITE,
    .sizes = {GRANITE_SIZES, [COT_SIZE_SHARED_INTERMEDIATE] = {"shared_intermediate_size", .absent = 0}},
    .tensors = {GRANITE_EXPERTS, [COT_WEIGHT_SHARED_GATE] = TENSOR("shared_mlp.input_linear.weight"),
                [COT_WEIGHT_SHARED_UP] = TENSOR("shared_mlp.input_linear.weight"),
                [COT_WEIGHT_SHARED_DOWN] = TENSOR("shared_mlp.output_linear.weight")},
};

const cot_family cot_family_phimoe = {
    .model_type = "phimoe",
    .other_architecture = "PhimoeForCausalLM", // as transformers calls it
    .fixed = "{\"num_experts_per_tok\": 2}",
    .sizes = {TOLD_SIZES, GQA_SIZES(0, 0), [COT_SIZE_EXPERTS] = TOLD("num_local_experts"),
              [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 2},
              [COT_SIZE_MOE_INTERMEDIATE] = TOLD("intermediate_size"), [COT_SIZE_SPARSE_STEP] = {.absent = 1},
              [COT_SIZE_WINDOW] = {"sliding_window", .nullable = true}},
    .norm_eps = 1e-5,
    .rope_theta = 1e6,
    .longrope = true,
    .layer_norm = true,
    .qkv_bias = {"attention_bias", false},
    .output_bias = {"attention_bias", false},
    .head_bias = {"lm_head_bias", false},
    .window = COT_WINDOW_ALL,
    .score = COT_GATE_SPARSE_MIXER,
    .tensors = {[COT_WEIGHT_GATE] = TENSOR("block_sparse_moe.gate.weight"), BLOCK_SPARSE_EXPERTS},
};
