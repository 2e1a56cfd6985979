/* An HTTP/1.1 server on a libevent loop. It knows bytes, heads and time-outs, and nothing of what is served.
 *
 *     connection:  head --check--> body --handle--> the handler answers, now or later --> next head, or the end
 *
 * An exchange is one request and its answer. A connection has one at a time; what a client sends ahead waits in the
 * socket. The handler owes every exchange that it was shown exactly one end: cot_http_reply, or cot_http_stream_begin
 * and cot_http_stream_end, or cot_http_abort. If the client leaves before, `gone` is called, once, and takes that debt
 * away. After its end an exchange may not be touched; nor after `gone` has returned.
 *
 * Everything here belongs to the thread that runs the loop: no function may be called from another. Callbacks are
 * called from the loop only (`gone` also from cot_http_server_close), never from inside a call of the functions below;
 * so an exchange stays valid from one callback to the next, whatever is called on it. Only cot_http_server_close may
 * not be called from a callback. */
#ifndef COT_NET_HTTP_SERVER_H
#define COT_NET_HTTP_SERVER_H
#include "coterie/status.h"
#include "net/http_field.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cot_tls;
struct event_base;
typedef struct cot_http_server cot_http_server;
typedef struct cot_http_exchange cot_http_exchange;

/* 0 stands for the default of each. */
typedef struct cot_http_server_options {
    struct cot_tls *tls; // every connection is a link of it (tls.h); outlives the server. NULL: plain
    const char *host;    // a name or an address to listen on; NULL: 127.0.0.1
    uint16_t port;       // 0: any that is free, see cot_http_server_port
    size_t
        max_connections; // 4,096: for one more the one that has waited longest for its client is cut; where all have
                         // requests that are being answered, the new one is answered 503 and closed
    size_t max_head_bytes;    // 64 KiB, of a request line with its fields: more is 431
    size_t max_body_bytes;    // 64 MiB, of one body: more is 413
    size_t max_bodies_bytes;  // 512 MiB, of all bodies together that are held: more is 503
    size_t max_waiting_bytes; // 1 MiB of a stream that the client has not read: it is cut
    int64_t head_ms;  // 10 s from a connection's or a request's first moment to the end of its head: then 408
    int64_t body_ms;  // 30 s, and one more for each 16 KiB that came: then 408
    int64_t idle_ms;  // 75 s between an answer and the next request: then the connection is closed
    int64_t write_ms; // 30 s in which the client reads nothing of what waits for it: then it is cut
    int64_t ping_ms;  // 10 s of silence on an event stream, then a comment `: ping`; negative: never
} cot_http_server_options;

/* What became of an exchange. */
typedef struct cot_http_outcome {
    const char *method, *path; // NULL: no head was understood
    const char *request_id;    // X-Request-Id of the answer, which each has; "" where there was no answer
    int status;                // 0: nothing was answered
    bool whole;                // all of the answer was made; else it was cut
    uint64_t body_bytes;       // of the answer
    int64_t ns;                // since the head was complete
} cot_http_outcome;

typedef struct cot_http_handler {
    /* The head is there, the body is not, and is not read if this function replies (or aborts): the place to refuse.
     * It decides at once, and begins no stream. NULL: none. */
    void (*check)(void *context, cot_http_exchange *exchange);
    /* The request is complete. */
    void (*handle)(void *context, cot_http_exchange *exchange);
    /* The client has left, or was cut, before the end of an exchange that `check` or `handle` was shown: by a FIN
     * (half a close counts as leaving), a reset, an error, a time-out, a body that the server refuses, or the
     * server's close. Not for exchanges that ended. Here an exchange may be asked, not answered. */
    void (*gone)(void *context, cot_http_exchange *exchange);
    /* An exchange is over, answered or not, or a request was refused before anybody was shown it; the exchange may be asked
     * who it is, and nothing else. NULL: none. */
    void (*over)(void *context, const cot_http_exchange *exchange, const cot_http_outcome *outcome);
    /* Writes the body of an answer that the server itself makes (to a request that breaks HTTP or a limit): at most
     * `room` bytes at `out`. `message` is one lowercase line without control characters. Returns the bytes. NULL: the
     * message as text/plain. */
    size_t (*error_body)(void *context, int status, const char *message, char *out, size_t room);
    const char *error_type; // content type of error_body's texts
} cot_http_handler;

/* Listens. `*server` is NULL on failure. `base` must be an epoll base (libevent's default on Linux) and outlive the
 * server, as must `context`; options and handler are copied. Errors: INVALID_ARGUMENT (not an address here, another
 * kind of base), IO (the port is taken, no right to it, no descriptors), OUT_OF_MEMORY. */
