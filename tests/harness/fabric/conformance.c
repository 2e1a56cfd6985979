#include "harness/fabric/conformance.h"

#include "harness/cmocka.h"
#include "harness/fabric/calls.h"
#include "harness/seed.h"

#include "base/wait.h"
#include "fabric/turns.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Random calls: results, order of events, exact rows of traffic on every rank; the totals are the closed
 * forms. */
static void try_calls(const struct subject *subject, int ranks, int running, int calls, uint64_t seed)
{
    group_job job = {.backend = subject->backend,
                     .ranks = ranks,
                     .running = running,
                     .timeout_ns = PATIENT_NS,
                     .seed = seed,
                     .calls = calls};
    cot_collectives_options options;
    job.heap_bytes = calls_heap_bytes(&job, &options);
    job.body = calls_body;
    cot_traffic totals[COT_PHASES];
    job.link_bytes_per_s = subject->link_bytes_per_s;
    job.link_latency_ns = subject->link_latency_ns;
    if (!run_job(&job, totals)) return;
    uint64_t want[COT_PHASES] = {0};
    for (int k = 0; k < calls; k++) {
        const call c = draw_call(&job, k);
        want[c.phase] += closed_form(&job, &c);
    }
    want[COT_PHASE_CONTROL] +=
        ((uint64_t)ranks - 1) * (uint64_t)ranks * (uint64_t)calls * sizeof(moment); // the log
    for (int p = 0; p < COT_PHASES; p++) assert_int_equal(totals[p].bytes, want[p]);
}

static void check_calls(const struct subject *subject)
{
    const uint64_t seed = test_seed();
    for (int ranks = 1; ranks <= 9; ranks++) {
        const int running[] = {1, 2, ranks};
        for (int i = subject->brief ? ranks % 3 : 0; i < 3; i += subject->brief ? 3 : 1)
            try_calls(subject, ranks, running[i], 40, seed + (uint64_t)(ranks * 3 + i));
    }
    try_calls(subject, 16, 3, 30, seed + 101);
    if (subject->brief) return;
    try_calls(subject, 16, 16, 30, seed + 100);
    try_calls(subject, COT_MAX_RANKS, COT_MAX_RANKS, 12, seed + 102);
    try_calls(subject, COT_MAX_RANKS, 2, 12, seed + 103);
}

/* Whoever sees the signal sees the puts before it. Round by round rank r fills its right neighbour's block in
 * several puts, the last one with the signal, and goes on once that neighbour has looked. */
enum { WORDS = 300, ROUNDS = 1500 };

static bool litmus_body(cot_fabric *fabric, const group_job *job)
{
    const int ranks = fabric->ranks, right = (fabric->rank + 1) % ranks,
              left = (fabric->rank + ranks - 1) % ranks;
    cot_sym block, filled, looked;
    CHECK(!cot_alloc(fabric, &block, WORDS * sizeof(uint64_t), NULL) &&
              !cot_alloc(fabric, &filled, 8, NULL) && !cot_alloc(fabric, &looked, 8, NULL),
          "memory");
    const uint64_t *own = cot_local(fabric, block);
    cot_turns_enter(fabric);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t data[WORDS];
        for (uint64_t i = 0; i < WORDS; i++) data[i] = round * 1000 + i;
        const size_t parts[] = {0, draw_of_job(job, (int)round, 1, WORDS), WORDS - 1, WORDS};
        for (int p = 0; p < 2; p++) {
            const size_t from = p ? parts[1] : 0, to = p ? parts[2] : parts[1];
            cot_put(fabric, right, block + from * 8, data + from, (to - from) * 8, COT_PHASE_DISPATCH);
        }
        cot_put_signal(fabric, right, block + (WORDS - 1) * 8, data + WORDS - 1, 8, filled, round,
                       COT_PHASE_DISPATCH);
        memset(data, 0, sizeof data); // it may be reused at once
        cot_error error = {0};
        CHECK(!cot_wait(fabric, filled, round, left, COT_PHASE_DISPATCH, &error), "%s", error.message);
        CHECK(cot_signal_load(fabric, filled) == round, "load");
        for (uint64_t i = 0; i < WORDS; i++)
            CHECK(own[i] == round * 1000 + i, "round %llu, word %llu", (unsigned long long)round,
                  (unsigned long long)i);
        cot_put_signal(fabric, left, 0, NULL, 0, looked, round, COT_PHASE_COMBINE);
        CHECK(!cot_wait(fabric, looked, round, right, COT_PHASE_COMBINE, &error), "%s", error.message);
    }
    cot_turns_leave(fabric);
    const cot_traffic *sent = fabric->traffic[right], none = {0};
    const uint64_t times = ranks > 1 ? ROUNDS : 0;
    CHECK(sent[COT_PHASE_DISPATCH].bytes == times * WORDS * 8 &&
              sent[COT_PHASE_DISPATCH].messages == times * 3,
          "counters");
    CHECK(fabric->traffic[left][COT_PHASE_COMBINE].bytes == 0 &&
              fabric->traffic[left][COT_PHASE_COMBINE].messages == times,
          "counters");
    for (int p = 0; p < COT_PHASES; p++)
        CHECK(!memcmp(&fabric->traffic[fabric->rank][p], &none, sizeof none), "what stays is counted");
    return true;
}

