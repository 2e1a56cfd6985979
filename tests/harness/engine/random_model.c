#include "harness/engine/random_model.h"

#include "harness/engine/steps.h"

#include <stdio.h>

cot_engine *open_random_of(int vocab, const char *eos, const struct setting *s)
{
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"vocab_size\": %d,"
        " \"hidden_size\": 48, \"intermediate_size\": 64, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 16, \"num_experts\": 7,"
        " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"norm_topk_prob\": true,"
        " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"attention_bias\": false,"
        " \"hidden_act\": \"silu\", \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-6,"
        " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"eos_token_id\": %s}",
        vocab, CONTEXT, eos);
    cot_engine_options options = options_of(s);
    return must_open_random(config, WEIGHTS_SEED, &options);
}

cot_engine *open_random(const char *eos, const struct setting *s)
{
    return open_random_of(VOCAB, eos, s);
}
