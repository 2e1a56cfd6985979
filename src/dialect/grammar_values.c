/* Arguments that are no JSON object, by their schema: values in tags, which are text or JSON by their type, and keywords of Python. */
#include "dialect/grammar.h"
#include "dialect/parser.h"

#include <stdio.h>
#include <string.h>

#define PUT COT_DIALECT_PUT
#define ANY COT_DIALECT_ANY

enum { MOST_REFERENCES = 16 }; // that are followed one behind another, and schemas within schemas

/* An argument that is written. */
typedef struct argument {
    const json_t *root; // the tool's parameters
    const char *key;
    size_t number, count; // of the tool; of texts among its values so far
    cot_buffer texts;     // their rules
} argument;

static const json_t *resolved(const json_t *root, const json_t *schema)
{
    for (int i = 0; i < MOST_REFERENCES; i++) {
        const json_t *reference = json_object_get(schema, "$ref");
        if (!reference) return schema;
        schema = cot_dialect_follow(root, json_string_value(reference));
    }
    return NULL;
}

/* Keywords that say more than the grammar can. False: there is one. */
static bool check_keywords(cot_dialect_writer *w, const json_t *schema, const char *const *keywords,
                           const char *key)
{
    for (; *keywords; keywords++)
        if (json_object_get(schema, *keywords)) {
            cot_dialect_refuse(w, *keywords, key);
            return false;
        }
    return true;
}

/* ---- texts ---- */

/* A pattern, which may be found anywhere, as one that all of the text matches. */
static void put_pattern(cot_dialect_writer *w, const char *pattern)
{
    size_t bytes = strlen(pattern), slashes = 0;
    const bool begins = *pattern == '^';
    while (bytes > 1 + slashes && pattern[bytes - 2 - slashes] == '\\') slashes++;
    const bool ends = bytes > begins && pattern[bytes - 1] == '$' && slashes % 2 == 0;
    PUT(w, " & /", begins ? "" : ANY, "(");
    for (size_t i = begins; i < bytes - ends; i++) {
        const char c[] = {pattern[i], 0};
        if (*c == '\\' && i + 1 < bytes - ends) {
            const char pair[] = {'\\', pattern[++i], 0};
            PUT(w, pair);
        } else
            PUT(w, *c == '/' ? "\\/" : *c == '\n' ? "\\n" : c);
    }
    PUT(w, ")", ends ? "" : ANY, "/");
}

static void put_format(cot_dialect_writer *w, const char *format, const char *key)
{
/* The last days of months too; of February's 29th the years that have one. */
#define DATE                                                                                                 \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"                \
    "02-(0[1-9]|1[0-9]|2[0-8]))|"                                                                            \
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])"
    static const struct {
        const char *format, *pattern;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"}, // read in any case (RFC 4122)
        {"email", "[A-Za-z0-9_+\\-]{1,32}(\\.[A-Za-z0-9_+\\-]{1,32}){0,3}@[A-Za-z0-9]{1,32}"
                  "(-[A-Za-z0-9]{1,32}){0,3}(\\.[A-Za-z]{2,16}){1,3}"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0) {
            PUT(w, " & /", formats[i].pattern, "/");
            return;
        }
    cot_dialect_refuse(w, "format", key);
}

/* Nothing in a value ends it, or the call. */
static void put_tags_left_out(cot_dialect_writer *w)
{
    const cot_dialect *d = w->calls;
    const char *const tags[] = {d->value_end, d->key, d->function_end, d->call_end};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!tags[i]) continue;
        PUT(w, " & ~/" ANY);
        cot_dialect_put_escaped(w, tags[i]);
        PUT(w, ANY "/");
    }
}

/* What ends a value. */
static void put_end(cot_dialect_writer *w)
{
    if (w->calls->has_lines) cot_dialect_put_text(w, "\n");
    cot_dialect_put_marker(w, w->calls->value_end);
}

