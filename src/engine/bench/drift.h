/* What a benchmark of changing domains (coterie/bench_drift.h) is made of. */
#ifndef COT_ENGINE_BENCH_DRIFT_H
#define COT_ENGINE_BENCH_DRIFT_H
#include "coterie/bench_drift.h"
#include "coterie/layout.h"

#include <stdbool.h>

typedef struct cot_bench_drift_token {
    int32_t half, home;
    int64_t token; // of the half's trace
} cot_bench_drift_token;

/* What the loop composed. */
typedef struct cot_bench_drift_steps {
    int64_t steps, *begin; // [steps + 1]
    cot_bench_drift_token *token;
    int64_t room;
} cot_bench_drift_steps;

/* Runs the loop. Errors: OUT_OF_MEMORY. Free either way. */
cot_status cot_bench_drift_steps_make(cot_bench_drift_steps *steps, const cot_bench_drift_options *options,
                                      cot_error *error);
void cot_bench_drift_steps_free(cot_bench_drift_steps *steps);

/* Room to judge steps in. */
typedef struct cot_bench_drift_judge {
    const cot_bench_drift_options *o;
    const cot_bench_drift_steps *steps;
    int64_t *rows, *experts, *token; // [P] calls and experts called of a rank; tokens of it so far
    bool *called;                    // [P][E]
} cot_bench_drift_judge;
cot_status cot_bench_drift_judge_open(cot_bench_drift_judge *judge, const cot_bench_drift_options *options,
                                      const cot_bench_drift_steps *steps, cot_error *error);
void cot_bench_drift_judge_close(cot_bench_drift_judge *judge);
/* Adds a step, with experts where the layout has them. */
void cot_bench_drift_judge_step(cot_bench_drift_interval *sum, cot_bench_drift_judge *judge, int64_t step,
                                const cot_expert_layout *layout);

/* One expert of a token of a step, in layer l. */
static inline int32_t cot_bench_drift_expert(const cot_bench_drift_options *o, const cot_bench_drift_token *t,
                                             int32_t l, int32_t k)
{
    return cot_trace_expert(o->half[t->half].trace, l, t->token, k);
}

/* ---- placements ---- */

/* Consecutive experts. Errors: OUT_OF_MEMORY. The caller frees each. */
cot_status cot_bench_drift_blocks(cot_expert_map *map, const cot_bench_drift_options *options,
                                  cot_error *error);
/* EPLB's, for counts [L][E]. */
cot_status cot_bench_drift_eplb(cot_expert_map *map, const double *calls,
                                const cot_bench_drift_options *options, cot_error *error);
/* Renames each layer's ranks so that least moves. */
cot_status cot_bench_drift_rename(cot_expert_map *map, const cot_expert_map *from, cot_error *error);
/* Blocks, with the most called experts of each layer in the spare slots. */
cot_status cot_bench_drift_top(cot_expert_map *map, const double *calls,
                               const cot_bench_drift_options *options, cot_error *error);
cot_status cot_bench_drift_layout(cot_expert_layout *layout, const cot_expert_map *map, cot_error *error);

#endif
