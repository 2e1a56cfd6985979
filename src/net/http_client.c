#include "net/http_client.h"
#include "base/clock.h"
#include "base/error.h"
#include "net/http_buffer.h"
#include "net/http_head.h"
#include "net/tls.h"
#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ADDRESSES = 4, PIECE = 16 << 10, PIECES_A_ROUND = 2, LEFT_MS = 1000 };

typedef struct address {
    struct sockaddr_storage socket;
    socklen_t bytes;
} address;

struct cot_http_client {
    struct event_base *base;
    cot_http_client_options options;
    char *host, *name, *prefix; // Host as it is sent; without its port; what stands before each path
    cot_tls *tls;               // NULL: plain
    bool owns_tls;
    address addresses[ADDRESSES];
    size_t n_addresses;
    cot_http_call *calls; // in progress
    cot_http_call *idle;  // connections without a request, the last used first
    size_t n_idle, n_connections;
};

typedef enum stage {
    START,      // nothing has been done: the first move comes from the loop
    CONNECTING, // to addresses[tried - 1]
    ASKING,     // the request leaves; an answer may come already
    ANSWERING,  // the head has come
    DONE,
} stage;

/* A connection, and the request that it carries if it carries one. */
struct cot_http_call {
    cot_http_client *client;
    cot_http_call *next, **link; // of `calls` or `idle`
    int fd;                      // -1 before the first connection
    cot_tls_link *tls;           // NULL: plain
    struct event socket, timer;
    stage stage;
    size_t tried; // addresses
    bool reused;  // the connection has carried a request before: it may have ended meanwhile
    bool only_head;
    bool inside, cancelled; // a callback of it runs; which has cancelled it
    int last_error;         // of connecting
    const cot_http_answer *answer;
    void *context;
    cot_http_buffer in;
    char *request; // all of it, in case that it must be sent again
    size_t request_bytes, sent;
    size_t scanned;
    char *head_bytes;
    cot_http_head head;
    cot_http_chunks chunks;
    int64_t left; // bytes of the body; -1 up to the connection's end
};

static void hear_no_end(void *context, cot_http_call *call, const cot_error *error)
{
    (void)context, (void)call, (void)error;
}

/* Who hears of a call that was left. */
static const cot_http_answer nobody = {.done = hear_no_end};

static void set_list(cot_http_call *call, cot_http_call **list)
{
    if (call->link) *call->link = call->next;
    if (call->link && call->next) call->next->link = call->link;
    call->link = list;
    call->next = list ? *list : NULL;
    if (call->next) call->next->link = &call->next;
    if (list) *list = call;
}

static void disconnect(cot_http_call *call)
{
    if (call->fd < 0) return;
    event_del(&call->socket);
    cot_tls_free(call->tls);
    call->tls = NULL;
    close(call->fd);
    call->fd = -1;
    call->client->n_connections--;
}

static void free_request(cot_http_call *call)
{
    free(call->request);
    free(call->head_bytes);
    call->request = call->head_bytes = NULL;
    call->head.count = 0;
}

static void free_call(cot_http_call *call)
{
    disconnect(call);
    event_del(&call->timer);
    set_list(call, NULL);
    free_request(call);
    cot_http_buffer_free(&call->in);
    free(call);
}

static void set_timer(cot_http_call *call, int64_t ms)
{
    const struct timeval time = {ms / 1000, ms % 1000 * 1000};
    event_del(&call->timer);
    if (ms > 0) event_add(&call->timer, &time);
}

/* The call is over; `error` NULL if the answer came whole. Its connection is kept if another request may follow. */
static void end(cot_http_call *call, const cot_error *error)
{
    cot_http_client *const client = call->client;
    call->stage = DONE;
    call->answer->done(call->context, call, error);
    const bool keep = !error && call->head.keep_alive && call->left >= 0 &&
                      call->sent == call->request_bytes && !cot_http_buffer_count(&call->in) &&
                      client->n_idle < client->options.max_idle;
    if (!keep) {
        free_call(call);
        return;
    }
    free_request(call);
    set_timer(call, 0);
    set_list(call, &client->idle);
    client->n_idle++;
    call->reused = true;
}

static void fail(cot_http_call *call, cot_status status, const char *what)
{
    cot_error error;
    cot_fail(&error, status, "'%s': %s", call->client->host, what);
    end(call, &error);
}

static void on_socket(evutil_socket_t fd, short what, void *context);

