/* What config.json may not say: each thing is refused by name. */
#include "base/rng.h"
#include "harness/cmocka.h"
#include "harness/checkpoint/config_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "harness/seed.h"

#include <time.h>

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
        {qwen3, "{'quantization_config': {'quant_method': 'hqq'}}", COT_UNSUPPORTED,
         "quantisation 'hqq' is not supported (fp8, mxfp4, gptq, awq, auto-round, compressed-tensors and "
         "modelopt "
         "are)"},
#define AUTO_ROUND(text)                                                                                     \
    "{'quantization_config': {'quant_method': 'auto-round', 'bits': 4, 'group_size': 64, " text "}}"
        {qwen3, AUTO_ROUND("'packing_format': 'auto_round:auto_awq'"), COT_UNSUPPORTED,
         "auto-round packing_format 'auto_round:auto_awq' is not supported (auto_round:auto_gptq is)"},
        {qwen3, AUTO_ROUND("'data_type': 'mx_fp'"), COT_UNSUPPORTED, "auto-round data_type 'mx_fp'"},
        {qwen3, AUTO_ROUND("'extra_config': {'head': {'bits': 16}, 'up': {'bits': 8}}"), COT_UNSUPPORTED,
         "auto-round with bits of its own for some modules ('extra_config' says 'up')"},
        {qwen3, AUTO_ROUND("'extra_config': [1]"), COT_MALFORMED,
         "'extra_config' is a list, expected an object"},
        {qwen3, "{'quantization_config': {'quant_method': 'gptq', 'bits': 3}}", COT_UNSUPPORTED,
         "weights of 3 bits"},
        {qwen3, "{'quantization_config': {'quant_method': 'gptq', 'bits': 4, 'checkpoint_format': 'marlin'}}",
         COT_UNSUPPORTED, "gptq checkpoint_format 'marlin'"},
        {qwen3, "{'quantization_config': {'quant_method': 'gptq', 'bits': 4, 'format': 'marlin'}}",
         COT_UNSUPPORTED, "gptq format 'marlin'"},
#define DYNAMIC(text)                                                                                        \
    "{'quantization_config': {'quant_method': 'gptq', 'bits': 4, 'group_size': -1, 'dynamic': " text "}}"
        {qwen3, DYNAMIC("{'-:x': {}, '+:.*down': {'bits': 8}}"), COT_UNSUPPORTED,
         "gptq with bits of its own for some modules ('dynamic' says '+:.*down') is not supported"},
        {qwen3, DYNAMIC("{'down': {'group_size': 64}, '-:x': {}}"), COT_UNSUPPORTED,
         "gptq with group_size of its own"},
        {qwen3, DYNAMIC("{'down': {'sym': false}}"), COT_UNSUPPORTED, "gptq with sym of its own"},
        {qwen3, DYNAMIC("{'down': {'bits': '4'}}"), COT_MALFORMED, "'bits' is \"4\""},
        {qwen3, DYNAMIC("['down']"), COT_MALFORMED, "'dynamic' is a list, expected an object"},
        {qwen3, "{'quantization_config': {'quant_method': 'gptq', 'bits': 4.0}}", COT_MALFORMED,
         "'bits' is 4.0, expected a whole number"},
        {qwen3, "{'quantization_config': {'quant_method': 'gptq', 'sym': 0}}", COT_MALFORMED, "'sym' is 0"},
        {qwen3, "{'quantization_config': {'quant_method': 'awq', 'bits': 4, 'format': 'gemv_fast'}}",
         COT_UNSUPPORTED, "awq format 'gemv_fast'"},
        {qwen3, "{'quantization_config': {'quant_method': 'awq', 'bits': 4, 'version': 'gemv'}}",
         COT_UNSUPPORTED, "awq version 'gemv'"},
        {qwen3, "{'quantization_config': {'quant_method': 'awq', 'bits': 8}}", COT_UNSUPPORTED,
         "awq with 8 bits"},
        {qwen3, "{'quantization_config': {'quant_method': 'awq', 'bits': 4, 'zero_point': false}}",
         COT_UNSUPPORTED, "awq without zero points"},
        {qwen3, "{'quantization_config': {'quant_method': 'compressed-tensors', 'format': 'marlin-24'}}",
         COT_UNSUPPORTED, "compressed-tensors format 'marlin-24'"},
        {qwen3,
         "{'quantization_config': {'quant_method': 'compressed-tensors', 'config_groups': {'group_0': "
         "{'format': 'marlin-24'}}}}",
         COT_UNSUPPORTED, "compressed-tensors format 'marlin-24'"},
