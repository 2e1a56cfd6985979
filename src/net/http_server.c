/* Opening and closing a server, turning clients away when there is no place, and what a handler may ask of an
 * exchange. */
#include "net/http_connection.h"
#include "base/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_A_ROUND = 64, TURNED_AWAY = 64, PAUSE_MS = 100 };

/* Whether the address is this machine's own; and its text. */
static bool describe(const struct sockaddr_storage *address, char *text, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *const v4 = (const void *)address;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(text, room, "%s:%d", host, ntohs(v4->sin_port));
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *const v6 = (const void *)address;
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    snprintf(text, room, "[%s]:%d", host, ntohs(v6->sin6_port));
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && v6->sin6_addr.s6_addr[12] == 127);
}

/* There is no descriptor left for the client that waits first, and nobody to make room. Left waiting, it would wake us without
 * end: it gets the spare one, and is shown out. Where not even that works, nobody is accepted for a while. */
static void turn_away(cot_http_server *server, int listener)
{
    if (server->reserve >= 0) close(server->reserve);
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    server->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && server->reserve >= 0) return;
    for (size_t i = 0; i < server->n_listeners; i++) event_del(&server->listeners[i].event);
    event_add(&server->resume, &(struct timeval){0, PAUSE_MS * 1000});
}

static void on_resume(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    cot_http_server *const server = context;
    if (server->reserve < 0) server->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < server->n_listeners; i++) event_add(&server->listeners[i].event, NULL);
}

static void on_accept(evutil_socket_t listener, short what, void *context)
{
    (void)what;
    cot_http_server *const server = context;
    for (int i = 0; i < ACCEPTS_A_ROUND; i++) {
        struct sockaddr_storage address = {0};
        socklen_t bytes = sizeof address;
        const int fd = accept4(listener, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN) return;
            if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
                continue; // that client's trouble
            if (cot_http_make_room(server)) continue;
            turn_away(server, listener);
            return;
        }
        const bool full = server->n_connections - server->n_turned_away >= server->options.max_connections &&
                          !cot_http_make_room(server);
        if (full && server->n_turned_away >= TURNED_AWAY) {
            close(fd);
            continue;
        }
        char peer[64];
        const bool loopback = describe(&address, peer, sizeof peer);
        cot_http_connect(server, fd, peer, loopback, full);
    }
}

/* All whom something was asked of in this round. */
static void on_wake(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    cot_http_server *const server = context;
    while (server->woken) {
        cot_http_exchange *const exchange = server->woken;
        server->woken = exchange->next_woken;
        if (!server->woken) server->woken_end = &server->woken;
        exchange->woken = false;
        cot_http_advance(exchange);
    }
}

/* Those who had more to do than one round allows. */
static void on_again(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    cot_http_server *const server = context;
    cot_http_exchange *list = server->later;
    server->later = NULL;
    while (list) {
        cot_http_exchange *const exchange = list;
        list = exchange->next_woken;
        exchange->woken = false;
        cot_http_advance(exchange);
    }
}

static void set_defaults(cot_http_server_options *options)
{
    if (!options->host) options->host = "127.0.0.1";
    if (!options->max_connections) options->max_connections = 4096;
    if (!options->max_head_bytes) options->max_head_bytes = 64 << 10;
    if (!options->max_body_bytes) options->max_body_bytes = 64 << 20;
    if (!options->max_bodies_bytes) options->max_bodies_bytes = 512 << 20;
    if (!options->max_waiting_bytes) options->max_waiting_bytes = 1 << 20;
    if (!options->head_ms) options->head_ms = 10000;
    if (!options->body_ms) options->body_ms = 30000;
    if (!options->idle_ms) options->idle_ms = 75000;
    if (!options->write_ms) options->write_ms = 30000;
    if (!options->ping_ms) options->ping_ms = 10000;
}

/* Listens on one address. Returns the error number, 0 if it went well. */
static int listen_on(cot_http_server *server, const struct addrinfo *found, bool alone)
{
    struct sockaddr_storage address = {0};
    memcpy(&address, found->ai_addr, found->ai_addrlen);
    const bool v6 = found->ai_family == AF_INET6;
    if (server->port) { // of several addresses, all on the port that the first one got
        if (v6)
            ((struct sockaddr_in6 *)&address)->sin6_port = htons(server->port);
        else
            ((struct sockaddr_in *)&address)->sin_port = htons(server->port);
    }
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (v6 && !alone) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    socklen_t bytes = sizeof address;
    if (bind(fd, (const struct sockaddr *)&address, found->ai_addrlen) || listen(fd, SOMAXCONN) ||
        getsockname(fd, (struct sockaddr *)&address, &bytes)) {
        const int error = errno;
        close(fd);
        return error;
    }
    char text[64];
    server->port =
        ntohs(v6 ? ((struct sockaddr_in6 *)&address)->sin6_port : ((struct sockaddr_in *)&address)->sin_port);
    server->loopback_only = describe(&address, text, sizeof text) && server->loopback_only;
    cot_http_listener *const listener = &server->listeners[server->n_listeners++];
    listener->fd = fd;
    event_assign(&listener->event, server->base, fd, EV_READ | EV_PERSIST, on_accept, server);
    return event_add(&listener->event, NULL) ? ENOMEM : 0;
}

