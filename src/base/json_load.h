/* JSON of files that others wrote. */
#ifndef COT_BASE_JSON_LOAD_H
#define COT_BASE_JSON_LOAD_H
#include <jansson.h>

/* json_loadb, except that an integer beyond 64 bits is a real number and not an error: Python writes such integers where
 * a setting means "no limit", and most of them nobody asks for. */
json_t *cot_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error);

#endif
