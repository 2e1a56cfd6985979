/* Configurations made for a test: a small one of each family, edited. */
#ifndef TEST_MODEL_CONFIG_TEXT_H
#define TEST_MODEL_CONFIG_TEXT_H
#include "base/rng.h"
#include "coterie/model.h"
#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* JSON with ' for ", so that it can be read in C. */
static inline json_t *parse(const char *text)
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
static inline char *edited(const char *base, const char *edit)
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

static inline cot_config accept_with(const char *base, const char *edit, const char *generation)
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

static inline cot_config accept(const char *base, const char *edit)
{
    return accept_with(base, edit, NULL);
}

static inline void refuse_text(const char *text, cot_status expected, const char *words)
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

static inline void refuse(const char *base, const char *edit, cot_status expected, const char *words)
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

#define YARN "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32"

#endif
