/* A question to a worker whose answer is read whole: /health, /worker, a snapshot, /tokenize. */
#ifndef COT_GATEWAY_ASK_H
#define COT_GATEWAY_ASK_H
#include "base/buffer.h"
#include "net/http_client.h"

/* All zero is at rest. */
typedef struct cot_ask {
    cot_http_call *call; // NULL: none is under way
    int64_t since_ns;
    int status;
    cot_buffer body;
    size_t most_bytes;
    /* The answer: its status and its body, which is there during the call; 0 where none came whole, and why. Another question may be
     * asked from here. */
    void (*done)(void *context, int status, const char *body, size_t bytes, const cot_error *error);
    void *context;
} cot_ask;

/* GET, or POST where `json` is not NULL. `key` NULL: none is sent. False: memory ran out; `done` is not called. */
bool cot_ask_start(cot_ask *ask, cot_http_client *client, const char *path, const char *key, const char *json,
                   size_t most_bytes);
/* Nothing is told any more. */
void cot_ask_cancel(cot_ask *ask);

/* "Bearer KEY" in malloc'd memory; NULL for NULL, or when memory runs out. */
char *cot_ask_authorization(const char *key);

#endif
