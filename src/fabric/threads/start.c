/* Who runs the ranks of a group on one host: from their begin to their end. */
#include "base/clock.h"
#include "base/error.h"
#include "fabric/threads/state.h"
#include "fabric/threads/watch.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct seat {
    cot_rank_begin *begin;
    void *context;
    cot_fabric *fabric;
    pthread_t thread;
};

struct started {
    cot_fabric_group *group;
    bool processes;
    int count; // ranks that run, rank 0 included
    cot_watch watch;
    struct seat seats[];
};

/* ---- who runs ---- */

static void *run_thread(void *argument)
{
    struct seat *seat = argument;
    seat->begin(seat->context, seat->fabric);
    return NULL;
}

/* What a terminal or a supervisor sends to all processes at once, asking them to end, is for rank 0 to answer: it may
 * have work to finish, for which it needs the others, and they end with it. */
static void leave_signals_to_root(void)
{
    sigset_t asking;
    sigemptyset(&asking);
    sigaddset(&asking, SIGINT);
    sigaddset(&asking, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &asking, NULL);
}

static _Noreturn void run_process(struct seat *seat)
{
    struct endpoint *self = endpoint_of(seat->fabric);
    cot_watch watch;
    leave_signals_to_root();
    if (!cot_watch_begin(&watch, self->group, self->fabric.rank)) _exit(1);
    atomic_store(&self->part, COT_LIFE_RUNS);
    run_thread(seat);
    if (self->fabric.ops->death(&self->fabric, 0) == COT_DEATH_MUTE) // this rank may have found it out itself
        cot_watch_tell_of_root(self->group, self->fabric.rank, COT_DEATH_MUTE);
    atomic_store(&self->part, COT_LIFE_ENDS);
    cot_watch_end_process(0);
}

static cot_status cannot_start(const struct seat *seat, const char *why, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot start rank %d of %d: %s", seat->fabric->rank,
                    seat->fabric->ranks, why);
}

/* In rank 0's process: reaps a child, if it has ended. Its end counts as one before its time unless it had done its part. */
static void reap(struct endpoint *child)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child->process, &status, WNOHANG)) < 0 && errno == EINTR) continue;
    if (!ended) return;
    const int part = atomic_load(&child->part);
    if (part != COT_LIFE_ENDS && !atomic_load(&child->ended)) {
        atomic_store(&child->ended, ended > 0 && WIFSIGNALED(status) ? WTERMSIG(status) : COT_DEATH_OTHER);
        if (part == COT_LIFE_RUNS) // the watch has no process to look at any more
            cot_fabric_group_failed(child->group, child->fabric.rank, false);
    }
    atomic_store(&child->process, 0);
}

static void kill_child(struct endpoint *child)
{
    if (child->process) kill(child->process, SIGKILL);
}

/* How long something has been waited for, as in turns.c: looks that come late count for an eighth of the time-out. */
struct patience {
    int64_t looked_ns, passed_ns;
};

static int64_t have_patience(struct patience *p, const cot_fabric *fabric)
{
    const int64_t now_ns = cot_now_ns(), since_ns = now_ns - p->looked_ns, most_ns = fabric->timeout_ns / 8;
    if (p->looked_ns) p->passed_ns += since_ns < most_ns ? since_ns : most_ns;
    p->looked_ns = now_ns;
    return p->passed_ns;
}

/* Until a child has begun. */
static cot_status await_begin(const struct seat *seat, cot_error *error)
{
    struct endpoint *child = endpoint_of(seat->fabric);
    const int64_t timeout_ns = seat->fabric->timeout_ns;
    struct patience patience = {0};
    while (atomic_load(&child->part) == COT_LIFE_BEGINS && child->process) {
        if (have_patience(&patience, seat->fabric) >= timeout_ns) {
            kill_child(child);
            return cot_fail(error, COT_TIMED_OUT, "rank %d did not begin within %.1f s", seat->fabric->rank,
                            (double)timeout_ns * 1e-9);
        }
        cot_watch_beat(child->group, 0);
        sched_yield();
        reap(child);
    }
    if (atomic_load(&child->part) != COT_LIFE_BEGINS) return COT_OK;
    if (child->ended < 0) return cannot_start(seat, "its process ended at once", error);
    return cot_fail(error, COT_PEER_FAILED, "rank %d was killed by signal %d as it began", seat->fabric->rank,
                    child->ended);
}

