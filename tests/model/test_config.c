/* config.json: what each family's fields mean, what leaving them out means, and what is refused by name. */
#include "base/file.h"
#include "base/rng.h"
#include "coterie/model.h"
#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

/* JSON with ' for ", so that it can be read in C. */
static json_t *parse(const char *text)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_error_t detail;
    json_t *json = json_loads(copy, 0, &detail);
    if (!json) fail_msg("%s: %s", detail.text, text);
    return json;
}

/* The base with the edit's members instead of its own; a member "remove" goes. */
static char *edited(const char *base, const char *edit)
{
    json_t *json = parse(base), *changes = parse(edit), *value;
    const char *key;
    json_object_foreach(changes, key, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "remove"))
            json_object_del(json, key);
        else
            json_object_set(json, key, value);
    }
    char *text = json_dumps(json, 0);
    json_decref(json);
    json_decref(changes);
    return text;
}

static cot_config accept_with(const char *base, const char *edit, const char *generation)
{
    cot_config config;
    cot_error error = {0};
    char *text = edited(base, edit);
    cot_status status = cot_config_parse(&config, text, strlen(text), generation,
                                         generation ? strlen(generation) : 0, "config.json", &error);
    if (status != COT_OK) fail_msg("%s: %s", edit, error.message);
    free(text);
    return config;
}

static cot_config accept(const char *base, const char *edit)
{
    return accept_with(base, edit, NULL);
}

static void refuse_text(const char *text, cot_status expected, const char *words)
{
    cot_config config, empty = {0};
    cot_error error = {0};
    cot_status status = cot_config_parse(&config, text, strlen(text), NULL, 0, "config.json", &error);
    if (status != expected)
        fail_msg("%s: status %d (%s), expected %d", text, (int)status, error.message, (int)expected);
    if (!strstr(error.message, words)) fail_msg("%s: '%s' does not say '%s'", text, error.message, words);
    assert_non_null(strstr(error.message, "config.json"));
    assert_null(strchr(error.message, '\n'));
    assert_memory_equal(&config, &empty, sizeof config);
    assert_int_equal(cot_config_parse(&config, text, strlen(text), NULL, 0, "config.json", NULL), expected);
}

static void refuse(const char *base, const char *edit, cot_status expected, const char *words)
{
    char *text = edited(base, edit);
    refuse_text(text, expected, words);
    free(text);
}

#define SMALL "'vocab_size': 331, 'hidden_size': 96, 'num_hidden_layers': 4, 'max_position_embeddings': 128"
static const char mixtral[] =
    "{'architectures': ['MixtralForCausalLM'], " SMALL ", 'num_attention_heads': 8}";
static const char olmoe[] = "{'architectures': ['OlmoeForCausalLM'], " SMALL ", 'num_attention_heads': 6}";
static const char qwen2[] =
    "{'architectures': ['Qwen2MoeForCausalLM'], " SMALL ", 'num_attention_heads': 16}";
static const char qwen3[] =
    "{'architectures': ['Qwen3MoeForCausalLM'], " SMALL ", 'num_attention_heads': 8, 'head_dim': 16}";
static const char v2[] = "{'architectures': ['DeepseekV2ForCausalLM'], " SMALL
                         ", 'num_attention_heads': 6, 'num_experts_per_tok': 6}";
static const char v3[] = "{'architectures': ['DeepseekV3ForCausalLM'], " SMALL ", 'num_attention_heads': 6}";
static const char oss[] = "{'architectures': ['GptOssForCausalLM'], " SMALL ", 'num_attention_heads': 8}";
static const char *const bases[] = {mixtral, olmoe, qwen2, qwen3, v2, v3, oss};
enum { BASES = sizeof bases / sizeof *bases };

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
        cot_config c = accept(bases[b], b == 6 ? "{'rope_scaling': {'type': 'default'}}" : "{}");
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
    assert_null(cot_architectures()[BASES].name);
}

