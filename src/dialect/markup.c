/* Calls as tags around a name, keys and values, whose types the tool's schema says. */
#include "dialect/parser.h"

#include <string.h>

enum {
    OPEN = COT_DIALECT_IN_CALL, // a function's tag is about to come, or the end
    IN_NAME,
    BODY, // a key is about to come, or an end
    IN_KEY,
    BEFORE_VALUE,
    VALUE_BEGINS,
    IN_VALUE,
};

enum { AHEAD_BYTES = 1 << 14 }; // that are looked through for the end tag of a value

static cot_dialect_look end_call(cot_dialect_parser *p, size_t at, bool loosely)
{
    p->at = at;
    p->ends_loosely = loosely;
    cot_dialect_end_call(p);
    return COT_DIALECT_YES;
}

/* ---- names and keys ---- */

/* A name or key up to its end, in quotes or not; quotes, and what else stands in the tag, are left out. YES: it is in `to`, and the text
 * goes on at *next. NO: it is none. */
static cot_dialect_look take_word(cot_dialect_parser *p, cot_buffer *to, const cot_dialect_marker *end,
                                  size_t *next)
{
    size_t at = p->at;
    for (; at < p->in.bytes; at++) {
        const cot_dialect_look look = cot_dialect_match(p, end, at, next);
        if (look == COT_DIALECT_MORE) return look;
        if (look == COT_DIALECT_YES) break;
        if (at - p->at > COT_DIALECT_NAME_BYTES || (unsigned char)p->in.data[at] >= COT_DIALECT_END ||
            (*end->text == '>' && strchr("<\n", p->in.data[at])))
            return COT_DIALECT_NO;
    }
    if (at == p->in.bytes) return COT_DIALECT_MORE;
    const char *word = p->in.data + p->at;
    size_t bytes = at - p->at;
    const char quote = bytes ? *word : 0;
    if (*end->text == '>' && (quote == '"' || quote == '\'')) {
        const char *close = memchr(word + 1, quote, bytes - 1);
        if (!close) return COT_DIALECT_NO;
        word++;
        bytes = (size_t)(close - word);
    }
    while (bytes && cot_dialect_is_space(*word)) {
        word++;
        bytes--;
    }
    while (bytes && cot_dialect_is_space(word[bytes - 1])) bytes--;
    to->bytes = 0;
    cot_dialect_keep(p, to, word, bytes);
    return bytes ? COT_DIALECT_YES : COT_DIALECT_NO;
}

static void announce(cot_dialect_parser *p)
{
    cot_dialect_announce(p, p->name.data, p->name.bytes, NULL, 0);
    cot_dialect_argue(p, "{", 1);
}

/* The name behind `call` itself: up to a line's end, a key, or the call's end. */
static cot_dialect_look step_bare_name(cot_dialect_parser *p)
{
    size_t at = p->at, next;
    cot_dialect_look look = COT_DIALECT_NO;
    for (; at < p->in.bytes && p->in.data[at] != '\n'; at++) {
        look = cot_dialect_match(p, &p->key, at, &next);
        if (look == COT_DIALECT_NO) look = cot_dialect_match(p, &p->call_end, at, &next);
        if (look != COT_DIALECT_NO) break;
        if (at - p->at > COT_DIALECT_NAME_BYTES || (unsigned char)p->in.data[at] >= COT_DIALECT_END)
            return cot_dialect_fault(p, at);
    }
    if (look == COT_DIALECT_MORE || (at == p->in.bytes && (!p->is_over || p->is_cut)))
        return COT_DIALECT_MORE;
    size_t from = p->at, to = at;
    while (from < to && cot_dialect_is_space(p->in.data[from])) from++;
    while (to > from && cot_dialect_is_space(p->in.data[to - 1])) to--;
    if (from == to && at < p->in.bytes && p->in.data[at] == '\n') { // an empty line before it
        p->at = at + 1;
        return COT_DIALECT_YES;
    }
    p->name.bytes = 0;
    cot_dialect_keep(p, &p->name, p->in.data + from, to - from);
    if (!cot_dialect_is_name(p->name.data, p->name.bytes)) return cot_dialect_fault(p, at);
    announce(p);
    return cot_dialect_go(p, BODY, at);
}

