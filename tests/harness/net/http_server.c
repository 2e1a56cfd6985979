#include "harness/net/http_server.h"

#include "harness/cmocka.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "base/rng.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t http_draw(http_fixture *f, uint64_t below)
{
    return cot_random_bits(f->seed, 77, f->draws++) % below;
}

void http_forget(http_fixture *f, const cot_http_exchange *exchange)
{
    for (size_t i = 0; i < f->n_held; i++) {
        if (f->held[i] == exchange) f->held[i--] = f->held[--f->n_held];
    }
}

static void check(void *context, cot_http_exchange *exchange)
{
    http_fixture *const f = context;
    f->checked++;
    cot_http_set_user(exchange, f);
    if (strcmp(cot_http_path(exchange), "/refused")) return;
    char text[64];
    const int n = snprintf(text, sizeof text, "no: %lld", (long long)cot_http_body_length(exchange));
    cot_http_reply(exchange, 401, "text/plain", NULL, 0, text, (size_t)n);
}

static void echo(cot_http_exchange *exchange)
{
    size_t bytes;
    const char *const body = cot_http_body(exchange, &bytes), *const id =
                                                                  cot_http_header(exchange, "x-request-id");
    assert_int_equal(body[bytes], '\0');
    char *const text = malloc(bytes + 8192);
    int n = snprintf(text, 8192, "%s %s ?%s @%s\n", cot_http_method(exchange), cot_http_path(exchange),
                     cot_http_query(exchange), cot_http_host(exchange));
    memcpy(text + n, body, bytes);
    const cot_http_field field = {"X-Request-Id", id};
    cot_http_reply(exchange, 200, "text/plain", &field, id != NULL, text, (size_t)n + bytes);
    free(text);
}

static void handle(void *context, cot_http_exchange *exchange)
{
    http_fixture *const f = context;
    const char *const path = cot_http_path(exchange);
    f->handled++;
    assert_ptr_equal(cot_http_user(exchange), f);
    assert_true(cot_http_peer_is_loopback(exchange));
    assert_non_null(strstr(cot_http_peer(exchange), "127.0.0.1:"));
    if (!strncmp(path, "/echo", 5)) {
        echo(exchange);
        return;
    }
    if (!strcmp(path, "/stream")) cot_http_stream_begin(exchange, 200, f->type, NULL, 0);
    assert_true(f->n_held < HELD);
    f->held[f->n_held++] = exchange;
}

static void gone(void *context, cot_http_exchange *exchange)
{
    http_fixture *const f = context;
    assert_ptr_equal(cot_http_user(exchange),
                     f); // else it was shown to nobody, or is gone for the second time
    f->gone++;
    http_forget(f, exchange);
}

static size_t error_body(void *context, int status, const char *message, char *out, size_t room)
{
    (void)context;
    return (size_t)snprintf(out, room, "{\"code\":%d,\"message\":\"%s\"}", status, message);
}

const cot_http_handler http_fixture_handler = {check, handle, gone, NULL, error_body, "application/json"};

void http_open_server(http_fixture *f, const cot_http_server_options *options)
{
    cot_error error;
    if (cot_http_server_open(&f->server, f->base, options, &http_fixture_handler, f, &error))
        fail_msg("%s", error.message);
    assert_true(cot_http_server_is_loopback(f->server));
}

int http_set_up(void **state)
{
    http_fixture *f = must_allocate(1, sizeof *f);
    *f = (http_fixture){.base = event_base_new(), .seed = test_seed(), .type = "text/event-stream"};
    *state = f;
    return !f->base;
}

int http_tear_down(void **state)
{
    http_fixture *const f = *state;
    cot_http_server_close(f->server);
    event_base_free(f->base);
    free(f);
    return 0;
}

test_peer http_join(http_fixture *f)
{
    return test_peer_connect(f->base, cot_http_server_port(f->server));
}

void http_turn_until(http_fixture *f, const size_t *count, size_t value)
{
    const time_t begin = time(NULL);
    while (*count != value) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("waited in vain: %zu, not %zu", *count, value);
    }
}

void http_turn_until_alone(http_fixture *f)
{
    const time_t begin = time(NULL);
    while (cot_http_server_connections(f->server)) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("%zu connections stay", cot_http_server_connections(f->server));
    }
}

size_t http_make_request(http_fixture *f, char *request, char *expected)
{
    static const char *const hosts[] = {"a", "localhost:8000", "127.0.0.1", "[::1]:1"};
    const char *const host = hosts[http_draw(f, 4)];
    char body[20001];
    const size_t bytes = http_draw(f, 4) ? http_draw(f, 40) : http_draw(f, 20000), kind = http_draw(f, 3),
                 path = http_draw(f, 100000);
    for (size_t i = 0; i < bytes; i++) body[i] = (char)('!' + http_draw(f, 90));
    char *at = request;
    if (!http_draw(f, 8)) at += sprintf(at, "\r\n");
    at += sprintf(at, "%s /echo/%zu?q HTTP/1.1\r\n", kind ? "POST" : "GET", path);
    for (size_t i = http_draw(f, 5); i--;) at += sprintf(at, "X-%zu: %0*d\r\n", i, (int)http_draw(f, 300), 0);
    at += sprintf(at, "Host: %s\r\n", host);
    if (kind == 1) at += sprintf(at, "Content-Length: %zu\r\n", bytes);
    if (kind == 2) at += sprintf(at, "Transfer-Encoding: chunked\r\n");
    at += sprintf(at, "\r\n");
    if (kind == 1) {
        memcpy(at, body, bytes);
        at += bytes;
    }
    if (kind == 2) {
        for (size_t sent = 0, n; sent < bytes; sent += n) {
            n = 1 + http_draw(f, bytes - sent);
            at += sprintf(at, http_draw(f, 2) ? "%zx%s\r\n" : "%zX%s\r\n", n, http_draw(f, 3) ? "" : ";a=b");
            memcpy(at, body + sent, n);
            at += n;
            at += sprintf(at, "\r\n");
        }
        at += sprintf(at, "0\r\n%s\r\n", http_draw(f, 2) ? "" : "T: v\r\n");
    }
    char *end = expected + sprintf(expected, "%s /echo/%zu ?q @%s\n", kind ? "POST" : "GET", path, host);
    if (kind) {
        memcpy(end, body, bytes);
        end += bytes;
    }
    *end = '\0';
    return (size_t)(at - request);
}
