#include "checkpoint/family_rows.h"

#include "coterie/model.h"

#include <string.h>

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
    [COT_WEIGHT_ATTENTION_NORM_BIAS] = TENSOR("input_layernorm.bias"),
    [COT_WEIGHT_FFN_NORM_BIAS] = TENSOR("post_attention_layernorm.bias"),
    [COT_WEIGHT_FINAL_NORM_BIAS] = "model.norm.bias",
    [COT_WEIGHT_OUTPUT_BIAS] = "lm_head.bias",
};

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

enum {
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT_OSS,
    GLM4_MOE_LITE,
    DOTS1,
    ERNIE4_5_MOE,
    SOLAR_OPEN,
    HY_V3,
    DEEPSEEK_V32,
    GLM_MOE_DSA,
    GLM4_MOE,
    MINIMAX_M2,
    PHIMOE,
    MISTRAL4,
    FLEX_OLMO,
    HUNYUAN_V1_MOE,
    GRANITEMOE,
    GRANITEMOESHARED,
    AFMOE,
    SARVAM_MOE,
    BAILING_MOE_V2,
    QWEN3_NEXT,
    QWEN3_5_MOE,
    FAMILIES
};

#define FOLDER "small checkpoint"
#define FOLDER_AND_GGUF FOLDER ", GGUF"

/* Behind those of families what folders are called whose text_config is of one. */
enum { KIMI_K25 = FAMILIES, MISTRAL3, QWEN3_5_SEEING, ARCHITECTURES };

static const cot_architecture architectures[ARCHITECTURES + 1] = {
    [MIXTRAL] = {"MixtralForCausalLM", "Mixtral 8x7B and 8x22B", FOLDER_AND_GGUF},
    [OLMOE] = {"OlmoeForCausalLM", "OLMoE 1B-7B", FOLDER_AND_GGUF},
    [QWEN2_MOE] = {"Qwen2MoeForCausalLM", "Qwen1.5-MoE and Qwen2 57B-A14B", FOLDER_AND_GGUF},
    [QWEN3_MOE] = {"Qwen3MoeForCausalLM", "Qwen3 30B-A3B and 235B-A22B", FOLDER_AND_GGUF},
    [DEEPSEEK_V2] = {"DeepseekV2ForCausalLM", "DeepSeek-V2, V2-Lite, V2.5 and Coder-V2", FOLDER_AND_GGUF},
    [DEEPSEEK_V3] = {"DeepseekV3ForCausalLM", "DeepSeek-V3, V3.1, R1; Kimi-K2", FOLDER_AND_GGUF},
    [GPT_OSS] = {"GptOssForCausalLM", "gpt-oss-20b and gpt-oss-120b", FOLDER_AND_GGUF},
    [GLM4_MOE_LITE] = {"Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", FOLDER},
    [DOTS1] = {"Dots1ForCausalLM", "dots.llm1", FOLDER},
    [ERNIE4_5_MOE] = {"Ernie4_5_MoeForCausalLM", "ERNIE-4.5 21B-A3B and 300B-A47B", FOLDER},
    [SOLAR_OPEN] = {"SolarOpenForCausalLM", "Solar Open 100B", FOLDER},
    [HY_V3] = {"HYV3ForCausalLM", "Hunyuan 3", FOLDER},
    [DEEPSEEK_V32] = {"DeepseekV32ForCausalLM", "DeepSeek-V3.2, where attention is dense", FOLDER},
    [GLM4_MOE] = {"Glm4MoeForCausalLM", "GLM-4.5, 4.5-Air, 4.6 and 4.7", FOLDER_AND_GGUF},
    [MINIMAX_M2] = {"MiniMaxM2ForCausalLM", "MiniMax-M2 and M2.1", FOLDER_AND_GGUF},
    [MISTRAL4] = {"Mistral4ForCausalLM", "Mistral 4", FOLDER},
    [FLEX_OLMO] = {"FlexOlmoForCausalLM", "FlexOlmo 7x7B", FOLDER},
    [HUNYUAN_V1_MOE] = {"HunYuanMoEV1ForCausalLM", "Hunyuan-A13B", FOLDER},
    [GRANITEMOE] = {"GraniteMoeForCausalLM", "Granite 3.0 and 3.1 1B-A400M and 3B-A800M", FOLDER},
    [GRANITEMOESHARED] = {"GraniteMoeSharedForCausalLM", "Granite with a shared network", FOLDER},
    [AFMOE] = {"AfmoeForCausalLM", "Trinity Nano, Mini and Large", FOLDER},
    [SARVAM_MOE] = {"SarvamMoEForCausalLM", "Sarvam 30B", FOLDER},
    [BAILING_MOE_V2] = {"BailingMoeV2ForCausalLM", "Ling 2.0 and Ring 2.0, mini, flash and 1T",
                        "Sarvam's checkpoint"},
    [PHIMOE] = {"PhiMoEForCausalLM", "Phi-3.5-MoE, first 4,096 tokens", FOLDER},
    [QWEN3_NEXT] = {"Qwen3NextForCausalLM", "Qwen3-Next 80B-A3B", FOLDER},
    [QWEN3_5_MOE] = {"Qwen3_5MoeForCausalLM", "Qwen3.5 and Qwen3.6 with experts", FOLDER},
    [GLM_MOE_DSA] = {"GlmMoeDsaForCausalLM", "GLM-5, where attention is dense", FOLDER},
    [KIMI_K25] = {"KimiK25ForConditionalGeneration", "Kimi-K2.5, its text", FOLDER},
    [MISTRAL3] = {"Mistral3ForConditionalGeneration", "Mistral 4 where it sees, its text", FOLDER},
    [QWEN3_5_SEEING] = {"Qwen3_5MoeForConditionalGeneration", "Qwen3.5, Qwen3.6 with experts, their text",
                        FOLDER},
};