static cot_dialect_look step_open(cot_dialect_parser *p)
{
    if (!p->function.text) return step_bare_name(p);
    size_t at = p->at, next;
    if (p->done) p->begin = p->at;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    cot_dialect_look look = cot_dialect_match(p, &p->function, at, &next);
    if (look == COT_DIALECT_YES) return cot_dialect_go(p, IN_NAME, next);
    if (look == COT_DIALECT_MORE) return look;
    look = p->done ? cot_dialect_match(p, &p->call_end, at, &next) : COT_DIALECT_NO;
    if (look == COT_DIALECT_MORE) return look;
    if (look == COT_DIALECT_YES) return end_call(p, next, false);
    return p->done ? end_call(p, at, true) : cot_dialect_fault(p, at);
}

static cot_dialect_look step_name(cot_dialect_parser *p)
{
    const cot_dialect_marker end = {">", 1, false};
    size_t next;
    const cot_dialect_look look = take_word(p, &p->name, &end, &next);
    if (look == COT_DIALECT_MORE) return look;
    if (look == COT_DIALECT_NO || !cot_dialect_is_name(p->name.data, p->name.bytes))
        return cot_dialect_fault(p, p->at);
    announce(p);
    return cot_dialect_go(p, BODY, next);
}

static cot_dialect_look step_body(cot_dialect_parser *p)
{
    size_t at = p->at, next;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    const struct {
        const cot_dialect_marker *marker;
        int state;
    } tags[] = {{&p->key, IN_KEY},
                {&p->function_end, OPEN},
                {&p->call_end, COT_DIALECT_IN_TEXT},
                {&p->function, IN_NAME}};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const cot_dialect_look look = cot_dialect_match(p, tags[i].marker, at, &next);
        if (look == COT_DIALECT_MORE) return look;
        if (look == COT_DIALECT_NO) continue;
        if (tags[i].state == IN_KEY) return cot_dialect_go(p, IN_KEY, next);
        cot_dialect_argue(p, "}", 1);
        if (tags[i].state == COT_DIALECT_IN_TEXT) return end_call(p, next, false);
        p->done++;
        p->is_announced = false;
        p->begin = at;
        return cot_dialect_go(p, tags[i].state, next);
    }
    if (p->is_over && p->is_cut) return COT_DIALECT_MORE; // it may have become a tag
    size_t to = at + 1;                                   // prose within a call
    const char *name;
    size_t bytes;
    const cot_dialect_look token = cot_dialect_token(p, at, &name, &bytes, &next);
    if (token == COT_DIALECT_MORE) return token;
    if (token == COT_DIALECT_YES) to = next;
    cot_dialect_say_raw(p, p->at, to);
    p->at = to;
    return COT_DIALECT_YES;
}

static cot_dialect_look step_key(cot_dialect_parser *p)
{
    size_t next;
    const cot_dialect_look look = take_word(p, &p->key_text, &p->key_end, &next);
    if (look == COT_DIALECT_MORE) return look;
    return look == COT_DIALECT_YES ? cot_dialect_go(p, p->value.text ? BEFORE_VALUE : VALUE_BEGINS, next)
                                   : cot_dialect_go(p, BODY, p->at);
}

/* ---- values ---- */

static bool is_text(const cot_dialect_parser *p)
{
    return !p->types || p->types == COT_DIALECT_STRING;
}

static cot_dialect_look begin_value(cot_dialect_parser *p)
{
    size_t at = p->at;
    if (p->calls->has_lines) {
        if (at == p->in.bytes && !p->is_over) return COT_DIALECT_MORE;
        if (at < p->in.bytes && p->in.data[at] == '\n') at++;
    }
    p->types = cot_dialect_types(p->tool, p->key_text.data);
    p->early.bytes = 0;
    cot_dialect_argue(p, p->items ? ", \"" : "\"", p->items ? 3 : 1);
    p->items++;
    cot_dialect_argue_quoted(p, p->key_text.data, p->key_text.bytes);
    cot_dialect_argue(p, is_text(p) ? "\": \"" : "\": ", is_text(p) ? 4 : 3);
    return cot_dialect_go(p, IN_VALUE, at);
}

