/* The text outside calls, and what all forms of calls share. */
#include "dialect/parser.h"

#include <stdlib.h>
#include <string.h>

/* ---- looking ---- */

static bool opens_token(char c)
{
    return (unsigned char)c == COT_DIALECT_SPECIAL || (unsigned char)c == COT_DIALECT_ADDED;
}

cot_dialect_look cot_dialect_token(const cot_dialect_parser *p, size_t at, const char **name, size_t *bytes,
                                   size_t *next)
{
    if (at >= p->in.bytes || !opens_token(p->in.data[at])) return COT_DIALECT_NO;
    const char *first = p->in.data + at + 1, *end = memchr(first, COT_DIALECT_END, p->in.bytes - at - 1);
    if (!end && !p->is_over) return COT_DIALECT_MORE;
    if (!end) end = p->in.data + p->in.bytes; // a stop string has cut it
    *name = first;
    *bytes = (size_t)(end - first);
    *next = (size_t)(end - p->in.data) + (end < p->in.data + p->in.bytes);
    return COT_DIALECT_YES;
}

cot_dialect_look cot_dialect_match(const cot_dialect_parser *p, const cot_dialect_marker *m, size_t at,
                                   size_t *next)
{
    if (!m->text) return COT_DIALECT_NO;
    if (at >= p->in.bytes) return p->is_over ? COT_DIALECT_NO : COT_DIALECT_MORE;
    if (m->is_token) {
        const char *name;
        size_t bytes;
        const cot_dialect_look look = cot_dialect_token(p, at, &name, &bytes, next);
        if (look != COT_DIALECT_YES) return look;
        return bytes == m->bytes && memcmp(name, m->text, bytes) == 0 ? COT_DIALECT_YES : COT_DIALECT_NO;
    }
    const size_t there = p->in.bytes - at, compared = there < m->bytes ? there : m->bytes;
    if (memcmp(p->in.data + at, m->text, compared) != 0) return COT_DIALECT_NO;
    if (compared < m->bytes) {
        if (!p->is_over) return COT_DIALECT_MORE;
        // what a cut has left of the end of a call is no text
        if (!p->is_cut || (m != &p->call_end && m != &p->section_end)) return COT_DIALECT_NO;
    }
    *next = at + compared;
    return COT_DIALECT_YES;
}

cot_dialect_look cot_dialect_skip_space(const cot_dialect_parser *p, size_t *at)
{
    while (*at < p->in.bytes && cot_dialect_is_space(p->in.data[*at])) ++*at;
    if (*at < p->in.bytes) return COT_DIALECT_NO;
    return p->is_over ? COT_DIALECT_YES : COT_DIALECT_MORE;
}

/* ---- telling ---- */

bool cot_dialect_keep(cot_dialect_parser *p, cot_buffer *buffer, const char *text, size_t bytes)
{
    if (!cot_buffer_append(buffer, text, bytes)) p->failed = true;
    return !p->failed;
}

static void send_content(cot_dialect_parser *p, const char *text, size_t bytes)
{
    const cot_dialect_listener *l = &p->options.listener;
    if (!bytes || p->failed) return;
    if (p->calls && p->calls->form == COT_DIALECT_FORCED) {
        const char *name = p->options.forced_name;
        if (!p->is_announced) cot_dialect_announce(p, name, strlen(name), NULL, 0);
        cot_dialect_argue(p, text, bytes);
    } else if (!l->content(l->context, text, bytes))
        p->failed = true;
}

/* How much of a text is left without the white space at its end. */
static size_t trimmed(const char *text, size_t bytes)
{
    while (bytes && cot_dialect_is_space(text[bytes - 1])) bytes--;
    return bytes;
}

/* White space goes out with what follows it: none at the beginning or end of what stands beside reasoning or calls. */
void cot_dialect_say(cot_dialect_parser *p, const char *text, size_t bytes)
{
    const size_t solid = trimmed(text, bytes);
    if (solid) {
        const bool drops = p->had_marker && !p->has_content;
        size_t from = 0;
        if (!drops) send_content(p, p->gap.data, p->gap.bytes);
        while (drops && cot_dialect_is_space(text[from])) from++;
        send_content(p, text + from, solid - from);
        p->gap.bytes = 0;
        p->has_content = true;
        p->has_called = p->calls && p->calls->form == COT_DIALECT_FORCED; // content is the call's
    }
    if (bytes > solid) cot_dialect_keep(p, &p->gap, text + solid, bytes - solid);
}

