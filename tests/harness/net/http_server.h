/* A server with a handler that does what a test's request asks for, and the loop that it runs on. */
#ifndef COT_TESTS_HARNESS_NET_HTTP_SERVER_H
#define COT_TESTS_HARNESS_NET_HTTP_SERVER_H
#include "harness/http_peer.h"

#include "net/http_server.h"

#include <stddef.h>
#include <stdint.h>

enum { HELD = 4096 };

/* A server whose http_fixture_handler answers by the path:
 *   /echo...  at once: method, path, query, host, body
 *   /refused  in `check`: 401
 *   /hold     later: the exchange is kept
 *   /stream   a stream is begun and kept */
typedef struct http_fixture {
    struct event_base *base;
    cot_http_server *server;
    cot_http_exchange *held[HELD]; // not answered
    size_t n_held, checked, handled, gone;
    const char *type;
    uint64_t seed, draws;
} http_fixture;

/* A test's setup and teardown: *state becomes an http_fixture without a server; the teardown closes its server. */
int http_set_up(void **state);
int http_tear_down(void **state);

extern const cot_http_handler http_fixture_handler; // its context is the http_fixture

/* Opens f->server on a free port of 127.0.0.1 (where the options do not say otherwise). */
void http_open_server(http_fixture *f, const cot_http_server_options *options);

/* A new connection to f->server. */
test_peer http_join(http_fixture *f);

/* Turns the loop until *count is `value`, or until the server has no connection; fails the test after 30 s. */
void http_turn_until(http_fixture *f, const size_t *count, size_t value);
void http_turn_until_alone(http_fixture *f);

/* Takes an exchange from those that are held: the test answers it, or ends it. */
void http_forget(http_fixture *f, const cot_http_exchange *exchange);

/* A number below `below`. */
uint64_t http_draw(http_fixture *f, uint64_t below);

/* Draws a valid request to /echo; both texts are written with their NUL's room to spare: 200,000 bytes and 24,000 are
 * enough. Returns the request's bytes; `expected` is the body that answers it. */
size_t http_make_request(http_fixture *f, char *request, char *expected);

#endif
