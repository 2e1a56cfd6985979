#include "server/tools.h"

#include "server/api_fields.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is offered ---- */

static bool is_name(const json_t *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const size_t bytes = json_string_length(name);
    return json_is_string(name) && bytes && bytes <= COT_API_MAX_TOOL_NAME &&
           strspn(json_string_value(name), letters) == bytes;
}

/* Whether a schema's type lets objects be; NULL: any type may come. */
static bool may_be_object(const json_t *type)
{
    size_t i;
    json_t *item;
    json_array_foreach(type, i, item) if (cot_api_is_text(item, "object")) return true;
    return !type || cot_api_is_text(type, "object");
}

static bool check_function(const json_t *function, const char *list, size_t index, cot_api_error *error)
{
    const json_t *name = json_object_get(function, "name"), *parameters = cot_api_get(function, "parameters");
    if (!json_is_object(function))
        return cot_api_fail(error, 400, "invalid_value", list, "%s[%zu] has no 'function'", list, index);
    if (!is_name(name))
        return cot_api_fail(error, 400, "invalid_value", list,
                            "%s[%zu] has no 'name' of 1 to %d letters, digits, '_', '-' and '.'", list, index,
                            COT_API_MAX_TOOL_NAME);
    if (parameters && !json_is_object(parameters))
        return cot_api_fail(error, 400, "invalid_type", list,
                            "'parameters' of %s[%zu] is %s, expected an object", list, index,
                            cot_api_type_name(parameters));
    const json_t *strict = cot_api_get(function, "strict");
    if (strict && !json_is_boolean(strict))
        return cot_api_fail(error, 400, "invalid_type", list,
                            "'strict' of %s[%zu] is %s, expected true or false", list, index,
                            cot_api_type_name(strict));
    if (!may_be_object(cot_api_get(parameters, "type")))
        return cot_api_fail(error, 400, "invalid_value", list,
                            "'parameters' of %s[%zu] are no schema of type 'object', which arguments are",
                            list, index);
    return true;
}

/* The first of those that have the name: several may. */
static json_t *tool_named(const cot_api_request *r, const char *name, size_t bytes)
{
    size_t i;
    json_t *tool;
    json_array_foreach(r->tools.list, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        const json_t *known = json_object_get(function, "name");
        if (json_string_length(known) == bytes && memcmp(json_string_value(known), name, bytes) == 0)
            return function;
    }
    return NULL;
}

/* `tools`, or former `functions`, each of which becomes a tool. */
static bool read_list(cot_api_request *r, const char *name, cot_api_error *error)
{
    const json_t *list = cot_api_get(r->json, name);
    const bool legacy = strcmp(name, "functions") == 0;
    size_t i;
    json_t *item;
    if (!list || (json_is_array(list) && !json_array_size(list))) return true;
    if (!json_is_array(list)) return cot_api_mistyped(error, name, list, "a list of tools");
    if (r->tools.list)
        return cot_api_fail(error, 400, "invalid_value", name, "'tools' and 'functions' exclude one another");
    if (json_array_size(list) > COT_API_MAX_TOOLS)
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' holds %zu tools, at most %d may be",
                            name, json_array_size(list), COT_API_MAX_TOOLS);
    r->tools.list = json_array();
    r->tools.legacy = legacy;
    bool good = r->tools.list;
    json_array_foreach(list, i, item)
    {
        const json_t *type = json_object_get(item, "type");
        if (!legacy && type && !cot_api_is_text(type, "function"))
            return cot_api_fail(error, 400, "unsupported_parameter", name,
                                "%s[%zu] is no tool of type 'function', which alone are supported", name, i);
        json_t *function = legacy ? item : json_object_get(item, "function");
        if (!check_function(function, name, i, error)) return false;
        good =
            good && !json_array_append_new(r->tools.list, legacy ? json_pack("{s:s, s:O}", "type", "function",
                                                                             "function", function)
                                                                 : json_incref(item));
    }
    return good || cot_api_fail(error, 503, NULL, name, "out of memory");
}

/* ---- what is chosen ---- */

/* Bytes of a text that a message shows: whole characters, and not too many. */
static int shown_bytes(const char *text)
{
    size_t bytes = strnlen(text, COT_API_MAX_TOOL_NAME + 1);
    if (bytes <= COT_API_MAX_TOOL_NAME) return (int)bytes;
    do bytes--;
    while (bytes && ((unsigned char)text[bytes] & 0xc0) == 0x80);
    return (int)bytes;
}