/* Begins to connect to the next address; false when none is left. */
static bool connect_next(cot_http_call *call)
{
    cot_http_client *const client = call->client;
    disconnect(call);
    while (call->tried < client->n_addresses) {
        const address *const to = &client->addresses[call->tried++];
        const int fd = socket(to->socket.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
        if (fd < 0) {
            call->last_error = errno;
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect(fd, (const struct sockaddr *)&to->socket, to->bytes) && errno != EINPROGRESS) {
            call->last_error = errno;
            close(fd);
            continue;
        }
        call->fd = fd;
        client->n_connections++;
        event_assign(&call->socket, client->base, fd, EV_READ | EV_WRITE | EV_ET | EV_PERSIST, on_socket,
                     call);
        if (event_add(&call->socket, NULL)) {
            call->last_error = ENOMEM;
            disconnect(call);
            continue;
        }
        call->stage = CONNECTING;
        call->sent = 0;
        set_timer(call, client->options.connect_ms);
        return true;
    }
    return false;
}

/* As `send` and `recv` on the socket. What a link waits for in the other direction is told as any readiness is, and then both are tried
 * again. */
static ssize_t send_bytes(cot_http_call *call, const void *bytes, size_t count)
{
    if (!call->tls) return send(call->fd, bytes, count, MSG_NOSIGNAL);
    const ssize_t n = cot_tls_write(call->tls, bytes, count);
    if (n > 0) return n;
    errno = n == COT_TLS_END ? EPIPE : EAGAIN;
    return -1;
}

static ssize_t receive_bytes(cot_http_call *call, void *at, size_t room)
{
    if (!call->tls) return recv(call->fd, at, room, 0);
    const ssize_t n = cot_tls_read(call->tls, at, room);
    if (n >= 0) return n;
    errno = EAGAIN;
    return -1;
}

/* A server whose certificate is refused, or that speaks no TLS, does no better at another address. False: that is not why. */
static bool fail_of_link(cot_http_call *call)
{
    char what[200];
    if (!call->tls || call->reused || cot_http_buffer_count(&call->in)) return false;
    const char *const refusal = cot_tls_refusal(call->tls);
    if (!refusal && cot_tls_is_linked(call->tls)) return false;
    snprintf(what, sizeof what,
             refusal ? "the server's certificate is refused: %s" : "the TLS handshake failed", refusal);
    fail(call, COT_IO, what);
    return true;
}

/* The connection broke before any of the answer came. One that was used before may have been closed just as it was used
 * again: the request has not been looked at then, and goes out once more on a new one. */
static void broke(cot_http_call *call, int error)
{
    if (call->stage == ASKING && fail_of_link(call)) return;
    if (call->stage == CONNECTING ||
        (call->reused && call->stage == ASKING && !cot_http_buffer_count(&call->in))) {
        if (call->stage != CONNECTING) call->tried = 0;
        call->reused = false;
        call->last_error = error;
        if (connect_next(call)) return;
        char what[160];
        snprintf(what, sizeof what, "cannot connect: %s", strerror(call->last_error));
        fail(call, COT_IO, what);
        return;
    }
    fail(call, COT_IO,
         error                      ? strerror(error)
         : call->stage == ANSWERING ? "the connection ended in the midst of the answer"
                                    : "the connection ended without an answer");
}

/* Sends what is left of the request. false: the connection is broken, and the call may be over. */
static bool send_request(cot_http_call *call)
{
    while (call->sent < call->request_bytes) {
        const ssize_t n = send_bytes(call, call->request + call->sent, call->request_bytes - call->sent);
        if (n >= 0) {
            call->sent += (size_t)n;
            if (call->sent == call->request_bytes) set_timer(call, call->client->options.answer_ms);
        } else if (errno == EAGAIN) {
            return true;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return true; // the server may have answered before it closed: reading will tell
        } else if (errno != EINTR) {
            broke(call, errno);
            return false;
        }
    }
    return true;
}

/* Hands a piece of the body on, or the head where there is none; false when the callback has cancelled the call, which
 * is then no more. */
static bool give(cot_http_call *call, const char *bytes, size_t count)
{
    call->inside = true;
    if (!bytes && call->answer->head) call->answer->head(call->context, call, call->head.status);
    if (bytes && call->answer->data) call->answer->data(call->context, call, bytes, count);
    call->inside = false;
    if (!call->cancelled) return true;
    free_call(call);
    return false;
}

typedef enum progress { MORE, COMPLETE, OVER } progress; // OVER: the call has ended already

/* A head has come, or part of one. */
static progress read_head(cot_http_call *call)
{
    for (;;) {
        cot_http_buffer *const in = &call->in;
        const size_t count = cot_http_buffer_count(in);
        const int64_t bytes =
            cot_http_head_end(in->bytes ? in->bytes + in->begin : "", count, &call->scanned);
        if (!bytes && count < call->client->options.max_head_bytes) return MORE;
        if (bytes <= 2) {
            fail(call, COT_MALFORMED, bytes ? "the answer is not HTTP's" : "the answer's head is too long");
            return OVER;
        }
        free(call->head_bytes);
        call->head_bytes = malloc((size_t)bytes);
        if (!call->head_bytes) {
            fail(call, COT_OUT_OF_MEMORY, "out of memory for the answer's head");
            return OVER;
        }
        memcpy(call->head_bytes, in->bytes + in->begin, (size_t)bytes);
        cot_http_buffer_take(in, (size_t)bytes);
        call->scanned = 0;
        const char *why;
        if (cot_http_read_answer(call->head_bytes, (size_t)bytes, &call->head, &why)) {
            fail(call, COT_MALFORMED, why);
            return OVER;
        }
        if (call->head.status >= 200 || call->head.status == 101) break;
    }
    const cot_http_head *const head = &call->head;
    const bool empty = call->only_head || head->status == 204 || head->status == 304;
    call->stage = ANSWERING;
    call->left = empty ? 0 : head->length;
    if (empty) call->head.chunked = false;
    call->chunks = (cot_http_chunks){0};
    return give(call, NULL, 0) ? COMPLETE : OVER;
}

static progress read_body(cot_http_call *call)
{
    cot_http_buffer *const in = &call->in;
    if (call->head.chunked) {
        for (;;) {
            size_t taken, count;
            const char *data;
            const cot_http_chunk found =
                cot_http_chunks_read(&call->chunks, in->bytes ? in->bytes + in->begin : "",
                                     cot_http_buffer_count(in), &taken, &data, &count);
            if (found == COT_HTTP_CHUNK_DATA && !give(call, data, count)) return OVER;
            if (found == COT_HTTP_CHUNK_BAD) {
                fail(call, COT_MALFORMED, "the answer's chunks are malformed");
                return OVER;
            }
            cot_http_buffer_take(in, taken);
            if (found == COT_HTTP_CHUNK_MORE) return MORE;
            if (found != COT_HTTP_CHUNK_END) continue;
            call->left = 0;
            return COMPLETE;
        }
    }
    size_t count = cot_http_buffer_count(in);
    if (call->left >= 0 && (int64_t)count > call->left) count = (size_t)call->left;
    if (count && !give(call, in->bytes + in->begin, count)) return OVER;
    if (count) cot_http_buffer_take(in, count);
    if (call->left > 0) call->left -= (int64_t)count;
    return call->left ? MORE : COMPLETE;
}

/* Looks at what has come. */
static progress understand(cot_http_call *call)
{
    if (call->stage == ASKING) {
        const progress head = read_head(call);
        if (head != COMPLETE) return head;
    }
    return read_body(call);
}

/* Reads until nothing is there. */
static void read_answer(cot_http_call *call)
{
    for (int pieces = 0;; pieces++) {
        if (pieces == PIECES_A_ROUND) { // who sends without end does not hold the loop
            event_active(&call->socket, EV_READ, 0);
            return;
        }
        if (!cot_http_buffer_reserve(&call->in, PIECE)) {
            fail(call, COT_OUT_OF_MEMORY, "out of memory for the answer");
            return;
        }
        const ssize_t n = receive_bytes(call, call->in.bytes + call->in.end, call->in.room - call->in.end);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            const bool ends_it = !n && call->stage == ANSWERING && call->left < 0 && !call->head.chunked;
            if (ends_it && (!call->tls || cot_tls_ended_well(call->tls)))
                end(call, NULL);
            else
                broke(call, n ? errno : 0);
            return;
        }
        call->in.end += (size_t)n;
        const progress found = understand(call);
        if (found == COMPLETE) end(call, NULL);
        if (found != MORE) return;
        if (call->stage == ANSWERING && call->answer != &nobody)
            set_timer(call, call->client->options.silence_ms);
    }
}

