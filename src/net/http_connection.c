/* How a connection moves: bytes to heads and bodies, answers to the socket, time-outs. */
#include "net/http_connection.h"
#include "base/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINGER_MS = 5000, BODY_BYTES_A_SECOND = 16 << 10, PIECE = 16 << 10 };
/* What one connection may do before the others have their turn, in bytes; a request counts as many. */
enum { BUDGET = 256 << 10, REQUEST_COST = 16 << 10 };

typedef enum move {
    ON,    // there may be more to do
    WAIT,  // until the socket, a timer or the handler says something
    YIELD, // there is more to do, and others wait
    CUT,
} move;

void cot_http_wake(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    if (exchange->woken || exchange->moving) return;
    if (!server->woken) {
        server->woken_end = &server->woken;
        event_active(&server->wake, EV_TIMEOUT, 0);
    }
    exchange->woken = true;
    exchange->next_woken = NULL;
    *server->woken_end = exchange;
    server->woken_end = &exchange->next_woken;
}

static void leave_queue(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    if (!exchange->queued) return;
    *(exchange->before ? &exchange->before->behind : &server->longest) = exchange->behind;
    *(exchange->behind ? &exchange->behind->before : &server->latest) = exchange->before;
    exchange->queued = false;
}

void cot_http_enter(cot_http_exchange *exchange, cot_http_state state)
{
    cot_http_server *const server = exchange->server;
    exchange->state = state;
    exchange->since_ns = cot_now_ns();
    leave_queue(exchange);
    if (state == COT_HTTP_OWED || state == COT_HTTP_STREAM || exchange->turned_away) return;
    exchange->before = server->latest;
    exchange->behind = NULL;
    *(server->latest ? &server->latest->behind : &server->longest) = exchange;
    server->latest = exchange;
    exchange->queued = true;
}

bool cot_http_make_room(cot_http_server *server)
{
    if (!server->longest) return false;
    server->dropped++;
    cot_http_destroy(server->longest);
    return true;
}

void cot_http_forget(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    if (exchange->shown) server->n_exchanges--;
    exchange->shown = false;
    exchange->user = NULL;
    server->bodies_bytes -= exchange->body_room;
    free(exchange->body);
    exchange->body = NULL;
    exchange->body_bytes = exchange->body_room = 0;
    free(exchange->head_bytes);
    exchange->head_bytes = NULL;
    exchange->head.count = 0;
    exchange->has_head = false;
}

void cot_http_tell_over(cot_http_exchange *exchange, bool whole)
{
    const cot_http_server *const server = exchange->server;
    const cot_http_outcome outcome = {.method = exchange->has_head ? exchange->head.method : NULL,
                                      .path = exchange->has_head ? exchange->head.path : NULL,
                                      .request_id = exchange->request_id,
                                      .status = exchange->status,
                                      .whole = whole,
                                      .body_bytes = exchange->answer_bytes,
                                      .ns = exchange->has_head ? cot_now_ns() - exchange->began_ns : 0};
    if (server->handler.over) server->handler.over(server->context, exchange, &outcome);
    exchange->status = 0;
    exchange->answer_bytes = 0;
    *exchange->request_id = 0;
}

/* The handler's debt is taken away. */
static void lose(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    if (exchange->shown && server->handler.gone) server->handler.gone(server->context, exchange);
    if (exchange->shown) server->n_exchanges--;
    exchange->shown = false;
    exchange->user = NULL;
}

static void unlink_from(cot_http_exchange **list, cot_http_exchange ***end, cot_http_exchange *exchange)
{
    for (cot_http_exchange **at = list; *at; at = &(*at)->next_woken) {
        if (*at != exchange) continue;
        *at = exchange->next_woken;
        if (end && *end == &exchange->next_woken) *end = at;
        return;
    }
}

