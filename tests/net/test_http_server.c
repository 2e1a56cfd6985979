/* The HTTP server over real sockets: what it answers, what it refuses, and that it notices who leaves. */
#include "harness/cmocka.h"
#include "harness/http_peer.h"
#include "harness/seed.h"
#include "base/rng.h"
#include "net/http_server.h"
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HELD = 4096 };

/* A server whose handler answers by the path:
 *   /echo...  at once: method, path, query, host, body
 *   /refused  in `check`: 401
 *   /hold     later: the exchange is kept
 *   /stream   a stream is begun and kept */
typedef struct fixture {
    struct event_base *base;
    cot_http_server *server;
    cot_http_exchange *held[HELD]; // not answered
    size_t n_held, checked, handled, gone;
    const char *type;
    uint64_t seed, draws;
} fixture;

static uint64_t draw(fixture *f, uint64_t below)
{
    return cot_random_bits(f->seed, 77, f->draws++) % below;
}

static void forget(fixture *f, const cot_http_exchange *exchange)
{
    for (size_t i = 0; i < f->n_held; i++) {
        if (f->held[i] == exchange) f->held[i--] = f->held[--f->n_held];
    }
}

static void check(void *context, cot_http_exchange *exchange)
{
    fixture *const f = context;
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
    fixture *const f = context;
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
    fixture *const f = context;
    assert_ptr_equal(cot_http_user(exchange),
                     f); // else it was shown to nobody, or is gone for the second time
    f->gone++;
    forget(f, exchange);
}

static size_t error_body(void *context, int status, const char *message, char *out, size_t room)
{
    (void)context;
    return (size_t)snprintf(out, room, "{\"code\":%d,\"message\":\"%s\"}", status, message);
}

static const cot_http_handler handler = {check, handle, gone, error_body, "application/json"};

static void open_server(fixture *f, const cot_http_server_options *options)
{
    cot_error error;
    if (cot_http_server_open(&f->server, f->base, options, &handler, f, &error))
        fail_msg("%s", error.message);
    assert_true(cot_http_server_is_loopback(f->server));
}

static int set_up(void **state)
{
    static fixture f;
    f = (fixture){.base = event_base_new(), .seed = test_seed(), .type = "text/event-stream"};
    *state = &f;
    return !f.base;
}

static int tear_down(void **state)
{
    fixture *const f = *state;
    cot_http_server_close(f->server);
    event_base_free(f->base);
    return 0;
}

static test_peer join(fixture *f)
{
    return test_peer_connect(f->base, cot_http_server_port(f->server));
}

static void turn_until(fixture *f, const size_t *count, size_t value)
{
    const time_t begin = time(NULL);
    while (*count != value) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("waited in vain: %zu, not %zu", *count, value);
    }
}

static void turn_until_alone(fixture *f)
{
    const time_t begin = time(NULL);
    while (cot_http_server_connections(f->server)) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("%zu connections stay", cot_http_server_connections(f->server));
    }
}

/* ---- What is answered ---- */

