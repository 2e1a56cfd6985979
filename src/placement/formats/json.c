#include "placement/formats/formats.h"

#include "base/error.h"

#include <inttypes.h>

static bool whole_number(int32_t *value, const json_t *json, int32_t least, int32_t most)
{
    json_int_t n = json_integer_value(json);
    if (!json_is_integer(json) || n < least || n > most) return false;
    *value = (int32_t)n;
    return true;
}

cot_status cot_map_json_integer(int32_t *value, const json_t *object, const char *key, int32_t least,
                                int32_t most, const char *path, cot_error *error)
{
    const json_t *json = json_object_get(object, key);
    if (json && whole_number(value, json, least, most)) return COT_OK;
    return cot_fail(error, COT_MALFORMED,
                    "'%s': '%s' is %s, expected a whole number from %" PRId32 " to %" PRId32, path, key,
                    json ? "something else" : "missing", least, most);
}

cot_status cot_map_json_row(int32_t *to, size_t count, const json_t *array, int32_t least, int32_t most,
                            const char *name, const char *path, cot_error *error)
{
    if (!json_is_array(array) || json_array_size(array) != count)
        return cot_fail(error, COT_MALFORMED, "'%s': %s is no array of %zu numbers", path, name, count);
    for (size_t i = 0; i < count; i++)
        if (!whole_number(&to[i], json_array_get(array, i), least, most))
            return cot_fail(error, COT_MALFORMED,
                            "'%s': number %zu of %s is no whole number from %" PRId32 " to %" PRId32, path, i,
                            name, least, most);
    return COT_OK;
}

void cot_map_print_row(FILE *stream, const int32_t *row, size_t count)
{
    putc('[', stream);
    for (size_t i = 0; i < count; i++) fprintf(stream, "%s%" PRId32, i ? ", " : "", row[i]);
    putc(']', stream);
}
