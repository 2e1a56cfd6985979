/* What a GGUF file's metadata say of chats, in the words of tokenizer_config.json. */
#include "base/error.h"
#include "tokenizer/chat.h"

#include <stdio.h>
#include <string.h>

/* The string of token `id`; {NULL, 0} where there is none. */
static cot_gguf_string token_of(const cot_gguf *file, double id)
{
    const cot_gguf_pair *tokens = cot_gguf_find(file, "tokenizer.ggml.tokens");
    const uint8_t *at = NULL;
    cot_gguf_string s = {NULL, 0};
    if (!tokens || !tokens->array || tokens->type != COT_GGUF_STRING ||
        !(id >= 0 && id < (double)tokens->count))
        return s;
    for (size_t i = 0; i <= (size_t)id; i++) s = cot_gguf_next_string(tokens, &at);
    return s;
}

static void put_tokens(json_t *config, const cot_gguf *file)
{
    static const char *const tokens[][2] = {{"bos_token", "bos_token_id"},
                                            {"eos_token", "eos_token_id"},
                                            {"unk_token", "unknown_token_id"},
                                            {"pad_token", "padding_token_id"}};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s", tokens[i][1]);
        const cot_gguf_pair *pair = cot_gguf_find(file, key);
        if (!pair || pair->array || pair->type == COT_GGUF_STRING) continue;
        const cot_gguf_string s = token_of(file, cot_gguf_number(pair, 0));
        json_t *text = s.data ? json_stringn(s.data, s.bytes) : NULL;
        if (text) json_object_set_new(config, tokens[i][0], text);
    }
}

/* "tokenizer.chat_template", the default one, and "tokenizer.chat_template.NAME". */
static void put_templates(json_t *config, const cot_gguf *file)
{
    static const char key[] = "tokenizer.chat_template";
    json_t *templates = json_object();
    for (size_t i = 0; i < file->pair_count; i++) {
        const cot_gguf_pair *pair = &file->pairs[i];
        const char *rest = pair->key + strlen(key);
        if (strncmp(pair->key, key, strlen(key)) != 0 || (*rest && *rest != '.')) continue;
        if (pair->array || pair->type != COT_GGUF_STRING) continue;
        json_t *text = cot_gguf_json(pair);
        if (text) json_object_set_new(templates, *rest ? rest + 1 : "default", text);
    }
    json_object_set_new(config, "chat_template", templates);
}

cot_status cot_chat_gguf_config(json_t **config, const char *path, cot_error *error)
{
    cot_gguf file;
    *config = NULL;
    cot_status status = cot_gguf_open(&file, path, error);
    if (status != COT_OK) return status;
    if ((*config = json_object())) {
        put_tokens(*config, &file);
        put_templates(*config, &file);
    }
    cot_gguf_close(&file);
    return *config ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}
