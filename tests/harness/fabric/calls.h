/* Random sequences of collectives. Every draw is a pure function of (seed, call, rank, index), so that each
 * rank knows what all ranks give and holds the result against a plain oracle, and the main thread knows the
 * bytes in all. */
#ifndef COT_TESTS_HARNESS_FABRIC_CALLS_H
#define COT_TESTS_HARNESS_FABRIC_CALLS_H
#include "harness/fabric/job.h"

#include "fabric/collectives.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALLV, DIRECT, BARRIER, KINDS };

enum { MAX_ELEMENTS = 100000, MAX_BYTES = 200000, BLOCK_BYTES = 3000, GUARD = 16 };

/* Below `limit`. */
uint64_t draw_of_job(const group_job *job, int number, uint64_t what, uint64_t limit);

typedef struct call {
    int number, kind;
    cot_phase phase;
    cot_dtype type;
    int64_t n;
    bool whole_numbers;              // every sum is exact
    size_t begin[COT_MAX_RANKS + 1]; // of allgather
    size_t cut[COT_MAX_RANKS + 1];   // of allreduce and reduce_scatter
} call;

/* The call of this number, the same on every rank. */
call draw_call(const group_job *job, int number);

/* The header's closed forms, all ranks together. */
uint64_t closed_form(const group_job *job, const call *c);

/* When a rank entered and left each call: on one host all read the same clock. */
typedef struct moment {
    int64_t entered_ns, left_ns;
    int64_t status;
} moment;

/* The options of the collectives of such a job, and what they take of the heap. */
size_t calls_heap_bytes(const group_job *job, cot_collectives_options *options);

/* All calls of the job, one after the other; x: room for MAX_ELEMENTS and GUARD; moments: [ranks][calls]. */
bool calls_sequence(cot_fabric *fabric, const group_job *job, cot_collectives *collectives, float *x,
                    moment *moments);

/* A body of group_job. */
bool calls_body(cot_fabric *fabric, const group_job *job);

#endif
