/* Reading the members of a JSON object as what they should be. The first thing that is wrong stays: later
 * calls do nothing, and the caller looks at `status` once at the end. */
#ifndef COT_CHECKPOINT_FIELDS_H
#define COT_CHECKPOINT_FIELDS_H
#include "coterie/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_fields {
    const json_t *object; // NULL: an object without members
    const char *name;     // the file's, for messages
    cot_status status;
    cot_error *error; // may be NULL
} cot_fields;

/* Refuses the file: "'NAME': " and the formatted rest. Does nothing when something was already wrong. */
void cot_fields_refuse(cot_fields *fields, cot_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* The member, NULL where there is none. null is a member. */
const json_t *cot_fields_get(const cot_fields *fields, const char *key);
/* Neither absent nor null. */
bool cot_fields_has(const cot_fields *fields, const char *key);
/* A whole number in [least, most]; `absent` where there is no such member. */
int64_t cot_fields_integer(cot_fields *fields, const char *key, int64_t absent, int64_t least, int64_t most);
/* A number, whole or not; `absent` where there is no such member. */
double cot_fields_number(cot_fields *fields, const char *key, double absent);
bool cot_fields_switch(cot_fields *fields, const char *key, bool absent);
/* A string, owned by the JSON. `absent` also for null. */
const char *cot_fields_text(cot_fields *fields, const char *key, const char *absent);

/* Refuses the member for its type: "'key' is <what it is>, expected <expected>". */
void cot_fields_mistyped(cot_fields *fields, const char *key, const json_t *value, const char *expected);

#endif
