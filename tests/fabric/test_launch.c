/* The launch: what a rank is given, what rank 0 is told, and who notices that another has ended. */
#include "harness/cmocka.h"
#include "harness/fabric/job.h"
#include "harness/fabric/launched.h"

#include "base/clock.h"
#include "base/error.h"
#include "fabric/reports.h"
#include "fabric/threads/threads.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const cot_fabric_backend *backend; // that the tests of this run are of

static void the_names_find_their_backends(void **state)
{
    (void)state;
    const char *const *names = cot_fabric_backend_names();
    assert_string_equal(names[0], "threads");
    assert_ptr_equal(cot_fabric_backend_find(NULL), cot_fabric_backend_find(names[0]));
    for (; *names; names++) assert_string_equal(cot_fabric_backend_find(*names)->name, *names);
    assert_null(cot_fabric_backend_find("thread"));
    assert_null(cot_fabric_backend_find(""));
}

/* A process that nobody has started beside others is no rank of theirs. */
static void what_comes_from_outside_is_not_made_here(void **state)
{
    (void)state;
    if (cot_launch_started().ranks) return;
    cot_launch_options options = launch_options_of(1, NULL);
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    assert_int_equal(cot_launch_open(&launch, &root, cot_fabric_backend_find("shmem"), &options, &error),
                     COT_INVALID_ARGUMENT);
    assert_string_equal(error.message,
                        "ranks over OpenSHMEM are started from outside: oshrun -np 4 coterie ...");
    assert_null(launch);
}

static void bad_numbers_are_refused(void **state)
{
    (void)state;
    const int ranks[] = {0, 65, 1, 2}, threads[] = {1, 1, 0, 1};
    for (int i = 0; i < 4; i++) {
        cot_launch_options options = launch_options_of(ranks[i], NULL);
        options.threads = threads[i];
        if (i == 3) options.timeout_ns = 0;
        cot_launch *launch = (void *)&options;
        const cot_rank *root;
        cot_error error = {0};
        assert_int_equal(cot_launch_open(&launch, &root, backend, &options, &error), COT_INVALID_ARGUMENT);
        assert_null(launch);
        assert_int_equal(error.status, COT_INVALID_ARGUMENT);
    }
    cot_launch_close(NULL);
}

/* ---- what a rank is given ---- */

struct given {
    int number;
    char text[16];
};

static atomic_int shared_by;

/* Whether so many threads can be in a loop of the pool at once: they wait for each other in it. */
struct meeting {
    atomic_int arrived;
    int expected;
    int64_t patience_us;
};

static void meet(void *context, int64_t i)
{
    (void)i;
    struct meeting *m = context;
    atomic_fetch_add(&m->arrived, 1);
    for (int64_t us = 0; us < m->patience_us && atomic_load(&m->arrived) < m->expected; us += 100)
        sleep_us(100);
    if (atomic_load(&m->arrived) < m->expected) atomic_store(&m->arrived, -m->expected);
}

static bool can_meet(cot_pool *pool, int threads, int64_t patience_us)
{
    struct meeting m = {.expected = threads, .patience_us = patience_us};
    cot_pool_run(pool, threads, meet, &m);
    return atomic_load(&m.arrived) == threads;
}

/* The helpers of seven threads, laid out by hand. */
static int helpers_of(int ranks, int rank)
{
    static const int shares[6][5] = {[1] = {6}, [3] = {1, 1, 2}, [5] = {0, 0, 1, 0, 1}};
    return backend->one_process ? 7 - ranks : shares[ranks][rank];
}

static cot_status look_at(const cot_rank *rank, cot_error *error)
{
    const struct given *given = rank->argument;
    const bool one_process = backend->one_process, root = rank->fabric->rank == 0;
    if (given->number != 42 || strcmp(given->text, "hello"))
        return cot_fail(error, COT_MALFORMED, "argument");
    if (rank->first != (root || !one_process)) return cot_fail(error, COT_MALFORMED, "first");
    if (rank->shared != (root || one_process ? (void *)&shared_by : NULL))
        return cot_fail(error, COT_MALFORMED, "shared");
    if (!rank->pool) return cot_fail(error, COT_MALFORMED, "pool");
    const int threads = helpers_of(rank->fabric->ranks, rank->fabric->rank) + 1;
    if (rank->first &&
        (!can_meet(rank->pool, threads, 50000000) || can_meet(rank->pool, threads + 1, 100000)))
        return cot_fail(error, COT_MALFORMED, "pool of %d threads", threads);
    if (rank->shared) atomic_fetch_add((atomic_int *)rank->shared, 1);
    return COT_OK;
}

