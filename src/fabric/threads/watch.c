/* Who of a group of processes lives, and what becomes of the others.
 *
 * Each process has a thread that wakes a few times a second, whatever the others of it are at, and raises its beats.
 *
 *     rank 0's looks at all children: whether their processes have ended (waitid), and whether their beats rise
 *     a child's looks at rank 0 alone: whether it is its parent still, and whether its beats rise
 *
 * So P processes look at 2 P others, and those that wait need not look. A process that was stopped does not beat; after the
 * group's time-out it is given up. Time counts as it was watched: a watcher that was stopped itself, as all are by Ctrl-Z,
 * does not hold it against the others.
 *
 * A process that learns of a failure ends by the error of whatever it waits for. A child that does not come to that soon, as
 * it is computing, is ended here; so are all children at once when rank 0 is gone, for whom there is nobody left to tell. One
 * of them says it in its place. */
#include "fabric/threads/watch.h"

#include "base/clock.h"
#include "base/thread.h"
#include "fabric/posts.h"
#include "fabric/threads/state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int64_t longest_period_ns = 500000000, shortest_ending_ns = 250000000,
                     longest_ending_ns = 1000000000;

int64_t cot_watch_ending_ns(int64_t timeout_ns)
{
    const int64_t half_ns = timeout_ns / 2;
    return half_ns < shortest_ending_ns  ? shortest_ending_ns
           : half_ns > longest_ending_ns ? longest_ending_ns
                                         : half_ns;
}

void cot_watch_beat(cot_fabric_group *group, int rank)
{
    atomic_fetch_add(&group->endpoints[rank].beats, 1);
}

static int64_t timeout_of(const cot_watch *watch)
{
    return watch->group->endpoints[watch->rank].fabric.timeout_ns;
}

/* ---- looks ---- */

/* Whether a rank is to be given up: its beats have not risen for the time-out. passed_ns: since the look before. */
static bool is_silent(cot_watch *watch, int rank, int64_t passed_ns)
{
    struct endpoint *other = &watch->group->endpoints[rank];
    const uint64_t beats = atomic_load(&other->beats);
    if (atomic_load(&other->part) != COT_LIFE_RUNS) return false;
    watch->quiet_ns[rank] = beats == watch->seen[rank] ? watch->quiet_ns[rank] + passed_ns : 0;
    watch->seen[rank] = beats;
    atomic_store(&other->quiet_ns, watch->quiet_ns[rank]);
    return watch->quiet_ns[rank] >= timeout_of(watch);
}

/* How a child's process has ended, where it is over though its part was not: a signal, or COT_DEATH_OTHER; 0 where it is not so. It is
 * left for finish to reap. */
static int end_of(struct endpoint *child)
{
    const pid_t process = atomic_load(&child->process);
    siginfo_t info = {0};
    if (!process) return 0;
    const bool known = waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    if ((known && !info.si_pid) || (!known && errno != ECHILD)) return 0;
    if (atomic_load(&child->part) != COT_LIFE_RUNS) return 0;
    const bool killed = known && (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED);
    return killed ? info.si_status : COT_DEATH_OTHER;
}

static void look_for_end(cot_watch *watch, int rank)
{
    struct endpoint *child = &watch->group->endpoints[rank];
    const int how = atomic_load(&child->ended) ? 0 : end_of(child);
    if (!how) return;
    atomic_store(&child->ended, how);
    cot_fabric_group_failed(watch->group, rank, false);
}

int cot_watch_lost(cot_fabric_group *group)
{
    for (int rank = 1; rank < group->ranks && group->root == getpid(); rank++)
        if (end_of(&group->endpoints[rank])) return 1 + rank;
    return 0;
}

/* Whether somebody asked all processes of the group to end, which children leave to rank 0. */
static bool was_asked_to_end(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGINT) || sigismember(&pending, SIGTERM));
}

static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER; // among the threads of this process

void cot_watch_end_process(int status)
{
    pthread_mutex_lock(&telling);
    _exit(status);
}

void cot_watch_tell_of_root(cot_fabric_group *group, int rank, int death)
{
    cot_error error;
    pthread_mutex_lock(&telling);
    if (!was_asked_to_end() && !atomic_flag_test_and_set(&group->told)) {
        cot_blame_as_posted(&group->endpoints[rank].fabric, 0, death, &error);
        dprintf(STDERR_FILENO, "coterie: %s\n", error.message);
    }
    pthread_mutex_unlock(&telling);
}

/* Said before anybody else learns of it, who might end this process before it is said. */
static _Noreturn void end_without_root(const cot_watch *watch, int death)
{
    cot_watch_tell_of_root(watch->group, watch->rank, death);
    cot_fabric_group_failed(watch->group, 0, death == COT_DEATH_MUTE);
    cot_watch_end_process(1);
}

static void look_at_root(cot_watch *watch, int64_t now_ns, int64_t passed_ns)
{
    cot_fabric *own = &watch->group->endpoints[watch->rank].fabric;
    const int failed = own->ops->failed(own);
    if (getppid() != watch->group->root) end_without_root(watch, COT_DEATH_OTHER);
    if (is_silent(watch, 0, passed_ns)) end_without_root(watch, COT_DEATH_MUTE);
    if (!failed) return;
    if (!watch->failed_ns) watch->failed_ns = now_ns;
    if (now_ns - watch->failed_ns < cot_watch_ending_ns(own->timeout_ns)) return;
    cot_watch_end_process(1);
}

static void look_at_children(cot_watch *watch, int64_t passed_ns)
{
    for (int rank = 1; rank < watch->group->ranks; rank++) {
        look_for_end(watch, rank);
        if (is_silent(watch, rank, passed_ns)) cot_fabric_group_failed(watch->group, rank, true);
    }
}

/* ---- the thread ---- */

/* Sleeps for a period. Whether the watch is over. */
static bool is_over(cot_watch *watch)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t until_ns = until.tv_nsec + watch->period_ns;
    until.tv_sec += until_ns / 1000000000;
    until.tv_nsec = until_ns % 1000000000;
    int late;
    while ((late = sem_clockwait(&watch->over, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR) continue;
    return !late;
}

static void *run(void *argument)
{
    cot_watch *watch = argument;
    for (watch->looked_ns = cot_now_ns();;) {
        cot_watch_beat(watch->group, watch->rank);
        if (is_over(watch)) return NULL;
        const int64_t now_ns = cot_now_ns(), since_ns = now_ns - watch->looked_ns,
                      most_ns = 2 * watch->period_ns, passed_ns = since_ns < most_ns ? since_ns : most_ns;
        watch->looked_ns = now_ns;
        if (watch->rank)
            look_at_root(watch, now_ns, passed_ns);
        else
            look_at_children(watch, passed_ns);
    }
}

bool cot_watch_begin(cot_watch *watch, cot_fabric_group *group, int rank)
{
    *watch = (cot_watch){.group = group, .rank = rank};
    const int64_t period_ns = timeout_of(watch) / 8;
    watch->period_ns = period_ns < longest_period_ns ? period_ns : longest_period_ns;
    sem_init(&watch->over, 0, 0);
    return watch->runs = cot_thread_start(&watch->thread, run, watch);
}

void cot_watch_end(cot_watch *watch)
{
    if (!watch->runs) return;
    sem_post(&watch->over);
    pthread_join(watch->thread, NULL);
    sem_destroy(&watch->over);
    watch->runs = false;
}
