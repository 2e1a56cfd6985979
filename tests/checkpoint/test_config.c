/* config.json: what each family's fields mean, and what leaving them out means. */
#include "base/rng.h"
#include "harness/cmocka.h"
#include "harness/checkpoint/config_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What transformers 5.23 takes where config.json says nothing. */
static void absent_fields(void **state)
{
    (void)state;
    static const struct {
        int64_t kv, experts, top_k, moe, dense, shared, groups, limit;
        double theta, eps, scaling;
        bool normalise, qkv_bias, output_bias;
    } expected[BASES] = {
        {8, 8, 2, 14336, 0, 0, 1, 1, 1e6, 1e-5, 1, true, false, false},
        {6, 64, 8, 2048, 0, 0, 1, 1, 1e4, 1e-5, 1, false, false, false},
        {16, 60, 4, 1408, 0, 5632, 1, 1, 1e4, 1e-6, 1, false, true, false},
        {4, 128, 8, 768, 0, 0, 1, 1, 1e4, 1e-6, 1, false, false, false},
        {1, 64, 6, 1407, 0, 2814, 1, 1, 1e4, 1e-6, 1, false, false, false},
        {1, 256, 8, 2048, 18432, 2048, 8, 4, 1e4, 1e-6, 2.5, true, false, false},
        {8, 128, 4, 2880, 0, 0, 1, 1, 150000, 1e-5, 1, false, true, true},
    };
    for (int b = 0; b < BASES; b++) {
        cot_config c = config_accept(bases[b], b == 6 ? "{'rope_scaling': {'type': 'default'}}" : "{}");
        assert_string_equal(c.architecture, cot_architectures()[b].name);
        assert_int_equal(c.vocab, 331);
        assert_int_equal(c.kv_heads, expected[b].kv);
        assert_int_equal(c.gate.experts, expected[b].experts);
        assert_int_equal(c.gate.top_k, expected[b].top_k);
        assert_int_equal(c.gate.hidden, 96);
        assert_int_equal(c.gate.groups, expected[b].groups);
        assert_int_equal(c.gate.group_limit, expected[b].limit);
        assert_int_equal(c.moe_intermediate, expected[b].moe);
        assert_int_equal(c.dense_intermediate, expected[b].dense);
        assert_int_equal(c.shared_intermediate, expected[b].shared);
        assert_true(c.norm_eps == (float)expected[b].eps);
        assert_true(c.gate.scaling == (float)expected[b].scaling);
        assert_int_equal(c.gate.normalise, expected[b].normalise);
        assert_int_equal(c.qkv_bias, expected[b].qkv_bias);
        assert_int_equal(c.output_bias, expected[b].output_bias);
        assert_false(c.tied_embeddings);
        assert_int_equal(c.max_context, 128);
        double inverse = pow(expected[b].theta, -2.0 / (double)c.rope_width);
        assert_true(fabs(c.inverse_frequency[1] - inverse) < 1e-6 * inverse);
        assert_true(c.rope_factor == 1);
        assert_int_equal(c.eos_count, 0);
        assert_int_equal(c.bos, -1);
        for (int l = 0; l < 4; l++) {
            assert_int_equal(c.layer[l].moe, b == 5 ? l >= 3 : true);
            assert_int_equal(c.layer[l].window, b == 6 && l % 2 == 0 ? 128 : 0);
        }
        assert_int_equal(c.moe_layers, b == 5 ? 1 : 4);
        cot_config_clear(&c);
    }
}

