/* Calls as a name, a marker and a JSON object of arguments. */
#include "dialect/parser.h"

#include <string.h>

enum {
    HEADER = COT_DIALECT_IN_CALL,
    IN_ID,
    IN_LINE,   // the name, on a line of its own
    ARGUMENTS, // they are about to begin
    IN_ARGUMENTS,
    BEHIND,
};

/* Text up to a marker, a token or a byte that ends it, to `to`. YES: something else is at *at. */
static cot_dialect_look take_text(cot_dialect_parser *p, cot_buffer *to, size_t *at, char end)
{
    while (*at < p->in.bytes && p->in.data[*at] != end) {
        const cot_dialect_marker *ends[] = {&p->separator, &p->id, &p->call_end, &p->call, &p->section_end};
        const char c = p->in.data[*at];
        size_t next;
        if ((unsigned char)c >= COT_DIALECT_END) break;
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            if (!ends[i]->text || ends[i]->is_token || *ends[i]->text != c) continue;
            const cot_dialect_look look = cot_dialect_match(p, ends[i], *at, &next);
            if (look != COT_DIALECT_NO) return look;
        }
        cot_dialect_keep(p, to, &c, 1);
        if (p->failed || to->bytes > COT_DIALECT_NAME_BYTES) break;
        ++*at;
    }
    return *at < p->in.bytes ? COT_DIALECT_YES : COT_DIALECT_MORE;
}

/* "functions.NAME:INDEX". */
static void read_address(const cot_dialect_parser *p, const char **name, size_t *bytes)
{
    static const char space[] = "functions.";
    const size_t ahead = sizeof space - 1;
    *name = p->name.data;
    *bytes = p->name.bytes;
    if (*bytes > ahead && memcmp(*name, space, ahead) == 0) {
        *name += ahead;
        *bytes -= ahead;
    }
    size_t digits = 0;
    while (digits < *bytes && strchr("0123456789", (*name)[*bytes - 1 - digits])) digits++;
    if (digits && digits + 1 < *bytes && (*name)[*bytes - 1 - digits] == ':') *bytes -= digits + 1;
}

static void trim(cot_buffer *text)
{
    size_t ahead = 0;
    while (text->bytes && cot_dialect_is_space(text->data[text->bytes - 1])) text->bytes--;
    while (ahead < text->bytes && cot_dialect_is_space(text->data[ahead])) ahead++;
    if (ahead) memmove(text->data, text->data + ahead, text->bytes - ahead);
    text->bytes -= ahead;
}

static bool announce(cot_dialect_parser *p)
{
    const char *name = p->name.data, *id = p->call_id.bytes ? p->call_id.data : NULL;
    size_t bytes = p->name.bytes, id_bytes = p->call_id.bytes;
    if (p->calls->has_address) {
        id = p->name.data;
        id_bytes = p->name.bytes;
        read_address(p, &name, &bytes);
    }
    if (!cot_dialect_is_name(name, bytes)) return false;
    cot_dialect_announce(p, name, bytes, id, id_bytes);
    return true;
}

static cot_dialect_look step_header(cot_dialect_parser *p)
{
    const char brace = p->calls->id ? '{' : '\n'; // a name is never so long that its line ends
    size_t at = p->at, next;
    const cot_dialect_look text = take_text(p, p->state == IN_ID ? &p->call_id : &p->name, &at, brace);
    p->at = at;
    if (text != COT_DIALECT_YES) return text;
    cot_dialect_look look = p->state == HEADER ? cot_dialect_match(p, &p->id, at, &next) : COT_DIALECT_NO;
    if (look == COT_DIALECT_YES) return cot_dialect_go(p, IN_ID, next);
    if (look == COT_DIALECT_MORE) return look;
    look = cot_dialect_match(p, &p->separator, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    trim(&p->name);
    trim(&p->call_id);
    if (look == COT_DIALECT_NO)
        return brace == '{' && p->in.data[at] == '{' ? cot_dialect_go(p, ARGUMENTS, at)
                                                     : cot_dialect_fault(p, at);
    if (!p->calls->has_kind) return cot_dialect_go(p, ARGUMENTS, next);
    p->name.bytes = 0;
    return cot_dialect_go(p, IN_LINE, next);
}

static cot_dialect_look step_line(cot_dialect_parser *p)
{
    size_t at = p->at;
    const cot_dialect_look look = take_text(p, &p->name, &at, '\n');
    p->at = at;
    if (look != COT_DIALECT_YES) return look;
    trim(&p->name);
    return cot_dialect_go(p, ARGUMENTS, at);
}

static cot_dialect_look step_arguments(cot_dialect_parser *p)
{
    const cot_dialect_marker fence = {"```json", 7, false};
    size_t at = p->at, next;
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    cot_dialect_look look = cot_dialect_match(p, &fence, at, &next);
    if (look == COT_DIALECT_YES) return cot_dialect_go(p, ARGUMENTS, next);
    if (look == COT_DIALECT_MORE) return look;
    if (p->in.data[at] == '{') {
        if (!announce(p)) return cot_dialect_fault(p, at);
        p->scan = (cot_dialect_scan){0};
        p->sink = COT_DIALECT_SEND;
        return cot_dialect_go(p, IN_ARGUMENTS, at);
    }
    look = cot_dialect_match(p, &p->call_end, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    if (look == COT_DIALECT_NO || !announce(p)) return cot_dialect_fault(p, at);
    cot_dialect_argue(p, "{}", 2);
    return cot_dialect_go(p, BEHIND, at);
}

/* Behind the arguments: a fence, and the end marker. */
static cot_dialect_look step_behind(cot_dialect_parser *p)
{
    const cot_dialect_marker fence = {"```", 3, false};
    size_t at = p->at, next;
    if (!p->call_end.text) {
        cot_dialect_end_call(p);
        return COT_DIALECT_YES;
    }
    if (cot_dialect_skip_space(p, &at) != COT_DIALECT_NO) return COT_DIALECT_MORE;
    cot_dialect_look look = cot_dialect_match(p, &fence, at, &next);
    if (look == COT_DIALECT_YES) return cot_dialect_go(p, BEHIND, next);
    if (look == COT_DIALECT_MORE) return look;
    look = cot_dialect_match(p, &p->call_end, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    if (look == COT_DIALECT_YES)
        p->at = next;
    else { // text in its place is content
        p->in_section = false;
        p->ends_loosely = true;
    }
    cot_dialect_end_call(p);
    return COT_DIALECT_YES;
}

cot_dialect_look cot_dialect_step_headed(cot_dialect_parser *p)
{
    cot_dialect_look look;
    switch (p->state) {
    case HEADER:
    case IN_ID:
        return step_header(p);
    case IN_LINE:
        return step_line(p);
    case ARGUMENTS:
        return step_arguments(p);
    case IN_ARGUMENTS:
        look = cot_dialect_scan_value(p);
        return look == COT_DIALECT_YES ? cot_dialect_go(p, BEHIND, p->at) : look;
    default:
        return step_behind(p);
    }
}

void cot_dialect_over_headed(cot_dialect_parser *p)
{
    if (p->state == ARGUMENTS && announce(p) && !p->is_cut) cot_dialect_argue(p, "{}", 2);
}