static void check_litmus(const struct subject *subject)
{
    const int ranks[] = {1, 2, 5}, running[] = {1, 2, 2};
    for (int i = 0; i < 3; i++) {
        const group_job job = {.backend = subject->backend,
                               .ranks = ranks[i],
                               .running = running[i],
                               .heap_bytes = 1 << 16,
                               .timeout_ns = PATIENT_NS,
                               .seed = test_seed(),
                               .link_bytes_per_s = subject->link_bytes_per_s,
                               .link_latency_ns = subject->link_latency_ns,
                               .body = litmus_body};
        cot_traffic totals[COT_PHASES];
        run_job(&job, totals);
    }
}

static bool open_small(cot_collectives **collectives, cot_fabric *fabric)
{
    const cot_collectives_options options = {.reduce_elements = 1000};
    return !cot_collectives_open(collectives, fabric, &options, NULL);
}

const group_job *small_job(group_job *job, const struct subject *subject, int ranks, int running,
                           bool (*body)(cot_fabric *, const struct group_job *))
{
    *job = (group_job){.backend = subject->backend,
                       .ranks = ranks,
                       .running = running,
                       .heap_bytes = 1 << 16,
                       .timeout_ns = PATIENT_NS,
                       .link_bytes_per_s = subject->link_bytes_per_s,
                       .link_latency_ns = subject->link_latency_ns,
                       .body = body};
    return job;
}

/* Whether the error is such a sentence about a rank, which it calls by number and, where there are several, host. */
static bool tells(const cot_error *error, cot_fabric *fabric, int rank, const char *rest)
{
    char name[100];
    const char *host = fabric->ops->host ? fabric->ops->host(fabric, rank) : NULL;
    const int length = snprintf(name, sizeof name, "rank %d%s%s", rank, host ? " on " : "", host ? host : "");
    return !strncmp(error->message, name, (size_t)length) && !strcmp(error->message + length, rest);
}

/* Rank 2 begins and is never heard of again. It may take the only permit to run along: the others, who then wait for a turn
 * and for each other, know who has it. */
enum { LETS_GO, HOLDS_ON };

static bool silent_body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives *collectives;
    CHECK(open_small(&collectives, fabric), "memory");
    float x[1000] = {0};
    const int64_t since_ns = fabric->ops->now_ns(fabric);
    cot_turns_enter(fabric);
    if (fabric->rank != 2) {
        cot_error error = {0};
        const cot_status status = cot_allreduce(collectives, x, 1000, COT_F32, COT_PHASE_ATTENTION, &error);
        const int64_t waited_ns = fabric->ops->now_ns(fabric) - since_ns;
        CHECK(status == COT_TIMED_OUT && error.status == status && waited_ns >= job->timeout_ns / 2,
              "status %d after %lld ns: '%s'", (int)status, (long long)waited_ns, error.message);
        CHECK(tells(&error, fabric, 2, " did not answer in 'attention' within 1.0 s"), "'%s'", error.message);
    }
    if (fabric->rank != 2 || job->calls == LETS_GO) cot_turns_leave(fabric);
    cot_collectives_close(collectives);
    return true;
}

static void check_time_out(const struct subject *subject)
{
    const int running[] = {4, 2, 1, 1}, calls[] = {HOLDS_ON, LETS_GO, LETS_GO, HOLDS_ON};
    group_job jobs[4];
    for (int i = 0; i < 4; i++) {
        small_job(&jobs[i], subject, 4, running[i], silent_body);
        jobs[i].timeout_ns = 1000000000;
        jobs[i].calls = calls[i];
    }
    run_jobs_together(jobs, 4);
}