static void attention(void **state)
{
    (void)state;
    cot_config c =
        config_accept(mixtral, "{'head_dim': 24, 'num_key_value_heads': 2, 'attention_bias': true}");
    assert_int_equal(c.head_dim, 24);
    assert_int_equal(c.kv_heads, 2);
    assert_true(c.softmax_scale == (float)(1 / sqrt(24)));
    assert_false(c.qkv_bias || c.output_bias || c.rope_interleaved || c.sinks); // no field of Mixtral's
    cot_config_clear(&c);
    c = config_accept(
        mixtral,
        "{'hidden_size': 100, 'num_attention_heads': 6, 'num_key_value_heads': null, 'head_dim': null}");
    assert_int_equal(c.head_dim, 16); // 100 / 6, rounded down
    assert_int_equal(c.kv_heads, 6);
    cot_config_clear(&c);
    c = config_accept(
        olmoe, "{'num_key_value_heads': 2, 'clip_qkv': 1, 'attention_bias': true, 'norm_topk_prob': true}");
    assert_int_equal(c.qk_norm, COT_QK_NORM_WIDTH);
    assert_true(c.clip_qkv == 1 && c.qkv_bias && c.output_bias && c.gate.normalise);
    cot_config_clear(&c);
    c = config_accept(qwen2, "{'attention_bias': true, 'qkv_bias': false}");
    assert_false(c.qkv_bias || c.output_bias);
    cot_config_clear(&c);
    c = config_accept(qwen3, "{'attention_bias': true}");
    assert_true(c.qkv_bias && c.output_bias && c.qk_norm == COT_QK_NORM_HEAD && c.clip_qkv == 0);
    cot_config_clear(&c);
    c = config_accept(oss, "{'attention_bias': false, 'hidden_act': 'gelu', 'swiglu_limit': 3}");
    assert_true(c.sinks && !c.qkv_bias && !c.output_bias && c.gate_bias && c.expert_bias);
    assert_true(c.swiglu_limit == 3 && c.swiglu_alpha == 1.702f);
    assert_int_equal(c.gate.score, COT_GATE_CHOSEN_SOFTMAX);
    cot_config_clear(&c);
}

static void latent_attention(void **state)
{
    (void)state;
    cot_config c = config_accept(
        v2, "{'q_lora_rank': null, 'kv_lora_rank': 40, 'qk_nope_head_dim': 24, 'qk_rope_head_dim': 16,"
            "'v_head_dim': 20, 'mlp_bias': true, 'rms_norm_eps': 0.05, 'num_key_value_heads': 3}");
    assert_int_equal(c.attention, COT_ATTENTION_MLA);
    assert_int_equal(c.q_lora_rank, 0);
    assert_int_equal(c.head_dim, 56);
    assert_int_equal(c.rope_width, 16);
    assert_int_equal(c.kv_heads, 1);
    assert_true(c.mla_norm_eps == 1e-6f && c.norm_eps == 0.05f && c.ffn_bias && !c.expert_bias &&
                c.rope_interleaved);
    assert_true(c.softmax_scale == (float)(1 / sqrt(40)));
    cot_config_clear(&c);
    c = config_accept(v3, "{'rope_interleave': false, 'mlp_bias': true, 'attention_bias': true}");
    assert_int_equal(c.q_lora_rank, 1536);
    assert_true(!c.rope_interleaved && !c.ffn_bias && c.qkv_bias && c.output_bias && c.gate_correction);
    cot_config_clear(&c);
    /* YaRN's temperature: of the rotated part in rope_factor, of the whole score in softmax_scale. */
    c = config_accept(v3,
                      "{'rope_scaling': {'type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 32,"
                      "'mscale': 0.5, 'mscale_all_dim': 1.2}}");
    double m = 0.12 * log(4) + 1;
    assert_true(fabs(c.rope_factor - (0.05 * log(4) + 1) / m) < 1e-7);
    assert_true(fabs(c.softmax_scale - m * m / sqrt(192)) < 1e-8);
    cot_config_clear(&c);
    c = config_accept(v2, "{'rope_scaling': {'type': 'linear', 'factor': 4.0, 'mscale_all_dim': 1.0}}");
    m = 0.1 * log(4) + 1;
    assert_true(fabs(c.softmax_scale - m * m / sqrt(192)) < 1e-8 && c.rope_factor == 1);
    cot_config_clear(&c);
}

