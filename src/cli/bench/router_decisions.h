/* How fast a router decides on a machine: its index holds a trace's prompts, dealt to targets in turn; one thread decides while
 * another changes the index. Times are the threads' own processor time. */
#ifndef COT_CLI_BENCH_ROUTER_DECISIONS_H
#define COT_CLI_BENCH_ROUTER_DECISIONS_H
#include "cli/bench/request_trace.h"

#include "coterie/route.h"

enum { CLI_ROUTER_BLOCK = 16 }; // tokens of a block

typedef struct cli_decisions_result {
    uint64_t prompt_blocks;          // of a prompt, the mean
    uint64_t blocks, pairs, bytes;   // of the index when all prompts are in it
    double insert_blocks_per_second; // while it was filled
    uint64_t hash_tokens;            // of a prompt of the mean length
    double hash_ns;                  // of its blocks, the median
    uint64_t decisions;
    double decisions_per_second;     // look-up, score and book
    double p50_ns, p99_ns;           // of one decision, with two readings of the clock
    double clock_ns;                 // of which these take so much
    double writer_blocks_per_second; // beside it, by the wall clock; a third of them removals
    double writer_most_per_second;   // for each second that this took of a processor
} cli_decisions_result;

/* False after a line on stderr. */
bool cli_router_decisions(cli_decisions_result *result, const cli_request_trace *trace, size_t targets,
                          cot_route_policy policy);

#endif
