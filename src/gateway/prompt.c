#include "gateway/prompt.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BODY_BYTES = 1 << 20 }; // milliseconds of the loop's time

static bool encode_text(const cot_gateway *g, const json_t *json, int32_t **ids, size_t *count)
{
    const json_t *prompt = json_object_get(json, "prompt"),
                 *add = json_object_get(json, "add_special_tokens");
    if (json_is_array(prompt)) prompt = json_array_get(prompt, 0);
    return json_is_string(prompt) &&
           cot_tokenizer_encode(g->options.tokenizer, ids, count, json_string_value(prompt),
                                json_string_length(prompt), !json_is_false(add), NULL) == COT_OK;
}

/* Variables of the template; NULL: none, or memory ran out. */
static char *write_variables(const json_t *json)
{
    const json_t *given = json_object_get(json, "chat_template_kwargs"),
                 *effort = json_object_get(json, "reasoning_effort");
    json_t *variables = json_is_object(given) ? json_copy((json_t *)given) : json_object();
    if (json_is_string(effort)) json_object_set(variables, "reasoning_effort", (json_t *)effort);
    char *text = json_object_size(variables) ? json_dumps(variables, 0) : NULL;
    json_decref(variables);
    return text;
}

static bool encode_chat(const cot_gateway *g, const json_t *json, int32_t **ids, size_t *count)
{
    static const char *const members[] = {"messages", "tools", "documents"};
    json_t *conversation = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *value = json_object_get(json, members[i]);
        if (json_array_size(value)) json_object_set(conversation, members[i], value);
    }
    char *text = json_dumps(conversation, JSON_COMPACT), *variables = write_variables(json);
    json_decref(conversation);
    const bool goes_on = json_is_true(json_object_get(json, "continue_final_message"));
    const json_t *begins = json_object_get(json, "add_generation_prompt");
    const cot_chat_options options = {.size = sizeof options,
                                      .add_generation_prompt = begins ? json_is_true(begins) : !goes_on,
                                      .continue_final_message = goes_on,
                                      .openai = true,
                                      .chat_template_kwargs = variables};
    cot_chat_text rendered = {0};
    const bool good =
        text && cot_chat_render(g->options.chat, &rendered, text, strlen(text), &options, NULL) == COT_OK &&
        cot_chat_encode(g->options.tokenizer, ids, count, &rendered, NULL) == COT_OK;
    cot_chat_text_free(&rendered);
    free(variables);
    free(text);
    return good;
}

bool cot_prompt_encode(const cot_gateway *g, const json_t *json, bool chat, size_t body_bytes, int32_t **ids,
                       size_t *count)
{
    *ids = NULL;
    *count = 0;
    if (!g->options.tokenizer || (chat && !g->options.chat) || body_bytes > MOST_BODY_BYTES) return false;
    return chat ? encode_chat(g, json, ids, count) : encode_text(g, json, ids, count);
}