static const struct {
    const char *request;
    int status;
    const char *body;
    bool close;
} good[] = {
    {"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 200, "GET /echo ? @a\n", false},
    {"get /echo HTTP/1.1\r\nHost: a\r\n\r\n", 200, "get /echo ? @a\n", false}, // methods have a case
    {"\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 200, "GET /echo ? @a\n", false},
    {"GET /echo/%41%2f%c3%a9?a=%20b&c HTTP/1.1\r\nHost: a:80\r\n\r\n", 200,
     "GET /echo/A/\xc3\xa9 ?a=%20b&c @a:80\n", false},
    {"GET /echo/%2541 HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200, "GET /echo/%41 ? @[::1]:8000\n",
     false}, // once
    {"GET http://other:1/echo?x HTTP/1.1\r\nHost: a\r\n\r\n", 200, "GET /echo ?x @other:1\n", false},
    {"GET /echo HTTP/1.1\r\nhOST:\ta \t\r\n\r\n", 200, "GET /echo ? @a\n", false},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, close\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.0\r\n\r\n", 200, "GET /echo ? @\n", true},
    {"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, "GET /echo ? @\n", false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab\0cd", 200, "POST /echo ? @a\nab\0cd",
     false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 200, "POST /echo ? @a\n", false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
     "Chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0A\r\n0123456789\r\n"
     "0\r\nTrailer: x\r\nAnother: \r\n\r\n",
     200, "POST /echo ? @a\nabc0123456789", false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200,
     "POST /echo ? @a\n", false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\nab", 200,
     "POST /echo ? @a\nab", false},
    {"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n", 401, "no: 0", false},
    {"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", 401, "no: 3",
     true}, // the body is not awaited
    {"POST /refused HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 401, "no: -1", true},
};

static void test_good(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        test_peer peer = join(f);
        test_answer answer = {0};
        const char *const text = good[i].request;
        size_t bytes = strlen(text), expected = strlen(good[i].body);
        if (strstr(text, "Content-Length: 5")) bytes += 3, expected += 3; // a NUL and what follows
        assert_true(test_peer_say(&peer, text, bytes));
        assert_true(test_peer_answer(&peer, &answer, false));
        assert_int_equal(answer.status, good[i].status);
        assert_int_equal(answer.bytes, expected);
        assert_memory_equal(answer.body, good[i].body, expected);
        assert_int_equal(answer.close, good[i].close);
        assert_non_null(strstr(answer.head, "\r\nDate: "));
        if (good[i].close) {
            test_peer_await_over(&peer);
            assert_int_equal(peer.count, 0);
        } else { // the connection goes on
            assert_true(test_peer_tell(&peer, "GET /echo/2 HTTP/1.1\r\nHost: b\r\n\r\n"));
            assert_true(test_peer_answer(&peer, &answer, false));
            assert_string_equal(answer.body, "GET /echo/2 ? @b\n");
        }
        test_peer_close(&peer);
        free(answer.body);
    }
    turn_until_alone(f);
    assert_int_equal(f->gone, 0);
    assert_int_equal(cot_http_server_exchanges(f->server), 0);
}

static void test_head_and_continue(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer peer = join(f);
    test_answer answer = {0};
    assert_true(
        test_peer_tell(&peer, "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, true));
    assert_string_equal(test_answer_field(&answer, "Content-Length"), "16");
    assert_true(test_peer_answer(&peer, &answer, false)); // nothing of a body stood between
    assert_string_equal(answer.body, "GET /echo ? @a\n");
    assert_true(test_peer_tell(&peer, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    cot_http_stream_event(f->held[0], "nothing of this", 15);
    cot_http_stream_end(f->held[0]);
    f->n_held = 0;
    assert_true(test_peer_answer(&peer, &answer, true));

    // who asks whether to go on is told so, once the handler has not refused
    assert_true(test_peer_tell(
        &peer, "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, true));
    assert_int_equal(answer.status, 100);
    assert_true(test_peer_tell(&peer, "xy"));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(answer.body, "POST /echo ? @a\nxy");
    assert_true(test_peer_tell(
        &peer, "POST /refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 401);
    test_peer_close(&peer);
    free(answer.body);
}

/* No value that a client sent, or the handler made, begins a line of its own. */
static void test_fields_stay_lines(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer peer = join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    const cot_http_field fields[] = {{"X-One", "a\r\nX-Evil: b"}, {"X-Two", ""}};
    cot_http_reply(f->held[0], 204, NULL, fields, 2, "ignored", 7);
    f->n_held = 0;
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(test_answer_field(&answer, "X-One"), "a  X-Evil: b");
    assert_null(test_answer_field(&answer, "X-Evil"));
    assert_null(test_answer_field(&answer, "Content-Length"));
    assert_true(test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\nX-Request-ID:  id\t7 \r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(test_answer_field(&answer, "X-Request-Id"), "id 7");
    test_peer_close(&peer);
    free(answer.body);
}

/* ---- What is refused ---- */

#define POST "POST /echo HTTP/1.1\r\nHost: a\r\n"
static const struct {
    const char *request;
    int status;
} bad[] = {
    // two ways to tell the length
    {POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400},
    {POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400},
    {POST "Content-Length: 4\r\nCONTENT-LENGTH: 5\r\n\r\nabcd", 400},
    {POST "Content-Length: 4, 4\r\n\r\nabcd", 400},
    {POST "Content-Length: +4\r\n\r\nabcd", 400},
    {POST "Content-Length: -4\r\n\r\nabcd", 400},
    {POST "Content-Length: 0x4\r\n\r\nabcd", 400},
    {POST "Content-Length: 4 4\r\n\r\nabcd", 400},
    {POST "Content-Length:\r\n\r\n", 400},
    {POST "Content-Length: 18446744073709551620\r\n\r\nabcd", 400},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
    {POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
    {POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 501},
    {POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n", 501},
    {POST "Transfer-Encoding: \x0b"
          "chunked\r\n\r\n0\r\n\r\n",
     400},
    {POST "Transfer-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd", 501},
    {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Content-Length : 4\r\n\r\nabcd", 400},
    {POST "Content-Length: 4\r\n Transfer-Encoding: chunked\r\n\r\nabcd", 400},
    {POST "X: a\r\n\tb\r\n\r\n", 400},
    {POST " X: a\r\n\r\n", 400},
    {POST "X\r\n\r\n", 400},
    {POST ": a\r\n\r\n", 400},
    {POST "X\xc3\xa9: a\r\n\r\n", 400},
    {POST "X: a\rContent-Length: 4\r\n\r\n", 400},
    {POST "X: a\nContent-Length: 4\r\n\r\n", 400},
    {POST "X: a\r\r\n\r\n", 400},
    {POST "X: a\r\n\n", 400},
    {POST "X: \x7f\r\n\r\n", 400},
    {"GET /echo HTTP/1.1\n\n", 400},
    {"GET /echo HTTP/1.1\r\n\r\n", 400}, // no Host
    {"GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
    {"GET /echo HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
    {"GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
    {"GET /echo HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
    {"GET http://u@h/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET http:///echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET ftp://h/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /ec ho HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET\t/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {" GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"G(T /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo\r\n\r\n", 400},
    {"GET /echo http/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo HTTP/1.10\r\nHost: a\r\n\r\n", 400},
    {"GET /echo HTTP/1.2\r\nHost: a\r\n\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
    {"GET /echo# HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%0a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%7f HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%g1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/% HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%c3 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%c0%af HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%ed%a0%80 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nExpect: gold\r\n\r\n", 417},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400},
    {POST "Content-Type: a/b\r\nContent-Type: c/d\r\nContent-Length: 0\r\n\r\n", 400},
    {"\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"\x16\x03\x01\x02", 400}, // TLS
    {"\x05\x01", 400},         // SOCKS
    {POST "Content-Length: 99999999999\r\n\r\n", 413},
};
/* Bodies in chunks that are none: the handler was shown the head, and loses it. */
static const char *const bad_chunks[] = {
    "x\r\n",
    "-1\r\n",
    "+1\r\nA\r\n",
    "0x1\r\nA\r\n",
    " 1\r\nA\r\n",
    "1 \r\nA\r\n",
    "1\nA\r\n",
    "1\r\nAB\r\n",
    "1\r\nA\n",
    "1\r\nA\rB",
    "\r\n",
    "1;\x01\r\n",
    "1;a\nA\r\n",
    "ffffffffffffffff\r\n",
    "0\r\n: x\r\n\r\n",
    "0\r\nX: a\n\r\n",
    "0\r\n X: a\r\n\r\n",
    "0\r\nX a\r\n\r\n",
    "0\r\nX: \x01\r\n\r\n",
    "0\r\n\rX",
    "00000000000000001\r\nA\r\n",
};

static void refused(fixture *f, const char *request, size_t bytes, int status)
{
    const size_t handled = f->handled;
    test_peer peer = join(f);
    test_answer answer = {0};
    test_peer_say(&peer, request, bytes);
    // what follows could be taken for another request
    test_peer_tell(&peer, "GET /echo/smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
    if (!test_peer_answer(&peer, &answer, false)) fail_msg("no answer to '%s'", request);
    if (answer.status != status) fail_msg("%d, not %d, to '%s'", answer.status, status, request);
    char expected[32];
    snprintf(expected, sizeof expected, "{\"code\":%d,", status);
    assert_memory_equal(answer.body, expected, strlen(expected));
    assert_string_equal(test_answer_field(&answer, "Content-Type"), "application/json");
    assert_true(answer.close);
    test_peer_finish(&peer);
    test_peer_await_over(&peer);
    assert_false(peer.reset);
    assert_int_equal(peer.count, 0);
    assert_int_equal(f->handled, handled);
    test_peer_close(&peer);
    free(answer.body);
}

static void test_bad(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(f, bad[i].request, strlen(bad[i].request), bad[i].status);
    }
    assert_int_equal(f->checked, 0);
    refused(f, "GET /echo\0 HTTP/1.1\r\nHost: a\r\n\r\n", 32, 400);
    refused(f, "GET /echo HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 37, 400);
    for (size_t i = 0; i < sizeof bad_chunks / sizeof *bad_chunks; i++) {
        char text[256];
        snprintf(text, sizeof text, POST "Transfer-Encoding: chunked\r\n\r\n%s", bad_chunks[i]);
        refused(f, text, strlen(text), 400);
        assert_int_equal(f->checked, i + 1);
        assert_int_equal(f->gone, i + 1);
    }
    turn_until_alone(f);
}

static void test_limits(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){
                       .max_head_bytes = 1000, .max_body_bytes = 100, .max_bodies_bytes = 150});
    char text[4096];
    // heads: of exactly the limit, and one more
    for (int more = 0; more < 2; more++) {
        const int n = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: a\r\nX: %0*d\r\n\r\n",
                               1000 - 36 + more, 0);
        assert_int_equal(n, 1000 + more);
        if (more) {
            refused(f, text, (size_t)n, 431);
            continue;
        }
        test_peer peer = join(f);
        test_answer answer = {0};
        assert_true(test_peer_tell(&peer, text));
        assert_true(test_peer_answer(&peer, &answer, false));
        assert_int_equal(answer.status, 200);
        test_peer_close(&peer);
        free(answer.body);
    }
    snprintf(text, sizeof text, "GET /%01000d", 0);
    refused(f, text, strlen(text), 414);
    int n = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 100; i++) n += snprintf(text + n, sizeof text - (size_t)n, "A:\r\n");
    snprintf(text + n, sizeof text - (size_t)n, "\r\n");
    refused(f, text, strlen(text), 431);

    const size_t checked = f->checked;
    refused(f, POST "Content-Length: 101\r\n\r\n", strlen(POST) + 23, 413);
    assert_int_equal(f->checked, checked);
    n = snprintf(text, sizeof text, POST "Transfer-Encoding: chunked\r\n\r\n32\r\n%050d\r\n33\r\n%051d\r\n",
                 0, 0);
    refused(f, text, (size_t)n, 413); // as soon as it is too long, whether or not it ends
    assert_int_equal(f->gone, 1);

    // all bodies together
    test_peer first = join(f), second = join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&first, "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"));
    n = snprintf(text, sizeof text, "%0100d", 0);
    assert_true(test_peer_say(&first, text, 100));
    turn_until(f, &f->n_held, 1);
    assert_true(test_peer_tell(&second, POST "Content-Length: 100\r\n\r\n"));
    assert_true(test_peer_say(&second, text, 100));
    assert_true(test_peer_answer(&second, &answer, false));
    assert_int_equal(answer.status, 503);
    assert_string_equal(test_answer_field(&answer, "Retry-After"), "1");
    size_t bytes;
    char *const body = cot_http_take_body(f->held[0], &bytes); // no longer the server's
    assert_int_equal(bytes, 100);
    assert_memory_equal(body, text, 100);
    free(body);
    test_peer_close(&second);
    second = join(f);
    assert_true(test_peer_tell(&second, POST "Content-Length: 100\r\n\r\n"));
    assert_true(test_peer_say(&second, text, 100));
    assert_true(test_peer_answer(&second, &answer, false));
    assert_int_equal(answer.status, 200);
    test_peer_close(&first);
    test_peer_close(&second);
    turn_until_alone(f);
    assert_int_equal(f->n_held, 0);
    free(answer.body);
}

/* A body that is refused early may still be on its way; its sender gets the answer, no reset. */
static void test_refused_body_is_swallowed(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer peer = join(f);
    const size_t bytes = 8 << 20;
    char *const body = calloc(1, bytes);
    assert_true(
        test_peer_tell(&peer, "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n"));
    assert_true(test_peer_say(&peer, body, bytes));
    test_answer answer = {0};
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 401);
    test_peer_close(&peer);
    turn_until_alone(f);
    free(body);
    free(answer.body);
}

/* ---- Any cut of the bytes ---- */

/* A valid request with what it must be answered. */
static size_t make_request(fixture *f, char *request, char *expected)
{
    static const char *const hosts[] = {"a", "localhost:8000", "127.0.0.1", "[::1]:1"};
    const char *const host = hosts[draw(f, 4)];
    char body[20001];
    const size_t bytes = draw(f, 4) ? draw(f, 40) : draw(f, 20000), kind = draw(f, 3), path = draw(f, 100000);
    for (size_t i = 0; i < bytes; i++) body[i] = (char)('!' + draw(f, 90));
    char *at = request;
    if (!draw(f, 8)) at += sprintf(at, "\r\n");
    at += sprintf(at, "%s /echo/%zu?q HTTP/1.1\r\n", kind ? "POST" : "GET", path);
    for (size_t i = draw(f, 5); i--;) at += sprintf(at, "X-%zu: %0*d\r\n", i, (int)draw(f, 300), 0);
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
            n = 1 + draw(f, bytes - sent);
            at += sprintf(at, draw(f, 2) ? "%zx%s\r\n" : "%zX%s\r\n", n, draw(f, 3) ? "" : ";a=b");
            memcpy(at, body + sent, n);
            at += n;
            at += sprintf(at, "\r\n");
        }
        at += sprintf(at, "0\r\n%s\r\n", draw(f, 2) ? "" : "T: v\r\n");
    }
    char *end = expected + sprintf(expected, "%s /echo/%zu ?q @%s\n", kind ? "POST" : "GET", path, host);
    if (kind) {
        memcpy(end, body, bytes);
        end += bytes;
    }
    *end = '\0';
    return (size_t)(at - request);
}

static void test_random_cuts(void **state)
{
    enum { ROUNDS = 60, MOST = 8 };
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    static char all[MOST * 200000], expected[MOST][24000];
    for (int round = 0; round < ROUNDS; round++) {
        test_peer peer = join(f);
        test_answer answer = {0};
        const size_t requests = 1 + draw(f, MOST);
        size_t bytes = 0;
        for (size_t i = 0; i < requests; i++) bytes += make_request(f, all + bytes, expected[i]);
        const size_t longest = draw(f, 3) ? 1 + draw(f, 3000) : 1 + draw(f, 20);
        for (size_t at = 0, n; at < bytes; at += n) {
            n = 1 + draw(f, longest);
            if (n > bytes - at) n = bytes - at;
            assert_true(test_peer_say(&peer, all + at, n));
            if (draw(f, 2)) test_peer_turn(&peer);
        }
        for (size_t i = 0; i < requests; i++) { // in order
            assert_true(test_peer_answer(&peer, &answer, false));
            assert_int_equal(answer.status, 200);
            assert_string_equal(answer.body, expected[i]);
        }
        assert_int_equal(peer.count, 0);
        test_peer_close(&peer);
        free(answer.body);
    }
}

/* What is sent ahead waits, without end of memory, and is answered in its turn. */
static void test_pipeline(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer peer = join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(
        &peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    for (int i = 0; i < 1000; i++)
        assert_true(test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(f->handled, 1);
    cot_http_reply(f->held[0], 200, "text/plain", NULL, 0, "first", 5);
    f->n_held = 0;
    turn_until(f, &f->n_held, 1);
    cot_http_stream_send(f->held[0], "second", 6);
    cot_http_stream_end(f->held[0]);
    f->n_held = 0;
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(answer.body, "first");
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(answer.body, "second");
    for (int i = 0; i < 1000; i++) {
        assert_true(test_peer_answer(&peer, &answer, false));
        assert_string_equal(answer.body, "GET /echo ? @a\n");
    }
    // a FIN behind the last request: what can be answered at once is, what cannot is given up
    assert_true(
        test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\nGET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    test_peer_finish(&peer);
    assert_true(test_peer_answer(&peer, &answer, false));
    test_peer_await_over(&peer);
    assert_int_equal(peer.count, 0);
    assert_int_equal(f->gone, 1);
    test_peer_close(&peer);
    free(answer.body);
}

/* ---- Streams ---- */

static void test_stream(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){.ping_ms = -1});
    for (int old = 0; old < 2; old++) {
        test_peer peer = join(f);
        test_answer answer = {0};
        assert_true(test_peer_tell(&peer, old ? "GET /stream HTTP/1.0\r\n\r\n"
                                              : "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
        turn_until(f, &f->n_held, 1);
        cot_http_exchange *const exchange = f->held[0];
        f->n_held = 0;
        cot_http_stream_event(exchange, "one", 3);
        cot_http_stream_event(exchange, "", 0);
        cot_http_stream_event(exchange, "two\nlines\n", 10);
        cot_http_stream_send(exchange, "raw", 3);
        cot_http_stream_send(exchange, NULL, 0); // would be the end of a body in chunks
        cot_http_stream_end(exchange);
        assert_int_equal(cot_http_server_exchanges(f->server), 0);
        assert_true(test_peer_answer(&peer, &answer, false));
        assert_string_equal(answer.body, "data: one\n\ndata: \n\ndata: two\ndata: lines\ndata: \n\nraw");
        assert_string_equal(test_answer_field(&answer, "Content-Type"), "text/event-stream");
        assert_int_equal(answer.chunks, old ? 0 : 4);
        assert_int_equal(answer.close, old);
        test_peer_close(&peer);
        free(answer.body);
    }
    turn_until_alone(f);
    assert_int_equal(f->gone, 0);
}

static void test_ping(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){.ping_ms = 5});
    test_peer peer = join(f), other = join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    f->type = "text/plain"; // is no event stream, and gets no comments
    assert_true(test_peer_tell(&other, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 2);
    test_peer_turn(&peer);
    const size_t head = peer.count;
    test_peer_await(&peer, head + 2 * strlen("8\r\n: ping\n\n\r\n"));
    assert_memory_equal(peer.got + head, "8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n", 26);
    test_peer_turn(&other);
    assert_null(strstr(other.got, "ping"));
    test_peer_close(&peer);
    test_peer_close(&other);
    turn_until(f, &f->gone, 2);
}

/* Who does not read what was streamed is cut at the bound, who does not read an answer when time is up. */
static void test_never_reads(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){.max_waiting_bytes = 1 << 20, .write_ms = 50});
    test_peer peer = join(f), other = join(f);
    assert_true(test_peer_tell(&other, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    static char piece[100000];
    memset(piece, 'x', sizeof piece);
    size_t waited = 0;
    for (int i = 0; i < 1000 && f->n_held; i++) {
        cot_http_stream_send(f->held[0], piece, sizeof piece);
        if (cot_http_stream_waiting(f->held[0]) > waited) waited = cot_http_stream_waiting(f->held[0]);
        event_base_loop(f->base, EVLOOP_NONBLOCK);
    }
    assert_int_equal(f->gone, 1);
    assert_in_range(waited, sizeof piece, (2 << 20) + 2 * sizeof piece);
    test_answer answer = {0};
    assert_true(test_peer_answer(&other, &answer, false)); // others feel nothing
    test_peer_close(&peer);

    peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    char *const large = calloc(1, 32 << 20);
    cot_http_reply(f->held[0], 200, "text/plain", NULL, 0, large, 32 << 20);
    free(large);
    f->n_held = 0;
    test_peer_close(&other);
    turn_until_alone(f);
    assert_int_equal(f->gone, 1);
    test_peer_close(&peer);

    // a slow reader is no such client: it is never cut while it takes bytes
    peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    for (int i = 0; i < 200; i++) {
        cot_http_stream_send(f->held[0], piece, sizeof piece);
        test_peer_turn(&peer);
        assert_int_equal(f->n_held, 1);
    }
    cot_http_stream_end(f->held[0]);
    f->n_held = 0;
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.bytes, 200 * sizeof piece);
    test_peer_close(&peer);
    free(answer.body);
}

/* ---- Leaving ---- */

static void leave(fixture *f, test_peer *peer, size_t way)
{
    if (way == 0)
        test_peer_finish(peer);
    else if (way == 1)
        test_peer_reset(peer);
    else
        test_peer_close(peer);
    (void)f;
}

static void test_leaving(void **state)
{
    static const char *const requests[] = {
        "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n", "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc", // in the midst of its body
        "GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n", // with unread bytes
    };
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    size_t left = 0;
    for (size_t r = 0; r < 4; r++) {
        for (size_t way = 0; way < 3; way++) {
            test_peer peer = join(f), stays = join(f);
            assert_true(test_peer_tell(&stays, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
            turn_until(f, &f->n_held, 1);
            cot_http_exchange *const other = f->held[0];
            assert_true(test_peer_tell(&peer, requests[r]));
            turn_until(f, &f->checked, f->checked + 1);
            for (int i = 0; i < 10; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
            assert_int_equal(cot_http_server_exchanges(f->server), 2);
            leave(f, &peer, way);
            turn_until(f, &f->gone, ++left);
            assert_int_equal(f->n_held, 1);
            assert_ptr_equal(f->held[0], other); // who stays, stays
            assert_int_equal(cot_http_server_exchanges(f->server), 1);
            cot_http_reply(other, 200, "text/plain", NULL, 0, "x", 1);
            f->n_held = 0;
            test_answer answer = {0};
            assert_true(test_peer_answer(&stays, &answer, false));
            leave(f, &stays, way);
            test_peer_close(&peer);
            test_peer_close(&stays);
            turn_until_alone(f);
            assert_int_equal(f->gone, left); // not for what was answered
            free(answer.body);
        }
    }
    // all that it sends, and its leaving, seen at once
    for (size_t way = 0; way < 3; way++) {
        test_peer hasty = join(f);
        assert_true(test_peer_tell(&hasty, requests[0]));
        leave(f, &hasty, way);
        turn_until(f, &f->gone, ++left);
        test_peer_close(&hasty);
        hasty = join(f);
        event_base_loop(f->base, EVLOOP_NONBLOCK); // the same, once it is accepted
        assert_true(test_peer_tell(&hasty, requests[0]));
        leave(f, &hasty, way);
        turn_until(f, &f->gone, ++left);
        test_peer_close(&hasty);
    }
    turn_until_alone(f);
    // a reset, while nothing is being read since the client has sent so much ahead
    test_peer peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    static char more[200000];
    memset(more, 'x', sizeof more);
    turn_until(f, &f->n_held, 1);
    send(peer.fd, more, sizeof more, MSG_DONTWAIT);
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(f->n_held, 1);
    test_peer_reset(&peer);
    turn_until(f, &f->gone, ++left);
    turn_until_alone(f);
}

/* Ending the exchange by hand tells nobody. */
static void test_abort(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    cot_http_stream_send(f->held[0], "x", 1);
    cot_http_abort(f->held[0]);
    test_peer_await_over(&peer);
    if (peer.got) assert_null(strstr(peer.got, "\r\n0\r\n")); // not as if it were whole
    test_peer_close(&peer);

    peer = join(f);
    f->n_held = 0;
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    cot_http_stream_send(f->held[0], "x", 1);
    cot_http_close_after(f->held[0]); // the head has gone, or goes, without saying so
    cot_http_stream_end(f->held[0]);
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(answer.body, "x");
    test_peer_await_over(&peer);
    test_peer_close(&peer);
    turn_until_alone(f);
    assert_int_equal(f->gone, 0);
    free(answer.body);
}

/* Clients that come, ask, and leave at any moment, in any way, while the handler answers at any moment. */
static void test_random_lives(void **state)
{
    enum { LIVES = 2000, AT_ONCE = 24 };
    fixture *const f = *state;
    const size_t before = test_descriptors();
    open_server(f, &(cot_http_server_options){.max_waiting_bytes = 10000});
    const size_t idle = test_descriptors();
    test_peer peers[AT_ONCE];
    bool alive[AT_ONCE] = {false};
    static char request[200000], expected[24000];
    for (size_t lived = 0; lived < LIVES;) {
        const size_t p = draw(f, AT_ONCE);
        if (!alive[p]) {
            peers[p] = join(f);
            alive[p] = true;
        }
        switch (draw(f, 8)) {
        case 0: {
            const char *const what = draw(f, 2) ? "hold" : "stream";
            const int n =
                sprintf(request, "POST /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde", what);
            send(peers[p].fd, request, draw(f, 2) ? (size_t)n : draw(f, (uint64_t)n),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        }
        case 1: {
            const size_t n = make_request(f, request, expected);
            send(peers[p].fd, request, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        }
        case 2:
            if (peers[p].fd >= 0) shutdown(peers[p].fd, SHUT_WR);
            break;
        case 3:
        case 4:
            leave(f, &peers[p], 1 + draw(f, 2));
            alive[p] = false;
            lived++;
            break;
        case 5:
            if (f->n_held) {
                cot_http_exchange *const exchange = f->held[draw(f, f->n_held)];
                const bool streams = cot_http_path(exchange)[1] == 's';
                if (streams && draw(f, 3)) {
                    cot_http_stream_send(exchange, request, draw(f, 20000));
                    break;
                }
                forget(f, exchange);
                if (!draw(f, 8))
                    cot_http_abort(exchange);
                else if (streams)
                    cot_http_stream_end(exchange);
                else
                    cot_http_reply(exchange, 200, "text/plain", NULL, 0, request, draw(f, 20000));
            }
            break;
        case 6:
            if (draw(f, 2)) test_peer_turn(&peers[p]);
            break;
        default:
            event_base_loop(f->base, EVLOOP_NONBLOCK);
        }
        assert_true(f->n_held <= cot_http_server_exchanges(f->server));
    }
    for (size_t p = 0; p < AT_ONCE; p++) {
        if (alive[p]) test_peer_close(&peers[p]);
    }
    turn_until_alone(f);
    assert_int_equal(f->n_held, 0); // what was not answered is gone
    assert_int_equal(cot_http_server_exchanges(f->server), 0);
    assert_int_equal(test_descriptors(), idle);
    cot_http_server_close(f->server);
    f->server = NULL;
    assert_int_equal(test_descriptors(), before);
}

/* ---- Time ---- */

static void test_slow_clients(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){.head_ms = 40, .body_ms = 40, .idle_ms = 40});
    static const struct {
        const char *sent;
        int status; // 0: closed without an answer
        int answers;
    } rows[] = {
        {"", 0, 0},
        {"GET /echo HT", 408, 0},
        {"\x80", 408, 0},
        {"GET /echo HTTP/1.1\r\nHost: a\r\n", 408, 0},
        {POST "Content-Length: 9\r\n\r\nabc", 408, 0},
        {POST "Transfer-Encoding: chunked\r\n\r\n3\r\na", 408, 0},
        {"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 0, 1}, // idle
        {"GET /echo HTTP/1.1\r\nHost: a\r\n\r\nGET", 408, 1},
    };
    size_t lost = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_peer peer = join(f);
        test_answer answer = {0};
        assert_true(test_peer_tell(&peer, rows[i].sent));
        for (int a = 0; a < rows[i].answers; a++) assert_true(test_peer_answer(&peer, &answer, false));
        assert_int_equal(test_peer_answer(&peer, &answer, false), rows[i].status != 0);
        if (rows[i].status) assert_int_equal(answer.status, rows[i].status);
        test_peer_close(&peer);
        turn_until_alone(f);
        lost += !strncmp(rows[i].sent, "POST", 4);
        assert_int_equal(f->gone, lost);
        free(answer.body);
    }
    // a byte now and then does not put the end off
    test_peer peer = join(f);
    test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nX: ");
    while (!peer.over && !peer.count) {
        send(peer.fd, "y", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        test_peer_await(&peer, 0);
        usleep(1000);
    }
    assert_memory_equal(peer.got, "HTTP/1.1 408 ", 13);
    test_peer_close(&peer);
    // the handler takes the time it wants
    peer = join(f);
    test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    turn_until(f, &f->n_held, 1);
    test_peer other = join(f); // closed when its own, longer, waiting is over
    test_peer_await_over(&other);
    assert_int_equal(f->n_held, 1);
    test_peer_close(&other);
    test_peer_close(&peer);
    turn_until_alone(f);
}

/* ---- Places ---- */

static void test_too_many(void **state)
{
    enum { PLACES = 3 };
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){.max_connections = PLACES});
    test_peer peers[PLACES], more[100];
    test_answer answer = {0};
    for (int i = 0; i < PLACES; i++) {
        peers[i] = join(f);
        assert_true(test_peer_tell(&peers[i], "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_true(test_peer_answer(&peers[i], &answer, false));
    }
    for (int i = 0; i < 100; i++) more[i] = join(f);
    int told = 0;
    for (int i = 0; i < 100; i++) {
        test_peer_tell(&more[i], "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
        if (!test_peer_answer(&more[i], &answer, false)) continue; // some are only closed
        told++;
        assert_int_equal(answer.status, 503);
        assert_string_equal(test_answer_field(&answer, "Retry-After"), "1");
        assert_true(answer.close);
    }
    assert_in_range(told, 32, 99);
    assert_int_equal(f->handled, PLACES);
    for (int i = 0; i < 100; i++) test_peer_close(&more[i]);
    for (int i = 0; i < PLACES; i++) { // those inside feel nothing
        assert_true(test_peer_tell(&peers[i], "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_true(test_peer_answer(&peers[i], &answer, false));
        assert_int_equal(answer.status, 200);
        test_peer_close(&peers[i]);
    }
    turn_until_alone(f);
    test_peer peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 200);
    test_peer_close(&peer);
    free(answer.body);
}

/* Without descriptors clients are shown out, and nothing spins. */
static void test_no_descriptors(void **state)
{
    enum { MORE = 5 };
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer inside = join(f), more[MORE];
    test_answer answer = {0};
    assert_true(test_peer_tell(&inside, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&inside, &answer, false));
    for (int i = 0; i < MORE; i++) more[i] = join(f);
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int highest = 0; // the limit counts numbers, not descriptors: holes below are filled
    int fillers[1024], n_fillers = 0;
    const int next = open("/dev/null", O_RDONLY);
    for (int fd = 0; fd < 1024; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) highest = fd;
    }
    close(next);
    none = (struct rlimit){(rlim_t)highest + 1, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    while (n_fillers < 1024 && (fillers[n_fillers] = open("/dev/null", O_RDONLY)) >= 0) n_fillers++;
    assert_int_equal(errno, EMFILE);
    for (int i = 0; i < MORE; i++) {
        test_peer_await_over(&more[i]);
        assert_int_equal(more[i].count, 0);
    }
    assert_int_equal(cot_http_server_connections(f->server), 1);
    assert_true(test_peer_tell(&inside, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&inside, &answer, false));
    while (n_fillers) close(fillers[--n_fillers]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < MORE; i++) test_peer_close(&more[i]);
    test_peer peer = join(f);
    assert_true(test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 200);
    test_peer_close(&peer);
    test_peer_close(&inside);
    free(answer.body);
}

static void test_stop(void **state)
{
    fixture *const f = *state;
    open_server(f, &(cot_http_server_options){0});
    test_peer idle = join(f), held = join(f), streams = join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&idle, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&idle, &answer, false));
    assert_true(test_peer_tell(&held, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 1);
    assert_true(test_peer_tell(&streams, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    turn_until(f, &f->n_held, 2);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(cot_http_server_port(f->server)),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cot_http_server_stop_accepting(f->server);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    test_peer_await_over(&idle);
    assert_int_equal(f->n_held, 2);
    cot_http_reply(f->held[0], 200, "text/plain", NULL, 0, "late", 4);
    cot_http_stream_send(f->held[1], "late", 4);
    cot_http_stream_end(f->held[1]);
    f->n_held = 0;
    for (int i = 0; i < 2; i++) {
        test_peer *const peer = i ? &streams : &held;
        assert_true(test_peer_answer(peer, &answer, false));
        assert_string_equal(answer.body, "late");
        test_peer_await_over(peer);
        test_peer_close(peer);
    }
    test_peer_close(&idle);
    turn_until_alone(f);
    free(answer.body);
    assert_int_equal(f->gone, 0);
}

static void test_close(void **state)
{
    fixture *const f = *state;
    const size_t before = test_descriptors();
    open_server(f, &(cot_http_server_options){0});
    test_peer peers[4];
    for (int i = 0; i < 4; i++) peers[i] = join(f);
    assert_true(test_peer_tell(&peers[0], "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peers[1], "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peers[2], POST "Content-Length: 9\r\n\r\na"));
    turn_until(f, &f->checked, 3);
    cot_http_stream_send(f->held[strcmp(cot_http_path(f->held[0]), "/stream") != 0], "x", 1);
    cot_http_server_close(f->server);
    f->server = NULL;
    assert_int_equal(f->gone, 3);
    assert_int_equal(f->n_held, 0);
    for (int i = 0; i < 4; i++) test_peer_close(&peers[i]);
    assert_int_equal(test_descriptors(), before);
    for (int i = 0; i < 10; i++) event_base_loop(f->base, EVLOOP_NONBLOCK); // nothing is left in the loop
    cot_http_server_close(NULL);
}

static void test_open(void **state)
{
    fixture *const f = *state;
    cot_http_server *server;
    cot_error error;
    open_server(f, &(cot_http_server_options){0});
    const size_t before = test_descriptors();
    const uint16_t port = cot_http_server_port(f->server);
    assert_true(port);
    assert_int_equal(
        cot_http_server_open(&server, f->base, &(cot_http_server_options){.port = port}, &handler, f, &error),
        COT_IO);
    assert_null(server);
    assert_non_null(strstr(error.message, "Address already in use"));
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "192.0.2.1"},
                                          &handler, f, &error),
                     COT_INVALID_ARGUMENT);
    assert_int_equal(cot_http_server_open(&server, f->base,
                                          &(cot_http_server_options){.host = "no.such.host.invalid"},
                                          &handler, f, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "no.such.host.invalid"));
    assert_int_equal(test_descriptors(), before);
    struct event_config *const config = event_config_new();
    event_config_avoid_method(config, "epoll");
    struct event_base *const other = event_base_new_with_config(config);
    assert_int_equal(cot_http_server_open(&server, other, &(cot_http_server_options){0}, &handler, f, &error),
                     COT_INVALID_ARGUMENT);
    event_base_free(other);
    event_config_free(config);
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "0.0.0.0"},
                                          &handler, f, &error),
                     COT_OK);
    assert_false(cot_http_server_is_loopback(server));
    cot_http_server_close(server);
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "localhost"},
                                          &handler, f, &error),
                     COT_OK);
    assert_true(cot_http_server_is_loopback(server));
    test_peer peer =
        test_peer_connect(f->base, cot_http_server_port(server)); // 127.0.0.1 is among its addresses
    test_peer_close(&peer);
    cot_http_server_close(server);
}

int main(void)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_good),
                                       TEST(test_head_and_continue),
                                       TEST(test_fields_stay_lines),
                                       TEST(test_bad),
                                       TEST(test_limits),
                                       TEST(test_refused_body_is_swallowed),
                                       TEST(test_random_cuts),
                                       TEST(test_pipeline),
                                       TEST(test_stream),
                                       TEST(test_ping),
                                       TEST(test_never_reads),
                                       TEST(test_leaving),
                                       TEST(test_abort),
                                       TEST(test_random_lives),
                                       TEST(test_slow_clients),
                                       TEST(test_too_many),
                                       TEST(test_no_descriptors),
                                       TEST(test_stop),
                                       TEST(test_close),
                                       TEST(test_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
