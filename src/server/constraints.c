#include "server/constraints.h"

#include "server/api_fields.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a request says ---- */

static bool refuse(cot_api_error *error, const char *name)
{
    return cot_api_fail(error, 400, "unsupported_parameter", name, "'%s' is not supported", name);
}

/* A field says what the text has to be: its value is a text, or JSON that becomes one. */
static bool set(cot_api_request *r, cot_constraint_kind kind, const char *name, const json_t *value,
                cot_api_error *error)
{
    cot_api_constraint *c = &r->constraint;
    const bool is_schema = kind == COT_CONSTRAINT_JSON_SCHEMA;
    if (c->text)
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' and '%s' exclude one another", c->name,
                            name);
    if (kind == COT_CONSTRAINT_CHOICE ? !json_is_array(value)
        : is_schema ? !json_is_object(value) && !json_is_boolean(value) && !json_is_string(value)
                    : !json_is_string(value))
        return cot_api_mistyped(error, name, value,
                                kind == COT_CONSTRAINT_CHOICE ? "a list of strings"
                                : is_schema                   ? "a JSON schema"
                                                              : "a string");
    if (json_is_string(value) && cot_api_has_nul(value))
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' has the character U+0000", name);
    if (kind == COT_CONSTRAINT_LARK && strstr(json_string_value(value), "::="))
        return cot_api_fail(error, 400, "unsupported_parameter", name,
                            "'%s' is a grammar in GBNF ('::='), which is not supported: write it in Lark's "
                            "form, 'start: ...'",
                            name);
    c->kind = kind;
    c->name = name;
    c->text = json_is_string(value) ? strdup(json_string_value(value))
                                    : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    return c->text || cot_api_fail(error, 503, NULL, name, "out of memory");
}

/* Any object. */
static bool set_object(cot_api_request *r, const char *name, cot_api_error *error)
{
    json_t *schema = json_pack("{s:s}", "type", "object");
    const bool good = schema ? set(r, COT_CONSTRAINT_JSON_SCHEMA, name, schema, error)
                             : cot_api_fail(error, 503, NULL, name, "out of memory");
    json_decref(schema);
    return good;
}

/* OpenAI's, and `schema` beside `type`, as llama.cpp has it. Strict or not, the text meets the schema. */
static bool read_response_format(cot_api_request *r, cot_api_error *error)
{
    static const char name[] = "response_format";
    const json_t *format = cot_api_get(r->json, name);
    if (!format || cot_api_is_off(format) || cot_api_is_text(format, "text")) return true;
    if (!json_is_object(format)) return cot_api_mistyped(error, name, format, "an object");
    const json_t *type = cot_api_get(format, "type"), *schema = cot_api_get(format, "schema");
    if (!json_is_string(type) || cot_api_has_nul(type))
        return cot_api_fail(error, 400, "invalid_value", name, "'response_format' has no 'type'");
    if (cot_api_is_text(type, "text")) return true;
    if (cot_api_is_text(type, "json_object"))
        return schema ? set(r, COT_CONSTRAINT_JSON_SCHEMA, name, schema, error) : set_object(r, name, error);
    if (!cot_api_is_text(type, "json_schema"))
        return cot_api_fail(error, 400, "unsupported_parameter", name,
                            "'response_format' of type '%s' is not supported", json_string_value(type));
    const json_t *inner = cot_api_get(format, "json_schema");
    if (inner && !json_is_object(inner)) return cot_api_mistyped(error, "json_schema", inner, "an object");
    if (inner) schema = cot_api_get(inner, "schema");
    const json_t *strict = cot_api_get(inner ? inner : format, "strict");
    if (strict && !json_is_boolean(strict))
        return cot_api_fail(error, 400, "invalid_type", name,
                            "'strict' of 'response_format' is %s, expected true or false",
                            cot_api_type_name(strict));
    if (!schema)
        return cot_api_fail(error, 400, "missing_parameter", name, "'response_format' has no schema");
    return set(r, COT_CONSTRAINT_JSON_SCHEMA, name, schema, error);
}

/* vLLM's. */
static bool read_structured_outputs(cot_api_request *r, cot_api_error *error)
{
    static const struct {
        const char *name;
        cot_constraint_kind kind;
    } kinds[] = {{"json", COT_CONSTRAINT_JSON_SCHEMA},
                 {"regex", COT_CONSTRAINT_REGEX},
                 {"choice", COT_CONSTRAINT_CHOICE},
                 {"grammar", COT_CONSTRAINT_LARK}};
    const json_t *outputs = cot_api_get(r->json, "structured_outputs");
    const char *name, *first = NULL;
    json_t *value;
    if (!outputs || cot_api_is_off(outputs)) return true;
    if (!json_is_object(outputs)) return cot_api_mistyped(error, "structured_outputs", outputs, "an object");
    json_object_foreach((json_t *)outputs, name, value)
    {
        size_t i = 0;
        while (i < sizeof kinds / sizeof *kinds && strcmp(kinds[i].name, name) != 0) i++;
        if (json_is_null(value) || json_is_false(value) || strcmp(name, "disable_fallback") == 0) continue;
        if (first)
            return cot_api_fail(error, 400, "invalid_value", "structured_outputs",
                                "'%s' and '%s' in 'structured_outputs' exclude one another", first, name);
        if (i < sizeof kinds / sizeof *kinds) {
            if (!set(r, kinds[i].kind, "structured_outputs", value, error)) return false;
        } else if (strcmp(name, "json_object") == 0 && json_is_true(value)) {
            if (!set_object(r, "structured_outputs", error)) return false;
        } else
            return cot_api_fail(error, 400, "unsupported_parameter", "structured_outputs",
                                "'%s' in 'structured_outputs' is not supported", name);
        first = name;
    }
    return r->constraint.text || cot_api_fail(error, 400, "invalid_value", "structured_outputs",
                                              "'structured_outputs' says nothing that is known");
}

