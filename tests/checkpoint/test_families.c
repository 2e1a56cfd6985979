/* Families whose rows differ in more than numbers: fields of their own, layers that lists name, contexts that are cut, models of texts in
 * folders of wider ones. */
#include "harness/cmocka.h"
#include "harness/checkpoint/config_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBERS                                                                                              \
    SMALL ", 'num_attention_heads': 6, 'num_experts_per_tok': 3, 'moe_intermediate_size': 24, "              \
          "'intermediate_size': 40"
#define V3_NUMBERS NUMBERS ", 'n_routed_experts': 12"
static const char flash[] = "{'architectures': ['Glm4MoeLiteForCausalLM'], " V3_NUMBERS "}";
static const char dots[] = "{'architectures': ['Dots1ForCausalLM'], 'head_dim': 16, " V3_NUMBERS "}";
static const char ernie[] =
    "{'architectures': ['Ernie4_5_MoeForCausalLM'], 'moe_k': 3, 'moe_num_experts': 12, "
    "'num_key_value_heads': 2, "
    "'moe_intermediate_size': 24, 'intermediate_size': 40, 'num_attention_heads': 6, " SMALL "}";
static const char solar[] = "{'architectures': ['SolarOpenForCausalLM'], 'head_dim': 16, " V3_NUMBERS "}";
static const char hy[] =
    "{'architectures': ['HYV3ForCausalLM'], 'head_dim': 16, 'num_experts': 12, " NUMBERS "}";
static const char v32[] =
    "{'architectures': ['DeepseekV32ForCausalLM'], 'n_routed_experts': 16, " NUMBERS "}"; // 8 groups
static const char dsa[] = "{'architectures': ['GlmMoeDsaForCausalLM'], " V3_NUMBERS "}";

static const char mistral[] = "{'architectures': ['Mistral4ForCausalLM'], " V3_NUMBERS "}";
static const char afmoe[] = "{'architectures': ['AfmoeForCausalLM'], 'head_dim': 16, 'num_experts': 12, "
                            "'sliding_window': 20, " NUMBERS "}";
static const char glm[] = "{'architectures': ['Glm4MoeForCausalLM'], 'head_dim': 16, " V3_NUMBERS "}";
static const char minimax[] =
    "{'architectures': ['MiniMaxM2ForCausalLM'], 'head_dim': 16, 'num_local_experts': 12, "
    "'attn_type_list': [1, 1, 1, 1], " NUMBERS "}";

#define STATE_NUMBERS                                                                                        \
    NUMBERS ", 'head_dim': 16, 'num_key_value_heads': 2, 'num_experts': 12, 'linear_num_key_heads': 2, "     \
            "'linear_num_value_heads': 4, 'linear_key_head_dim': 12, 'linear_value_head_dim': 10"
static const char next[] = "{'architectures': ['Qwen3NextForCausalLM'], " STATE_NUMBERS "}";
static const char qwen35[] = "{'model_type': 'qwen3_5_moe_text', " STATE_NUMBERS "}";

/* "dm": dense, MoE. */
static void expect_layers(const char *base, const char *edit, const char *kinds)
{
    cot_config c = config_accept(base, edit);
    for (int l = 0; l < 4; l++)
        if (c.layer[l].moe != (kinds[l] == 'm')) fail_msg("%s, %s: layer %d", base, edit, l);
    cot_config_clear(&c);
}

static void layers(void **state)
{
    (void)state;
    expect_layers(flash, "{}", "dmmm");
    expect_layers(dots, "{}", "mmmm");
    expect_layers(hy, "{}", "dmmm");
    expect_layers(dsa, "{}", "dddm");
    expect_layers(ernie, "{}", "dmmm");
    expect_layers(ernie, "{'moe_layer_start_index': 0, 'moe_layer_end_index': 2}", "mmmd");
    expect_layers(ernie, "{'moe_layer_start_index': 1, 'moe_layer_end_index': 3, 'moe_layer_interval': 2}",
                  "dmdm");
    expect_layers(hy, "{'mlp_layer_types': ['sparse', 'dense', 'dense', 'sparse']}", "mddm");
    static const char *const without_dense[] = {dots, solar, mistral}; // where no field makes a layer so
    for (size_t i = 0; i < sizeof without_dense / sizeof *without_dense; i++) {
        expect_layers(without_dense[i], "{'intermediate_size': 'remove'}", "mmmm");
        config_refuse(without_dense[i], "{'intermediate_size': 'remove', 'first_k_dense_replace': 1}",
                      COT_MALFORMED, "'intermediate_size' is missing, and layers are dense");
    }
    config_refuse(flash, "{'intermediate_size': 'remove'}", COT_MALFORMED, "'intermediate_size' is missing");
    config_refuse(flash, "{'intermediate_size': 0}", COT_MALFORMED, "'intermediate_size' is 0, expected a");
    config_refuse(minimax, "{'mlp_layer_types': ['sparse', 'dense', 'sparse', 'sparse']}", COT_UNSUPPORTED,
                  "dense layers are not supported in minimax_m2");
    config_refuse(flash, "{'mlp_layer_types': ['sparse', 'dense', 'gated', 'sparse']}", COT_UNSUPPORTED,
                  "'mlp_layer_types' has 'gated', which is not supported (dense and sparse are)");
    config_refuse(flash, "{'mlp_layer_types': ['sparse']}", COT_MALFORMED,
                  "'mlp_layer_types' has 1 entries, expected one for each of 4 layers");
}