static void attention(void **state)
{
    (void)state;
    cot_config c = accept(mixtral, "{'head_dim': 24, 'num_key_value_heads': 2, 'attention_bias': true}");
    assert_int_equal(c.head_dim, 24);
    assert_int_equal(c.kv_heads, 2);
    assert_true(c.softmax_scale == (float)(1 / sqrt(24)));
    assert_false(c.qkv_bias || c.output_bias || c.rope_interleaved || c.sinks); // no field of Mixtral's
    cot_config_clear(&c);
    c = accept(
        mixtral,
        "{'hidden_size': 100, 'num_attention_heads': 6, 'num_key_value_heads': null, 'head_dim': null}");
    assert_int_equal(c.head_dim, 16); // 100 / 6, rounded down
    assert_int_equal(c.kv_heads, 6);
    cot_config_clear(&c);
    c = accept(olmoe,
               "{'num_key_value_heads': 2, 'clip_qkv': 1, 'attention_bias': true, 'norm_topk_prob': true}");
    assert_int_equal(c.qk_norm, COT_QK_NORM_WIDTH);
    assert_true(c.clip_qkv == 1 && c.qkv_bias && c.output_bias && c.gate.normalise);
    cot_config_clear(&c);
    c = accept(qwen2, "{'attention_bias': true, 'qkv_bias': false}");
    assert_false(c.qkv_bias || c.output_bias);
    cot_config_clear(&c);
    c = accept(qwen3, "{'attention_bias': true}");
    assert_true(c.qkv_bias && c.output_bias && c.qk_norm == COT_QK_NORM_HEAD && c.clip_qkv == 0);
    cot_config_clear(&c);
    c = accept(oss, "{'attention_bias': false, 'hidden_act': 'gelu', 'swiglu_limit': 3}");
    assert_true(c.sinks && !c.qkv_bias && !c.output_bias && c.gate_bias && c.expert_bias);
    assert_true(c.swiglu_limit == 3 && c.swiglu_alpha == 1.702f);
    assert_int_equal(c.gate.score, COT_GATE_CHOSEN_SOFTMAX);
    cot_config_clear(&c);
}

