/* Inside an engine: shared by engine.c (opening), run.c (requests) and stats.c. */
#ifndef COT_ENGINE_STATE_H
#define COT_ENGINE_STATE_H
#include "coterie/predict.h"
#include "engine/group.h"
#include "engine/sampler.h"
#include "schedule/scheduler.h"

/* What is kept beside a request's state: who listens, and how its tokens are drawn. Its lists stand behind it. */
typedef struct cot_engine_request {
    uint64_t told_as; // the number by which callbacks call it
    cot_events events;
    cot_sampling sampling;
    int32_t logprobs;
} cot_engine_request;

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
    bool failed;                                  // a step failed: the group is gone
    uint64_t run_first,
        run_overflowed; // of cot_engine_run: its first id; the first that overflowed, or beyond its last
    bool inside;        // a call is under way: callbacks may submit and cancel, not step
    cot_scheduler scheduler;
    /* Rank 0's scratch for what comes out of a step, sized at open. */
    cot_sampler sampler;
    cot_logprob top[COT_MAX_LOGPROBS];
    uint16_t *token_experts; // [MoE layers][K] of one token
    float *token_weights;
    bool *touched; // [E]
    /* Counted at rank 0. */
    int64_t prefill_tokens, decode_tokens, prefill_ns, decode_ns, last_step_ns, steps;
    uint64_t prefill_read_bytes, decode_read_bytes;
    /* Who is told of steps, and what was counted when they last were. */
    cot_step_events watch;
    cot_step_counts told[COT_MAX_RANKS];
};

/* Bytes of weights and KV that a step with this routing ([MoE layers][step_tokens][K]) had to read, each once: matrices
 * as they are packed, int8's with their scales, biases of networks, and keys and values as they are stored, of the
 * positions that the step's tokens see. Norms, biases of attention and rows of the embedding are left out. */
uint64_t cot_engine_read_bytes(cot_engine *engine, const cot_step *step, const uint16_t *experts);

/* What a step's parts cost, but for a common factor: bytes that are read. */
void cot_engine_cost_prior(const cot_engine *engine, double prior[COT_COST_TERMS]);

#endif
