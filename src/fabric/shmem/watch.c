/* Who of ranks that were started from outside lives, and what becomes of the others.
 *
 * Each process has a thread that looks a few times in the time-out, whatever the process is at. Of a rank on this host the
 * system tells whether it has ended or is stopped. Those out of sight get a beat at each look, with what this rank last posted;
 * who does not beat for the time-out is given up. Time counts as it was watched: a watcher that was stopped itself, as all are
 * by Ctrl-Z, does not hold it against the others.
 *
 * A put to a rank that does not take what was sent to it waits for room, for ever if that rank is stopped. Meanwhile its thread
 * looks in the watch's place (the module calls back), and what it posts is that it awaits that rank.
 *
 * Once the group has failed a process that waits so is ended here, since the put cannot be; and so is any but rank 0's that does
 * not end by itself soon, as it is computing. Rank 0 belongs to who called, and looks itself where it works long alone. */
#include "fabric/shmem/state.h"

#include "base/clock.h"
#include "base/thread.h"
#include "fabric/posts.h"
#include "fabric/threads/watch.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- failure ---- */

/* To all ranks, who is about last: nobody may be there. What the own rank has heard first stays so. */
static void tell_failed(struct endpoint *self, int rank, bool mute)
{
    struct words *own = cot_shmem_words(self);
    const uint64_t found = (uint64_t)(rank + 1) | (mute ? COT_SHMEM_MUTE : 0);
    uint64_t nobody = 0;
    if (!atomic_compare_exchange_strong(&own->failed, &nobody, found)) return;
    for (int r = 0; r < self->fabric.ranks; r++) cot_rouse(&self->fabric, r);
    for (int i = 1; i <= self->fabric.ranks; i++) {
        const int to = (rank + i) % self->fabric.ranks;
        struct words *seen = (struct words *)(void *)self->seen[to];
        nobody = 0;
        if (seen)
            atomic_compare_exchange_strong(&seen->failed, &nobody, found);
        else if (to != rank)
            cot_shmem_raise(self, to, offsetof(struct words, failed), found, COT_PHASE_CONTROL);
    }
}

void cot_shmem_fail(cot_fabric *fabric)
{
    tell_failed(cot_shmem_endpoint(fabric), fabric->rank, false);
}

void cot_shmem_accuse(cot_fabric *fabric, int rank)
{
    tell_failed(cot_shmem_endpoint(fabric), rank, true);
}

int cot_shmem_failed(cot_fabric *fabric)
{
    return (int)(atomic_load(&cot_shmem_words(cot_shmem_endpoint(fabric))->failed) & (COT_SHMEM_MUTE - 1));
}

static bool has_died(const struct endpoint *self, int rank)
{
    struct pollfd life = {.fd = self->lives[rank], .events = POLLIN};
    return life.fd >= 0 && poll(&life, 1, 0) == 1;
}

int cot_shmem_death(cot_fabric *fabric, int rank)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    if (has_died(self, rank)) return COT_DEATH_OTHER;
    return atomic_load(&cot_shmem_words(self)->failed) == ((uint64_t)(rank + 1) | COT_SHMEM_MUTE)
               ? COT_DEATH_MUTE
               : COT_DEATH_NONE;
}

int cot_shmem_lost(cot_fabric *fabric)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    for (int rank = 0; rank < fabric->ranks; rank++)
        if (!atomic_load(&cot_shmem_words(self)->left[rank]) && has_died(self, rank)) return 1 + rank;
    return 0;
}

/* ---- posts and beats ---- */

void cot_shmem_post(cot_fabric *fabric, uint64_t post)
{
    struct words *own = cot_shmem_words(cot_shmem_endpoint(fabric));
    atomic_store_explicit(&own->posts[fabric->rank], post, memory_order_release);
}

uint64_t cot_shmem_posted(cot_fabric *fabric, int rank)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    struct words *words = self->seen[rank] ? (struct words *)(void *)self->seen[rank] : cot_shmem_words(self);
    return atomic_load_explicit(&words->posts[rank], memory_order_acquire);
}

static void beat(struct endpoint *self, int64_t now_ns)
{
    const uint64_t post = atomic_load(&cot_shmem_words(self)->posts[self->fabric.rank]);
    const bool changed = self->told != post;
    const size_t own = (size_t)self->fabric.rank * sizeof(uint64_t);
    self->told = post;
    for (int to = 0; to < self->fabric.ranks; to++) {
        if (self->seen[to] || self->in_call[to]) continue;
        if (changed) cot_shmem_raise(self, to, offsetof(struct words, posts) + own, post, COT_PHASE_CONTROL);
        cot_shmem_raise(self, to, offsetof(struct words, beats) + own, (uint64_t)now_ns, COT_PHASE_CONTROL);
    }
}

/* ---- looks ---- */

/* Of a rank on this host the system tells whether it was stopped. */
static bool is_stopped(const struct endpoint *self, int rank)
{
    const char state = self->lives[rank] < 0 ? 'R' : cot_launch_process_state(self->processes[rank]);
    return !state || state == 'T' || state == 't';
}

bool cot_shmem_is_mute(cot_fabric *fabric, int rank)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    if (self->seen[rank]) return is_stopped(self, rank);
    return atomic_load(&self->quiet_ns[rank]) >= fabric->timeout_ns / 2;
}

