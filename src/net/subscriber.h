/* Follows what a publisher (publisher.h) sends, over ZeroMQ: live messages, and those that were missed, which are asked for.
 * Connections are made, and made again, by themselves: an endpoint where nobody is yet is no error.
 *
 * Everything here belongs to the thread that runs the loop. */
#ifndef COT_NET_SUBSCRIBER_H
#define COT_NET_SUBSCRIBER_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;
typedef struct cot_subscriber cot_subscriber;

typedef struct cot_subscriber_options {
    const char *endpoint;        // "tcp://HOST:PORT"
    const char *replay_endpoint; // NULL: what was missed cannot be asked for
    const char *topic;           // what messages begin with; "": all
    size_t max_bytes;            // of a message: a longer one ends the connection, which is made again
    /* Neither may call a function of the subscriber but cot_subscriber_ask. */
    void (*on_message)(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes);
    void (*on_replay_end)(void *context); // NULL: not asked
    void *context;
} cot_subscriber_options;

/* `zmq` is of cot_publisher_context_open and outlives the subscriber. `base` NULL: no loop is woken by what comes, it waits for
 * cot_subscriber_take, and no replay can be asked for. Options are copied. `*subscriber` is NULL on failure.
 * Errors: INVALID_ARGUMENT (no such address), IO, OUT_OF_MEMORY. */
cot_status cot_subscriber_open(cot_subscriber **subscriber, void *zmq, struct event_base *base,
                               const cot_subscriber_options *options, cot_error *error);
/* Asks for all messages from this number on that the publisher has kept; answers to a question that was asked before may still come. False: it
 * cannot be asked. */
bool cot_subscriber_ask(cot_subscriber *subscriber, uint64_t from);
/* Takes what has come, without waiting: so many messages at most that who sends without end does not hold the caller. */
void cot_subscriber_take(cot_subscriber *subscriber);
void cot_subscriber_close(cot_subscriber *subscriber); // NULL is fine

/* Reads the frames of a message: [..., number, payload], of which `first` stand before the number at least. False where
 * it is none. */
bool cot_subscriber_read(uint64_t *number, const void **payload, size_t *payload_bytes,
                         const void *const *frames, const size_t *bytes, size_t count, size_t first);

#endif
