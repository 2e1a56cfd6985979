/* Runs one function on every rank of a group. The conformance suite knows nothing else of a backend. */
#ifndef TESTS_FABRIC_HARNESS_H
#define TESTS_FABRIC_HARNESS_H
#include "base/rng.h"
#include "fabric/threads/threads.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct group_job {
    int ranks, running;
    size_t heap_bytes;
    int64_t timeout_ns;
    uint64_t seed;
    bool (*body)(cot_fabric *fabric, const struct group_job *job); // a rank's part: whether all went well
    int calls;
    void *shared; // memory that all ranks share beside the group, for the checks
} group_job;

/* Opens a group, runs the body on every rank and adds up what all ranks sent. Whether all went well on all
 * ranks. */
typedef bool run_group(const group_job *job, cot_traffic totals[COT_PHASES]);

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

/* The shape of every group's links; none unless a test sets it. */
static double link_bytes_per_s;
static int64_t link_latency_ns;

static inline cot_fabric_group *open_group(const group_job *job, bool forked)
{
    const cot_fabric_group_options options = {.ranks = job->ranks,
                                              .heap_bytes = job->heap_bytes,
                                              .running = job->running,
                                              .timeout_ns = job->timeout_ns,
                                              .link_bytes_per_s = link_bytes_per_s,
                                              .link_latency_ns = link_latency_ns,
                                              .forked = forked};
    cot_fabric_group *group;
    cot_error error;
    if (cot_fabric_group_open(&group, &options, &error)) fprintf(stderr, "%s\n", error.message);
    return group;
}

static inline void add_up(cot_fabric_group *group, int ranks, cot_traffic totals[COT_PHASES])
{
    memset(totals, 0, COT_PHASES * sizeof *totals);
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++)
            for (int phase = 0; phase < COT_PHASES; phase++) {
                const cot_traffic *sent = &cot_fabric_group_rank(group, from)->traffic[to][phase];
                totals[phase].bytes += sent->bytes;
                totals[phase].messages += sent->messages;
            }
}

/* Waits until every rank is there: who starts late on a busy machine must not look like a silent peer. */
static inline void line_up(atomic_int *arrived, int ranks)
{
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < ranks) sleep_us(100);
}

struct rank_thread {
    pthread_t thread;
    atomic_int *arrived;
    cot_fabric *fabric;
    const group_job *job;
    bool ok;
};

static inline void *rank_main(void *argument)
{
    struct rank_thread *self = argument;
    line_up(self->arrived, self->job->ranks);
    self->ok = self->job->body(self->fabric, self->job);
    return NULL;
}

static inline bool run_threads(const group_job *job, cot_traffic totals[COT_PHASES])
{
    cot_fabric_group *group = open_group(job, false);
    if (!group) return false;
    struct rank_thread ranks[COT_MAX_RANKS];
    atomic_int arrived = 0;
    bool ok = true;
    for (int r = 0; r < job->ranks; r++) {
        ranks[r] =
            (struct rank_thread){.arrived = &arrived, .fabric = cot_fabric_group_rank(group, r), .job = job};
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r])) abort();
    }
    for (int r = 0; r < job->ranks; r++) {
        pthread_join(ranks[r].thread, NULL);
        ok &= ranks[r].ok;
    }
    add_up(group, job->ranks, totals);
    cot_fabric_group_close(group);
    return ok;
}

static inline bool run_forked(const group_job *job, cot_traffic totals[COT_PHASES])
{
    cot_fabric_group *group = open_group(job, true);
    if (!group) return false;
    atomic_int *arrived =
        mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (arrived == MAP_FAILED) abort();
    pid_t children[COT_MAX_RANKS];
    bool ok = true;
    fflush(NULL);
    for (int r = 0; r < job->ranks; r++) {
        if ((children[r] = fork()) < 0) abort();
        if (!children[r]) {
            line_up(arrived, job->ranks);
            _exit(job->body(cot_fabric_group_rank(group, r), job) ? 0 : 1);
        }
    }
    for (int r = 0; r < job->ranks; r++) {
        int status = 0;
        if (waitpid(children[r], &status, 0) != children[r]) abort();
        ok &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    munmap(arrived, sizeof *arrived);
    add_up(group, job->ranks, totals);
    cot_fabric_group_close(group);
    return ok;
}

#endif
