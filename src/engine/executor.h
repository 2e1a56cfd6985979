/* Who runs steps for the loop (loop.h): a group of ranks that compute them (ranks.c), or a model of one. */
#ifndef COT_ENGINE_EXECUTOR_H
#define COT_ENGINE_EXECUTOR_H
#include "coterie/engine.h"
#include "schedule/scheduler.h"

/* What came of a span. */
typedef struct cot_executor_span {
    bool unsound; // its values are no longer finite: nothing of it may be told or kept
    bool stuck;   // its constraint lets no token come
    /* Where what comes behind the span is to be drawn (cot_request_draws): the token, and if it ends the text, why. What it
     * points to is there until the next step. */
    cot_sampled sampled;
    cot_finish finish;
} cot_executor_span;

/* What came of a step. All that it points to is the executor's, and there until the next step. */
typedef struct cot_executor_answer {
    int64_t ns;                    // how long it took, drawing aside
    const cot_executor_span *span; // [step->spans]
    uint64_t read_bytes;           // of weights and KV, where that is counted
    /* How tokens were routed, as far as is known for nothing: experts [layers][stride][K] of `routed` tokens of the step. */
    const uint16_t *experts;
    int64_t layers, stride, routed;
    const cot_cost_load
        *served; // [ranks] what each rank's experts had to do, summed over layers; NULL: nobody says
    const uint16_t
        *popular; // the same of those tokens that the step wants to be known (routed_every); NULL: of none
    /* Where the step reports: what was counted since the step before that did. */
    const cot_rank_routing *routing; // [ranks]
    uint64_t bytes[COT_STATS_PHASES];
    uint64_t epoch;                  // of the placement
    const cot_expert_layout *layout; // where experts were in this step; NULL: nobody says
} cot_executor_answer;

/* A table of functions; `by_row` are the requests of a step's spans, by their rows. */
typedef struct cot_executor {
    void *context;
    /* Whether a request, which may come to `limit` tokens, can be run, as far as the executor alone knows. NULL: any can. */
    cot_status (*accepts)(void *context, const cot_request *request, int64_t limit, cot_error *error);
    /* Runs a step, and fills in an answer that is zero. An error is the executor's end. */
    cot_status (*step)(void *context, const cot_step *step, cot_request_state *const *by_row,
                       cot_executor_answer *answer, cot_error *error);
    /* Experts sit, from the next step on, where these changes have them (placement/epoch.h). Errors: INVALID_ARGUMENT, UNSUPPORTED:
     * the placement in force stays; others are the executor's end. NULL: it has no placement. */
    cot_status (*place)(void *context, const int32_t *words, int64_t count, cot_error *error);
    /* There is nothing to run: is the executor alive? NULL: it is. */
    cot_status (*idle)(void *context, cot_error *error);
    /* What the executor does between two steps of its own accord; the step behind it took step_ns, 0: there was none. An error is
     * the executor's end. NULL: nothing. */
    cot_status (*between)(void *context, int64_t step_ns, cot_error *error);
    /* Tells listeners what no answer holds, of requests that have not ended: routing of all spans; logits, of which the span's
     * begin with the step's row number `row`. NULL: there is none. */
    void (*tell_routing)(void *context, const cot_step *step, cot_request_state *const *by_row);
    void (*tell_logits)(void *context, const cot_span *span, const cot_request_state *request, int64_t row);
} cot_executor;

#endif