void cot_http_destroy(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    exchange->moving = true; // whatever `gone` does, nobody wakes it again
    leave_queue(exchange);
    if (exchange->shown) cot_http_tell_over(exchange, false);
    lose(exchange);
    cot_http_forget(exchange);
    if (exchange->woken) {
        unlink_from(&server->woken, &server->woken_end, exchange);
        unlink_from(&server->later, NULL, exchange);
    }
    event_del(&exchange->socket);
    event_del(&exchange->timer);
    cot_tls_free(exchange->link);
    close(exchange->fd);
    if (exchange->next) exchange->next->previous = exchange->previous;
    *(exchange->previous ? &exchange->previous->next : &server->connections) = exchange->next;
    server->n_connections--;
    server->n_turned_away -= exchange->turned_away;
    cot_http_buffer_free(&exchange->in);
    cot_http_buffer_free(&exchange->out);
    free(exchange);
}

/* As `send` and `recv` on the socket: bytes, 0 at the end, or -1 with errno EAGAIN, EINTR or another. A link that has to
 * wait for the other direction goes on when that is told. */
static ssize_t send_bytes(cot_http_exchange *exchange, const void *bytes, size_t count)
{
    if (!exchange->link) return send(exchange->fd, bytes, count, MSG_NOSIGNAL);
    const ssize_t n = cot_tls_write(exchange->link, bytes, count);
    exchange->reads_to_write = n == COT_TLS_WAIT_TO_READ;
    if (n > 0) return n;
    errno = n == COT_TLS_END ? EPIPE : EAGAIN;
    return -1;
}

static ssize_t receive_bytes(cot_http_exchange *exchange, void *at, size_t room)
{
    if (!exchange->link) return recv(exchange->fd, at, room, 0);
    const ssize_t n = cot_tls_read(exchange->link, at, room);
    exchange->writes_to_read = n == COT_TLS_WAIT_TO_WRITE;
    if (n >= 0) return n;
    errno = EAGAIN;
    return -1;
}

/* Sends what waits, as far as the socket takes it. */
static void flush(cot_http_exchange *exchange)
{
    cot_http_buffer *const out = &exchange->out;
    while (exchange->writable && cot_http_buffer_count(out)) {
        const ssize_t n = send_bytes(exchange, out->bytes + out->begin, cot_http_buffer_count(out));
        if (n >= 0) {
            cot_http_buffer_take(out, (size_t)n);
            exchange->progress_ns = cot_now_ns();
        } else if (errno == EAGAIN) {
            exchange->writable = false;
        } else if (errno != EINTR) {
            exchange->broken = true;
            return;
        }
    }
}

/* Reads up to `room` bytes to `at`. ON with *count > 0; WAIT when nothing is there; CUT at the end or on an error. */
static move receive(cot_http_exchange *exchange, char *at, size_t room, size_t *count, size_t *budget)
{
    if (!exchange->readable) return WAIT;
    if (!*budget) return YIELD;
    for (;;) {
        const ssize_t n = receive_bytes(exchange, at, room);
        if (n > 0) {
            // less than there is room for is all there was: what comes later is told anew, and the client's leaving is known
            if ((size_t)n < room && !exchange->link && !exchange->left) exchange->readable = false;
            *count = (size_t)n;
            *budget -= *count < *budget ? *count : *budget;
            return ON;
        }
        if (n < 0 && errno == EINTR) continue;
        exchange->readable = false;
        return n < 0 && errno == EAGAIN ? WAIT : CUT;
    }
}

/* Reads a piece to the end of `in`. */
static move receive_more(cot_http_exchange *exchange, size_t *budget)
{
    if (!exchange->readable) return WAIT;
    size_t count;
    if (!cot_http_buffer_reserve(&exchange->in, cot_http_buffer_count(&exchange->in) ? PIECE : 2048))
        return CUT;
    cot_http_buffer *const in = &exchange->in;
    const size_t room = in->room - in->end;
    const move moved = receive(exchange, in->bytes + in->end, room < PIECE ? room : PIECE, &count, budget);
    if (moved == ON) in->end += count;
    return moved;
}

