/* Runs of a world over groups of ranks, as threads or as processes. */
#ifndef COT_TESTS_HARNESS_MOE_RUN_H
#define COT_TESTS_HARNESS_MOE_RUN_H
#include "harness/moe/plan.h"

#include <stdint.h>

/* What a run left: the test's record, in memory shared with forked ranks, to which each rank writes its own part. */
struct outcome {
    cot_status status[COT_MAX_RANKS];
    char message[COT_MAX_RANKS][256];
    cot_traffic traffic[COT_MAX_RANKS][COT_MAX_RANKS][COT_PHASES];
    uint64_t rounds[COT_MAX_RANKS][COT_PHASES];
    int64_t allocations[COT_MAX_RANKS]; // made within forward
    uint16_t experts[WORLD_TOKENS * COT_MAX_TOP_K];
    float weights[WORLD_TOKENS * COT_MAX_TOP_K];
    float y[]; // [T][H]
};

void outcome_free(struct outcome *outcome, const struct world *w);

/* Runs all ranks to their end, as threads or as processes, of which none is the test's, since a test may kill any:
 * it is left with those whose parent was killed. Freed by outcome_free. */
struct outcome *world_run(const struct world *w, const struct plan *p);

#endif
