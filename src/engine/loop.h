/* The loop of steps: admit, plan, step, learn, tell. It joins a schedule, an executor (executor.h) and those who listen, and
 * does not know whether ranks run its steps or a model of ranks does: it has no checkpoint, no group and no clock. An engine
 * (engine_state.h) is a loop over a group of ranks. */
#ifndef COT_ENGINE_LOOP_H
#define COT_ENGINE_LOOP_H
#include "engine/executor.h"
#include "engine/profiles.h"

/* What the loop keeps beside a request's state: who listens, and how its tokens are drawn. Its lists stand behind it. */
typedef struct cot_loop_request {
    uint64_t told_as; // the number by which callbacks call it
    cot_events events;
    cot_sampling sampling;
    int32_t logprobs;
    const int32_t *logprob_tokens; // [logprob_count]; NULL: the likeliest are told
    size_t logprob_count;
    struct cot_constraint *constraint; // NULL: none
    int64_t constrained;               // tokens of the text that it was told of
    cot_profile profile;
} cot_loop_request;
static inline const cot_loop_request *cot_loop_request_of(const cot_request_state *request)
{
    return request->beside;
}

typedef struct cot_loop_options {
    cot_scheduler_limits limits; // target_ns is filled in
    int64_t tbt_ns;              // the target, COT_TBT_AUTO or 0 for none
    int64_t context_tokens;      // most tokens of a request
    int ranks;                   // homes that a request may have
    /* Of the cost model: see cot_cost_init. */
    double prior[COT_COST_TERMS];
    int64_t experts, chosen, at_once;
    cot_profiles_options profiles;
} cot_loop_options;

typedef struct cot_loop {
    cot_loop_options options;
    cot_executor executor;
    cot_scheduler scheduler;
    cot_step_events watch; // who is told of steps
    cot_profiles profiles;
    uint64_t *touched;               // [E] scratch
    const cot_expert_layout *layout; // by which costs are learnt; NULL: not yet
    uint64_t epoch;                  // of the placement, in the last step
    bool failed;                     // a step failed: the executor is gone
    bool inside;                     // a call is under way: callbacks may submit and cancel, not step
    uint64_t run_first,
        run_failed; // of cot_loop_run: its first id; the first that overflowed or was stuck, or beyond its last
    int64_t prefill_tokens, decode_tokens, prefill_ns, decode_ns, last_step_ns, steps;
    uint64_t steps_of[COT_STEP_CLASSES];
    uint64_t prefill_read_bytes, decode_read_bytes;
} cot_loop;

/* Errors: OUT_OF_MEMORY. Close either way, while the executor lives or thereafter. */
cot_status cot_loop_open(cot_loop *loop, const cot_loop_options *options, const cot_executor *executor,
                         cot_error *error);
void cot_loop_close(cot_loop *loop);

/* As the engine's functions of these names, which are these (coterie/engine.h). */
cot_status cot_loop_submit(cot_loop *loop, uint64_t *id, const cot_request *request, int home,
                           const cot_events *events, cot_error *error);
cot_status cot_loop_cancel(cot_loop *loop, uint64_t id, cot_error *error);
cot_status cot_loop_step(cot_loop *loop, size_t *left, cot_error *error);
cot_status cot_loop_run(cot_loop *loop, const cot_request *requests, size_t count, const cot_events *events,
                        size_t *failed, cot_error *error);
/* Between two steps the executor adopts another placement. Errors: the executor's; UNSUPPORTED where it has none;
 * INVALID_ARGUMENT from within a callback, when a step's answer is still being told. */
cot_status cot_loop_place(cot_loop *loop, const int32_t *words, int64_t count, cot_error *error);
/* What the cost model asks of a step. */
cot_cost_step cot_loop_cost_step(const cot_step *step);
/* The call that had this status is over: whether the executor is. */
cot_status cot_loop_survives(cot_loop *loop, cot_status status);
/* INVALID_ARGUMENT from within a callback, else as cot_loop_usable. */
cot_status cot_loop_outside(const cot_loop *loop, cot_error *error);
/* PEER_FAILED where an earlier step failed. */
cot_status cot_loop_usable(const cot_loop *loop, cot_error *error);

#endif
