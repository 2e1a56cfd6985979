/* The HTTP server over real sockets: time and places are bounded, and it stops and closes in good order. */
#include "harness/cmocka.h"
#include "harness/net/http_server.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define POST "POST /echo HTTP/1.1\r\nHost: a\r\n"

static void test_slow_clients(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.head_ms = 40, .body_ms = 40, .idle_ms = 40});
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
        test_peer peer = http_join(f);
        test_answer answer = {0};
        assert_true(test_peer_tell(&peer, rows[i].sent));
        for (int a = 0; a < rows[i].answers; a++) assert_true(test_peer_answer(&peer, &answer, false));
        assert_int_equal(test_peer_answer(&peer, &answer, false), rows[i].status != 0);
        if (rows[i].status) assert_int_equal(answer.status, rows[i].status);
        test_peer_close(&peer);
        http_turn_until_alone(f);
        lost += !strncmp(rows[i].sent, "POST", 4);
        assert_int_equal(f->gone, lost);
        free(answer.body);
    }
    // a byte now and then does not put the end off
    test_peer peer = http_join(f);
    test_peer_tell(&peer, "GET /echo HTTP/1.1\r\nX: ");
    while (!peer.over && !peer.count) {
        send(peer.fd, "y", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        test_peer_await(&peer, 0);
        usleep(1000);
    }
    assert_memory_equal(peer.got, "HTTP/1.1 408 ", 13);
    test_peer_close(&peer);
    // the http_fixture_handler takes the time it wants
    peer = http_join(f);
    test_peer_tell(&peer, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    http_turn_until(f, &f->n_held, 1);
    test_peer other = http_join(f); // closed when its own, longer, waiting is over
    test_peer_await_over(&other);
    assert_int_equal(f->n_held, 1);
    test_peer_close(&other);
    test_peer_close(&peer);
    http_turn_until_alone(f);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

/* A connection whose request the handler keeps. */
static test_peer join_and_hold(http_fixture *f)
{
    const size_t held = f->n_held;
    test_peer peer = http_join(f);
    assert_true(test_peer_tell(&peer, GET("/hold")));
    http_turn_until(f, &f->n_held, held + 1);
    return peer;
}

static void assert_served(test_peer *peer, const char *request)
{
    test_answer answer = {0};
    assert_true(test_peer_tell(peer, request));
    assert_true(test_peer_answer(peer, &answer, false));
    assert_int_equal(answer.status, 200);
    free(answer.body);
}

/* Sleeps and turns the loop, so long at least. */
static void wait_ms(http_fixture *f, int ms)
{
    for (int i = 0; i < ms; i++) {
        usleep(1000);
        event_base_loop(f->base, EVLOOP_NONBLOCK);
    }
}

/* Each time-out is of its own phase: where one is short and the others are long, that phase alone ends by it. */
static void test_time_of_each_phase(void **state)
{
    enum { SHORT = 30, LONG = 60000 };
    http_fixture *const f = *state;
    static const struct {
        const char *sent; // after a request that was answered, where `idle` says so
        bool idle;
        int phase; // which time-out ends it: 0 the head's, 1 the body's, 2 that between requests
    } rows[] = {{"", false, 0},
                {"GET /echo HT", false, 0},
                {"GET /echo HT", true, 0},
                {POST "Content-Length: 9\r\n\r\nabc", false, 1},
                {POST "Content-Length: 9\r\n\r\nabc", true, 1},
                {POST "Transfer-Encoding: chunked\r\n\r\n3\r\na", true, 1},
                {"", true, 2}};
    enum { ROWS = sizeof rows / sizeof *rows };
    for (int phase = 0; phase < 3; phase++) {
        http_open_server(f, &(cot_http_server_options){.head_ms = phase == 0 ? SHORT : LONG,
                                                       .body_ms = phase == 1 ? SHORT : LONG,
                                                       .idle_ms = phase == 2 ? SHORT : LONG});
        test_peer peers[ROWS];
        for (int i = 0; i < ROWS; i++) {
            peers[i] = http_join(f);
            if (rows[i].idle) assert_served(&peers[i], GET("/echo"));
            assert_true(test_peer_tell(&peers[i], rows[i].sent));
            test_peer_turn(&peers[i]);
        }
        for (int i = 0; i < ROWS; i++)
            if (rows[i].phase == phase) test_peer_await_over(&peers[i]);
        wait_ms(f, 2 * SHORT);
        for (int i = 0; i < ROWS; i++) {
            test_peer_turn(&peers[i]);
            if (peers[i].over != (rows[i].phase == phase)) fail_msg("'%s', phase %d", rows[i].sent, phase);
            test_peer_close(&peers[i]);
        }
        http_turn_until_alone(f);
        cot_http_server_close(f->server);
        f->server = NULL;
    }
}

/* A long body has the longer the more of it has come. */
static void test_time_of_long_bodies(void **state)
{
    enum { TIME_MS = 100, BYTES = 100000 }; // which are six seconds at 16 KiB a second
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.body_ms = TIME_MS, .max_body_bytes = BYTES});
    char head[128], *body = malloc(BYTES);
    assert_non_null(body);
    memset(body, 'b', BYTES);
    snprintf(head, sizeof head, POST "Content-Length: %d\r\n\r\n", BYTES);
    test_peer longer = http_join(f), shorter = http_join(f);
    assert_true(test_peer_tell(&longer, head));
    assert_true(test_peer_say(&longer, body, BYTES - 1));
    assert_true(test_peer_tell(&shorter, head));
    assert_true(test_peer_say(&shorter, body, 1));
    test_peer_await_over(&shorter);
    wait_ms(f, TIME_MS);
    test_peer_turn(&longer);
    assert_false(longer.over);
    test_answer answer = {0};
    assert_true(test_peer_say(&longer, body, 1));
    assert_true(test_peer_answer(&longer, &answer, false));
    assert_int_equal(answer.status, 200);
    test_peer_close(&longer);
    test_peer_close(&shorter);
    http_turn_until_alone(f);
    free(answer.body);
    free(body);
}

