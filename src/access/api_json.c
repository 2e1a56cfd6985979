#include "access/api_json.h"

#include "base/json_weight.h"

#include <string.h>

json_t *cot_api_read_json(const char *body, size_t bytes, size_t most_bytes, cot_api_error *error)
{
    json_error_t reason;
    if (!bytes) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body is empty, expected a JSON object");
        return NULL;
    }
    const cot_json_weight w = cot_json_weigh(body, bytes);
    if (w.depth > COT_API_MAX_DEPTH) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body nests deeper than %d", COT_API_MAX_DEPTH);
        return NULL;
    }
    if (w.bytes > most_bytes) {
        cot_api_fail(error, 413, "request_too_large", NULL,
                     "the body's values may take %zu bytes of memory, the server has %zu for requests",
                     w.bytes, most_bytes);
        return NULL;
    }
    json_t *json =
        json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &reason);
    if (!json) {
        const enum json_error_code code = json_error_code(&reason);
        const bool is_null = code == json_error_null_byte_in_key;
        const bool is_json = is_null || code == json_error_numeric_overflow;
        cot_api_fail(error, 400, "invalid_json", NULL, "%s: line %d, column %d: %s",
                     is_json ? "the body cannot be taken" : "the body is no JSON", reason.line, reason.column,
                     is_null                           ? "a name with the character U+0000"
                     : is_json                         ? "a number beyond 64 bits"
                     : code == json_error_invalid_utf8 ? "a byte that is not UTF-8"
                                                       : reason.text);
        return NULL;
    }
    if (!json_is_object(json)) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body is no JSON object");
        json_decref(json);
        return NULL;
    }
    return json;
}
