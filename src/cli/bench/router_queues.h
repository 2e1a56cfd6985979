/* Simulated workers behind a router: each computes one prompt at a time, first come, first served, at a given speed; what it has
 * computed is kept in an LRU of blocks. */
#ifndef COT_CLI_BENCH_ROUTER_QUEUES_H
#define COT_CLI_BENCH_ROUTER_QUEUES_H
#include "cli/bench/request_trace.h"

#include "coterie/route.h"

typedef struct cli_queues_options {
    size_t workers;
    int64_t pages;            // of COT_LOAD_TEST_HASHED tokens, of each
    double tokens_per_second; // computed
    double token_ns;          // that each token of an answer takes; it delays nothing else
    bool generated;           // answers' blocks enter the LRU, too
    bool pinned;              // blocks of a request stay until it is over
    uint64_t seed;
} cli_queues_options;

typedef struct cli_queues_result {
    double hit;                                     // tokens found, of all
    double ttft_mean, ttft_p50, ttft_p90, ttft_p99; // s
    double busiest;                                 // work of the worker that has most, over the mean
    double regret; // prompt blocks computed that some worker had computed before, of all computed
} cli_queues_result;

/* False after a line on stderr. */
bool cli_router_queues(cli_queues_result *result, const cli_request_trace *trace, cot_route_policy policy,
                       const cli_queues_options *options);

#endif
