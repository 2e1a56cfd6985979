/* Reading a tokenizer.json's objects: a field that has the wrong type is an error, named. */
#ifndef COT_TOKENIZER_FIELDS_H
#define COT_TOKENIZER_FIELDS_H
#include "coterie/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COT_TOKENIZER_MAX_STEPS = 64,         // in a Sequence, the nested ones with it; real files have six
    COT_TOKENIZER_LONGEST_TEXT = 1 << 30, // bytes, also between two steps: a file's steps may multiply a text
};

/* A string of the JSON tree, which owns it. It may hold NULs; `data` is NULL where the field is absent or
 * null. */
typedef struct cot_text {
    const char *data;
    size_t bytes;
} cot_text;

/* `where` is the object's name in messages. */
cot_status cot_field_text(cot_text *out, const json_t *object, const char *key, const char *where,
                          cot_error *error);
/* The same where the field must be there. */
cot_status cot_field_text_needed(cot_text *out, const json_t *object, const char *key, const char *where,
                                 cot_error *error);
/* `fallback` where absent or null. */
cot_status cot_field_bool(bool *out, const json_t *object, const char *key, bool fallback, const char *where,
                          cot_error *error);
/* The "type" of a component: `where` is "decoder", "normalizer" and so on. */
cot_status cot_field_type(const char **out, const json_t *object, const char *where, cot_error *error);
bool cot_text_is(cot_text text, const char *literal);

/* Calls `load(context, component)` for `component`, or, where it is a Sequence, for each of its parts in
 * order, however deep. Absent and null are no parts. `list_key` is what the file calls a Sequence's list. */
typedef cot_status cot_component_load(void *context, const json_t *component, const char *type,
                                      cot_error *error);
cot_status cot_field_steps(const json_t *component, const char *where, const char *list_key,
                           cot_component_load *load, void *context, cot_error *error);

#endif
