#include "harness/engine/small_models.h"

const char small_qwen[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"vocab_size\": 67,"
    " \"hidden_size\": 48, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 16, \"num_experts\": 7, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 24, \"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
    "\"mlp_only_layers\": [],"
    " \"attention_bias\": false, \"hidden_act\": \"silu\", \"max_position_embeddings\": 320, "
    "\"rms_norm_eps\": 1e-6,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"eos_token_id\": 2}";
const char small_sliding[] = "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", "
                             "\"vocab_size\": 67, \"hidden_size\": 48,"
                             " \"intermediate_size\": 40, \"num_hidden_layers\": 2, "
                             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
                             " \"num_local_experts\": 6, \"num_experts_per_tok\": 2, "
                             "\"max_position_embeddings\": 320, \"rms_norm_eps\": 1e-5,"
                             " \"rope_theta\": 10000.0, \"sliding_window\": 50, \"hidden_act\": \"silu\", "
                             "\"tie_word_embeddings\": false,"
                             " \"eos_token_id\": 2}";
const char small_latent[] =
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", \"vocab_size\": 67,"
    " \"hidden_size\": 48, \"intermediate_size\": 56, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 4, \"kv_lora_rank\": 24, \"q_lora_rank\": null, \"qk_nope_head_dim\": 12,"
    " \"qk_rope_head_dim\": 8, \"v_head_dim\": 12, \"moe_intermediate_size\": 24, \"first_k_dense_replace\": "
    "1,"
    " \"moe_layer_freq\": 1, \"max_position_embeddings\": 320, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000,"
    " \"attention_bias\": false, \"tie_word_embeddings\": false, \"n_routed_experts\": 8, "
    "\"num_experts_per_tok\": 2,"
    " \"n_shared_experts\": 1, \"topk_method\": \"greedy\", \"scoring_func\": \"softmax\", "
    "\"norm_topk_prob\": false,"
    " \"routed_scaling_factor\": 1.0, \"n_group\": 1, \"topk_group\": 1, \"hidden_act\": \"silu\", "
    "\"eos_token_id\": 2}";
const char small_states[] =
    "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"vocab_size\": 67, \"hidden_size\": 48,"
    " \"num_hidden_layers\": 3, \"full_attention_interval\": 3, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 16, \"num_experts\": 6, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 24, \"shared_expert_intermediate_size\": 20, \"linear_num_key_heads\": 2,"
    " \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 12, \"linear_value_head_dim\": 10,"
    " \"linear_conv_kernel_dim\": 4, \"max_position_embeddings\": 320, \"eos_token_id\": 2}";
