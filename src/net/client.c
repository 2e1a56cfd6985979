#include "coterie/client.h"

#include "base/buffer.h"
#include "base/error.h"
#include "net/http_client.h"
#include "net/sse.h"
#include "net/wake.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cot_client {
    struct event_base *base;
    cot_http_client *http;
    char *authorization;  // NULL: none
    cot_wake interrupted; // cot_client_interrupt was called
    /* The call in progress. */
    cot_http_call *call;
    int http_status;
    cot_buffer body; // what is no event
    bool streams, is_interrupted, ended;
    cot_sse sse;
    cot_status status;
    cot_error *error;
};

/* ---- what comes ---- */

static void end(cot_client *c, cot_status status)
{
    if (!c->ended) c->status = status;
    c->ended = true;
    event_base_loopbreak(c->base);
}

static void on_head(void *context, cot_http_call *call, int status)
{
    (void)call;
    ((cot_client *)context)->http_status = status;
}

static bool keep(cot_client *c, const char *bytes, size_t count)
{
    enum { MOST = 32 << 20 };
    return count <= MOST && c->body.bytes <= MOST - count && cot_buffer_append(&c->body, bytes, count);
}

static void on_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    cot_client *c = context;
    if (c->ended) return;
    const bool events = c->streams && c->http_status < 300;
    if (events ? cot_sse_feed(&c->sse, bytes, count) : keep(c, bytes, count)) return;
    cot_http_call_cancel(call);
    c->call = NULL;
    // of a stream the reader has had enough; of a body there is too much
    end(c, events ? COT_OK : cot_fail(c->error, COT_OUT_OF_MEMORY, "the answer is too long"));
}

static void on_done(void *context, cot_http_call *call, const cot_error *error)
{
    cot_client *c = context;
    (void)call;
    c->call = NULL;
    end(c, error ? cot_fail(c->error, error->status, "%s", error->message) : COT_OK);
}

static void on_interrupt(void *context, uint64_t times)
{
    cot_client *c = context;
    (void)times;
    if (c->call) cot_http_call_cancel(c->call);
    c->call = NULL;
    c->is_interrupted = true;
    end(c, COT_OK);
}

/* ---- calls ---- */

/* What the server says of a request that it refuses: its error object's message, or the beginning of its body. */
static cot_status refusal(const cot_client *c, cot_error *error)
{
    json_t *json = c->body.bytes ? json_loadb(c->body.data, c->body.bytes, 0, NULL) : NULL;
    const char *said = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    const cot_status status = cot_fail(error, c->http_status == 404 ? COT_NOT_FOUND : COT_INVALID_ARGUMENT,
                                       "the server answers %d: %.160s", c->http_status,
                                       said            ? said
                                       : c->body.bytes ? c->body.data
                                                       : "nothing more");
    json_decref(json);
    return status;
}

static cot_status run(cot_client *c, const char *path, const char *json, cot_error *error)
{
    static const cot_http_answer answer = {on_head, on_data, on_done};
    cot_http_field fields[2];
    size_t n = 0;
    if (json) fields[n++] = (cot_http_field){"Content-Type", "application/json"};
    if (c->authorization) fields[n++] = (cot_http_field){"Authorization", c->authorization};
    cot_wake_drop(&c->interrupted); // it came when its stream was over
    c->http_status = 0;
    c->body.bytes = 0;
    c->ended = c->is_interrupted = false;
    c->error = error;
    cot_status status = cot_http_client_send(c->http, json ? "POST" : "GET", path, fields, n, json,
                                             json ? strlen(json) : 0, &answer, c, &c->call, error);
    if (status != COT_OK) return status;
    while (!c->ended)
        if (event_base_dispatch(c->base) != 0) return cot_fail(error, COT_IO, "the client's loop failed");
    if (c->status == COT_OK && !c->is_interrupted && c->http_status >= 300) return refusal(c, error);
    return c->status;
}

cot_status cot_client_call(cot_client *c, const char *path, const char *json, char **body, size_t *bytes,
                           cot_error *error)
{
    *body = NULL;
    *bytes = 0;
    c->streams = false;
    cot_status status = run(c, path, json, error);
    if (status == COT_OK && c->is_interrupted) status = cot_fail(error, COT_IO, "interrupted");
    if (status != COT_OK) return status;
    if (!keep(c, "", 0)) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an answer");
    *body = c->body.data;
    *bytes = c->body.bytes;
    c->body = (cot_buffer){0};
    return COT_OK;
}

typedef struct event_reader {
    bool (*on_event)(void *context, const char *data, size_t bytes);
    void *context;
} event_reader;

static bool read_event(void *context, const char *type, const char *data, size_t bytes)
{
    const event_reader *reader = context;
    (void)type;
    return reader->on_event(reader->context, data, bytes);
}

cot_status cot_client_stream(cot_client *c, const char *path, const char *json,
                             bool (*on_event)(void *context, const char *data, size_t bytes), void *context,
                             bool *interrupted, cot_error *error)
{
    event_reader reader = {on_event, context};
    c->streams = true;
    c->sse = (cot_sse){.on_event = read_event, .context = &reader};
    const cot_status status = run(c, path, json, error);
    cot_sse_free(&c->sse);
    *interrupted = c->is_interrupted;
    return status;
}

void cot_client_interrupt(cot_client *c)
{
    if (c->call) cot_wake_up(&c->interrupted);
}

/* ---- opening ---- */

cot_status cot_client_open(cot_client **client, const char *url, const char *api_key, cot_error *error)
{
    cot_client *c = *client = calloc(1, sizeof *c);
    char *own = cot_http_api_root(url);
    cot_status status = COT_OK;
    if (!c || !own) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a client");
    if (c) c->interrupted.fd = -1;
    if (status == COT_OK && api_key) {
        const size_t room = strlen(api_key) + sizeof "Bearer ";
        c->authorization = malloc(room);
        if (!c->authorization) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a client");
        if (c->authorization) snprintf(c->authorization, room, "Bearer %s", api_key);
    }
    if (status == COT_OK) {
        c->base = cot_wake_base_open();
        if (!c->base || !cot_wake_open(&c->interrupted, c->base, on_interrupt, c))
            status = cot_fail(error, COT_IO, "cannot start a client's loop");
    }
    const cot_http_client_options defaults = {0};
    if (status == COT_OK) status = cot_http_client_open(&c->http, c->base, own, &defaults, error);
    free(own);
    if (status == COT_OK) return COT_OK;
    cot_client_close(c);
    *client = NULL;
    return status;
}

void cot_client_close(cot_client *c)
{
    if (!c) return;
    cot_http_client_close(c->http);
    cot_wake_close(&c->interrupted);
    if (c->base) event_base_free(c->base);
    free(c->authorization);
    cot_buffer_free(&c->body);
    free(c);
}
