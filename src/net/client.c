#include "coterie/client.h"

#include "base/error.h"
#include "net/http_client.h"
#include "net/sse.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct cot_client {
    struct event_base *base;
    cot_http_client *http;
    char *authorization; // NULL: none
    int wake;            // an eventfd: cot_client_interrupt was called
    struct event *on_wake;
    /* The call in progress. */
    cot_http_call *call;
    int http_status;
    char *body; // what is no event
    size_t bytes, room;
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
    enum { MOST = 64 << 20 };
    if (c->bytes + count + 1 > c->room) {
        const size_t room = 2 * (c->bytes + count + 1);
        char *grown = room > MOST ? NULL : realloc(c->body, room);
        if (!grown) return false;
        c->body = grown;
        c->room = room;
    }
    memcpy(c->body + c->bytes, bytes, count);
    c->bytes += count;
    c->body[c->bytes] = 0;
    return true;
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

static void on_wake(evutil_socket_t descriptor, short what, void *context)
{
    cot_client *c = context;
    uint64_t times;
    (void)what;
    if (read(descriptor, &times, sizeof times) < 0) return; // woken for nothing
    if (c->call) cot_http_call_cancel(c->call);
    c->call = NULL;
    c->is_interrupted = true;
    end(c, COT_OK);
}

/* ---- calls ---- */

/* What the server says of a request that it refuses: its error object's message, or the beginning of its body. */
static cot_status refusal(const cot_client *c, cot_error *error)
{
    json_t *json = c->bytes ? json_loadb(c->body, c->bytes, 0, NULL) : NULL;
    const char *said = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    const cot_status status = cot_fail(error, c->http_status == 404 ? COT_NOT_FOUND : COT_INVALID_ARGUMENT,
                                       "the server answers %d: %.160s", c->http_status,
                                       said       ? said
                                       : c->bytes ? c->body
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
    uint64_t late; // an interruption that came when its stream was over
    if (read(c->wake, &late, sizeof late) < 0) late = 0;
    c->http_status = 0;
    c->bytes = 0;
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
    *body = c->body;
    *bytes = c->bytes;
    c->body = NULL;
    c->bytes = c->room = 0;
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
    const uint64_t one = 1;
    if (c->call && write(c->wake, &one, sizeof one) < 0) return; // it is woken already
}

/* ---- opening ---- */

cot_status cot_client_open(cot_client **client, const char *url, const char *api_key, cot_error *error)
{
    cot_client *c = *client = calloc(1, sizeof *c);
    char *own = strdup(url);
    cot_status status = COT_OK;
    if (!c || !own) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a client");
    if (c) c->wake = -1;
    size_t n = own ? strlen(own) : 0;
    while (n && own[n - 1] == '/') own[--n] = 0;
    if (n > 3 && strcmp(own + n - 3, "/v1") == 0) own[n - 3] = 0;
    if (status == COT_OK && api_key) {
        const size_t room = strlen(api_key) + sizeof "Bearer ";
        c->authorization = malloc(room);
        if (!c->authorization) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a client");
        if (c->authorization) snprintf(c->authorization, room, "Bearer %s", api_key);
    }
    if (status == COT_OK) {
        c->base = event_base_new();
        c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        c->on_wake =
            c->base && c->wake >= 0 ? event_new(c->base, c->wake, EV_READ | EV_PERSIST, on_wake, c) : NULL;
        if (!c->on_wake || event_add(c->on_wake, NULL) != 0)
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
    if (c->on_wake) event_free(c->on_wake);
    if (c->base) event_base_free(c->base);
    if (c->wake >= 0) close(c->wake);
    free(c->authorization);
    free(c->body);
    free(c);
}
