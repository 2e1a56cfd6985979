#include "tokenizer/jinja/print.h"

#include "tokenizer/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef cot_jinja_value value;

void cot_jinja_print_real(char out[32], double real)
{
    if (isnan(real) || isinf(real)) {
        strcpy(out, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    char text[40], digits[20], *end;
    int n = 0, precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, real);
    while (strtod(text, &end) != real && ++precision < 17);
    const char *at = text + (*text == '-');
    for (; *at != 'e'; at++) // whatever the locale's decimal point is
        if (*at >= '0' && *at <= '9') digits[n++] = *at;
    int exponent = atoi(at + 1);
    char *to = out;
    if (signbit(real)) *to++ = '-';
    if (exponent >= -4 && exponent < 16) {
        if (exponent < 0) {
            to += sprintf(to, "0.");
            for (int i = -1; i > exponent; i--) *to++ = '0';
        }
        for (int i = 0; i < n || i <= exponent; i++) {
            *to++ = i < n ? digits[i] : '0';
            if (i == exponent) *to++ = '.';
        }
        if (exponent >= 0 && n <= exponent + 1) *to++ = '0';
        *to = 0;
    } else {
        *to++ = digits[0];
        if (n > 1) *to++ = '.';
        memcpy(to, digits + 1, (size_t)n - 1);
        sprintf(to + n - 1, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
}

/* Python's str.isprintable, for one character. */
static bool is_printable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

static void repr_string(cot_jinja_builder *b, const cot_jinja_string *s)
{
    char quote = s->bytes && memchr(s->data, '\'', s->bytes) && !memchr(s->data, '"', s->bytes) ? '"' : '\'';
    cot_jinja_add(b, &quote, 1, true);
    for (size_t at = 0; at < s->bytes;) {
        size_t start = at;
        int32_t c = cot_utf8_next(s->data, &at);
        char escape[16] = "";
        if (c == quote || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!is_printable(c))
            snprintf(escape, sizeof escape,
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     (unsigned)c);
        if (*escape)
            cot_jinja_add(b, escape, strlen(escape), s->own[start]);
        else
            cot_jinja_add_part(b, s, start, at);
    }
    cot_jinja_add(b, &quote, 1, true);
}

static void repr_sequence(cot_jinja_builder *b, const cot_jinja_sequence *s)
{
    static const char *const opens[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["},
                             *const ends[] = {"]", ")", "", "])", "])", "])"};
    char text[80];
    if (s->kind == COT_JINJA_GENERATOR) {
        cot_jinja_add_text(b, "<generator object>");
    } else if (s->kind == COT_JINJA_RANGE) {
        int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, s->start, s->stop);
        if (s->stride != 1) snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64, s->stride);
        cot_jinja_add_text(b, text);
        cot_jinja_add_text(b, ")");
    } else {
        cot_jinja_add_text(b, opens[s->kind]);
        for (size_t i = 0; i < s->count; i++) {
            if (i) cot_jinja_add_text(b, ", ");
            cot_jinja_repr(b, s->items[i]);
        }
        if (s->kind == COT_JINJA_TUPLE && s->count == 1) cot_jinja_add_text(b, ",");
        cot_jinja_add_text(b, ends[s->kind]);
    }
}

static void repr_map(cot_jinja_builder *b, const cot_jinja_map *map)
{
    cot_jinja_add_text(b, "{");
    for (size_t i = 0; i < map->count; i++) {
        if (i) cot_jinja_add_text(b, ", ");
        cot_jinja_repr(b, map->entries[i].key);
        cot_jinja_add_text(b, ": ");
        cot_jinja_repr(b, map->entries[i].value);
    }
    cot_jinja_add_text(b, "}");
}

/* None, numbers and truth. */
static void print_plain(char out[32], value v)
{
    if (v.type == COT_JINJA_BOOL)
        strcpy(out, v.truth ? "True" : "False");
    else if (v.type == COT_JINJA_INTEGER)
        snprintf(out, 32, "%" PRId64, v.integer);
    else if (v.type == COT_JINJA_REAL)
        cot_jinja_print_real(out, v.real);
    else
        strcpy(out, "None");
}

void cot_jinja_repr(cot_jinja_builder *b, value v)
{
    char text[32];
    cot_jinja_enter(b->run);
    switch (v.type) {
    case COT_JINJA_STRING:
        if (v.string->safe) cot_jinja_add_text(b, "Markup(");
        repr_string(b, v.string);
        if (v.string->safe) cot_jinja_add_text(b, ")");
        break;
    case COT_JINJA_SEQUENCE:
        repr_sequence(b, v.sequence);
        break;
    case COT_JINJA_MAP:
        repr_map(b, v.map);
        break;
    case COT_JINJA_NAMESPACE:
        cot_jinja_add_text(b, "<Namespace ");
        repr_map(b, v.map);
        cot_jinja_add_text(b, ">");
        break;
    case COT_JINJA_IS_UNDEFINED:
        cot_jinja_add_text(b, "Undefined");
        break;
    case COT_JINJA_CALLABLE:
        cot_jinja_add_text(b, v.callable->function ? "<function " : "<Macro '");
        cot_jinja_add_text(b, v.callable->name);
        cot_jinja_add_text(b, v.callable->function ? ">" : "'>");
        break;
    case COT_JINJA_LOOP:
        cot_jinja_add_text(b, "<LoopContext>");
        break;
    default:
        print_plain(text, v);
        cot_jinja_add_text(b, text);
    }
    cot_jinja_leave(b->run);
}

void cot_jinja_print(cot_jinja_builder *b, value v)
{
    if (v.type == COT_JINJA_STRING)
        cot_jinja_add_string(b, v.string);
    else if (v.type != COT_JINJA_IS_UNDEFINED)
        cot_jinja_repr(b, v);
}

const cot_jinja_string *cot_jinja_str(cot_jinja_run *run, value v)
{
    if (v.type == COT_JINJA_STRING) return v.string;
    cot_jinja_builder b = {.run = run};
    cot_jinja_print(&b, v);
    return cot_jinja_built(&b, false).string;
}
