/* The HTTP client: against the server of this house, and against one that says what the test tells it to. */
#include "harness/cmocka.h"
#include "harness/http_peer.h"
#include "harness/seed.h"
#include "base/rng.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/wake.h"
#include <arpa/inet.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct fixture {
    struct event_base *base;
    cot_http_server *server;
    cot_http_exchange *held;
    int listener; // of the server that the test plays
    uint16_t port;
    uint64_t seed, draws;
} fixture;

/* One call and what came of it. */
typedef struct result {
    cot_http_call *call;
    int heads, status, ends, cancel_at_head, cancel_at_data, leave_at_data;
    char type[64];
    char body[100000];
    size_t bytes;
    bool failed;
    cot_error error;
} result;

static void on_head(void *context, cot_http_call *call, int status)
{
    result *const r = context;
    assert_ptr_equal(call, r->call);
    r->heads++;
    r->status = status;
    const char *const type = cot_http_call_header(call, "CONTENT-type");
    snprintf(r->type, sizeof r->type, "%s", type ? type : "none");
    if (r->cancel_at_head) cot_http_call_cancel(call);
}

static void on_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    result *const r = context;
    assert_int_equal(r->heads, 1);
    assert_true(r->bytes + count < sizeof r->body);
    memcpy(r->body + r->bytes, bytes, count);
    r->bytes += count;
    r->body[r->bytes] = '\0';
    if (r->cancel_at_data) cot_http_call_cancel(call);
    if (r->leave_at_data) cot_http_call_leave(call);
}

static void on_done(void *context, cot_http_call *call, const cot_error *error)
{
    result *const r = context;
    (void)call;
    r->ends++;
    r->failed = error;
    if (error) r->error = *error;
}

static const cot_http_answer answer = {on_head, on_data, on_done};

static void handle(void *context, cot_http_exchange *exchange)
{
    fixture *const f = context;
    size_t bytes;
    const char *const body = cot_http_body(exchange, &bytes), *const path = cot_http_path(exchange);
    if (!strcmp(path, "/hold")) {
        f->held = exchange;
        return;
    }
    if (!strcmp(path, "/close")) cot_http_close_after(exchange);
    char text[1000];
    const char *const key = cot_http_header(exchange, "Authorization");
    const int n = snprintf(text, sizeof text, "%s %s %s %.*s", cot_http_method(exchange), path,
                           key ? key : "-", (int)bytes, body);
    cot_http_reply(exchange, 200, "text/plain", NULL, 0, text, (size_t)n);
}

static void gone(void *context, cot_http_exchange *exchange)
{
    (void)exchange;
    ((fixture *)context)->held = NULL;
}