void cot_dialect_reason(cot_dialect_parser *p, const char *text, size_t bytes)
{
    const cot_dialect_listener *l = &p->options.listener;
    const size_t solid = trimmed(text, bytes);
    if (solid) {
        size_t from = 0;
        if (p->has_reasoning && p->reasoning_gap.bytes && !p->failed &&
            !l->reasoning(l->context, p->reasoning_gap.data, p->reasoning_gap.bytes))
            p->failed = true;
        while (!p->has_reasoning && cot_dialect_is_space(text[from])) from++;
        if (!p->failed && !l->reasoning(l->context, text + from, solid - from)) p->failed = true;
        p->reasoning_gap.bytes = 0;
        p->has_reasoning = true;
    }
    if (bytes > solid) cot_dialect_keep(p, &p->reasoning_gap, text + solid, bytes - solid);
}

void cot_dialect_announce(cot_dialect_parser *p, const char *name, size_t bytes, const char *id,
                          size_t id_bytes)
{
    const cot_dialect_listener *l = &p->options.listener;
    if (!p->failed && !l->call(l->context, name, bytes, id, id_bytes)) p->failed = true;
    p->is_announced = p->had_marker = p->has_called = true;
    p->items = 0;
    p->tool = cot_dialect_tool(p, name, bytes);
}

void cot_dialect_argue(cot_dialect_parser *p, const char *text, size_t bytes)
{
    const cot_dialect_listener *l = &p->options.listener;
    if (bytes && !p->failed && !l->arguments(l->context, text, bytes)) p->failed = true;
}

bool cot_dialect_quote(cot_buffer *out, const char *text, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    size_t from = 0;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char escape[6] = {'\\', (char)c, '0', '0', digits[c >> 4], digits[c & 15]};
        size_t length = 2;
        if (c == '\n')
            escape[1] = 'n';
        else if (c == '\t')
            escape[1] = 't';
        else if (c == '\r')
            escape[1] = 'r';
        else if (c < 0x20) {
            escape[1] = 'u';
            length = 6;
        }
        if (!cot_buffer_append(out, text + from, i - from) || !cot_buffer_append(out, escape, length))
            return false;
        from = i + 1;
    }
    return cot_buffer_append(out, text + from, bytes - from);
}

void cot_dialect_argue_quoted(cot_dialect_parser *p, const char *text, size_t bytes)
{
    cot_buffer quoted = {0};
    if (!cot_dialect_quote(&quoted, text, bytes)) p->failed = true;
    cot_dialect_argue(p, quoted.data, quoted.bytes);
    cot_buffer_free(&quoted);
}

void cot_dialect_say_raw(cot_dialect_parser *p, size_t from, size_t to)
{
    while (from < to && !p->failed) {
        size_t next = from;
        const char *name;
        while (next < to && !opens_token(p->in.data[next])) next++;
        cot_dialect_say(p, p->in.data + from, next - from);
        size_t bytes;
        from = next;
        if (from < to && cot_dialect_token(p, from, &name, &bytes, &next) == COT_DIALECT_YES) {
            cot_dialect_say(p, name, bytes);
            from = next;
        } else if (from < to)
            break; // a token that is not whole, at the end of the text
    }
}

/* ---- calls ---- */

void cot_dialect_begin_call(cot_dialect_parser *p, size_t begin, size_t at, bool is_bare)
{
    p->begin = begin;
    p->at = at;
    p->state = COT_DIALECT_IN_CALL;
    p->is_bare = is_bare;
    p->is_announced = p->has_name = p->has_arguments = p->is_list = p->ends_loosely = false;
    p->items = p->done = 0;
    p->kind = 0;
    p->tool = NULL;
    p->scan = (cot_dialect_scan){0};
    p->name.bytes = p->key_text.bytes = p->early.bytes = p->call_id.bytes = 0;
}