static void report_look(const cot_rank *rank)
{
    cot_reports reports;
    cot_error error = {0};
    if (cot_reports_open(&reports, rank->fabric, &error) == COT_OK)
        cot_reports_send(&reports, 1, look_at(rank, &error), &error);
}

static void each_rank_gets_what_it_may_share(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks += 2) {
        const struct given given = {42, "hello"};
        cot_launch_options options = launch_options_of(ranks, report_look);
        options.threads = 7;
        options.argument = &given;
        options.shared = &shared_by;
        atomic_store(&shared_by, 0);
        cot_launch *launch;
        const cot_rank *root = must_launch(&launch, backend, &options);
        cot_reports reports;
        cot_error error = {0};
        assert_int_equal(cot_reports_open(&reports, root->fabric, &error), COT_OK);
        const cot_status own = look_at(root, &error);
        if (cot_reports_collect(&reports, 1, own, &error) != COT_OK) fail_msg("%s", error.message);
        cot_launch_close(launch);
        assert_int_equal(atomic_load(&shared_by), backend->one_process ? ranks : 1);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
    }
}

/* ---- reports ---- */

/* Rank 1 sees that another failed, rank 2 knows why, rank 3 went well. */
static void report_failures(const cot_rank *rank)
{
    const cot_status statuses[] = {COT_OK, COT_PEER_FAILED, COT_TOO_LONG, COT_OK};
    const int own = rank->fabric->rank;
    cot_reports reports;
    cot_error error = {0};
    if (cot_reports_open(&reports, rank->fabric, NULL) != COT_OK) return;
    if (own == 2) sleep_us(50000);
    if (statuses[own] != COT_OK) cot_fail(&error, statuses[own], "rank %d's word", own);
    cot_reports_send(&reports, 1, COT_OK, NULL);
    if (own == 1 && *(const int *)rank->argument) (rank->fabric->ops->fail)(rank->fabric);
    cot_reports_send(&reports, 2, statuses[own], &error);
}

static void the_reason_comes_before_its_echo(void **state)
{
    (void)state;
    for (int own_failed = 0; own_failed < 2; own_failed++) {
        cot_launch_options options = launch_options_of(4, report_failures);
        options.argument = &own_failed;
        cot_launch *launch;
        const cot_rank *root = must_launch(&launch, backend, &options);
        cot_reports reports;
        cot_error error = {0};
        assert_int_equal(cot_reports_open(&reports, root->fabric, &error), COT_OK);
        const cot_status own = own_failed ? COT_PEER_FAILED : COT_OK;
        assert_int_equal(cot_reports_collect(&reports, 2, own, &error), COT_TOO_LONG);
        assert_string_equal(error.message, "rank 2's word");
        assert_int_equal(cot_reports_collect(&reports, 1, COT_IO, &error), COT_IO); // the own word counts
        cot_launch_close(launch);
    }
}

/* ---- ends ---- */

struct ends {
    int victim, signal, threads;
    bool patient;
};

/* Begins to compute and is killed (signal 0: exits) before its main is over. */
static void end_as(const struct ends *ends, cot_fabric *fabric)
{
    cot_turns_enter(fabric);
    sleep_us(50000);
    if (ends->signal) raise(ends->signal);
    _exit(0);
}

/* All others wait for a word from their right neighbour, and tell rank 0 what becomes of it. */
static cot_status wait_in_vain(const struct ends *ends, cot_fabric *fabric, cot_sym signal, cot_error *error)
{
    cot_turns_enter(fabric);
    const cot_status status = (ends->patient ? cot_wait_patiently : cot_wait)(
        fabric, signal, 1, (fabric->rank + 1) % fabric->ranks, COT_PHASE_CONTROL, error);
    cot_turns_leave(fabric);
    return status;
}

struct vain {
    cot_sym signal, errors, told;
};