static int set_up(void **state)
{
    static fixture f;
    f = (fixture){.base = event_base_new(),
                  .seed = test_seed(),
                  .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    assert_int_equal(bind(f.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(f.listener, 100), 0);
    assert_int_equal(getsockname(f.listener, (struct sockaddr *)&address, &bytes), 0);
    f.port = ntohs(address.sin_port);
    assert_int_equal(cot_http_server_open(&f.server, f.base, &(cot_http_server_options){0},
                                          &(cot_http_handler){.handle = handle, .gone = gone}, &f, NULL),
                     COT_OK);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *const f = *state;
    cot_http_server_close(f->server);
    event_base_free(f->base);
    close(f->listener);
    return 0;
}

static cot_http_client *open_client(fixture *f, uint16_t port, const char *prefix,
                                    cot_http_client_options options)
{
    char url[64];
    cot_http_client *client;
    cot_error error;
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", (unsigned)port, prefix);
    if (cot_http_client_open(&client, f->base, url, &options, &error)) fail_msg("%s", error.message);
    return client;
}

static void ask(cot_http_client *client, result *r, const char *method, const char *path, const char *body)
{
    *r = (result){.cancel_at_head = r->cancel_at_head,
                  .cancel_at_data = r->cancel_at_data,
                  .leave_at_data = r->leave_at_data};
    const cot_http_field field = {"Authorization", "Bearer\nk"};
    assert_int_equal(cot_http_client_send(client, method, path, &field, 1, body, body ? strlen(body) : 0,
                                          &answer, r, &r->call, NULL),
                     COT_OK);
    assert_int_equal(r->ends, 0);
}

static void turn_until(fixture *f, const int *count, int value)
{
    const time_t begin = time(NULL);
    while (*count < value) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("waited in vain");
    }
}

static void test_calls(void **state)
{
    fixture *const f = *state;
    const size_t before = test_descriptors();
    cot_http_client *const client =
        open_client(f, cot_http_server_port(f->server), "/v1/", (cot_http_client_options){0});
    static result r[20];
    for (int i = 0; i < 5; i++) { // one after the other: one connection
        char path[20];
        snprintf(path, sizeof path, "/p%d", i);
        ask(client, &r[0], i % 2 ? "POST" : "GET", path, i % 2 ? "body" : NULL);
        turn_until(f, &r[0].ends, 1);
        char expected[64];
        snprintf(expected, sizeof expected, "%s /v1/p%d Bearer k %s", i % 2 ? "POST" : "GET", i,
                 i % 2 ? "body" : "");
        assert_false(r[0].failed);
        assert_int_equal(r[0].status, 200);
        assert_string_equal(r[0].type, "text/plain");
        assert_string_equal(r[0].body, expected);
        assert_int_equal(cot_http_client_connections(client), 1);
    }
    for (int i = 0; i < 20; i++) ask(client, &r[i], "POST", "/x", "y");
    for (int i = 0; i < 20; i++) {
        turn_until(f, &r[i].ends, 1);
        assert_string_equal(r[i].body, "POST /v1/x Bearer k y");
    }
    assert_in_range(cot_http_client_connections(client), 1, 20);
    ask(client, &r[0], "HEAD", "/x", NULL);
    turn_until(f, &r[0].ends, 1);
    assert_false(r[0].failed);
    assert_int_equal(r[0].bytes, 0);
    cot_http_client_close(client);
    for (int i = 0; i < 1000 && cot_http_server_connections(f->server); i++)
        event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(test_descriptors(), before);
}

/* A connection is kept for the next call as often as one is free, whether the last one was taken or has ended. */
static void test_kept_again(void **state)
{
    enum { CALLS = 6 };
    fixture *const f = *state;
    cot_http_server *server;
    assert_int_equal(cot_http_server_open(&server, f->base, &(cot_http_server_options){.idle_ms = 200},
                                          &(cot_http_handler){.handle = handle, .gone = gone}, f, NULL),
                     COT_OK);
    cot_http_client *const client =
        open_client(f, cot_http_server_port(server), "/", (cot_http_client_options){.max_idle = 2});
    static result r;
    for (int i = 0; i < CALLS; i++) {
        ask(client, &r, "GET", "/x", NULL);
        turn_until(f, &r.ends, 1);
        assert_false(r.failed);
        assert_int_equal(cot_http_client_connections(client), 1);
    }
    for (int i = 0; i < 3; i++) { // the server ends it, who asks next has another
        const time_t begin = time(NULL);
        while (cot_http_client_connections(client)) {
            event_base_loop(f->base, EVLOOP_ONCE);
            if (time(NULL) - begin > 30) fail_msg("an idle connection stays");
        }
        ask(client, &r, "GET", "/x", NULL);
        turn_until(f, &r.ends, 1);
        assert_false(r.failed);
        assert_int_equal(cot_http_client_connections(client), 1);
    }
    cot_http_client_close(client);
    cot_http_server_close(server);
}

/* What a server that breaks the rules, or ends, makes of a call. */
static const struct {
    const char *answer;
    cot_status status; // OK: it came whole
    const char *body, *message;
} rows[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", COT_OK, "abc", ""},
    {"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc", COT_OK, "abc", ""},
    {"HTTP/1.0 200 OK\r\n\r\nup to the end", COT_OK, "up to the end", ""},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
     "0\r\n\r\n",
     COT_OK, "", ""},
    {"HTTP/1.1 204 No\r\n\r\n", COT_OK, "", ""},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", COT_OK, "abc", ""},
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", COT_OK, "abc",
     ""}, // its connection is not trusted further
    {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", COT_IO, "abc", "in the midst"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", COT_IO, "abc", "in the midst"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", COT_MALFORMED, "", "chunks"},
    {"", COT_IO, "", "without an answer"},
    {"HTTP/1.1 200 OK\r\nContent-Le", COT_IO, "", "without an answer"},
    {"SSH-2.0-OpenSSH_9\r\n\r\n", COT_MALFORMED, "", "HTTP's"},
    {"\x15\x03\x01", COT_MALFORMED, "", "HTTP's"},
    {"HTTP/2.0 200 OK\r\n\r\n", COT_MALFORMED, "", "HTTP/1.1"},
    {"HTTP/1.1 20 OK\r\n\r\n", COT_MALFORMED, "", "no status"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", COT_MALFORMED, "", "twice"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", COT_MALFORMED, "", "chunked"},
};