static void gates(void **state)
{
    (void)state;
    cot_config c = config_accept(
        v2, "{'n_shared_experts': null, 'n_routed_experts': 16, 'topk_method': 'group_limited_greedy',"
            "'n_group': 4, 'topk_group': 2, 'routed_scaling_factor': 16}");
    assert_int_equal(c.shared_intermediate, 0);
    assert_int_equal(c.gate.groups, 4);
    assert_int_equal(c.gate.group_limit, 2);
    assert_int_equal(c.gate.group_score, COT_GROUP_MAX);
    assert_int_equal(c.gate.score, COT_GATE_SOFTMAX);
    assert_true(c.gate.scaling == 16 && !c.gate.normalise && c.gate.epsilon == 0);
    cot_config_clear(&c);
    c = config_accept(v2,
                      "{'topk_method': 'greedy', 'n_group': 4, 'topk_group': 1}"); // greedy knows no groups
    assert_int_equal(c.gate.groups, 1);
    cot_config_clear(&c);
    c = config_accept(v2, "{'topk_method': 'group_limited_greedy', 'n_group': 1, 'topk_group': 1}");
    assert_int_equal(c.gate.groups, 1);
    cot_config_clear(&c);
    c = config_accept(v2, "{'norm_topk_prob': true, 'num_experts_per_tok': 1}");
    assert_false(c.gate.normalise);
    cot_config_clear(&c);
    c = config_accept(v3,
                      "{'n_shared_experts': 2, 'moe_intermediate_size': 56, 'n_group': 1, 'topk_group': 1, "
                      "'n_routed_experts': 'remove',"
                      "'num_local_experts': 16, 'first_k_dense_replace': 1, 'intermediate_size': 152}");
    assert_int_equal(c.shared_intermediate, 112);
    assert_int_equal(c.dense_intermediate, 152);
    assert_int_equal(c.gate.experts, 16);
    assert_int_equal(c.gate.groups, 1);
    assert_int_equal(c.gate.score, COT_GATE_SIGMOID);
    assert_true(c.gate.normalise && c.gate.epsilon == 1e-20f && c.gate.scaling == 2.5f && !c.shared_gated);
    assert_int_equal(c.moe_layers, 3);
    cot_config_clear(&c);
    c = config_accept(v3, "{'norm_topk_prob': false}");
    assert_true(!c.gate.normalise && c.gate.group_score == COT_GROUP_TOP2_SUM && c.gate.epsilon == 0);
    cot_config_clear(&c);
    c = config_accept(mixtral, "{'norm_topk_prob': false, 'num_experts': 4}"); // always normalised; the alias
    assert_true(c.gate.normalise && c.gate.epsilon == 0 && c.gate.experts == 4);
    cot_config_clear(&c);
    c = config_accept(qwen3,
                      "{'num_local_experts': 12, 'norm_topk_prob': true}"); // as transformers 5 writes it
    assert_true(c.gate.normalise && c.gate.experts == 12);
    cot_config_clear(&c);
    c = config_accept(qwen2, "{'num_local_experts': 12}"); // no alias here
    assert_true(c.gate.experts == 60 && c.shared_gated);
    cot_config_clear(&c);
}

/* Which layers slide and which are dense, as one character a layer. */
static void layers(void **state)
{
    (void)state;
    static const struct {
        const char *base, *edit, *windows, *moe;
    } cases[] = {
        {mixtral, "{'sliding_window': 12, 'layer_types': ['full_attention']}", "ssss", "mmmm"},
        {mixtral, "{'sliding_window': null}", "....", "mmmm"},
        {olmoe, "{'sliding_window': 12}", "....", "mmmm"},
        {v3, "{'sliding_window': 12, 'first_k_dense_replace': 0}", "....", "mmmm"},
        {v2, "{'first_k_dense_replace': 9}", "....", "...."},
        {qwen2, "{'sliding_window': 12}", "....", "mmmm"},
        {qwen2, "{'use_sliding_window': true, 'sliding_window': 12}", "s.s.", "mmmm"},
        {qwen2, "{'use_sliding_window': true, 'sliding_window': 12, 'max_window_layers': 2}", "s...", "mmmm"},
        {qwen2,
         "{'use_sliding_window': true, 'sliding_window': 12, 'max_window_layers': 0, 'layer_types': "
         "['full_attention',"
         "'sliding_attention', 'sliding_attention', 'full_attention']}",
         ".ss.", "mmmm"},
        {qwen2,
         "{'use_sliding_window': false, 'sliding_window': 0, 'layer_types': ['full_attention', "
         "'full_attention',"
         "'full_attention', 'full_attention']}",
         "....", "mmmm"},
        {qwen2, "{'decoder_sparse_step': 2}", "....", ".m.m"},
        {qwen2, "{'decoder_sparse_step': 3, 'mlp_only_layers': null}", "....", "..m."},
        {qwen2, "{'decoder_sparse_step': 2, 'mlp_only_layers': [3, 17]}", "....", ".m.."},
        {qwen3, "{'mlp_only_layers': [0, 2], 'sliding_window': 12}", "....", ".m.m"},
        {qwen3,
         "{'use_sliding_window': true, 'sliding_window': 12, 'max_window_layers': 1, 'layer_types': []}",
         "ssss", "mmmm"},
        {qwen3, "{'use_sliding_window': true, 'sliding_window': null}", "....", "mmmm"},
        {oss, "{'sliding_window': 12}", "s.s.", "mmmm"},
        {oss,
         "{'sliding_window': 12, 'layer_types': ['full_attention', 'full_attention', 'sliding_attention',"
         "'full_attention']}",
         "..s.", "mmmm"},
        {oss,
         "{'sliding_window': null, 'layer_types': ['full_attention', 'full_attention', 'full_attention',"
         "'full_attention']}",
         "....", "mmmm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_config c = config_accept(cases[i].base, cases[i].edit);
        char windows[5] = "", moe[5] = "";
        for (int l = 0; l < 4; l++) {
            windows[l] = c.layer[l].window ? 's' : '.';
            moe[l] = c.layer[l].moe ? 'm' : '.';
            if (c.layer[l].window) assert_int_equal(c.layer[l].window, 12);
        }
        if (strcmp(windows, cases[i].windows) != 0 || strcmp(moe, cases[i].moe) != 0)
            fail_msg("%s: windows %s, MoE %s", cases[i].edit, windows, moe);
        cot_config_clear(&c);
    }
}

static void ends_of_sequence(void **state)
{
    (void)state;
    cot_config c = config_accept_with(qwen3, "{'eos_token_id': 7, 'bos_token_id': null}",
                                      "{\"eos_token_id\": [9, 7], \"bos_token_id\": 3}");
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[1], 9);
    assert_int_equal(c.bos, 3);
    cot_config_clear(&c);
    c = config_accept_with(qwen3, "{'eos_token_id': [1, 2, 1], 'bos_token_id': 5}", "{}");
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.bos, 5);
    cot_config_clear(&c);
    c = config_accept_with(qwen3, "{'eos_token_id': null}", "{\"eos_token_id\": null, \"temperature\": 0.7}");
    assert_int_equal(c.eos_count, 0);
    cot_config_clear(&c);
    cot_error error;
    char *text = config_edited(qwen3, "{}");
    assert_int_equal(cot_config_parse(&c, text, strlen(text), "[1]", 3, "config.json", &error),
                     COT_MALFORMED);
    assert_int_equal(
        cot_config_parse(&c, text, strlen(text), "{\"eos_token_id\": -1}", 20, "config.json", &error),
        COT_MALFORMED);
    free(text);
}

