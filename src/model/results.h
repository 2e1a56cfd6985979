/* What a step gives, on its way to rank 0: logits, routing, which spans are sound, counts. */
#ifndef COT_MODEL_RESULTS_H
#define COT_MODEL_RESULTS_H
#include "model/runner.h"

/* What this rank has of them, and where rank 0 finds those of all. */
typedef struct cot_runner_results {
    cot_rank_stats stats;
    void *hidden;                                 // [step_logits][H] typed: final rows that want logits
    int32_t *hidden_row;                          // [step_logits] where a row of logits finds its hidden row
    float *columns;                               // [step_logits][this rank's columns of V]
    float *logits;                                // [step_logits][V], rank 0
    float *unordered;                             // [N][K] scratch of rank 0 where routing is kept
    uint8_t *unsound;                             // [N] by span, rank 0: a row of it is not finite
    cot_sym logits_at;                            // on rank 0: for each rank, [logits][its columns]
    cot_sym routed_experts_at, routed_weights_at; // on rank 0: [MoE layers][N][K]
    cot_sym unsound_at;                           // on rank 0: [N] by span, zero between steps
    cot_sym stats_at, counts_at, served_at;       // on rank 0: [P]
    cot_moe_times before;                         // of the operator, before the step
    cot_sym
        calls_at; // [P][MoE layers][E] uint64: a rank counts in its own part; on rank 0 those of all, as of stats
    cot_sym done_at; // on rank 0: a signal a rank, which rises to
    uint64_t number; // of the call in hand: steps and stats so far
} cot_runner_results;

void cot_runner_lay_out_results(cot_runner *r, cot_arena *arena);
/* After the last layer: every rank computes its columns of the logits, and rank 0 has all results. */
cot_status cot_runner_send_results(cot_runner *r, const cot_step *step, cot_error *error);
/* Of these: every rank sends rank 0 the routing of its tokens, which rank 0 puts in the order of the step's tokens when all is there; or
 * experts of those tokens alone that the step wants to be known. */
void cot_runner_send_routing(cot_runner *r, const cot_step *step);
void cot_runner_order_routing(cot_runner *r);
void cot_runner_send_popular(cot_runner *r, const cot_step *step);
cot_step_result cot_runner_result(const cot_runner *r, const cot_step *step); // nothing but on rank 0

#endif