/* Plays the server for one call: reads its request, sends the text in pieces, closes. */
static void play(fixture *f, result *r, const char *text, size_t bytes, size_t piece)
{
    struct timeval patience = {30, 0};
    int fd = -1;
    const time_t begin = time(NULL);
    while (fd < 0) {
        if (time(NULL) - begin > 30 || r->ends) fail_msg("the client does not come");
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) usleep(100);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char request[4096];
    size_t got = 0;
    while (!got || !memmem(request, got, "\r\n\r\n", 4)) {
        event_base_loop(f->base, EVLOOP_NONBLOCK);
        const ssize_t n = recv(fd, request + got, sizeof request - got, MSG_DONTWAIT);
        if (n > 0) got += (size_t)n;
    }
    for (size_t at = 0, n; at < bytes && !r->ends; at += n) {
        n = bytes - at < piece ? bytes - at : piece;
        if (send(fd, text + at, n, MSG_NOSIGNAL) < 0) break;
        event_base_loop(f->base, EVLOOP_NONBLOCK);
    }
    shutdown(fd, SHUT_WR);
    if (!r->cancel_at_head && !r->cancel_at_data)
        turn_until(f, &r->ends, 1);
    else
        for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    close(fd);
}

static void test_answers(void **state)
{
    fixture *const f = *state;
    static result r;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t piece = 1; piece <= 1000; piece += 999) {
            cot_http_client *const client = open_client(f, f->port, "", (cot_http_client_options){0});
            ask(client, &r, "GET", "/", NULL);
            play(f, &r, rows[i].answer, strlen(rows[i].answer), piece);
            assert_int_equal(r.ends, 1);
            if ((r.failed ? r.error.status : COT_OK) != rows[i].status)
                fail_msg("%zu: %s", i, r.failed ? r.error.message : "came whole");
            assert_string_equal(r.body, rows[i].body);
            if (r.failed && !strstr(r.error.message, rows[i].message)) fail_msg("'%s'", r.error.message);
            cot_http_client_close(client);
        }
    }
    for (int way = 0; way < 2; way++) { // cancelled from its own callbacks
        r = (result){.cancel_at_head = !way, .cancel_at_data = way};
        cot_http_client *const client = open_client(f, f->port, "", (cot_http_client_options){0});
        ask(client, &r, "GET", "/", NULL);
        play(f, &r, rows[5].answer, strlen(rows[5].answer), 1000);
        assert_int_equal(r.ends, 0);
        assert_int_equal(r.heads, 1);
        assert_int_equal(r.bytes, way ? 3 : 0);
        assert_int_equal(cot_http_client_connections(client), 0);
        cot_http_client_close(client);
    }
    r = (result){0};
}

