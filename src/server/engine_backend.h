/* The backend that is an engine of this process.
 *
 *   loop's thread:    submit, cancel --orders--> engine's thread: order, order, step, order, step ...
 *                     on_event  <--------records, a step at a time---------
 *
 * The engine's thread works as its rank 0. It sleeps when nothing is left to do. What happens in a step is written down in
 * records that the loop takes over as a whole. */
#ifndef COT_SERVER_ENGINE_BACKEND_H
#define COT_SERVER_ENGINE_BACKEND_H
#include "server/backend.h"

struct event_base;
struct cot_kv_events;

/* The engine is used by the backend alone until it is closed, and outlives it, as does `kv`, which watches the engine (NULL:
 * nobody does). Errors: OUT_OF_MEMORY, IO (no thread, no
 * descriptor). `*backend` is NULL then. */
cot_status cot_engine_backend_open(cot_backend **backend, cot_engine *engine, struct cot_kv_events *kv,
                                   struct event_base *base, cot_error *error);

#endif
