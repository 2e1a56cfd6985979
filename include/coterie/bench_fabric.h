/* Measures what carries messages between ranks: latency and bandwidth by size. */
#ifndef COTERIE_BENCH_FABRIC_H
#define COTERIE_BENCH_FABRIC_H
#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cot_bench_transfer {
    /* Rank 0 puts so many bytes with a signal to the last rank. Latency: half of the time there and back. Bandwidth: of
     * COT_BENCH_FABRIC_WINDOW such puts, one behind the other, until the last rank has answered the last. */
    COT_BENCH_PUT_SIGNAL,
    /* The bytes are what every rank has in the end. Latency: of a call, calls following each other. Bandwidth: of what each
     * rank sends, (P - 1) / P of the bytes. */
    COT_BENCH_ALLGATHER,
    /* The bytes are each rank's sums in fp32; the rest as with allgather. */
    COT_BENCH_REDUCE_SCATTER,
    COT_BENCH_TRANSFERS
} cot_bench_transfer;

enum {
    COT_BENCH_FABRIC_WINDOW = 16,
    COT_BENCH_FABRIC_LEAST_BYTES = 8,
    COT_BENCH_FABRIC_MOST_BYTES = 1 << 30
};

typedef struct cot_bench_fabric_options {
    size_t size;        /* sizeof this structure */
    int ranks;          /* 2 to 64 */
    const char *fabric; /* what ranks are, see cot_engine_fabrics; NULL: the first */
    int64_t timeout_ns; /* how long a rank waits for another, 1e8 to 1e15; 0: 300 s */
    /* Sizes are 8, 32, 128 and so on up to this: 8 to COT_BENCH_FABRIC_MOST_BYTES. */
    int64_t most_bytes;
    int64_t budget_ns; /* for about how long each size of each transfer is repeated, >= 1 */
} cot_bench_fabric_options;

typedef struct cot_bench_fabric_row {
    cot_bench_transfer transfer;
    int64_t bytes;
    int64_t repeats; /* of what the latency is taken from, by rank 0's clock */
    double least_ns, median_ns, average_ns;
    double bytes_per_s;
    const char
        *carriers; /* what carries rank 0's messages, as in "memory, tcp/eth0"; valid during the call */
} cot_bench_fabric_row;

/* Opens a group, measures, and calls `found` with each row in turn, on the calling thread. Errors: INVALID_ARGUMENT,
 * OUT_OF_MEMORY, TIMED_OUT, PEER_FAILED; SERVED in a process that oshrun has started for another rank than the first.
 * Thread-safe. */
cot_status cot_bench_fabric(const cot_bench_fabric_options *options,
                            void (*found)(void *context, const cot_bench_fabric_row *row), void *context,
                            cot_error *error);

/* Links of a shape, as cot_engine_set_link gives them to ranks that are threads. */
typedef struct cot_bench_link_options {
    size_t size;        /* sizeof this structure */
    int ranks;          /* 2 to 64 */
    int threads;        /* in all, >= 1: where there are fewer than ranks, so many compute at once */
    int64_t timeout_ns; /* as above */
    double bytes_per_s; /* above 0 */
    int64_t latency_ns;
    int64_t bytes;     /* from a rank to each other one in a step, 9 to COT_BENCH_LINK_MOST_BYTES */
    int64_t budget_ns; /* about how long to measure, >= 1; a few steps are taken in any case */
} cot_bench_link_options;

enum { COT_BENCH_LINK_MOST_BYTES = 1 << 24 };

/* The rate that such links let pass in truth, in bytes of a rank a second while it takes as many in; at most what was given. In a
 * step every rank puts to every other and waits for all of theirs; steps over links and steps without take turns, the least
 * times count. Opens a group of its own. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY, TIMED_OUT, PEER_FAILED. Thread-safe. */
cot_status cot_bench_link(double *bytes_per_s, const cot_bench_link_options *options, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
