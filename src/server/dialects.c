#include "server/dialects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "zq_look"
#define KEY "zq_key"
#define VALUE "zq value"
#define THOUGHT "zq thought"

static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"" NAME
                            "\", \"description\": \"looks\", \"parameters\": "
                            "{\"type\": \"object\", \"properties\": {\"" KEY
                            "\": {\"type\": \"string\", \"description\": \"where\"}}, "
                            "\"required\": [\"" KEY "\"]}}}]";

#define USER "{\"role\": \"user\", \"content\": \"hi\"}"
#define CALL                                                                                                 \
    "\"tool_calls\": [{\"id\": \"abcdef123\", \"type\": \"function\", \"function\": {\"name\": \"" NAME      \
    "\", \"arguments\": \"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\"}}]}"
#define ANSWER                                                                                               \
    "{\"role\": \"tool\", \"name\": \"" NAME "\", \"tool_call_id\": \"abcdef123\", \"content\": \"5\"}"
#define THINKS "\"reasoning_content\": \"" THOUGHT "\", "

/* A call that is answered or not, with content or without: a template may refuse any of these. */
static const char *const calls[] = {
    "[" USER ", {\"role\": \"assistant\", \"content\": \"\", " CALL ", " ANSWER "]",
    "[" USER ", {\"role\": \"assistant\", " CALL ", " ANSWER "]",
    "[" USER ", {\"role\": \"assistant\", \"content\": \"\", " CALL "]",
    "[" USER ", {\"role\": \"assistant\", " CALL "]",
};
/* Reasoning, which templates keep of the last answers alone, some before calls alone. */
static const char *const thoughts[] = {
    "[" USER ", {\"role\": \"assistant\", " THINKS "\"content\": \"yes\"}]",
    "[" USER ", {\"role\": \"assistant\", " THINKS "\"content\": \"\", " CALL ", " ANSWER "]",
    "[" USER ", {\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"" THOUGHT
    "\"}, {\"type\": \"text\", \"text\": \"yes\"}]}]",
    "[" USER "]", // and what begins the next answer
};
enum { THOUGHTS = sizeof thoughts / sizeof *thoughts };

/* A conversation as the template writes it; `switches`: variables that ask for reasoning. */
static cot_chat_text render(const cot_chat_template *chat, const char *messages, const char *with,
                            const char *switches, bool prompt)
{
    const cot_chat_options options = {.size = sizeof options,
                                      .openai = true,
                                      .add_generation_prompt = prompt,
                                      .chat_template_kwargs = switches};
    cot_chat_text text = {0};
    json_t *conversation = json_pack("{s:o?, s:o?}", "messages", json_loads(messages, 0, NULL), "tools",
                                     json_loads(with, 0, NULL));
    char *json = conversation ? json_dumps(conversation, JSON_COMPACT) : NULL;
    if (json) cot_chat_render(chat, &text, json, strlen(json), &options, NULL);
    free(json);
    json_decref(conversation);
    return text;
}

/* Whether the template knows a family's reasoning within content, of which it leaves it out. */
static bool drops_reasoning(const cot_chat_template *chat, const cot_dialect *d)
{
    bool drops = false;
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s++}, {s:s, s:s}]", "role", "user", "content", "hi",
                                 "role", "assistant", "content", THOUGHT, d->reasoning_end, "zq yes", "role",
                                 "user", "content", "hi");
    char *json = messages ? json_dumps(messages, JSON_COMPACT) : NULL;
    cot_chat_text text = {0};
    if (json) text = render(chat, json, tools, NULL, false);
    if (text.text)
        drops = memmem(text.text, text.bytes, "zq yes", 6) &&
                !memmem(text.text, text.bytes, THOUGHT, strlen(THOUGHT));
    cot_chat_text_free(&text);
    free(json);
    json_decref(messages);
    return drops;
}

cot_served_dialects cot_served_dialects_find(const cot_chat_template *chat)
{
    static const char thinks[] = "{\"enable_thinking\": true, \"thinking\": true}";
    cot_served_dialects found = {0};
    for (size_t i = 0; chat && i < sizeof calls / sizeof *calls && !found.calls; i++) {
        cot_chat_text text = render(chat, calls[i], tools, NULL, false);
        if (text.text) found.calls = cot_dialect_of_call(text.text, text.bytes, NAME, KEY, VALUE);
        cot_chat_text_free(&text);
    }
    for (size_t i = 0; chat && i < 2 * THOUGHTS && !found.reasoning; i++) {
        const bool is_prompt = i / 2 == THOUGHTS - 1;
        cot_chat_text text = render(chat, thoughts[i / 2], tools, i % 2 ? thinks : NULL, is_prompt);
        if (text.text)
            found.reasoning = cot_dialect_of_reasoning(text.text, text.bytes, is_prompt ? NULL : THOUGHT);
        cot_chat_text_free(&text);
    }
    for (const cot_dialect *d = cot_dialects; chat && d->name && !found.reasoning; d++)
        if (d->reasoning && drops_reasoning(chat, d)) found.reasoning = d;
    return found;
}

static bool has(const cot_dialect *d, bool reasoning)
{
    return reasoning ? d->reasoning || d->form == COT_DIALECT_HARMONY : d->form != COT_DIALECT_NONE;
}

bool cot_served_dialects_name(const cot_dialect **dialect, const char *name, bool reasoning)
{
    if (strcmp(name, "auto") == 0) return true;
    *dialect = strcmp(name, "none") == 0 ? NULL : cot_dialect_named(name);
    return *dialect ? has(*dialect, reasoning) : strcmp(name, "none") == 0;
}

void cot_served_dialects_list(char *names, size_t bytes, bool reasoning)
{
    size_t used = 0;
    *names = 0;
    for (const cot_dialect *d = cot_dialects; d->name && used < bytes; d++)
        if (has(d, reasoning))
            used += (size_t)snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", d->name);
}

bool cot_served_dialects_opens(const cot_dialect *reasoning, const cot_chat_text *prompt)
{
    size_t bytes = prompt->bytes;
    if (!reasoning || !reasoning->reasoning) return false;
    const size_t length = strlen(reasoning->reasoning);
    while (bytes && strchr(" \n\t\r", prompt->text[bytes - 1])) bytes--;
    return bytes >= length && memcmp(prompt->text + bytes - length, reasoning->reasoning, length) == 0 &&
           prompt->own[bytes - length] && prompt->own[bytes - 1];
}
