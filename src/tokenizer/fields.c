#include "tokenizer/fields.h"

#include "base/error.h"

#include <string.h>

cot_status cot_field_text(cot_text *out, const json_t *object, const char *key, const char *where,
                          cot_error *error)
{
    const json_t *value = json_object_get(object, key);
    *out = (cot_text){0};
    if (!value || json_is_null(value)) return COT_OK;
    if (!json_is_string(value))
        return cot_fail(error, COT_MALFORMED, "'%s' of the %s is not a string", key, where);
    *out = (cot_text){json_string_value(value), json_string_length(value)};
    return COT_OK;
}

cot_status cot_field_text_needed(cot_text *out, const json_t *object, const char *key, const char *where,
                                 cot_error *error)
{
    cot_status status = cot_field_text(out, object, key, where, error);
    if (status == COT_OK && !out->data)
        status = cot_fail(error, COT_MALFORMED, "the %s has no '%s'", where, key);
    return status;
}

cot_status cot_field_bool(bool *out, const json_t *object, const char *key, bool fallback, const char *where,
                          cot_error *error)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (!value || json_is_null(value)) return COT_OK;
    if (!json_is_boolean(value))
        return cot_fail(error, COT_MALFORMED, "'%s' of the %s is neither true nor false", key, where);
    *out = json_is_true(value);
    return COT_OK;
}

cot_status cot_field_type(const char **out, const json_t *object, const char *where, cot_error *error)
{
    cot_text type;
    if (!json_is_object(object)) return cot_fail(error, COT_MALFORMED, "the %s is not an object", where);
    cot_status status = cot_field_text_needed(&type, object, "type", where, error);
    *out = type.data;
    return status;
}

bool cot_text_is(cot_text text, const char *literal)
{
    return text.data && text.bytes == strlen(literal) && !memcmp(text.data, literal, text.bytes);
}

static cot_status walk(const json_t *component, const char *where, const char *list_key,
                       cot_component_load *load, void *context, int *steps, int depth, cot_error *error)
{
    const char *type;
    cot_status status = cot_field_type(&type, component, where, error);
    if (status != COT_OK) return status;
    if (++*steps > COT_TOKENIZER_MAX_STEPS || depth > 8)
        return cot_fail(error, COT_UNSUPPORTED, "the %s has more than %d parts, or they nest deeper than 8",
                        where, COT_TOKENIZER_MAX_STEPS);
    if (strcmp(type, "Sequence")) return load(context, component, type, error);
    const json_t *list = json_object_get(component, list_key);
    if (!json_is_array(list))
        return cot_fail(error, COT_MALFORMED, "'%s' of the %s is not a list", list_key, where);
    for (size_t i = 0; i < json_array_size(list) && status == COT_OK; i++)
        status = walk(json_array_get(list, i), where, list_key, load, context, steps, depth + 1, error);
    return status;
}

cot_status cot_field_steps(const json_t *component, const char *where, const char *list_key,
                           cot_component_load *load, void *context, cot_error *error)
{
    int steps = 0;
    if (!component || json_is_null(component)) return COT_OK;
    return walk(component, where, list_key, load, context, &steps, 1, error);
}
