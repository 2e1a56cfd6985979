/* The layers that the device's operator is tested with. */
#ifndef COT_TESTS_CUDA_FUSED_VARIANTS_H
#define COT_TESTS_CUDA_FUSED_VARIANTS_H
#include "fused_layer.h"

struct Variant {
    const char *name;
    cot_dtype type;
    int64_t hidden, intermediate, experts, top_k, shared;
    bool shared_gated, biased, gate_bias, correction;
    float limit;
    cot_ffn_activation activation;
    int64_t groups, group_limit;
    cot_gate_score score;
    bool normalise;
    float scaling;
};

/* Those of tests/moe/test_operators.c; where H or I is no multiple of 8, in fp32. */
inline const Variant variants[] = {
    {"mixtral", COT_F32, 32, 48, 8, 2, 0, false, false, false, false, 0, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
    {"mixtral, bf16", COT_BF16, 32, 48, 8, 2, 0, false, false, false, false, 0, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
    {"qwen2", COT_BF16, 24, 16, 10, 4, 40, true, false, false, false, 0, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
    {"deepseek-v2", COT_F32, 40, 24, 16, 4, 24, false, false, false, false, 0, COT_FFN_SWIGLU, 4, 2,
     COT_GATE_SOFTMAX, false, 4},
    {"deepseek-v3", COT_BF16, 40, 24, 16, 4, 24, false, false, false, true, 0, COT_FFN_SWIGLU, 4, 2,
     COT_GATE_SIGMOID, true, 2.5f},
    {"gpt-oss", COT_BF16, 40, 24, 12, 3, 0, false, true, true, false, 1.5f, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_CHOSEN_SOFTMAX, false, 1},
    {"gpt-oss, fp32", COT_F32, 33, 31, 12, 3, 0, false, true, true, false, 1.5f, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_CHOSEN_SOFTMAX, false, 1},
    {"one of five, two matrices", COT_BF16, 16, 16, 5, 1, 0, false, true, false, false, 0, COT_FFN_GELU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
    {"all of seven, two matrices", COT_F32, 17, 70, 7, 7, 16, true, false, false, false, 0, COT_FFN_RELU, 1,
     1, COT_GATE_SOFTMAX, true, 1},
    {"one expert of width one", COT_F32, 1, 1, 1, 1, 1, false, false, false, false, 0, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
    {"wide", COT_BF16, 136, 72, 6, 2, 0, false, false, false, false, 0, COT_FFN_SWIGLU, 1, 1,
     COT_GATE_SOFTMAX, true, 1},
};

inline struct world world_of(const Variant &v, int64_t tokens, struct draw *draw)
{
    cot_gate rules = {};
    rules.hidden = v.hidden, rules.experts = v.experts, rules.top_k = v.top_k;
    rules.score = v.score, rules.groups = v.groups, rules.group_limit = v.group_limit;
    rules.group_score = v.correction ? COT_GROUP_TOP2_SUM : COT_GROUP_MAX;
    rules.normalise = v.normalise, rules.scaling = v.scaling;
    rules.epsilon = v.correction ? 1e-20f : 0;
    cot_moe_options options = {};
    options.expert.type = options.shared.type = v.type;
    options.expert.gate = options.expert.up = options.expert.down = cot_format_of(v.type);
    options.shared.gate = options.shared.up = options.shared.down = cot_format_of(v.type);
    options.expert.activation = options.shared.activation = v.activation;
    options.expert.hidden = options.shared.hidden = v.hidden;
    options.expert.intermediate = v.intermediate, options.shared.intermediate = v.shared;
    options.expert.biased = v.biased;
    options.expert.limit = v.limit, options.expert.alpha = v.limit > 0 ? 1.702f : 0;
    options.experts = v.experts, options.top_k = v.top_k;
    struct world w =
        world_new(&cot_moe_fused, &options, &rules, v.gate_bias, v.correction, v.shared_gated, tokens, draw);
    world_solve(&w);
    return w;
}

#endif