static void open_vain(struct vain *vain, cot_fabric *fabric)
{
    if (cot_alloc(fabric, &vain->signal, 8, NULL) != COT_OK ||
        cot_alloc(fabric, &vain->errors, 8 * sizeof(cot_error), NULL) != COT_OK ||
        cot_alloc(fabric, &vain->told, 8 * 8, NULL) != COT_OK)
        abort();
}

static void wait_or_end(const cot_rank *rank)
{
    const struct ends *ends = rank->argument;
    const cot_sym own = (cot_sym)rank->fabric->rank;
    struct vain vain;
    cot_error error = {0};
    open_vain(&vain, rank->fabric);
    if (rank->fabric->rank == ends->victim) end_as(ends, rank->fabric);
    wait_in_vain(ends, rank->fabric, vain.signal, &error);
    cot_put_signal(rank->fabric, 0, vain.errors + own * sizeof error, &error, sizeof error,
                   vain.told + own * 8, 1, COT_PHASE_CONTROL);
}

static void assert_death_is_told(const cot_error *error, const struct ends *ends, int rank)
{
    char how[40] = "ended", want[100];
    if (ends->signal) snprintf(how, sizeof how, "was killed by signal %d", ends->signal);
    snprintf(want, sizeof want, "rank %d %s while rank %d waited in 'control'", ends->victim, how, rank);
    assert_int_equal(error->status, COT_PEER_FAILED);
    assert_string_equal(error->message, want);
}

/* Also by ranks that wait for another, or for the turn that the dead one has. */
static void a_death_is_noticed_by_all(void **state)
{
    (void)state;
    if (backend->one_process) skip();
    static const struct ends cases[] = {
        {2, SIGKILL, 4, false}, {2, SIGKILL, 4, true}, {3, SIGABRT, 1, false}, {1, 0, 2, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_launch_options options = launch_options_of(4, wait_or_end);
        options.argument = &cases[i];
        options.threads = cases[i].threads;
        cot_launch *launch;
        cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
        struct vain vain;
        cot_error error = {0};
        open_vain(&vain, fabric);
        const int64_t since_ns = fabric->ops->now_ns(fabric);
        assert_int_equal(wait_in_vain(&cases[i], fabric, vain.signal, &error), COT_PEER_FAILED);
        assert_death_is_told(&error, &cases[i], 0);
        for (int rank = 1; rank < 4; rank++) {
            if (rank == cases[i].victim) continue;
            while (!cot_signal_load(fabric, vain.told + (cot_sym)rank * 8)) {
                assert_true(fabric->ops->now_ns(fabric) - since_ns < launch_timeout_ns / 4);
                sleep_us(100);
            }
            assert_death_is_told((cot_error *)cot_local(fabric, vain.errors) + rank, &cases[i], rank);
        }
        cot_launch_close(launch);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0);
    }
}

static void end_or_speak_late(const cot_rank *rank)
{
    cot_sym signal;
    if (rank->fabric->rank == 1 || cot_alloc(rank->fabric, &signal, 8, NULL) != COT_OK) return;
    sleep_us(2200000); // two looks
    cot_put_signal(rank->fabric, 0, 0, NULL, 0, signal, 1, COT_PHASE_CONTROL);
}