static move refuse(cot_http_exchange *exchange, int status, const char *why)
{
    lose(exchange);
    cot_http_refuse(exchange, status, why);
    return ON;
}

/* A head is complete in the first `count` bytes of `in`. */
static move begin_exchange(cot_http_exchange *exchange, size_t count, size_t *budget)
{
    cot_http_server *const server = exchange->server;
    *budget -= *budget < REQUEST_COST ? *budget : REQUEST_COST;
    exchange->head_bytes = malloc(count);
    if (!exchange->head_bytes) return CUT;
    memcpy(exchange->head_bytes, exchange->in.bytes + exchange->in.begin, count);
    cot_http_buffer_take(&exchange->in, count);
    exchange->scanned = 0;
    exchange->skipped = false;

    const char *why;
    cot_http_head *const head = &exchange->head;
    const int status = cot_http_read_request(exchange->head_bytes, count, head, &why);
    exchange->began_ns = cot_now_ns();
    exchange->has_head = !status;
    if (status) return refuse(exchange, status, why);
    exchange->only_head = !strcmp(head->method, "HEAD");
    exchange->keep = head->keep_alive;
    if (head->length > (int64_t)server->options.max_body_bytes)
        return refuse(exchange, 413, "the body is too large");
    exchange->chunks = (cot_http_chunks){0};
    cot_http_enter(exchange, COT_HTTP_BODY);
    exchange->shown = true;
    server->n_exchanges++;
    if (server->handler.check) server->handler.check(server->context, exchange);
    if (exchange->broken || exchange->state != COT_HTTP_BODY) return ON;
    if (head->expects && (head->chunked || head->length > 0) && !cot_http_buffer_count(&exchange->in)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        exchange->progress_ns = exchange->since_ns;
        if (!cot_http_buffer_add(&exchange->out, go_on, sizeof go_on - 1)) return CUT;
    }
    return ON;
}

/* The first byte of a connection that should be a link: who speaks plain HTTP is told. */
static move greet(cot_http_exchange *exchange)
{
    char first;
    const ssize_t n = recv(exchange->fd, &first, 1, MSG_PEEK);
    if (n < 0 && errno == EAGAIN) exchange->readable = false;
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR) ? WAIT : CUT;
    exchange->greeted = true;
    if (first == 0x16) return ON;
    cot_tls_free(exchange->link);
    exchange->link = NULL;
    return refuse(exchange, 400, "this port speaks TLS: https://");
}

static move read_head(cot_http_exchange *exchange, size_t *budget)
{
    if (exchange->link && !exchange->greeted) {
        const move moved = greet(exchange);
        return moved == WAIT && exchange->server->stopping ? CUT : moved;
    }
    const cot_http_server *const server = exchange->server;
    const cot_http_buffer *const in = &exchange->in;
    exchange->only_head = false;
    for (;;) {
        const size_t count = cot_http_buffer_count(in);
        const char *const bytes = in->bytes ? in->bytes + in->begin : "";
        const int64_t end = cot_http_head_end(bytes, count, &exchange->scanned);
        if (end == 2 && !exchange->skipped) { // an empty line before a request is forgiven, as RFC 9112 asks
            cot_http_buffer_take(&exchange->in, 2);
            exchange->scanned = 0;
            exchange->skipped = true;
            continue;
        }
        if (end < 0 && *bytes == 0x16) return refuse(exchange, 400, "this port speaks plain HTTP, not TLS");
        if (end < 0 || end == 2) return refuse(exchange, 400, "the request is not HTTP's");
        if ((size_t)end > server->options.max_head_bytes ||
            (!end && count >= server->options.max_head_bytes)) {
            const size_t most = server->options.max_head_bytes;
            const bool line = !memchr(bytes, '\n', count < most ? count : most);
            return refuse(exchange, line ? 414 : 431,
                          line ? "the request's target is too long" : "the head is too long");
        }
        if (end > 0) return begin_exchange(exchange, (size_t)end, budget);
        const move moved = receive_more(exchange, budget);
        if (moved == WAIT && exchange->server->stopping && !count) return CUT;
        if (moved != ON) return moved;
        if (!count && exchange->answered) cot_http_enter(exchange, COT_HTTP_HEAD); // no longer idle
    }
}

