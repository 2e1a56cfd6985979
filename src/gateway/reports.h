/* What workers publish beside events of their KV caches, read from msgpack. Pure. */
#ifndef COT_GATEWAY_REPORTS_H
#define COT_GATEWAY_REPORTS_H
#include "coterie/route.h"

/* A report of a step (docs/SERVING.md), and how often experts had moved before it. False: it is none. */
bool cot_gateway_read_step(cot_route_work *work, uint64_t *epoch, const void *bytes, size_t count);
/* What a worker's topic of popularity tells (docs/SERVING.md). */
typedef enum cot_gateway_told {
    COT_GATEWAY_TOLD_REQUEST,
    COT_GATEWAY_TOLD_HOME,  // what is called at a home
    COT_GATEWAY_TOLD_OTHER, // what no router asks for
    COT_GATEWAY_TOLD_WRONG  // no such message, or signatures that cannot be of so many cells
} cot_gateway_told;
/* Calls of experts at a home, lately. */
typedef struct cot_gateway_home {
    uint64_t home;
    double tokens;      // that they are of
    const void *counts; // [bytes] of the message
    size_t bytes;
} cot_gateway_home;
/* A request that is over: what it called, prompt and answer alike, and the sequence hash of its prompt's last whole block. Without a block,
 * or of nothing called, it is OTHER. */
cot_gateway_told cot_gateway_read_popularity(cot_route_calls *calls, uint64_t *block, cot_gateway_home *home,
                                             const void *bytes, size_t count, size_t cells);
/* A snapshot of KV caches: `take` is called for each rank with the batches that it is the sum of, and its blocks as one batch. False: it
 * is malformed; some ranks may have been told. */
bool cot_gateway_read_snapshot(const void *bytes, size_t count,
                               void (*take)(void *context, int rank, uint64_t batches, const void *batch,
                                            size_t batch_bytes),
                               void *context);

#endif
