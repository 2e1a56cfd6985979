#include "harness/http_peer.h"
#include "harness/cmocka.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int event_base_loop(struct event_base *base, int flags); // of libevent, which only its users link
#define NONBLOCK 2

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

test_peer test_peer_connect(struct event_base *base, uint16_t port)
{
    test_peer peer = {.base = base, .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(peer.fd >= 0);
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(peer.fd, (const struct sockaddr *)&address, sizeof address), 0);
    return peer;
}

void test_peer_turn(test_peer *peer)
{
    event_base_loop(peer->base, NONBLOCK);
    while (!peer->over) {
        if (peer->room - peer->count < 65536) {
            peer->room = peer->room * 2 + 65537;
            peer->got = realloc(peer->got, peer->room);
            assert_non_null(peer->got);
        }
        const ssize_t n = recv(peer->fd, peer->got + peer->count, peer->room - peer->count - 1, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            peer->over = true;
            peer->reset = n < 0;
        } else {
            peer->count += (size_t)n;
        }
    }
    if (peer->got) peer->got[peer->count] = '\0';
}

/* Turns until something is there or time is up; a pause so that a waiting test burns no core. */
static void wait_a_little(test_peer *peer)
{
    struct pollfd look = {.fd = peer->fd, .events = POLLIN};
    poll(&look, 1, 1);
    test_peer_turn(peer);
}

bool test_peer_say(test_peer *peer, const void *bytes, size_t count)
{
    const double begin = now();
    for (size_t at = 0; at < count;) {
        const ssize_t n = send(peer->fd, (const char *)bytes + at, count - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN)
            return false;
        else
            wait_a_little(peer);
        if (now() - begin > 30) fail_msg("the server takes nothing");
    }
    return true;
}

bool test_peer_tell(test_peer *peer, const char *text)
{
    return test_peer_say(peer, text, strlen(text));
}

void test_peer_await(test_peer *peer, size_t count)
{
    const double begin = now();
    test_peer_turn(peer);
    while (peer->count < count && !peer->over) {
        if (now() - begin > 30)
            fail_msg("waited in vain for %zu bytes; have %zu: %s", count, peer->count, peer->got);
        wait_a_little(peer);
    }
}

void test_peer_await_over(test_peer *peer)
{
    test_peer_await(peer, SIZE_MAX);
}

/* Takes the body in chunks that begins at `at`; 0 while it is not whole. */
static size_t take_chunks(const test_peer *peer, size_t at, test_answer *answer)
{
    answer->body = realloc(answer->body, peer->count + 1);
    answer->bytes = answer->chunks = 0;
    for (;;) {
        const char *const line = peer->got + at, *const stop = strstr(line, "\r\n");
        if (!stop) return 0;
        char *end;
        const size_t n = strtoul(line, &end, 16);
        assert_true(end == stop && end > line);
        at = (size_t)(stop - peer->got) + 2;
        if (peer->count < at + n + 2) return 0;
        assert_memory_equal(peer->got + at + n, "\r\n", 2);
        memcpy(answer->body + answer->bytes, peer->got + at, n);
        answer->bytes += n;
        at += n + 2;
        if (!n) break;
        answer->chunks++;
    }
    return at;
}

bool test_peer_answer(test_peer *peer, test_answer *answer, bool only_head)
{
    free(answer->body);
    *answer = (test_answer){0};
    for (;;) {
        test_peer_turn(peer);
        char *const end = peer->got ? strstr(peer->got, "\r\n\r\n") : NULL;
        if (end) {
            const size_t head = (size_t)(end - peer->got) + 4;
            assert_true(head < sizeof answer->head);
            memcpy(answer->head, peer->got, head);
            answer->head[head] = '\0';
            assert_int_equal(sscanf(answer->head, "HTTP/1.1 %3d ", &answer->status), 1);
            const char *const length = test_answer_field(answer, "Content-Length");
            const size_t bytes = length ? strtoul(length, NULL, 10) : 0;
            const char *const coding = test_answer_field(answer, "Transfer-Encoding");
            const bool chunked = coding && !strcmp(coding, "chunked");
            const char *const connection = test_answer_field(answer, "Connection");
            answer->close = connection && !strcmp(connection, "close");
            assert_false(chunked && length);
            size_t all = 0;
            if (only_head || answer->status == 204 || answer->status == 304 || answer->status < 200) {
                all = head;
                answer->body = calloc(1, 1);
            } else if (chunked) {
                all = take_chunks(peer, head, answer);
            } else if (length ? peer->count >= head + bytes : peer->over) {
                answer->bytes = length ? bytes : peer->count - head;
                answer->body = malloc(answer->bytes + 1);
                memcpy(answer->body, peer->got + head, answer->bytes);
                all = head + answer->bytes;
            }
            if (all) {
                answer->body[answer->bytes] = '\0';
                memmove(peer->got, peer->got + all, peer->count - all + 1);
                peer->count -= all;
                return true;
            }
        }
        if (peer->over) return false;
        const size_t had = peer->count;
        test_peer_await(peer, had + 1);
    }
}

const char *test_answer_field(test_answer *answer, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = strstr(answer->head, "\r\n") + 2; *line != '\r';
         line = strstr(line, "\r\n") + 2) {
        if (strncasecmp(line, name, n) || line[n] != ':') continue;
        const char *const begin = line + n + 2;
        snprintf(answer->field, sizeof answer->field, "%.*s", (int)(strstr(begin, "\r\n") - begin), begin);
        return answer->field;
    }
    return NULL;
}

void test_peer_finish(test_peer *peer)
{
    assert_int_equal(shutdown(peer->fd, SHUT_WR), 0);
}

void test_peer_reset(test_peer *peer)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    test_peer_close(peer);
}

void test_peer_close(test_peer *peer)
{
    if (peer->fd >= 0) close(peer->fd);
    free(peer->got);
    *peer = (test_peer){.base = peer->base, .fd = -1, .over = true};
}

size_t test_descriptors(void)
{
    size_t count = 0;
    DIR *const folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}
