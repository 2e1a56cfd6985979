#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1000 };

/* One poster's loop: each index writes its own cell, without atomics, so that a race or a second call is
 * seen. */
struct work {
    cot_pool *pool;
    int rounds;
    int64_t n;
    int calls[MOST];
    int64_t results[MOST];
};

static void body(void *context, int64_t i)
{
    struct work *w = context;
    w->calls[i]++;
    w->results[i] = 3 * i + 1;
}

static void *post(void *context)
{
    struct work *w = context;
    for (int round = 1; round <= w->rounds; round++) {
        memset(w->results, 0x5a, sizeof w->results);
        cot_pool_run(w->pool, w->n, body, w);
        for (int64_t i = 0; i < w->n; i++)
            if (w->calls[i] != round || w->results[i] != 3 * i + 1)
                return (void *)"a call is missing or came twice";
    }
    return NULL;
}

static void test_sizes(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 2, 7, MOST};
    for (int workers = -1; workers <= 5; workers += 1 + (workers > 1)) {
        cot_pool *pool = NULL;
        if (workers >= 0) assert_int_equal(cot_pool_open(&pool, workers, NULL), COT_OK);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct work w = {.pool = pool, .rounds = 20, .n = sizes[s]};
            assert_null(post(&w));
        }
        cot_pool_close(pool);
    }
}

/* More posters than the pool has places for loops: who gets none runs alone. */
static void test_many_posters(void **state)
{
    (void)state;
    enum { POSTERS = 70 };
    static struct work works[POSTERS];
    pthread_t threads[POSTERS];
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 3, NULL), COT_OK);
    for (int p = 0; p < POSTERS; p++) {
        works[p] = (struct work){.pool = pool, .rounds = 20, .n = 1 + p % 9};
        assert_int_equal(pthread_create(&threads[p], NULL, post, &works[p]), 0);
    }
    for (int p = 0; p < POSTERS; p++) {
        void *complaint;
        pthread_join(threads[p], &complaint);
        assert_null(complaint);
    }
    cot_pool_close(pool);
}

/* Workers that have gone to sleep wake up for the next loop. */
static void test_sleepers(void **state)
{
    (void)state;
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 2, NULL), COT_OK);
    struct work w = {.pool = pool, .rounds = 1, .n = MOST};
    for (int i = 0; i < 10; i++) {
        usleep(3000);
        memset(w.calls, 0, sizeof w.calls);
        assert_null(post(&w));
    }
    usleep(3000);
    cot_pool_close(pool);
}

static atomic_int seen;
static atomic_bool alone;

static void wait_for_company(void *context, int64_t i)
{
    (void)context;
    (void)i;
    atomic_fetch_add(&seen, 1);
    for (int spins = 0; atomic_load(&seen) < 3; spins++) {
        usleep(100);
        if (spins == 100000) atomic_store(&alone, true);
        if (atomic_load(&alone)) return;
    }
}

/* Three bodies that each wait for the two others can end only when three threads run them. */
static void test_workers_help(void **state)
{
    (void)state;
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 2, NULL), COT_OK);
    for (int i = 0; i < 3; i++) {
        atomic_store(&seen, 0);
        cot_pool_run(pool, 3, wait_for_company, NULL);
        assert_false(atomic_load(&alone));
        usleep(2000 * (useconds_t)i);
    }
    cot_pool_close(pool);
}

struct caller {
    pthread_t thread;
    atomic_int others, wrong;
};

static void look_at_mask(void *context, int64_t i)
{
    struct caller *c = context;
    sigset_t blocked;
    wait_for_company(NULL, i); // so that each of three threads has one
    if (pthread_equal(pthread_self(), c->thread)) return;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    atomic_fetch_add(&c->others, 1);
    if (!sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGCHLD) ||
        !sigismember(&blocked, SIGALRM) || sigismember(&blocked, SIGSEGV) || sigismember(&blocked, SIGBUS) ||
        sigismember(&blocked, SIGFPE))
        atomic_fetch_add(&c->wrong, 1);
}

/* Signals to the process are handled on the program's own threads; a worker's faults are its own. */
static void test_workers_leave_signals_alone(void **state)
{
    (void)state;
    struct caller c = {.thread = pthread_self()};
    sigset_t before, after;
    cot_pool *pool;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(cot_pool_open(&pool, 2, NULL), COT_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int signal = 1; signal < NSIG; signal++)
        assert_int_equal(sigismember(&before, signal), sigismember(&after, signal));
    atomic_store(&seen, 0);
    cot_pool_run(pool, 3, look_at_mask, &c);
    assert_false(atomic_load(&alone));
    assert_int_equal(atomic_load(&c.others), 2);
    assert_int_equal(atomic_load(&c.wrong), 0);
    cot_pool_close(pool);
}

/* Offered work: pieces are handed out under nobody's eyes but each is done once; after withdrawal nobody
 * comes. */
struct pieces {
    _Atomic int64_t next;
    int64_t n;
    atomic_int done[MOST];
    atomic_bool over;
};

static bool do_piece(void *context)
{
    struct pieces *p = context;
    if (atomic_load(&p->over)) abort();
    int64_t i = atomic_fetch_add(&p->next, 1);
    if (i < p->n) atomic_fetch_add(&p->done[i], 1);
    return i < p->n;
}

static void test_offers(void **state)
{
    (void)state;
    assert_false(cot_pool_help(NULL));
    assert_int_equal(cot_pool_busy_ns(NULL), 0);
    assert_int_equal(cot_pool_threads(NULL), 1);
    for (int workers = 0; workers <= 3; workers++) {
        cot_pool *pool;
        assert_int_equal(cot_pool_open(&pool, workers, NULL), COT_OK);
        assert_int_equal(cot_pool_threads(pool), workers + 1);
        assert_false(cot_pool_help(pool));
        struct pieces *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
        a->n = 700, b->n = 1;
        cot_pool_offer *first = cot_pool_offer_work(pool, do_piece, a),
                       *second = cot_pool_offer_work(pool, do_piece, b);
        assert_non_null(first);
        assert_non_null(second);
        while (atomic_load(&a->next) < a->n || atomic_load(&b->next) < b->n)
            if (workers < 2) cot_pool_help(pool);
        cot_pool_withdraw(pool, second);
        cot_pool_withdraw(pool, first);
        atomic_store(&a->over, true);
        atomic_store(&b->over, true);
        for (int64_t i = 0; i < a->n; i++) assert_int_equal(a->done[i], 1);
        assert_int_equal(b->done[0], 1);
        assert_false(cot_pool_help(pool));
        usleep(2000); // a worker that still came would abort
        if (workers >= 2)
            assert_true(cot_pool_busy_ns(pool) > 0);
        else if (!workers)
            assert_int_equal(cot_pool_busy_ns(pool), 0);
        cot_pool_close(pool);
        free(a), free(b);
    }
    assert_null(cot_pool_offer_work(NULL, do_piece, NULL));
    cot_pool_withdraw(NULL, NULL);
}

static void test_close_null(void **state)
{
    (void)state;
    cot_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_many_posters),
        cmocka_unit_test(test_sleepers),
        cmocka_unit_test(test_workers_help),
        cmocka_unit_test(test_workers_leave_signals_alone),
        cmocka_unit_test(test_close_null),
        cmocka_unit_test(test_offers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
