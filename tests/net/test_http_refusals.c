/* The HTTP server over real sockets: what it refuses, and that it stays in step with who sent it. */
#include "harness/cmocka.h"
#include "harness/net/http_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

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
    {"GET /echo/%e0%9f%bf HTTP/1.1\r\nHost: a\r\n\r\n", 400}, // in more bytes than it takes
    {"GET /echo/%ed%a0%80 HTTP/1.1\r\nHost: a\r\n\r\n", 400}, // half of a pair
    {"GET /echo/%f0%8f%bf%bf HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /echo/%f4%90%80%80 HTTP/1.1\r\nHost: a\r\n\r\n", 400}, // beyond U+10FFFF
    {"GET /echo HTTP/1.1\r\nHost: a\r\nExpect: gold\r\n\r\n", 417},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400},
    {POST "Content-Type: a/b\r\nContent-Type: c/d\r\nContent-Length: 0\r\n\r\n", 400},
    {"\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"\x16\x03\x01\x02", 400}, // TLS
    {"\x05\x01", 400},         // SOCKS
    {POST "Content-Length: 99999999999\r\n\r\n", 413},
};
/* Bodies in chunks that are none: the http_fixture_handler was shown the head, and loses it. */
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

static void refused(http_fixture *f, const char *request, size_t bytes, int status)
{
    const size_t handled = f->handled;
    test_peer peer = http_join(f);
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

static void answered(http_fixture *f, const char *request, const char *body)
{
    test_peer peer = http_join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, request));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.body, body);
    test_peer_close(&peer);
    free(answer.body);
}

static void test_bad(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
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
    http_turn_until_alone(f);
}

/* The line of a chunk's size has its bounds: what an extension says is read and dropped, so that nothing else ends it. */
static void test_extensions(void **state)
{
    enum { LINE = 4096 }; // to the CR
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    char text[LINE + 256];
    for (int more = 0; more < 2; more++) {
        const int n =
            snprintf(text, sizeof text, POST "Transfer-Encoding: chunked\r\n\r\n1;%0*d\r\nA\r\n0;x\r\n\r\n",
                     LINE - 3 + more, 0);
        if (more)
            refused(f, text, (size_t)n, 400);
        else
            answered(f, text, "POST /echo ? @a\nA");
    }
    http_turn_until_alone(f);
}

static void test_limits(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){
                            .max_head_bytes = 1000, .max_body_bytes = 100, .max_bodies_bytes = 150});
    char text[4096];
    // heads: of exactly the limit, and one more
    for (int more = 0; more < 2; more++) {
        const int n = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: a\r\nX: %0*d\r\n\r\n",
                               1000 - 36 + more, 0);
        assert_int_equal(n, 1000 + more);
        if (more)
            refused(f, text, (size_t)n, 431);
        else
            answered(f, text, "GET /echo ? @a\n");
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
    test_peer first = http_join(f), second = http_join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&first, "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"));
    n = snprintf(text, sizeof text, "%0100d", 0);
    assert_true(test_peer_say(&first, text, 100));
    http_turn_until(f, &f->n_held, 1);
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
    second = http_join(f);
    assert_true(test_peer_tell(&second, POST "Content-Length: 100\r\n\r\n"));
    assert_true(test_peer_say(&second, text, 100));
    assert_true(test_peer_answer(&second, &answer, false));
    assert_int_equal(answer.status, 200);
    test_peer_close(&first);
    test_peer_close(&second);
    http_turn_until_alone(f);
    assert_int_equal(f->n_held, 0);
    free(answer.body);
}

/* A body that is refused early may still be on its way; its sender gets the answer, no reset. */
static void test_refused_body_is_swallowed(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peer = http_join(f);
    const size_t bytes = 8 << 20;
    char *const body = calloc(1, bytes);
    assert_true(
        test_peer_tell(&peer, "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n"));
    assert_true(test_peer_say(&peer, body, bytes));
    test_answer answer = {0};
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 401);
    test_peer_close(&peer);
    http_turn_until_alone(f);
    free(body);
    free(answer.body);
}

int main(void)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
#define TEST(name) cmocka_unit_test_setup_teardown(name, http_set_up, http_tear_down)
    const struct CMUnitTest tests[] = {TEST(test_bad), TEST(test_extensions), TEST(test_limits),
                                       TEST(test_refused_body_is_swallowed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