static void windows(void **state)
{
    (void)state;
    static const struct {
        const char *edit;
        int64_t window[4];
    } cases[] = {{"{'max_window_layers': 2}", {0}},
                 {"{'max_window_layers': 2, 'sliding_window': 9}", {0, 0, 9, 9}},
                 {"{'sliding_window': 9}", {0}},
                 {"{'max_window_layers': 0, 'sliding_window': 9, 'layer_types': ['sliding_attention', "
                  "'full_attention', "
                  "'full_attention', 'full_attention']}",
                  {9, 0, 0, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_config c = config_accept(dots, cases[i].edit);
        for (int l = 0; l < 4; l++) assert_int_equal(c.layer[l].window, cases[i].window[l]);
        cot_config_clear(&c);
    }
    config_refuse(dots,
                  "{'sliding_window': 9, 'layer_types': ['linear_attention', 'full_attention', "
                  "'full_attention', 'full_attention']}",
                  COT_UNSUPPORTED, "layer type 'linear_attention' is not supported");
    static const char slide[] = "{%s'layer_types': ['sliding_attention', 'full_attention', "
                                "'full_attention', 'full_attention']}";
    static const char *const no_windows[][2] = {
        {"", "missing"}, {"'sliding_window': null, ", "null"}, {"'sliding_window': 0, ", "0"}};
    for (size_t i = 0; i < sizeof no_windows / sizeof *no_windows; i++) {
        char edit[200], words[80];
        snprintf(edit, sizeof edit, slide, no_windows[i][0]);
        snprintf(words, sizeof words, "'sliding_window' is %s, expected 1 token or more", no_windows[i][1]);
        config_refuse(dots, edit, COT_MALFORMED, words);
    }
}

static void gates(void **state)
{
    (void)state;
    cot_config c = config_accept(
        dots, "{'scoring_func': 'noaux_tc', 'norm_topk_prob': false, 'routed_scaling_factor': 2.5}");
    assert_true(c.gate.score == COT_GATE_SIGMOID && c.gate_correction && !c.gate.normalise &&
                c.gate.scaling == 2.5f);
    cot_config_clear(&c);
    c = config_accept(hy, "{'router_scaling_factor': 2.826, 'routed_scaling_factor': 7, 'qk_norm': false}");
    assert_true(c.gate.score == COT_GATE_SIGMOID && c.gate.scaling == 2.826f &&
                c.qk_norm == COT_QK_NORM_NONE);
    assert_int_equal(c.shared_intermediate, 24);
    cot_config_clear(&c);
    c = config_accept(ernie, "{}");
    assert_true(c.gate.score == COT_GATE_SOFTMAX && c.gate_correction && c.gate.normalise &&
                c.tied_embeddings && c.rope_interleaved);
    assert_int_equal(c.shared_intermediate, 48);
    cot_config_clear(&c);
    config_refuse(dots, "{'scoring_func': 'softmax'}", COT_UNSUPPORTED, "scoring_func 'softmax'");
    config_refuse(flash, "{'scoring_func': 'noaux_tc'}", COT_UNSUPPORTED, "scoring_func 'noaux_tc'");
    config_refuse(hy, "{'router_scaling_factor': 1e300}", COT_MALFORMED, "'router_scaling_factor' is beyond");
    config_refuse(ernie, "{'moe_k': 'remove'}", COT_MALFORMED, "'moe_k' is missing");
}

/* What a family has one way of. */
static void fixed(void **state)
{
    (void)state;
    cot_config c = config_accept(ernie, "{'use_bias': false, 'moe_gate': null}");
    cot_config_clear(&c);
    config_refuse(ernie, "{'use_bias': true}", COT_UNSUPPORTED,
                  "'use_bias' other than false is not supported in ernie4_5_moe");
    config_refuse(ernie, "{'moe_gate': 'hash'}", COT_UNSUPPORTED, "'moe_gate' other than \"topk\"");
    config_refuse(solar, "{'use_qk_norm': true}", COT_UNSUPPORTED, "'use_qk_norm'");
    config_refuse(hy, "{'mlp_bias': true}", COT_UNSUPPORTED, "'mlp_bias'");
    config_refuse(hy, "{'route_norm': false}", COT_UNSUPPORTED, "'route_norm' other than true");
    config_refuse(afmoe, "{'route_norm': false}", COT_UNSUPPORTED, "'route_norm' other than true");
    config_refuse(v32, "{'rope_interleave': false}", COT_UNSUPPORTED, "'rope_interleave' other than true");
    config_refuse(dsa, "{'rope_interleave': false}", COT_UNSUPPORTED, "'rope_interleave' other than true");
    config_refuse(ernie, "{'moe_norm_min': 0.9}", COT_UNSUPPORTED, "'moe_norm_min' other than");
    c = config_accept(ernie, "{'moe_norm_min': 1e-12}");
    cot_config_clear(&c);
}

static void context_is_cut(void **state)
{
    (void)state;
    cot_config c = config_accept(v32, "{'index_topk': 100}");
    assert_int_equal(c.max_context, 100);
    assert_string_equal(c.context_field, "index_topk");
    cot_config_clear(&c);
    c = config_accept(dsa, "{'index_topk': 128}"); // its own context
    assert_int_equal(c.max_context, 128);
    assert_null(c.context_field);
    cot_config_clear(&c);
    c = config_accept(v32, "{'max_position_embeddings': 163840}"); // as published
    assert_int_equal(c.max_context, 2048);
    cot_config_clear(&c);
    c = config_accept(v32, "{'index_topk': 40, 'rope_scaling': {" YARN "}}"); // which lengthens it first
    assert_int_equal(c.max_context, 40);
    cot_config_clear(&c);
    config_refuse(v32, "{'index_topk': 0}", COT_MALFORMED, "'index_topk' is 0");
    config_refuse(dsa, "{'index_topk': 'all'}", COT_MALFORMED, "'index_topk'");
}

static void nested(void **state)
{
    (void)state;
    static const char wide[] =
        "{'architectures': ['KimiK25ForConditionalGeneration'], 'model_type': 'kimi_k25', 'eos_token_id': 9, "
        "'tie_word_embeddings': true, 'vision_config': {'hidden_size': 16}, 'text_config': %s}";
    static const struct {
        const char *text, *words; // words: of a refusal
    } cases[] = {
        {"{'architectures': ['DeepseekV3ForCausalLM'], 'model_type': 'kimi_k2', 'n_group': 1, 'topk_group': "
         "1, " V3_NUMBERS ", 'eos_token_id': 7}",
         NULL},
        {"{'model_type': 'kimi_k2', 'n_group': 1, 'topk_group': 1, " V3_NUMBERS ", 'eos_token_id': 7}", NULL},
        {"{'model_type': 'kimi_linear', " V3_NUMBERS "}", "unknown architecture 'kimi_linear'"},
        {"3", "unknown architecture 'KimiK25ForConditionalGeneration'"},
        {"{}", "neither 'architectures' nor 'model_type' says what it is"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char base[2000];
        snprintf(base, sizeof base, wide, cases[i].text);
        if (cases[i].words) {
            config_refuse(base, "{}", strstr(cases[i].words, "neither") ? COT_MALFORMED : COT_UNSUPPORTED,
                          cases[i].words);
            continue;
        }
        cot_config c = config_accept(base, "{}");
        assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
        assert_true(c.nested && c.tied_embeddings && c.hidden == 96);
        assert_true(c.eos_count == 1 && c.eos[0] == 7); // its own wins
        cot_config_clear(&c);
    }
    cot_config c = config_accept(v3, "{}");
    assert_false(c.nested);
    cot_config_clear(&c);
}

static const char granite[] =
    "{'architectures': ['GraniteMoeForCausalLM'], 'num_local_experts': 12, " NUMBERS "}";
static const char hunyuan[] = "{'architectures': ['HunYuanMoEV1ForCausalLM'], 'head_dim': 16, 'num_experts': "
                              "12, 'moe_topk': [3, 3, 3, 3], "
                              "'num_shared_expert': [1, 1, 1, 1], " NUMBERS "}";
static const char phi[] =
    "{'architectures': ['PhiMoEForCausalLM'], 'num_local_experts': 9, 'rope_scaling': {'type': 'longrope', "
    "'short_factor': [1, 1, 1.5, 2, 2, 2, 2, 4], 'short_mscale': 1.25, 'original_max_position_embeddings': "
    "100}, " SMALL ", 'num_attention_heads': 6, 'intermediate_size': 40}";

static void multipliers(void **state)
{
    (void)state;
    cot_config c = config_accept(
        granite, "{'embedding_multiplier': 12, 'attention_multiplier': 0.25, 'residual_multiplier': 0.5, "
                 "'logits_scaling': 8}");
    assert_true(c.embedding_scale == 12 && c.softmax_scale == 0.25f && c.branch_scale == 0.5f &&
                c.logits_scale == 0.125f);
    cot_config_clear(&c);
    c = config_accept(qwen3,
                      "{'embedding_multiplier': 12, 'residual_multiplier': 0.5}"); // no fields of its own
    assert_true(c.embedding_scale == 1 && c.branch_scale == 1 && c.logits_scale == 1);
    cot_config_clear(&c);
    c = config_accept(afmoe, "{'mup_enabled': true}");
    assert_true(c.embedding_scale == sqrtf(96) && c.norms == COT_NORMS_BOTH && c.attention_gated);
    for (int l = 0; l < 4; l++)
        assert_true(c.layer[l].window == (l == 3 ? 0 : 20) && c.layer[l].unrotated == (l == 3));
    cot_config_clear(&c);
    config_refuse(granite, "{'logits_scaling': 0}", COT_MALFORMED,
                  "'logits_scaling' is 0, expected a number that is not 0");
    config_refuse(afmoe,
                  "{'layer_types': ['sliding_attention', 'full_attention', 'mamba', 'full_attention']}",
                  COT_UNSUPPORTED, "layer type 'mamba' is not supported");
    config_refuse(afmoe, "{'num_limited_groups': 2}", COT_UNSUPPORTED, "'num_limited_groups' other than 1");
}

/* "sk": a state, keys. Layers of either are numbered by themselves. */
static void expect_states(const char *base, const char *edit, const char *kinds)
{
    cot_config c = config_accept(base, edit);
    int64_t states = 0, keys = 0;
    for (int l = 0; l < 4; l++) {
        const bool is_state = kinds[l] == 's';
        if ((c.layer[l].mixer == COT_MIXER_DELTA) != is_state) fail_msg("%s, %s: layer %d", base, edit, l);
        assert_int_equal(c.layer[l].kept, is_state ? states++ : keys++);
    }
    assert_true(c.state_layers == states && c.key_layers == keys);
    cot_config_clear(&c);
}

static void states(void **state)
{
    (void)state;
    static const char *const both[] = {next, qwen35};
    for (int i = 0; i < 2; i++) {
        expect_states(both[i], "{}", "sssk");
        expect_states(both[i], "{'full_attention_interval': 3}", "ssks");
        expect_states(both[i], "{'full_attention_interval': 1}", "kkkk");
        expect_states(both[i],
                      "{'layer_types': ['full_attention', 'linear_attention', 'full_attention', "
                      "'linear_attention'], 'full_attention_interval': 4}",
                      "ksks");
        config_refuse(both[i], "{'full_attention_interval': 5}", COT_UNSUPPORTED,
                      "none of 4 layers is of type full_attention");
        config_refuse(both[i], "{'full_attention_interval': 0}", COT_MALFORMED,
                      "'full_attention_interval' is 0");
        config_refuse(
            both[i], "{'layer_types': ['full_attention', 'mamba', 'full_attention', 'linear_attention']}",
            COT_UNSUPPORTED, "layer type 'mamba' is not supported (full_attention and linear_attention are)");
        config_refuse(both[i], "{'layer_types': ['full_attention', 'linear_attention']}", COT_MALFORMED,
                      "'layer_types' has 2 entries, expected one for each of 4 layers");
        config_refuse(both[i], "{'linear_num_value_heads': 5}", COT_MALFORMED,
                      "'linear_num_value_heads' is 5, expected a multiple of linear_num_key_heads, 2");
        config_refuse(both[i], "{'attention_bias': true}", COT_UNSUPPORTED,
                      "'attention_bias' other than false");
        cot_config c = config_accept(both[i], "{}");
        assert_true(c.zero_centred && c.attention_gated && c.gates_in_queries && c.shared_gated);
        assert_true(c.gate.normalise && c.delta.taps == 4 && c.delta.by_head == !i && c.rope_width == 4);
        assert_true(c.shared_intermediate == 512 && c.delta.key_dim == 12 && c.delta.value_dim == 10);
        cot_config_clear(&c);
        c = config_accept(both[i], "{'rope_parameters': {'rope_type': 'default', 'mrope_section': [1, 1, 1], "
                                   "'partial_rotary_factor': 0.5, 'rope_theta': 100}}");
        assert_int_equal(c.rope_width, 8);
        cot_config_clear(&c);
    }
    config_refuse(qwen35, "{'attn_output_gate': false}", COT_UNSUPPORTED,
                  "'attn_output_gate' other than true");
    cot_config c = config_accept(next, "{'norm_topk_prob': false}");
    assert_false(c.gate.normalise);
    cot_config_clear(&c);
}

static void rotations(void **state)
{
    (void)state;
    cot_config c = config_accept(phi, "{}");
    assert_true(c.max_context == 100 && c.rope_factor == 1.25f && c.layer_norm &&
                c.gate.score == COT_GATE_SPARSE_MIXER);
    assert_string_equal(c.context_field, "original_max_position_embeddings");
    assert_true(fabs((double)c.inverse_frequency[2] - pow(1e6, -4.0 / 16) / 1.5) < 1e-6);
    assert_true(c.gate.jitter == 0.01f && !c.gate.normalise && !c.head_bias);
    cot_config_clear(&c);
    config_refuse(phi,
                  "{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 2], "
                  "'original_max_position_embeddings': 100}}",
                  COT_MALFORMED, "'short_factor' has 2 numbers, expected 8");
    config_refuse(phi, "{'rope_scaling': {'type': 'longrope', 'original_max_position_embeddings': 100}}",
                  COT_MALFORMED, "'short_factor'");
    config_refuse(phi,
                  "{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1, 1, 0, 1, 1, 1, 1], "
                  "'original_max_position_embeddings': "
                  "100}}",
                  COT_MALFORMED, "'short_factor' has 0");
    static const char *const no_contexts[] = {"0.5", "100.7", "-1"};
    for (size_t i = 0; i < sizeof no_contexts / sizeof *no_contexts; i++) {
        char edit[80], words[120];
        snprintf(edit, sizeof edit, "{'original_max_position_embeddings': %s}", no_contexts[i]);
        snprintf(words, sizeof words, "'original_max_position_embeddings'%s is %s, expected a",
                 no_contexts[i][0] == '-' ? " of RoPE" : "", no_contexts[i]);
        config_refuse(phi, edit, COT_MALFORMED, words);
    }
    static const char *const names[] = {"PhiMoEForCausalLM", "PhimoeForCausalLM", "PhimoeModel"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char edit[80];
        snprintf(edit, sizeof edit, "{'architectures': ['%s']}", names[i]);
        c = config_accept(phi, edit);
        assert_string_equal(c.architecture, "PhiMoEForCausalLM");
        cot_config_clear(&c);
    }
    config_refuse(phi, "{'architectures': ['PhimoeForCausalLM2']}", COT_UNSUPPORTED, "unknown architecture");
    config_refuse(phi, "{'num_experts_per_tok': 3}", COT_UNSUPPORTED, "'num_experts_per_tok' other than 2");
    c = config_accept(hunyuan, "{'rope_scaling': {'type': 'dynamic', 'alpha': 1000, 'factor': 1}}");
    assert_true(fabs((double)c.inverse_frequency[1] * pow(1e4 * pow(1000, 16.0 / 14), 2.0 / 16) - 1) < 1e-5);
    assert_true(c.qk_norm == COT_QK_NORM_HEAD && c.gate.top_k == 3 && c.shared_intermediate == 24);
    cot_config_clear(&c);
    c = config_accept(hunyuan, "{'use_qk_norm': false, 'moe_intermediate_size': 'remove'}");
    assert_true(c.qk_norm == COT_QK_NORM_NONE && c.moe_intermediate == 40);
    cot_config_clear(&c);
    c = config_accept(hunyuan, "{'moe_intermediate_size': [32, 32, 32, 32], 'intermediate_size': 'all'}");
    assert_int_equal(c.moe_intermediate, 32);
    cot_config_clear(&c);
    config_refuse(hunyuan, "{'moe_intermediate_size': 'remove', 'intermediate_size': 'remove'}",
                  COT_MALFORMED, "'moe_intermediate_size' is missing");
    config_refuse(hunyuan, "{'moe_intermediate_size': 'remove', 'intermediate_size': 0}", COT_MALFORMED,
                  "'intermediate_size' is 0, expected a whole number from 1");
    config_refuse(hunyuan, "{'rope_scaling': {'type': 'dynamic', 'factor': 2}}", COT_UNSUPPORTED,
                  "RoPE type 'dynamic' without 'alpha' is not supported");
    config_refuse(phi, "{'rope_scaling': {'type': 'dynamic', 'factor': 2}}", COT_UNSUPPORTED,
                  "RoPE type 'dynamic' is not supported (default, linear, llama3, longrope and yarn are)");
    config_refuse(phi, "{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1, 1, 'a', 1, 1, 1, 1]}}",
                  COT_MALFORMED, "'short_factor' is \"a\", expected numbers alone");
    config_refuse(hunyuan, "{'moe_topk': [3, 3, 2, 3]}", COT_UNSUPPORTED,
                  "'moe_topk' is not the same in all layers");
    config_refuse(hunyuan, "{'moe_topk': [0, 0, 0, 0]}", COT_MALFORMED,
                  "'moe_topk' is a list of no whole numbers");
    static const char *const no_lists[] = {"[]", "[3]", "[3, 3, 3, 3, 3, 3, 3, 3, 3]"};
    for (size_t i = 0; i < sizeof no_lists / sizeof *no_lists; i++) {
        char edit[80];
        snprintf(edit, sizeof edit, "{'moe_topk': %s}", no_lists[i]);
        config_refuse(hunyuan, edit, COT_MALFORMED, "entries, expected one for each of 4 layers");
        snprintf(edit, sizeof edit, "{'attn_type_list': %s}", no_lists[i]);
        config_refuse(minimax, edit, COT_MALFORMED, "entries, expected one for each of 4 layers");
    }
    config_refuse(hunyuan, "{'use_cla': true}", COT_UNSUPPORTED, "'use_cla'");
    c = config_accept(mistral,
                      "{'rope_parameters': {" YARN ", 'rope_theta': 1e4, 'llama_4_scaling_beta': 0.4}}");
    assert_true(c.query_beta == 0.4 && c.query_tokens == 32);
    cot_config_clear(&c);
    c = config_accept(v3, "{'rope_parameters': {" YARN ", 'rope_theta': 1e4, 'llama_4_scaling_beta': 0.4}}");
    assert_true(c.query_beta == 0);
    cot_config_clear(&c);
    config_refuse(mistral, "{'rope_parameters': {'rope_type': 'default', 'llama_4_scaling_beta': 0.4}}",
                  COT_MALFORMED, "'llama_4_scaling_beta' needs original_max_position_embeddings");
    static const char *const no_betas[][2] = {{"'0.4'", "\"0.4\""}, {"true", "true"}, {"[]", "a list"}};
    for (size_t i = 0; i < sizeof no_betas / sizeof *no_betas; i++) {
        char edit[200], words[120];
        snprintf(edit, sizeof edit, "{'rope_parameters': {" YARN ", 'llama_4_scaling_beta': %s}}",
                 no_betas[i][0]);
        snprintf(words, sizeof words, "'llama_4_scaling_beta' is %s, expected a number", no_betas[i][1]);
        config_refuse(mistral, edit, COT_MALFORMED, words);
    }
}

/* The part of a head that is rotated. */
static void partial_rotation(void **state)
{
    (void)state;
    static const struct {
        const char *base, *edit;
        int64_t width; // of 16
    } cases[] = {
        {glm, "{}", 8},
        {glm, "{'partial_rotary_factor': 1}", 16},
        {glm, "{'partial_rotary_factor': 0.7}", 0}, // 11
        {glm, "{'partial_rotary_factor': 0.76}", 12},
        {glm, "{'partial_rotary_factor': 0.5, 'rope_parameters': {'partial_rotary_factor': 0.25}}", 4},
        {glm, "{'partial_rotary_factor': 0.1}", 0},
        {glm, "{'partial_rotary_factor': 1.5}", 0},
        {glm, "{'partial_rotary_factor': 0}", 0},
        {glm, "{'partial_rotary_factor': null}", 16},
        {glm, "{'rotary_dim': 6}", 8}, // no field of its own
        {minimax, "{}", 16},
        {minimax, "{'rotary_dim': null}", 16},
        {minimax, "{'partial_rotary_factor': 0.5}", 8},
        {minimax, "{'rotary_dim': 8, 'partial_rotary_factor': 0.5}", 8},
        {minimax, "{'rotary_dim': 8, 'rope_parameters': {'partial_rotary_factor': 0.5}}", 8},
        {minimax, "{'rotary_dim': 8, 'partial_rotary_factor': 0.8}", 0},
        {minimax, "{'rotary_dim': 16, 'rope_parameters': {'partial_rotary_factor': 0.5}}", 0},
        {minimax, "{'rotary_dim': 6}", 6},
        {minimax, "{'rotary_dim': 18}", 0},
        {minimax, "{'rotary_dim': 5}", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!cases[i].width) {
            config_refuse(cases[i].base, cases[i].edit, COT_MALFORMED,
                          strstr(cases[i].edit, "rotary_dim") ? "'rotary_dim'" : "'partial_rotary_factor'");
            continue;
        }
        cot_config c = config_accept(cases[i].base, cases[i].edit);
        assert_int_equal(c.rope_width, cases[i].width);
        assert_int_equal(c.head_dim, 16);
        cot_config_clear(&c);
    }
    cot_config c = config_accept(glm, "{'attention_bias': true}");
    assert_true(c.qkv_bias && !c.output_bias && c.qk_norm == COT_QK_NORM_NONE);
    cot_config_clear(&c);
    c = config_accept(mistral,
                      "{'rope_parameters': {" YARN ", 'partial_rotary_factor': 0.3333333333333333}}");
    assert_int_equal(c.rope_width, 64); // of 128 + 64
    cot_config_clear(&c);
    c = config_accept(mistral, "{'partial_rotary_factor': 1, 'rope_parameters': {" YARN "}}");
    assert_int_equal(c.rope_width, 64);
    cot_config_clear(&c);
    config_refuse(mistral, "{'rope_parameters': {" YARN ", 'partial_rotary_factor': 0.34}}", COT_UNSUPPORTED,
                  "'partial_rotary_factor' other than 1 is not supported");
    config_refuse(mistral, "{'partial_rotary_factor': '1'}", COT_MALFORMED,
                  "'partial_rotary_factor' is \"1\", expected a number");
    config_refuse(minimax, "{'attn_type_list': [1, 1, 0, 1]}", COT_UNSUPPORTED,
                  "'attn_type_list' other than 1");
    config_refuse(minimax, "{'sliding_window': 20}", COT_UNSUPPORTED, "'sliding_window' other than null");
    config_refuse(minimax, "{'qk_norm_type': 'per_head'}", COT_UNSUPPORTED, "'qk_norm_type'");
}

static const char flex[] = "{'architectures': ['FlexOlmoForCausalLM'], 'num_experts': 12, " NUMBERS "}";

/* What is meant where config.json says nothing: transformers 5.24's classes, each made of the numbers of a base alone. */
static void what_is_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *base, *edit;
        int64_t groups, group_limit;
        bool normalise;
        double scaling;
        int64_t shared; // experts
        double theta;
        const char *kinds; // of layers
        double norm_eps;
        bool tied;
    } cases[] = {
        {glm, "{}", 1, 1, true, 1, 1, 1e4, "dmmm", 1e-5, false},
        {flash, "{}", 1, 1, true, 1.8, 1, 1e4, "dmmm", 1e-5, false},
        {dots, "{'n_shared_experts': 2}", 1, 1, false, 1, 2, 1e4, "mmmm", 1e-6, false},
        {ernie, "{}", 1, 1, true, 1, 2, 5e5, "dmmm", 1e-5, true},
        {solar, "{}", 1, 1, true, 1, 1, 1e6, "mmmm", 1e-5, false},
        {hy, "{}", 1, 1, true, 2.826, 1, 11158840, "dmmm", 1e-5, false},
        {hunyuan, "{'num_shared_expert': 'remove'}", 1, 1, true, 1, 1, 1e4, "mmmm", 1e-5, false},
        {minimax, "{}", 1, 1, true, 1, 0, 5e6, "mmmm", 1e-6, false},
        {mistral, "{'rope_parameters': {}}", 1, 1, true, 1, 1, 1e4, "mmmm", 1e-6, false},
        {flex, "{}", 1, 1, false, 1, 0, 5e5, "mmmm", 1e-6, false},
        {granite, "{}", 1, 1, false, 1, 0, 1e4, "mmmm", 1e-6, false},
        {v32, "{}", 8, 4, true, 2.5, 1, 1e4, "dddm", 1e-6, false},
        {dsa, "{}", 1, 1, true, 2.5, 1, 1e4, "dddm", 1e-5, false},
        {phi, "{'rope_scaling': 'remove'}", 1, 1, false, 1, 0, 1e6, "mmmm", 1e-5, false},
        {afmoe, "{}", 1, 1, true, 1, 2, 1e4, "dmmm", 1e-5, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_config c = config_accept(cases[i].base, cases[i].edit);
        const double slope = pow(cases[i].theta, -2.0 / (double)c.rope_width);
        if (c.gate.groups != cases[i].groups || c.gate.group_limit != cases[i].group_limit ||
            c.gate.normalise != cases[i].normalise || c.gate.scaling != (float)cases[i].scaling ||
            c.shared_intermediate != cases[i].shared * c.moe_intermediate ||
            !(fabs((double)c.inverse_frequency[1] / slope - 1) < 1e-5) ||
            c.norm_eps != (float)cases[i].norm_eps || c.tied_embeddings != cases[i].tied)
            fail_msg(
                "%s: groups %lld of %lld, normalise %d, scaling %g, shared %lld, slope %g, eps %g, tied %d",
                cases[i].base, (long long)c.gate.group_limit, (long long)c.gate.groups, c.gate.normalise,
                (double)c.gate.scaling, (long long)c.shared_intermediate, (double)c.inverse_frequency[1],
                (double)c.norm_eps, c.tied_embeddings);
        cot_config_clear(&c);
        expect_layers(cases[i].base, cases[i].edit, cases[i].kinds);
    }
    /* Mistral 4's RoPE, and its queries. */
    static const char told[] =
        "{'rope_parameters': {'type': 'yarn', 'rope_theta': 1e4, 'factor': 128, "
        "'original_max_position_embeddings': 8192, 'beta_fast': 32, 'beta_slow': 1, 'mscale_all_dim': 1, "
        "'mscale': 1, 'llama_4_scaling_beta': 0.1}}";
    static const char *const untold[] = {"{}", "{'rope_parameters': null}"};
    for (size_t i = 0; i < sizeof untold / sizeof *untold; i++) {
        cot_config a = config_accept(mistral, told), b = config_accept(mistral, untold[i]);
        assert_true(b.query_beta == 0.1 && b.query_tokens == 8192 && b.max_context == 128 * 8192);
        assert_true(a.rope_factor == b.rope_factor && a.softmax_scale == b.softmax_scale);
        assert_true(b.softmax_scale > 0.15f); // 192^-0.5 (0.1 ln 128 + 1)^2
        assert_memory_equal(a.inverse_frequency, b.inverse_frequency, 32 * sizeof(float));
        cot_config_clear(&a), cot_config_clear(&b);
    }
}

/* What configurations of released models leave out, and that Ling 1, of the same model_type, is another. */
static void ling_2(void **state)
{
    (void)state;
    static const char ling[] = "{'architectures': ['BailingMoeV2ForCausalLM'], 'model_type': 'bailing_moe', "
                               "'num_experts': 16, " NUMBERS "}";
    cot_config c = config_accept(
        ling, "{'num_attention_heads': 8, 'partial_rotary_factor': 0.5, 'routed_scaling_factor': 2.5}");
    assert_int_equal(c.gate.groups, 8);
    assert_int_equal(c.gate.group_limit, 4);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.rope_width, 64);
    assert_int_equal(c.shared_intermediate, 24);
    assert_false(c.layer[0].moe);
    assert_true(c.layer[1].moe);
    cot_config_clear(&c);
    config_refuse(ling, "{'num_attention_heads': 8, 'use_qk_norm': false}", COT_UNSUPPORTED, "'use_qk_norm'");
    config_refuse(ling, "{'num_attention_heads': 8, 'norm_topk_prob': false}", COT_UNSUPPORTED,
                  "'norm_topk_prob'");
    config_refuse(ling, "{'architectures': ['BailingMoeForCausalLM']}", COT_UNSUPPORTED,
                  "unknown architecture 'BailingMoeForCausalLM'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ling_2),      cmocka_unit_test(layers),
                                       cmocka_unit_test(windows),     cmocka_unit_test(gates),
                                       cmocka_unit_test(fixed),       cmocka_unit_test(context_is_cut),
                                       cmocka_unit_test(nested),      cmocka_unit_test(partial_rotation),
                                       cmocka_unit_test(multipliers), cmocka_unit_test(rotations),
                                       cmocka_unit_test(states),      cmocka_unit_test(what_is_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
