/* A pool of worker threads that help whichever thread posts a loop or offers work. */
#ifndef COT_BASE_POOL_H
#define COT_BASE_POOL_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_pool cot_pool;

/* Starts `workers` >= 0 threads, which handle no signals. Errors: OUT_OF_MEMORY (also: no more threads to be had). */
cot_status cot_pool_open(cot_pool **pool, int workers, cot_error *error);
/* Ends the threads; in a process that was forked off it frees the copy. NULL is fine; no loop may be running. */
void cot_pool_close(cot_pool *pool);

/* Calls body(context, i) once for each i in [0, n), on the caller and on idle workers, in any order; returns
 * when all are done. Several threads (at most 64) may call it at once on one pool; a body may not. A NULL
 * pool runs the loop on the caller. Never allocates. */
void cot_pool_run(cot_pool *pool, int64_t n, void (*body)(void *context, int64_t i), void *context);

/* Does a piece of work and returns true, or returns false when there is none now. */
typedef bool cot_pool_work(void *context);
typedef struct cot_pool_offer cot_pool_offer;

/* From now on any idle worker, and any thread in cot_pool_help, may call work(context), several at once.
 * NULL, and nobody helps, when the pool is NULL or too much is offered (64 loops and offers at once). */
cot_pool_offer *cot_pool_offer_work(cot_pool *pool, cot_pool_work *work, void *context);
/* Ends the offer (NULL is fine); returns when nobody is at it any more. */
void cot_pool_withdraw(cot_pool *pool, cot_pool_offer *offer);
/* Does a piece of whatever is offered (all that is left of a loop): true if there was any. The pool may be
 * NULL. */
bool cot_pool_help(cot_pool *pool);

/* Threads that run a loop at most: the caller and all workers. The pool may be NULL. */
int cot_pool_threads(const cot_pool *pool);

/* What all workers together have spent on loops and offers so far; 0 for a NULL pool. */
int64_t cot_pool_busy_ns(const cot_pool *pool);

#endif