#define GROUP(text)                                                                                          \
    "{'quantization_config': {'quant_method': 'compressed-tensors', 'config_groups': {'group_0': " text "}}" \
    "}"
        {qwen3, GROUP("{'weights': {'num_bits': 3}}"), COT_UNSUPPORTED, "weights of 3 bits"},
        {qwen3, GROUP("{'weights': {'type': 'complex'}}"), COT_UNSUPPORTED, "type 'complex'"},
        {qwen3, GROUP("{'weights': {'strategy': 'token'}}"), COT_UNSUPPORTED, "strategy 'token'"},
        {qwen3, GROUP("{'weights': {'strategy': 'group'}}"), COT_MALFORMED, "lacks 'group_size'"},
        {qwen3, GROUP("{'weights': {'strategy': 'block', 'block_structure': '16'}}"), COT_MALFORMED,
         "'block_structure' is \"16\""},
        {qwen3, GROUP("{'weights': {'strategy': 'block', 'block_structure': [16, 0]}}"), COT_MALFORMED,
         "'block_structure' is a list"},
        {qwen3,
         GROUP("{'weights': {'strategy': 'block', 'block_structure': [16, 16]}}, 'b': {'weights': "
               "{'strategy': 'block', 'block_structure': [16, 32]}}"),
         COT_UNSUPPORTED, "'block_structure' of two sizes"},
        {qwen3, GROUP("{'weights': {}, 'targets': 'Linear'}"), COT_MALFORMED, "'targets' is \"Linear\""},
        {qwen3, GROUP("{'weights': {}, 'targets': [7]}"), COT_MALFORMED, "'targets' is 7"},
        {qwen3, GROUP("{'weights': {}, 'targets': ['re:a(']}"), COT_MALFORMED,
         "'targets' has the pattern 'a('"},
        {qwen3,
         "{'quantization_config': {'quant_method': 'compressed-tensors', 'sparsity_config': {'format': "
         "'sparse-24-bitmask'}}}",
         COT_UNSUPPORTED, "sparsity 'sparse-24-bitmask'"},
        {qwen3, "{'quantization_config': {'quant_method': 'mxfp4'}}", COT_UNSUPPORTED,
         "quantisation 'mxfp4'"},
        {oss, "{'quantization_config': {'quant_method': 'gptq'}}", COT_UNSUPPORTED, "quantisation 'gptq'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}}", COT_UNSUPPORTED,
         "fp8 format 'e5m2'"},
        {qwen3, "{'quantization_config': {'quant_method': 'fp8', 'activation_scheme': 'token'}}",
         COT_UNSUPPORTED, "'token'"},
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
        {mixtral, "{'hidden_size': 96.0}", COT_MALFORMED, "'hidden_size' is 96.0, expected a whole number"},
        {mixtral, "{'hidden_size': 0.1}", COT_MALFORMED, "'hidden_size' is 0.1, expected"},
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
        config_refuse(cases[i].base, cases[i].edit, cases[i].status, cases[i].words);
    config_refuse_text("", COT_MALFORMED, "not valid JSON");
    config_refuse_text("{\"architectures\": [", COT_MALFORMED, "not valid JSON");
    config_refuse_text("\xef\xbb\xbf{}", COT_MALFORMED, "it begins with a byte-order mark");
    config_refuse_text("\xef\xbb", COT_MALFORMED, "not valid JSON: line 1: ");
    config_refuse_text("[]", COT_MALFORMED, "not a JSON object");
    config_refuse_text("{\"hidden_size\": 1, \"hidden_size\": 2}", COT_MALFORMED, "not valid JSON");
    // an integer beyond 64 bits matters where it is asked for
    config_refuse_text("{\"unasked\": 1000000000000000019884624838656}", COT_MALFORMED,
                       "neither 'architectures' nor");
    config_refuse_text("{\"architectures\": [\"OlmoeForCausalLM\"], \"hidden_size\": 99999999999999999999}",
                       COT_MALFORMED, "'hidden_size' is 1e20, expected a whole number");
    config_refuse_text("{\"architectures\": [\"a\\nb\"]}", COT_UNSUPPORTED, "'a?b'");
    config_refuse_text("{\"a\": [1,\nInfinity]}", COT_MALFORMED,
                       "line 2 has Infinity, which is no number of JSON");
    config_refuse_text("{\"a\": -Infinity, \"b\": 1}", COT_MALFORMED,
                       "line 1 has -Infinity, which is no number of JSON");
    config_refuse_text("{\n\n\"a\": NaN}", COT_MALFORMED, "line 3 has NaN, which is no number of JSON");
    config_refuse_text("{\"a\": NaN", COT_MALFORMED, "line 1 has NaN");
    config_refuse_text("{\"NaN\": x}", COT_MALFORMED, "invalid token near 'x'");
    config_refuse_text("[\"NaN", COT_MALFORMED, "not valid JSON: line 1: ");
    config_refuse_text("{\"Infinity\": 1, \"NaN\": \"-Infinity\"}", COT_MALFORMED,
                       "neither 'architectures' nor");
    char deep[5000];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    config_refuse_text(deep, COT_MALFORMED, "not valid JSON");
}

