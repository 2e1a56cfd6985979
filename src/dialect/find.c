/* A family by what a template writes. */
#include "dialect/dialect.h"

#include <string.h>

/* Where a text stands at or behind `from`; NULL: nowhere. */
static const char *find(const char *from, const char *end, const char *text)
{
    return text && from && from <= end ? memmem(from, (size_t)(end - from), text, strlen(text)) : NULL;
}

/* Moves behind white space, and behind a text that follows. */
static bool pass(const char **at, const char *end, const char *text)
{
    while (*at < end && strchr(" \n\t\r", **at)) ++*at;
    const size_t bytes = strlen(text);
    if ((size_t)(end - *at) < bytes || memcmp(*at, text, bytes) != 0) return false;
    *at += bytes;
    return true;
}

static bool writes_objects(const cot_dialect *d, const char *at, const char *end, const char *name,
                           const char *key, const char *value)
{
    if (!d->call_end) pass(&at, end, "["); // a list
    if (!pass(&at, end, "{")) return false;
    const bool named_first = pass(&at, end, "\"name\"");
    if (!named_first &&
        !(pass(&at, end, "\"type\"") && pass(&at, end, ":") && pass(&at, end, "\"function\"") &&
          pass(&at, end, ",") && pass(&at, end, "\"name\"")))
        return false;
    if (!pass(&at, end, ":") || !pass(&at, end, "\"") || !pass(&at, end, name) || !pass(&at, end, "\"") ||
        !pass(&at, end, ","))
        return false;
    // the parser takes both names; what the model writes is what the template does
    if (!pass(&at, end, d->is_bare ? "\"parameters\"" : "\"arguments\"") || !pass(&at, end, ":"))
        return false;
    if (!pass(&at, end, "{")) return false;
    const char *at_key = find(at, end, key), *at_value = find(at_key, end, value);
    return at_value && (!d->call_end || find(at_value, end, d->call_end));
}

static bool writes_headed(const cot_dialect *d, const char *at, const char *end, const char *name,
                          const char *key, const char *value)
{
    if (d->has_kind && (!pass(&at, end, "function") || !pass(&at, end, d->separator))) return false;
    if (d->has_address) {
        const char *separator = find(at, end, d->separator);
        if (!separator) return false;
        at = separator;
    } else if (!pass(&at, end, name))
        return false;
    if (d->has_kind ? !pass(&at, end, "```json") : !pass(&at, end, d->separator)) return false;
    if (!pass(&at, end, "{")) return false;
    const char *at_value = find(find(at, end, key), end, value);
    return at_value && (!d->call_end || find(at_value, end, d->call_end));
}

static bool writes_markup(const cot_dialect *d, const char *at, const char *end, const char *name,
                          const char *key, const char *value)
{
    if (d->function && !pass(&at, end, d->function)) return false;
    pass(&at, end, "\"");
    if (!pass(&at, end, name)) return false;
    const char *at_key = find(at, end, d->key);
    if (!at_key) return false;
    at_key += strlen(d->key);
    pass(&at_key, end, "\"");
    if (!pass(&at_key, end, key)) return false;
    const char *at_value = find(at_key, end, value);
    const char *value_end = at_value ? at_value + strlen(value) : NULL;
    if (!at_value || !pass(&value_end, end, d->value_end)) return false;
    if (d->has_lines != (at_value[-1] == '\n')) return false;
    return find(value_end, end, d->call_end);
}

static bool writes(const cot_dialect *d, const char *text, const char *end, const char *name, const char *key,
                   const char *value)
{
    if (d->form == COT_DIALECT_HARMONY) {
        const char *to = find(text, end, "to=functions."), *behind = to ? to + strlen("to=functions.") : NULL;
        return behind && pass(&behind, end, name) && find(find(behind, end, "<|message|>"), end, value);
    }
    if (d->form != COT_DIALECT_OBJECTS && d->form != COT_DIALECT_HEADED && d->form != COT_DIALECT_MARKUP)
        return false;
    for (const char *at = text; at; at++) {
        // the marker, or of calls that have none any object
        const char *marker = d->is_bare ? "{" : d->call;
        at = find(at, end, marker);
        if (!at) return false;
        const char *behind = d->is_bare ? at : at + strlen(marker);
        const bool found = d->form == COT_DIALECT_OBJECTS  ? writes_objects(d, behind, end, name, key, value)
                           : d->form == COT_DIALECT_HEADED ? writes_headed(d, behind, end, name, key, value)
                                                           : writes_markup(d, behind, end, name, key, value);
        if (found) return true;
    }
    return false;
}

const cot_dialect *cot_dialect_of_call(const char *text, size_t bytes, const char *name, const char *key,
                                       const char *value)
{
    const cot_dialect *found = NULL;
    for (const cot_dialect *d = cot_dialects; d->name; d++) {
        if (!writes(d, text, text + bytes, name, key, value)) continue;
        if (found) return NULL;
        found = d;
    }
    return found;
}

/* Whether the text has a family's reasoning: `thought` between the markers, or, of none, the marker at the text's end. */
static bool reasons(const cot_dialect *d, const char *text, const char *end, const char *thought)
{
    if (d->form == COT_DIALECT_HARMONY) {
        const char *message = find(find(text, end, "<|channel|>analysis"), end, "<|message|>");
        return thought && find(message, end, thought);
    }
    if (!d->reasoning) return false;
    if (thought) return find(find(find(text, end, d->reasoning), end, thought), end, d->reasoning_end);
    const size_t bytes = strlen(d->reasoning);
    while (end > text && strchr(" \n\t\r", end[-1])) end--;
    return (size_t)(end - text) >= bytes && memcmp(end - bytes, d->reasoning, bytes) == 0;
}

const cot_dialect *cot_dialect_of_reasoning(const char *text, size_t bytes, const char *thought)
{
    const cot_dialect *found = NULL;
    for (const cot_dialect *d = cot_dialects; d->name; d++)
        if (reasons(d, text, text + bytes, thought)) found = d; // those that share their markers are alike
    return found;
}
