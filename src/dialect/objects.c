/* Calls as JSON objects of a name and arguments: alone, in a row, or in a list. */
#include "dialect/parser.h"

#include <string.h>

enum {
    BEFORE = COT_DIALECT_IN_CALL, // the first object, or a list of them
    BETWEEN,                      // an object has ended
    KEY,
    COLON,
    VALUE,
    IN_ARGUMENTS,
    IN_ARGUMENTS_TEXT, // a JSON string that holds them
    IN_NAME,
    IN_OTHER,
};

typedef enum member { NAME, ARGUMENTS, OTHER } member;

/* The text of a JSON string [bytes] with its quotes; NULL: it is none. */
static json_t *read_string(const char *text, size_t bytes)
{
    json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (json_is_string(value)) return value;
    json_decref(value);
    return NULL;
}

static cot_dialect_look fault(cot_dialect_parser *p)
{
    if (p->is_announced || p->items) { // calls before stand
        p->ends_loosely = true;
        p->at = p->is_announced ? p->at : p->begin;
        p->state = COT_DIALECT_IN_TEXT;
    } else
        cot_dialect_unread_call(p);
    return COT_DIALECT_YES;
}

static void begin_object(cot_dialect_parser *p, size_t at)
{
    p->is_announced = p->has_name = p->has_arguments = false;
    p->name.bytes = p->early.bytes = 0;
    cot_dialect_go(p, KEY, at + 1);
}

/* The call can be told: its name is known, and it has arguments, or an end. */
static bool announce(cot_dialect_parser *p)
{
    if (p->is_announced) return true;
    if (!p->has_name) return false;
    if (p->is_bare && p->calls->call && !cot_dialect_tool(p, p->name.data, p->name.bytes)) return false;
    const size_t items = p->items;
    cot_dialect_announce(p, p->name.data, p->name.bytes, NULL, 0);
    p->items = items + 1; // of the list
    cot_dialect_argue(p, p->early.data, p->early.bytes);
    p->early.bytes = 0;
    return true;
}

