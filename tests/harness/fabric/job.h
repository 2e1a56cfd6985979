/* Runs one function on every rank of a group. What a rank finds travels to rank 0 by the fabric, and nothing here
 * knows a backend: with one that is started from outside, every process runs the same jobs in the same order. */
#ifndef COT_TESTS_HARNESS_FABRIC_JOB_H
#define COT_TESTS_HARNESS_FABRIC_JOB_H
#include "fabric/launch.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct group_job {
    const cot_fabric_backend *backend;
    int ranks, running;
    size_t heap_bytes;
    int64_t timeout_ns;
    uint64_t seed;                                                 // rank 0's is everybody's
    bool (*body)(cot_fabric *fabric, const struct group_job *job); // a rank's part: whether all went well
    int calls;
    double link_bytes_per_s; // of every rank's way out; both 0: no shape
    int64_t link_latency_ns;
} group_job;

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

void sleep_us(int64_t us);

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

/* Where the backend shapes links. */
void set_link(cot_fabric *fabric, double bytes_per_s, int64_t latency_ns);

/* Runs the job on a group of its backend, where all must go well on all ranks. Whether this process is rank 0,
 * which has what all ranks sent. A job of other than the ranks that were started from outside is passed over. */
bool run_job(const group_job *job, cot_traffic totals[COT_PHASES]);

/* Runs so many jobs at the same time, at most COT_MAX_RANKS, each in a process of its own whose rank 0 it has: for jobs that
 * wait rather than compute. All must go well. Ranks that were started from outside run one job after the other. */
void run_jobs_together(const group_job *jobs, int count);

#endif
