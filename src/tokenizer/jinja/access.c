/* object.name, object[key], object[a:b:c]. */
#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/utf8.h"

#include <string.h>

typedef cot_jinja_value value;

/* What Python's lists and dicts have and Jinja's sandbox hides, since it changes them; and what names its insides. */
static bool is_hidden(value object, const char *name)
{
    static const char *const of_lists[] = {"append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    bool list = object.type == COT_JINJA_SEQUENCE && object.sequence->kind == COT_JINJA_LIST;
    const char *const *names = list ? of_lists : object.type == COT_JINJA_MAP ? of_dicts : NULL;
    for (; names && *names; names++)
        if (!strcmp(*names, name)) return true;
    size_t bytes = strlen(name);
    return bytes > 4 && !strncmp(name, "__", 2) && !strcmp(name + bytes - 2, "__");
}

/* What the object has by itself, before its keys; absent where nothing. */
static value own_attribute(cot_jinja_run *run, value object, const char *name)
{
    if (object.type == COT_JINJA_NAMESPACE) return cot_jinja_map_find(run, object.map, name);
    if (object.type == COT_JINJA_LOOP) return cot_jinja_loop_attribute(run, object, name);
    cot_jinja_function *method = cot_jinja_method(object, name);
    if (method) return cot_jinja_function_value(run, name, method, object);
    return is_hidden(object, name) ? cot_jinja_hidden(run, object, name) : (value){0};
}

static value no_attribute(cot_jinja_run *run, value object, const char *name)
{
    if (object.type == COT_JINJA_NONE)
        return cot_jinja_undefined(run, "'None' has no attribute '%.100s'", name);
    return cot_jinja_undefined(run, "'%s object' has no attribute '%.100s'", cot_jinja_type_name(object),
                               name);
}

value cot_jinja_attribute(cot_jinja_run *run, value object, const char *name)
{
    if (cot_jinja_is_undefined(object)) cot_jinja_fail_undefined(run, object);
    value found = own_attribute(run, object, name);
    if (found.type == COT_JINJA_ABSENT && object.type == COT_JINJA_MAP)
        found = cot_jinja_map_find(run, object.map, name);
    return found.type != COT_JINJA_ABSENT ? found : no_attribute(run, object, name);
}

static value by_index(cot_jinja_run *run, value object, int64_t index)
{
    int64_t length = cot_jinja_length(object);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return (value){0};
    if (object.type == COT_JINJA_SEQUENCE) return object.sequence->items[index];
    size_t from = cot_jinja_offset(object.string, (size_t)index);
    cot_jinja_step(run, object.string->bytes / 64);
    return cot_jinja_part(run, object.string, from, from + cot_utf8_length(object.string->data[from]));
}

static bool has_indices(value object)
{
    return object.type == COT_JINJA_STRING ||
           (object.type == COT_JINJA_SEQUENCE && object.sequence->kind <= COT_JINJA_RANGE);
}

value cot_jinja_item(cot_jinja_run *run, value object, value key)
{
    value found = {0};
    if (cot_jinja_is_undefined(object)) cot_jinja_fail_undefined(run, object);
    if (object.type == COT_JINJA_MAP)
        found = cot_jinja_map_get(run, object.map, key);
    else if (has_indices(object) && cot_jinja_is_integer(key))
        found = by_index(run, object, cot_jinja_as_integer(key));
    if (found.type != COT_JINJA_ABSENT) return found;
    if (key.type == COT_JINJA_STRING) {
        char name[128] = "";
        if (key.string->bytes && key.string->bytes < sizeof name &&
            !memchr(key.string->data, 0, key.string->bytes))
            memcpy(name, key.string->data, key.string->bytes);
        found = own_attribute(run, object, name);
        return found.type != COT_JINJA_ABSENT ? found : no_attribute(run, object, name);
    }
    cot_jinja_builder b = {.run = run};
    cot_jinja_repr(&b, key);
    return cot_jinja_undefined(run, "%s%s has no element %.*s", cot_jinja_type_name(object),
                               object.type == COT_JINJA_NONE ? "" : " object",
                               b.bytes > 100 ? 100 : (int)b.bytes, b.data ? b.data : "");
}

static int64_t bound(cot_jinja_run *run, value v, int64_t fallback, int64_t length, int64_t least,
                     int64_t most)
{
    if (v.type == COT_JINJA_ABSENT || v.type == COT_JINJA_NONE) return fallback;
    if (!cot_jinja_is_integer(v))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "slice indices must be integers or None");
    int64_t index = cot_jinja_as_integer(v);
    if (index < 0) index = index < -length ? least : index + length;
    return index < least ? least : index > most ? most : index;
}

static value slice_string(cot_jinja_run *run, const cot_jinja_string *s, int64_t start, int64_t stride,
                          int64_t count)
{
    if (stride == 1) {
        size_t from = cot_jinja_offset(s, (size_t)start);
        cot_jinja_string rest = {s->data ? s->data + from : NULL, NULL, s->bytes - from, false, NULL};
        return cot_jinja_part(run, s, from, from + cot_jinja_offset(&rest, (size_t)count));
    }
    const cot_jinja_sequence *characters =
        cot_jinja_items_of(run, (value){.type = COT_JINJA_STRING, .string = s});
    cot_jinja_builder b = {.run = run};
    for (int64_t i = 0; i < count; i++)
        cot_jinja_add_string(&b, characters->items[start + i * stride].string);
    return cot_jinja_built(&b, s->safe);
}

value cot_jinja_slice(cot_jinja_run *run, value object, const value *bounds)
{
    if (cot_jinja_is_undefined(object)) cot_jinja_fail_undefined(run, object);
    if (!has_indices(object)) // a dict looks for the slice as for a key
        return cot_jinja_undefined(run, "'%s' object has no such element", cot_jinja_type_name(object));
    int64_t length = cot_jinja_length(object), stride = 1;
    if (bounds[2].type != COT_JINJA_ABSENT && bounds[2].type != COT_JINJA_NONE) {
        if (!cot_jinja_is_integer(bounds[2]))
            cot_jinja_fail(run, COT_JINJA_PYTHON, "slice indices must be integers or None");
        stride = cot_jinja_as_integer(bounds[2]);
    }
    if (!stride) cot_jinja_fail(run, COT_JINJA_PYTHON, "slice step cannot be zero");
    if (stride < -length - 1) stride = -length - 1; // more is the same, and no sum overflows
    if (stride > length + 1) stride = length + 1;
    bool back = stride < 0;
    int64_t least = back ? -1 : 0, most = back ? length - 1 : length;
    int64_t start = bound(run, bounds[0], back ? most : 0, length, least, most);
    int64_t stop = bound(run, bounds[1], back ? -1 : length, length, least, most);
    int64_t count = back ? (start - stop - stride - 1) / -stride : (stop - start + stride - 1) / stride;
    if (count < 0) count = 0;
    cot_jinja_step(run, 1 + (uint64_t)count / 16);
    if (object.type == COT_JINJA_STRING) return slice_string(run, object.string, start, stride, count);
    value out = cot_jinja_sequence_new(
        run, object.sequence->kind == COT_JINJA_TUPLE ? COT_JINJA_TUPLE : COT_JINJA_LIST, (size_t)count);
    for (int64_t i = 0; i < count; i++) out.sequence->items[i] = object.sequence->items[start + i * stride];
    return out;
}