static cot_status open_listeners(cot_http_server *server, cot_error *error)
{
    const char *const host = server->options.host;
    char port[8];
    snprintf(port, sizeof port, "%u", (unsigned)server->options.port);
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    const int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) {
        return cot_fail(error, COT_INVALID_ARGUMENT, "cannot listen on '%s': %s", host, gai_strerror(failed));
    }
    int last = EADDRNOTAVAIL;
    for (const struct addrinfo *at = found; at && server->n_listeners < COT_HTTP_LISTENERS;
         at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
        last = listen_on(server, at, !found->ai_next);
        // a name may stand for an address of a family that this machine does not have
        if (last && last != EAFNOSUPPORT && last != EADDRNOTAVAIL) break;
        if (!last) last = -1;
    }
    freeaddrinfo(found);
    if (last == -1 || (server->n_listeners && (last == EAFNOSUPPORT || last == EADDRNOTAVAIL))) return COT_OK;
    return cot_fail(error,
                    last == EADDRNOTAVAIL ? COT_INVALID_ARGUMENT
                    : last == ENOMEM      ? COT_OUT_OF_MEMORY
                                          : COT_IO,
                    "cannot listen on '%s' port %u: %s", host,
                    (unsigned)(server->port ? server->port : server->options.port), strerror(last));
}

cot_status cot_http_server_open(cot_http_server **server, struct event_base *base,
                                const cot_http_server_options *options, const cot_http_handler *handler,
                                void *context, cot_error *error)
{
    *server = NULL;
    const int needed = EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE;
    if ((event_base_get_features(base) & needed) != needed) {
        return cot_fail(error, COT_INVALID_ARGUMENT, "the event loop uses '%s', and the server needs epoll",
                        event_base_get_method(base));
    }
    cot_http_server *const new = calloc(1, sizeof *new);
    if (!new) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an HTTP server");
    new->base = base;
    new->options = *options;
    set_defaults(&new->options);
    new->handler = *handler;
    if (!new->handler.error_type) new->handler.error_type = "text/plain; charset=utf-8";
    new->context = context;
    new->loopback_only = true;
    new->woken_end = &new->woken;
    evtimer_assign(&new->wake, base, on_wake, new);
    evtimer_assign(&new->again, base, on_again, new);
    evtimer_assign(&new->resume, base, on_resume, new);
    new->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const cot_status status = open_listeners(new, error);
    new->options.host = NULL; // the caller's
    if (status)
        cot_http_server_close(new);
    else
        *server = new;
    return status;
}

uint16_t cot_http_server_port(const cot_http_server *server)
{
    return server->port;
}

bool cot_http_server_is_loopback(const cot_http_server *server)
{
    return server->loopback_only;
}

void cot_http_server_stop_accepting(cot_http_server *server)
{
    server->stopping = true;
    for (size_t i = 0; i < server->n_listeners; i++) {
        event_del(&server->listeners[i].event);
        close(server->listeners[i].fd);
    }
    server->n_listeners = 0;
    event_del(&server->resume);
    for (cot_http_exchange *exchange = server->connections; exchange; exchange = exchange->next)
        cot_http_wake(exchange);
}

size_t cot_http_server_connections(const cot_http_server *server)
{
    return server->n_connections;
}

size_t cot_http_server_exchanges(const cot_http_server *server)
{
    return server->n_exchanges;
}

uint64_t cot_http_server_dropped(const cot_http_server *server)
{
    return server->dropped;
}

void cot_http_server_close(cot_http_server *server)
{
    if (!server) return;
    cot_http_server_stop_accepting(server);
    while (server->connections) cot_http_destroy(server->connections);
    event_del(&server->wake);
    event_del(&server->again);
    if (server->reserve >= 0) close(server->reserve);
    free(server);
}

const char *cot_http_method(const cot_http_exchange *exchange)
{
    return exchange->head.method;
}

const char *cot_http_path(const cot_http_exchange *exchange)
{
    return exchange->head.path;
}

const char *cot_http_query(const cot_http_exchange *exchange)
{
    return exchange->head.query;
}

const char *cot_http_header(const cot_http_exchange *exchange, const char *name)
{
    return cot_http_head_find(&exchange->head, name);
}

const char *cot_http_host(const cot_http_exchange *exchange)
{
    return exchange->head.host;
}

const char *cot_http_body(const cot_http_exchange *exchange, size_t *bytes)
{
    *bytes = exchange->body_bytes;
    return exchange->body ? exchange->body : "";
}

int64_t cot_http_body_length(const cot_http_exchange *exchange)
{
    return exchange->head.chunked ? -1 : exchange->head.length > 0 ? exchange->head.length : 0;
}

char *cot_http_take_body(cot_http_exchange *exchange, size_t *bytes)
{
    char *const body = exchange->body;
    *bytes = exchange->body_bytes;
    exchange->server->bodies_bytes -= exchange->body_room;
    exchange->body = NULL;
    exchange->body_bytes = exchange->body_room = 0;
    return body;
}

bool cot_http_peer_is_loopback(const cot_http_exchange *exchange)
{
    return exchange->loopback;
}

const char *cot_http_peer(const cot_http_exchange *exchange)
{
    return exchange->peer;
}

void cot_http_set_user(cot_http_exchange *exchange, void *user)
{
    exchange->user = user;
}

void *cot_http_user(const cot_http_exchange *exchange)
{
    return exchange->user;
}