/* Who announces a giant body and sends none of it takes no room from others. */
static void test_announced(void **state)
{
    enum { BYTES = 200000, ANNOUNCERS = 5 };
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.max_bodies_bytes = 2 * BYTES});
    char head[128], *body = malloc(BYTES);
    assert_non_null(body);
    memset(body, 'b', BYTES);
    snprintf(head, sizeof head, POST "Content-Length: %d\r\n\r\n", BYTES);
    test_peer announcers[ANNOUNCERS], peer = http_join(f);
    for (size_t i = 0; i < ANNOUNCERS; i++) {
        announcers[i] = http_join(f);
        assert_true(test_peer_tell(&announcers[i], head));
        http_turn_until(f, &f->checked, i + 1);
        assert_true(test_peer_tell(&announcers[i], "b"));
        test_peer_turn(&announcers[i]);
    }
    test_answer answer = {0};
    assert_true(test_peer_tell(&peer, head));
    assert_true(test_peer_say(&peer, body, BYTES));
    assert_true(test_peer_answer(&peer, &answer, false));
    assert_int_equal(answer.status, 200);
    for (size_t i = 0; i < ANNOUNCERS; i++) test_peer_close(&announcers[i]);
    test_peer_close(&peer);
    http_turn_until_alone(f);
    free(answer.body);
    free(body);
}

/* Answers what is kept, in turn. */
static void answer_held(http_fixture *f, test_peer *peers, size_t count)
{
    test_answer answer = {0};
    for (size_t i = 0; i < count; i++) {
        cot_http_reply(f->held[i], 200, "text/plain", NULL, 0, "late", 4);
        assert_true(test_peer_answer(&peers[i], &answer, false));
        assert_string_equal(answer.body, "late");
        test_peer_close(&peers[i]);
    }
    f->n_held = 0;
    free(answer.body);
}

/* Where every connection has a request that is being answered, who comes is told, or shown out. */
static void test_too_many(void **state)
{
    enum { PLACES = 3 };
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.max_connections = PLACES});
    test_peer peers[PLACES], more[100];
    test_answer answer = {0};
    for (int i = 0; i < PLACES; i++) peers[i] = join_and_hold(f);
    for (int i = 0; i < 100; i++) more[i] = http_join(f);
    int told = 0;
    for (int i = 0; i < 100; i++) {
        test_peer_tell(&more[i], GET("/echo"));
        if (!test_peer_answer(&more[i], &answer, false)) continue; // some are only closed
        told++;
        assert_int_equal(answer.status, 503);
        assert_string_equal(test_answer_field(&answer, "Retry-After"), "1");
        assert_true(answer.close);
    }
    assert_int_not_equal(told, 0);
    assert_int_equal(f->handled, PLACES);
    for (int i = 0; i < 100; i++) test_peer_close(&more[i]);
    answer_held(f, peers, PLACES); // those inside feel nothing
    http_turn_until_alone(f);
    test_peer peer = http_join(f);
    assert_served(&peer, GET("/echo"));
    test_peer_close(&peer);
    free(answer.body);
}