/* Makes place for `count` more bytes of the body and a NUL. 0, or the status of a refusal. */
static int grow_body(cot_http_exchange *exchange, size_t count)
{
    cot_http_server *const server = exchange->server;
    const size_t need = exchange->body_bytes + count + 1, most = server->options.max_body_bytes;
    if (count > most || exchange->body_bytes > most - count) return 413;
    if (need <= exchange->body_room) return 0;
    size_t room = exchange->body_room * 2 > need ? exchange->body_room * 2 : need;
    if (exchange->head.length >= 0 && room > (size_t)exchange->head.length + 1)
        room = (size_t)exchange->head.length + 1;
    if (server->bodies_bytes - exchange->body_room + room > server->options.max_bodies_bytes) return 503;
    char *const body = realloc(exchange->body, room);
    if (!body) return 503;
    server->bodies_bytes += room - exchange->body_room;
    exchange->body = body;
    exchange->body_room = room;
    return 0;
}

static move refuse_body(cot_http_exchange *exchange, int status)
{
    return refuse(exchange, status,
                  status == 413 ? "the body is too large" : "too many bodies are being read");
}

static move end_body(cot_http_exchange *exchange)
{
    const cot_http_server *const server = exchange->server;
    if (exchange->body) exchange->body[exchange->body_bytes] = '\0';
    cot_http_enter(exchange, COT_HTTP_OWED);
    server->handler.handle(server->context, exchange);
    return ON;
}

static move read_chunks(cot_http_exchange *exchange, size_t *budget)
{
    for (;;) {
        cot_http_buffer *const in = &exchange->in;
        size_t taken, bytes;
        const char *data;
        const cot_http_chunk found =
            cot_http_chunks_read(&exchange->chunks, in->bytes ? in->bytes + in->begin : "",
                                 cot_http_buffer_count(in), &taken, &data, &bytes);
        if (found == COT_HTTP_CHUNK_DATA) {
            const int status = grow_body(exchange, bytes);
            if (status) return refuse_body(exchange, status);
            memcpy(exchange->body + exchange->body_bytes, data, bytes);
            exchange->body_bytes += bytes;
        }
        if (found == COT_HTTP_CHUNK_BAD) return refuse(exchange, 400, "the body's chunks are malformed");
        cot_http_buffer_take(in, taken);
        if (found == COT_HTTP_CHUNK_END) return end_body(exchange);
        if (found == COT_HTTP_CHUNK_DATA) continue;
        const move moved = receive_more(exchange, budget);
        if (moved != ON) return moved;
    }
}

static move read_body(cot_http_exchange *exchange, size_t *budget)
{
    if (exchange->head.chunked) return read_chunks(exchange, budget);
    const size_t length = exchange->head.length > 0 ? (size_t)exchange->head.length : 0;
    while (exchange->body_bytes < length) {
        const size_t ahead = cot_http_buffer_count(&exchange->in), left = length - exchange->body_bytes;
        if (!ahead && !exchange->readable) return WAIT;
        size_t count = left < PIECE ? left : PIECE;
        if (ahead && ahead < count) count = ahead;
        const int status = grow_body(exchange, count);
        if (status) return refuse_body(exchange, status);
        char *const at = exchange->body + exchange->body_bytes;
        if (ahead) {
            memcpy(at, exchange->in.bytes + exchange->in.begin, count);
            cot_http_buffer_take(&exchange->in, count);
        } else {
            const size_t room = exchange->body_room - 1 - exchange->body_bytes;
            const move moved = receive(exchange, at, room < left ? room : left, &count, budget);
            if (moved != ON) return moved;
        }
        exchange->body_bytes += count;
    }
    return end_body(exchange);
}