/* Rank 1 gives up while the others wait: they hear of it long before their patience is over. */
static bool giving_up_body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives *collectives;
    CHECK(open_small(&collectives, fabric), "memory");
    cot_turns_enter(fabric);
    char want[100];
    snprintf(want, sizeof want, " failed while rank %d waited in 'control'", fabric->rank);
    if (fabric->rank == 1) {
        sleep_us(30000);
        (fabric->ops->fail)(fabric); // in parentheses: cmocka has a macro of that name
    }
    cot_error error = {0};
    const int64_t since_ns = fabric->ops->now_ns(fabric);
    cot_status status =
        COT_OK; // the others' signals may still let rank 1 through a barrier, but not for ever
    for (int i = 0; i < 3 && !status; i++) status = cot_barrier(collectives, COT_PHASE_CONTROL, &error);
    CHECK(status == COT_PEER_FAILED && error.status == status && tells(&error, fabric, 1, want),
          "status %d: '%s'", (int)status, error.message);
    CHECK(fabric->ops->now_ns(fabric) - since_ns < job->timeout_ns / 4, "not prompt");
    cot_turns_leave(fabric);
    cot_collectives_close(collectives);
    return true;
}

static void check_fail(const struct subject *subject)
{
    for (int running = 1; running <= 5; running += 2) {
        group_job job;
        cot_traffic totals[COT_PHASES];
        run_job(small_job(&job, subject, 5, running, giving_up_body), totals);
    }
}

/* Turns: never more ranks at once than allowed, and every rank has its own. Each logs when it computed; the logs,
 * of one clock, are laid side by side. */
enum { LOGGED = 1000, LOCKSTEP_TURNS = 200, LEAST_TURNS = 400 };

struct turn_log {
    int64_t begin_ns[LOGGED], end_ns[LOGGED];
    int64_t taken;
};

/* Computes for a while, the permit taken. */
static void take_turn(cot_fabric *fabric, struct turn_log *log, int64_t ns)
{
    const int64_t begin_ns = fabric->ops->now_ns(fabric);
    int64_t end_ns = begin_ns;
    for (; end_ns < begin_ns + ns; end_ns = fabric->ops->now_ns(fabric)) cot_pause();
    if (log->taken < LOGGED) {
        log->begin_ns[log->taken] = begin_ns;
        log->end_ns[log->taken] = end_ns;
    }
    log->taken++;
}

static uint64_t fewest_turns(cot_fabric *fabric, cot_sym counts)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < fabric->ranks; r++) {
        const uint64_t taken = cot_signal_load(fabric, counts + (cot_sym)r * 64);
        least = taken < least ? taken : least;
    }
    return least;
}

static int most_at_once(const struct turn_log *logs, int ranks)
{
    int most = 0;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < LOGGED && i < logs[r].taken; i++) {
            int inside = 0;
            for (int s = 0; s < ranks; s++)
                for (int j = 0; j < LOGGED && j < logs[s].taken; j++)
                    inside +=
                        logs[s].begin_ns[j] <= logs[r].begin_ns[i] && logs[r].begin_ns[i] < logs[s].end_ns[j];
            most = inside > most ? inside : most;
        }
    return most;
}

static bool take_turns(cot_fabric *fabric, const group_job *job, cot_collectives *collectives, cot_sym counts,
                       struct turn_log *logs)
{
    struct turn_log *own = &logs[fabric->rank];
    cot_error error = {0};
    cot_turns_enter(fabric);
    for (int i = 0; i < LOCKSTEP_TURNS; i++) { // wait lets go of the permit and takes one again
        CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, &error), "%s", error.message);
        take_turn(fabric, own, 20000);
    }
    cot_turns_leave(fabric);
    CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, &error), "%s", error.message);
    const int64_t until_ns = fabric->ops->now_ns(fabric) + PATIENT_NS;
    while (fewest_turns(fabric, counts) < LEAST_TURNS) { // nothing but the permits keeps the ranks in step
        CHECK(fabric->ops->now_ns(fabric) < until_ns, "a rank starves at %d turns",
              (int)fewest_turns(fabric, counts));
        cot_turns_enter(fabric);
        take_turn(fabric, own, 50000);
        cot_turns_leave(fabric);
        for (int to = 0; to < fabric->ranks; to++)
            cot_put_signal(fabric, to, 0, NULL, 0, counts + (cot_sym)fabric->rank * 64, (uint64_t)own->taken,
                           COT_PHASE_CONTROL);
    }
    if (fabric->turns && fabric->turns->limited) // one alone on its host never waits
        CHECK(fabric->queued_ns > 0, "six ranks never waited for one of %d turns", job->running);
    size_t begin[COT_MAX_RANKS + 1];
    for (int r = 0; r <= fabric->ranks; r++) begin[r] = (size_t)r * sizeof *logs;
    CHECK(!cot_allgather(collectives, logs, begin, COT_PHASE_CONTROL, &error), "%s", error.message);
    const int most = fabric->rank ? 0 : most_at_once(logs, fabric->ranks);
    CHECK(most <= job->running || !fabric->turns || !fabric->turns->limited, "%d at once", most);
    return true;
}

