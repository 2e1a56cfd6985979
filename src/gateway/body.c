#include "gateway/body.h"

#include <jansson.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Behind the string that begins here. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < bytes ? at + 1 : bytes;
}

/* Where the value that begins here ends: at the comma or brace that follows it. */
static size_t skip_value(const char *text, size_t bytes, size_t at)
{
    size_t depth = 0;
    while (at < bytes) {
        const char c = text[at];
        if (c == '"') {
            at = skip_string(text, bytes, at);
            continue;
        }
        if (!depth && (c == ',' || c == '}')) break;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        at++;
    }
    return at;
}

/* Whether the key, a string of JSON with its quotes, is one of the names: escapes are read. */
static bool is_named(const char *key, size_t bytes, const cot_body_member *members, size_t count)
{
    json_t *name = json_loadb(key, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool found = false;
    for (size_t i = 0; name && i < count; i++)
        found |= json_string_length(name) == strlen(members[i].name) &&
                 !memcmp(json_string_value(name), members[i].name, json_string_length(name));
    json_decref(name);
    return found;
}

static bool add_member(cot_buffer *out, bool *any, const cot_body_member *m)
{
    const bool good = (!*any || cot_buffer_text(out, ",")) && cot_buffer_text(out, "\"") &&
                      cot_buffer_text(out, m->name) && cot_buffer_text(out, "\":") &&
                      cot_buffer_text(out, m->value);
    *any = true;
    return good;
}

bool cot_body_set(cot_buffer *out, const char *text, size_t bytes, const cot_body_member *members,
                  size_t count)
{
    size_t at = 0;
    bool any = false, good = true;
    while (at < bytes && text[at] != '{') at++;
    good = cot_buffer_append(out, text, at < bytes ? ++at : bytes);
    while (good && at < bytes) {
        const size_t begin = at; // of a member, with the blanks before it
        while (at < bytes && (is_blank(text[at]) || text[at] == ',')) at++;
        if (at >= bytes || text[at] != '"') break; // the object's end
        const size_t key = at;
        at = skip_string(text, bytes, at);
        const bool named = is_named(text + key, at - key, members, count);
        at = skip_value(text, bytes, at);
        if (named) continue;
        // one that is now the first has no comma before it
        const size_t from = !any && text[begin] == ',' ? begin + 1 : begin;
        good = cot_buffer_append(out, text + from, at - from);
        any = true;
    }
    for (size_t i = 0; good && i < count; i++)
        if (members[i].value) good = add_member(out, &any, &members[i]);
    while (at < bytes && text[at] != '}') at++; // blanks
    return good && cot_buffer_append(out, text + at, bytes - at);
}
