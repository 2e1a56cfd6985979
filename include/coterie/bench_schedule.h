/* Replays a trace's generations in batches, chosen in several ways, and counts the distinct experts that each step's batch calls:
 * what a decode step has to read. Counts alone: no model, no clock, the same result for the same seed. */
#ifndef COTERIE_BENCH_SCHEDULE_H
#define COTERIE_BENCH_SCHEDULE_H
#include "coterie/status.h"
#include "coterie/trace.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `running` sequences are there at any time; each step takes `batch` of them, a token of each. One that ends is replaced by the
 * next of a seeded shuffle, which begins somewhere in its first half: what stands before that is its prompt. */
typedef enum cot_bench_batching {
    COT_BENCH_BATCH_FCFS,   /* those that waited longest */
    COT_BENCH_BATCH_RANDOM, /* any */
    COT_BENCH_BATCH_CHOSEN, /* by the experts that they are expected to call, as far as max_wait_steps lets it */
    COT_BENCH_BATCH_ORACLE, /* the same, knowing the experts that they will call */
    COT_BENCH_BATCH_ADMISSION, /* `batch` of them run until they end; of the oldest 16 of the others the one whose prompt called
                                  experts most like theirs is admitted next, unless 16 overtook one */
    COT_BENCH_BATCHINGS
} cot_bench_batching;
/* As the command line and JSON name them: "fcfs", "random", "chosen", "oracle", "admission". */
extern const char *const cot_bench_batching_names[COT_BENCH_BATCHINGS];

typedef struct cot_bench_schedule_options {
    size_t size;            /* sizeof this structure */
    int64_t running;        /* 1 to 4096, at most as many as there are generations to replay */
    int64_t batch;          /* 1 to `running` */
    int64_t max_wait_steps; /* from which on a sequence that sat out is taken first, >= 1 */
    int32_t ranks;          /* that consecutive experts are dealt to, 1 to min(E, COT_TRACE_MAX_RANKS) */
    int64_t steps;          /* of each seed, >= 1 */
    int32_t seeds;          /* replays, each with a split, starts and a shuffle of its own, 1 to 100 */
    uint64_t seed;          /* the first of them */
    double
        training; /* share of the generations that tables are counted on and that are not replayed, above 0, below 1 */
    void (*progress)(void *context, uint64_t done, uint64_t all); /* steps; NULL: nobody */
    void *context;
} cot_bench_schedule_options;

/* Experts are distinct ones of a layer and step, means over both and over seeds. */
typedef struct cot_bench_schedule_row {
    double experts;            /* of the batch */
    double least, most;        /* the seeds' means lie between */
    double busiest;            /* of the batch, on the rank that has most of them in that layer */
    double all;                /* of all that run, had the step taken them */
    int64_t most_waited_steps; /* steps that one sat out, or waited to be admitted, at most */
    int64_t most_overtaken;    /* how many were admitted before one that came earlier, at most */
} cot_bench_schedule_row;

/* Fills in a row for each way; `replayed` (may be NULL) is how many generations there are to replay, the least of the seeds. A
 * generation is a sequence of two tokens or more. Errors: INVALID_ARGUMENT (options, a trace of counts, too few generations),
 * OUT_OF_MEMORY. Thread-safe. */
cot_status cot_bench_schedule(cot_bench_schedule_row rows[COT_BENCH_BATCHINGS], int64_t *replayed,
                              const cot_trace *trace, const cot_bench_schedule_options *options,
                              cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
