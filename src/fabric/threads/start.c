/* Who runs the ranks of a group on one host, and who of them has died.
 *
 * Each process holds a lock on one byte of a file without a name. The system gives it up as the process ends, in
 * whatever way and before anybody reaps it; no fork inherits it, and every rank can ask for it. Signals at the
 * parent's death would not do: they come with the end of the thread that forked. */
#include "base/clock.h"
#include "base/error.h"
#include "fabric/threads/state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t look_after_ns = 1000000000;

enum { BEGINS, RUNS, ENDS }; // endpoint.part

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
    struct seat seats[];
};

/* ---- who lives ---- */

static struct flock life_of(int rank, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

/* This process runs that rank from now on. */
static bool begin_life(struct endpoint *self)
{
    struct flock lock = life_of(self->fabric.rank, F_WRLCK);
    if (fcntl(self->group->lives, F_SETLK, &lock) != 0) return false;
    atomic_store(&self->part, RUNS);
    return true;
}

static bool has_died(const cot_fabric_group *group, int rank)
{
    const atomic_int *part = &group->endpoints[rank].part;
    struct flock lock = life_of(rank, F_RDLCK);
    return atomic_load(part) == RUNS && fcntl(group->lives, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
           atomic_load(part) == RUNS;
}

void cot_fabric_group_look(cot_fabric *fabric)
{
    struct endpoint *self = endpoint_of(fabric);
    const int64_t now_ns = cot_now_ns();
    if (now_ns - atomic_load(&self->looked_ns) < look_after_ns) return;
    atomic_store(&self->looked_ns, now_ns);
    for (int rank = 0; rank < fabric->ranks; rank++) {
        int nobody = 0;
        if (rank != fabric->rank && has_died(self->group, rank))
            atomic_compare_exchange_strong(&self->group->failed, &nobody, rank + 1);
    }
}

/* In the process of rank 0, once a child has ended; with WNOHANG, if it has. */
static void reap(struct endpoint *child, int flags)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child->process, &status, flags)) < 0 && errno == EINTR) continue;
    if (!ended) return;
    child->process = 0;
    child->killed_by = ended > 0 && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

int cot_fabric_group_death(cot_fabric *fabric, int rank)
{
    cot_fabric_group *group = endpoint_of(fabric)->group;
    struct endpoint *other = &group->endpoints[rank];
    if (group->lives < 0 || rank == fabric->rank || !has_died(group, rank)) return 0;
    if (fabric->rank) return -1;
    if (other->process) reap(other, 0);
    return other->killed_by ? other->killed_by : -1;
}

/* A thread of every child: no rank outlives rank 0, whatever it is at. */
static void *end_with_root(void *group)
{
    struct flock lock = life_of(0, F_RDLCK);
    while (fcntl(((cot_fabric_group *)group)->lives, F_SETLKW, &lock) != 0)
        if (errno != EINTR) return NULL;
    _exit(1);
}

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
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
}

static _Noreturn void run_process(struct seat *seat)
{
    struct endpoint *self = endpoint_of(seat->fabric);
    pthread_t thread;
    leave_signals_to_root();
    if (!begin_life(self)) _exit(1);
    if (pthread_create(&thread, NULL, end_with_root, self->group) == 0) pthread_detach(thread);
    run_thread(seat);
    atomic_store(&self->part, ENDS);
    _exit(0);
}

static cot_status cannot_start(const struct seat *seat, const char *why, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot start rank %d of %d: %s", seat->fabric->rank,
                    seat->fabric->ranks, why);
}

static cot_status start_rank(const struct started *started, struct seat *seat, cot_error *error)
{
    if (!started->processes) {
        const int refused = pthread_create(&seat->thread, NULL, run_thread, seat);
        return refused ? cannot_start(seat, strerrordesc_np(refused), error) : COT_OK;
    }
    struct endpoint *child = endpoint_of(seat->fabric);
    const pid_t process = fork();
    if (process == 0) run_process(seat);
    if (process < 0) return cannot_start(seat, strerrordesc_np(errno), error);
    child->process = process; // the child sees this, too: the endpoints are in memory that it shares
    for (; atomic_load(&child->part) == BEGINS && child->process; sched_yield()) reap(child, WNOHANG);
    if (atomic_load(&child->part) != BEGINS) return COT_OK;
    if (!child->killed_by) return cannot_start(seat, "its process ended at once", error);
    return cot_fail(error, COT_PEER_FAILED, "rank %d was killed by signal %d as it began", seat->fabric->rank,
                    child->killed_by);
}

/* The file of the locks, and rank 0's own. */
static cot_status begin_lives(cot_fabric_group *group, cot_error *error)
{
    group->lives = memfd_create("coterie", MFD_CLOEXEC);
    if (group->lives >= 0 && begin_life(&group->endpoints[0])) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot watch over %d processes: %s", group->ranks,
                    strerrordesc_np(errno));
}

static void finish_rank(const struct started *started, const struct seat *seat)
{
    struct endpoint *child = endpoint_of(seat->fabric);
    if (!started->processes)
        pthread_join(seat->thread, NULL);
    else if (child->process)
        reap(child, 0);
}

static void finish(void *group, bool copy)
{
    struct started *started = group;
    for (int rank = 1; rank < started->count && !copy; rank++) finish_rank(started, &started->seats[rank]);
    if (started->group->lives >= 0) close(started->group->lives);
    cot_fabric_group_close(started->group);
    free(started);
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
    if (processes) status = begin_lives(started->group, error);
    for (started->count = 1; status == COT_OK && started->count < o->ranks;
         started->count += status == COT_OK) {
        struct seat *seat = &started->seats[started->count];
        *seat = (struct seat){.begin = begin,
                              .context = context,
                              .fabric = cot_fabric_group_rank(started->group, started->count)};
        status = start_rank(started, seat, error);
    }
    if (status == COT_OK) {
        *group = started;
        return COT_OK;
    }
    root->ops->fail(root);
    finish(started, false);
    return status;
}

const cot_fabric_backend cot_fabric_threads = {"threads", true, start, finish};
const cot_fabric_backend cot_fabric_processes = {"processes", false, start, finish};