static bool choose_named(cot_api_request *r, const char *field, const json_t *name, cot_api_error *error)
{
    if (!json_is_string(name))
        return cot_api_fail(error, 400, "invalid_value", field, "'%s' names no tool", field);
    const json_t *function = tool_named(r, json_string_value(name), json_string_length(name));
    if (!function)
        return cot_api_fail(error, 400, "invalid_value", field,
                            "'%s' names '%.*s', which is none of the tools", field,
                            shown_bytes(json_string_value(name)), json_string_value(name));
    r->tools.choice = COT_API_TOOLS_NAMED;
    r->tools.named = json_string_value(json_object_get(function, "name"));
    return true;
}

/* `tool_choice`, or former `function_call`. */
static bool read_choice(cot_api_request *r, const char *field, cot_api_error *error)
{
    static const struct {
        const char *word;
        cot_api_tool_choice choice;
    } words[] = {{"none", COT_API_TOOLS_NONE},
                 {"auto", COT_API_TOOLS_AUTO},
                 {"required", COT_API_TOOLS_REQUIRED},
                 {"any", COT_API_TOOLS_REQUIRED}}; // Mistral's word
    const json_t *choice = cot_api_get(r->json, field);
    if (!choice) return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!cot_api_is_text(choice, words[i].word)) continue;
        if (words[i].choice == COT_API_TOOLS_REQUIRED && !r->tools.list)
            return cot_api_fail(error, 400, "invalid_value", field,
                                "'%s' asks for a call, and there are no tools", field);
        r->tools.choice = r->tools.list ? words[i].choice : COT_API_TOOLS_NONE;
        return true;
    }
    if (json_is_object(choice)) {
        const json_t *function = json_object_get(choice, "function");
        return choose_named(r, field, json_object_get(function ? function : choice, "name"), error);
    }
    if (json_is_string(choice) && !cot_api_has_nul(choice))
        return cot_api_fail(error, 400, "invalid_value", field,
                            "'%s' is '%.*s', it may be 'none', 'auto', 'required' or name a tool", field,
                            shown_bytes(json_string_value(choice)), json_string_value(choice));
    return cot_api_mistyped(error, field, choice, "a string or an object that names a tool");
}

/* The field that goes with the other list has nothing to say: a wish in it is not passed over. */
static bool check_other_choice(const cot_api_request *r, cot_api_error *error)
{
    const char *field = r->tools.legacy ? "tool_choice" : "function_call",
               *list = r->tools.legacy ? "tools" : "functions";
    const json_t *choice = cot_api_get(r->json, field);
    if (!choice || cot_api_is_text(choice, "auto") || (!r->tools.list && cot_api_is_text(choice, "none")))
        return true;
    return cot_api_fail(error, 400, "invalid_value", field, "'%s' goes with '%s', which are not given", field,
                        list);
}

/* ---- what the text has to be ---- */

/* Whether a schema's member holds schemas by names, which are no keywords. */
static bool holds_named(const char *key)
{
    static const char *const holders[] = {"properties", "$defs", "definitions", "patternProperties",
                                          "dependentSchemas"};
    for (size_t i = 0; i < sizeof holders / sizeof *holders; i++)
        if (strcmp(key, holders[i]) == 0) return true;
    return false;
}

/* References within a schema that becomes a part of another: "#" and "#/..." are `path` and below it then, as its own address is gone.
 * `by_name`: it is no schema, but holds some by names. */
static bool move_references(json_t *schema, const char *path, bool by_name)
{
    const char *key;
    json_t *value;
    size_t i;
    bool good = true;
    if (!by_name && json_is_string(json_object_get(schema, "$id"))) json_object_del(schema, "$id");
    json_object_foreach(schema, key, value)
    {
        const char *reference = !by_name && strcmp(key, "$ref") == 0 ? json_string_value(value) : NULL;
        if (reference && *reference == '#' && (!reference[1] || reference[1] == '/'))
            good = good && !json_object_set_new(schema, key, json_sprintf("%s%s", path, reference + 1));
        else if (by_name || (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0))
            good = good && move_references(value, path, !by_name && holds_named(key));
    }
    json_array_foreach(schema, i, value) good = good && move_references(value, path, false);
    return good;
}

/* Whether a schema's properties are all that it says of an object's members. */
static bool lists_members(const json_t *schema)
{
    static const char *const others[] = {"additionalProperties",
                                         "patternProperties",
                                         "unevaluatedProperties",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "if",
                                         "$ref",
                                         "minProperties"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_object_get(schema, others[i])) return false;
    return json_object_size(json_object_get(schema, "properties")) > 0;
}

/* The schema of arguments, which are an object whatever else it says, with those that it lists where it lists some: functions take no
 * others. The caller's. */