/* What lies just outside a number's range is refused, and the range is told. */
static void ranges(void **state)
{
    (void)state;
    static const struct {
        const char *base, *name;
        int64_t least, most;
    } cases[] = {
        {mixtral, "vocab_size", 1, INT32_MAX},
        {mixtral, "hidden_size", 1, 1 << 24},
        {mixtral, "num_hidden_layers", 1, 1 << 16},
        {mixtral, "num_attention_heads", 1, 1 << 16},
        {mixtral, "num_key_value_heads", 1, 1 << 16},
        {mixtral, "head_dim", 2, 1 << 16},
        {mixtral, "max_position_embeddings", 1, INT32_MAX},
        {mixtral, "num_local_experts", 1, UINT16_MAX},
        {mixtral, "num_experts_per_tok", 1, 1 << 16},
        {mixtral, "intermediate_size", 1, 1 << 24},
        {qwen2, "intermediate_size", 1, 1 << 24},
        {qwen2, "shared_expert_intermediate_size", 0, 1 << 24},
        {v3, "n_shared_experts", 0, 1 << 10},
        {v3, "first_k_dense_replace", 0, INT32_MAX},
        {qwen2, "decoder_sparse_step", 1, INT32_MAX},
        {qwen2, "max_window_layers", 0, INT32_MAX},
        {v3, "q_lora_rank", 1, 1 << 24},
        {v3, "kv_lora_rank", 1, 1 << 24},
        {v3, "qk_nope_head_dim", 1, 1 << 16},
        {v3, "qk_rope_head_dim", 2, 1 << 16},
        {v3, "v_head_dim", 1, 1 << 16},
        {v3, "n_group", 1, 1 << 16},
        {v3, "topk_group", 1, 1 << 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t outside[] = {cases[i].least - 1, cases[i].most + 1};
        for (int end = 0; end < 2; end++) {
            char edit[96], words[160];
            snprintf(edit, sizeof edit, "{'%s': %lld}", cases[i].name, (long long)outside[end]);
            snprintf(words, sizeof words, "'%s' is %lld, expected a whole number from %lld to %lld",
                     cases[i].name, (long long)outside[end], (long long)cases[i].least,
                     (long long)cases[i].most);
            config_refuse(cases[i].base, edit, COT_MALFORMED, words);
        }
    }
}

/* Whatever is changed in a good file, the answer is yes or one clear line. */
static void mutations(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), draws = 0;
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
        json_t *json = config_json(bases[cot_random_bits(seed, 1, draws++) % BASES]);
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
        cmocka_unit_test(refusals),
        cmocka_unit_test(ranges),
        cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