static bool turns_body(cot_fabric *fabric, const group_job *job)
{
    if (!fabric->turns) return true; // ranks that share no host take none
    cot_collectives *collectives;
    cot_sym counts;
    const size_t ranks = (size_t)fabric->ranks;
    const cot_collectives_options options = {.gather_bytes = ranks * sizeof(struct turn_log)};
    struct turn_log *logs = calloc(ranks, sizeof *logs);
    CHECK(logs && !cot_alloc(fabric, &counts, ranks * 64, NULL) &&
              !cot_collectives_open(&collectives, fabric, &options, NULL),
          "memory");
    const bool ok = take_turns(fabric, job, collectives, counts, logs);
    cot_collectives_close(collectives);
    free(logs);
    return ok;
}

static void check_turns(const struct subject *subject)
{
    for (int running = subject->brief ? 2 : 1; running <= (subject->brief ? 2 : 3); running++) {
        group_job job;
        small_job(&job, subject, 6, running, turns_body);
        job.heap_bytes = 1 << 19;
        cot_traffic totals[COT_PHASES];
        run_job(&job, totals);
    }
}

static int64_t thread_used_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
}

/* A rank that waits long burns next to nothing, and its wait is on record. A busy machine may start a wait late:
 * it holds for the best of some waits. */
static bool idle_body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives *collectives;
    CHECK(open_small(&collectives, fabric), "memory");
    cot_turns_enter(fabric);
    int64_t least_used_us = INT64_MAX, most_waited_ns = 0;
    for (int round = 0; round < 4; round++) {
        CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, NULL), "barrier");
        if (fabric->rank == 0) sleep_us(200000);
        const int64_t waited_before_ns = fabric->waited_ns[COT_PHASE_METADATA];
        const int64_t used_before_us = thread_used_us();
        CHECK(!cot_barrier(collectives, COT_PHASE_METADATA, NULL), "barrier");
        const int64_t used_us = thread_used_us() - used_before_us;
        const int64_t waited_ns = fabric->waited_ns[COT_PHASE_METADATA] - waited_before_ns;
        if (used_us < least_used_us) least_used_us = used_us;
        if (waited_ns > most_waited_ns) most_waited_ns = waited_ns;
    }
    cot_turns_leave(fabric);
    const int64_t most_us = job->backend->from_outside ? 80000 : 25000; // there a look asks the network
    CHECK(least_used_us < most_us, "%lld us of a core", (long long)least_used_us);
    CHECK(fabric->rank == 0 || most_waited_ns > 50000000, "%lld ns on record", (long long)most_waited_ns);
    CHECK(fabric->waited_ns[COT_PHASE_DISPATCH] == 0, "another phase waited");
    cot_collectives_close(collectives);
    return true;
}

/* Polling with load, idle and resume: what comes is seen, who never comes is named, a turn is given back and
 * taken again. Rank 1 sends late to all but never a second time. */
static bool poll_body(cot_fabric *fabric, const group_job *job)
{
    (void)job;
    cot_sym signal;
    CHECK(!cot_alloc(fabric, &signal, 8, NULL), "memory");
    cot_turns_enter(fabric);
    cot_error error = {0};
    if (fabric->rank == 1) {
        sleep_us(20000);
        for (int to = 0; to < fabric->ranks; to++)
            cot_put_signal(fabric, to, 0, NULL, 0, signal, 7, COT_PHASE_CONTROL);
        cot_turns_leave(fabric);
        return true;
    }
    int64_t since_ns = fabric->ops->now_ns(fabric);
    while (cot_signal_load(fabric, signal) < 7)
        CHECK(!cot_turns_idle(fabric, since_ns, since_ns, 1, COT_PHASE_DISPATCH, &error), "%s",
              error.message);
    CHECK(cot_turns_resume(fabric, true), "no turn");
    cot_status status = COT_OK;
    since_ns = fabric->ops->now_ns(fabric);
    while (status == COT_OK && cot_signal_load(fabric, signal) < 8)
        status = cot_turns_idle(fabric, since_ns, since_ns, 1, COT_PHASE_COMBINE, &error);
    CHECK(status == COT_TIMED_OUT && tells(&error, fabric, 1, " did not answer in 'combine' within 1.0 s"),
          "'%s'", error.message);
    cot_turns_leave(fabric);
    return true;
}

