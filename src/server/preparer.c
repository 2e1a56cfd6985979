/* The lanes in which requests are prepared. */
#include "base/error.h"
#include "base/thread.h"
#include "net/wake.h"
#include "server/prepare.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A list of preparations, first in first out. */
typedef struct queue {
    cot_preparation *first, *last;
} queue;

enum { LANE_TEXT, LANE_CHAT, LANE_LONG, LANE_CONSTRAINT, LANES };
/* Threads that compile constraints: a compilation cannot be stopped once it has begun, and as long as fewer than so many take long the
 * others wait for none of them. */
enum { COMPILERS = 4, THREADS = LANES - 1 + COMPILERS };
enum {
    SHORT_BYTES = 2 << 10, // a completion's body up to which waking a lane takes longer than tokenising
    LONG_BYTES = 32 << 10  // a body from which on it is tokenised beside the others
};

typedef struct lane {
    cot_preparer *preparer;
    pthread_cond_t filled;
    queue waiting;
} lane;

struct cot_preparer {
    const cot_served_model *model;
    pthread_mutex_t lock; // of the queues and `ends`
    lane lanes[LANES];
    pthread_t threads[THREADS]; // one a lane, and of the last the others
    int started;
    queue done;
    bool ends;
    cot_wake news; // something is done
};

static void append(queue *q, cot_preparation *p)
{
    p->next = NULL;
    *(q->last ? &q->last->next : &q->first) = p;
    q->last = p;
}

static cot_preparation *take_first(queue *q)
{
    cot_preparation *p = q->first;
    if (p && !(q->first = p->next)) q->last = NULL;
    return p;
}

static bool take(queue *q, const cot_preparation *p)
{
    cot_preparation **at = &q->first, *before = NULL;
    for (; *at && *at != p; at = &(*at)->next) before = *at;
    if (!*at) return false;
    *at = p->next;
    if (q->last == p) q->last = before;
    return true;
}

/* The lock is held. */
static void enqueue(cot_preparer *all, int which, cot_preparation *p)
{
    append(&all->lanes[which].waiting, p);
    pthread_cond_signal(&all->lanes[which].filled);
}

static void *work(void *argument)
{
    lane *own = argument;
    cot_preparer *all = own->preparer;
    const bool compiles = own == &all->lanes[LANE_CONSTRAINT];
    // long texts and large schemas must not take the processors from those who generate
    if (own == &all->lanes[LANE_LONG] || compiles) setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (!own->waiting.first && !all->ends) pthread_cond_wait(&own->filled, &all->lock);
        if (all->ends) break;
        cot_preparation *p = take_first(&own->waiting);
        pthread_mutex_unlock(&all->lock);
        bool done = true;
        if (compiles)
            cot_prepare_constraint(p, all->model);
        else
            done = cot_prepare(p, all->model);
        pthread_mutex_lock(&all->lock);
        if (!done) {
            enqueue(all, LANE_CONSTRAINT, p);
            continue;
        }
        append(&all->done, p);
        cot_wake_up(&all->news);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void tell_done(void *context, uint64_t times)
{
    cot_preparer *all = context;
    (void)times;
    pthread_mutex_lock(&all->lock);
    queue done = all->done;
    all->done = (queue){0};
    pthread_mutex_unlock(&all->lock);
    for (cot_preparation *p; (p = take_first(&done));) p->done(p);
}

cot_status cot_preparer_open(cot_preparer **out, const cot_served_model *model, struct event_base *base,
                             cot_error *error)
{
    cot_preparer *all = *out = calloc(1, sizeof *all);
    if (!all) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
    all->model = model;
    pthread_mutex_init(&all->lock, NULL);
    for (int i = 0; i < LANES; i++) {
        all->lanes[i].preparer = all;
        pthread_cond_init(&all->lanes[i].filled, NULL);
    }
    bool good = cot_wake_open(&all->news, base, tell_done, all);
    for (; good && all->started < THREADS; all->started += good) {
        const int which = all->started < LANES ? all->started : LANE_CONSTRAINT;
        good = cot_thread_start(&all->threads[all->started], work, &all->lanes[which]);
    }
    if (good) return COT_OK;
    cot_preparer_close(all);
    *out = NULL;
    return cot_fail(error, COT_IO, "cannot start the threads that prepare requests");
}

void cot_preparer_start(cot_preparer *all, cot_preparation *p)
{
    int which = p->bytes > LONG_BYTES ? LANE_LONG : p->kind == COT_API_COMPLETION ? LANE_TEXT : LANE_CHAT;
    if (p->kind == COT_API_COMPLETION && p->bytes <= SHORT_BYTES) {
        if (cot_prepare(p, all->model)) {
            p->done(p);
            return;
        }
        which = LANE_CONSTRAINT;
    }
    pthread_mutex_lock(&all->lock);
    enqueue(all, which, p);
    pthread_mutex_unlock(&all->lock);
}

bool cot_preparer_cancel(cot_preparer *all, cot_preparation *p)
{
    atomic_store(&p->unwanted, true);
    pthread_mutex_lock(&all->lock);
    bool taken = false;
    for (int i = 0; i < LANES && !taken; i++) taken = take(&all->lanes[i].waiting, p);
    pthread_mutex_unlock(&all->lock);
    return taken;
}

void cot_preparer_close(cot_preparer *all)
{
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    all->ends = true;
    for (int i = 0; i < LANES; i++) pthread_cond_broadcast(&all->lanes[i].filled);
    pthread_mutex_unlock(&all->lock);
    for (int i = 0; i < all->started; i++) pthread_join(all->threads[i], NULL);
    for (cot_preparation *p; (p = take_first(&all->done));) p->done(p);
    for (int i = 0; i < LANES; i++)
        for (cot_preparation *p; (p = take_first(&all->lanes[i].waiting));) {
            cot_api_fail(&p->error, 503, "shutting_down", NULL, "the server is shutting down");
            p->done(p);
        }
    cot_wake_close(&all->news);
    pthread_mutex_destroy(&all->lock);
    free(all);
}