/* vLLM's former fields, SGLang's and llama.cpp's. */
static bool read_fields(cot_api_request *r, cot_api_error *error)
{
    static const struct {
        const char *name;
        cot_constraint_kind kind;
    } fields[] = {{"guided_json", COT_CONSTRAINT_JSON_SCHEMA},
                  {"guided_regex", COT_CONSTRAINT_REGEX},
                  {"guided_choice", COT_CONSTRAINT_CHOICE},
                  {"guided_grammar", COT_CONSTRAINT_LARK},
                  {"json_schema", COT_CONSTRAINT_JSON_SCHEMA},
                  {"regex", COT_CONSTRAINT_REGEX},
                  {"ebnf", COT_CONSTRAINT_LARK},
                  {"grammar", COT_CONSTRAINT_LARK}};
    const char *name;
    json_t *value;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *said = cot_api_get(r->json, fields[i].name);
        // `false` is a schema, and nothing else; clients that want none send "", but no list of choices with nothing in it, and {} is any JSON
        const bool says = (fields[i].kind == COT_CONSTRAINT_CHOICE && json_is_array(said)) ||
                          (fields[i].kind == COT_CONSTRAINT_JSON_SCHEMA && json_is_object(said));
        if (said && (says || !cot_api_is_off(said)) && !set(r, fields[i].kind, fields[i].name, said, error))
            return false;
    }
    json_object_foreach(r->json, name, value)
    {
        bool known = strcmp(name, "guided_decoding_backend") == 0; // there is one
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            known |= strcmp(name, fields[i].name) == 0;
        if (!known && strncmp(name, "guided_", 7) == 0 && !json_is_null(value) && !cot_api_is_off(value))
            return refuse(error, name);
    }
    return true;
}

bool cot_api_read_constraint(cot_api_request *r, cot_api_error *error)
{
    return read_response_format(r, error) && read_structured_outputs(r, error) && read_fields(r, error);
}

/* ---- constraints ---- */

void cot_served_constraints_open(cot_served_constraints *s, const cot_tokenizer *tokenizer, int64_t vocab,
                                 const int32_t *eos, size_t eos_count)
{
    *s = (cot_served_constraints){.tokenizer = tokenizer, .vocab = vocab, .eos = eos, .eos_count = eos_count};
    pthread_mutex_init(&s->lock, NULL);
}

/* Compiles what the field of that name says. False, with `error` filled in, where that is nothing that a text can be. */
static bool compile_field(cot_constraint **out, const cot_served_constraints *s, cot_constraint_kind kind,
                          const char *text, const char *name, cot_api_error *error)
{
    cot_error reason;
    const cot_status status = cot_constraint_compile(out, s->compiler, kind, text, strlen(text), &reason);
    if (status == COT_OUT_OF_MEMORY) return cot_api_fail_of(error, 503, name, &reason);
    return status == COT_OK ||
           cot_api_fail(error, 400, "invalid_value", name, "'%s': %s", name, reason.message);
}

/* Beside tools the format is tried by itself: in the grammar of both what nothing can meet leaves calls, and a fault has no name. */
static bool check_format(const cot_served_constraints *s, const cot_api_constraint *c, cot_api_error *error)
{
    cot_constraint *alone;
    const bool good =
        compile_field(&alone, s, COT_CONSTRAINT_JSON_SCHEMA, c->format, "response_format", error);
    cot_constraint_close(alone);
    return good;
}

/* The size of a grammar is that of all that it holds, of which the format may be the most. */
static bool check_size(const cot_api_constraint *c, cot_api_error *error)
{
    const size_t bytes = strlen(c->text), format = c->format ? strlen(c->format) : 0;
    const char *name = format > bytes / 2 ? "response_format" : c->name;
    return !c->is_of_calls || bytes <= COT_CONSTRAINT_MAX_BYTES ||
           cot_api_fail(
               error, 400, "invalid_value", name,
               "'%s': as a grammar the schemas of 'tools' and 'response_format' have %zu bytes together, "
               "at most %d may be",
               name, bytes, COT_CONSTRAINT_MAX_BYTES);
}

bool cot_served_constraints_compile(cot_served_constraints *s, cot_api_constraint *c, cot_api_error *error)
{
    const char *field = c->format ? "response_format" : c->name; // what needs the library
    cot_error reason;
    pthread_mutex_lock(&s->lock);
    const cot_status opened = s->compiler ? COT_OK
                                          : cot_constraint_compiler_open(&s->compiler, s->tokenizer, s->vocab,
                                                                         s->eos, s->eos_count, &reason);
    pthread_mutex_unlock(&s->lock);
    if (opened == COT_UNSUPPORTED)
        return cot_api_fail(error, 400, "unsupported_parameter", field, "'%s': %s", field, reason.message);
    if (opened != COT_OK) return cot_api_fail_of(error, 400, field, &reason);
    if ((c->format && !check_format(s, c, error)) || !check_size(c, error)) return false;
    return compile_field(&c->compiled, s, c->kind, c->text, c->name, error);
}

void cot_served_constraints_close(cot_served_constraints *s)
{
    if (!s->tokenizer) return; // it was not opened
    cot_constraint_compiler_close(s->compiler);
    pthread_mutex_destroy(&s->lock);
}