static void latent_attention(void **state)
{
    (void)state;
    cot_config c =
        accept(v2, "{'q_lora_rank': null, 'kv_lora_rank': 40, 'qk_nope_head_dim': 24, 'qk_rope_head_dim': 16,"
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
    c = accept(v3, "{'rope_interleave': false, 'mlp_bias': true, 'attention_bias': true}");
    assert_int_equal(c.q_lora_rank, 1536);
    assert_true(!c.rope_interleaved && !c.ffn_bias && c.qkv_bias && c.output_bias && c.gate_correction);
    cot_config_clear(&c);
    /* YaRN's temperature: of the rotated part in rope_factor, of the whole score in softmax_scale. */
    c = accept(v3, "{'rope_scaling': {'type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 32,"
                   "'mscale': 0.5, 'mscale_all_dim': 1.2}}");
    double m = 0.12 * log(4) + 1;
    assert_true(fabs(c.rope_factor - (0.05 * log(4) + 1) / m) < 1e-7);
    assert_true(fabs(c.softmax_scale - m * m / sqrt(192)) < 1e-8);
    cot_config_clear(&c);
    c = accept(v2, "{'rope_scaling': {'type': 'linear', 'factor': 4.0, 'mscale_all_dim': 1.0}}");
    m = 0.1 * log(4) + 1;
    assert_true(fabs(c.softmax_scale - m * m / sqrt(192)) < 1e-8 && c.rope_factor == 1);
    cot_config_clear(&c);
}

static void gates(void **state)
{
    (void)state;
    cot_config c =
        accept(v2, "{'n_shared_experts': null, 'n_routed_experts': 16, 'topk_method': 'group_limited_greedy',"
                   "'n_group': 4, 'topk_group': 2, 'routed_scaling_factor': 16}");
    assert_int_equal(c.shared_intermediate, 0);
    assert_int_equal(c.gate.groups, 4);
    assert_int_equal(c.gate.group_limit, 2);
    assert_int_equal(c.gate.group_score, COT_GROUP_MAX);
    assert_int_equal(c.gate.score, COT_GATE_SOFTMAX);
    assert_true(c.gate.scaling == 16 && !c.gate.normalise && c.gate.epsilon == 0);
    cot_config_clear(&c);
    c = accept(v2, "{'topk_method': 'greedy', 'n_group': 4, 'topk_group': 1}"); // greedy knows no groups
    assert_int_equal(c.gate.groups, 1);
    cot_config_clear(&c);
    c = accept(v2, "{'topk_method': 'group_limited_greedy', 'n_group': 1, 'topk_group': 1}");
    assert_int_equal(c.gate.groups, 1);
    cot_config_clear(&c);
    c = accept(v2, "{'norm_topk_prob': true, 'num_experts_per_tok': 1}");
    assert_false(c.gate.normalise);
    cot_config_clear(&c);
    c = accept(v3, "{'n_shared_experts': 2, 'moe_intermediate_size': 56, 'n_group': 1, 'topk_group': 1, "
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
    c = accept(v3, "{'norm_topk_prob': false}");
    assert_true(!c.gate.normalise && c.gate.group_score == COT_GROUP_TOP2_SUM && c.gate.epsilon == 0);
    cot_config_clear(&c);
    c = accept(mixtral, "{'norm_topk_prob': false, 'num_experts': 4}"); // always normalised; the alias
    assert_true(c.gate.normalise && c.gate.epsilon == 0 && c.gate.experts == 4);
    cot_config_clear(&c);
    c = accept(qwen3, "{'num_local_experts': 12, 'norm_topk_prob': true}"); // as transformers 5 writes it
    assert_true(c.gate.normalise && c.gate.experts == 12);
    cot_config_clear(&c);
    c = accept(qwen2, "{'num_local_experts': 12}"); // no alias here
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
        cot_config c = accept(cases[i].base, cases[i].edit);
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

/* Frequencies that transformers 5.23 computes for head_dim 16, theta 10000, 128 positions. */
static void rope(void **state)
{
    (void)state;
#define YARN "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32"
    static const struct {
        const char *scaling;
        float factor, inverse[8];
        int64_t context;
    } cases[] = {
        {"{'rope_type': 'linear', 'factor': 2.5}",
         1,
         {0.400000006f, 0.1264911f, 0.0399999991f, 0.0126491114f, 0.00399999972f, 0.00126491114f,
          0.000400000019f, 0.000126491112f},
         128},
        {"{'type': 'linear', 'factor': 4}",
         1,
         {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
          0.000250000012f, 7.90569466e-05f},
         128},
        {"{'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1, 'high_freq_factor': 4.0, "
         "'original_max_position_embeddings': 32}",
         1,
         {1, 0.0958399773f, 0.0125000002f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
          3.95284733e-05f},
         256},
        {"{" YARN "}",
         1.13862944f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'beta_fast': 6.0, 'beta_slow': 0.5, 'truncate': false}",
         1.13862944f,
         {1, 0.198583528f, 0.0255952496f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'rope_type': 'yarn', 'factor': null, 'original_max_position_embeddings': 32, 'beta_fast': 0, "
         "'beta_slow': null}",
         1.13862944f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'mscale': 2.0, 'mscale_all_dim': 0.5}",
         1.19446488f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'mscale': 2.0, 'type': 'linear'}",
         1.13862944f, // rope_type wins; a lone mscale counts as none
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'attention_factor': 0.8, 'mscale': 1.0, 'mscale_all_dim': 2.0}",
         0.8f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4}",
         1.13862944f, // a ramp of no width
         {1, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'type': 'yarn', 'factor': 16, 'original_max_position_embeddings': 32, 'rope_theta': 100}",
         1.27725887f,
         {1, 0.386609644f, 0.118585408f, 0.0111142462f, 0.00625000009f, 0.00351463305f, 0.00197642366f,
          0.00111142464f},
         512},
        {"{'factor': 4.0}",
         1, // no type: plain
         {1, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
          0.000316227786f},
         128},
        {"{'type': 'yarn', 'factor': 4.0}",
         1.13862944f, // original: max_position_embeddings
         {1, 0.237170815f, 0.049999997f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int spelling = 0; spelling < 2; spelling++) {
            char edit[600];
            snprintf(edit, sizeof edit, "{'%s': %s}", spelling ? "rope_parameters" : "rope_scaling",
                     cases[i].scaling);
            cot_config c = accept(qwen3, edit);
            assert_int_equal(c.rope_width, 16);
            for (int f = 0; f < 8; f++)
                if (fabsf(c.inverse_frequency[f] - cases[i].inverse[f]) > 2e-7f * cases[i].inverse[f])
                    fail_msg("%s: frequency %d is %.9g, expected %.9g", edit, f,
                             (double)c.inverse_frequency[f], (double)cases[i].inverse[f]);
            assert_true(fabsf(c.rope_factor - cases[i].factor) < 2e-7f);
            assert_int_equal(c.max_context, cases[i].context);
            cot_config_clear(&c);
        }
    }
}

