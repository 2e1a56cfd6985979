/* Methods of strings, lists and dicts. */
#include "tokenizer/jinja/case.h"
#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/utf8.h"

#include <string.h>
#include <utf8proc.h>

typedef cot_jinja_value value;
typedef cot_jinja_string string;

#define METHOD(name) static value name(cot_jinja_run *run, value self, const cot_jinja_arguments *given)

static const string *text_argument(cot_jinja_run *run, value v, const char *what)
{
    if (cot_jinja_is_undefined(v)) cot_jinja_fail_undefined(run, v);
    if (v.type != COT_JINJA_STRING)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() takes a string, not '%s'", what, cot_jinja_type_name(v));
    return v.string;
}

/* An integer, `fallback` where it is not given. */
static int64_t integer_argument(cot_jinja_run *run, value v, int64_t fallback, const char *what)
{
    if (v.type == COT_JINJA_ABSENT || v.type == COT_JINJA_NONE) return fallback;
    if (!cot_jinja_is_integer(v))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() takes an integer, not '%s'", what,
                       cot_jinja_type_name(v));
    return cot_jinja_as_integer(v);
}

static bool is_given(value v)
{
    return v.type != COT_JINJA_ABSENT && v.type != COT_JINJA_NONE;
}

static value strip(cot_jinja_run *run, value self, const cot_jinja_arguments *given, const char *what,
                   bool start, bool end)
{
    value set;
    cot_jinja_bind(run, given, what, "chars", 0, &set);
    return cot_jinja_strip(run, self.string, is_given(set) ? text_argument(run, set, what) : NULL, start,
                           end);
}

METHOD(string_strip)
{
    return strip(run, self, given, "strip", true, true);
}

METHOD(string_lstrip)
{
    return strip(run, self, given, "lstrip", true, false);
}

METHOD(string_rstrip)
{
    return strip(run, self, given, "rstrip", false, true);
}

typedef struct pieces {
    cot_jinja_run *run;
    value list;
    size_t capacity;
} pieces;

static void add_piece(pieces *p, const string *s, size_t from, size_t to)
{
    cot_jinja_sequence_add(p->run, p->list.sequence, &p->capacity, cot_jinja_part(p->run, s, from, to));
}

/* At runs of white space, none at the ends. */
static void split_at_spaces(pieces *p, const string *s, int64_t most)
{
    size_t at = 0, next;
    for (;;) {
        for (next = at; at < s->bytes && cot_jinja_is_space(cot_utf8_next(s->data, &next));) at = next;
        if (at == s->bytes) return;
        size_t start = at;
        if (!most--) { // the rest, with the white space at its end
            add_piece(p, s, start, s->bytes);
            return;
        }
        for (next = at; at < s->bytes && !cot_jinja_is_space(cot_utf8_next(s->data, &next));) at = next;
        add_piece(p, s, start, at);
    }
}

/* The same from the end; the pieces come in reverse. */
static void split_back_at_spaces(pieces *p, const string *s, int64_t most)
{
    size_t at = s->bytes, before;
    for (;;) {
        for (before = at; at && cot_jinja_is_space(cot_utf8_previous(s->data, &before));) at = before;
        if (!at) return;
        size_t end = at;
        if (!most--) {
            add_piece(p, s, 0, end);
            return;
        }
        for (before = at; at && !cot_jinja_is_space(cot_utf8_previous(s->data, &before));) at = before;
        add_piece(p, s, at, end);
    }
}

static void split_at(pieces *p, const string *s, const string *by, int64_t most)
{
    size_t from = 0;
    for (size_t at; most && (at = cot_jinja_find(s, by, from, s->bytes)) != SIZE_MAX; most--) {
        add_piece(p, s, from, at);
        from = at + by->bytes;
    }
    add_piece(p, s, from, s->bytes);
}

static void split_back_at(pieces *p, const string *s, const string *by, int64_t most)
{
    size_t to = s->bytes;
    for (size_t at; most && (at = cot_jinja_find_last(s, by, 0, to)) != SIZE_MAX; most--) {
        add_piece(p, s, at + by->bytes, to);
        to = at;
    }
    add_piece(p, s, 0, to);
}

