#include "tokenizer/jinja/value.h"

#include "tokenizer/jinja/string.h"
#include "tokenizer/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef cot_jinja_value value;

static value undefined(cot_jinja_run *run, bool unsafe, const char *format, va_list arguments)
{
    char message[512];
    vsnprintf(message, sizeof message, format, arguments);
    cot_jinja_hint *hint = cot_jinja_take(run, 1, sizeof *hint);
    char *copy = cot_jinja_take(run, strlen(message) + 1, 1);
    hint->message = strcpy(copy, message);
    hint->unsafe = unsafe;
    return (value){.type = COT_JINJA_IS_UNDEFINED, .hint = hint};
}

value cot_jinja_undefined(cot_jinja_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    value out = undefined(run, false, format, arguments);
    va_end(arguments);
    return out;
}

__attribute__((format(printf, 2, 3))) static value hidden(cot_jinja_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    value out = undefined(run, true, format, arguments);
    va_end(arguments);
    return out;
}

value cot_jinja_hidden(cot_jinja_run *run, value object, const char *attribute)
{
    return hidden(run, "access to attribute '%.100s' of '%s' object is unsafe.", attribute,
                  cot_jinja_type_name(object));
}

void cot_jinja_fail_undefined(cot_jinja_run *run, value v)
{
    cot_jinja_fail(run, v.hint->unsafe ? COT_JINJA_SECURITY : COT_JINJA_UNDEFINED, "%s", v.hint->message);
}

value cot_jinja_sequence_new(cot_jinja_run *run, cot_jinja_sequence_kind kind, size_t count)
{
    cot_jinja_sequence *sequence = cot_jinja_take(run, 1, sizeof *sequence);
    cot_jinja_step(run, count);
    *sequence = (cot_jinja_sequence){
        .kind = kind, .items = cot_jinja_take(run, count, sizeof(value)), .count = count};
    return (value){.type = COT_JINJA_SEQUENCE, .sequence = sequence};
}

void cot_jinja_sequence_add(cot_jinja_run *run, cot_jinja_sequence *sequence, size_t *capacity, value item)
{
    cot_jinja_step(run, 1);
    if (sequence->count == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 4;
        value *items = cot_jinja_take(run, *capacity, sizeof *items);
        if (sequence->count) memcpy(items, sequence->items, sequence->count * sizeof *items);
        sequence->items = items;
    }
    sequence->items[sequence->count++] = item;
}

value cot_jinja_map_new(cot_jinja_run *run, size_t capacity)
{
    cot_jinja_map *map = cot_jinja_take(run, 1, sizeof *map);
    map->entries = cot_jinja_take(run, capacity, sizeof *map->entries);
    map->capacity = capacity;
    return (value){.type = COT_JINJA_MAP, .map = map};
}

static void look(const cot_jinja_map *map)
{
    if (map->read) *map->read = true;
}

static size_t find(cot_jinja_run *run, const cot_jinja_map *map, value key)
{
    cot_jinja_step(run, 1 + map->count / 4);
    for (size_t i = 0; i < map->count; i++)
        if (cot_jinja_equal(run, map->entries[i].key, key)) return i;
    return map->count;
}

value cot_jinja_map_get(cot_jinja_run *run, const cot_jinja_map *map, value key)
{
    look(map);
    size_t at = find(run, map, key);
    return at < map->count ? map->entries[at].value : (value){0};
}

value cot_jinja_map_find(cot_jinja_run *run, const cot_jinja_map *map, const char *key)
{
    look(map);
    cot_jinja_step(run, 1 + map->count / 4);
    for (size_t i = 0; i < map->count; i++) {
        value k = map->entries[i].key;
        if (k.type == COT_JINJA_STRING && cot_jinja_string_is(k.string, key)) return map->entries[i].value;
    }
    return (value){0};
}