/* A text of that schema with what ends it: one word of the grammar, where that is no token. */
static void put_string(cot_dialect_writer *w, argument *a, const json_t *schema)
{
    static const char *const unknown[] = {"not", "if", "allOf", "contentEncoding", NULL};
    const json_t *least = json_object_get(schema, "minLength"), *most = json_object_get(schema, "maxLength"),
                 *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    const bool is_token = w->token(w->context, w->calls->value_end) >= 0;
    char name[64], bounds[64] = "";
    if (!check_keywords(w, schema, unknown, a->key)) return;
    snprintf(name, sizeof name, "%zu_%zu", a->number, a->count++);
    PUT(w, " text_", name, " ");
    if (most) snprintf(bounds, sizeof bounds, "%lld", (long long)json_integer_value(most));
    cot_dialect_writer rules = *w;
    rules.out = &a->texts;
    PUT(&rules, "text_", name, is_token ? ": TEXT_" : "[lazy]: TEXT_", name);
    if (is_token) put_end(&rules);
    PUT(&rules, "\nTEXT_", name, ": (/(.|\\n){");
    cot_dialect_put_number(&rules, (size_t)json_integer_value(least));
    PUT(&rules, ",", bounds, "}/");
    if (json_is_string(pattern)) put_pattern(&rules, json_string_value(pattern));
    if (json_is_string(format)) put_format(&rules, json_string_value(format), a->key);
    put_tags_left_out(&rules);
    PUT(&rules, ")");
    if (!is_token) {
        PUT(&rules, " /", w->calls->has_lines ? "\\n" : "");
        cot_dialect_put_escaped(&rules, w->calls->value_end);
        PUT(&rules, "/");
    }
    PUT(&rules, "\n");
    w->status = rules.status;
}

/* ---- values ---- */

static void put_value(cot_dialect_writer *w, argument *a, const json_t *schema, int depth);

static void put_constant(cot_dialect_writer *w, const json_t *value)
{
    char *text =
        json_is_string(value) ? strdup(json_string_value(value)) : json_dumps(value, JSON_ENCODE_ANY);
    if (text) cot_dialect_put_text(w, text);
    put_end(w);
    free(text);
}

static void put_type(cot_dialect_writer *w, argument *a, const json_t *schema, const char *type)
{
    if (strcmp(type, "string") == 0) {
        put_string(w, a, schema);
        return;
    }
    json_t *one = json_copy((json_t *)(uintptr_t)schema);
    if (one) json_object_set_new(one, "type", json_string(type));
    cot_dialect_put_json(w, one, a->root);
    put_end(w);
    json_decref(one);
}

/* Whichever of a list of schemas, constants or types. */
static void put_list(cot_dialect_writer *w, argument *a, const json_t *schema, const json_t *list, int depth)
{
    const bool is_types = list == json_object_get(schema, "type"),
               is_constants = list == json_object_get(schema, "enum");
    size_t i;
    json_t *item;
    PUT(w, "(");
    json_array_foreach(list, i, item)
    {
        PUT(w, i ? " | " : "");
        if (is_types)
            put_type(w, a, schema, json_is_string(item) ? json_string_value(item) : "");
        else if (is_constants)
            put_constant(w, item);
        else
            put_value(w, a, item, depth + 1);
    }
    PUT(w, ")");
}

/* A value with what ends it. */
static void put_value(cot_dialect_writer *w, argument *a, const json_t *schema, int depth)
{
    static const char *const lists[] = {"enum", "anyOf", "oneOf", "type"};
    const json_t *all = json_object_get(schema = resolved(a->root, schema), "allOf");
    if (!schema || depth > MOST_REFERENCES || json_array_size(all) > 1) {
        cot_dialect_refuse(w, schema ? "allOf" : "$ref", a->key);
        return;
    }
    if (all) {
        put_value(w, a, json_array_get(all, 0), depth + 1);
        return;
    }
    if (json_object_get(schema, "const")) {
        put_constant(w, json_object_get(schema, "const"));
        return;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (json_array_size(json_object_get(schema, lists[i]))) {
            put_list(w, a, schema, json_object_get(schema, lists[i]), depth);
            return;
        }
    const json_t *type = json_object_get(schema, "type");
    put_type(w, a, schema,
             type                                    ? json_string_value(type)
             : json_object_get(schema, "properties") ? "object"
             : json_object_get(schema, "items")      ? "array"
                                                     : "string");
}

/* ---- arguments ---- */

static bool is_required(const json_t *parameters, const char *key)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(parameters, "required"), i,
                       name) if (json_is_string(name) &&
                                 strcmp(json_string_value(name), key) == 0) return true;
    return false;
}

