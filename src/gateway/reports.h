/* What workers publish beside events of their KV caches, read from msgpack. Pure. */
#ifndef COT_GATEWAY_REPORTS_H
#define COT_GATEWAY_REPORTS_H
#include "coterie/route.h"

/* A report of a step (docs/SERVING.md). False: it is none. */
bool cot_gateway_read_step(cot_route_work *work, const void *bytes, size_t count);
/* A snapshot of KV caches: `take` is called for each rank with the batches that it is the sum of, and its blocks as one batch. False: it
 * is malformed; some ranks may have been told. */
bool cot_gateway_read_snapshot(const void *bytes, size_t count,
                               void (*take)(void *context, int rank, uint64_t batches, const void *batch,
                                            size_t batch_bytes),
                               void *context);

#endif