void cot_jinja_map_append(cot_jinja_run *run, cot_jinja_map *map, value key, value item)
{
    cot_jinja_step(run, 1);
    if (map->count == map->capacity) {
        map->capacity = map->capacity ? map->capacity * 2 : 4;
        cot_jinja_entry *entries = cot_jinja_take(run, map->capacity, sizeof *entries);
        if (map->count) memcpy(entries, map->entries, map->count * sizeof *entries);
        map->entries = entries;
    }
    map->entries[map->count++] = (cot_jinja_entry){key, item};
}

void cot_jinja_map_put(cot_jinja_run *run, cot_jinja_map *map, value key, value item)
{
    size_t at = find(run, map, key);
    if (at < map->count)
        map->entries[at].value = item;
    else
        cot_jinja_map_append(run, map, key, item);
}

void cot_jinja_check_key(cot_jinja_run *run, value key)
{
    bool hashable = key.type != COT_JINJA_MAP && key.type != COT_JINJA_SEQUENCE;
    if (cot_jinja_is_undefined(key)) hashable = true;
    if (key.type == COT_JINJA_SEQUENCE &&
        (key.sequence->kind == COT_JINJA_TUPLE || key.sequence->kind == COT_JINJA_RANGE)) {
        for (size_t i = 0; i < key.sequence->count; i++) cot_jinja_check_key(run, key.sequence->items[i]);
        return;
    }
    if (!hashable) cot_jinja_fail(run, COT_JINJA_PYTHON, "unhashable type: '%s'", cot_jinja_type_name(key));
}

bool cot_jinja_truth(value v)
{
    switch (v.type) {
    case COT_JINJA_BOOL:
        return v.truth;
    case COT_JINJA_INTEGER:
        return v.integer != 0;
    case COT_JINJA_REAL:
        return v.real != 0;
    case COT_JINJA_STRING:
        return v.string->bytes > 0;
    case COT_JINJA_SEQUENCE:
        return v.sequence->count > 0 || v.sequence->kind == COT_JINJA_GENERATOR;
    case COT_JINJA_MAP:
        return v.map->count > 0;
    case COT_JINJA_NAMESPACE:
    case COT_JINJA_CALLABLE:
    case COT_JINJA_LOOP:
        return true;
    default:
        return false;
    }
}

static bool maps_equal(cot_jinja_run *run, const cot_jinja_map *a, const cot_jinja_map *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        value other = cot_jinja_map_get(run, b, a->entries[i].key);
        equal = other.type != COT_JINJA_ABSENT && cot_jinja_equal(run, a->entries[i].value, other);
    }
    return equal;
}

static bool sequences_equal(cot_jinja_run *run, const cot_jinja_sequence *a, const cot_jinja_sequence *b)
{
    if (a == b) return true;
    bool equal = a->kind == b->kind && a->kind != COT_JINJA_GENERATOR && a->kind != COT_JINJA_VALUES &&
                 a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) equal = cot_jinja_equal(run, a->items[i], b->items[i]);
    return equal;
}

bool cot_jinja_equal(cot_jinja_run *run, value a, value b)
{
    cot_jinja_step(run, 1);
    if (cot_jinja_is_integer(a) && cot_jinja_is_integer(b))
        return cot_jinja_as_integer(a) == cot_jinja_as_integer(b);
    if (cot_jinja_is_number(a) && cot_jinja_is_number(b)) // exact: a double beside an integer beyond 2^53 too
        return cot_jinja_compare(run, a, b, "==") == 0 && !isnan(cot_jinja_as_real(a)) &&
               !isnan(cot_jinja_as_real(b));
    if (a.type != b.type) return false;
    cot_jinja_enter(run);
    bool equal = false;
    switch (a.type) {
    case COT_JINJA_STRING:
        equal = cot_jinja_strings_equal(a.string, b.string);
        break;
    case COT_JINJA_SEQUENCE:
        equal = sequences_equal(run, a.sequence, b.sequence);
        break;
    case COT_JINJA_MAP:
        equal = a.map == b.map || maps_equal(run, a.map, b.map);
        break;
    case COT_JINJA_NAMESPACE:
        equal = a.map == b.map;
        break;
    case COT_JINJA_CALLABLE:
        equal = a.callable == b.callable;
        break;
    case COT_JINJA_LOOP:
        equal = a.loop == b.loop;
        break;
    default:
        equal = true; // none, undefined
    }
    cot_jinja_leave(run);
    return equal;
}

