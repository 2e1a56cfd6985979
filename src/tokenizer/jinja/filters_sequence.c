/* Filters of sequences and dicts. Those that give a generator in Jinja give one here; it is made at once. */
#include "tokenizer/jinja/case.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/sort.h"

#include <stdlib.h>
#include <string.h>

typedef cot_jinja_value value;

value cot_jinja_path_value(cot_jinja_run *run, value item, value attribute)
{
    if (attribute.type != COT_JINJA_STRING) return cot_jinja_item(run, item, attribute);
    const cot_jinja_string *s = attribute.string, *dot = cot_jinja_text(run, ".").string;
    for (size_t from = 0, to; from <= s->bytes; from = to + 1) {
        to = cot_jinja_find(s, dot, from, s->bytes);
        if (to == SIZE_MAX) to = s->bytes;
        value key = cot_jinja_part(run, s, from, to);
        bool digits = to > from && to - from < 10;
        for (size_t i = from; digits && i < to; i++) digits = s->data[i] >= '0' && s->data[i] <= '9';
        if (digits) key = cot_jinja_integer(atoi(s->data + from));
        item = cot_jinja_item(run, item, key);
    }
    return item;
}

/* What is compared where case does not matter. */
static value folded(cot_jinja_run *run, value v, bool exact)
{
    return exact || v.type != COT_JINJA_STRING ? v : cot_jinja_lower(run, v.string);
}

/* The keys by which items are compared. */
static value *keys_of(cot_jinja_run *run, const cot_jinja_sequence *items, value attribute, bool exact)
{
    value *keys = cot_jinja_take(run, items->count, sizeof *keys);
    bool whole = attribute.type == COT_JINJA_ABSENT || attribute.type == COT_JINJA_NONE;
    for (size_t i = 0; i < items->count; i++)
        keys[i] = folded(run, whole ? items->items[i] : cot_jinja_path_value(run, items->items[i], attribute),
                         exact);
    return keys;
}

static value generator(cot_jinja_run *run)
{
    return cot_jinja_sequence_new(run, COT_JINJA_GENERATOR, 0);
}

COT_JINJA_FILTER_FUNCTION(attr)
{
    value name;
    cot_jinja_bind(run, given, "attr", "name", 1, &name);
    if (self.type == COT_JINJA_MAP && name.type == COT_JINJA_STRING && !cot_jinja_is_undefined(self)) {
        char text[64] = ""; // attributes alone, no keys
        if (name.string->bytes && name.string->bytes < sizeof text)
            memcpy(text, name.string->data, name.string->bytes);
        cot_jinja_function *method = cot_jinja_method(self, text);
        return method ? cot_jinja_function_value(run, "method", method, self)
                      : cot_jinja_undefined(run, "'dict object' has no attribute '%s'", text);
    }
    return cot_jinja_item(run, self, name);
}

COT_JINJA_FILTER_FUNCTION(dictsort)
{
    value a[3];
    cot_jinja_bind(run, given, "dictsort", "case_sensitive by reverse", 0, a);
    if (self.type != COT_JINJA_MAP) cot_jinja_fail(run, COT_JINJA_PYTHON, "dictsort takes a dict");
    bool by_value = a[1].type == COT_JINJA_STRING && cot_jinja_string_is(a[1].string, "value");
    const cot_jinja_map *map = self.map;
    value out = cot_jinja_sequence_new(run, COT_JINJA_LIST, map->count);
    value *keys = cot_jinja_take(run, map->count, sizeof *keys);
    if (map->read) *map->read = true;
    for (size_t i = 0; i < map->count; i++)
        keys[i] = folded(run, by_value ? map->entries[i].value : map->entries[i].key, cot_jinja_truth(a[0]));
    size_t *order = cot_jinja_sorted(run, keys, map->count, cot_jinja_truth(a[2]));
    for (size_t i = 0; i < map->count; i++) {
        value pair = cot_jinja_sequence_new(run, COT_JINJA_TUPLE, 2);
        pair.sequence->items[0] = map->entries[order[i]].key;
        pair.sequence->items[1] = map->entries[order[i]].value;
        out.sequence->items[i] = pair;
    }
    return out;
}

COT_JINJA_FILTER_FUNCTION(first)
{
    cot_jinja_bind(run, given, "first", "", 0, NULL);
    if (self.type == COT_JINJA_SEQUENCE && self.sequence->kind == COT_JINJA_GENERATOR) {
        cot_jinja_sequence *s = self.sequence;
        if (s->taken < s->count) return s->items[s->taken++];
        return cot_jinja_undefined(run, "No first item, sequence was empty.");
    }
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    return items->count ? items->items[0] : cot_jinja_undefined(run, "No first item, sequence was empty.");
}

COT_JINJA_FILTER_FUNCTION(last)
{
    cot_jinja_bind(run, given, "last", "", 0, NULL);
    if (self.type == COT_JINJA_SEQUENCE && self.sequence->kind == COT_JINJA_GENERATOR)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "'generator' object is not reversible");
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    return items->count ? items->items[items->count - 1]
                        : cot_jinja_undefined(run, "No last item, sequence was empty.");
}

