/* Events of the KV cache on their way from who computes to those who follow them.
 *
 *     cache's thread:  prefix cache --ring--> loop's thread:  a batch a home rank --publisher--> subscribers
 *
 * The cache's thread, which may be the loop's, never waits and takes no memory for it: where the ring is full, events are lost, which is noted, and
 * once the ring is empty the whole cache goes the same way and is published as AllBlocksCleared and all that is there. A
 * snapshot is the whole cache put between the events that were before it and those behind, so that it has an exact number. */
#ifndef COT_WORKER_KV_EVENTS_H
#define COT_WORKER_KV_EVENTS_H
#include "coterie/request.h"
#include "worker/kv_config.h"

struct event_base;
typedef struct cot_kv_events cot_kv_events;

/* Whose cache it is. */
typedef struct cot_kv_events_owner {
    void *context;
    int homes;            // ranks that hold a cache of their own, 1 to 64
    int64_t block_tokens; // 1 to 64
    /* The cache's thread: tells on_stored of all blocks that are there, each after the one before it, and on_state_stored of those of
     * which a state is kept. Errors: OUT_OF_MEMORY,
     * before any is told. */
    cot_status (*list)(void *context, const cot_cache_events *events);
    /* The loop's thread: cot_kv_events_flush is to be called soon. */
    void (*wake)(void *context);
    /* The loop's thread: a snapshot, told to the backend's own owner as cot_backend_owner has it. */
    void *follower;
    void (*on_snapshot)(void *follower, const void *bytes, size_t count);
} cot_kv_events_owner;

/* Publishes as a config says that was checked and is enabled. `*kv` is NULL on failure. Errors: IO (a port is taken),
 * INVALID_ARGUMENT (an address that is not here, blocks of no tokens), OUT_OF_MEMORY. */
cot_status cot_kv_events_open(cot_kv_events **kv, const cot_kv_config *config,
                              const cot_kv_events_owner *owner, struct event_base *base, cot_error *error);
/* What the cache tells its blocks to, on its own thread. */
cot_cache_events cot_kv_events_watcher(cot_kv_events *kv);
/* The cache's thread, after some blocks came and went or when it was woken: they go to the loop, and what was lost or asked
 * for is made good. */
void cot_kv_events_flush(cot_kv_events *kv);
/* The loop's thread: a snapshot is told soon. */
void cot_kv_events_ask(cot_kv_events *kv);
/* The loop's thread: batches that were published, and how often events were lost. */
void cot_kv_events_count(const cot_kv_events *kv, uint64_t *batches, uint64_t *losses);
/* When nobody calls the other functions any more. NULL is fine. */
void cot_kv_events_close(cot_kv_events *kv);

#endif
