/* Groups that do nothing: stopped as a whole, as by Ctrl-Z, and idle. */
#include "harness/cmocka.h"
#include "harness/fabric/job.h"
#include "harness/fabric/launched.h"

#include "fabric/threads/state.h"
#include "fabric/threads/threads.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const cot_fabric_backend *backend; // that the tests of this run are of

/* ---- all stopped, as by Ctrl-Z ---- */

static const int64_t pause_timeout_ns = 1200000000;
static atomic_int *heard; // [ways] 1 + what rank 1's wait came to; in memory that all processes share

static void hear_of_root(const cot_rank *rank)
{
    const int way = *(const int *)rank->argument;
    cot_sym signal;
    if (cot_alloc(rank->fabric, &signal, 8, NULL) != COT_OK) return;
    atomic_store(&heard[way],
                 1 + (int)cot_wait_patiently(rank->fabric, signal, 1, 0, COT_PHASE_CONTROL, NULL));
}

static void await_change(const _Atomic int64_t *word, int64_t before)
{
    while (atomic_load(word) == before) sleep_us(1000);
}

/* In a process beside rank 0's and its child's: stops one of the two, and the other when it has missed it once; lets that one go on
 * long after and look again, and only then the first. */
static _Noreturn void stop_both(cot_fabric_group *group, int first, bool watched)
{
    struct endpoint *endpoints = group->endpoints;
    const pid_t processes[] = {group->root, endpoints[1].process};
    const int second = 1 - first;
    alarm(60);
    if (!watched) sleep_us(20000); // until rank 0 waits for its child's end
    kill(processes[first], SIGSTOP);
    await_change(&endpoints[first].quiet_ns, 0);
    kill(processes[second], SIGSTOP);
    sleep_us(17 * pause_timeout_ns / 10000);
    const int64_t before_ns = atomic_load(&endpoints[first].quiet_ns);
    kill(processes[second], SIGCONT);
    await_change(&endpoints[first].quiet_ns, before_ns);
    const bool failed = atomic_load(&group->failed);
    kill(processes[first], SIGCONT);
    cot_put_signal(&endpoints[0].fabric, 1, 0, NULL, 0, 0, 1, COT_PHASE_CONTROL);
    cot_rouse(&endpoints[0].fabric, 1);
    _exit(failed);
}

/* way 0: rank 0 watches its child; 1: the child rank 0; 2: rank 0 waits for its child's end. Whether nobody was blamed. */
static bool pause_group(int way)
{
    cot_launch_options options = launch_options_of(2, hear_of_root);
    options.timeout_ns = pause_timeout_ns;
    options.argument = &way;
    cot_launch *launch;
    cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
    cot_sym signal;
    cot_error error = {0};
    if (cot_alloc(fabric, &signal, 8, NULL) != COT_OK || signal != 0) return false;
    const pid_t stopper = fork();
    int blamed = 0;
    if (!stopper) stop_both(((struct endpoint *)fabric)->group, way == 1 ? 0 : 1, way < 2);
    if (way < 2) waitpid(stopper, &blamed, 0);
    const cot_status status = cot_fabric_check(fabric, &error);
    if (status != COT_OK) fprintf(stderr, "way %d: %s\n", way, error.message);
    cot_launch_close(launch);
    if (way == 2) waitpid(stopper, &blamed, 0);
    return status == COT_OK && !blamed;
}