COT_JINJA_FILTER_FUNCTION(items)
{
    cot_jinja_bind(run, given, "items", "", 0, NULL);
    value out = generator(run);
    size_t capacity = 0;
    if (cot_jinja_is_undefined(self)) return out;
    if (self.type != COT_JINJA_MAP)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "Can only get item pairs from a mapping.");
    if (self.map->read) *self.map->read = true;
    for (size_t i = 0; i < self.map->count; i++) {
        value pair = cot_jinja_sequence_new(run, COT_JINJA_TUPLE, 2);
        pair.sequence->items[0] = self.map->entries[i].key;
        pair.sequence->items[1] = self.map->entries[i].value;
        cot_jinja_sequence_add(run, out.sequence, &capacity, pair);
    }
    return out;
}

COT_JINJA_FILTER_FUNCTION(join)
{
    value a[2];
    cot_jinja_bind(run, given, "join", "d attribute", 0, a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    const cot_jinja_string *between = a[0].type == COT_JINJA_ABSENT ? NULL : cot_jinja_str(run, a[0]);
    bool whole = a[1].type == COT_JINJA_ABSENT || a[1].type == COT_JINJA_NONE;
    cot_jinja_builder b = {.run = run};
    for (size_t i = 0; i < items->count; i++) {
        if (i && between) cot_jinja_add_string(&b, between);
        cot_jinja_print(&b, whole ? items->items[i] : cot_jinja_path_value(run, items->items[i], a[1]));
    }
    return cot_jinja_built(&b, false);
}

COT_JINJA_FILTER_FUNCTION(list)
{
    cot_jinja_bind(run, given, "list", "", 0, NULL);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    value out = cot_jinja_sequence_new(run, COT_JINJA_LIST, items->count);
    if (items->count) memcpy(out.sequence->items, items->items, items->count * sizeof(value));
    return out;
}

/* The arguments behind the first `n`. */
static cot_jinja_arguments behind(const cot_jinja_arguments *given, size_t n)
{
    cot_jinja_arguments out = *given;
    out.items += n;
    out.count -= n;
    return out;
}

/* The filter or test that the argument names. */
static cot_jinja_function *named(cot_jinja_run *run, value name, cot_jinja_function *find(const char *),
                                 const char *what)
{
    char text[64] = "";
    if (name.type != COT_JINJA_STRING)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "the name of a %s is no string", what);
    if (name.string->bytes && name.string->bytes < sizeof text)
        memcpy(text, name.string->data, name.string->bytes);
    cot_jinja_function *function = find(text);
    if (!function) cot_jinja_fail(run, COT_JINJA_PYTHON, "no %s named '%s'", what, text);
    return function;
}

/* Jinja's map, select and their kind look no further at what is false, be it no sequence at all. */
COT_JINJA_FILTER_FUNCTION(map)
{
    if (!cot_jinja_truth(self)) return generator(run);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    value out = generator(run), a[2] = {{0}, {0}};
    size_t capacity = 0;
    cot_jinja_function *filter = NULL;
    cot_jinja_arguments rest = *given;
    if (given->count) {
        filter = named(run, given->items[0], cot_jinja_filter, "filter");
        rest = behind(given, 1);
    } else {
        cot_jinja_bind(run, given, "map", "attribute default", 1, a);
    }
    cot_jinja_enter(run); // the filter may be map again
    for (size_t i = 0; i < items->count; i++) {
        value item = items->items[i];
        value made = filter ? filter(run, item, &rest) : cot_jinja_path_value(run, item, a[0]);
        if (!filter && cot_jinja_is_undefined(made) && a[1].type != COT_JINJA_ABSENT) made = a[1];
        cot_jinja_sequence_add(run, out.sequence, &capacity, made);
    }
    cot_jinja_leave(run);
    return out;
}

/* The items of which the test (by default: truth) says `wanted`. */
static value chosen(cot_jinja_run *run, value self, const cot_jinja_arguments *given, bool by_attribute,
                    bool wanted)
{
    if (!cot_jinja_truth(self)) return generator(run);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    value out = generator(run);
    size_t capacity = 0, n = by_attribute;
    if (given->count < n) cot_jinja_fail(run, COT_JINJA_PYTHON, "the attribute to select by is missing");
    cot_jinja_function *test = given->count > n ? named(run, given->items[n], cot_jinja_test, "test") : NULL;
    cot_jinja_arguments rest = behind(given, given->count > n ? n + 1 : n);
    for (size_t i = 0; i < items->count; i++) {
        value item = items->items[i];
        value looked_at = by_attribute ? cot_jinja_path_value(run, item, given->items[0]) : item;
        bool good = cot_jinja_truth(test ? test(run, looked_at, &rest) : looked_at);
        if (good == wanted) cot_jinja_sequence_add(run, out.sequence, &capacity, item);
    }
    return out;
}

