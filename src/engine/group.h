/* The ranks of an engine: threads or forked processes that wait for plans and run them together with rank 0,
 * which is the caller. A rank's code reaches the others through the fabric alone. */
#ifndef COT_ENGINE_GROUP_H
#define COT_ENGINE_GROUP_H
#include "engine/plan.h"
#include "model/runner.h"

typedef struct cot_group cot_group;

typedef struct cot_group_options {
    cot_runner_options runner; // pool is filled in
    int ranks, threads;
    bool processes;
    cot_load_progress *progress;
} cot_group_options;

/* Starts the ranks and loads their weights. Errors: the first rank's that failed. */
cot_status cot_group_open(cot_group **group, const cot_group_options *options, cot_error *error);
void cot_group_close(cot_group *group); // NULL is fine

/* Rank 0's side of the collective calls of cot_runner. */
cot_status cot_group_step(cot_group *group, const cot_step *step, const float **logits,
                          const uint16_t **experts, const float **weights, cot_error *error);
cot_status cot_group_stats(cot_group *group, cot_rank_stats *stats, cot_error *error);

#endif
