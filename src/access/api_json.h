/* A body as JSON: what who serves may be sent and must not choke on. */
#ifndef COT_ACCESS_API_JSON_H
#define COT_ACCESS_API_JSON_H
#include "access/api_error.h"

enum { COT_API_MAX_DEPTH = 64 }; // of JSON

/* Parses a body: UTF-8 JSON, an object, no deeper than COT_API_MAX_DEPTH, no key twice, no number beyond a double or an
 * int64, and of no more values than fit into `most_bytes` of memory, which is told before any is taken. NULL, with
 * `error` filled in, if it is not; else the caller's. Thread-safe. */
json_t *cot_api_read_json(const char *body, size_t bytes, size_t most_bytes, cot_api_error *error);

#endif
