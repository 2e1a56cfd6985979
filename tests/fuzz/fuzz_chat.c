/* Any bytes are a chat template or a refusal; a template makes of any conversation text, valid UTF-8 of which each byte
 * is the template's own or not, or a failure in words, within its limits. The input is the template, a NUL, a list of
 * messages in JSON; without the NUL, or where that is no such list, the messages are a fixed list. */
#include "tokenizer/chat.h"
#include "tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char usual[] =
    "[{\"role\": \"user\", \"content\": \"a <b> \\u00e9\\n\"}, {\"role\": \"assistant\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"x\"}], \"thinking\": \"t\", "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"k\": [1, 2.5]}}}]}]";

static bool is_list_of_objects(const json_t *messages)
{
    bool good = json_array_size(messages) > 0;
    for (size_t i = 0; good && i < json_array_size(messages); i++)
        good = json_is_object(json_array_get(messages, i));
    return good;
}

static void check(const cot_chat_template *chat, const cot_chat_request *request)
{
    cot_chat_text text;
    cot_jinja_failure failure = {0};
    cot_error error = {0};
    if (cot_chat_render_request(chat, &text, request, &failure, &error) != COT_OK) {
        const bool told =
            failure.reason || request->openai; // whose arguments are read before the template runs
        if (text.text || !told || !error.message[0]) abort();
        return;
    }
    if (cot_utf8_check(text.text, text.bytes) < text.bytes) abort();
    for (size_t i = 0; i < text.bytes; i++)
        if (text.own[i] > 1) abort();
    cot_chat_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *template = (const char *)data, *end = bytes ? memchr(template, 0, bytes) : NULL;
    size_t template_bytes = end ? (size_t)(end - template) : bytes;
    struct tm now = {.tm_year = 125, .tm_mday = 1};
    cot_chat_template *chat;
    cot_error error;
    if (cot_chat_template_parse(&chat, template, template_bytes, "f", &error) != COT_OK) {
        if (chat || !error.message[0]) abort();
        return 0;
    }
    json_t *messages = end ? json_loadb(end + 1, bytes - template_bytes - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!is_list_of_objects(messages)) {
        json_decref(messages);
        messages = json_loads(usual, 0, NULL);
    }
    cot_chat_request request = {.messages = messages,
                                .tools = messages,
                                .now = &now,
                                .add_generation_prompt = true,
                                .limits = {1 << 18, 8 << 20}};
    check(chat, &request);
    request.openai = true;
    check(chat, &request);
    request.openai = false;
    request.strict = request.continue_final_message = true;
    request.tools = NULL;
    check(chat, &request);
    json_decref(messages);
    cot_chat_template_close(chat);
    return 0;
}