void cot_dialect_unread_call(cot_dialect_parser *p)
{
    p->unread++;
    p->state = COT_DIALECT_IN_TEXT;
    p->in_section = p->ends_loosely = false;
    cot_dialect_say_raw(p, p->begin, p->at);
}

cot_dialect_look cot_dialect_go(cot_dialect_parser *p, int state, size_t at)
{
    p->state = state;
    p->at = at;
    return COT_DIALECT_YES;
}

cot_dialect_look cot_dialect_fault(cot_dialect_parser *p, size_t at)
{
    p->at = at;
    cot_dialect_unread_call(p);
    return COT_DIALECT_YES;
}

void cot_dialect_end_call(cot_dialect_parser *p)
{
    p->begin = p->at;
    p->state = p->in_section ? COT_DIALECT_IN_SECTION : COT_DIALECT_IN_TEXT;
}

const json_t *cot_dialect_tool(const cot_dialect_parser *p, const char *name, size_t bytes)
{
    size_t i;
    json_t *tool;
    json_array_foreach(p->options.tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function"),
                     *known = json_object_get(function, "name");
        if (json_string_length(known) == bytes && json_is_string(known) &&
            memcmp(json_string_value(known), name, bytes) == 0)
            return function;
    }
    return NULL;
}

bool cot_dialect_is_name(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] <= ' ' || strchr("<>\"'{}()[],:=`", name[i]) ||
            (unsigned char)name[i] >= 0xfd)
            return false;
    return bytes && bytes <= COT_DIALECT_NAME_BYTES;
}

/* Where bytes of a value go. */
static void sink(cot_dialect_parser *p, const char *text, size_t bytes)
{
    if (p->sink == COT_DIALECT_SEND) cot_dialect_argue(p, text, bytes);
    if (p->sink == COT_DIALECT_KEEP) cot_dialect_keep(p, p->kept, text, bytes);
}

/* The name of a token within a JSON string. */
static void sink_token(cot_dialect_parser *p, const char *name, size_t bytes)
{
    cot_buffer quoted = {0};
    if (!cot_dialect_quote(&quoted, name, bytes)) p->failed = true;
    sink(p, quoted.data, quoted.bytes);
    cot_buffer_free(&quoted);
}

/* Takes a byte of the value: YES: it is the last of it; NO: it is none of it any more. */
static cot_dialect_look scan_byte(cot_dialect_scan *s, char c)
{
    if (s->in_string) {
        if (s->escaped)
            s->escaped = false;
        else if (c == '\\')
            s->escaped = true;
        else if (c == '"') {
            s->in_string = false;
            if (!s->depth) return COT_DIALECT_YES;
        }
        return COT_DIALECT_MORE;
    }
    const bool closes = c == '}' || c == ']';
    if (s->is_scalar && (closes || c == ',' || cot_dialect_is_space(c))) return COT_DIALECT_NO;
    if (!s->begun && (closes || c == ',')) return COT_DIALECT_NO; // there is no value
    if (c == '`') return COT_DIALECT_NO;                          // of a fence
    if (c == '"') s->in_string = true;
    if (c == '{' || c == '[') s->depth++;
    s->is_scalar = s->is_scalar || (!s->begun && c != '"' && c != '{' && c != '[');
    s->begun = true;
    return closes && !--s->depth ? COT_DIALECT_YES : COT_DIALECT_MORE;
}

cot_dialect_look cot_dialect_scan_value(cot_dialect_parser *p)
{
    cot_dialect_scan *s = &p->scan;
    size_t from = p->at;
    while (p->at < p->in.bytes && !p->failed) {
        const char c = p->in.data[p->at];
        if (opens_token(c)) {
            const char *name;
            size_t bytes, next;
            sink(p, p->in.data + from, p->at - from);
            from = p->at;
            if (!s->in_string) return COT_DIALECT_YES;
            if (cot_dialect_token(p, p->at, &name, &bytes, &next) != COT_DIALECT_YES) return COT_DIALECT_MORE;
            s->escaped = false;
            sink_token(p, name, bytes);
            p->at = from = next;
            continue;
        }
        if (!s->begun && cot_dialect_is_space(c)) {
            from = ++p->at;
            continue;
        }
        const cot_dialect_look look = scan_byte(s, c);
        if (look != COT_DIALECT_NO) p->at++;
        if (look == COT_DIALECT_MORE) continue;
        sink(p, p->in.data + from, p->at - from);
        return COT_DIALECT_YES;
    }
    sink(p, p->in.data + from, p->at - from);
    return COT_DIALECT_MORE;
}

