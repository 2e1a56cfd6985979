/* Events of the KV cache on their way from the engine to those who follow them.
 *
 *     engine's thread:  prefix cache --ring--> loop's thread:  a batch a home rank --publisher--> subscribers
 *
 * The engine's thread never waits and takes no memory for it: where the ring is full, events are lost, which is noted, and
 * once the ring is empty the whole cache goes the same way and is published as AllBlocksCleared and all that is there. A
 * snapshot is the whole cache put between the events that were before it and those behind, so that it has an exact number. */
#ifndef COT_SERVER_KV_EVENTS_H
#define COT_SERVER_KV_EVENTS_H
#include "coterie/engine.h"
#include "server/kv_config.h"

struct event_base;
typedef struct cot_kv_events cot_kv_events;

/* Who is asked for the engine's thread to come round, and told of snapshots; on the loop's thread. */
typedef struct cot_kv_events_owner {
    void *context;
    void (*attend)(void *context); // cot_kv_events_look is to be called soon
    /* A snapshot, msgpack: {"ranks": [{"data_parallel_rank", "seq": the last batch's number, -1 before the first, "batch": of
     * the blocks that are there}]}; NULL where memory ran out. */
    void (*on_snapshot)(void *context, const void *bytes, size_t count);
} cot_kv_events_owner;

/* Publishes as a config says that was checked and is enabled. Watches the engine from now on, which is used by another
 * thread later, until cot_kv_events_unwatch. `*kv` is NULL on failure. Errors: IO (a port is taken), INVALID_ARGUMENT (an
 * address that is not here), OUT_OF_MEMORY. */
cot_status cot_kv_events_open(cot_kv_events **kv, const cot_kv_config *config, cot_engine *engine,
                              const cot_kv_events_owner *owner, struct event_base *base, cot_error *error);
/* The engine's thread, after a step or when it was asked to come round. */
void cot_kv_events_look(cot_kv_events *kv);
/* The engine's thread, at its end: the engine tells no more. NULL is fine. */
void cot_kv_events_unwatch(cot_kv_events *kv);
/* The loop's thread: a snapshot is told soon. */
void cot_kv_events_ask(cot_kv_events *kv);
/* The loop's thread: batches that were published, and how often events were lost. */
void cot_kv_events_count(const cot_kv_events *kv, uint64_t *batches, uint64_t *losses);
/* When nobody calls the other functions any more. NULL is fine. */
void cot_kv_events_close(cot_kv_events *kv);

#endif
