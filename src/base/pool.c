#include "base/pool.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/wait.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_OFFERS = 64 };
static const int64_t sleep_after_ns =
    1000000; // a futex wake-up costs 12-29 us: stay awake between a layer's loops

/* `users` counts threads that look at an offer: it ends only when none does, so that nobody reads fields of
 * an offer that is gone. */
struct cot_pool_offer {
    alignas(64) atomic_bool taken, posted;
    atomic_int users;
    cot_pool_work *work;
    void *context;
};

struct cot_pool {
    struct cot_pool_offer offers[MAX_OFFERS];
    atomic_int posted, sleepers;
    atomic_bool closing;
    _Atomic int64_t busy_ns;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pid_t process; // whose threads they are
    int workers;
    pthread_t threads[];
};

bool cot_pool_help(cot_pool *pool)
{
    if (!pool || !atomic_load_explicit(&pool->posted, memory_order_relaxed)) return false;
    bool helped = false;
    for (int i = 0; i < MAX_OFFERS && !helped; i++) {
        struct cot_pool_offer *offer = &pool->offers[i];
        if (!atomic_load_explicit(&offer->posted, memory_order_relaxed)) continue;
        atomic_fetch_add(&offer->users, 1);
        if (atomic_load(&offer->posted)) helped = offer->work(offer->context);
        atomic_fetch_sub(&offer->users, 1);
    }
    return helped;
}

static void *serve(void *argument)
{
    cot_pool *pool = argument;
    int64_t idle_since_ns = cot_now_ns();
    for (int spins = 0; !atomic_load(&pool->closing);) {
        const int64_t begin_ns = cot_now_ns();
        if (cot_pool_help(pool)) {
            idle_since_ns = cot_now_ns();
            atomic_fetch_add_explicit(&pool->busy_ns, idle_since_ns - begin_ns, memory_order_relaxed);
            spins = 0;
        } else if (begin_ns - idle_since_ns < sleep_after_ns) {
            cot_relax(spins++);
        } else {
            pthread_mutex_lock(&pool->mutex);
            atomic_fetch_add(&pool->sleepers, 1);
            while (!atomic_load(&pool->posted) && !atomic_load(&pool->closing))
                pthread_cond_wait(&pool->wake, &pool->mutex);
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->mutex);
            idle_since_ns = cot_now_ns();
        }
    }
    return NULL;
}

cot_status cot_pool_open(cot_pool **out, int workers, cot_error *error)
{
    size_t bytes = (sizeof(cot_pool) + (size_t)workers * sizeof(pthread_t) + 63) / 64 * 64;
    cot_pool *pool = *out = aligned_alloc(64, bytes);
    if (!pool) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a pool of %d threads", workers);
    *pool = (cot_pool){.process = getpid()};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (; pool->workers < workers; pool->workers++) {
        if (!cot_thread_start(&pool->threads[pool->workers], serve, pool)) {
            cot_status status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot start worker thread %d of %d",
                                         pool->workers + 1, workers);
            cot_pool_close(pool);
            *out = NULL;
            return status;
        }
    }
    return COT_OK;
}

static void wake_all(cot_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

void cot_pool_close(cot_pool *pool)
{
    if (!pool) return;
    if (pool->process != getpid()) { // forked off: the threads are not here, and one may have held the mutex
        free(pool);
        return;
    }
    atomic_store(&pool->closing, true);
    wake_all(pool);
    for (int i = 0; i < pool->workers; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

cot_pool_offer *cot_pool_offer_work(cot_pool *pool, cot_pool_work *work, void *context)
{
    for (int i = 0; pool && i < MAX_OFFERS; i++) {
        struct cot_pool_offer *offer = &pool->offers[i];
        if (atomic_exchange(&offer->taken, true)) continue;
        offer->work = work;
        offer->context = context;
        atomic_store(&offer->posted, true);
        atomic_fetch_add(&pool->posted, 1);
        if (atomic_load(&pool->sleepers)) wake_all(pool);
        return offer;
    }
    return NULL;
}

void cot_pool_withdraw(cot_pool *pool, cot_pool_offer *offer)
{
    if (!offer) return;
    atomic_fetch_sub(&pool->posted, 1);
    atomic_store(&offer->posted, false);
    for (int spins = 0; atomic_load(&offer->users); spins++) cot_relax(spins);
    atomic_store(&offer->taken, false);
}

struct loop {
    _Atomic int64_t next;
    int64_t n;
    void (*body)(void *, int64_t);
    void *context;
};

static bool drain(void *context)
{
    struct loop *loop = context;
    bool helped = false;
    for (int64_t i; (i = atomic_fetch_add_explicit(&loop->next, 1, memory_order_relaxed)) < loop->n;
         helped = true)
        loop->body(loop->context, i);
    return helped;
}

void cot_pool_run(cot_pool *pool, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    struct loop loop = {.n = n, .body = body, .context = context};
    cot_pool_offer *offer = n > 1 ? cot_pool_offer_work(pool, drain, &loop) : NULL;
    drain(&loop);
    cot_pool_withdraw(pool, offer);
}

int cot_pool_threads(const cot_pool *pool)
{
    return pool ? pool->workers + 1 : 1;
}

int64_t cot_pool_busy_ns(const cot_pool *pool)
{
    return pool ? atomic_load_explicit(&pool->busy_ns, memory_order_relaxed) : 0;
}