static void a_pause_of_all_blames_nobody(void **state)
{
    enum { WAYS = 3 };
    (void)state;
    if (backend->one_process) skip();
    pid_t roots[WAYS];
    heard = mmap(NULL, WAYS * sizeof *heard, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    assert_true(heard != MAP_FAILED);
    fflush(NULL);
    for (int way = 0; way < WAYS; way++) {
        roots[way] = fork();
        assert_true(roots[way] >= 0);
        if (!roots[way]) _exit(pause_group(way) ? 42 : 1);
    }
    for (int way = 0; way < WAYS; way++) {
        int status;
        assert_int_equal(waitpid(roots[way], &status, 0), roots[way]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 42 || atomic_load(&heard[way]) != 1 + COT_OK)
            fail_msg("way %d: status %x, rank 1 heard %d", way, (unsigned)status,
                     atomic_load(&heard[way]) - 1);
    }
    munmap(heard, WAYS * sizeof *heard);
}

enum { IDLE_RANKS = 16 };
struct idle_words {
    cot_sym asleep, go, slept, told;
};

static void open_idle(struct idle_words *w, cot_fabric *fabric)
{
    cot_sym *const words[] = {&w->asleep, &w->go, &w->slept, &w->told};
    for (int i = 0; i < 4; i++)
        if (cot_alloc(fabric, words[i], IDLE_RANKS * 8, NULL) != COT_OK) abort();
}

static void idle_and_tell(const cot_rank *rank)
{
    cot_fabric *fabric = rank->fabric;
    const cot_sym own = (cot_sym)fabric->rank * 8;
    struct idle_words w;
    open_idle(&w, fabric);
    cot_put_signal(fabric, 0, 0, NULL, 0, w.asleep + own, 1, COT_PHASE_CONTROL);
    if (cot_wait_patiently(fabric, w.go, 1, 0, COT_PHASE_CONTROL, NULL) != COT_OK) return;
    const uint64_t slept[2] = {fabric->slept, fabric->roused};
    cot_put(fabric, 0, w.slept + own, &slept[0], 8, COT_PHASE_CONTROL);
    cot_put_signal(fabric, 0, 0, NULL, 0, w.told + own, 1 + slept[1], COT_PHASE_CONTROL);
}

/* A rank that is idle wakes ever more seldom, and by being roused in the end. Its process' watcher wakes twice a second. */
static void an_idle_group_sleeps(void **state)
{
    (void)state;
    const cot_launch_options options = launch_options_of(IDLE_RANKS, idle_and_tell);
    cot_launch *launch;
    cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
    const struct endpoint *endpoints = (const struct endpoint *)fabric;
    const cot_fabric_group *group = endpoints->group;
    struct idle_words w;
    open_idle(&w, fabric);
    for (int r = 1; r < IDLE_RANKS; r++)
        while (!cot_signal_load(fabric, w.asleep + (cot_sym)r * 8)) sleep_us(100);
    const int64_t since_ns = fabric->ops->now_ns(fabric);
    uint64_t before[IDLE_RANKS];
    for (int r = 0; r < IDLE_RANKS; r++) before[r] = atomic_load(&group->endpoints[r].beats);
    sleep_us(1500000);
    uint64_t beats[IDLE_RANKS];
    for (int r = 0; r < IDLE_RANKS; r++) beats[r] = atomic_load(&group->endpoints[r].beats) - before[r];
    const double seconds = (double)(fabric->ops->now_ns(fabric) - since_ns) * 1e-9;
    for (int r = 0; r < IDLE_RANKS; r++) {
        assert_true((double)beats[r] <= 2 * seconds + 1);
        assert_int_equal(beats[r] > 0, !backend->one_process);
    }
    for (int r = 1; r < IDLE_RANKS; r++) {
        cot_put_signal(fabric, r, 0, NULL, 0, w.go, 1, COT_PHASE_CONTROL);
        cot_rouse(fabric, r);
    }
    int roused = 0;
    for (int r = 1; r < IDLE_RANKS; r++) {
        while (!cot_signal_load(fabric, w.told + (cot_sym)r * 8)) sleep_us(100);
        const uint64_t slept = *((const uint64_t *)cot_local(fabric, w.slept) + r);
        roused += cot_signal_load(fabric, w.told + (cot_sym)r * 8) > 1;
        assert_true(
            slept >= 1 &&
            slept <= 40); // half as long again each time, from 0.3 ms: 22 in 2 s, 37 in a quarter of an hour
    }
    assert_true(roused >= IDLE_RANKS / 2); // the others woke by themselves just then
    cot_launch_close(launch);
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pause_of_all_blames_nobody),
                                       cmocka_unit_test(an_idle_group_sleeps)};
    int failed = 0;
    for (const char *const *name = cot_fabric_backend_names(); *name; name++) {
        backend = cot_fabric_backend_find(*name);
        if (!backend->from_outside) failed += cmocka_run_group_tests_name(*name, tests, NULL, NULL);
    }
    return failed;
}
