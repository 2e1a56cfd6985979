/* Types of arguments as a tool's schema has them, and texts as values of these. */
#include "dialect/grammar.h"
#include "dialect/parser.h"

#include <string.h>
#include <strings.h>

enum {
    MOST_REFERENCES = 16, // that are followed one behind another, and schemas within schemas
    MOST_SCHEMAS = 1024,  // that are looked at in all: a schema may refer to itself many times
};

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", COT_DIALECT_STRING},   {"number", COT_DIALECT_NUMBER},
                 {"integer", COT_DIALECT_INTEGER}, {"boolean", COT_DIALECT_BOOLEAN},
                 {"null", COT_DIALECT_NULL},       {"object", COT_DIALECT_OBJECT},
                 {"array", COT_DIALECT_ARRAY}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].type;
    return 0;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return COT_DIALECT_STRING;
    case JSON_INTEGER:
        return COT_DIALECT_INTEGER;
    case JSON_REAL:
        return COT_DIALECT_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return COT_DIALECT_BOOLEAN;
    case JSON_NULL:
        return COT_DIALECT_NULL;
    case JSON_OBJECT:
        return COT_DIALECT_OBJECT;
    case JSON_ARRAY:
        return COT_DIALECT_ARRAY;
    }
    return 0;
}

const json_t *cot_dialect_follow(const json_t *root, const char *path)
{
    if (!path || strncmp(path, "#/", 2) != 0) return NULL;
    for (path += 2; root; path++) {
        const size_t bytes = strcspn(path, "/");
        root = json_object_getn(root, path, bytes);
        path += bytes;
        if (!*path) return root;
    }
    return NULL;
}

/* `*left`: schemas that may still be looked at. */
static unsigned types_of(const json_t *root, const json_t *schema, int depth, int *left)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *reference = json_object_get(schema, "$ref"),
                 *constant = json_object_get(schema, "const");
    unsigned types = type_named(json_string_value(type));
    size_t i;
    json_t *item;
    if (depth > MOST_REFERENCES || --*left < 0) return 0;
    json_array_foreach(type, i, item) types |= type_named(json_string_value(item));
    if (types) return types;
    if (reference)
        return types_of(root, cot_dialect_follow(root, json_string_value(reference)), depth + 1, left);
    if (constant) return type_of(constant);
    json_array_foreach(json_object_get(schema, "enum"), i, item) types |= type_of(item);
    for (size_t k = 0; k < sizeof lists / sizeof *lists && !types; k++)
        json_array_foreach(json_object_get(schema, lists[k]), i, item)
        {
            if (*left <= 0) break;
            types |= types_of(root, item, depth + 1, left);
        }
    if (!types && json_object_get(schema, "properties")) types = COT_DIALECT_OBJECT;
    if (!types && json_object_get(schema, "items")) types = COT_DIALECT_ARRAY;
    return types;
}

unsigned cot_dialect_types(const json_t *tool, const char *key)
{
    const json_t *root = json_object_get(tool, "parameters");
    int left = MOST_SCHEMAS;
    return types_of(root, json_object_get(json_object_get(root, "properties"), key), 0, &left);
}

/* Types of a text that is JSON; 0: it is none. Numbers keep their digits, however
 * large. */
static unsigned type_of_text(const char *text, size_t bytes)
{
    json_error_t why;
    json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value && json_error_code(&why) == json_error_numeric_overflow)
        value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    unsigned type = value ? type_of(value) : 0;
    if (json_is_number(value)) {
        const double number = json_number_value(value);
        type = COT_DIALECT_NUMBER | (json_is_integer(value) || (number < 1e18 && number > -1e18 &&
                                                                number == (double)(long long)number)
                                         ? COT_DIALECT_INTEGER
                                         : 0);
    }
    json_decref(value);
    return type;
}

bool cot_dialect_typed(cot_buffer *out, const char *text, size_t bytes, unsigned types)
{
    static const struct {
        const char *word;
        unsigned type;
    } words[] = {{"true", COT_DIALECT_BOOLEAN},
                 {"false", COT_DIALECT_BOOLEAN},
                 {"null", COT_DIALECT_NULL},
                 {"None", COT_DIALECT_NULL}};
    size_t from = 0, to = bytes;
    while (from < to && cot_dialect_is_space(text[from])) from++;
    while (to > from && cot_dialect_is_space(text[to - 1])) to--;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((words[i].type & types) && strlen(words[i].word) == to - from &&
            strncasecmp(words[i].word, text + from, to - from) == 0)
            return cot_buffer_text(out, i == 3 ? "null" : words[i].word);
    const unsigned type = to > from ? type_of_text(text + from, to - from) : 0;
    // of several types a string is what fits no other; with one type JSON is JSON
    const bool fits =
        types & COT_DIALECT_STRING ? (type & types & ~(unsigned)COT_DIALECT_STRING) != 0 : type != 0;
    if (fits) return cot_buffer_append(out, text + from, to - from);
    return cot_buffer_text(out, "\"") && cot_dialect_quote(out, text, bytes) && cot_buffer_text(out, "\"");
}