static void rope_spellings(void **state)
{
    (void)state;
    /* rope_scaling wins entirely over rope_parameters, and takes theta from beside it. */
    cot_config c = accept(qwen3, "{'rope_theta': 100, 'rope_scaling': {'type': 'linear', 'factor': 2},"
                                 "'rope_parameters': {'rope_type': 'linear', 'factor': 8, 'rope_theta': 7}}");
    assert_true(fabsf(c.inverse_frequency[4] - 0.05f) < 1e-8f);
    cot_config_clear(&c);
    c = accept(qwen3, "{'rope_theta': 100, 'rope_scaling': {}, 'rope_parameters': {'rope_theta': 10000}}");
    assert_true(fabsf(c.inverse_frequency[4] - 0.01f) < 1e-8f);
    cot_config_clear(&c);
    c = accept(qwen3,
               "{'rope_scaling': {" YARN "}, 'original_max_position_embeddings': 64}"); // the outer one wins
    assert_int_equal(c.max_context, 256);
    cot_config_clear(&c);
    c = accept(oss, "{'rope_scaling': null}"); // gpt-oss is YaRN x 32 of 4096 where nothing is said
    assert_int_equal(c.max_context, 131072);
    assert_true(fabs(c.rope_factor - (0.1 * log(32) + 1)) < 1e-6);
    assert_true(fabs(c.inverse_frequency[31] * pow(150000, 62.0 / 64) * 32 - 1) < 1e-6);
    cot_config_clear(&c);
    c = accept(oss, "{'rope_parameters': {}}"); // ... and plain where it is said to be nothing
    assert_true(c.rope_factor == 1 && c.max_context == 128);
    cot_config_clear(&c);
    c = accept(qwen3, "{'partial_rotary_factor': 1.0, 'rope_scaling': {'type': 'linear', 'factor': 2, "
                      "'partial_rotary_factor': null}}");
    cot_config_clear(&c);
}