static void a_rank_that_is_done_has_not_died(void **state)
{
    (void)state;
    const cot_launch_options options = launch_options_of(3, end_or_speak_late);
    cot_launch *launch;
    const cot_rank *root = must_launch(&launch, backend, &options);
    cot_sym signal;
    cot_error error = {0};
    assert_int_equal(cot_alloc(root->fabric, &signal, 8, NULL), COT_OK);
    if (cot_wait(root->fabric, signal, 1, 1, COT_PHASE_CONTROL, &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_launch_close(launch);
}

static int forks_left = -1;
static int forks_die; // SIGKILL, SIGSTOP: by that signal
pid_t __real_fork(void);
pid_t __wrap_fork(void);

pid_t __wrap_fork(void)
{
    if (forks_left--) return __real_fork();
    const pid_t child = forks_die ? __real_fork() : -1;
    if (!child && forks_die > 1) raise(forks_die);
    if (!child) _exit(1);
    return child;
}

static void wait_for_root(const cot_rank *rank)
{
    cot_sym signal;
    if (cot_alloc(rank->fabric, &signal, 8, NULL) != COT_OK) return;
    cot_wait_patiently(rank->fabric, signal, 1, 0, COT_PHASE_CONTROL, NULL);
}

/* The fourth rank cannot be had, dies or is stopped before it begins: the others end, and nothing is left. Who does not begin
 * has the whole time-out. */
static void a_rank_that_cannot_start_fails_the_launch(void **state)
{
    (void)state;
    if (backend->one_process) skip();
    cot_launch_options options = launch_options_of(4, wait_for_root);
    static const struct {
        int dies; // SIGKILL, SIGSTOP: by that signal
        cot_status status;
        const char *message;
    } ways[] = {{0, COT_OUT_OF_MEMORY, "cannot start rank 3 of 4: Resource temporarily unavailable"},
                {1, COT_OUT_OF_MEMORY, "cannot start rank 3 of 4: its process ended at once"},
                {SIGKILL, COT_PEER_FAILED, "rank 3 was killed by signal 9 as it began"},
                {SIGSTOP, COT_TIMED_OUT, "rank 3 did not begin within 0.4 s"}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        cot_launch *launch = (void *)&forks_left;
        const cot_rank *root;
        cot_error error = {0};
        forks_left = 2;
        forks_die = ways[w].dies;
        errno = EAGAIN;
        if (ways[w].status == COT_TIMED_OUT) options.timeout_ns = 400000000;
        const int64_t since_ns = cot_now_ns();
        assert_int_equal(cot_launch_open(&launch, &root, backend, &options, &error), ways[w].status);
        if (ways[w].status == COT_TIMED_OUT) assert_true(cot_now_ns() - since_ns >= options.timeout_ns);
        forks_left = -1;
        assert_null(launch);
        assert_string_equal(error.message, ways[w].message);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0);
    }
}

static bool pools_fail;
cot_status __real_cot_pool_open(cot_pool **pool, int workers, cot_error *error);
cot_status __wrap_cot_pool_open(cot_pool **pool, int workers, cot_error *error);

cot_status __wrap_cot_pool_open(cot_pool **pool, int workers, cot_error *error)
{
    if (!pools_fail) return __real_cot_pool_open(pool, workers, error);
    *pool = NULL;
    return cot_fail(error, COT_OUT_OF_MEMORY, "no threads");
}

/* Rank 0 cannot have its threads; ranks in processes of their own have begun by then, and end. */
static void a_launch_without_threads_fails(void **state)
{
    (void)state;
    const cot_launch_options options = launch_options_of(3, wait_for_root);
    cot_launch *launch = (void *)&options;
    const cot_rank *root;
    cot_error error = {0};
    pools_fail = true;
    assert_int_equal(cot_launch_open(&launch, &root, backend, &options, &error), COT_OUT_OF_MEMORY);
    pools_fail = false;
    assert_null(launch);
    assert_string_equal(error.message, "no threads");
    assert_true(waitpid(-1, NULL, WNOHANG) < 0);
}

static void sleep_long(const cot_rank *rank)
{
    (void)rank;
    sleep_us(60000000);
}

/* Rank 0 is killed: its children do not stay behind, whether they wait for it or for nothing. */
static void orphans_end(void **state)
{
    (void)state;
    if (backend->one_process) skip();
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    for (int way = 0; way < 2; way++) {
        fflush(NULL);
        const pid_t root = fork();
        assert_true(root >= 0);
        if (!root) {
            const cot_launch_options options = launch_options_of(3, way ? sleep_long : wait_for_root);
            cot_launch *launch;
            must_launch(&launch, backend, &options);
            raise(SIGKILL);
        }
        int ended = 0;
        alarm(20); // before either would end by itself
        while (wait(NULL) > 0) ended++;
        alarm(0);
        assert_int_equal(ended, 3);
    }
}

/* ---- stopped, or idle ---- */

static void stop_or_wait(const cot_rank *rank)
{
    if (rank->fabric->rank == *(const int *)rank->argument) raise(SIGSTOP);
    wait_for_root(rank);
}

/* While all are idle, rank 0 outside of any call; it is killed in the end. */
static void a_stopped_rank_is_noticed(void **state)
{
    (void)state;
    if (backend->one_process) skip();
    for (int victim = 1; victim < 4; victim++) {
        cot_launch_options options = launch_options_of(4, stop_or_wait);
        options.argument = &victim;
        options.timeout_ns = 800000000;
        cot_launch *launch;
        cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
        char want[100];
        cot_error error = {0};
        while (cot_fabric_check(fabric, &error) == COT_OK) sleep_us(1000);
        snprintf(want, sizeof want, "rank %d did not answer within 0.8 s", victim);
        assert_string_equal(error.message, want);
        assert_int_equal(error.status, COT_TIMED_OUT);
        assert_int_equal(fabric->ops->death(fabric, victim), COT_DEATH_MUTE);
        cot_launch_close(launch);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0);
    }
}

