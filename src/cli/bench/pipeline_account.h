/* What a step moved between ranks, and what that should take on a link: docs/BYTES.md's forms over an engine's counters. */
#ifndef COT_CLI_BENCH_PIPELINE_ACCOUNT_H
#define COT_CLI_BENCH_PIPELINE_ACCOUNT_H
#include "coterie/engine.h"

enum { CLI_PIPELINE_MOST_LINKS = 8 };

/* Sums over steps. */
typedef struct cli_pipeline_account {
    int64_t steps;
    uint64_t bytes,
        formula_bytes; // of attention, dispatch and combine: counted, and by docs/BYTES.md from the routing
    uint64_t busiest_bytes; // over the exchanges: the most that a rank sends or takes in
    uint64_t rounds;
    double wire_ns
        [CLI_PIPELINE_MOST_LINKS]; // of each link: what the busiest rank, or uplink, of each exchange takes
    uint64_t tokens, activations, local, sends; // of the MoE layers
    uint64_t home_tokens[64];                   // of each rank
    double expert_peak;                         // of the layer in which it is highest
} cli_pipeline_account;

/* Adds a step of so many tokens, between these two readings of the counters. */
void cli_pipeline_account_add(cli_pipeline_account *account, const cot_engine_info *info,
                              const cot_stats *before, const cot_stats *after, int64_t tokens,
                              const cot_engine_link *links, size_t n_links);
/* How much more the busiest rank's experts do than the mean rank's, in the layer where that is most. */
double cli_pipeline_expert_peak(const cot_expert_layout *layout, const cot_stats *before,
                                const cot_stats *after);

#endif
