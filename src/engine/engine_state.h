/* Inside an engine: shared by engine.c (opening), ranks.c (steps) and stats.c. */
#ifndef COT_ENGINE_STATE_H
#define COT_ENGINE_STATE_H
#include "coterie/predict.h"
#include "engine/group.h"
#include "engine/loop.h"
#include "engine/sampler.h"

/* What the executor of ranks (ranks.c) keeps of a step, sized at open. */
typedef struct cot_ranks {
    cot_step_result result; // of the last step
    cot_sampler sampler;
    cot_executor_span *came; // [sequences] by span
    cot_logprob *top;        // [sequences][COT_MAX_LOGPROBS] by span
    uint16_t *token_experts; // [MoE layers][K] of one token
    float *token_weights;
    bool *touched;                           // [E]
    cot_step_counts told[COT_MAX_RANKS];     // what was counted when a step was last reported
    cot_rank_routing routing[COT_MAX_RANKS]; // since the report before
} cot_ranks;

struct cot_engine {
    cot_checkpoint *checkpoint;
    const cot_config *config;
    cot_whole_weights whole;
    cot_loader_progress progress;
    cot_engine_group *group;
    cot_runner_options runner;
    cot_arena attention; // scratch of the ranks in this process
    cot_engine_info info;
    const char *name;         // of the model, for messages: while it is opened
    int32_t *moe_layer;       // [MoE layers]
    cot_expert_layout layout; // of those over the ranks
    cot_predictor *tables;    // by whose groups experts sit; NULL: there are none
    cot_replay replay;        // where the options give routing
    int32_t *row_of_id;       // of the tables, where the trace replayed has ids of its own
    int64_t block_tokens, tbt_ns, max_wait_steps; // the options
    uint64_t likeness;                            // of the model, to tell it from another
    cot_ranks ranks;
    cot_loop loop;
};

/* The engine's group of ranks as the executor of its loop; close either way. Errors: OUT_OF_MEMORY. */
cot_status cot_ranks_open(cot_executor *executor, cot_engine *engine, cot_error *error);
void cot_ranks_close(cot_ranks *ranks);

/* Bytes of weights and KV that a step with this routing ([MoE layers][step_tokens][K]) had to read, each once: matrices
 * as they are packed, int8's with their scales, biases of networks, and keys and values as they are stored, of the
 * positions that the step's tokens see. Norms, biases of attention and rows of the embedding are left out. */
uint64_t cot_engine_read_bytes(cot_engine *engine, const cot_step *step, const uint16_t *experts);

/* What a step's parts cost, but for a common factor: bytes that are read. */
void cot_engine_cost_prior(const cot_engine *engine, double prior[COT_COST_TERMS]);

#endif
