/* The functions that templates find beside their variables. */
#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/print.h"

#include <locale.h>
#include <string.h>
#include <time.h>

typedef cot_jinja_value value;

enum { LONGEST_RANGE = 100000 }; // as Jinja's sandbox has it

#define FUNCTION(name) static value name(cot_jinja_run *run, value self, const cot_jinja_arguments *given)

FUNCTION(range)
{
    value a[3];
    (void)self;
    cot_jinja_bind(run, given, "range", "start stop step", 1, a);
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < 3 && a[i].type != COT_JINJA_ABSENT; i++) {
        if (cot_jinja_is_undefined(a[i])) cot_jinja_fail_undefined(run, a[i]);
        if (!cot_jinja_is_integer(a[i]))
            cot_jinja_fail(run, COT_JINJA_PYTHON, "range() takes integers, not '%s'",
                           cot_jinja_type_name(a[i]));
        bounds[i] = cot_jinja_as_integer(a[i]);
    }
    if (a[1].type == COT_JINJA_ABSENT) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    const int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (!step) cot_jinja_fail(run, COT_JINJA_PYTHON, "range() arg 3 must not be zero");
    const bool empty = step > 0 ? stop <= start : stop >= start;
    const uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    const uint64_t size = step > 0 ? (uint64_t)step : 0 - (uint64_t)step,
                   count = empty ? 0 : (span - 1) / size + 1;
    if (count > LONGEST_RANGE)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "a range of more than %d items", LONGEST_RANGE);
    value out = cot_jinja_sequence_new(run, COT_JINJA_RANGE, (size_t)count);
    for (uint64_t i = 0; i < count; i++)
        out.sequence->items[i] = cot_jinja_integer(start + (int64_t)i * step);
    out.sequence->start = start;
    out.sequence->stop = stop;
    out.sequence->stride = step;
    return out;
}

/* A dict of a dict or of pairs, and of the named arguments. */
static value collect(cot_jinja_run *run, const cot_jinja_arguments *given)
{
    value out = cot_jinja_map_new(run, given->named);
    if (given->count > 1) cot_jinja_fail(run, COT_JINJA_PYTHON, "dict() takes at most one argument");
    if (given->count && given->items[0].type == COT_JINJA_MAP) {
        const cot_jinja_map *map = given->items[0].map;
        if (map->read) *map->read = true;
        for (size_t i = 0; i < map->count; i++)
            cot_jinja_map_append(run, out.map, map->entries[i].key, map->entries[i].value);
    } else if (given->count) {
        const cot_jinja_sequence *pairs = cot_jinja_items_of(run, given->items[0]);
        for (size_t i = 0; i < pairs->count; i++) {
            const cot_jinja_sequence *pair = cot_jinja_items_of(run, pairs->items[i]);
            if (pair->count != 2) cot_jinja_fail(run, COT_JINJA_PYTHON, "dict() takes pairs");
            cot_jinja_check_key(run, pair->items[0]);
            cot_jinja_map_put(run, out.map, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < given->named; i++)
        cot_jinja_map_put(run, out.map, cot_jinja_text(run, given->names[i]), given->named_items[i]);
    return out;
}

FUNCTION(dict)
{
    (void)self;
    return collect(run, given);
}

FUNCTION(namespace)
{
    (void)self;
    value out = collect(run, given);
    out.type = COT_JINJA_NAMESPACE;
    for (size_t i = 0; i < out.map->count; i++) {
        value key = out.map->entries[i].key;
        if (key.type == COT_JINJA_STRING && key.string->bytes && key.string->data[0] == '_')
            cot_jinja_fail(run, COT_JINJA_SECURITY, "a namespace cannot store names that begin with '_'");
    }
    return out;
}

FUNCTION(raise_exception)
{
    value message;
    (void)self;
    cot_jinja_bind(run, given, "raise_exception", "message", 1, &message);
    const cot_jinja_string *s = cot_jinja_str(run, message);
    cot_jinja_fail(run, COT_JINJA_RAISED, "%.*s", s->bytes > 1000 ? 1000 : (int)s->bytes,
                   s->data ? s->data : "");
}

FUNCTION(strftime_now)
{
    value format;
    char text[512], wanted[256];
    struct tm now;
    (void)self;
    cot_jinja_bind(run, given, "strftime_now", "format", 1, &format);
    const cot_jinja_string *s = cot_jinja_str(run, format);
    if (s->bytes >= sizeof wanted - 1 || (s->bytes && memchr(s->data, 0, s->bytes)))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "the format of strftime_now() is too long, or holds a NUL");
    if (!s->bytes) return cot_jinja_text(run, "");
    memcpy(wanted, s->data, s->bytes);
    wanted[s->bytes] = 0;
    const time_t seconds = time(NULL);
    if (run->now)
        now = *run->now;
    else
        localtime_r(&seconds, &now);
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
    if (!c) cot_jinja_fail(run, COT_JINJA_NO_MEMORY, "out of memory");
    size_t bytes = strftime_l(text, sizeof text, wanted, &now, c);
    freelocale(c);
    return cot_jinja_string_new(run, text, bytes, !memchr(s->own, 0, s->bytes));
}

cot_jinja_function *cot_jinja_global(const char *name)
{
    static const struct {
        const char *name;
        cot_jinja_function *function;
    } functions[] = {{"range", range},
                     {"dict", dict},
                     {"namespace", namespace},
                     {"raise_exception", raise_exception},
                     {"strftime_now", strftime_now}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].function;
    return NULL;
}