static void quantisations(void **state)
{
    (void)state;
    cot_config c = config_accept(
        qwen3, "{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e4m3', 'scale_fmt': 'ue8m0',"
               "'activation_scheme': 'dynamic', 'weight_block_size': [64, 32]}}");
    assert_int_equal(c.fp8_block_rows, 64);
    assert_int_equal(c.fp8_block_columns, 32);
    cot_config_clear(&c);
    static const char *const of_some[] = {
        "null", "{}", "{'-:.*mlp.gate$': {'bits': 8}, '-:lm_head': {}}",
        "{'+:.*down': {'bits': 4, 'group_size': -1, 'sym': true, 'desc_act': null}, 'up': {'sym': null}}"};
    for (size_t i = 0; i < sizeof of_some / sizeof *of_some; i++) {
        char edit[300];
        snprintf(edit, sizeof edit,
                 "{'quantization_config': {'quant_method': 'gptq', 'bits': 4, 'group_size': -1, 'sym': null, "
                 "'desc_act': null, 'dynamic': %s}}",
                 of_some[i]);
        c = config_accept(qwen3, edit);
        assert_true(c.quantisation.bits == 4 && !c.quantisation.group && c.quantisation.symmetric);
        cot_config_clear(&c);
    }
    c = config_accept(
        qwen3,
        "{'quantization_config': {'quant_method': 'auto-round', 'bits': 4, 'group_size': 64, 'sym': false, "
        "'packing_format': 'auto_round:auto_gptq', 'data_type': 'int', 'extra_config': {'lm_head': {'bits': "
        "16, "
        "'data_type': 'float'}, 'up': {'bits': 4, 'group_size': 64, 'sym': false}}}}");
    assert_true(c.quantisation.method == COT_QUANTISED_GPTQ && c.quantisation.ones_less &&
                c.quantisation.bits == 4 && c.quantisation.group == 64 && !c.quantisation.symmetric &&
                !c.quantisation.reordered);
    cot_config_clear(&c);
    c = config_accept(qwen3, "{'quantization_config': {'quant_method': 'awq', 'zero_point': null}}");
    cot_config_clear(&c);
    c = config_accept(oss, "{'quantization_config': {'quant_method': 'mxfp4'}}");
    cot_config_clear(&c);
    c = config_accept(mixtral, "{'quantization_config': null}");
    assert_int_equal(c.fp8_block_rows, 0);
    cot_config_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields), cmocka_unit_test(attention), cmocka_unit_test(latent_attention),
        cmocka_unit_test(gates),         cmocka_unit_test(layers),    cmocka_unit_test(ends_of_sequence),
        cmocka_unit_test(quantisations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
