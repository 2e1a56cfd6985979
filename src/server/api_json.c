/* A body as JSON: what a server may be sent and must not choke on. */
#include "server/api_request.h"

#include <stdio.h>
#include <string.h>

/* What a body is, as far as can be told before it is parsed: how deep its brackets nest, and how many bytes its values
 * will take. jansson takes, with the allocator's own share, 224 bytes for an object, 128 for a list, up to 96 for a value
 * in either, 190 for a member, and text up to four times: the body, twice while a string is read, the string. */
typedef struct weight {
    size_t depth, bytes;
} weight;

static weight weigh(const char *body, size_t bytes)
{
    enum { OBJECT = 224, LIST = 128, VALUE = 96, MEMBER = 190, TEXT = 4 };
    size_t depth = 0;
    weight w = {0, TEXT * bytes};
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
            if (++depth > w.depth) w.depth = depth;
            w.bytes += c == '{' ? VALUE + OBJECT : VALUE + LIST;
        } else if (c == '}' || c == ']')
            depth -= depth > 0;
        else if (c == ',')
            w.bytes += VALUE;
        else if (c == ':')
            w.bytes += MEMBER;
    }
    return w;
}

json_t *cot_api_read_json(const char *body, size_t bytes, size_t most_bytes, cot_api_error *error)
{
    json_error_t reason;
    if (!bytes) {
        cot_api_fail(error, 400, "invalid_json", NULL, "the body is empty, expected a JSON object");
        return NULL;
    }
    const weight w = weigh(body, bytes);
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
    json_t *json = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &reason);
    if (!json) {
        const enum json_error_code code = json_error_code(&reason);
        const bool is_null = code == json_error_null_character || code == json_error_null_byte_in_key;
        const bool is_json = is_null || code == json_error_numeric_overflow;
        cot_api_fail(error, 400, "invalid_json", NULL, "%s: line %d, column %d: %s",
                     is_json ? "the body cannot be taken" : "the body is no JSON", reason.line, reason.column,
                     is_null                           ? "the character U+0000 is not supported"
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