static void test_refused(void **state)
{
    fixture *const f = *state;
    static result r;
    const int fd = socket(AF_INET, SOCK_STREAM, 0); // bound, and nobody listens
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    cot_http_client *client = open_client(f, ntohs(address.sin_port), "", (cot_http_client_options){0});
    ask(client, &r, "GET", "/", NULL);
    turn_until(f, &r.ends, 1);
    assert_true(r.failed);
    assert_int_equal(r.error.status, COT_IO);
    assert_non_null(strstr(r.error.message, "cannot connect: Connection refused"));
    assert_int_equal(cot_http_client_connections(client), 0);
    cot_http_client_close(client);
    close(fd);

    cot_error error;
    static const struct {
        const char *url;
        cot_status status;
    } bad[] = {{"https://", COT_INVALID_ARGUMENT},    {"a:80", COT_INVALID_ARGUMENT},
               {"http://", COT_INVALID_ARGUMENT},     {"http://:80", COT_INVALID_ARGUMENT},
               {"http://a:0", COT_INVALID_ARGUMENT},  {"http://a:65536", COT_INVALID_ARGUMENT},
               {"http://a:", COT_INVALID_ARGUMENT},   {"http://a:8x", COT_INVALID_ARGUMENT},
               {"http://u@a", COT_INVALID_ARGUMENT},  {"http://a/?q", COT_INVALID_ARGUMENT},
               {"http://[::1", COT_INVALID_ARGUMENT}, {"http://[::1]x", COT_INVALID_ARGUMENT},
               {"http://a b/", COT_INVALID_ARGUMENT}, {"http://a\r\n/", COT_INVALID_ARGUMENT},
               {"http://[]", COT_NOT_FOUND},          {"http://no.such.host.invalid", COT_NOT_FOUND},
               {"http://999.1.1.1:1", COT_NOT_FOUND}, {"", COT_INVALID_ARGUMENT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const cot_status status =
            cot_http_client_open(&client, f->base, bad[i].url, &(cot_http_client_options){0}, &error);
        if (status != bad[i].status && strcmp(bad[i].url, "http://[]"))
            fail_msg("'%s': %d", bad[i].url, (int)status);
        if (!status) cot_http_client_close(client);
    }
}

static void test_time_outs(void **state)
{
    fixture *const f = *state;
    static result r;
    cot_http_client *const client = open_client(f, cot_http_server_port(f->server), "",
                                                (cot_http_client_options){.answer_ms = 20, .silence_ms = 20});
    ask(client, &r, "GET", "/hold", NULL);
    turn_until(f, &r.ends, 1);
    assert_int_equal(r.error.status, COT_TIMED_OUT);
    assert_non_null(strstr(r.error.message, "no answer in time"));
    while (f->held) event_base_loop(f->base, EVLOOP_NONBLOCK); // the server has noticed
    ask(client, &r, "GET", "/hold", NULL);
    while (!f->held) event_base_loop(f->base, EVLOOP_NONBLOCK);
    cot_http_stream_begin(f->held, 200, "text/event-stream", NULL, 0);
    cot_http_stream_event(f->held, "a", 1);
    turn_until(f, &r.ends, 1);
    assert_int_equal(r.error.status, COT_TIMED_OUT);
    assert_non_null(strstr(r.error.message, "stopped"));
    assert_string_equal(r.body, "data: a\n\n");
    // in time
    ask(client, &r, "GET", "/x", NULL);
    turn_until(f, &r.ends, 1);
    assert_false(r.failed);
    cot_http_client_close(client);
}

/* A kept connection that the server has closed, or closes under the request, costs nothing but another connection. */
static void test_kept(void **state)
{
    fixture *const f = *state;
    static result r;
    cot_http_client *const client = open_client(f, f->port, "", (cot_http_client_options){0});
    const char *const text = rows[0].answer;
    for (int i = 0; i < 3; i++) {
        ask(client, &r, "POST", "/", "x");
        if (i) { // the connection of before is dead, which the client may or may not have seen
            if (i == 2) event_base_loop(f->base, EVLOOP_NONBLOCK);
        }
        play(f, &r, text, strlen(text), 1000);
        assert_false(r.failed);
        assert_string_equal(r.body, "abc");
        assert_in_range(cot_http_client_connections(client), 0, 1);
    }
    ask(client, &r, "GET", "/", NULL);
    cot_http_call_cancel(r.call); // before its first move
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(r.ends, 0);
    ask(client, &r, "GET", "/", NULL);
    cot_http_client_close(client);
    for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
    assert_int_equal(r.ends, 0);
}

/* Turns the loop until the client holds as many connections. */
static void turn_until_connections(fixture *f, const cot_http_client *client, size_t count)
{
    const time_t begin = time(NULL);
    while (cot_http_client_connections(client) != count) {
        event_base_loop(f->base, EVLOOP_ONCE);
        if (time(NULL) - begin > 30) fail_msg("waited in vain");
    }
}

/* What was left says nothing more. Its connection carries the next call where the rest came, and is closed where none comes. */
static void test_left(void **state)
{
    fixture *const f = *state;
    static result r, other;
    cot_http_client *const client =
        open_client(f, cot_http_server_port(f->server), "", (cot_http_client_options){.silence_ms = 60000});
    for (int rest = 1; rest >= 0; rest--) {
        r = (result){.leave_at_data = 1};
        ask(client, &r, "GET", "/hold", NULL);
        while (!f->held) event_base_loop(f->base, EVLOOP_NONBLOCK);
        cot_http_stream_begin(f->held, 200, "text/event-stream", NULL, 0);
        cot_http_stream_event(f->held, "a", 1);
        while (!r.bytes) event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (rest) {
            cot_http_stream_event(f->held, "b", 1);
            cot_http_stream_end(f->held);
            f->held = NULL;
            for (int i = 0; i < 100; i++) event_base_loop(f->base, EVLOOP_NONBLOCK);
            ask(client, &other, "GET", "/x", NULL);
            turn_until(f, &other.ends, 1);
            assert_false(other.failed);
            assert_int_equal(cot_http_server_connections(f->server), 1);
        } else {
            assert_int_equal(cot_http_client_connections(client), 1);
            turn_until_connections(f, client, 0);
        }
        assert_string_equal(r.body, "data: a\n\n");
        assert_int_equal(r.ends, 0);
    }
    cot_http_client_close(client);
    r = (result){0};
}

/* ---- who sends without end ---- */

enum { FLOOD = 64 << 20 };

/* Sends faster than the other side takes it. */
static void *flood(void *descriptor)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n";
    static char piece[1 << 18];
    const int fd = *(const int *)descriptor;
    bool open = send(fd, head, sizeof head - 1, MSG_NOSIGNAL) > 0;
    for (int sent = 0; open && sent < FLOOD;) {
        const ssize_t n = send(fd, piece, sizeof piece, MSG_NOSIGNAL);
        open = n > 0;
        sent += (int)n;
    }
    return NULL;
}