static value split(cot_jinja_run *run, value self, const cot_jinja_arguments *given, const char *what,
                   bool back)
{
    value a[2];
    cot_jinja_bind(run, given, what, "sep maxsplit", 0, a);
    pieces p = {.run = run, .list = cot_jinja_sequence_new(run, COT_JINJA_LIST, 0)};
    int64_t most = integer_argument(run, a[1], -1, what);
    if (most < 0) most = -1;
    cot_jinja_step(run, self.string->bytes / 64);
    if (is_given(a[0])) {
        const string *by = text_argument(run, a[0], what);
        if (!by->bytes) cot_jinja_fail(run, COT_JINJA_PYTHON, "empty separator");
        (back ? split_back_at : split_at)(&p, self.string, by, most);
    } else {
        (back ? split_back_at_spaces : split_at_spaces)(&p, self.string, most);
    }
    cot_jinja_sequence *list = p.list.sequence;
    for (size_t i = 0; back && i < list->count / 2; i++) {
        value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
    return p.list;
}

METHOD(string_split)
{
    return split(run, self, given, "split", false);
}

METHOD(string_rsplit)
{
    return split(run, self, given, "rsplit", true);
}

static bool ends_line(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

METHOD(string_splitlines)
{
    value keep;
    cot_jinja_bind(run, given, "splitlines", "keepends", 0, &keep);
    pieces p = {.run = run, .list = cot_jinja_sequence_new(run, COT_JINJA_LIST, 0)};
    const string *s = self.string;
    size_t from = 0;
    for (size_t at = 0, start = 0; at < s->bytes; start = at) {
        int32_t c = cot_utf8_next(s->data, &at);
        if (!ends_line(c)) continue;
        if (c == '\r' && at < s->bytes && s->data[at] == '\n') at++;
        add_piece(&p, s, from, cot_jinja_truth(keep) ? at : start);
        from = at;
    }
    if (from < s->bytes) add_piece(&p, s, from, s->bytes);
    return p.list;
}

/* Bytes of the characters [start, end) that arguments name as a slice does. */
static bool window(cot_jinja_run *run, const string *s, value start, value end, const char *what,
                   size_t *from, size_t *to)
{
    int64_t length = INT64_MAX, first = 0, last = INT64_MAX;
    if (is_given(start) || is_given(end)) length = (int64_t)cot_jinja_characters(s);
    first = integer_argument(run, start, 0, what);
    last = integer_argument(run, end, length, what);
    if (first < 0) first = first < -length ? 0 : first + length;
    if (last < 0) last = last < -length ? 0 : last + length;
    if (first > length || first > last) return false;
    *from = first ? cot_jinja_offset(s, (size_t)first) : 0;
    *to = last >= length ? s->bytes : cot_jinja_offset(s, (size_t)last);
    return true;
}

static bool has_edge(const string *s, const string *edge, size_t from, size_t to, bool end)
{
    if (edge->bytes > to - from) return false;
    return !edge->bytes || !memcmp(s->data + (end ? to - edge->bytes : from), edge->data, edge->bytes);
}

static value edge(cot_jinja_run *run, value self, const cot_jinja_arguments *given, const char *what,
                  bool end)
{
    value a[3];
    size_t from, to;
    cot_jinja_bind(run, given, what, "prefix start end", 1, a);
    bool tuple = a[0].type == COT_JINJA_SEQUENCE && a[0].sequence->kind == COT_JINJA_TUPLE, found = false;
    bool inside = window(run, self.string, a[1], a[2], what, &from, &to);
    for (size_t i = 0; i < (tuple ? a[0].sequence->count : 1); i++) {
        const string *wanted = text_argument(run, tuple ? a[0].sequence->items[i] : a[0], what);
        found |= inside && has_edge(self.string, wanted, from, to, end);
    }
    return cot_jinja_bool(found);
}

METHOD(string_startswith)
{
    return edge(run, self, given, "startswith", false);
}

METHOD(string_endswith)
{
    return edge(run, self, given, "endswith", true);
}

METHOD(string_removeprefix)
{
    value a;
    cot_jinja_bind(run, given, "removeprefix", "prefix", 1, &a);
    const string *s = self.string, *prefix = text_argument(run, a, "removeprefix");
    return cot_jinja_part(run, s, has_edge(s, prefix, 0, s->bytes, false) ? prefix->bytes : 0, s->bytes);
}

METHOD(string_removesuffix)
{
    value a;
    cot_jinja_bind(run, given, "removesuffix", "suffix", 1, &a);
    const string *s = self.string, *suffix = text_argument(run, a, "removesuffix");
    return cot_jinja_part(run, s, 0, s->bytes - (has_edge(s, suffix, 0, s->bytes, true) ? suffix->bytes : 0));
}

/* Markup escapes what it is given. */
static const string *like(cot_jinja_run *run, const string *self, const string *s)
{
    return self->safe && !s->safe ? cot_jinja_escape(run, s).string : s;
}

METHOD(string_replace)
{
    value a[3];
    cot_jinja_bind(run, given, "replace", "old new count", 2, a);
    const string *old = like(run, self.string, text_argument(run, a[0], "replace"));
    const string *fresh = like(run, self.string, text_argument(run, a[1], "replace"));
    return cot_jinja_replace(run, self.string, old, fresh, integer_argument(run, a[2], -1, "replace"));
}

METHOD(string_upper)
{
    cot_jinja_bind(run, given, "upper", "", 0, NULL);
    return cot_jinja_upper(run, self.string);
}

METHOD(string_lower)
{
    cot_jinja_bind(run, given, "lower", "", 0, NULL);
    return cot_jinja_lower(run, self.string);
}

METHOD(string_title)
{
    cot_jinja_bind(run, given, "title", "", 0, NULL);
    return cot_jinja_title(run, self.string);
}

METHOD(string_capitalize)
{
    cot_jinja_bind(run, given, "capitalize", "", 0, NULL);
    return cot_jinja_capitalize(run, self.string, false);
}

/* The character at which the argument is found, -1 where it is not. */
static int64_t found_at(cot_jinja_run *run, value self, const cot_jinja_arguments *given, const char *what,
                        bool last)
{
    value a[3];
    size_t from, to, at = SIZE_MAX;
    cot_jinja_bind(run, given, what, "sub start end", 1, a);
    const string *wanted = text_argument(run, a[0], what);
    cot_jinja_step(run, self.string->bytes / 64);
    if (window(run, self.string, a[1], a[2], what, &from, &to))
        at = (last ? cot_jinja_find_last : cot_jinja_find)(self.string, wanted, from, to);
    if (at == SIZE_MAX) return -1;
    return at ? (int64_t)cot_jinja_characters(cot_jinja_part(run, self.string, 0, at).string) : 0;
}

METHOD(string_find)
{
    return cot_jinja_integer(found_at(run, self, given, "find", false));
}

METHOD(string_rfind)
{
    return cot_jinja_integer(found_at(run, self, given, "rfind", true));
}

METHOD(string_index)
{
    int64_t at = found_at(run, self, given, "index", false);
    if (at < 0) cot_jinja_fail(run, COT_JINJA_PYTHON, "substring not found");
    return cot_jinja_integer(at);
}

METHOD(string_count)
{
    value a;
    cot_jinja_bind(run, given, "count", "sub", 1, &a);
    const string *wanted = text_argument(run, a, "count"), *s = self.string;
    int64_t n = 0;
    if (!wanted->bytes) return cot_jinja_integer((int64_t)cot_jinja_characters(s) + 1);
    for (size_t at = 0; (at = cot_jinja_find(s, wanted, at, s->bytes)) != SIZE_MAX; at += wanted->bytes) n++;
    cot_jinja_step(run, (uint64_t)n + s->bytes / 64);
    return cot_jinja_integer(n);
}

METHOD(string_join)
{
    value a;
    cot_jinja_bind(run, given, "join", "iterable", 1, &a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, a);
    cot_jinja_builder b = {.run = run};
    for (size_t i = 0; i < items->count; i++) {
        if (i) cot_jinja_add_string(&b, self.string);
        cot_jinja_add_string(&b, like(run, self.string, text_argument(run, items->items[i], "join")));
    }
    return cot_jinja_built(&b, self.string->safe);
}

static bool is_decimal(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

static bool is_letter_or_digit(int32_t c)
{
    return cot_jinja_is_letter(c) || is_decimal(c);
}

static value all_are(cot_jinja_run *run, value self, const cot_jinja_arguments *given, bool is(int32_t))
{
    bool all = self.string->bytes > 0;
    cot_jinja_bind(run, given, "this method", "", 0, NULL);
    for (size_t at = 0; all && at < self.string->bytes;) all = is(cot_utf8_next(self.string->data, &at));
    return cot_jinja_bool(all);
}

METHOD(string_isdigit)
{
    return all_are(run, self, given, is_decimal);
}

METHOD(string_isalpha)
{
    return all_are(run, self, given, cot_jinja_is_letter);
}

METHOD(string_isalnum)
{
    return all_are(run, self, given, is_letter_or_digit);
}

METHOD(string_isspace)
{
    return all_are(run, self, given, cot_jinja_is_space);
}

METHOD(string_isupper)
{
    cot_jinja_bind(run, given, "isupper", "", 0, NULL);
    return cot_jinja_bool(cot_jinja_is_case(self.string, true));
}

METHOD(string_islower)
{
    cot_jinja_bind(run, given, "islower", "", 0, NULL);
    return cot_jinja_bool(cot_jinja_is_case(self.string, false));
}

METHOD(list_count)
{
    value item;
    int64_t n = 0;
    cot_jinja_bind(run, given, "count", "value", 1, &item);
    for (size_t i = 0; i < self.sequence->count; i++)
        n += cot_jinja_equal(run, self.sequence->items[i], item);
    return cot_jinja_integer(n);
}

METHOD(list_index)
{
    value item;
    cot_jinja_bind(run, given, "index", "value", 1, &item);
    for (size_t i = 0; i < self.sequence->count; i++)
        if (cot_jinja_equal(run, self.sequence->items[i], item)) return cot_jinja_integer((int64_t)i);
    cot_jinja_fail(run, COT_JINJA_PYTHON, "the value is not in the list");
}

/* What cannot be changed need not be copied. */
METHOD(copy)
{
    cot_jinja_bind(run, given, "copy", "", 0, NULL);
    return self;
}

/* A view: it is not told of later changes, since there are none. */
static value view(cot_jinja_run *run, value self, const cot_jinja_arguments *given,
                  cot_jinja_sequence_kind kind)
{
    cot_jinja_bind(run, given, "this method", "", 0, NULL);
    const cot_jinja_map *map = self.map;
    value out = cot_jinja_sequence_new(run, kind, map->count);
    if (map->read) *map->read = true;
    for (size_t i = 0; i < map->count; i++) {
        value pair;
        if (kind == COT_JINJA_ITEMS) {
            pair = cot_jinja_sequence_new(run, COT_JINJA_TUPLE, 2);
            pair.sequence->items[0] = map->entries[i].key;
            pair.sequence->items[1] = map->entries[i].value;
        } else {
            pair = kind == COT_JINJA_KEYS ? map->entries[i].key : map->entries[i].value;
        }
        out.sequence->items[i] = pair;
    }
    return out;
}

METHOD(dict_items)
{
    return view(run, self, given, COT_JINJA_ITEMS);
}

METHOD(dict_keys)
{
    return view(run, self, given, COT_JINJA_KEYS);
}

METHOD(dict_values)
{
    return view(run, self, given, COT_JINJA_VALUES);
}

METHOD(dict_get)
{
    value a[2];
    cot_jinja_bind(run, given, "get", "key default", 1, a);
    cot_jinja_check_key(run, a[0]);
    value found = cot_jinja_map_get(run, self.map, a[0]);
    if (found.type != COT_JINJA_ABSENT) return found;
    return a[1].type != COT_JINJA_ABSENT ? a[1] : cot_jinja_none();
}

typedef struct method {
    const char *name;
    cot_jinja_function *function;
} method;

static const method of_strings[] = {
    {"capitalize", string_capitalize},
    {"count", string_count},
    {"endswith", string_endswith},
    {"find", string_find},
    {"index", string_index},
    {"isalnum", string_isalnum},
    {"isalpha", string_isalpha},
    {"isdigit", string_isdigit},
    {"islower", string_islower},
    {"isspace", string_isspace},
    {"isupper", string_isupper},
    {"join", string_join},
    {"lower", string_lower},
    {"lstrip", string_lstrip},
    {"removeprefix", string_removeprefix},
    {"removesuffix", string_removesuffix},
    {"replace", string_replace},
    {"rfind", string_rfind},
    {"rsplit", string_rsplit},
    {"rstrip", string_rstrip},
    {"split", string_split},
    {"splitlines", string_splitlines},
    {"startswith", string_startswith},
    {"strip", string_strip},
    {"title", string_title},
    {"upper", string_upper},
    {NULL, NULL},
};
static const method of_tuples[] = {{"count", list_count}, {"index", list_index}, {NULL, NULL}};
static const method of_lists[] = {{"copy", copy}, {"count", list_count}, {"index", list_index}, {NULL, NULL}};
static const method of_dicts[] = {{"copy", copy},      {"get", dict_get},       {"items", dict_items},
                                  {"keys", dict_keys}, {"values", dict_values}, {NULL, NULL}};

cot_jinja_function *cot_jinja_method(value object, const char *name)
{
    const method *methods = object.type == COT_JINJA_STRING ? of_strings
                            : object.type == COT_JINJA_MAP  ? of_dicts
                                                            : NULL;
    if (object.type == COT_JINJA_SEQUENCE && object.sequence->kind <= COT_JINJA_RANGE)
        methods = object.sequence->kind == COT_JINJA_LIST ? of_lists : of_tuples;
    for (; methods && methods->name; methods++)
        if (!strcmp(methods->name, name)) return methods->function;
    return NULL;
}
