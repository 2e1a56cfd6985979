#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/sort.h"
#include "tokenizer/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef cot_jinja_value value;

typedef struct writing {
    cot_jinja_builder *to;
    const cot_jinja_string *comma, *colon, *indent; // no indent: one line
    bool ascii, sorted;
    int level;
} writing;

static void write_string(writing *w, const cot_jinja_string *s)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    cot_jinja_add_text(w->to, "\"");
    for (size_t at = 0; at < s->bytes;) {
        size_t start = at;
        int32_t c = cot_utf8_next(s->data, &at);
        const char *found = c && c < 0x80 ? strchr(plain, c) : NULL;
        char escape[16] = "";
        if (found)
            snprintf(escape, sizeof escape, "\\%c", letters[found - plain]);
        else if (c >= 0x10000 && w->ascii)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)),
                     (unsigned)(0xdc00 | (c & 0x3ff)));
        else if (c < 0x20 || (c >= 0x7f && w->ascii))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        if (*escape)
            cot_jinja_add(w->to, escape, strlen(escape), s->own[start]);
        else
            cot_jinja_add_part(w->to, s, start, at);
    }
    cot_jinja_add_text(w->to, "\"");
}

static void new_line(writing *w)
{
    if (!w->indent) return;
    cot_jinja_add_text(w->to, "\n");
    for (int i = 0; i < w->level; i++) cot_jinja_add_string(w->to, w->indent);
}

static void plain_text(cot_jinja_run *run, char out[32], value v)
{
    switch (v.type) {
    case COT_JINJA_NONE:
        strcpy(out, "null");
        break;
    case COT_JINJA_BOOL:
        strcpy(out, v.truth ? "true" : "false");
        break;
    case COT_JINJA_INTEGER:
        snprintf(out, 32, "%" PRId64, v.integer);
        break;
    case COT_JINJA_REAL:
        cot_jinja_print_real(out, v.real);
        if (isnan(v.real) || isinf(v.real))
            strcpy(out, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
        break;
    default:
        cot_jinja_fail(run, COT_JINJA_PYTHON, "Object of type %s is not JSON serializable",
                       cot_jinja_type_name(v));
    }
}

static void write_value(writing *w, value v);

static void write_key(writing *w, value key)
{
    char text[32];
    if (key.type == COT_JINJA_STRING) {
        write_string(w, key.string);
        return;
    }
    plain_text(w->to->run, text, key);
    cot_jinja_add_text(w->to, "\"");
    cot_jinja_add_text(w->to, text);
    cot_jinja_add_text(w->to, "\"");
}

static void write_items(writing *w, const value *items, const cot_jinja_entry *entries, size_t count)
{
    cot_jinja_add_text(w->to, entries ? "{" : "[");
    w->level++;
    for (size_t i = 0; i < count; i++) {
        if (i) cot_jinja_add_string(w->to, w->comma);
        new_line(w);
        if (entries) {
            write_key(w, entries[i].key);
            cot_jinja_add_string(w->to, w->colon);
        }
        write_value(w, entries ? entries[i].value : items[i]);
    }
    w->level--;
    if (count) new_line(w);
    cot_jinja_add_text(w->to, entries ? "}" : "]");
}

static void write_map(writing *w, const cot_jinja_map *map)
{
    cot_jinja_run *run = w->to->run;
    const cot_jinja_entry *entries = map->entries;
    if (map->read) *map->read = true;
    if (w->sorted) {
        value *keys = cot_jinja_take(run, map->count, sizeof *keys);
        for (size_t i = 0; i < map->count; i++) keys[i] = map->entries[i].key;
        size_t *order = cot_jinja_sorted(run, keys, map->count, false);
        cot_jinja_entry *copy = cot_jinja_take(run, map->count, sizeof *copy);
        for (size_t i = 0; i < map->count; i++) copy[i] = map->entries[order[i]];
        entries = copy;
    }
    static const cot_jinja_entry none;
    write_items(w, NULL, map->count ? entries : &none, map->count);
}

static void write_value(writing *w, value v)
{
    char text[32];
    cot_jinja_enter(w->to->run);
    if (v.type == COT_JINJA_STRING) {
        write_string(w, v.string);
    } else if (v.type == COT_JINJA_SEQUENCE && v.sequence->kind <= COT_JINJA_TUPLE) {
        write_items(w, v.sequence->items, NULL, v.sequence->count);
    } else if (v.type == COT_JINJA_MAP) {
        write_map(w, v.map);
    } else {
        plain_text(w->to->run, text, v);
        cot_jinja_add_text(w->to, text);
    }
    cot_jinja_leave(w->to->run);
}

static const cot_jinja_string *indent_text(cot_jinja_run *run, value indent)
{
    cot_jinja_builder b = {.run = run};
    if (indent.type == COT_JINJA_STRING) return indent.string;
    if (indent.type == COT_JINJA_ABSENT || indent.type == COT_JINJA_NONE) return NULL;
    if (!cot_jinja_is_integer(indent))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "tojson() cannot indent by that");
    for (int64_t i = 0; i < cot_jinja_as_integer(indent); i++) cot_jinja_add_text(&b, " ");
    return cot_jinja_built(&b, false).string;
}

value cot_jinja_tojson(cot_jinja_run *run, value v, const cot_jinja_arguments *arguments)
{
    value given[4];
    cot_jinja_bind(run, arguments, "tojson", "ensure_ascii indent separators sort_keys", 0, given);
    cot_jinja_builder b = {.run = run};
    writing w = {.to = &b, .ascii = cot_jinja_truth(given[0]), .sorted = cot_jinja_truth(given[3])};
    w.indent = indent_text(run, given[1]);
    w.comma = cot_jinja_text(run, w.indent ? "," : ", ").string;
    w.colon = cot_jinja_text(run, ": ").string;
    if (given[2].type != COT_JINJA_ABSENT && given[2].type != COT_JINJA_NONE) {
        const cot_jinja_sequence *pair = cot_jinja_items_of(run, given[2]);
        if (pair->count != 2 || pair->items[0].type != COT_JINJA_STRING ||
            pair->items[1].type != COT_JINJA_STRING)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "tojson() takes two strings as separators");
        w.comma = pair->items[0].string;
        w.colon = pair->items[1].string;
    }
    write_value(&w, v);
    return cot_jinja_built(&b, false);
}
