/* Runs one function on every rank of a group. What a rank finds travels to rank 0 by the fabric, and nothing here
 * knows a backend: with one that is started from outside, every process runs the same jobs in the same order. */
#ifndef TESTS_FABRIC_HARNESS_H
#define TESTS_FABRIC_HARNESS_H
#include "base/rng.h"
#include "fabric/launch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct group_job {
    int ranks, running;
    size_t heap_bytes;
    int64_t timeout_ns;
    uint64_t seed;                                                 // rank 0's is everybody's
    bool (*body)(cot_fabric *fabric, const struct group_job *job); // a rank's part: whether all went well
    int calls;
    double link_bytes_per_s; // of every rank's way out; both 0: no shape
    int64_t link_latency_ns;
} group_job;

static const cot_fabric_backend *backend; // of all jobs

/* Inside a body: cmocka's assertions belong to the main thread. */
#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d of %d, seed %llu: not %s: ", __FILE__, __LINE__, fabric->rank,   \
                    fabric->ranks, (unsigned long long)job->seed, #condition);                               \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

static inline void sleep_us(int64_t us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

/* A seed that differs from run to run, or COT_SEED's. */
static inline uint64_t fresh_seed(void)
{
    const char *given = getenv("COT_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t seed = given ? strtoull(given, NULL, 0)
                                : cot_mix64((uint64_t)t.tv_sec ^ (uint64_t)t.tv_nsec << 20) % 1000000007u;
    printf("COT_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* The harness's own words in every rank's heap. */
struct harness {
    cot_sym arrived, seed, go, told, told_signals;
};

/* What a rank tells rank 0 in the end. */
struct told {
    bool ok;
    cot_traffic sent[COT_PHASES]; // by the body
};

enum { HARNESS_BYTES = COT_MAX_RANKS * (64 + 8 + sizeof(struct told)) + 6 * 64 };

static inline void add_traffic(cot_traffic sums[COT_PHASES], const cot_fabric *fabric, bool take_away)
{
    for (int to = 0; to < fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) {
            const cot_traffic *sent = &fabric->traffic[to][p];
            sums[p].bytes += take_away ? -sent->bytes : sent->bytes;
            sums[p].messages += take_away ? -sent->messages : sent->messages;
        }
}

static inline void set_link(cot_fabric *fabric, double bytes_per_s, int64_t latency_ns)
{
    if (fabric->ops->set_link) fabric->ops->set_link(fabric, bytes_per_s, latency_ns);
}

/* Whether the word has come, which it does in a while even of a group that failed, unless the other rank is dead. */
static inline bool sleep_until(cot_fabric *fabric, cot_sym signal, int from)
{
    for (bool dead = false; !cot_signal_load(fabric, signal); sleep_us(100)) {
        if (dead) return false; // looked once more
        dead = fabric->ops->failed(fabric) && fabric->ops->death(fabric, from);
    }
    return true;
}

/* Waits until every rank is there: who starts late on a busy machine must not look like a silent peer. */
static inline bool line_up(cot_fabric *fabric, const struct harness *h, group_job *job)
{
    if (fabric->rank) {
        cot_put_signal(fabric, 0, 0, NULL, 0, h->arrived + (cot_sym)fabric->rank * 8, 1, COT_PHASE_CONTROL);
        if (!sleep_until(fabric, h->go, 0)) return false;
        memcpy(&job->seed, cot_local(fabric, h->seed), sizeof job->seed);
        return true;
    }
    for (int r = 1; r < fabric->ranks; r++)
        if (!sleep_until(fabric, h->arrived + (cot_sym)r * 8, r)) return false;
    for (int r = 1; r < fabric->ranks; r++)
        cot_put_signal(fabric, r, h->seed, &job->seed, sizeof job->seed, h->go, 1, COT_PHASE_CONTROL);
    return true;
}

/* A rank's part in a job; on rank 0 whether all went well everywhere, and what all sent. */
static inline bool take_part(const cot_rank *rank, cot_traffic totals[COT_PHASES])
{
    cot_fabric *fabric = rank->fabric;
    group_job job = *(const group_job *)rank->argument;
    const cot_sym ranks = (cot_sym)fabric->ranks;
    struct harness h;
    struct told told = {0};
    cot_sym *const words[] = {&h.arrived, &h.seed, &h.go, &h.told, &h.told_signals};
    const size_t bytes[] = {ranks * 8, 8, 8, ranks * sizeof told, ranks * 8};
    for (int i = 0; i < 5; i++)
        if (cot_alloc(fabric, words[i], bytes[i], NULL)) return false;
    if (!line_up(fabric, &h, &job)) return false;
    set_link(fabric, job.link_bytes_per_s, job.link_latency_ns);
    add_traffic(told.sent, fabric, true);
    told.ok = job.body(fabric, &job);
    add_traffic(told.sent, fabric, false);
    set_link(fabric, 0, 0);
    const cot_sym own = (cot_sym)fabric->rank;
    cot_put_signal(fabric, 0, h.told + own * sizeof told, &told, sizeof told, h.told_signals + own * 8, 1,
                   COT_PHASE_CONTROL);
    if (fabric->rank) return told.ok;
    memset(totals, 0, COT_PHASES * sizeof *totals);
    const struct told *all = cot_local(fabric, h.told);
    bool ok = true;
    for (int r = 0; r < fabric->ranks; r++) {
        const bool there = sleep_until(fabric, h.told_signals + (cot_sym)r * 8, r);
        ok = there && all[r].ok && ok;
        for (int p = 0; p < COT_PHASES && there; p++) {
            totals[p].bytes += all[r].sent[p].bytes;
            totals[p].messages += all[r].sent[p].messages;
        }
    }
    return ok;
}

static inline void rank_main(const cot_rank *rank)
{
    take_part(rank, NULL);
}

/* Runs the job on a group of the backend, where all must go well on all ranks. Whether this process is rank 0,
 * which has what all ranks sent. */
static inline bool run_job(const group_job *job, cot_traffic totals[COT_PHASES])
{
    const cot_launch_options options = {.ranks = job->ranks,
                                        .threads = job->running < job->ranks ? job->running : job->ranks,
                                        .heap_bytes = job->heap_bytes + HARNESS_BYTES,
                                        .timeout_ns = job->timeout_ns,
                                        .main = rank_main,
                                        .argument = job};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    const cot_status status = cot_launch_open(&launch, &root, backend, &options, &error);
    if (status == COT_SERVED) return false;
    if (status != COT_OK) fail_msg("%s", error.message);
    const bool ok = take_part(root, totals);
    cot_launch_close(launch);
    assert_true(ok);
    return true;
}

#endif