/* Those who keep a place and ask for nothing go first, the one that has waited longest before the others: who asks for
 * something finds a place however many there are. */
static void test_room_is_made(void **state)
{
    enum { WAITERS = 5 };
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){.max_connections = WAITERS + 1});
    test_peer held = join_and_hold(f), waiters[WAITERS], fresh[WAITERS];
    const char *const begun[WAITERS] = {"", "GET /ec", POST "Content-Length: 9\r\n\r\nabc",
                                        "GET /echo HTTP/1.1\r\n", ""};
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = http_join(f);
        assert_true(test_peer_tell(&waiters[i], begun[i]));
        for (int turn = 0; turn < 10; turn++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    }
    assert_int_equal(f->checked, 2);
    assert_served(&waiters[0], GET("/echo")); // it has begun to wait anew
    const int order[WAITERS] = {1, 2, 3, 4, 0};
    for (int i = 0; i < WAITERS; i++) {
        fresh[i] = http_join(f);
        if (i < WAITERS - 1) assert_served(&fresh[i], GET("/echo"));
        test_peer_await_over(&waiters[order[i]]);
        assert_int_equal(waiters[order[i]].count, 0);
        assert_int_equal(cot_http_server_dropped(f->server), i + 1);
        assert_int_equal(cot_http_server_connections(f->server), WAITERS + 1);
        for (int j = i + 1; j < WAITERS; j++) assert_false(waiters[order[j]].over);
    }
    assert_int_equal(f->gone, 1); // the one with half a body
    answer_held(f, &held, 1);
    for (int i = 0; i < WAITERS; i++) {
        test_peer_close(&waiters[i]);
        test_peer_close(&fresh[i]);
    }
    http_turn_until_alone(f);
}

/* Without descriptors clients are shown out, and nothing spins; who waits for nothing but its client makes room. */
static void test_no_descriptors(void **state)
{
    enum { MORE = 5 };
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer inside = join_and_hold(f), idle = http_join(f), fresh, more[MORE];
    assert_served(&idle, GET("/echo"));
    fresh = http_join(f);
    for (int i = 0; i < MORE; i++) more[i] = http_join(f);
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
    assert_true(test_peer_tell(&fresh, GET("/hold"))); // before the others come
    http_turn_until(f, &f->n_held, 2);
    test_peer_await_over(&idle);
    for (int i = 0; i < MORE; i++) {
        test_peer_await_over(&more[i]);
        assert_int_equal(more[i].count, 0);
    }
    assert_int_equal(cot_http_server_connections(f->server), 2);
    while (n_fillers) close(fillers[--n_fillers]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < MORE; i++) test_peer_close(&more[i]);
    test_peer peer = http_join(f);
    assert_served(&peer, GET("/echo"));
    test_peer_close(&peer);
    test_peer_close(&idle);
    answer_held(f, (test_peer[]){inside, fresh}, 2);
}

static void test_stop(void **state)
{
    http_fixture *const f = *state;
    http_open_server(f, &(cot_http_server_options){0});
    test_peer idle = http_join(f), held = http_join(f), streams = http_join(f);
    test_answer answer = {0};
    assert_true(test_peer_tell(&idle, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_answer(&idle, &answer, false));
    assert_true(test_peer_tell(&held, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 1);
    assert_true(test_peer_tell(&streams, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    http_turn_until(f, &f->n_held, 2);
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
        assert_int_equal(answer.close, i == 0); // the stream had its head before
        test_peer_await_over(peer);
        test_peer_close(peer);
    }
    test_peer_close(&idle);
    http_turn_until_alone(f);
    free(answer.body);
    assert_int_equal(f->gone, 0);
}

static void test_close(void **state)
{
    http_fixture *const f = *state;
    const size_t before = test_descriptors();
    http_open_server(f, &(cot_http_server_options){0});
    test_peer peers[4];
    for (int i = 0; i < 4; i++) peers[i] = http_join(f);
    assert_true(test_peer_tell(&peers[0], "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peers[1], "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(test_peer_tell(&peers[2], POST "Content-Length: 9\r\n\r\na"));
    http_turn_until(f, &f->checked, 3);
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

int main(void)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
#define TEST(name) cmocka_unit_test_setup_teardown(name, http_set_up, http_tear_down)
    const struct CMUnitTest tests[] = {TEST(test_slow_clients),
                                       TEST(test_time_of_each_phase),
                                       TEST(test_time_of_long_bodies),
                                       TEST(test_announced),
                                       TEST(test_too_many),
                                       TEST(test_room_is_made),
                                       TEST(test_no_descriptors),
                                       TEST(test_stop),
                                       TEST(test_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