cot_status cot_http_server_open(cot_http_server **server, struct event_base *base,
                                const cot_http_server_options *options, const cot_http_handler *handler,
                                void *context, cot_error *error);
/* The port that it listens on. */
uint16_t cot_http_server_port(const cot_http_server *server);
/* Whether every address that it listens on is this machine's own. */
bool cot_http_server_is_loopback(const cot_http_server *server);
/* Accepts no more connections and closes the idle ones; an exchange in progress goes on and its connection ends with
 * it. */
void cot_http_server_stop_accepting(cot_http_server *server);
/* Open connections; those that only wait for their last bytes to be taken count too. */
size_t cot_http_server_connections(const cot_http_server *server);
/* Exchanges that were shown to the handler and have not ended. */
size_t cot_http_server_exchanges(const cot_http_server *server);
/* Connections that were cut to make room for others. */
uint64_t cot_http_server_dropped(const cot_http_server *server);
/* Cuts every connection, calls `gone` for what was not answered, frees everything. NULL is fine. */
void cot_http_server_close(cot_http_server *server);

/* What the client asked. Strings live as long as the exchange. */
const char *
cot_http_method(const cot_http_exchange *exchange); // as sent; HEAD is answered without a body by itself
/* The path, percent-decoded once: begins with '/' (or is "*"), valid UTF-8, no control character. */
const char *cot_http_path(const cot_http_exchange *exchange);
/* What follows '?', as sent; "" if nothing. */
const char *cot_http_query(const cot_http_exchange *exchange);
/* The value of the first field of that name (any case), without blanks around it; NULL if there is none.
 * Content-Length, Transfer-Encoding, Host, Content-Type and Authorization occur once at most: a request with two is
 * refused. */
const char *cot_http_header(const cot_http_exchange *exchange, const char *name);
/* Host as the client named it (of a target "http://host/path" that one's host), with its port; "" where HTTP/1.0
 * gives none. */
const char *cot_http_host(const cot_http_exchange *exchange);
/* The body, in one piece and followed by a NUL that does not count; empty in `check`. */
const char *cot_http_body(const cot_http_exchange *exchange, size_t *bytes);
/* In `check`: Content-Length; -1 for a body in chunks; 0 for none. Its limit has been checked already. */
int64_t cot_http_body_length(const cot_http_exchange *exchange);
/* Takes the body away: the caller frees it (free). NULL if there is none. */
char *cot_http_take_body(cot_http_exchange *exchange, size_t *bytes);
bool cot_http_peer_is_loopback(const cot_http_exchange *exchange);
/* The client's address, for a log. */
const char *cot_http_peer(const cot_http_exchange *exchange);
/* The handler's own pointer, NULL at first. */
void cot_http_set_user(cot_http_exchange *exchange, void *user);
void *cot_http_user(const cot_http_exchange *exchange);

/* Ends the exchange with one answer. `type` may be NULL where there is no body. The bytes are copied. The server adds
 * Content-Length, Content-Type, Date and Connection. Out of memory cuts the connection, here and below, and tells
 * nobody but `gone` (if the exchange has not ended). */
void cot_http_reply(cot_http_exchange *exchange, int status, const char *type, const cot_http_field *fields,
                    size_t count, const void *body, size_t bytes);

/* Begins an answer of unknown length: in chunks, or up to the connection's end for HTTP/1.0. A stream whose type
 * begins with "text/event-stream" is sent `: ping` comments in silences. */
void cot_http_stream_begin(cot_http_exchange *exchange, int status, const char *type,
                           const cot_http_field *fields, size_t count);
/* Sends bytes (copied; 0 is fine). They leave when the loop next comes round, so that what is sent in one callback
 * leaves together. A client with more than max_waiting_bytes unread is cut: `gone` follows. */
void cot_http_stream_send(cot_http_exchange *exchange, const void *bytes, size_t count);
/* Sends one event, `data: ` before each of its lines and an empty line after them. */
void cot_http_stream_event(cot_http_exchange *exchange, const char *data, size_t count);
/* Bytes that wait for the client to read. */
size_t cot_http_stream_waiting(const cot_http_exchange *exchange);
/* Ends the answer, and so the exchange. */
void cot_http_stream_end(cot_http_exchange *exchange);

/* The connection ends after this exchange's answer. */
void cot_http_close_after(cot_http_exchange *exchange);
/* Ends the exchange by closing the connection, without an answer or in the midst of one. `gone` is not called. */
void cot_http_abort(cot_http_exchange *exchange);

#endif
