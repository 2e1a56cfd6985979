/* What a client is told when its request cannot be served: OpenAI's error object and the HTTP status it comes with. */
#ifndef COT_ACCESS_API_ERROR_H
#define COT_ACCESS_API_ERROR_H
#include "coterie/status.h"
#include <jansson.h>
#include <stdbool.h>

typedef struct cot_api_error {
    int http_status;   // 0: nothing is wrong
    bool is_final;     // the same request would fail again: clients are told not to try
    const char *code;  // a constant such as "context_length_exceeded"; NULL: null, the status says enough
    char param[64];    // the field that is wrong; empty: none
    char message[512]; // UTF-8, one line
} cot_api_error;

/* Fills in `error`; `param` may be NULL. Returns false, so that a check can end with it. */
bool cot_api_fail(cot_api_error *error, int http_status, const char *code, const char *param,
                  const char *format, ...) __attribute__((format(printf, 5, 6), cold));
/* The same for what the library said: OUT_OF_MEMORY becomes 503, everything else `http_status`. */
bool cot_api_fail_of(cot_api_error *error, int http_status, const char *param, const cot_error *reason);

/* {"error": {"message", "type", "param", "code"}}, the last two strings or null; NULL when memory runs out. */
json_t *cot_api_error_json(const cot_api_error *error);

#endif
