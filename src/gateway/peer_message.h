/* What routers tell each other, as msgpack (docs/ROUTER.md, Several routers). Pure. */
#ifndef COT_GATEWAY_PEER_MESSAGE_H
#define COT_GATEWAY_PEER_MESSAGE_H
#include "base/buffer.h"

#include <stdint.h>

enum {
    COT_PEER_MOST_KEYS = 1024,     // of a prompt that are told, its first ones
    COT_PEER_MOST_REQUESTS = 65536 // of a router, under way
};

typedef enum cot_peer_kind {
    COT_PEER_ALIVE,    // each second
    COT_PEER_ASSIGNED, // a request was sent to a worker
    COT_PEER_BEGAN,    // its first token came
    COT_PEER_ENDED     // it is over there
} cot_peer_kind;

/* Fields of other kinds are not looked at. */
typedef struct cot_peer_message {
    cot_peer_kind kind;
    /* ALIVE */
    uint64_t router;       // another one each time that a router starts
    uint64_t block_tokens; // of its index; 0: it has met no worker yet
    const char *model;     // its workers'; "": not known; not NUL-terminated where it was read
    size_t model_bytes;
    const uint64_t *under_way; // [count] ids of all requests that are not over
    size_t count;
    /* The others. */
    uint64_t id;        // rising
    const char *worker; // its URL, as `model`
    size_t worker_bytes;
    uint64_t rank, prompt_tokens, cached_tokens, max_tokens;
    const uint64_t *keys; // [blocks]
    size_t blocks;
    uint64_t answered; // tokens
} cot_peer_message;

/* Appends it; false when memory runs out. */
bool cot_peer_message_write(cot_buffer *out, const cot_peer_message *message);
/* Reads it; texts and numbers point into bytes [count] and into `numbers`, which is emptied. False: it is none, or memory ran out. */
bool cot_peer_message_read(cot_peer_message *message, cot_buffer *numbers, const void *bytes, size_t count);

#endif
