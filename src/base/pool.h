/* A pool of worker threads that help whichever thread posts a loop. */
#ifndef COT_BASE_POOL_H
#define COT_BASE_POOL_H
#include "coterie/status.h"
#include <stdint.h>

typedef struct cot_pool cot_pool;

/* Starts `workers` >= 0 threads. Errors: OUT_OF_MEMORY (also: no more threads to be had). */
cot_status cot_pool_open(cot_pool **pool, int workers, cot_error *error);
void cot_pool_close(cot_pool *pool); // NULL is fine; no loop may be running

/* Calls body(context, i) once for each i in [0, n), on the caller and on idle workers, in any order; returns
 * when all are done. Several threads (at most 64) may call it at once on one pool; a body may not. A NULL
 * pool runs the loop on the caller. Never allocates. */
void cot_pool_run(cot_pool *pool, int64_t n, void (*body)(void *context, int64_t i), void *context);

#endif
