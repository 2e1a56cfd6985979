#include "checkpoint/family.h"

#include "coterie/model.h"

#include <string.h>

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

#define TENSOR(name) "model.layers.{layer}." name
#define LINEAR(prefix, name)                                                                                 \
    [COT_WEIGHT_##prefix] = TENSOR(name ".weight"), [COT_WEIGHT_##prefix##_BIAS] = TENSOR(name ".bias")
/* A gated network's three matrices and their biases. */
#define NETWORK(prefix, path)                                                                                \
    LINEAR(prefix##_GATE, path "gate_proj"), LINEAR(prefix##_UP, path "up_proj"),                            \
        LINEAR(prefix##_DOWN, path "down_proj")

static const char *const common_tensors[COT_WEIGHTS] = {
    [COT_WEIGHT_EMBEDDING] = "model.embed_tokens.weight",
    [COT_WEIGHT_FINAL_NORM] = "model.norm.weight",
    [COT_WEIGHT_OUTPUT] = "lm_head.weight",
    [COT_WEIGHT_ATTENTION_NORM] = TENSOR("input_layernorm.weight"),
    [COT_WEIGHT_FFN_NORM] = TENSOR("post_attention_layernorm.weight"),
    LINEAR(Q, "self_attn.q_proj"),
    LINEAR(K, "self_attn.k_proj"),
    LINEAR(V, "self_attn.v_proj"),
    LINEAR(O, "self_attn.o_proj"),
    [COT_WEIGHT_Q_NORM] = TENSOR("self_attn.q_norm.weight"),
    [COT_WEIGHT_K_NORM] = TENSOR("self_attn.k_norm.weight"),
    [COT_WEIGHT_SINKS] = TENSOR("self_attn.sinks"),
    LINEAR(Q_A, "self_attn.q_a_proj"),
    [COT_WEIGHT_Q_A_NORM] = TENSOR("self_attn.q_a_layernorm.weight"),
    [COT_WEIGHT_Q_B] = TENSOR("self_attn.q_b_proj.weight"),
    LINEAR(KV_A, "self_attn.kv_a_proj_with_mqa"),
    [COT_WEIGHT_KV_A_NORM] = TENSOR("self_attn.kv_a_layernorm.weight"),
    [COT_WEIGHT_KV_B] = TENSOR("self_attn.kv_b_proj.weight"),
    [COT_WEIGHT_GATE] = TENSOR("mlp.gate.weight"),
    [COT_WEIGHT_GATE_BIAS] = TENSOR("mlp.gate.bias"),
    [COT_WEIGHT_GATE_CORRECTION] = TENSOR("mlp.gate.e_score_correction_bias"),
    NETWORK(EXPERT, "mlp.experts.{expert}."),
    NETWORK(SHARED, "mlp.shared_experts."),
    [COT_WEIGHT_SHARED_MIX] = TENSOR("mlp.shared_expert_gate.weight"),
    NETWORK(DENSE, "mlp."),
};

#define GGUF(name) "blk.{layer}." name
#define GGUF_LINEAR(prefix, name)                                                                            \
    [COT_WEIGHT_##prefix] = GGUF(name ".weight"), [COT_WEIGHT_##prefix##_BIAS] = GGUF(name ".bias")
#define GGUF_NETWORK(prefix, suffix)                                                                         \
    GGUF_LINEAR(prefix##_GATE, "ffn_gate" suffix), GGUF_LINEAR(prefix##_UP, "ffn_up" suffix),                \
        GGUF_LINEAR(prefix##_DOWN, "ffn_down" suffix)

static const char *const gguf_tensors[COT_WEIGHTS] = {
    [COT_WEIGHT_EMBEDDING] = "token_embd.weight",
    [COT_WEIGHT_FINAL_NORM] = "output_norm.weight",
    [COT_WEIGHT_OUTPUT] = "output.weight",
    [COT_WEIGHT_ATTENTION_NORM] = GGUF("attn_norm.weight"),
    [COT_WEIGHT_FFN_NORM] = GGUF("ffn_norm.weight"),
    GGUF_LINEAR(Q, "attn_q"),
    GGUF_LINEAR(K, "attn_k"),
    GGUF_LINEAR(V, "attn_v"),
    GGUF_LINEAR(O, "attn_output"),
    [COT_WEIGHT_Q_NORM] = GGUF("attn_q_norm.weight"),
    [COT_WEIGHT_K_NORM] = GGUF("attn_k_norm.weight"),
    [COT_WEIGHT_SINKS] = GGUF("attn_sinks.weight"),
    GGUF_LINEAR(Q_A, "attn_q_a"),
    [COT_WEIGHT_Q_A_NORM] = GGUF("attn_q_a_norm.weight"),
    [COT_WEIGHT_Q_B] = GGUF("attn_q_b.weight"),
    GGUF_LINEAR(KV_A, "attn_kv_a_mqa"),
    [COT_WEIGHT_KV_A_NORM] = GGUF("attn_kv_a_norm.weight"),
    [COT_WEIGHT_KV_B] = GGUF("attn_kv_b.weight"),
    [COT_WEIGHT_GATE] = GGUF("ffn_gate_inp.weight"),
    [COT_WEIGHT_GATE_BIAS] = GGUF("ffn_gate_inp.bias"),
    [COT_WEIGHT_GATE_CORRECTION] = GGUF("exp_probs_b.bias"),
    GGUF_NETWORK(EXPERT, "_exps"),
    GGUF_NETWORK(SHARED, "_shexp"),
    [COT_WEIGHT_SHARED_MIX] = GGUF("ffn_gate_inp_shexp.weight"),
    GGUF_NETWORK(DENSE, ""),
};

static const char *const gguf_sizes[COT_SIZES] = {
    [COT_SIZE_HIDDEN] = "embedding_length",
    [COT_SIZE_LAYERS] = "block_count",
    [COT_SIZE_HEADS] = "attention.head_count",
    [COT_SIZE_KV_HEADS] = "attention.head_count_kv",
    [COT_SIZE_HEAD_DIM] = "attention.key_length",
    [COT_SIZE_CONTEXT] = "context_length",
    [COT_SIZE_EXPERTS] = "expert_count",
    [COT_SIZE_TOP_K] = "expert_used_count",
    [COT_SIZE_MOE_INTERMEDIATE] = "expert_feed_forward_length",
    [COT_SIZE_DENSE_INTERMEDIATE] = "feed_forward_length",
    [COT_SIZE_SHARED_INTERMEDIATE] = "expert_shared_feed_forward_length",
    [COT_SIZE_SHARED_EXPERTS] = "expert_shared_count",
    [COT_SIZE_FIRST_MOE_LAYER] = "leading_dense_block_count",
    [COT_SIZE_WINDOW] = "attention.sliding_window",
    [COT_SIZE_Q_LORA] = "attention.q_lora_rank",
    [COT_SIZE_KV_LORA] = "attention.kv_lora_rank",
    [COT_SIZE_ROPE_DIM] = "rope.dimension_count",
    [COT_SIZE_GROUPS] = "expert_group_count",
    [COT_SIZE_GROUP_LIMIT] = "expert_group_used_count",
};

enum { MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, GPT_OSS, FAMILIES };

static const cot_architecture architectures[FAMILIES + 1] = {
    [MIXTRAL] = {"MixtralForCausalLM", "Mixtral 8x7B and 8x22B"},
    [OLMOE] = {"OlmoeForCausalLM", "OLMoE 1B-7B"},
    [QWEN2_MOE] = {"Qwen2MoeForCausalLM", "Qwen1.5-MoE and Qwen2 57B-A14B"},
    [QWEN3_MOE] = {"Qwen3MoeForCausalLM", "Qwen3 30B-A3B and 235B-A22B"},
    [DEEPSEEK_V2] = {"DeepseekV2ForCausalLM", "DeepSeek-V2, V2-Lite, V2.5 and Coder-V2"},
    [DEEPSEEK_V3] = {"DeepseekV3ForCausalLM", "DeepSeek-V3, V3.1 and R1"},
    [GPT_OSS] = {"GptOssForCausalLM", "gpt-oss-20b and gpt-oss-120b"},
};

static const cot_family families[FAMILIES] = {
    [MIXTRAL] =
        {
            .model_type = "mixtral",
            .gguf = {.architecture = "llama", .config = "{}", .pairs = true},
            .sizes = {COMMON_SIZES(32000, 4096, 32, 32, 131072),
                      GQA_SIZES(8, 0), [COT_SIZE_EXPERTS] = {"num_local_experts", "num_experts", .absent = 8},
                      [COT_SIZE_TOP_K] = {"num_experts_per_tok", .absent = 2},
                      [COT_SIZE_MOE_INTERMEDIATE] = {"intermediate_size", .absent = 14336},
                      [COT_SIZE_SPARSE_STEP] = {.absent = 1},
                      [COT_SIZE_WINDOW] = {"sliding_window", .nullable = true}},
            .norm_eps = 1e-5,
            .rope_theta = 1e6,
            .normalise = {.absent = true},
            .window = COT_WINDOW_ALL,
            .tensors = {[COT_WEIGHT_GATE] = TENSOR("block_sparse_moe.gate.weight"),
                        [COT_WEIGHT_EXPERT_GATE] = TENSOR("block_sparse_moe.experts.{expert}.w1.weight"),
                        [COT_WEIGHT_EXPERT_UP] = TENSOR("block_sparse_moe.experts.{expert}.w3.weight"),
                        [COT_WEIGHT_EXPERT_DOWN] = TENSOR("block_sparse_moe.experts.{expert}.w2.weight")},
        },
    [OLMOE] =
        {
            .model_type = "olmoe",
            .gguf = {.architecture = "olmoe", .config = "{\"norm_topk_prob\": false}"},
            .sizes =
                {COMMON_SIZES(50304, 2048, 16, 16, 4096),
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
        },
    [QWEN2_MOE] =
        {
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
        },
    [QWEN3_MOE] =
        {
            .model_type = "qwen3_moe",
            .gguf = {.architecture = "qwen3moe", .config = "{\"norm_topk_prob\": true}"},
            .sizes =
                {COMMON_SIZES(151936, 2048, 24, 32, 32768),
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
        },
    [DEEPSEEK_V2] =
        {
            .model_type = "deepseek_v2",
            .gguf = {.architecture = "deepseek2", .config = "{}"},
            .sizes =
                {COMMON_SIZES(102400, 4096, 32, 32, 2048),
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
        },
    [DEEPSEEK_V3] =
        {
            .model_type = "deepseek_v3",
            .gguf = {.architecture = "deepseek2", .config = "{}"},
            .sizes =
                {COMMON_SIZES(129280, 7168, 61, 128, 4096),
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
        },
    [GPT_OSS] =
        {
            .model_type = "gpt_oss",
            .gguf = {.architecture = "gpt-oss",
                     .config = "{}",
                     .ffn_norm = GGUF("post_attention_norm.weight")},
            .sizes =
                {COMMON_SIZES(201088, 2880, 36, 64, 131072),
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
            .default_yarn = true,
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
        },
};

/* A checkpoint of the model without its head is called so. */
static bool is_base_of(const char *architecture, const char *name)
{
    const size_t length = strlen(name) - strlen("ForCausalLM");
    return !strncmp(architecture, name, length) && !strcmp(architecture + length, "Model");
}

const cot_family *cot_family_of(const char *architecture, const char *model_type)
{
    for (size_t f = 0; f < FAMILIES; f++)
        if (architecture ? !strcmp(architecture, architectures[f].name) ||
                               is_base_of(architecture, architectures[f].name)
                         : model_type && !strcmp(model_type, families[f].model_type))
            return &families[f];
    return NULL;
}

const char *cot_weight_template(const cot_family *family, cot_weight weight)
{
    return family->tensors[weight] ? family->tensors[weight] : common_tensors[weight];
}

const char *cot_weight_gguf_template(const cot_family *family, cot_weight weight)
{
    const bool own = weight == COT_WEIGHT_FFN_NORM && family->gguf.ffn_norm;
    return own ? family->gguf.ffn_norm : gguf_tensors[weight];
}

const cot_family *cot_family_of_gguf(const char *architecture, cot_gate_score score)
{
    const cot_family *found = NULL;
    for (size_t f = 0; f < FAMILIES; f++) {
        const cot_family *family = &families[f];
        if (!family->gguf.architecture || strcmp(architecture, family->gguf.architecture) != 0) continue;
        if (!found || family->score == score) found = family;
    }
    return found;
}

const char *cot_family_gguf_key(cot_size_field size)
{
    return gguf_sizes[size];
}

const cot_architecture *cot_architectures(void)
{
    return architectures;
}

const char *cot_family_architecture(const cot_family *family)
{
    return architectures[family - families].name;
}