static void take_value(cot_dialect_parser *p, const char *text, size_t bytes)
{
    if (is_text(p))
        cot_dialect_argue_quoted(p, text, bytes);
    else
        cot_dialect_keep(p, &p->early, text, bytes);
}

static void end_value(cot_dialect_parser *p)
{
    if (is_text(p)) {
        cot_dialect_argue(p, "\"", 1);
        return;
    }
    cot_buffer typed = {0};
    if (!cot_dialect_typed(&typed, p->early.data, p->early.bytes, p->types)) p->failed = true;
    cot_dialect_argue(p, typed.data, typed.bytes);
    cot_buffer_free(&typed);
    p->early.bytes = 0;
}

/* A value's end tag ends it where another tag of the call follows, or the text ends; any other is the value's own text. */
static cot_dialect_look ends_value(const cot_dialect_parser *p, size_t at, size_t *next)
{
    const cot_dialect_look tag = cot_dialect_match(p, &p->value_end, at, next);
    if (tag != COT_DIALECT_YES || p->value_end.is_token) return tag;
    const cot_dialect_marker *follow[] = {&p->key, &p->function_end, &p->call_end};
    size_t behind = *next, unused;
    const cot_dialect_look space = cot_dialect_skip_space(p, &behind);
    if (behind - *next > COT_DIALECT_GAP_BYTES) return COT_DIALECT_NO;
    if (space != COT_DIALECT_NO) return space;
    for (size_t i = 0; i < sizeof follow / sizeof *follow; i++) {
        const cot_dialect_look look = cot_dialect_match(p, follow[i], behind, &unused);
        if (look != COT_DIALECT_NO) return look;
    }
    return p->is_over && p->in.bytes - behind < p->function_end.bytes ? COT_DIALECT_YES : COT_DIALECT_NO;
}

static bool may_be_tag(const cot_dialect_parser *p, char c)
{
    return c == *p->value_end.text || (unsigned char)c >= COT_DIALECT_END;
}

/* Whether the key whose name begins at `at` is that of another argument of the tool. */
static cot_dialect_look names_argument(const cot_dialect_parser *p, size_t at)
{
    const json_t *arguments = json_object_get(json_object_get(p->tool, "parameters"), "properties");
    const char *name = p->in.data + at;
    const size_t there = p->in.bytes - at;
    size_t bytes = 0;
    while (bytes < there && bytes <= COT_DIALECT_NAME_BYTES && !strchr("<>\n", name[bytes]) &&
           (unsigned char)name[bytes] < COT_DIALECT_END)
        bytes++;
    if (bytes == there) return p->is_over ? COT_DIALECT_NO : COT_DIALECT_MORE;
    if (bytes > 1 && (*name == '"' || *name == '\'') && name[bytes - 1] == *name) {
        name++;
        bytes -= 2;
    }
    const bool is_own = bytes == p->key_text.bytes && memcmp(name, p->key_text.data, bytes) == 0;
    return !is_own && json_object_getn(arguments, name, bytes) ? COT_DIALECT_YES : COT_DIALECT_NO;
}

/* Whether the end tags from the key's tag at `at` on are those of keys there, and none is left for the value before it. */
static cot_dialect_look ends_are_taken(const cot_dialect_parser *p, size_t at)
{
    size_t open = 0, next;
    for (const size_t from = at; at < p->in.bytes; at++) {
        if (at - from > AHEAD_BYTES) return COT_DIALECT_NO;
        if (!may_be_tag(p, p->in.data[at])) continue;
        const cot_dialect_marker *tags[] = {&p->value_end, &p->key, &p->function_end, &p->call_end};
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
            const cot_dialect_look look = cot_dialect_match(p, tags[i], at, &next);
            if (look == COT_DIALECT_NO) continue;
            if (look == COT_DIALECT_MORE) return look;
            if (tags[i] == &p->key)
                open++;
            else if (!open || tags[i] == &p->call_end)
                return tags[i] == &p->value_end ? COT_DIALECT_NO : COT_DIALECT_YES;
            else if (tags[i] == &p->value_end)
                open--;
            break;
        }
    }
    return !p->is_over ? COT_DIALECT_MORE : open ? COT_DIALECT_NO : COT_DIALECT_YES;
}

