#include "gateway/ask.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

static void on_head(void *context, cot_http_call *call, int status)
{
    (void)call;
    ((cot_ask *)context)->status = status;
}

static void finish(cot_ask *a, int status, const cot_error *error)
{
    cot_buffer body = a->body;
    a->body = (cot_buffer){0};
    a->call = NULL;
    a->done(a->context, status, body.data ? body.data : "", body.bytes, error);
    cot_buffer_free(&body);
}

static void on_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    cot_ask *a = context;
    if (count <= a->most_bytes - a->body.bytes && cot_buffer_append(&a->body, bytes, count)) return;
    cot_error error;
    cot_fail(&error, COT_TOO_LONG, "the answer is too long");
    cot_http_call_cancel(call);
    finish(a, 0, &error);
}

static void on_done(void *context, cot_http_call *call, const cot_error *error)
{
    cot_ask *a = context;
    (void)call;
    finish(a, error ? 0 : a->status, error);
}

bool cot_ask_start(cot_ask *a, cot_http_client *client, const char *path, const char *key, const char *json,
                   size_t most_bytes)
{
    static const cot_http_answer answer = {on_head, on_data, on_done};
    cot_http_field fields[2];
    size_t n = 0;
    if (json) fields[n++] = (cot_http_field){"Content-Type", "application/json"};
    if (key) fields[n++] = (cot_http_field){"Authorization", key};
    a->body.bytes = 0;
    a->most_bytes = most_bytes;
    a->since_ns = cot_now_ns();
    return cot_http_client_send(client, json ? "POST" : "GET", path, fields, n, json, json ? strlen(json) : 0,
                                &answer, a, &a->call, NULL) == COT_OK;
}

void cot_ask_cancel(cot_ask *a)
{
    if (a->call) cot_http_call_cancel(a->call);
    a->call = NULL;
    cot_buffer_free(&a->body);
}

char *cot_ask_authorization(const char *key)
{
    if (!key) return NULL;
    const size_t room = strlen(key) + sizeof "Bearer ";
    char *text = malloc(room);
    if (text) snprintf(text, room, "Bearer %s", key);
    return text;
}
