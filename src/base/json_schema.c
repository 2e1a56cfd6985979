#include "base/json_schema.h"

#include <stdint.h>
#include <string.h>

enum { MOST_LOOKS = 1 << 18 }; // at schemas, which takes tens of milliseconds

/* References are known to have an end when all that their schemas need is: from those that need none on, until no more are. */
typedef struct search {
    const json_t *root;
    json_t *references; // from each to whether it is known to have an end
    size_t looks;
    bool is_uncertain;
} search;

/* The member of a name that is escaped as in JSON pointers, [bytes]; NULL: there is none. */
static const json_t *member_of(const json_t *json, const char *name, size_t bytes)
{
    char plain[256];
    size_t count = 0;
    if (bytes >= sizeof plain) return NULL;
    for (size_t i = 0; i < bytes; i++) {
        const bool is_escape = name[i] == '~' && i + 1 < bytes && (name[i + 1] == '0' || name[i + 1] == '1');
        plain[count++] = !is_escape ? name[i] : name[i + 1] == '0' ? '~' : '/';
        i += is_escape;
    }
    plain[count] = 0;
    if (!json_is_array(json)) return json_object_get(json, plain);
    size_t index = 0;
    for (size_t i = 0; i < count; i++) {
        if (plain[i] < '0' || plain[i] > '9' || i > 8) return NULL;
        index = index * 10 + (size_t)(plain[i] - '0');
    }
    return count ? json_array_get(json, index) : NULL;
}

/* The schema that "#" or "#/..." names; NULL: it is another reference, or names none. */
static const json_t *target_of(const json_t *root, const char *reference)
{
    const json_t *at = root;
    if (*reference != '#' || strchr(reference, '%')) return NULL;
    reference++;
    while (at && *reference == '/') {
        const size_t bytes = strcspn(reference + 1, "/");
        at = member_of(at, reference + 1, bytes);
        reference += 1 + bytes;
    }
    return *reference ? NULL : at;
}

static void list_references(search *s, const json_t *json)
{
    const char *key;
    json_t *value;
    size_t i;
    const char *reference = json_string_value(json_object_get(json, "$ref"));
    if (json != s->root && json_is_string(json_object_get(json, "$id"))) s->is_uncertain = true;
    if (reference && target_of(s->root, reference) &&
        json_object_set_new(s->references, reference, json_false()) != 0)
        s->is_uncertain = true;
    json_object_foreach((json_t *)(uintptr_t)json, key, value) list_references(s, value);
    json_array_foreach(json, i, value) list_references(s, value);
}

static bool ends(search *s, const json_t *schema);

/* Members that an object has to have. */
static bool object_ends(search *s, const json_t *schema)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        const json_t *property =
            json_object_get(json_object_get(schema, "properties"), json_string_value(name));
        if (property && !ends(s, property)) return false;
    }
    return true;
}

/* Items that a list has to have. */
static bool array_ends(search *s, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems"),
                 *least = json_object_get(schema, "minItems");
    if (json_is_array(items)) { // as it was before `prefixItems`
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    const json_int_t count = json_is_integer(least) ? json_integer_value(least) : 0;
    const size_t firsts = json_array_size(first);
    for (size_t i = 0; i < firsts && (json_int_t)i < count; i++)
        if (!ends(s, json_array_get(first, i))) return false;
    return !items || count <= (json_int_t)firsts || ends(s, items);
}

static bool type_ends(search *s, const json_t *schema, const char *type)
{
    if (type && strcmp(type, "object") == 0) return object_ends(s, schema);
    if (type && strcmp(type, "array") == 0) return array_ends(s, schema);
    return true;
}

/* Any of a list, or all; there is none, and any will do. */
static bool list_ends(search *s, const json_t *list, bool all)
{
    const size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++)
        if (ends(s, json_array_get(list, i)) != all) return !all;
    return all || !count;
}

/* As far as its references are known to have one. */
static bool ends(search *s, const json_t *schema)
{
    if (++s->looks > MOST_LOOKS) s->is_uncertain = true;
    if (s->is_uncertain || !json_is_object(schema)) return true;
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (reference && json_is_false(json_object_get(s->references, reference))) return false;
    if (!list_ends(s, json_object_get(schema, "allOf"), true) ||
        !list_ends(s, json_object_get(schema, "anyOf"), false) ||
        !list_ends(s, json_object_get(schema, "oneOf"), false))
        return false;
    const json_t *type = json_object_get(schema, "type");
    if (json_object_get(schema, "enum") || json_object_get(schema, "const")) return true;
    if (!json_is_array(type)) return type_ends(s, schema, json_string_value(type));
    bool any = !json_array_size(type);
    for (size_t i = 0; i < json_array_size(type) && !any; i++)
        any = type_ends(s, schema, json_string_value(json_array_get(type, i)));
    return any;
}

bool cot_json_schema_ends(const json_t *schema)
{
    search s = {.root = schema, .references = json_object()};
    const char *reference;
    json_t *known;
    if (!s.references) return true;
    list_references(&s, schema);
    for (bool more = true; more && !s.is_uncertain;) {
        more = false;
        json_object_foreach(s.references, reference, known)
        {
            if (++s.looks > MOST_LOOKS) s.is_uncertain = true;
            if (json_is_true(known) || !ends(&s, target_of(schema, reference))) continue;
            json_object_iter_set_new(s.references, json_object_key_to_iter(reference), json_true());
            more = true;
        }
    }
    const bool good = ends(&s, schema);
    json_decref(s.references);
    return good || s.is_uncertain;
}