static const cot_family *const families[FAMILIES] = {
    [MIXTRAL] = &cot_family_mixtral,
    [OLMOE] = &cot_family_olmoe,
    [QWEN2_MOE] = &cot_family_qwen2_moe,
    [QWEN3_MOE] = &cot_family_qwen3_moe,
    [DEEPSEEK_V2] = &cot_family_deepseek_v2,
    [DEEPSEEK_V3] = &cot_family_deepseek_v3,
    [GPT_OSS] = &cot_family_gpt_oss,
    [GLM4_MOE_LITE] = &cot_family_glm4_moe_lite,
    [DOTS1] = &cot_family_dots1,
    [ERNIE4_5_MOE] = &cot_family_ernie4_5_moe,
    [SOLAR_OPEN] = &cot_family_solar_open,
    [HY_V3] = &cot_family_hy_v3,
    [DEEPSEEK_V32] = &cot_family_deepseek_v32,
    [GLM_MOE_DSA] = &cot_family_glm_moe_dsa,
    [GLM4_MOE] = &cot_family_glm4_moe,
    [MINIMAX_M2] = &cot_family_minimax_m2,
    [PHIMOE] = &cot_family_phimoe,
    [MISTRAL4] = &cot_family_mistral4,
    [FLEX_OLMO] = &cot_family_flex_olmo,
    [HUNYUAN_V1_MOE] = &cot_family_hunyuan_v1_moe,
    [GRANITEMOE] = &cot_family_granitemoe,
    [GRANITEMOESHARED] = &cot_family_granitemoeshared,
    [AFMOE] = &cot_family_afmoe,
    [SARVAM_MOE] = &cot_family_sarvam_moe,
    [BAILING_MOE_V2] = &cot_family_bailing_moe_v2,
    [QWEN3_NEXT] = &cot_family_qwen3_next,
    [QWEN3_5_MOE] = &cot_family_qwen3_5_moe,
};

/* That name, or what a checkpoint of the model without its head is called. */
static bool is_called(const char *architecture, const char *name)
{
    const size_t length = strlen(name) - strlen("ForCausalLM");
    return !strcmp(architecture, name) ||
           (!strncmp(architecture, name, length) && !strcmp(architecture + length, "Model"));
}

static bool is_of_architecture(size_t family, const char *architecture)
{
    const char *other = families[family]->other_architecture;
    return is_called(architecture, architectures[family].name) || (other && is_called(architecture, other));
}

static bool is_of_type(const cot_family *family, const char *model_type)
{
    return !strcmp(model_type, family->model_type) ||
           (family->other_type && !strcmp(model_type, family->other_type));
}

const cot_family *cot_family_of(const char *architecture, const char *model_type)
{
    for (size_t f = 0; f < FAMILIES; f++)
        if (architecture ? is_of_architecture(f, architecture)
                         : model_type && is_of_type(families[f], model_type))
            return families[f];
    return NULL;
}

const char *cot_weight_template(const cot_family *family, cot_weight weight)
{
    return family->tensors[weight] ? family->tensors[weight] : common_tensors[weight];
}

bool cot_family_shares_tensors(const cot_family *family)
{
    for (int w = 0; w < COT_WEIGHTS && !family->stacked; w++)
        for (int other = 0; other < w && family->tensors[w]; other++)
            if (family->tensors[other] && !strcmp(family->tensors[w], family->tensors[other])) return true;
    return false;
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
        const cot_family *family = families[f];
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
    size_t f = 0;
    while (families[f] != family) f++;
    return architectures[f].name;
}
