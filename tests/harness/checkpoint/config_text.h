/* Configurations made for a test: a small one of each family, edited. */
#ifndef COT_TESTS_HARNESS_CHECKPOINT_CONFIG_TEXT_H
#define COT_TESTS_HARNESS_CHECKPOINT_CONFIG_TEXT_H
#include "coterie/model.h"
#include "checkpoint/config.h"

#include <jansson.h>

/* JSON with ' for ", so that it can be read in C; the caller's. Fails the test where it is none. */
json_t *config_json(const char *text);
/* The base with the edit's members instead of its own, malloc'd; a member "remove" goes. */
char *config_edited(const char *base, const char *edit);

/* What is read of an edited base, and of a generation_config.json or NULL; fails the test where it is refused. */
cot_config config_accept_with(const char *base, const char *edit, const char *generation);
cot_config config_accept(const char *base, const char *edit);

/* Fails the test unless a text, or an edited base, is refused with this status and a line that holds `words`. */
void config_refuse_text(const char *text, cot_status expected, const char *words);
void config_refuse(const char *base, const char *edit, cot_status expected, const char *words);

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

#define YARN "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32"

#endif
