/* The HTTP server over real sockets: answers in pieces, and clients that leave at any moment. */
#include "harness/cmocka.h"
#include "harness/net/http_server.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

static void test_stream(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.ping_ms = -1});
    for (int old = 0; old < 2; old++) {
        test_peer peer = http_join(f);
        test_answer answer = {0};
        assert_true(test_peer_tell(&peer, old ? "GET /stream HTTP/1.0\r\n\r\n"
                                              : "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
        http_turn_until(f, &f->n_held, 1);
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
    http_turn_until_alone(f);
    assert_int_equal(f->gone, 0);
}

static void test_ping(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.ping_ms = 5});
    test_peer peer = http_join(f), other = http_join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    f->type = "text/plain"; // is no event stream, and gets no comments
    assert_true(test_peer_tell(&other, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 2);
    test_peer_turn(&peer);
    const size_t head = peer.count;
    test_peer_await(&peer, head + 2 * strlen("8\r\n: ping\n\n\r\n"));
    assert_memory_equal(peer.got + head, "8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n", 26);
    test_peer_turn(&other);
    assert_null(strstr(other.got, "ping"));
    test_peer_close(&peer);
    test_peer_close(&other);
    http_turn_until(f, &f->gone, 2);
}

/* Who does not read what was streamed is cut at the bound, who does not read an answer when time is up. */
static void test_never_reads(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.max_waiting_bytes = 1 << 20, .write_ms = 50});
    test_peer peer = http_join(f), other = http_join(f);
    assert_true(test_peer_tell(&other, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
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

    peer = http_join(f);
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    char *const large = calloc(1, 32 << 20);
    cot_http_reply(f->held[0], 200, "text/plain", NULL, 0, large, 32 << 20);
    free(large);
    f->n_held = 0;
    test_peer_close(&other);
    http_turn_until_alone(f);
    assert_int_equal(f->gone, 1);
    test_peer_close(&peer);

    // a slow reader is no such client: it is never cut while it takes bytes
    peer = http_join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
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

static void leave(http_fixture *f, test_peer *peer, size_t way)
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
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    size_t left = 0;
    for (size_t r = 0; r < 4; r++) {
        for (size_t way = 0; way < 3; way++) {
            test_peer peer = http_join(f), stays = http_join(f);
            assert_true(test_peer_tell(&stays, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
            http_turn_until(f, &f->n_held, 1);
            cot_http_exchange *const other = f->held[0];
            assert_true(test_peer_tell(&peer, requests[r]));
            http_turn_until(f, &f->checked, f->checked + 1);
            for (int i = 0; i < 10; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
            assert_int_equal(cot_http_server_exchanges(f->server), 2);
            leave(f, &peer, way);
            http_turn_until(f, &f->gone, ++left);
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
            http_turn_until_alone(f);
            assert_int_equal(f->gone, left); // not for what was answered
            free(answer.body);
        }
    }
    // all that it sends, and its leaving, seen at once
    for (size_t way = 0; way < 3; way++) {
        test_peer hasty = http_join(f);
        assert_true(test_peer_tell(&hasty, requests[0]));
        leave(f, &hasty, way);
        http_turn_until(f, &f->gone, ++left);
        test_peer_close(&hasty);
        hasty = http_join(f);
        event_base_loop(f->base, EVLOOP_NONBLOCK); // the same, once it is accepted
        assert_true(test_peer_tell(&hasty, requests[0]));
        leave(f, &hasty, way);
        http_turn_until(f, &f->gone, ++left);
        test_peer_close(&hasty);
    }
    http_turn_until_alone(f);
    // a reset, while nothing is being read since the client has sent so much ahead
    test_peer peer = http_join(f);
    assert_true(test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    static char more[200000];
    memset(more, 'x', sizeof more);
    http_turn_until(f, &f->n_held, 1);
    send(peer.fd, more, sizeof more, MSG_DONTWAIT);
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(f->n_held, 1);
    test_peer_reset(&peer);
    http_turn_until(f, &f->gone, ++left);
    http_turn_until_alone(f);
}

/* Ending the exchange by hand tells nobody. */
static void test_abort(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peer = http_join(f);
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    cot_http_stream_send(f->held[0], "x", 1);
    cot_http_abort(f->held[0]);
    test_peer_await_over(&peer);
    if (peer.got) assert_null(strstr(peer.got, "\r\n0\r\n")); // not as if it were whole
    test_peer_close(&peer);

    peer = http_join(f);
    f->n_held = 0;
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    cot_http_stream_send(f->held[0], "x", 1);
    cot_http_close_after(f->held[0]); // the head has gone, or goes, without saying so
    cot_http_stream_end(f->held[0]);
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_string_equal(answer.body, "x");
    test_peer_await_over(&peer);
    test_peer_close(&peer);
    http_turn_until_alone(f);
    assert_int_equal(f->gone, 0);
    free(answer.body);
}

/* Clients that come, ask, and leave at any moment, in any way, while the http_fixture_handler answers at any moment. */
static void test_random_lives(void **state)
{
    enum { LIVES = 2000, AT_ONCE = 24 };
    http_fixture *const f = *state;
    const size_t before = test_descriptors();
    http_open_server(f, &(cot_http_server_options){.max_waiting_bytes = 10000});
    const size_t idle = test_descriptors();
    test_peer peers[AT_ONCE];
    bool alive[AT_ONCE] = {false};
    static char request[200000], expected[24000];
    for (size_t lived = 0; lived < LIVES;) {
        const size_t p = http_draw(f, AT_ONCE);
        if (!alive[p]) {
            peers[p] = http_join(f);
            alive[p] = true;
        }
        switch (http_draw(f, 8)) {
        case 0: {
            const char *const what = http_draw(f, 2) ? "hold" : "stream";
            const int n =
                sprintf(request, "POST /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde", what);
            send(peers[p].fd, request, http_draw(f, 2) ? (size_t)n : http_draw(f, (uint64_t)n),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        }
        case 1: {
            const size_t n = http_make_request(f, request, expected);
            send(peers[p].fd, request, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        }
        case 2:
            if (peers[p].fd >= 0) shutdown(peers[p].fd, SHUT_WR);
            break;
        case 3:
        case 4:
            leave(f, &peers[p], 1 + http_draw(f, 2));
            alive[p] = false;
            lived++;
            break;
        case 5:
            if (f->n_held) {
                cot_http_exchange *const exchange = f->held[http_draw(f, f->n_held)];
                const bool streams = cot_http_path(exchange)[1] == 's';
                if (streams && http_draw(f, 3)) {
                    cot_http_stream_send(exchange, request, http_draw(f, 20000));
                    break;
                }
                http_forget(f, exchange);
                if (!http_draw(f, 8))
                    cot_http_abort(exchange);
                else if (streams)
                    cot_http_stream_end(exchange);
                else
                    cot_http_reply(exchange, 200, "text/plain", NULL, 0, request, http_draw(f, 20000));
            }
            break;
        case 6:
            if (http_draw(f, 2)) test_peer_turn(&peers[p]);
            break;
        default:
            event_base_loop(f->base, EVLOOP_NONBLOCK);
        }
        assert_true(f->n_held <= cot_http_server_exchanges(f->server));
    }
    for (size_t p = 0; p < AT_ONCE; p++) {
        if (alive[p]) test_peer_close(&peers[p]);
    }
    http_turn_until_alone(f);
    assert_int_equal(f->n_held, 0); // what was not answered is gone
    assert_int_equal(cot_http_server_exchanges(f->server), 0);
    assert_int_equal(test_descriptors(), idle);
    cot_http_server_close(f->server);
    f->server = NULL;
    assert_int_equal(test_descriptors(), before);
}

int main(void)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
#define TEST(name) cmocka_unit_test_setup_teardown(name, http_set_up, http_tear_down)
    const struct CMUnitTest tests[] = {TEST(test_stream),  TEST(test_ping),  TEST(test_never_reads),
                                       TEST(test_leaving), TEST(test_abort), TEST(test_random_lives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
