/* Numbered messages that others follow, over ZeroMQ: who listens gets each, who missed some asks for them again.
 *
 *     PUB     [topic, number, payload]                                    number: 8 bytes, big-endian, from 0
 *     ROUTER  ['', number] is answered ['', topic, number, payload] for each message from that number on that is kept,
 *             then ['', '', -1, '']
 *
 * These are the frames of vLLM's ZmqEventPublisher (0.24). A subscriber that does not read loses messages and nothing else:
 * a publisher never waits. Replays are sent as fast as who asked for them reads, a few at a time.
 *
 * Everything here belongs to the thread that runs the loop. */
#ifndef COT_NET_PUBLISHER_H
#define COT_NET_PUBLISHER_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;
typedef struct cot_publisher cot_publisher;

/* What the sockets of several publishers share: a thread that moves their bytes. NULL when it cannot be had. */
void *cot_publisher_context_open(void);
/* After all publishers of it are closed; what they have sent and nobody has taken is dropped. NULL is fine. */
void cot_publisher_context_close(void *context);

typedef struct cot_publisher_options {
    const char *endpoint; // "tcp://ADDRESS:PORT", to be listened on; ADDRESS is a number, "*" or "[...]"
    const char *replay_endpoint; // the same for replays; NULL: there are none
    const char *topic;           // what each message begins with, for subscribers to choose by
    int64_t keep;                // messages that are kept to be sent again, 1 at least
    int64_t most_unread;         // messages that wait for a subscriber, at most; more are lost to it
} cot_publisher_options;

/* Listens. Options are copied. `*publisher` is NULL on failure. Errors: INVALID_ARGUMENT (no such address), IO (taken, no
 * right to it), OUT_OF_MEMORY. */
cot_status cot_publisher_open(cot_publisher **publisher, void *context, struct event_base *base,
                              const cot_publisher_options *options, cot_error *error);
/* Sends a message, copied, and keeps it; returns its number. One for which memory runs out has its number too, and is
 * neither sent nor kept: subscribers see that it is missing. */
uint64_t cot_publisher_send(cot_publisher *publisher, const void *payload, size_t bytes);
/* The number of the last message; -1 before the first. */
int64_t cot_publisher_last(const cot_publisher *publisher);
void cot_publisher_close(cot_publisher *publisher); // NULL is fine

/* Reads what came on the ROUTER: `count` frames behind the sender's name. False where it is no request. */
bool cot_publisher_read_request(const void *const *frames, const size_t *bytes, size_t count,
                                uint64_t *number);

#endif