COT_JINJA_FILTER_FUNCTION(select)
{
    return chosen(run, self, given, false, true);
}

COT_JINJA_FILTER_FUNCTION(reject)
{
    return chosen(run, self, given, false, false);
}

COT_JINJA_FILTER_FUNCTION(selectattr)
{
    return chosen(run, self, given, true, true);
}

COT_JINJA_FILTER_FUNCTION(rejectattr)
{
    return chosen(run, self, given, true, false);
}

static value extreme(cot_jinja_run *run, value self, const cot_jinja_arguments *given, bool largest)
{
    value a[2];
    cot_jinja_bind(run, given, largest ? "max" : "min", "case_sensitive attribute", 0, a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    const value *keys = keys_of(run, items, a[1], cot_jinja_truth(a[0]));
    size_t best = 0;
    if (!items->count) return cot_jinja_undefined(run, "No aggregated item, sequence was empty.");
    for (size_t i = 1; i < items->count; i++) {
        int order = cot_jinja_compare(run, keys[i], keys[best], largest ? ">" : "<");
        if (largest ? order > 0 : order < 0) best = i;
    }
    return items->items[best];
}

COT_JINJA_FILTER_FUNCTION(max)
{
    return extreme(run, self, given, true);
}

COT_JINJA_FILTER_FUNCTION(min)
{
    return extreme(run, self, given, false);
}

COT_JINJA_FILTER_FUNCTION(reverse)
{
    cot_jinja_bind(run, given, "reverse", "", 0, NULL);
    if (self.type == COT_JINJA_STRING)
        return cot_jinja_slice(run, self, (const value[3]){{0}, {0}, cot_jinja_integer(-1)});
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    value out = cot_jinja_sequence_new(run, COT_JINJA_GENERATOR, items->count);
    for (size_t i = 0; i < items->count; i++) out.sequence->items[i] = items->items[items->count - 1 - i];
    return out;
}

/* As Jinja has it a list for each item, of what each of the attributes (with commas between) gives: two items that both
 * lack one are equal there. */
static value *sort_keys(cot_jinja_run *run, const cot_jinja_sequence *items, value attribute, bool exact)
{
    value *keys = cot_jinja_take(run, items->count, sizeof *keys);
    cot_jinja_arguments comma = {.items = (value[]){cot_jinja_text(run, ",")}, .count = 1};
    value paths = cot_jinja_sequence_new(run, COT_JINJA_LIST, 1);
    paths.sequence->items[0] = attribute;
    if (attribute.type == COT_JINJA_STRING)
        paths = cot_jinja_method(attribute, "split")(run, attribute, &comma);
    for (size_t i = 0; i < items->count; i++)
        keys[i] = cot_jinja_sequence_new(run, COT_JINJA_LIST, paths.sequence->count);
    for (size_t k = 0; k < paths.sequence->count; k++) {
        const value *column = keys_of(run, items, paths.sequence->items[k], exact);
        for (size_t i = 0; i < items->count; i++) keys[i].sequence->items[k] = column[i];
    }
    return keys;
}

COT_JINJA_FILTER_FUNCTION(sort)
{
    value a[3];
    cot_jinja_bind(run, given, "sort", "reverse case_sensitive attribute", 0, a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    const value *keys = sort_keys(run, items, a[2], cot_jinja_truth(a[1]));
    size_t *order = cot_jinja_sorted(run, keys, items->count, cot_jinja_truth(a[0]));
    value out = cot_jinja_sequence_new(run, COT_JINJA_LIST, items->count);
    for (size_t i = 0; i < items->count; i++) out.sequence->items[i] = items->items[order[i]];
    return out;
}

COT_JINJA_FILTER_FUNCTION(sum)
{
    value a[2];
    cot_jinja_bind(run, given, "sum", "attribute start", 0, a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    const value *keys = keys_of(run, items, a[0], true);
    value total = a[1].type != COT_JINJA_ABSENT ? a[1] : cot_jinja_integer(0);
    for (size_t i = 0; i < items->count; i++) total = cot_jinja_arithmetic(run, '+', total, keys[i]);
    return total;
}

COT_JINJA_FILTER_FUNCTION(unique)
{
    value a[2], out = generator(run), seen = cot_jinja_map_new(run, 0);
    size_t capacity = 0;
    cot_jinja_bind(run, given, "unique", "case_sensitive attribute", 0, a);
    const cot_jinja_sequence *items = cot_jinja_items_of(run, self);
    const value *keys = keys_of(run, items, a[1], cot_jinja_truth(a[0]));
    for (size_t i = 0; i < items->count; i++) {
        cot_jinja_check_key(run, keys[i]);
        if (cot_jinja_map_get(run, seen.map, keys[i]).type != COT_JINJA_ABSENT) continue;
        cot_jinja_map_append(run, seen.map, keys[i], cot_jinja_none());
        cot_jinja_sequence_add(run, out.sequence, &capacity, items->items[i]);
    }
    return out;
}