struct flooded {
    struct event_base *base;
    size_t taken, at; // bytes; those when a timer had its turn
};

static void take_slowly(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    const struct timespec rest = {0, 20000};
    (void)call, (void)bytes;
    ((struct flooded *)context)->taken += count;
    nanosleep(&rest, NULL);
}

static void note_end(void *context, cot_http_call *call, const cot_error *error)
{
    (void)context, (void)call, (void)error;
}

static void note_time(evutil_socket_t fd, short what, void *context)
{
    struct flooded *f = context;
    (void)fd, (void)what;
    if (!f->taken) return;
    f->at = f->taken;
    event_base_loopbreak(f->base);
}

/* Other events of the loop have their turn while an answer comes faster than it is taken. */
static void an_answer_without_end_holds_nobody(void **state)
{
    fixture *const f = *state;
    static const cot_http_answer slow = {NULL, take_slowly, note_end};
    struct flooded flooded = {.base = cot_wake_base_open()};
    cot_http_client *client;
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", f->port);
    assert_non_null(flooded.base);
    assert_int_equal(cot_http_client_open(&client, flooded.base, url, &(cot_http_client_options){0}, NULL),
                     COT_OK);
    assert_int_equal(cot_http_client_send(client, "GET", "/", NULL, 0, NULL, 0, &slow, &flooded, NULL, NULL),
                     COT_OK);
    int fd = -1;
    while ((fd = accept(f->listener, NULL, NULL)) < 0) event_base_loop(flooded.base, EVLOOP_NONBLOCK);
    struct event *timer = event_new(flooded.base, -1, EV_PERSIST, note_time, &flooded);
    assert_int_equal(event_add(timer, &(struct timeval){0, 1000}), 0);
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, flood, &fd), 0);
    while (!flooded.at && flooded.taken < FLOOD) event_base_loop(flooded.base, EVLOOP_ONCE);
    assert_in_range(flooded.at, 1, FLOOD / 2);
    event_free(timer);
    cot_http_client_close(client);
    pthread_join(sender, NULL);
    close(fd);
    event_base_free(flooded.base);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_calls),     TEST(test_kept_again),
                                       TEST(test_answers),   TEST(test_refused),
                                       TEST(test_time_outs), TEST(test_kept),
                                       TEST(test_left),      TEST(an_answer_without_end_holds_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