/* ---- text ---- */

/* Which marker a stretch of text ends at. */
typedef enum stop {
    AT_NOTHING,
    AT_SECTION,
    AT_CALL,
    AT_REASONING,
    AT_REASONING_END,
    AT_BARE,
    AT_TOKEN,
    AT_CLOSER
} stop;

static bool begins_bare(const cot_dialect_parser *p, char c)
{
    if (!p->calls || !p->calls->is_bare || p->has_content) return false;
    if (p->calls->form == COT_DIALECT_PYTHON) return c == '[';
    return c == '{' || (c == '[' && !p->calls->call);
}

/* Looks for a marker at `at`; the first that may be there decides whether the text has to go on. `is_first`: nothing but white space
 * stands between p->at and it. */
static cot_dialect_look look_for(const cot_dialect_parser *p, size_t at, bool is_first, stop *what,
                                 size_t *next)
{
    const bool is_held = p->options.is_held, may_reason = !is_held || !(p->has_begun || at > p->at),
               may_call = !is_held || !(p->has_content || !is_first);
    const struct {
        const cot_dialect_marker *marker;
        stop what;
        bool wanted;
    } markers[] = {
        {&p->reasoning_end, AT_REASONING_END, p->in_reasoning},
        {&p->reasoning, AT_REASONING,
         p->in_reasoning
             ? !p->has_reasoning && is_first
             : may_reason && (p->reasoning.is_token || (!p->has_content && !p->had_marker && is_first))},
        {&p->section, AT_SECTION, p->in_reasoning ? p->section.is_token : may_call},
        {&p->call, AT_CALL, p->in_reasoning ? p->call.is_token : may_call},
        {&p->call_end, AT_CLOSER, !p->in_reasoning && p->ends_loosely},
        {&p->section_end, AT_CLOSER, !p->in_reasoning && p->ends_loosely},
    };
    const char c = p->in.data[at];
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        const cot_dialect_marker *m = markers[i].marker;
        if (!markers[i].wanted || !m->text || (!m->is_token && *m->text != c)) continue;
        const cot_dialect_look look = cot_dialect_match(p, m, at, next);
        if (look == COT_DIALECT_NO) continue;
        *what = markers[i].what;
        return look;
    }
    *what = AT_BARE;
    if (!p->in_reasoning && is_first && begins_bare(p, c)) return COT_DIALECT_YES;
    const char *name;
    size_t bytes;
    *what = AT_TOKEN;
    return cot_dialect_token(p, at, &name, &bytes, next);
}

static bool is_marker(const cot_dialect_marker *m, const char *name, size_t bytes)
{
    return m->text && m->bytes == bytes && memcmp(m->text, name, bytes) == 0;
}

/* A token that begins nothing: text, or nothing where decoding skips it. Markers that have no place here are text. */
static void take_token(cot_dialect_parser *p, size_t at)
{
    const cot_dialect_marker *own[] = {&p->section,   &p->section_end, &p->call,      &p->call_end,
                                       &p->separator, &p->id,          &p->reasoning, &p->reasoning_end};
    const char *name;
    size_t bytes, next;
    if (cot_dialect_token(p, at, &name, &bytes, &next) != COT_DIALECT_YES) return;
    bool shown = p->options.shows_special || (unsigned char)p->in.data[at] == COT_DIALECT_ADDED;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) shown = shown || is_marker(own[i], name, bytes);
    if (!shown) return;
    if (p->in_reasoning)
        cot_dialect_reason(p, name, bytes);
    else
        cot_dialect_say(p, name, bytes);
}