static cot_status start_rank(const struct started *started, struct seat *seat, cot_error *error)
{
    if (!started->processes) {
        const int refused = pthread_create(&seat->thread, NULL, run_thread, seat);
        return refused ? cannot_start(seat, strerrordesc_np(refused), error) : COT_OK;
    }
    cot_watch_beat(started->group, 0);
    const pid_t process = fork();
    if (process == 0) run_process(seat);
    if (process < 0) return cannot_start(seat, strerrordesc_np(errno), error);
    atomic_store(&endpoint_of(seat->fabric)->process, process);
    return await_begin(seat, error);
}

static bool all_have_ended(const struct started *started)
{
    int left = 0;
    for (int rank = 1; rank < started->group->ranks; rank++) {
        struct endpoint *child = &started->group->endpoints[rank];
        if (child->process) reap(child);
        left += child->process != 0;
    }
    return !left;
}

/* After a failure the processes have a while to end by themselves; but for one that was given up, which may be stopped. Where
 * nothing failed, that they do not end becomes a failure once those that wait for a rank have had the time to name it
 * (turns.c). */
static void await_ends(const struct started *started)
{
    cot_fabric_group *group = started->group;
    cot_fabric *root = &group->endpoints[0].fabric;
    struct patience whole = {0}, ending = {0};
    while (!all_have_ended(started)) {
        const int64_t waited_ns = have_patience(&whole, root);
        if (waited_ns >= root->timeout_ns + root->timeout_ns / 2) root->ops->fail(root);
        const bool late =
            root->ops->failed(root) && have_patience(&ending, root) >= cot_watch_ending_ns(root->timeout_ns);
        for (int rank = 1; rank < group->ranks; rank++)
            if (late || root->ops->death(root, rank) == COT_DEATH_MUTE) kill_child(&group->endpoints[rank]);
        cot_back_off(waited_ns);
    }
}

/* copy: of a group whose ranks are another process's. */
static void finish(void *group, bool copy)
{
    struct started *started = group;
    for (int rank = 1; rank < started->count && !copy && !started->processes; rank++)
        pthread_join(started->seats[rank].thread, NULL);
    if (!copy && started->processes) {
        await_ends(started);
        cot_watch_end(&started->watch);
    }
    cot_fabric_group_close(started->group);
    free(started);
}

static bool begin_watch(struct started *started, cot_error *error)
{
    if (!started->processes || cot_watch_begin(&started->watch, started->group, 0)) return true;
    cot_fail(error, COT_OUT_OF_MEMORY, "no thread can be had to watch over %d processes",
             started->group->ranks);
    return false;
}

static cot_status start(const cot_fabric_backend *backend, void **group, cot_fabric **own,
                        const cot_launch_options *o, cot_rank_begin *begin, void *context, cot_error *error)
{
    struct started *started = calloc(1, sizeof *started + (size_t)o->ranks * sizeof *started->seats);
    if (!started) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", o->ranks);
    const bool processes = started->processes = !backend->one_process;
    const cot_fabric_group_options options = {.ranks = o->ranks,
                                              .heap_bytes = o->heap_bytes,
                                              .running = o->threads < o->ranks ? o->threads : o->ranks,
                                              .timeout_ns = o->timeout_ns,
                                              .forked = processes};
    cot_status status = cot_fabric_group_open(&started->group, &options, error);
    if (status != COT_OK) {
        free(started);
        return status;
    }
    cot_fabric *root = *own = cot_fabric_group_rank(started->group, 0);
    if (processes) {
        started->group->root = getpid();
        atomic_store(&started->group->endpoints[0].part, COT_LIFE_RUNS);
    }
    for (started->count = 1; status == COT_OK && started->count < o->ranks;
         started->count += status == COT_OK) {
        struct seat *seat = &started->seats[started->count];
        *seat = (struct seat){.begin = begin,
                              .context = context,
                              .fabric = cot_fabric_group_rank(started->group, started->count)};
        status = start_rank(started, seat, error);
    }
    if (status == COT_OK && !begin_watch(started, error)) status = COT_OUT_OF_MEMORY;
    if (status == COT_OK) {
        *group = started;
        return COT_OK;
    }
    root->ops->fail(root);
    finish(started, false);
    return status;
}

const cot_fabric_backend cot_fabric_threads = {"threads", true, start, finish, false};
const cot_fabric_backend cot_fabric_processes = {"processes", false, start, finish, false};
