/* What a byte costs that goes on as it came: a TCP proxy that does nothing else. bench/router puts it where the router stands.
 *
 *     bench_proxy PORT FIRST COUNT
 *
 * listens on 127.0.0.1:PORT and leads each connection to one of the ports FIRST to FIRST + COUNT - 1, in turn: one thread, an epoll_wait, a
 * recv and a send for what comes. It ends when it is told to by a signal. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 65536, PIECE = 64 << 10, EVENTS = 64 };

static int peer[MOST_DESCRIPTORS]; // of each connection's descriptor: the other side's

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static struct sockaddr_in local(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int open_socket(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Joins a connection that waits to the worker at `port`. False where one of them cannot be had. */
static int join(int epoll, int listener, int port)
{
    const struct sockaddr_in to = local(port);
    const int client = accept(listener, NULL, NULL), worker = open_socket(), on = 1;
    if (client < 0 || worker < 0 || client >= MOST_DESCRIPTORS || worker >= MOST_DESCRIPTORS ||
        connect(worker, (const struct sockaddr *)&to, sizeof to))
        return 0;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer[client] = worker;
    peer[worker] = client;
    for (int i = 0; i < 2; i++) {
        const int fd = i ? worker : client;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) return 0;
    }
    return 1;
}

/* Leads on what is there; a connection that ends takes the other along. */
static void lead(int fd)
{
    static char bytes[PIECE];
    const int other = peer[fd];
    if (!other) return; // it went with the other, in the same round
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    ssize_t sent = 0;
    while (n > 0 && sent < n) {
        const ssize_t more = send(other, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (more < 0 && errno != EINTR) break;
        if (more > 0) sent += more;
    }
    if (n > 0 && sent == n) return;
    peer[fd] = peer[other] = 0;
    close(fd);
    close(other);
}

int main(int count, char **arguments)
{
    const int on = 1;
    if (count != 4) {
        fputs("usage: bench_proxy PORT FIRST COUNT\n", stderr);
        return 2;
    }
    const int port = atoi(arguments[1]), first = atoi(arguments[2]), workers = atoi(arguments[3]);
    const struct sockaddr_in here = local(port);
    const int listener = open_socket(), epoll = epoll_create1(0);
    if (workers < 1 || listener < 0 || epoll < 0) return fail("bench_proxy");
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (const struct sockaddr *)&here, sizeof here) || listen(listener, 1024))
        return fail("bench_proxy");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) return fail("bench_proxy");
    fputs("leading on\n", stderr);
    for (int turn = 0;;) {
        struct epoll_event events[EVENTS];
        const int n = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd != listener)
                lead(events[i].data.fd);
            else if (!join(epoll, listener, first + turn++ % workers))
                return fail("bench_proxy");
        }
    }
}