/* Our FIN has gone, or goes now; throws away what the client still sends until it ends too. */
static move linger(cot_http_exchange *exchange, size_t *budget)
{
    if (!exchange->shut) {
        if (exchange->link) cot_tls_end(exchange->link);
        shutdown(exchange->fd, SHUT_WR);
        exchange->shut = true;
        exchange->since_ns = cot_now_ns();
        cot_http_buffer_free(&exchange->in);
    }
    char nowhere[PIECE];
    // what a link would make of it is nobody's matter any more
    cot_tls_free(exchange->link);
    exchange->link = NULL;
    for (;;) {
        size_t count;
        const move moved = receive(exchange, nowhere, sizeof nowhere, &count, budget);
        if (moved != ON) return moved;
    }
}

/* Whether the client is there while nothing is read from it. libevent tells a reset as readiness, once; it may have been
 * told before the last request was read, since what came before a reset can still be read. */
static move look(cot_http_exchange *exchange)
{
    if (exchange->suspect) {
        exchange->suspect = false;
        struct pollfd seen = {.fd = exchange->fd, .events = POLLRDHUP};
        if (poll(&seen, 1, 0) > 0) exchange->left = true;
    }
    const bool flooded = cot_http_buffer_count(&exchange->out) > exchange->server->options.max_waiting_bytes;
    return exchange->left || (exchange->state == COT_HTTP_STREAM && flooded) ? CUT : WAIT;
}

static move step(cot_http_exchange *exchange, size_t *budget)
{
    flush(exchange);
    if (exchange->broken) return CUT;
    const size_t waiting = cot_http_buffer_count(&exchange->out);
    switch (exchange->state) {
    case COT_HTTP_HEAD:
        return waiting ? WAIT : read_head(exchange, budget);
    case COT_HTTP_BODY:
        return read_body(exchange, budget);
    case COT_HTTP_OWED:
    case COT_HTTP_STREAM:
        return look(exchange);
    default:
        return waiting ? WAIT : linger(exchange, budget);
    }
}

/* When the next time-out is due. */
static int64_t due(const cot_http_exchange *exchange)
{
    const cot_http_server_options *const options = &exchange->server->options;
    const int64_t ms = 1000000, since = exchange->since_ns;
    const bool waiting = cot_http_buffer_count(&exchange->out);
    int64_t at = INT64_MAX;
    switch (exchange->state) {
    case COT_HTTP_HEAD:
        if (waiting) break;
        at = since + ms * (exchange->answered && !cot_http_buffer_count(&exchange->in) ? options->idle_ms
                                                                                       : options->head_ms);
        break;
    case COT_HTTP_BODY:
        at = since + ms * (options->body_ms + (int64_t)exchange->body_bytes * 1000 / BODY_BYTES_A_SECOND);
        break;
    case COT_HTTP_STREAM:
        if (exchange->pings && options->ping_ms > 0) at = exchange->sent_ns + ms * options->ping_ms;
        break;
    case COT_HTTP_LINGER:
        if (exchange->shut) at = since + ms * LINGER_MS;
        break;
    default:
        break;
    }
    const int64_t stalled = exchange->progress_ns + ms * options->write_ms;
    return waiting && stalled < at ? stalled : at;
}

/* The timer goes off when the next time-out is due, or before, and is then set anew: what puts one off costs nothing.
 * */
static void arm(cot_http_exchange *exchange)
{
    const int64_t at = due(exchange);
    if (at == INT64_MAX || (exchange->timer_ns && exchange->timer_ns <= at)) return;
    const int64_t now = cot_now_ns(), wait = at > now ? (at - now) / 1000 + 1 : 0;
    const struct timeval time = {wait / 1000000, wait % 1000000};
    if (!event_add(&exchange->timer, &time)) exchange->timer_ns = at;
}

