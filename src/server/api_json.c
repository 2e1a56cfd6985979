/* A body as JSON: what a server may be sent and must not choke on. */
#include "server/api_request.h"

#include <stdio.h>
#include <string.h>

/* Deeper than allowed? Counted before anything is parsed; brackets within strings do not count. */
static bool is_too_deep(const char *body, size_t bytes)
{
    size_t depth = 0;
    bool inside = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = body[i];
        if (inside) {
            if (c == '\\')
                i++;
            else if (c == '"')
                inside = false;
        } else if (c == '"')
            inside = true;
        else if (c == '{' || c == '[') {
            if (++depth > COT_API_MAX_DEPTH) return true;
        } else if ((c == '}' || c == ']') && depth)
            depth--;
    }
    return false;
}

json_t *cot_api_read_json(const char *body, size_t bytes, cot_api_error *error)
{
    json_error_t reason;
    if (!bytes) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body is empty, expected a JSON object");
        return NULL;
    }
    if (is_too_deep(body, bytes)) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body nests deeper than %d", COT_API_MAX_DEPTH);
        return NULL;
    }
    json_t *json = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &reason);
    if (!json) {
        const enum json_error_code code = json_error_code(&reason);
        cot_api_fail(error, 400, "invalid_json", NULL, "the body is no JSON: line %d, column %d: %s",
                     reason.line, reason.column,
                     code == json_error_null_character ? "the character U+0000 is not supported"
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
