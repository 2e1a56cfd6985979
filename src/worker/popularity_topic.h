/* What requests and home ranks call, on its way to who routes by it, on a PUB socket of its own:
 *
 *     engine's thread:  payload --ring--> loop's thread:  [topic "popularity", number, payload] --publisher--> subscribers
 *
 * A payload is msgpack, a map of one key (docs/SERVING.md has the forms). Nobody is waited for: where the ring is full messages are
 * lost. */
#ifndef COT_WORKER_POPULARITY_TOPIC_H
#define COT_WORKER_POPULARITY_TOPIC_H
#include "coterie/engine.h"
#include "worker/backend.h"

struct event_base;
typedef struct cot_popularity_topic cot_popularity_topic;

/* Publishes what an engine counts. `*topic` is NULL on failure. Errors: INVALID_ARGUMENT (an address that is not here, an engine that
 * counts nothing), IO (the port is taken), OUT_OF_MEMORY. */
cot_status cot_popularity_topic_open(cot_popularity_topic **topic, const cot_endpoint *endpoint,
                                     const cot_engine_popularity_info *info, struct event_base *base,
                                     cot_error *error);
/* The engine's thread: a request is over. */
void cot_popularity_topic_put_request(cot_popularity_topic *topic, const cot_profile_told *profile);
/* The engine's thread: what tokens at home on a rank, and their calls [n_layers][n_experts], are worth now. */
void cot_popularity_topic_put_home(cot_popularity_topic *topic, int home, double tokens,
                                   const double *counts);
/* The engine's thread: a home let a block go, of that sequence hash, and its signature with it. */
void cot_popularity_topic_put_evicted(cot_popularity_topic *topic, int home, uint64_t block_hash);
/* When nobody puts any more. NULL is fine. */
void cot_popularity_topic_close(cot_popularity_topic *topic);

#endif
