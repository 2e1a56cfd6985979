/* A body that a client sends: the first byte says to which path. */
#include "server/api_request.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const cot_api_defaults defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    cot_api_request request = {0};
    cot_api_error error = {0};
    if (!size) return 0;
    json_t *json = cot_api_read_json((const char *)data + 1, size - 1, 64 << 20, &error);
    if (json) {
        cot_api_parse(&request, (cot_api_kind)(data[0] % 4), json, &defaults, 4096, &error);
        cot_api_request_clear(&request);
    }
    if (error.http_status) json_decref(cot_api_error_json(&error));
    return 0;
}
