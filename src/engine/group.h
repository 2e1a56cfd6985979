/* The ranks of an engine: they wait for plans and run them together with rank 0, which is the caller. A rank's
 * code reaches the others through the fabric alone. */
#ifndef COT_ENGINE_GROUP_H
#define COT_ENGINE_GROUP_H
#include "engine/plan.h"
#include "fabric/launch.h"
#include "model/runner.h"

typedef struct cot_engine_group cot_engine_group;

typedef struct cot_engine_group_options {
    cot_runner_options
        runner; // pool is filled in; checkpoint and whole weights are this process's, read only
    const cot_fabric_backend *fabric;
    int ranks, threads;
    int64_t timeout_ns;            // of every wait
    cot_loader_progress *progress; // ranks of rank 0's process share it, the others report none
} cot_engine_group_options;

/* Starts the ranks and loads their weights. Errors: the first rank's that failed; SERVED in a process started
 * from outside as another rank, after cot_engine_group_close on rank 0. */
cot_status cot_engine_group_open(cot_engine_group **group, const cot_engine_group_options *options,
                                 cot_error *error);
void cot_engine_group_close(cot_engine_group *group); // NULL is fine

/* Rank 0's side of the collective calls of cot_runner. */
cot_status cot_engine_group_step(cot_engine_group *group, const cot_step *step, cot_step_result *result,
                                 cot_error *error);
/* Whether the other ranks are there, as far as is known; asks nobody. */
cot_status cot_engine_group_check(cot_engine_group *group, cot_error *error);
/* Whether they are all there, looked at now; any thread may call it. */
bool cot_engine_group_lives(const cot_engine_group *group);

/* Commands that every rank answers; those errors that are not PEER_FAILED or TIMED_OUT leave the group as good as before. */
/* The shape of all ranks' links from the next call on (cot_fabric_ops). Errors: UNSUPPORTED where messages take a real wire. */
cot_status cot_engine_group_link(cot_engine_group *group, const cot_link *link, cot_error *error);
/* All ranks adopt the epoch that follows by changes that were checked (placement/epoch.h): when this returns no rank reads slots
 * that the epoch before had and this one has not. */
cot_status cot_engine_group_place(cot_engine_group *group, const int32_t *words, int64_t count,
                                  cot_error *error);
/* Pages close and open as cot_scheduler_resize has it: when this returns what closed pages took on all ranks is given back, and what places of
 * experts took that no slot in force has. No chunks are on their way. */
cot_status cot_engine_group_resize(cot_engine_group *group, const int32_t *moved, int64_t moves, int64_t open,
                                   cot_error *error);
/* Chunks go from rank to rank, no two of one rank, into slots that no step reads; verdict [count] is what became of each. Errors: those
 * of ranks that could not take what came. */
cot_status cot_engine_group_copy(cot_engine_group *group, const cot_runner_chunk *chunk, int64_t count,
                                 cot_runner_verdict *verdict, cot_error *error);
/* Every rank's numbers [P], and what they sent one another in each exchange of the last step, [exchanges][P][P]; adds to calls [MoE layers][E] how many tokens have called each expert. */
cot_status cot_engine_group_stats(cot_engine_group *group, cot_rank_stats *stats, uint64_t *calls,
                                  uint64_t *exchanged, cot_error *error);

#endif