static void move(cot_http_call *call)
{
    if (call->stage == CONNECTING) {
        int error = 0;
        socklen_t bytes = sizeof error;
        getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        if (error) {
            broke(call, error);
            return;
        }
        call->stage = ASKING;
        if (call->client->tls &&
            !(call->tls = cot_tls_connect(call->client->tls, call->fd, call->client->name))) {
            fail(call, COT_OUT_OF_MEMORY, "out of memory for TLS");
            return;
        }
    }
    if (send_request(call)) read_answer(call);
}

static void on_socket(evutil_socket_t fd, short what, void *context)
{
    (void)what;
    cot_http_call *const call = context;
    if (call->stage == START)
        return; // a kept connection: its first move comes, and sees what there is to see
    if (call->stage != DONE) {
        move(call);
        return;
    }
    char byte; // nobody asked: what comes is the connection's end, or nothing that can be trusted
    const bool nothing = call->tls ? cot_tls_read(call->tls, &byte, 1) < 0
                                   : recv(fd, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
    if (nothing) return;
    call->client->n_idle--;
    free_call(call);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    cot_http_call *const call = context;
    if (call->stage == CONNECTING)
        broke(call, ETIMEDOUT);
    else if (call->stage == ASKING)
        fail(call, COT_TIMED_OUT, "no answer in time");
    else if (call->stage == ANSWERING)
        fail(call, COT_TIMED_OUT, "the answer stopped");
    else if (call->fd >= 0) {
        call->stage = ASKING;
        move(call);
    } else if (!connect_next(call)) {
        call->stage = CONNECTING;
        broke(call, call->last_error);
    }
}

static cot_status read_url(cot_http_client *client, const char *url, char **port, bool *is_secure,
                           cot_error *error)
{
    const cot_status bad = COT_INVALID_ARGUMENT;
    static const char shape[] = "'%s' is no URL of a server: http://HOST[:PORT][/PREFIX], or https://";
    *is_secure = !strncasecmp(url, "https://", 8);
    if (!*is_secure && strncasecmp(url, "http://", 7)) return cot_fail(error, bad, shape, url);
    const char *const host = url + (*is_secure ? 8 : 7);
    const size_t authority = strcspn(host, "/");
    for (const char *c = url; *c; c++) {
        if (*c <= ' ' || *c >= 127 || strchr("?#@\"<>\\", *c)) return cot_fail(error, bad, shape, url);
    }
    const char *const close = *host == '[' ? memchr(host, ']', authority) : NULL;
    if (*host == '[' && !close) return cot_fail(error, bad, shape, url);
    const char *const from = close ? close + 1 : host;
    const char *const colon = memchr(from, ':', (size_t)(host + authority - from));
    const char *const end = colon ? colon : host + authority;
    if (end == host || (close && end != close + 1)) return cot_fail(error, bad, shape, url);
    if (colon) {
        const size_t digits = (size_t)(host + authority - colon - 1);
        if (!digits || digits > 5 || strspn(colon + 1, "0123456789") < digits ||
            strtol(colon + 1, NULL, 10) > 65535 || strtol(colon + 1, NULL, 10) < 1) {
            return cot_fail(error, bad, "'%s': the port is not in 1..65535", url);
        }
        *port = strndup(colon + 1, digits);
    } else {
        *port = strdup(*is_secure ? "443" : "80");
    }
    client->name =
        close ? strndup(host + 1, (size_t)(close - host - 1)) : strndup(host, (size_t)(end - host));
    size_t prefix = strlen(host + authority);
    while (prefix && host[authority + prefix - 1] == '/') prefix--;
    client->host = strndup(host, authority);
    client->prefix = strndup(host + authority, prefix);
    if (*port && client->name && client->host && client->prefix) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an HTTP client");
}

static cot_status find_addresses(cot_http_client *client, const char *port, cot_error *error)
{
    const char *const name = client->name;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    const int failed = getaddrinfo(name, port, &hints, &found);
    if (failed)
        return cot_fail(error, COT_NOT_FOUND, "cannot find host '%s': %s", name, gai_strerror(failed));
    for (const struct addrinfo *at = found; at && client->n_addresses < ADDRESSES; at = at->ai_next) {
        address *const to = &client->addresses[client->n_addresses++];
        memcpy(&to->socket, at->ai_addr, at->ai_addrlen);
        to->bytes = at->ai_addrlen;
    }
    freeaddrinfo(found);
    return COT_OK;
}

cot_status cot_http_client_open(cot_http_client **client, struct event_base *base, const char *url,
                                const cot_http_client_options *options, cot_error *error)
{
    *client = NULL;
    cot_http_client *const new = calloc(1, sizeof *new);
    if (!new) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an HTTP client");
    new->base = base;
    new->options = *options;
    if (!new->options.connect_ms) new->options.connect_ms = 10000;
    if (!new->options.max_head_bytes) new->options.max_head_bytes = 64 << 10;
    if (!new->options.max_idle) new->options.max_idle = 256;
    char *port = NULL;
    bool is_secure;
    cot_status status = read_url(new, url, &port, &is_secure, error);
    if (!status) status = find_addresses(new, port, error);
    free(port);
    new->owns_tls = !status &&is_secure && !options->tls;
    if (!status && is_secure) new->tls = options->tls;
    if (new->owns_tls) status = cot_tls_open_client(&new->tls, NULL, error);
    if (status)
        cot_http_client_close(new);
    else
        *client = new;
    return status;
}

void cot_http_client_close(cot_http_client *client)
{
    if (!client) return;
    while (client->calls) free_call(client->calls);
    while (client->idle) free_call(client->idle);
    if (client->owns_tls) cot_tls_close(client->tls);
    free(client->host);
    free(client->name);
    free(client->prefix);
    free(client);
}

size_t cot_http_client_connections(const cot_http_client *client)
{
    return client->n_connections;
}

/* Head and body in one piece; false when out of memory. */
static bool write_request(cot_http_call *call, const char *method, const char *path,
                          const cot_http_field *fields, size_t count, const void *body, size_t bytes)
{
    const cot_http_client *const client = call->client;
    char length[64] = "";
    if (body || !strcmp(method, "POST")) snprintf(length, sizeof length, "Content-Length: %zu\r\n", bytes);
    cot_http_buffer out = {0};
    const char *const first[] = {
        method, " ", client->prefix, path, " HTTP/1.1\r\nHost: ", client->host, "\r\n", length};
    bool fine = true;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        fine = fine && cot_http_buffer_add(&out, first[i], strlen(first[i]));
    }
    for (size_t i = 0; i < count; i++) {
        fine = fine && cot_http_buffer_add(&out, fields[i].name, strlen(fields[i].name)) &&
               cot_http_buffer_add(&out, ": ", 2);
        const size_t value = strlen(fields[i].value);
        fine = fine && cot_http_buffer_add(&out, fields[i].value, value);
        for (size_t c = 0; fine && c < value; c++) {
            char *const at = out.bytes + out.end - value + c;
            if ((unsigned char)*at < ' ' || *at == 127) *at = ' ';
        }
        fine = fine && cot_http_buffer_add(&out, "\r\n", 2);
    }
    fine = fine && cot_http_buffer_add(&out, "\r\n", 2) && cot_http_buffer_add(&out, body, bytes);
    call->request = out.bytes;
    call->request_bytes = out.end;
    return fine;
}

