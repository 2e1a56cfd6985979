/* The lanes in which requests are prepared. */
#include "base/error.h"
#include "server/prepare.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A list of preparations, first in first out. */
typedef struct queue {
    cot_preparation *first, *last;
} queue;

enum { LANE_TEXT, LANE_CHAT, LANE_LONG, LANES };
enum {
    SHORT_BYTES = 2 << 10, // a completion's body up to which waking a lane takes longer than tokenising
    LONG_BYTES = 32 << 10  // a body from which on it is tokenised beside the others
};

typedef struct lane {
    cot_preparer *preparer;
    pthread_t thread;
    pthread_cond_t filled;
    queue waiting;
} lane;

struct cot_preparer {
    const cot_served_model *model;
    pthread_mutex_t lock; // of the queues and `ends`
    lane lanes[LANES];
    int started;
    queue done;
    bool ends;
    int wake; // an eventfd: something is done
    struct event *on_wake;
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

static void *work(void *argument)
{
    lane *own = argument;
    cot_preparer *all = own->preparer;
    // long texts must not take the processors from those who generate
    if (own == &all->lanes[LANE_LONG]) setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (!own->waiting.first && !all->ends) pthread_cond_wait(&own->filled, &all->lock);
        if (all->ends) break;
        cot_preparation *p = take_first(&own->waiting);
        pthread_mutex_unlock(&all->lock);
        cot_prepare(p, all->model);
        pthread_mutex_lock(&all->lock);
        append(&all->done, p);
        const uint64_t one = 1;
        if (write(all->wake, &one, sizeof one) < 0) {
            // it can only be full, which wakes the loop as well
        }
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void tell_done(evutil_socket_t descriptor, short what, void *context)
{
    cot_preparer *all = context;
    uint64_t times;
    (void)what;
    if (read(descriptor, &times, sizeof times) < 0) return; // woken for nothing
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
    all->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    all->on_wake = all->wake < 0 ? NULL : event_new(base, all->wake, EV_READ | EV_PERSIST, tell_done, all);
    bool good = all->on_wake && event_add(all->on_wake, NULL) == 0;
    sigset_t signals, before; // signals are for other threads
    sigfillset(&signals);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    for (; good && all->started < LANES; all->started += good) {
        lane *own = &all->lanes[all->started];
        own->preparer = all;
        pthread_cond_init(&own->filled, NULL);
        good = pthread_create(&own->thread, NULL, work, own) == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good) return COT_OK;
    cot_preparer_close(all);
    *out = NULL;
    return cot_fail(error, COT_IO, "cannot start the threads that prepare requests");
}

void cot_preparer_start(cot_preparer *all, cot_preparation *p)
{
    if (p->kind == COT_API_COMPLETION && p->bytes <= SHORT_BYTES) {
        cot_prepare(p, all->model);
        p->done(p);
        return;
    }
    const int which = p->bytes > LONG_BYTES           ? LANE_LONG
                      : p->kind == COT_API_COMPLETION ? LANE_TEXT
                                                      : LANE_CHAT;
    pthread_mutex_lock(&all->lock);
    append(&all->lanes[which].waiting, p);
    pthread_cond_signal(&all->lanes[which].filled);
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
    for (int i = 0; i < all->started; i++) pthread_cond_signal(&all->lanes[i].filled);
    pthread_mutex_unlock(&all->lock);
    for (int i = 0; i < all->started; i++) pthread_join(all->lanes[i].thread, NULL);
    for (cot_preparation *p; (p = take_first(&all->done));) p->done(p);
    for (int i = 0; i < all->started; i++)
        for (cot_preparation *p; (p = take_first(&all->lanes[i].waiting));) {
            cot_api_fail(&p->error, 503, "shutting_down", NULL, "the server is shutting down");
            p->done(p);
        }
    if (all->on_wake) event_free(all->on_wake);
    if (all->wake >= 0) close(all->wake);
    pthread_mutex_destroy(&all->lock);
    free(all);
}