static void ends_of_sequence(void **state)
{
    (void)state;
    cot_config c = accept_with(qwen3, "{'eos_token_id': 7, 'bos_token_id': null}",
                               "{\"eos_token_id\": [9, 7], \"bos_token_id\": 3}");
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[1], 9);
    assert_int_equal(c.bos, 3);
    cot_config_clear(&c);
    c = accept_with(qwen3, "{'eos_token_id': [1, 2, 1], 'bos_token_id': 5}", "{}");
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.bos, 5);
    cot_config_clear(&c);
    c = accept_with(qwen3, "{'eos_token_id': null}", "{\"eos_token_id\": null, \"temperature\": 0.7}");
    assert_int_equal(c.eos_count, 0);
    cot_config_clear(&c);
    cot_error error;
    char *text = edited(qwen3, "{}");
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
    cot_config c =
        accept(qwen3, "{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e4m3', 'scale_fmt': 'ue8m0',"
                      "'activation_scheme': 'dynamic', 'weight_block_size': [64, 32]}}");
    assert_int_equal(c.fp8_block_rows, 64);
    assert_int_equal(c.fp8_block_columns, 32);
    cot_config_clear(&c);
    c = accept(oss, "{'quantization_config': {'quant_method': 'mxfp4'}}");
    cot_config_clear(&c);
    c = accept(mixtral, "{'quantization_config': null}");
    assert_int_equal(c.fp8_block_rows, 0);
    cot_config_clear(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *base, *edit;
        cot_status status;
        const char *words;
    } cases[] = {
        {mixtral, "{'architectures': ['FooForCausalLM']}", COT_UNSUPPORTED,
         "unknown architecture 'FooForCausalLM' (see coterie models)"},
        {mixtral, "{'architectures': 'remove'}", COT_MALFORMED, "neither 'architectures' nor 'model_type'"},
        {mixtral, "{'architectures': 'remove', 'model_type': 'llama'}", COT_UNSUPPORTED,
         "unknown architecture 'llama'"},
        {mixtral, "{'hidden_act': 'gelu'}", COT_UNSUPPORTED, "hidden_act 'gelu'"},
        {v3, "{'hidden_act': 'relu'}", COT_UNSUPPORTED, "hidden_act 'relu'"},
        {qwen3, "{'rope_scaling': {'type': 'dynamic', 'factor': 2}}", COT_UNSUPPORTED, "RoPE type 'dynamic'"},
        {qwen3, "{'rope_scaling': {'rope_type': 'longrope', 'factor': 2}}", COT_UNSUPPORTED,
         "RoPE type 'longrope'"},
        {qwen3, "{'rope_parameters': {'rope_type': 'proportional'}}", COT_UNSUPPORTED,
         "RoPE type 'proportional'"},
        {qwen3, "{'rope_scaling': {'type': 'mrope'}}", COT_UNSUPPORTED, "RoPE type 'mrope'"},
        {qwen3, "{'rope_scaling': {'type': 7}}", COT_MALFORMED, "'type' is 7, expected a string"},
        {qwen3, "{'rope_scaling': [1]}", COT_MALFORMED,
         "'rope_scaling' is a list, expected an object or null"},
        {qwen3, "{'rope_parameters': {'full_attention': {'rope_type': 'default'}}}", COT_UNSUPPORTED,
         "'full_attention'"},
        {qwen3, "{'rope_scaling': {'type': 'linear'}}", COT_MALFORMED, "lacks 'factor'"},
        {qwen3, "{'rope_scaling': {'type': 'linear', 'factor': null}}", COT_MALFORMED, "'factor' is null"},
        {qwen3, "{'rope_scaling': {'type': 'linear', 'factor': -2}}", COT_MALFORMED,
         "'factor' of RoPE is -2"},
        {qwen3, "{'rope_scaling': {'type': 'llama3', 'factor': 2, 'low_freq_factor': 1}}", COT_MALFORMED,
         "lacks 'high_freq_factor'"},
        {qwen3,
         "{'rope_scaling': {'type': 'llama3', 'factor': 2, 'low_freq_factor': 4, 'high_freq_factor': 4}}",
         COT_MALFORMED, "expected more than low_freq_factor"},
        {qwen3, "{'rope_scaling': {" YARN ", 'beta_fast': -3}}", COT_MALFORMED, "beta_fast -3"},
        {qwen3, "{'rope_scaling': {" YARN ", 'truncate': 1}}", COT_MALFORMED, "'truncate' is 1"},
        {qwen3, "{'rope_scaling': {" YARN ", 'mscale': 1, 'mscale_all_dim': -7.2134752044448170}}",
         COT_MALFORMED, "not finite"},
        {qwen3, "{'rope_scaling': {'type': 'yarn', 'factor': 1e300, 'original_max_position_embeddings': 32}}",
         COT_MALFORMED, "1e+300"},
        {qwen3, "{'rope_theta': null}", COT_MALFORMED, "'rope_theta' is null"},
        {qwen3, "{'rope_theta': 0}", COT_MALFORMED, "'rope_theta' of RoPE is 0"},
        {qwen3, "{'rope_theta': 1e300}", COT_MALFORMED, "not finite"},
        {qwen3, "{'partial_rotary_factor': 0.5}", COT_UNSUPPORTED, "'partial_rotary_factor'"},
        {qwen3, "{'rope_parameters': {'partial_rotary_factor': 0.5}}", COT_UNSUPPORTED,
         "'partial_rotary_factor'"},
        {qwen3, "{'quantization_config': {'quant_method': 'awq'}}", COT_UNSUPPORTED, "quantisation 'awq'"},
        {qwen3, "{'quantization_config': {'quant_method': 'mxfp4'}}", COT_UNSUPPORTED,
         "quantisation 'mxfp4'"},
        {oss, "{'quantization_config': {'quant_method': 'gptq'}}", COT_UNSUPPORTED, "quantisation 'gptq'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}}", COT_UNSUPPORTED,
         "fp8 format 'e5m2'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'activation_scheme': 'static'}}",
         COT_UNSUPPORTED, "'static'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 0]}}",
         COT_MALFORMED, "'weight_block_size'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': 128}}", COT_MALFORMED,
         "'weight_block_size'"},
        {qwen3, "{'quantization_config': 'fp8'}", COT_MALFORMED, "'quantization_config'"},
        {qwen3, "{'compression_config': {}}", COT_UNSUPPORTED, "'compression_config'"},
        {qwen3, "{'per_layer_config': {}}", COT_UNSUPPORTED, "'per_layer_config'"},
        {qwen3, "{'is_causal': false}", COT_UNSUPPORTED, "'is_causal'"},
        {v2, "{'norm_topk_prob': true}", COT_UNSUPPORTED,
         "norm_topk_prob true is not supported in deepseek_v2"},
        {v2, "{'moe_layer_freq': 2}", COT_UNSUPPORTED, "'moe_layer_freq'"},
        {v3, "{'moe_layer_freq': 2}", COT_UNSUPPORTED, "'moe_layer_freq'"},
        {v2, "{'scoring_func': 'sigmoid'}", COT_UNSUPPORTED, "scoring_func 'sigmoid'"},
        {v3, "{'scoring_func': 'softmax'}", COT_UNSUPPORTED, "scoring_func 'softmax'"},
        {v2, "{'topk_method': 'noaux_tc'}", COT_UNSUPPORTED, "topk_method 'noaux_tc'"},
        {v3, "{'topk_method': 'greedy'}", COT_UNSUPPORTED, "topk_method 'greedy'"},
        {v2, "{'num_experts_per_tok': 'remove'}", COT_MALFORMED, "'num_experts_per_tok' is missing"},
        {v2, "{'topk_method': 'group_limited_greedy', 'n_group': 7, 'topk_group': 2}", COT_MALFORMED,
         "'n_group' is 7"},
        {v2, "{'topk_method': 'group_limited_greedy', 'n_group': 4}", COT_MALFORMED,
         "'topk_group' is 0, expected 1 to n_group, 4"},
        {v3, "{'topk_group': 9}", COT_MALFORMED, "'topk_group' is 9, expected 1 to n_group, 8"},
        {v3, "{'n_group': 256}", COT_MALFORMED, "groups of 2 or more"},
        {v3, "{'num_experts_per_tok': 33, 'topk_group': 1}", COT_MALFORMED,
         "at most the 32 experts of 1 groups"},
        {mixtral, "{'num_experts_per_tok': 9}", COT_MALFORMED,
         "'num_experts_per_tok' is 9, expected at most the number of experts, 8"},
        {mixtral, "{'num_local_experts': 8, 'num_experts': 16}", COT_MALFORMED,
         "'num_local_experts' and 'num_experts'"},
        {mixtral, "{'hidden_size': 0}", COT_MALFORMED,
         "'hidden_size' is 0, expected a whole number from 1 to 16777216"},
        {mixtral, "{'hidden_size': -96}", COT_MALFORMED, "'hidden_size' is -96"},
        {mixtral, "{'hidden_size': 96.0}", COT_MALFORMED, "'hidden_size' is 96"},
        {mixtral, "{'hidden_size': '96'}", COT_MALFORMED, "'hidden_size' is \"96\""},
        {mixtral, "{'hidden_size': null}", COT_MALFORMED, "'hidden_size' is null"},
        {mixtral, "{'vocab_size': 4294967296}", COT_MALFORMED, "'vocab_size' is 4294967296"},
        {mixtral, "{'num_hidden_layers': 1000000000}", COT_MALFORMED, "'num_hidden_layers'"},
        {mixtral, "{'max_position_embeddings': 0}", COT_MALFORMED, "'max_position_embeddings'"},
        {mixtral, "{'num_local_experts': 65537}", COT_MALFORMED, "'num_local_experts'"},
        {mixtral, "{'num_experts_per_tok': 0}", COT_MALFORMED, "'num_experts_per_tok' is 0"},
        {mixtral, "{'num_key_value_heads': 3}", COT_MALFORMED,
         "'num_key_value_heads' is 3, expected a divisor of num_attention_heads, 8"},
        {mixtral, "{'head_dim': 15}", COT_MALFORMED, "'head_dim' is 15, expected an even number"},
        {mixtral, "{'hidden_size': 4}", COT_MALFORMED, "'hidden_size' is 4"},
        {mixtral, "{'sliding_window': 0}", COT_MALFORMED, "'sliding_window' is 0"},
        {olmoe, "{'head_dim': 32}", COT_MALFORMED,
         "'hidden_size' is 96, expected num_attention_heads x head_dim, 192"},
        {olmoe, "{'clip_qkv': 0}", COT_MALFORMED, "'clip_qkv' is 0"},
        {qwen2, "{'use_sliding_window': true, 'sliding_window': null}", COT_MALFORMED,
         "'sliding_window' is null"},
        {qwen2,
         "{'layer_types': ['sliding_attention', 'full_attention', 'full_attention', 'full_attention']}",
         COT_MALFORMED, "lets layer 0 slide"},
        {qwen2, "{'layer_types': ['full_attention']}", COT_MALFORMED,
         "'layer_types' has 1 entries, expected one for each of 4 layers"},
        {oss, "{'layer_types': ['full_attention', 'chunked_attention', 'full_attention', 'full_attention']}",
         COT_UNSUPPORTED, "layer type 'chunked_attention'"},
        {oss, "{'sliding_window': null}", COT_MALFORMED, "'sliding_window' is null"},
        {oss, "{'head_dim': null}", COT_MALFORMED, "'head_dim' is null"},
        {oss, "{'swiglu_limit': 0}", COT_MALFORMED, "'swiglu_limit' is 0"},
        {qwen3, "{'mlp_only_layers': [0.5]}", COT_MALFORMED, "'mlp_only_layers' is 0.5"},
        {qwen3, "{'decoder_sparse_step': 0}", COT_MALFORMED, "'decoder_sparse_step' is 0"},
        {qwen3, "{'rms_norm_eps': -1}", COT_MALFORMED, "'rms_norm_eps' is -1"},
        {qwen3, "{'tie_word_embeddings': 1}", COT_MALFORMED,
         "'tie_word_embeddings' is 1, expected true or false"},
        {qwen3, "{'eos_token_id': 'x'}", COT_MALFORMED, "'eos_token_id' is \"x\""},
        {qwen3, "{'eos_token_id': [1, -2]}", COT_MALFORMED, "'eos_token_id' is -2"},
        {v3, "{'qk_rope_head_dim': 15}", COT_MALFORMED, "'qk_rope_head_dim' is 15"},
        {v3, "{'routed_scaling_factor': 1e300}", COT_MALFORMED, "'routed_scaling_factor'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].base, cases[i].edit, cases[i].status, cases[i].words);
    refuse_text("", COT_MALFORMED, "not valid JSON");
    refuse_text("{\"architectures\": [", COT_MALFORMED, "not valid JSON");
    refuse_text("[]", COT_MALFORMED, "not a JSON object");
    refuse_text("{\"hidden_size\": 1, \"hidden_size\": 2}", COT_MALFORMED, "not valid JSON");
    refuse_text("{\"hidden_size\": 99999999999999999999}", COT_MALFORMED, "not valid JSON");
    refuse_text("{\"architectures\": [\"a\\nb\"]}", COT_UNSUPPORTED, "'a?b'");
    char deep[5000];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    refuse_text(deep, COT_MALFORMED, "not valid JSON");
}

/* Whatever is changed in a good file, the answer is yes or one clear line. */
static void mutations(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL), draws = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    static const char *const values[] = {"null",
                                         "true",
                                         "-1",
                                         "0",
                                         "1",
                                         "3",
                                         "1e308",
                                         "-0.5",
                                         "9223372036854775807",
                                         "\"x\"",
                                         "[]",
                                         "{}",
                                         "[1, 2]",
                                         "{\"rope_type\": \"yarn\"}",
                                         "65536",
                                         "2147483648"};
    for (int round = 0; round < 4000; round++) {
        json_t *json = parse(bases[cot_random_bits(seed, 1, draws++) % BASES]);
        static const char *const keys[] = {"rope_scaling",
                                           "sliding_window",
                                           "n_group",
                                           "topk_group",
                                           "head_dim",
                                           "clip_qkv",
                                           "layer_types",
                                           "mlp_only_layers",
                                           "eos_token_id",
                                           "quantization_config",
                                           "num_experts",
                                           "num_local_experts",
                                           "n_routed_experts",
                                           "num_key_value_heads",
                                           "hidden_size",
                                           "num_attention_heads",
                                           "q_lora_rank",
                                           "n_shared_experts",
                                           "first_k_dense_replace",
                                           "use_sliding_window",
                                           "decoder_sparse_step",
                                           "rope_theta",
                                           "max_position_embeddings",
                                           "num_hidden_layers",
                                           "num_experts_per_tok",
                                           "architectures",
                                           "swiglu_limit",
                                           "norm_topk_prob"};
        for (int change = 0; change < 2; change++) {
            const char *value = values[cot_random_bits(seed, 1, draws++) % (sizeof values / sizeof *values)];
            json_object_set_new(json, keys[cot_random_bits(seed, 1, draws++) % (sizeof keys / sizeof *keys)],
                                json_loads(value, JSON_DECODE_ANY, NULL));
        }
        char *text = json_dumps(json, 0);
        size_t bytes = strlen(text);
        uint64_t at = cot_random_bits(seed, 2, (uint64_t)round);
        if (round % 4 == 0) text[at % bytes] ^= (char)(1 << at / bytes % 8);
        cot_config config;
        cot_error error = {0};
        cot_status status = cot_config_parse(&config, text, bytes, text, bytes, "config.json", &error);
        if (status == COT_OK) {
            assert_true(config.layers >= 1 && config.gate.top_k <= config.gate.experts &&
                        config.max_context >= 1);
            for (int64_t i = 0; i < config.rope_width / 2; i++)
                assert_true(isfinite(config.inverse_frequency[i]));
            cot_config_clear(&config);
        } else {
            assert_true(error.status == status && *error.message);
        }
        free(text);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields),    cmocka_unit_test(attention),
        cmocka_unit_test(latent_attention), cmocka_unit_test(gates),
        cmocka_unit_test(layers),           cmocka_unit_test(rope),
        cmocka_unit_test(rope_spellings),   cmocka_unit_test(ends_of_sequence),
        cmocka_unit_test(quantisations),    cmocka_unit_test(refusals),
        cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