static cot_dialect_look step_text(cot_dialect_parser *p)
{
    size_t at = p->at, next = at;
    stop what = AT_NOTHING;
    cot_dialect_look look = COT_DIALECT_NO;
    bool is_first = true;
    for (; at < p->in.bytes; at++) {
        const char c = p->in.data[at];
        const bool is_space = cot_dialect_is_space(c);
        if (!is_space && (c == '<' || c == '[' || c == '{' || opens_token(c))) {
            look = look_for(p, at, is_first, &what, &next);
            if (look != COT_DIALECT_NO) break;
        }
        is_first = is_first && is_space;
    }
    if (p->in_reasoning)
        cot_dialect_reason(p, p->in.data + p->at, at - p->at);
    else
        cot_dialect_say(p, p->in.data + p->at, at - p->at);
    p->has_begun = p->has_begun || at > p->at || look == COT_DIALECT_YES;
    p->at = at;
    if (look != COT_DIALECT_YES) return COT_DIALECT_MORE;
    switch (what) {
    case AT_REASONING:
    case AT_REASONING_END:
        p->in_reasoning = what == AT_REASONING;
        p->had_marker = true;
        break;
    case AT_SECTION:
        p->in_reasoning = false;
        p->in_section = true;
        p->is_announced = false;
        p->state = COT_DIALECT_IN_SECTION;
        p->begin = at;
        break;
    case AT_CALL:
    case AT_BARE:
        p->in_reasoning = false;
        cot_dialect_begin_call(p, at, what == AT_BARE ? at : next, what == AT_BARE);
        return COT_DIALECT_YES;
    case AT_TOKEN:
        take_token(p, at);
        break;
    case AT_CLOSER:
    case AT_NOTHING:
        break;
    }
    p->at = next;
    return COT_DIALECT_YES;
}