/* Before an object, or behind one. */
static cot_dialect_look step_between(cot_dialect_parser *p)
{
    size_t at = p->at, next;
    if (p->state == BETWEEN) p->begin = p->at;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    const char c = p->in.data[at];
    if (p->state == BEFORE && c == '[' && (!p->is_bare || !p->calls->call) && !p->is_list) {
        p->is_list = true;
        return cot_dialect_go(p, BEFORE, at + 1);
    }
    if (c == '{' && (p->state == BEFORE || !p->is_list)) {
        begin_object(p, at);
        return COT_DIALECT_YES;
    }
    if (p->state == BEFORE) {
        p->at = at;
        return fault(p);
    }
    // what stands between calls of a list, and between those that have no marks of their own
    if (p->is_list ? c == ',' : c == ';' && !p->call_end.text) {
        size_t behind = at + 1;
        const cot_dialect_look space = cot_dialect_skip_space(p, &behind);
        if (space == COT_DIALECT_MORE || (space == COT_DIALECT_YES && p->is_cut)) return COT_DIALECT_MORE;
        if (space == COT_DIALECT_NO && p->in.data[behind] == '{') {
            begin_object(p, behind);
            return COT_DIALECT_YES;
        }
    }
    if (p->is_list && c == ']') {
        p->is_list = false;
        p->at = at + 1;
        p->begin = p->at;
        if (!p->call_end.text) {
            cot_dialect_end_call(p);
            return COT_DIALECT_YES;
        }
        return cot_dialect_go(p, BETWEEN, at + 1);
    }
    const cot_dialect_look look = cot_dialect_match(p, &p->call_end, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    p->ends_loosely = look != COT_DIALECT_YES;
    if (look == COT_DIALECT_YES) p->at = next;
    cot_dialect_end_call(p);
    return COT_DIALECT_YES;
}

/* The object has ended at `at`. */
static cot_dialect_look end_object(cot_dialect_parser *p, size_t at)
{
    p->at = at;
    if (!p->is_announced && p->is_bare && p->calls->call && !p->has_arguments) return fault(p);
    if (!announce(p)) return fault(p);
    if (!p->has_arguments) cot_dialect_argue(p, "{}", 2);
    return cot_dialect_go(p, BETWEEN, at);
}

static cot_dialect_look step_key(cot_dialect_parser *p)
{
    size_t at = p->at;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    const char c = p->in.data[at];
    if (c == '}') return end_object(p, at + 1);
    if (c == ',') return cot_dialect_go(p, KEY, at + 1);
    if (c != '"') { // the object's end is missing
        p->at = at;
        return p->is_announced ? cot_dialect_go(p, BETWEEN, at) : fault(p);
    }
    size_t end = at + 1;
    while (end < p->in.bytes && p->in.data[end] != '"' && (unsigned char)p->in.data[end] < COT_DIALECT_END)
        end += p->in.data[end] == '\\' ? 2 : 1;
    if (end < p->in.bytes && p->in.data[end] != '"') return fault(p); // no key has a token
    if (end - at > COT_DIALECT_NAME_BYTES) return fault(p);
    if (end >= p->in.bytes) return COT_DIALECT_MORE;
    p->key_text.bytes = 0;
    cot_dialect_keep(p, &p->key_text, p->in.data + at + 1, end - at - 1);
    return cot_dialect_go(p, COLON, end + 1);
}

static member member_of(const cot_dialect_parser *p)
{
    const char *key = p->key_text.data;
    if (strcmp(key, "name") == 0) return p->has_name ? OTHER : NAME;
    if (strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0)
        return p->has_arguments ? OTHER : ARGUMENTS;
    return OTHER;
}

/* A value begins: which one, and where it goes. */
static cot_dialect_look step_value(cot_dialect_parser *p)
{
    size_t at = p->at;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    const char c = p->in.data[at];
    const member m = member_of(p);
    p->scan = (cot_dialect_scan){0};
    p->kept = m == NAME ? &p->name : &p->early;
    if (m == NAME) {
        if (c != '"') return fault(p);
        p->sink = COT_DIALECT_KEEP;
        return cot_dialect_go(p, IN_NAME, at);
    }
    if (m == OTHER) {
        // an answer in JSON is not held back until its end
        if (p->is_bare && p->calls->call && !p->is_announced && strcmp(p->key_text.data, "type") != 0 &&
            strcmp(p->key_text.data, "id") != 0)
            return fault(p);
        p->sink = COT_DIALECT_DROP;
        return cot_dialect_go(p, IN_OTHER, at);
    }
    if (c == '{') {
        announce(p);
        if (p->has_name && !p->is_announced) return fault(p);
        p->has_arguments = true;
        p->sink = p->is_announced ? COT_DIALECT_SEND : COT_DIALECT_KEEP;
        return cot_dialect_go(p, IN_ARGUMENTS, at);
    }
    if (c != '"' && c != 'n') return fault(p);
    p->sink = c == '"' ? COT_DIALECT_KEEP : COT_DIALECT_DROP; // null is none
    return cot_dialect_go(p, c == '"' ? IN_ARGUMENTS_TEXT : IN_OTHER, at);
}

static bool is_object(const char *text, size_t bytes)
{
    while (bytes && cot_dialect_is_space(*text)) text++, bytes--;
    return bytes && *text == '{';
}

/* A name has come whole, or arguments within a string: what was kept is read. */
static cot_dialect_look take_string(cot_dialect_parser *p)
{
    json_t *string = read_string(p->kept->data, p->kept->bytes);
    const char *text = json_string_value(string);
    const size_t bytes = json_string_length(string);
    bool good = string != NULL;
    p->kept->bytes = 0;
    if (good && p->state == IN_NAME) {
        p->has_name = good = cot_dialect_is_name(text, bytes) && cot_dialect_keep(p, &p->name, text, bytes);
    } else if (good && bytes && !is_object(text, bytes))
        good = false;
    else if (good) {
        p->has_arguments = true;
        cot_dialect_keep(p, &p->early, bytes ? text : "{}", bytes ? bytes : 2);
        if (p->has_name) good = announce(p);
    }
    json_decref(string);
    return good ? cot_dialect_go(p, KEY, p->at) : fault(p);
}

static cot_dialect_look step_scan(cot_dialect_parser *p)
{
    if (p->state == IN_NAME && p->name.bytes > 6 * COT_DIALECT_NAME_BYTES) return fault(p);
    const cot_dialect_look look = cot_dialect_scan_value(p);
    if (look != COT_DIALECT_YES) return look;
    if (p->state == IN_NAME || p->state == IN_ARGUMENTS_TEXT) return take_string(p);
    return cot_dialect_go(p, KEY, p->at);
}

cot_dialect_look cot_dialect_step_objects(cot_dialect_parser *p)
{
    size_t at = p->at;
    switch (p->state) {
    case BEFORE:
    case BETWEEN:
        return step_between(p);
    case KEY:
        return step_key(p);
    case COLON:
        if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
        return p->in.data[at] == ':' ? cot_dialect_go(p, VALUE, at + 1) : fault(p);
    case VALUE:
        return step_value(p);
    default:
        return step_scan(p);
    }
}

void cot_dialect_over_objects(cot_dialect_parser *p)
{
    if (p->state == BEFORE) return;
    if (p->state == BETWEEN) {
        p->is_announced = true; // all calls are told
        p->ends_loosely = true;
        return;
    }
    if (p->items && !p->is_announced && !p->has_name) { // the last of several has not got so far
        if (!p->is_cut) {
            cot_dialect_say_raw(p, p->begin, p->in.bytes);
            p->unread++;
        }
        p->is_announced = true;
        return;
    }
    if (p->is_bare && p->calls->call && !p->has_arguments) return;
    if (p->state == IN_ARGUMENTS_TEXT) p->early.bytes = 0; // a part of a string is no part of an object
    announce(p);
}