static json_t *parameters_of(const json_t *tool)
{
    const json_t *parameters = cot_api_get(json_object_get(tool, "function"), "parameters");
    json_t *schema = parameters ? json_deep_copy(parameters) : json_object();
    if (schema && lists_members(schema)) json_object_set_new(schema, "additionalProperties", json_false());
    if (schema && !json_object_set_new(schema, "type", json_string("object"))) return schema;
    json_decref(schema);
    return NULL;
}

/* A list of calls of any of the tools. */
static json_t *list_schema(const cot_api_request *r)
{
    json_t *kinds = json_array(), *tool;
    size_t i;
    bool good = kinds;
    json_array_foreach(r->tools.list, i, tool)
    {
        char path[64];
        snprintf(path, sizeof path, "#/items/anyOf/%zu/properties/parameters", i);
        json_t *parameters = parameters_of(tool);
        good = good && parameters && move_references(parameters, path, false);
        good = good &&
               !json_array_append_new(
                   kinds, json_pack("{s:s, s:{s:{s:O}, s:O}, s:[s, s], s:b}", "type", "object", "properties",
                                    "name", "const",
                                    json_object_get(json_object_get(tool, "function"), "name"), "parameters",
                                    parameters, "required", "name", "parameters", "additionalProperties", 0));
        json_decref(parameters);
    }
    json_t *schema =
        good ? json_pack("{s:s, s:i, s:{s:O}}", "type", "array", "minItems", 1, "items", "anyOf", kinds)
             : NULL;
    json_decref(kinds);
    if (schema && (!r->tools.parallel || r->tools.legacy))
        json_object_set_new(schema, "maxItems", json_integer(1));
    return schema;
}

static bool constrain(cot_api_request *r, const char *field, cot_api_error *error)
{
    cot_api_constraint *c = &r->constraint;
    if (r->tools.choice != COT_API_TOOLS_REQUIRED && r->tools.choice != COT_API_TOOLS_NAMED) return true;
    if (c->text && strcmp(c->name, "response_format") != 0)
        return cot_api_fail(error, 400, "invalid_value", field, "'%s' and '%s' exclude one another", c->name,
                            field);
    free(c->text); // the format is that of content, and there is none
    c->text = NULL;
    json_t *schema = NULL, *tool;
    size_t i;
    if (r->tools.choice == COT_API_TOOLS_REQUIRED)
        schema = list_schema(r);
    else
        json_array_foreach(r->tools.list, i, tool) if (json_string_value(json_object_get(
                                                           json_object_get(tool, "function"), "name")) ==
                                                       r->tools.named) schema = parameters_of(tool);
    c->kind = COT_CONSTRAINT_JSON_SCHEMA;
    c->name = field;
    c->text = schema ? json_dumps(schema, JSON_COMPACT) : NULL;
    json_decref(schema);
    return c->text || cot_api_fail(error, 503, NULL, field, "out of memory");
}

bool cot_api_read_tools(cot_api_request *r, cot_api_error *error)
{
    r->tools.parallel = true;
    if (!read_list(r, "tools", error) || !read_list(r, "functions", error) ||
        !cot_api_get_bool(&r->tools.parallel, r->json, "parallel_tool_calls", error))
        return false;
    r->tools.choice = r->tools.list ? COT_API_TOOLS_AUTO : COT_API_TOOLS_NONE;
    const char *field = r->tools.legacy ? "function_call" : "tool_choice";
    return check_other_choice(r, error) && read_choice(r, field, error) && constrain(r, field, error);
}

/* ---- messages of former times ---- */

static bool is_former(const json_t *message)
{
    return cot_api_get(message, "function_call") ||
           cot_api_is_text(json_object_get(message, "role"), "function");
}

/* Former calls have no id, and their templates may want one of nine letters and digits, as Mistral's do. */
static const char former_id[] = "function0";

static json_t *translated(const json_t *message)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)message), *call = cot_api_get(message, "function_call");
    bool good = copy;
    if (cot_api_is_text(json_object_get(message, "role"), "function"))
        good = good && !json_object_set_new(copy, "role", json_string("tool")) &&
               !json_object_set_new(copy, "tool_call_id", json_string(former_id));
    if (call) {
        json_object_del(copy, "function_call");
        good = good && !json_object_set_new(copy, "tool_calls",
                                            json_pack("[{s:s, s:s, s:O}]", "id", former_id, "type",
                                                      "function", "function", call));
    }
    if (good) return copy;
    json_decref(copy);
    return NULL;
}

json_t *cot_api_tool_messages(json_t *messages)
{
    size_t i;
    json_t *message, *out = json_array();
    bool good = out;
    json_array_foreach(messages, i, message) good =
        good && !json_array_append_new(out, is_former(message) ? translated(message) : json_incref(message));
    if (good) return out;
    json_decref(out);
    return NULL;
}
