#include "checkpoint/fields.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void cot_fields_refuse(cot_fields *fields, cot_status status, const char *format, ...)
{
    if (fields->status != COT_OK) return;
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fields->status = cot_fail(fields->error, status, "'%s': %s", fields->name, text);
}

void cot_fields_mistyped(cot_fields *fields, const char *key, const json_t *value, const char *expected)
{
    char real[32] = "";
    switch (json_typeof(value)) {
    case JSON_STRING:
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is \"%.60s\", expected %s", key,
                          json_string_value(value), expected);
        break;
    case JSON_INTEGER:
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %" PRId64 ", expected %s", key,
                          (int64_t)json_integer_value(value), expected);
        break;
    case JSON_REAL:
        json_dumpb(value, real, sizeof real - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6)); // with a point
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %s, expected %s", key, real, expected);
        break;
    default:
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %s, expected %s", key,
                          json_is_object(value)  ? "an object"
                          : json_is_array(value) ? "a list"
                          : json_is_true(value)  ? "true"
                          : json_is_false(value) ? "false"
                                                 : "null",
                          expected);
    }
}

const json_t *cot_fields_get(const cot_fields *fields, const char *key)
{
    return json_object_get(fields->object, key);
}

bool cot_fields_has(const cot_fields *fields, const char *key)
{
    const json_t *value = cot_fields_get(fields, key);
    return value && !json_is_null(value);
}

int64_t cot_fields_integer(cot_fields *fields, const char *key, int64_t absent, int64_t least, int64_t most)
{
    const json_t *value = cot_fields_get(fields, key);
    if (!value || fields->status != COT_OK) return absent;
    int64_t number = json_integer_value(value);
    if (json_is_integer(value) && number >= least && number <= most) return number;
    char expected[80];
    snprintf(expected, sizeof expected, "a whole number from %" PRId64 " to %" PRId64, least, most);
    cot_fields_mistyped(fields, key, value, expected);
    return absent;
}

double cot_fields_number(cot_fields *fields, const char *key, double absent)
{
    const json_t *value = cot_fields_get(fields, key);
    if (!value || fields->status != COT_OK) return absent;
    if (json_is_number(value)) return json_number_value(value);
    cot_fields_mistyped(fields, key, value, "a number");
    return absent;
}

bool cot_fields_switch(cot_fields *fields, const char *key, bool absent)
{
    const json_t *value = cot_fields_get(fields, key);
    if (!value || fields->status != COT_OK) return absent;
    if (json_is_boolean(value)) return json_is_true(value);
    cot_fields_mistyped(fields, key, value, "true or false");
    return absent;
}

const char *cot_fields_text(cot_fields *fields, const char *key, const char *absent)
{
    const json_t *value = cot_fields_get(fields, key);
    if (!value || json_is_null(value) || fields->status != COT_OK) return absent;
    if (json_is_string(value)) return json_string_value(value);
    cot_fields_mistyped(fields, key, value, "a string");
    return absent;
}