static int compare_numbers(value a, value b)
{
    if (cot_jinja_is_integer(a) && cot_jinja_is_integer(b)) {
        int64_t x = cot_jinja_as_integer(a), y = cot_jinja_as_integer(b);
        return (x > y) - (x < y);
    }
    if (a.type == COT_JINJA_REAL && b.type == COT_JINJA_REAL) return (a.real > b.real) - (a.real < b.real);
    bool swapped = a.type == COT_JINJA_REAL;
    int64_t integer = cot_jinja_as_integer(swapped ? b : a);
    double real = swapped ? a.real : b.real;
    int order = 0; // of the integer to the double, which is not rounded to compare
    if (real >= 9223372036854775808.0)
        order = -1;
    else if (real < -9223372036854775808.0)
        order = 1;
    else if (!isnan(real)) {
        int64_t whole = (int64_t)real;
        double rest = real - (double)whole;
        order = integer != whole ? (integer > whole) - (integer < whole) : (rest < 0) - (rest > 0);
    }
    return swapped ? -order : order;
}

int cot_jinja_compare(cot_jinja_run *run, value a, value b, const char *sign)
{
    cot_jinja_step(run, 1);
    if (cot_jinja_is_undefined(a)) cot_jinja_fail_undefined(run, a);
    if (cot_jinja_is_undefined(b)) cot_jinja_fail_undefined(run, b);
    if (cot_jinja_is_number(a) && cot_jinja_is_number(b)) return compare_numbers(a, b);
    if (a.type == COT_JINJA_STRING && b.type == COT_JINJA_STRING)
        return cot_jinja_strings_compare(a.string, b.string);
    if (a.type == COT_JINJA_SEQUENCE && b.type == COT_JINJA_SEQUENCE &&
        a.sequence->kind == b.sequence->kind && a.sequence->kind <= COT_JINJA_TUPLE) {
        const cot_jinja_sequence *x = a.sequence, *y = b.sequence;
        int order = 0;
        cot_jinja_enter(run);
        for (size_t i = 0; !order && i < x->count && i < y->count; i++)
            if (!cot_jinja_equal(run, x->items[i], y->items[i]))
                order = cot_jinja_compare(run, x->items[i], y->items[i], sign);
        cot_jinja_leave(run);
        return order ? order : (x->count > y->count) - (x->count < y->count);
    }
    cot_jinja_fail(run, COT_JINJA_PYTHON, "'%s' not supported between instances of '%s' and '%s'", sign,
                   cot_jinja_type_name(a), cot_jinja_type_name(b));
}

int64_t cot_jinja_length(value v)
{
    switch (v.type) {
    case COT_JINJA_STRING:
        return (int64_t)cot_jinja_characters(v.string);
    case COT_JINJA_SEQUENCE:
        return v.sequence->kind == COT_JINJA_GENERATOR ? -1 : (int64_t)v.sequence->count;
    case COT_JINJA_MAP:
        return (int64_t)v.map->count;
    case COT_JINJA_IS_UNDEFINED:
        return 0;
    default:
        return -1;
    }
}