/* A value whose end tag is missing ends where the call does, or where another argument of the tool begins. */
static cot_dialect_look lacks_end(const cot_dialect_parser *p, size_t at, size_t *next)
{
    size_t behind, unused;
    *next = at;
    cot_dialect_look look = cot_dialect_match(p, &p->call_end, at, &behind);
    if (look == COT_DIALECT_YES) return p->call_end.is_token ? look : COT_DIALECT_NO;
    if (look == COT_DIALECT_NO) look = cot_dialect_match(p, &p->key, at, &behind);
    if (look == COT_DIALECT_YES) {
        look = names_argument(p, behind);
        return look == COT_DIALECT_YES ? ends_are_taken(p, at) : look;
    }
    if (look == COT_DIALECT_NO) look = cot_dialect_match(p, &p->function_end, at, &behind);
    if (look != COT_DIALECT_YES) return look;
    const size_t from = behind;
    look = cot_dialect_skip_space(p, &behind);
    if (behind - from > COT_DIALECT_GAP_BYTES) return COT_DIALECT_NO;
    return look == COT_DIALECT_NO ? cot_dialect_match(p, &p->call_end, behind, &unused) : look;
}

static cot_dialect_look look_for_end(const cot_dialect_parser *p, size_t at, size_t *next)
{
    const cot_dialect_look look = ends_value(p, at, next);
    return look == COT_DIALECT_NO ? lacks_end(p, at, next) : look;
}

static cot_dialect_look step_value(cot_dialect_parser *p)
{
    size_t from = p->at, at = p->at, next;
    for (; at < p->in.bytes && !p->failed; at++) {
        const char c = p->in.data[at];
        const bool is_line = c == '\n' && p->calls->has_lines;
        const char *name;
        size_t bytes, behind;
        // the line's end before an end tag is the format's
        const cot_dialect_look look = may_be_tag(p, c) ? look_for_end(p, at, &next)
                                      : is_line && at + 1 == p->in.bytes && !p->is_over ? COT_DIALECT_MORE
                                      : is_line && may_be_tag(p, p->in.data[at + 1])
                                          ? look_for_end(p, at + 1, &next)
                                          : COT_DIALECT_NO;
        if (look == COT_DIALECT_MORE) break;
        if (look == COT_DIALECT_YES) {
            take_value(p, p->in.data + from, at - from);
            end_value(p);
            return cot_dialect_go(p, BODY, next);
        }
        const cot_dialect_look token = cot_dialect_token(p, at, &name, &bytes, &behind);
        if (token == COT_DIALECT_MORE) break;
        if (token == COT_DIALECT_NO) continue;
        take_value(p, p->in.data + from, at - from);
        take_value(p, name, bytes);
        from = behind;
        at = behind - 1;
    }
    take_value(p, p->in.data + from, at - from);
    p->at = at;
    return COT_DIALECT_MORE;
}

cot_dialect_look cot_dialect_step_markup(cot_dialect_parser *p)
{
    size_t at = p->at, next;
    cot_dialect_look look;
    switch (p->state) {
    case OPEN:
        return step_open(p);
    case IN_NAME:
        return step_name(p);
    case BODY:
        return step_body(p);
    case IN_KEY:
        return step_key(p);
    case BEFORE_VALUE:
        if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
        look = cot_dialect_match(p, &p->value, at, &next);
        if (look == COT_DIALECT_MORE) return look;
        return look == COT_DIALECT_YES ? cot_dialect_go(p, VALUE_BEGINS, next) : cot_dialect_go(p, BODY, at);
    case VALUE_BEGINS:
        return begin_value(p);
    default:
        return step_value(p);
    }
}

void cot_dialect_over_markup(cot_dialect_parser *p)
{
    if (p->state == OPEN && p->done) p->is_announced = true; // all calls are told
    if (!p->is_announced || p->state == OPEN) return;
    if (p->state == IN_VALUE) {
        if (p->is_cut) { // as far as it came
            if (!is_text(p)) cot_dialect_argue(p, p->early.data, p->early.bytes);
            return;
        }
        end_value(p);
    }
    cot_dialect_argue(p, "}", 1);
}
