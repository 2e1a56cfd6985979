/* What it is worth that a router knows which experts requests call: distinct experts of workers' steps, by where requests go. */
#ifndef COTERIE_ROUTE_AFFINITY_H
#define COTERIE_ROUTE_AFFINITY_H
#include "coterie/status.h"
#include "coterie/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_route_affinity_options {
    size_t size;              /* sizeof(cot_route_affinity_options) */
    int32_t workers, batch;   /* W; requests of each, B, in the mean; 0: 8 of each */
    int64_t signature_tokens; /* a request's first tokens, which are known; 0: 64 */
    int64_t judged_tokens;    /* those behind them; 0: 192 */
    int32_t rounds;           /* draws of W B requests; 0: 20 */
    uint64_t seed;
} cot_route_affinity_options;

typedef enum cot_route_affinity_way {
    COT_ROUTE_AFFINITY_LEAST,        /* one by one, each to the worker with the fewest */
    COT_ROUTE_AFFINITY_ONE,          /* by experts; counts are equal within 1 */
    COT_ROUTE_AFFINITY_FOUR,         /* within 4 */
    COT_ROUTE_AFFINITY_AT_ONCE,      /* all are known: within 1, then exchanged two and two */
    COT_ROUTE_AFFINITY_AT_ONCE_FOUR, /* the same within 4 */
    COT_ROUTE_AFFINITY_WAYS
} cot_route_affinity_way;

typedef struct cot_route_affinity_study {
    int64_t requests; /* sequences that are long enough */
    int32_t cells;    /* of signatures */
    /* Distinct experts of a worker's step, over its layers, in the mean of steps, workers and rounds; and the same of each round over those of
     * `least` in it: their mean, and its standard error, 0 of one round. */
    double distinct[COT_ROUTE_AFFINITY_WAYS], ratio[COT_ROUTE_AFFINITY_WAYS], error[COT_ROUTE_AFFINITY_WAYS];
} cot_route_affinity_study;

/* Requests are sequences of `trace` that have signature_tokens + judged_tokens; all texts that are not among a round's tell what is usual.
 * Signatures are as workers publish them; decisions are those of a cot_route_book. Errors: INVALID_ARGUMENT (options; kind counts; fewer
 * than W B requests), UNSUPPORTED (too many experts), OUT_OF_MEMORY. Thread-safe. */
cot_status cot_route_affinity(cot_route_affinity_study *study, const cot_trace *trace,
                              const cot_route_affinity_options *options, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
