#include "access/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts a character that snprintf cut in two, so that the message stays UTF-8, and puts '?' for control characters. */
static void tidy(char *text)
{
    size_t n = strlen(text), back = 0;
    while (back < n && back < 4 && ((unsigned char)text[n - 1 - back] & 0xc0) == 0x80) back++;
    if (back < n) {
        const unsigned char lead = (unsigned char)text[n - 1 - back];
        const size_t expected = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
        if (expected > back) text[n - 1 - back] = 0;
    }
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

bool cot_api_fail(cot_api_error *error, int http_status, const char *code, const char *param,
                  const char *format, ...)
{
    *error = (cot_api_error){.http_status = http_status, .code = code};
    if (param) snprintf(error->param, sizeof error->param, "%s", param);
    tidy(error->param);
    va_list values;
    va_start(values, format);
    vsnprintf(error->message, sizeof error->message, format, values);
    va_end(values);
    tidy(error->message);
    return false;
}

bool cot_api_fail_of(cot_api_error *error, int http_status, const char *param, const cot_error *reason)
{
    if (reason->status == COT_OUT_OF_MEMORY) http_status = 503;
    return cot_api_fail(error, http_status, NULL, param, "%s", reason->message);
}

static const char *type_of(int http_status)
{
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return http_status >= 500 ? "server_error" : "invalid_request_error";
    }
}

json_t *cot_api_error_json(const cot_api_error *error)
{
    json_t *param = *error->param ? json_string(error->param) : json_null();
    json_t *code = error->code ? json_string(error->code) : json_null();
    const char *message = error->message;
    json_t *text = json_string(message);
    if (!text) text = json_string("the message is not UTF-8");
    return json_pack("{s:{s:o,s:s,s:o,s:o}}", "error", "message", text, "type", type_of(error->http_status),
                     "param", param, "code", code);
}