/* One turn for two ranks: who passes it lets the other, which asks for it, have it first. */
static bool pass_body(cot_fabric *fabric, const group_job *job)
{
    (void)job;
    cot_sym asks, had;
    CHECK(!cot_alloc(fabric, &asks, 8, NULL) && !cot_alloc(fabric, &had, 8, NULL), "memory");
    if (fabric->rank == 0) {
        cot_turns_enter(fabric);
        cot_turns_pass(fabric); // nobody asks yet, or somebody does: it comes back
        cot_put_signal(fabric, 1, 0, NULL, 0, asks, 1, COT_PHASE_CONTROL);
        const int64_t since_ns = fabric->ops->now_ns(fabric);
        while (cot_signal_load(fabric, had) < 1) {
            CHECK(fabric->ops->now_ns(fabric) - since_ns < 10000000000, "the turn was never passed");
            cot_turns_pass(fabric);
        }
        cot_turns_leave(fabric);
    } else {
        while (cot_signal_load(fabric, asks) < 1) sched_yield();
        cot_turns_enter(fabric);
        cot_put_signal(fabric, 0, 0, NULL, 0, had, 1, COT_PHASE_CONTROL);
        cot_turns_leave(fabric);
    }
    return true;
}

static void check_pass(const struct subject *subject)
{
    group_job job;
    cot_traffic totals[COT_PHASES];
    run_job(small_job(&job, subject, 2, 1, pass_body), totals);
}

static void check_polling(const struct subject *subject)
{
    group_job jobs[3];
    for (int i = 0; i < 3; i++) {
        small_job(&jobs[i], subject, 3, i + 1, poll_body);
        jobs[i].timeout_ns = 1000000000;
    }
    run_jobs_together(jobs, 3);
}

static void check_idle(const struct subject *subject)
{
    group_job job;
    cot_traffic totals[COT_PHASES];
    run_job(small_job(&job, subject, 3, 3, idle_body), totals);
}

/* Who waits patiently hears in the end from a rank that was silent for longer than the time-out. */
static bool patient_body(cot_fabric *fabric, const group_job *job)
{
    cot_sym signal, heard;
    CHECK(!cot_alloc(fabric, &signal, 8, NULL) && !cot_alloc(fabric, &heard, 8, NULL), "memory");
    if (fabric->rank == 1) {
        sleep_us(3 * job->timeout_ns / 1000);
        for (int to = 0; to < fabric->ranks; to++)
            cot_put_signal(fabric, to, 0, NULL, 0, signal, 1, COT_PHASE_CONTROL);
        return true;
    }
    cot_error error = {0};
    CHECK(!cot_wait_patiently(fabric, signal, 1, 1, COT_PHASE_CONTROL, &error), "%s", error.message);
    if (fabric->rank == 2) cot_put_signal(fabric, 0, 0, NULL, 0, heard, 1, COT_PHASE_CONTROL);
    if (fabric->rank == 0) { // no sooner than that
        CHECK(!cot_wait_patiently(fabric, heard, 1, 2, COT_PHASE_CONTROL, &error), "%s", error.message);
        (fabric->ops->fail)(fabric);
    }
    const cot_status status = cot_wait_patiently(fabric, signal, 2, 1, COT_PHASE_CONTROL, &error);
    CHECK(status == COT_PEER_FAILED && !strncmp(error.message, "rank 0", 6) &&
              strstr(error.message, " failed"),
          "'%s'", error.message);
    return true;
}

static void check_patience(const struct subject *subject)
{
    group_job job;
    cot_traffic totals[COT_PHASES];
    small_job(&job, subject, 3, 3, patient_body);
    job.timeout_ns = 500000000;
    run_job(&job, totals);
}

#define CONFORMANCE_TESTS(X)                                                                                 \
    X(calls) X(litmus) X(time_out) X(fail) X(turns) X(idle) X(polling) X(pass) X(patience)

#define CONFORMANCE_TEST(name)                                                                               \
    static void test_##name(void **state)                                                                    \
    {                                                                                                        \
        check_##name(*state);                                                                                \
    }
CONFORMANCE_TESTS(CONFORMANCE_TEST)

int run_conformance(struct subject *subject)
{
#define CONFORMANCE_ENTRY(name) {"test_" #name, test_##name, NULL, NULL, subject},
    const struct CMUnitTest tests[] = {CONFORMANCE_TESTS(CONFORMANCE_ENTRY)};
    return cmocka_run_group_tests_name(subject->backend->name, tests, NULL, NULL);
}
