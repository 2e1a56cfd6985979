/* The HTTP server over real sockets: what it answers, however its bytes are cut, and what it opens on. */
#include "harness/cmocka.h"
#include "harness/net/http_server.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

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
    {"GET /echo/%f0%90%80%80%f4%8f%bf%bf%e0%a0%80%ed%9f%bf HTTP/1.1\r\nHost: a\r\n\r\n", 200,
     "GET /echo/\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xe0\xa0\x80\xed\x9f\xbf ? @a\n", false},
    {"GET /echo/%2541 HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200, "GET /echo/%41 ? @[::1]:8000\n",
     false}, // once
    {"GET http://other:1/echo?x HTTP/1.1\r\nHost: a\r\n\r\n", 200, "GET /echo ?x @other:1\n", false},
    {"GET /echo HTTP/1.1\r\nhOST:\ta \t\r\n\r\n", 200, "GET /echo ? @a\n", false},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, close\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close , x\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: x,\tclose\t,y\r\n\r\n", 200, "GET /echo ? @a\n", true},
    {"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close x, closed\r\n\r\n", 200, "GET /echo ? @a\n", false},
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
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        test_peer peer = http_join(f);
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
            assert_true(test_peer_tell(&peer, "POST /echo/3 HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: "
                                              "chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n"));
            assert_true(test_peer_answer(&peer, &answer, false)); // whatever body was read before
            assert_string_equal(answer.body, "POST /echo/3 ? @b\nxy");
        }
        test_peer_close(&peer);
        free(answer.body);
    }
    http_turn_until_alone(f);
    assert_int_equal(f->gone, 0);
    assert_int_equal(cot_http_server_exchanges(f->server), 0);
}

static void test_head_and_continue(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peer = http_join(f);
    test_answer answer = {0};
    assert_true(
        test_peer_tell(&peer, "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&peer, &answer, true));
    assert_string_equal(test_answer_field(&answer, "Content-Length"), "16");
    assert_true(test_peer_answer(&peer, &answer, false)); // nothing of a body stood between
    assert_string_equal(answer.body, "GET /echo ? @a\n");
    assert_true(test_peer_tell(&peer, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    cot_http_stream_event(f->held[0], "nothing of this", 15);
    cot_http_stream_end(f->held[0]);
    f->n_held = 0;
    assert_true(test_peer_answer(&peer, &answer, true));

    // who asks whether to go on is told so, once the http_fixture_handler has not refused
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

/* No value that a client sent, or the http_fixture_handler made, begins a line of its own. */
static void test_fields_stay_lines(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peer = http_join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
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

static void test_random_cuts(void **state)
{
    enum { ROUNDS = 60, MOST = 8 };
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    static char all[MOST * 200000], expected[MOST][24000];
    for (int round = 0; round < ROUNDS; round++) {
        test_peer peer = http_join(f);
        test_answer answer = {0};
        const size_t requests = 1 + http_draw(f, MOST);
        size_t bytes = 0;
        for (size_t i = 0; i < requests; i++) bytes += http_make_request(f, all + bytes, expected[i]);
        const size_t longest = http_draw(f, 3) ? 1 + http_draw(f, 3000) : 1 + http_draw(f, 20);
        for (size_t at = 0, n; at < bytes; at += n) {
            n = 1 + http_draw(f, longest);
            if (n > bytes - at) n = bytes - at;
            assert_true(test_peer_say(&peer, all + at, n));
            if (http_draw(f, 2)) test_peer_turn(&peer);
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
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peer = http_join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(
        &peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    for (int i = 0; i < 1000; i++)
        assert_true(test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(f->handled, 1);
    cot_http_reply(f->held[0], 200, "text/plain", NULL, 0, "first", 5);
    f->n_held = 0;
    http_turn_until(f, &f->n_held, 1);
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

static void test_open(void **state)
{
    http_fixture *const f = *state;
    cot_http_server *server;
    cot_error error;
    http_open_server(f, &(cot_http_server_options){0});
    const size_t before = test_descriptors();
    const uint16_t port = cot_http_server_port(f->server);
    assert_true(port);
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.port = port},
                                          &http_fixture_handler, f, &error),
                     COT_IO);
    assert_null(server);
    assert_non_null(strstr(error.message, "Address already in use"));
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "192.0.2.1"},
                                          &http_fixture_handler, f, &error),
                     COT_INVALID_ARGUMENT);
    assert_int_equal(cot_http_server_open(&server, f->base,
                                          &(cot_http_server_options){.host = "no.such.host.invalid"},
                                          &http_fixture_handler, f, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "no.such.host.invalid"));
    assert_int_equal(test_descriptors(), before);
    struct event_config *const config = event_config_new();
    event_config_avoid_method(config, "epoll");
    struct event_base *const other = event_base_new_with_config(config);
    assert_int_equal(
        cot_http_server_open(&server, other, &(cot_http_server_options){0}, &http_fixture_handler, f, &error),
        COT_INVALID_ARGUMENT);
    event_base_free(other);
    event_config_free(config);
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "0.0.0.0"},
                                          &http_fixture_handler, f, &error),
                     COT_OK);
    assert_false(cot_http_server_is_loopback(server));
    cot_http_server_close(server);
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.host = "localhost"},
                                          &http_fixture_handler, f, &error),
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, http_set_up, http_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_good),        TEST(test_head_and_continue), TEST(test_fields_stay_lines),
        TEST(test_random_cuts), TEST(test_pipeline),          TEST(test_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
