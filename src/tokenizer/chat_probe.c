/* What a chat template wants the arguments of a tool call to be: found out by asking it. */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

#define KEY "zq_key"
#define VALUE "zq value"
#define OBJECT "{\"" KEY "\": \"" VALUE "\"}"
#define TEXT "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\""

#define USER "{\"role\": \"user\", \"content\": \"hi\"}"
#define CALLS(arguments)                                                                                     \
    "\"tool_calls\": [{\"id\": \"abcdef123\", \"type\": \"function\", \"function\": {\"name\": \"look\", "   \
    "\"arguments\": " arguments "}}]}"
#define ANSWER "{\"role\": \"tool\", \"name\": \"look\", \"tool_call_id\": \"abcdef123\", \"content\": \"5\"}"
#define CALLING(arguments) "{\"role\": \"assistant\", " CALLS(arguments)
#define SAYING(arguments) "{\"role\": \"assistant\", \"content\": \"\", " CALLS(arguments)

/* Conversations with the arguments as an object and as text: answered and not, with content and without, since a template
 * may refuse any of these. */
static const char *const conversations[][2] = {
    {"[" USER ", " SAYING(OBJECT) ", " ANSWER "]", "[" USER ", " SAYING(TEXT) ", " ANSWER "]"},
    {"[" USER ", " CALLING(OBJECT) ", " ANSWER "]", "[" USER ", " CALLING(TEXT) ", " ANSWER "]"},
    {"[" USER ", " SAYING(OBJECT) "]", "[" USER ", " SAYING(TEXT) "]"},
    {"[" USER ", " CALLING(OBJECT) "]", "[" USER ", " CALLING(TEXT) "]"},
};

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"look\", \"description\": \"looks\", "
    "\"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"key\": {\"type\": \"string\"}}, \"required\": [\"key\"]}}}]";

/* Special tokens, which a folder may lack and a request bring. */
static const char variables[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";

static cot_chat_text render(const cot_chat_template *chat, const char *conversation, const json_t *with)
{
    json_t *messages = json_loads(conversation, 0, NULL), *tokens = json_loads(variables, 0, NULL);
    const cot_chat_request request = {.messages = messages,
                                      .tools = with,
                                      .variables = {tokens, NULL},
                                      .limits = {.steps = (uint64_t)1 << 20, .bytes = (size_t)16 << 20}};
    cot_chat_text text = {0};
    if (messages) cot_chat_render_request(chat, &text, &request, NULL, NULL);
    json_decref(messages);
    json_decref(tokens);
    return text;
}

static bool shows(const cot_chat_text *text, const char *words)
{
    return text->text && memmem(text->text, text->bytes, words, strlen(words));
}

/* Text is wanted where it comes out as it went in, and an object does not come out, or as Python prints it, which no model
 * was trained on. A template may render such a call without it: one that fails on the object beside no content shows
 * nothing of it beside empty content. */
static bool wants_text(const cot_chat_template *chat, const json_t *with)
{
    bool wanted = false, known = false;
    for (size_t i = 0; i < sizeof conversations / sizeof *conversations && !known; i++) {
        cot_chat_text object = render(chat, conversations[i][0], with),
                      text = render(chat, conversations[i][1], with);
        const bool good = shows(&object, VALUE) && !shows(&object, "{'" KEY "': '" VALUE "'}");
        wanted = shows(&text, OBJECT) && !good;
        known = wanted || good;
        cot_chat_text_free(&object);
        cot_chat_text_free(&text);
    }
    return wanted;
}

void cot_chat_probe(cot_chat_template *chat)
{
    json_t *with = json_loads(tools, 0, NULL);
    if (chat->plain) chat->plain->wants_text = wants_text(chat, chat->tool_use ? NULL : with);
    if (chat->tool_use) chat->tool_use->wants_text = wants_text(chat, with);
    json_decref(with);
}