static void end_at_once(const cot_rank *rank)
{
    (void)rank;
}

/* Its beats rise no more. */
static void a_rank_that_is_done_is_not_missed(void **state)
{
    (void)state;
    cot_launch_options options = launch_options_of(2, end_at_once);
    options.timeout_ns = 400000000;
    cot_launch *launch;
    cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
    cot_error error = {0};
    sleep_us(2 * options.timeout_ns / 1000);
    if (cot_fabric_check(fabric, &error) != COT_OK) fail_msg("%s", error.message);
    cot_launch_close(launch);
}

/* Rank 0's process, in a child of the test: launches three others and is stopped or killed. */
static _Noreturn void be_root(int pipe_end, int way)
{
    dup2(pipe_end, STDERR_FILENO);
    close(pipe_end);
    cot_launch_options options = launch_options_of(4, wait_for_root);
    options.timeout_ns = 800000000;
    cot_launch *launch;
    cot_fabric *fabric = must_launch(&launch, backend, &options)->fabric;
    if (way == 2) { // all are asked to end, as by Ctrl-C, which rank 0 does
        signal(SIGINT, SIG_IGN);
        kill(0, SIGINT);
    }
    raise(way ? SIGKILL : SIGSTOP);
    cot_error error;
    while (cot_fabric_check(fabric, &error) == COT_OK) sleep_us(1000);
    cot_launch_close(launch);
    _exit(strcmp(error.message, "rank 0 was given up by the others: it did not answer within 0.8 s") ? 1
                                                                                                     : 42);
}

/* One of the others says it, once. */
static void a_root_that_is_gone_is_told_of(void **state)
{
    (void)state;
    if (backend->one_process) skip();
    static const char *const want[] = {"coterie: rank 0 did not answer in 'control' within 0.8 s\n",
                                       "coterie: rank 0 ended while rank R waited in 'control'\n", ""};
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    for (int way = 0; way < 3; way++) {
        int ends[2], status;
        char said[500] = "", *at = said;
        assert_int_equal(pipe(ends), 0);
        fflush(NULL);
        const pid_t root = fork();
        assert_true(root >= 0);
        if (!root) {
            setpgid(0, 0);
            close(ends[0]);
            be_root(ends[1], way);
        }
        close(ends[1]);
        assert_int_equal(waitpid(root, &status, WUNTRACED), root);
        if (!way) { // it is told of before it goes on
            assert_true(WIFSTOPPED(status));
            at += read(ends[0], at, sizeof said - 1);
            assert_true(at > said);
            kill(root, SIGCONT);
            assert_int_equal(waitpid(root, &status, 0), root);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
        }
        for (ssize_t more; (more = read(ends[0], at, (size_t)(said + sizeof said - 1 - at))) > 0;) at += more;
        close(ends[0]);
        *at = 0;
        char *number = strstr(said, "while rank ");
        if (number) number[11] = 'R';
        assert_string_equal(said, want[way]);
        while (wait(NULL) > 0) continue; // orphans, which have ended
    }
}

/* ---- a group that was started from outside ---- */

enum { OUTSIDE_RANKS = 3 };
static cot_fabric_group *outside_group; // mapped before its processes are there
static int outside_rank;

static cot_status join_outside(const cot_fabric_backend *self, void **group, cot_fabric **own,
                               const cot_launch_options *options, cot_rank_begin *begin, void *context,
                               cot_error *error)
{
    (void)self, (void)begin, (void)context, (void)error;
    assert_int_equal(options->ranks, OUTSIDE_RANKS);
    *group = outside_group;
    *own = cot_fabric_group_rank(outside_group, outside_rank);
    return COT_OK;
}