cot_status cot_http_client_send(cot_http_client *client, const char *method, const char *path,
                                const cot_http_field *fields, size_t count, const void *body, size_t bytes,
                                const cot_http_answer *answer, void *context, cot_http_call **call,
                                cot_error *error)
{
    cot_http_call *new = client->idle;
    if (new) {
        client->n_idle--;
    } else {
        new = calloc(1, sizeof *new);
        if (!new) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a request");
        new->client = client;
        new->fd = -1;
        evtimer_assign(&new->timer, client->base, on_timer, new);
    }
    set_list(new, &client->calls);
    new->stage = START;
    new->tried = new->sent = new->scanned = 0;
    new->only_head = !strcmp(method, "HEAD");
    new->answer = answer;
    new->context = context;
    if (!write_request(new, method, path, fields, count, body, bytes)) {
        free_call(new);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a request");
    }
    if (call) *call = new;
    event_add(&new->timer, &(struct timeval){0, 0});
    return COT_OK;
}

const char *cot_http_call_header(const cot_http_call *call, const char *name)
{
    return cot_http_head_find(&call->head, name);
}

void cot_http_call_cancel(cot_http_call *call)
{
    if (call->inside)
        call->cancelled = true;
    else
        free_call(call);
}

void cot_http_call_leave(cot_http_call *call)
{
    call->answer = &nobody;
    set_timer(call, LEFT_MS);
}

char *cot_http_api_root(const char *url)
{
    char *root = strdup(url);
    size_t n = root ? strlen(root) : 0;
    while (n && root[n - 1] == '/') root[--n] = 0;
    if (n > 3 && strcmp(root + n - 3, "/v1") == 0 && root[n - 4] != '/')
        root[n - 3] = 0; // no host of that name
    return root;
}