static bool is_quiet(struct endpoint *self, int rank)
{
    if (self->seen[rank]) return is_stopped(self, rank);
    const uint64_t before = self->heard[rank];
    self->heard[rank] = atomic_load(&cot_shmem_words(self)->beats[rank]);
    return self->heard[rank] == before;
}

/* Tells those out of sight that this rank lives, and looks whether others do, if the last look is a period ago. */
static void look(struct endpoint *self)
{
    const int64_t now_ns = cot_now_ns(), passed_ns = now_ns - self->looked_ns, most_ns = 2 * self->period_ns;
    if (passed_ns < self->period_ns) return;
    self->looked_ns = now_ns;
    beat(self, now_ns);
    for (int rank = 0; rank < self->fabric.ranks; rank++) {
        if (atomic_load(&cot_shmem_words(self)->left[rank])) continue; // it may end, or stop
        if (has_died(self, rank)) tell_failed(self, rank, false);
        if (!self->seen[rank] && !atomic_load(&cot_shmem_words(self)->arrived[rank]))
            continue; // does not beat yet
        const int64_t quiet_ns = is_quiet(self, rank) ? atomic_load(&self->quiet_ns[rank]) +
                                                            (passed_ns < most_ns ? passed_ns : most_ns)
                                                      : 0;
        atomic_store(&self->quiet_ns[rank], quiet_ns);
        if (quiet_ns >= self->fabric.timeout_ns) tell_failed(self, rank, true);
    }
}

/* ---- while a call waits for room ---- */

/* A process that does not end by itself. Others say what there is to say, if that is not up to this rank. */
static void end_if_failed(struct endpoint *self, int64_t now_ns)
{
    cot_fabric *own = &self->fabric;
    const int failed = cot_shmem_failed(own), death = failed ? cot_shmem_death(own, failed - 1) : 0;
    if (!failed) return;
    if (!self->failed_ns) self->failed_ns = now_ns;
    if (now_ns - self->failed_ns < cot_watch_ending_ns(own->timeout_ns)) return;
    if (own->rank == 0 || (failed == 1 && death)) {
        cot_error error;
        cot_blame_as_posted(own, failed - 1, death, &error);
        dprintf(STDERR_FILENO, "coterie: %s\n", error.message);
    }
    cot_launch_tell("ends", 1);
    _exit(1);
}

static _Atomic uint64_t *own_post(struct endpoint *self)
{
    return &cot_shmem_words(self)->posts[self->fabric.rank];
}

/* Posts whom the call waits for, unless this rank waits for somebody: then the call is the watch's. */
static void post_call(struct endpoint *self)
{
    uint64_t before = atomic_load(own_post(self));
    cot_post post = cot_post_unpack(before);
    if (post.awaits) return;
    post.awaits = self->call.awaits;
    post.phase = self->call.phase;
    if (!atomic_compare_exchange_strong(own_post(self), &before, cot_post_pack(post))) return;
    self->post_before = before;
    self->post_in_call = cot_post_pack(post);
}

/* Again and again while a call waits for room. */
static void in_call(void *endpoint)
{
    struct endpoint *self = endpoint;
    if (!self->calls) return;
    const int64_t now_ns = cot_now_ns();
    if (now_ns - self->call_ns >= self->period_ns) post_call(self);
    look(self);
    end_if_failed(self, now_ns);
    cot_back_off(now_ns - self->call_ns);
}

/* What this rank has posted itself since stays. */
void cot_shmem_watch_out_of_call(struct endpoint *self)
{
    if (self->post_in_call)
        atomic_compare_exchange_strong(own_post(self), &self->post_in_call, self->post_before);
    self->post_in_call = 0;
}

/* ---- the thread ---- */

/* Sleeps for a period. Whether the watch is over. */
static bool is_over(struct endpoint *self)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t until_ns = until.tv_nsec + self->period_ns;
    until.tv_sec += until_ns / 1000000000;
    until.tv_nsec = until_ns % 1000000000;
    int late;
    while ((late = sem_clockwait(&self->over, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR) continue;
    return !late;
}

/* What others have sent is taken in first, since their beats come after it. */
static void *run(void *argument)
{
    enum { TAKES = 64 };
    struct endpoint *self = argument;
    while (!is_over(self)) {
        pthread_mutex_lock(&self->calling);
        for (int i = 0; self->looked_ns && i < TAKES; i++) cot_shmem_progress(self);
        if (self->looked_ns) look(self);
        if (self->looked_ns && self->fabric.rank) end_if_failed(self, cot_now_ns());
        pthread_mutex_unlock(&self->calling);
    }
    return NULL;
}

bool cot_shmem_watch_begin(struct endpoint *self)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&self->calling, &recursive);
    pthread_mutexattr_destroy(&recursive);
    sem_init(&self->over, 0, 0);
    return cot_thread_start(&self->watch, run, self);
}

void cot_shmem_watch_meet(struct endpoint *self)
{
    pthread_mutex_lock(&self->calling);
    self->world->calls->attend(in_call, self);
    self->looked_ns = cot_now_ns();
    pthread_mutex_unlock(&self->calling);
}

void cot_shmem_watch_end(struct endpoint *self)
{
    sem_post(&self->over);
    pthread_join(self->watch, NULL);
    self->world->calls->attend(NULL, NULL);
    sem_destroy(&self->over);
    pthread_mutex_destroy(&self->calling);
}