const char *cot_jinja_type_name(value v)
{
    static const char *const sequences[] = {"list",        "tuple",      "range",    "dict_keys",
                                            "dict_values", "dict_items", "generator"};
    switch (v.type) {
    case COT_JINJA_IS_UNDEFINED:
        return "Undefined";
    case COT_JINJA_BOOL:
        return "bool";
    case COT_JINJA_INTEGER:
        return "int";
    case COT_JINJA_REAL:
        return "float";
    case COT_JINJA_STRING:
        return v.string->safe ? "Markup" : "str";
    case COT_JINJA_SEQUENCE:
        return sequences[v.sequence->kind];
    case COT_JINJA_MAP:
        return "dict";
    case COT_JINJA_NAMESPACE:
        return "Namespace";
    case COT_JINJA_CALLABLE:
        return v.callable->function ? "function" : "Macro";
    case COT_JINJA_LOOP:
        return "LoopContext";
    default:
        return "NoneType";
    }
}

bool cot_jinja_is_iterable(value v)
{
    return v.type == COT_JINJA_STRING || v.type == COT_JINJA_SEQUENCE || v.type == COT_JINJA_MAP ||
           v.type == COT_JINJA_IS_UNDEFINED;
}

cot_jinja_sequence *cot_jinja_items_of(cot_jinja_run *run, value v)
{
    value list;
    switch (v.type) {
    case COT_JINJA_STRING:
        list = cot_jinja_sequence_new(run, COT_JINJA_LIST, cot_jinja_characters(v.string));
        for (size_t i = 0, at = 0, next; i < list.sequence->count; i++, at = next) {
            next = at + cot_utf8_length(v.string->data[at]);
            list.sequence->items[i] = cot_jinja_part(run, v.string, at, next);
        }
        return list.sequence;
    case COT_JINJA_SEQUENCE:
        if (v.sequence->kind != COT_JINJA_GENERATOR) return v.sequence;
        list = cot_jinja_sequence_new(run, COT_JINJA_LIST, 0);
        list.sequence->items = v.sequence->items + v.sequence->taken;
        list.sequence->count = v.sequence->count - v.sequence->taken;
        v.sequence->taken = v.sequence->count;
        return list.sequence;
    case COT_JINJA_MAP:
        look(v.map);
        list = cot_jinja_sequence_new(run, COT_JINJA_LIST, v.map->count);
        for (size_t i = 0; i < v.map->count; i++) list.sequence->items[i] = v.map->entries[i].key;
        return list.sequence;
    case COT_JINJA_IS_UNDEFINED:
        return cot_jinja_sequence_new(run, COT_JINJA_LIST, 0).sequence;
    default:
        cot_jinja_fail(run, COT_JINJA_PYTHON, "'%s' object is not iterable", cot_jinja_type_name(v));
    }
}

/* The place of `name` among the words of `names`; -1 where it is none. */
static int place(const char *names, const char *name)
{
    size_t bytes = strlen(name);
    for (int i = 0; *names; i++) {
        size_t word = strcspn(names, " ");
        if (word == bytes && !memcmp(names, name, word)) return i;
        names += word + (names[word] == ' ');
    }
    return -1;
}

void cot_jinja_bind(cot_jinja_run *run, const cot_jinja_arguments *a, const char *what, const char *names,
                    size_t least, value *out)
{
    size_t most = *names != 0;
    for (const char *c = names; *c; c++) most += *c == ' ';
    for (size_t i = 0; i < most; i++) out[i] = (value){0};
    if (a->count > most)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() takes at most %zu arguments, not %zu", what, most,
                       a->count);
    for (size_t i = 0; i < a->count; i++) out[i] = a->items[i];
    for (size_t i = 0; i < a->named; i++) {
        int at = place(names, a->names[i]);
        if (at < 0)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() got an unexpected keyword argument '%.100s'", what,
                           a->names[i]);
        if (out[at].type != COT_JINJA_ABSENT)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() got several values for '%s'", what, a->names[i]);
        out[at] = a->named_items[i];
    }
    for (size_t i = 0; i < least; i++)
        if (out[i].type == COT_JINJA_ABSENT)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "%s() misses an argument", what);
}
