/* This header judges a JSON schema by itself, so that one that no text meets is refused before it is compiled. */
#ifndef COT_BASE_JSON_SCHEMA_H
#define COT_BASE_JSON_SCHEMA_H
#include <jansson.h>
#include <stdbool.h>

/* Whether a value that meets the schema can have an end: false where each holds another one of the same schema, as with {"$ref": "#"} or
 * an object whose own schema is that of a member that it has to have. It is no judge of all else: true where it is not certain, as with
 * references by names or beyond the schema, with "$id" within it, and with schemas of which it would have to look at hundreds of thousands of parts. Its
 * recursion is as deep as the schema. Also true: out of memory. Thread-safe. */
bool cot_json_schema_ends(const json_t *schema);

#endif