static void leave_outside(void *group, bool copy)
{
    (void)copy;
    cot_fabric_group_close(group);
}

static const cot_fabric_backend outside = {"outside", false, join_outside, leave_outside, false};

static bool gather_body(cot_fabric *fabric, const group_job *job)
{
    cot_sym signals;
    CHECK(job->seed == 1000, "seed %d", (int)job->seed);
    CHECK(!cot_alloc(fabric, &signals, OUTSIDE_RANKS * 8, NULL), "memory");
    for (int to = 0; to < fabric->ranks; to++)
        cot_put_signal(fabric, to, 0, NULL, 0, signals + (cot_sym)fabric->rank * 8, 1, COT_PHASE_DISPATCH);
    for (int from = 0; from < fabric->ranks; from++)
        CHECK(!cot_wait(fabric, signals + (cot_sym)from * 8, 1, from, COT_PHASE_DISPATCH, NULL), "wait");
    return true;
}

/* Every process makes the same call; those that are not rank 0 come back from it with SERVED. */
static void processes_started_from_outside_make_one_call(void **state)
{
    (void)state;
    const cot_fabric_group_options group = {.ranks = OUTSIDE_RANKS,
                                            .heap_bytes = HARNESS_BYTES + 4096,
                                            .running = OUTSIDE_RANKS,
                                            .timeout_ns = launch_timeout_ns,
                                            .forked = true};
    assert_int_equal(cot_fabric_group_open(&outside_group, &group, NULL), COT_OK);
    fflush(NULL);
    pid_t processes[OUTSIDE_RANKS] = {0};
    for (int r = 1; r < OUTSIDE_RANKS; r++)
        if (!(processes[r] = fork())) {
            outside_rank = r;
            break;
        }
    const group_job job = {.backend = &outside,
                           .ranks = OUTSIDE_RANKS,
                           .running = OUTSIDE_RANKS,
                           .timeout_ns = launch_timeout_ns,
                           .seed = 1000 + (uint64_t)outside_rank,
                           .body = gather_body};
    cot_traffic totals[COT_PHASES];
    const bool root = run_job(&job, totals);
    if (outside_rank) _exit(root ? 1 : 42);
    assert_true(root);
    assert_int_equal(totals[COT_PHASE_DISPATCH].messages, OUTSIDE_RANKS * (OUTSIDE_RANKS - 1));
    for (int r = 1; r < OUTSIDE_RANKS; r++) {
        int status;
        assert_int_equal(waitpid(processes[r], &status, 0), processes[r]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    }
}

/* Looked at again and again it costs no file that stays open; who was waited for has no state. */
static void a_process_tells_its_state(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (!child) _exit(0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    const int before = dup(STDERR_FILENO);
    close(before);
    assert_int_equal(cot_launch_process_state(child), 0);
    assert_int_equal(cot_launch_process_state(getpid()), 'R');
    const int after = dup(STDERR_FILENO);
    close(after);
    assert_int_equal(after, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_tells_its_state),
        cmocka_unit_test(the_names_find_their_backends),
        cmocka_unit_test(what_comes_from_outside_is_not_made_here),
        cmocka_unit_test(bad_numbers_are_refused),
        cmocka_unit_test(each_rank_gets_what_it_may_share),
        cmocka_unit_test(the_reason_comes_before_its_echo),
        cmocka_unit_test(a_death_is_noticed_by_all),
        cmocka_unit_test(a_rank_that_is_done_has_not_died),
        cmocka_unit_test(a_rank_that_cannot_start_fails_the_launch),
        cmocka_unit_test(a_launch_without_threads_fails),
        cmocka_unit_test(orphans_end),
        cmocka_unit_test(a_stopped_rank_is_noticed),
        cmocka_unit_test(a_rank_that_is_done_is_not_missed),
        cmocka_unit_test(a_root_that_is_gone_is_told_of),
        cmocka_unit_test(processes_started_from_outside_make_one_call),
    };
    int failed = 0;
    for (const char *const *name = cot_fabric_backend_names(); *name; name++) {
        backend = cot_fabric_backend_find(*name);
        if (!backend->from_outside) failed += cmocka_run_group_tests_name(*name, tests, NULL, NULL);
    }
    return failed;
}
