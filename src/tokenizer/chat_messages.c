/* A conversation as a template sees it. */
#include "tokenizer/chat.h"

#include <string.h>

typedef cot_jinja_value value;

static value list_value(cot_jinja_run *run, const json_t *json, bool own)
{
    value out = cot_jinja_sequence_new(run, COT_JINJA_LIST, json_array_size(json));
    for (size_t i = 0; i < out.sequence->count; i++)
        out.sequence->items[i] = cot_chat_value(run, json_array_get(json, i), own);
    return out;
}

static value object_value(cot_jinja_run *run, const json_t *json, bool own)
{
    const char *key;
    json_t *item;
    value out = cot_jinja_map_new(run, json_object_size(json));
    json_object_foreach((json_t *)(uintptr_t)json, key, item) cot_jinja_map_append(
        run, out.map, cot_jinja_string_new(run, key, strlen(key), own), cot_chat_value(run, item, own));
    return out;
}

value cot_chat_value(cot_jinja_run *run, const json_t *json, bool own)
{
    value out = cot_jinja_none();
    if (!json) return out;
    if (run->depth == COT_JINJA_MOST_DEPTH)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "the conversation nests deeper than %d", COT_JINJA_MOST_DEPTH);
    cot_jinja_enter(run);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        out = object_value(run, json, own);
        break;
    case JSON_ARRAY:
        out = list_value(run, json, own);
        break;
    case JSON_STRING:
        out = cot_jinja_string_new(run, json_string_value(json), json_string_length(json), own);
        break;
    case JSON_INTEGER:
        out = cot_jinja_integer(json_integer_value(json));
        break;
    case JSON_REAL:
        out = cot_jinja_real(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        out = cot_jinja_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    cot_jinja_leave(run);
    return out;
}

/* Roles of which templates make control tokens, as in '<|' + message.role + '|>': these words may be part of one. No
 * other role may, since whoever writes the conversation chooses it. */
static bool is_known_role(const json_t *role)
{
    static const char *const known[] = {"assistant",   "developer", "function", "ipython",
                                        "observation", "system",    "tool",     "user"};
    const char *text = json_string_value(role);
    if (!text || strlen(text) != json_string_length(role))
        return false; // text behind a NUL would be part of it
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(text, known[i])) return true;
    return false;
}

static value joined_parts(cot_jinja_run *run, const json_t *parts)
{
    cot_jinja_builder b = {.run = run};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (i) cot_jinja_add(&b, "\n", 1, false);
        cot_jinja_add(&b, json_string_value(text), json_string_length(text), false);
    }
    return cot_jinja_built(&b, false);
}

/* The first of the names that a reasoning text has goes to the two that templates ask for. */
static void alias_reasoning(cot_jinja_run *run, cot_jinja_map *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    value text = {0};
    for (int i = 0; i < 3 && text.type <= COT_JINJA_NONE; i++)
        text = cot_jinja_map_find(run, message, names[i]);
    if (text.type <= COT_JINJA_NONE) return;
    cot_jinja_map_put(run, message, cot_jinja_text(run, names[0]), text);
    if (cot_jinja_map_find(run, message, names[1]).type <= COT_JINJA_NONE)
        cot_jinja_map_put(run, message, cot_jinja_text(run, names[1]), text);
}

bool cot_chat_has_content(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    return content && !json_is_null(content);
}

static value message_value(cot_jinja_run *run, const json_t *json, cot_chat_no_content without, bool joined,
                           bool *read)
{
    const char *key;
    json_t *item;
    value out = cot_jinja_map_new(run, json_object_size(json) + 2);
    json_object_foreach((json_t *)(uintptr_t)json, key, item)
    {
        value v;
        if (json_is_null(item)) continue;
        if (joined && !strcmp(key, "content"))
            v = joined_parts(run, item);
        else
            v = cot_chat_value(run, item, !strcmp(key, "role") && is_known_role(item));
        if (v.type == COT_JINJA_SEQUENCE && !strcmp(key, "content"))
            for (size_t i = 0; i < v.sequence->count; i++)
                if (v.sequence->items[i].type == COT_JINJA_MAP) v.sequence->items[i].map->read = read;
        cot_jinja_map_append(run, out.map, cot_jinja_string_new(run, key, strlen(key), false), v);
    }
    if (without != COT_CHAT_UNDEFINED && !cot_chat_has_content(json))
        cot_jinja_map_put(run, out.map, cot_jinja_text(run, "content"),
                          without == COT_CHAT_EMPTY ? cot_jinja_text(run, "") : cot_jinja_none());
    alias_reasoning(run, out.map);
    return out;
}

value cot_chat_messages(cot_jinja_run *run, const json_t *messages, cot_chat_no_content without,
                        const bool *joined, bool *read)
{
    value out = cot_jinja_sequence_new(run, COT_JINJA_LIST, json_array_size(messages));
    for (size_t i = 0; i < out.sequence->count; i++)
        out.sequence->items[i] =
            message_value(run, json_array_get(messages, i), without, joined[i], read + i);
    return out;
}

/* transformers' own: a template that trims the message drops the space at its end. */
static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* `*text` with the tag behind it; the text as it was. */
static const cot_jinja_string *add_tag(cot_jinja_run *run, value *text)
{
    const cot_jinja_string *before = text->string;
    *text = cot_jinja_joined(run, before, cot_jinja_string_new(run, tag, sizeof tag - 1, false).string);
    return before;
}

const cot_jinja_string *cot_chat_tag_last(cot_jinja_run *run, value messages)
{
    const cot_jinja_sequence *list = messages.sequence;
    cot_jinja_map *message = list->count ? list->items[list->count - 1].map : NULL;
    for (size_t i = 0; message && i < message->count; i++) {
        if (!cot_jinja_string_is(message->entries[i].key.string, "content")) continue;
        value *content = &message->entries[i].value;
        if (content->type == COT_JINJA_STRING) return add_tag(run, content);
        if (content->type != COT_JINJA_SEQUENCE) break;
        for (size_t k = content->sequence->count; k--;) { // the last part with a text
            value part = content->sequence->items[k];
            for (size_t e = 0; part.type == COT_JINJA_MAP && e < part.map->count; e++)
                if (cot_jinja_string_is(part.map->entries[e].key.string, "text") &&
                    part.map->entries[e].value.type == COT_JINJA_STRING)
                    return add_tag(run, &part.map->entries[e].value);
        }
    }
    cot_jinja_fail(run, COT_JINJA_PYTHON, "the last message has no text to continue");
}

void cot_chat_cut(cot_jinja_run *run, cot_jinja_builder *text, const cot_jinja_string *message)
{
    const cot_jinja_string whole = {text->data, text->own, text->bytes, false, NULL};
    const cot_jinja_string *spaced = cot_jinja_text(run, tag).string;
    const cot_jinja_string *trimmed = cot_jinja_strip(run, spaced, NULL, true, true).string;
    const cot_jinja_string *wanted = cot_jinja_strip(run, message, NULL, true, true).string;
    size_t at = cot_jinja_find_last(&whole, trimmed, 0, whole.bytes);
    if (at == SIZE_MAX || cot_jinja_find(&whole, wanted, 0, whole.bytes) == SIZE_MAX)
        cot_jinja_fail(run, COT_JINJA_PYTHON,
                       "the last message, which is to be continued, is not in what the chat template makes");
    bool kept = cot_jinja_find(&whole, spaced, at, whole.bytes) == at;
    const cot_jinja_string before = {text->data, text->own, at, false, NULL};
    text->bytes = kept ? at : cot_jinja_strip(run, &before, NULL, false, true).string->bytes;
}