/* Between the calls of a section. */
static cot_dialect_look step_section(cot_dialect_parser *p)
{
    const bool is_first = p->begin < p->at; // the section's marker waits to be read
    size_t at = p->at, next;
    const cot_dialect_look space = cot_dialect_skip_space(p, &at);
    if (space != COT_DIALECT_NO) return COT_DIALECT_MORE;
    cot_dialect_look look = cot_dialect_match(p, &p->call, at, &next);
    if (look == COT_DIALECT_YES) {
        cot_dialect_begin_call(p, is_first ? p->begin : at, next, false);
        return COT_DIALECT_YES;
    }
    if (look == COT_DIALECT_MORE) return look;
    look = cot_dialect_match(p, &p->section_end, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    if (is_first) return cot_dialect_fault(p, at); // no call begins
    p->in_section = false;
    p->state = COT_DIALECT_IN_TEXT;
    p->ends_loosely = look != COT_DIALECT_YES;
    p->at = look == COT_DIALECT_YES ? next : at;
    return COT_DIALECT_YES;
}

static cot_dialect_look step(cot_dialect_parser *p)
{
    if (p->calls && p->calls->form == COT_DIALECT_HARMONY) return cot_dialect_step_harmony(p);
    if (p->state == COT_DIALECT_IN_TEXT) return step_text(p);
    if (p->state == COT_DIALECT_IN_SECTION) return step_section(p);
    switch (p->calls->form) {
    case COT_DIALECT_OBJECTS:
        return cot_dialect_step_objects(p);
    case COT_DIALECT_HEADED:
        return cot_dialect_step_headed(p);
    case COT_DIALECT_MARKUP:
        return cot_dialect_step_markup(p);
    case COT_DIALECT_PYTHON:
        return cot_dialect_step_python(p);
    case COT_DIALECT_NONE:
    case COT_DIALECT_HARMONY:
    case COT_DIALECT_FORCED:
        break;
    }
    return COT_DIALECT_MORE;
}

/* ---- a parser's life ---- */

static void set_marker(cot_dialect_parser *p, cot_dialect_marker *m, const char *text)
{
    *m = (cot_dialect_marker){text, text ? strlen(text) : 0, false};
    m->is_token = text && p->options.is_token && p->options.is_token(p->options.context, text);
}

cot_dialect_parser *cot_dialect_open(const cot_dialect_options *options)
{
    cot_dialect_parser *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->options = *options;
    p->calls = options->calls && options->calls->form != COT_DIALECT_NONE ? options->calls : NULL;
    p->in_reasoning = options->is_opened && options->reasoning;
    const cot_dialect none = {0}, *d = p->calls ? p->calls : &none,
                      *r = options->reasoning ? options->reasoning : &none;
    set_marker(p, &p->section, d->section);
    set_marker(p, &p->section_end, d->section_end);
    set_marker(p, &p->call, d->call);
    set_marker(p, &p->call_end, d->call_end);
    set_marker(p, &p->separator, d->separator);
    set_marker(p, &p->id, d->id);
    set_marker(p, &p->function, d->function);
    set_marker(p, &p->function_end, d->function_end);
    set_marker(p, &p->key, d->key);
    set_marker(p, &p->key_end, d->key_end);
    if (d->key && !d->key_end) p->key_end = (cot_dialect_marker){">", 1, false};
    set_marker(p, &p->value, d->value);
    set_marker(p, &p->value_end, d->value_end);
    set_marker(p, &p->reasoning, r->reasoning);
    set_marker(p, &p->reasoning_end, r->reasoning_end);
    return p;
}

/* Drops what is behind the parser. */
static void compact(cot_dialect_parser *p)
{
    const bool keeps = p->state != COT_DIALECT_IN_TEXT && !p->is_announced && p->begin < p->at;
    const size_t from = keeps ? p->begin : p->at;
    if (!from || from < p->in.bytes / 2) return;
    memmove(p->in.data, p->in.data + from, p->in.bytes - from);
    p->in.bytes -= from;
    p->at -= from;
    p->begin = keeps ? 0 : p->at;
}

bool cot_dialect_push(cot_dialect_parser *p, const char *text, size_t bytes)
{
    if (!bytes || !cot_dialect_keep(p, &p->in, text, bytes)) return !p->failed;
    while (!p->failed && step(p) == COT_DIALECT_YES) continue;
    compact(p);
    return !p->failed;
}

/* The text ends within a call that has no name yet. One that was cut is left out, but where it may be no call at all. */
static void end_unnamed(cot_dialect_parser *p)
{
    p->at = p->in.bytes;
    if (p->is_cut && (!p->is_bare || p->calls == &cot_dialect_list))
        p->had_marker = p->has_called = true;
    else
        cot_dialect_unread_call(p);
}

/* The text ends within a call. */
static void end_in_call(cot_dialect_parser *p)
{
    switch (p->calls->form) {
    case COT_DIALECT_OBJECTS:
        cot_dialect_over_objects(p);
        break;
    case COT_DIALECT_HEADED:
        cot_dialect_over_headed(p);
        break;
    case COT_DIALECT_MARKUP:
        cot_dialect_over_markup(p);
        break;
    case COT_DIALECT_PYTHON:
        cot_dialect_over_python(p);
        break;
    case COT_DIALECT_NONE:
    case COT_DIALECT_HARMONY:
    case COT_DIALECT_FORCED:
        break;
    }
    if (!p->is_announced) end_unnamed(p);
}

bool cot_dialect_finish(cot_dialect_parser *p, bool is_cut)
{
    p->is_over = true;
    p->is_cut = is_cut;
    if (!cot_dialect_keep(p, &p->in, "", 0)) return false;
    while (!p->failed && step(p) == COT_DIALECT_YES) continue;
    if (p->calls && p->calls->form == COT_DIALECT_HARMONY)
        cot_dialect_over_harmony(p);
    else if (p->state == COT_DIALECT_IN_SECTION && p->begin < p->at)
        end_unnamed(p);
    else if (p->state != COT_DIALECT_IN_TEXT && p->state != COT_DIALECT_IN_SECTION)
        end_in_call(p);
    // white space at the end is text where nothing but text came, or where text came last
    if (!p->had_marker || (p->has_content && !p->has_called)) send_content(p, p->gap.data, p->gap.bytes);
    return !p->failed;
}

size_t cot_dialect_unread(const cot_dialect_parser *p)
{
    return p->unread;
}

void cot_dialect_close(cot_dialect_parser *p)
{
    if (!p) return;
    cot_buffer *buffers[] = {&p->in,       &p->gap,   &p->reasoning_gap, &p->name,
                             &p->key_text, &p->early, &p->call_id};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) cot_buffer_free(buffers[i]);
    free(p);
}
