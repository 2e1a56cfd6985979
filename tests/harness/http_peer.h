/* The other side of an HTTP connection, as a test needs it: a socket that says what it is told, and an own reading of
 * answers. The server under test runs in the same thread; whoever waits turns its loop meanwhile. */
#ifndef COT_TESTS_HARNESS_HTTP_PEER_H
#define COT_TESTS_HARNESS_HTTP_PEER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;

typedef struct test_peer {
    struct event_base *base;
    int fd;    // -1 once closed
    char *got; // all that came and was not taken, NUL-terminated
    size_t count, room;
    bool over; // the server has closed, or reset, the connection
    bool reset;
} test_peer;

typedef struct test_answer {
    int status;
    char head[4096]; // all lines with their ends
    char *body;      // NUL-terminated, decoded from chunks
    size_t bytes, chunks;
    bool close;      // says so
    char field[512]; // what test_answer_field found last
} test_answer;

/* Connects to 127.0.0.1; its failure fails the test. */
test_peer test_peer_connect(struct event_base *base, uint16_t port);
/* Sends everything, turning the loop while the socket is full; false when the connection breaks meanwhile. */
bool test_peer_say(test_peer *peer, const void *bytes, size_t count);
bool test_peer_tell(test_peer *peer, const char *text);
/* Turns the loop once and reads what has come. */
void test_peer_turn(test_peer *peer);
/* Turns the loop until the bytes have come, or the connection is over; fails after 30 s. */
void test_peer_await(test_peer *peer, size_t count);
void test_peer_await_over(test_peer *peer);
/* The next answer, complete; false when the connection ended before it. `only_head`: of a request by HEAD. */
bool test_peer_answer(test_peer *peer, test_answer *answer, bool only_head);
/* The value of a field in the answer's head, in answer->field until the next call; NULL without one. */
const char *test_answer_field(test_answer *answer, const char *name);
void test_peer_finish(test_peer *peer); // half a close
void test_peer_reset(test_peer *peer);  // closes with a RST
void test_peer_close(test_peer *peer);
/* Descriptors that this process has open. */
size_t test_descriptors(void);

#endif