/* The properties of an object; NULL: it has none, or says what the grammar cannot, which is refused. */
static json_t *properties_of(cot_dialect_writer *w, const json_t *root)
{
    static const char *const unknown[] = {
        "anyOf",         "oneOf",         "allOf", "not", "if", "dependentRequired", "dependentSchemas",
        "minProperties", "maxProperties", NULL};
    const json_t *parameters = resolved(root, root);
    json_t *properties = json_object_get(parameters, "properties"), *name;
    size_t i;
    if (!check_keywords(w, parameters, unknown, "parameters")) return NULL;
    json_array_foreach(json_object_get(parameters, "required"), i,
                       name) if (!json_object_get(properties, json_string_value(name)))
    {
        cot_dialect_refuse(w, "required", json_is_string(name) ? json_string_value(name) : "");
        return NULL;
    }
    return properties;
}

/* <parameter=KEY>VALUE</parameter> */
static void put_tag(cot_dialect_writer *w, argument *a, const json_t *schema)
{
    const cot_dialect *d = w->calls;
    const char *quote = d->has_quotes ? "\"" : "";
    cot_dialect_put_marker(w, d->key);
    cot_dialect_put_text(w, quote);
    cot_dialect_put_text(w, a->key);
    cot_dialect_put_text(w, quote);
    cot_dialect_put_marker(w, d->key_end ? d->key_end : ">");
    if (d->value) PUT(w, "WS");
    cot_dialect_put_marker(w, d->value);
    if (d->has_lines) cot_dialect_put_text(w, "\n");
    put_value(w, a, schema, 0);
}

void cot_dialect_put_tags(cot_dialect_writer *w, size_t number, const json_t *parameters, const char *end)
{
    const char *key;
    json_t *schema;
    argument a = {.root = parameters, .number = number};
    PUT(w, "args_");
    cot_dialect_put_number(w, number);
    PUT(w, ": ");
    json_object_foreach(properties_of(w, parameters), key, schema)
    {
        a.key = key;
        PUT(w, "(");
        put_tag(w, &a, schema);
        PUT(w, is_required(resolved(parameters, parameters), key) ? "WS) " : "WS)? ");
    }
    cot_dialect_put_marker(w, end);
    PUT(w, "\n", a.texts.bytes ? a.texts.data : "");
    cot_buffer_free(&a.texts);
}

/* Rules from each argument on, one for where others came before it and one for where none has. */
void cot_dialect_put_keywords(cot_dialect_writer *w, size_t number, const json_t *parameters)
{
    const char *key;
    json_t *schema, *properties = properties_of(w, parameters);
    const json_t *root = resolved(parameters, parameters);
    const size_t count = json_object_size(properties);
    char rule[64];
    size_t i = 0;
    snprintf(rule, sizeof rule, "args_%zu", number);
    PUT(w, rule, ": ", count ? rule : "", count ? "_first_0\n" : "WS\n");
    json_object_foreach(properties, key, schema)
    {
        const bool is_last = i + 1 == count;
        for (int behind = 0; behind < 2; behind++) {
            char own[96], next[96], skipped[96];
            snprintf(own, sizeof own, "%s_%s_%zu", rule, behind ? "next" : "first", i);
            snprintf(next, sizeof next, "%s_next_%zu", rule, i + 1);
            snprintf(skipped, sizeof skipped, "%s_%s_%zu", rule, behind ? "next" : "first", i + 1);
            PUT(w, own, ": ");
            cot_dialect_put_text(w, behind ? ", " : "");
            cot_dialect_put_text(w, key);
            cot_dialect_put_text(w, "=");
            cot_dialect_put_json(w, schema, parameters);
            PUT(w, is_last ? "" : next);
            if (!is_required(root, key)) PUT(w, " | ", is_last ? "\"\"" : skipped);
            PUT(w, "\n");
        }
        i++;
    }
}