void cot_http_advance(cot_http_exchange *exchange)
{
    cot_http_server *const server = exchange->server;
    size_t budget = BUDGET;
    move moved;
    exchange->moving = true;
    while ((moved = step(exchange, &budget)) == ON) {}
    exchange->moving = false;
    if (moved == CUT) {
        cot_http_destroy(exchange);
        return;
    }
    arm(exchange);
    if (moved == YIELD && !exchange->woken) {
        exchange->woken = true;
        exchange->next_woken = server->later;
        if (!server->later) event_add(&server->again, &(struct timeval){0, 0});
        server->later = exchange;
    }
}

static void on_socket(evutil_socket_t fd, short what, void *context)
{
    cot_http_exchange *const exchange = context;
    (void)fd;
    if (what & EV_READ) exchange->readable = exchange->suspect = true;
    if (what & EV_WRITE) exchange->writable = true;
    if (what & EV_READ && exchange->reads_to_write) exchange->writable = true;
    if (what & EV_WRITE && exchange->writes_to_read) exchange->readable = true;
    if (what & EV_CLOSED) exchange->left = true;
    cot_http_advance(exchange);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    cot_http_exchange *const exchange = context;
    const int64_t now = cot_now_ns();
    exchange->timer_ns = 0;
    if (due(exchange) <= now) {
        const bool stalled = cot_http_buffer_count(&exchange->out) &&
                             exchange->progress_ns + 1000000 * exchange->server->options.write_ms <= now;
        exchange->moving = true; // it is advanced below
        if (stalled)
            exchange->broken = true;
        else if (exchange->state == COT_HTTP_STREAM)
            cot_http_stream_send(exchange, ": ping\n\n", 8);
        else if (exchange->state == COT_HTTP_BODY)
            refuse(exchange, 408, "the body did not come in time");
        else if (exchange->state == COT_HTTP_HEAD && cot_http_buffer_count(&exchange->in))
            refuse(exchange, 408, "the head did not come in time");
        else
            exchange->broken = true;
    }
    cot_http_advance(exchange);
}

void cot_http_connect(cot_http_server *server, int fd, const char *peer, bool loopback, bool turned_away)
{
    cot_http_exchange *const exchange = calloc(1, sizeof *exchange);
    if (!exchange) {
        close(fd);
        return;
    }
    exchange->server = server;
    exchange->fd = fd;
    exchange->loopback = loopback;
    exchange->turned_away = turned_away;
    snprintf(exchange->peer, sizeof exchange->peer, "%s", peer);
    exchange->readable = exchange->writable = exchange->suspect = true;
    if (server->options.tls && !(exchange->link = cot_tls_accept(server->options.tls, fd))) {
        close(fd);
        free(exchange);
        return;
    }
    const int on = 1, idle = 60, between = 10;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // A client whose machine died sends no FIN: it is asked from time to time.
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    event_assign(&exchange->socket, server->base, fd, EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST,
                 on_socket, exchange);
    evtimer_assign(&exchange->timer, server->base, on_timer, exchange);
    if (event_add(&exchange->socket, NULL)) {
        cot_tls_free(exchange->link);
        close(fd);
        free(exchange);
        return;
    }
    exchange->next = server->connections;
    if (exchange->next) exchange->next->previous = exchange;
    server->connections = exchange;
    server->n_connections++;
    server->n_turned_away += turned_away;
    cot_http_enter(exchange, COT_HTTP_HEAD);
    exchange->moving = true;
    if (turned_away && exchange->link) {
        cot_tls_free(exchange->link); // no handshake for who is turned away: the connection just ends
        exchange->link = NULL;
        exchange->broken = true;
    } else if (turned_away)
        cot_http_refuse(exchange, 503, "too many connections");
    cot_http_advance(exchange);
}
