/* Inside an engine: shared by measure.c and open.c (opening), ranks.c (steps) and stats.c. */
#ifndef COT_ENGINE_STATE_H
#define COT_ENGINE_STATE_H
#include "coterie/predict.h"
#include "engine/group.h"
#include "engine/loop.h"
#include "engine/masks.h"
#include "engine/migrate.h"
#include "engine/options.h"
#include "engine/saving.h"
#include "engine/sampler.h"
#include "engine/tables.h"
#include "placement/epoch.h"
#include "placement/rebalance.h"
#include "schedule/budget.h"

#include <pthread.h>

/* What the executor of ranks (ranks.c) keeps of a step, sized at open. */
typedef struct cot_ranks {
    cot_step_result result; // of the last step
    cot_sampler sampler;
    cot_masks masks;
    cot_executor_span *came; // [sequences] by span
    cot_logprob *top;        // [sequences][COT_MAX_LOGPROB_TOKENS] by span
    uint16_t *token_experts; // [MoE layers][K] of one token
    float *token_weights;
    bool *touched;                           // [E]
    cot_step_counts told[COT_MAX_RANKS];     // what was counted when a step was last reported
    cot_rank_routing routing[COT_MAX_RANKS]; // since the report before
    cot_cost_load served[COT_MAX_RANKS];     // in the last step
    struct {
        uint64_t rows, experts, received;
    } served_since[COT_MAX_RANKS]; // the report before
} cot_ranks;

/* Where experts are now: rank 0's account of what all ranks have. */
typedef struct cot_placing {
    pthread_mutex_t mutex; // of `second`: other threads read the layout in force
    bool second;           // which of both epochs is in force
    cot_expert_epoch epoch[2];
    int32_t *held;  // [MoE layers][P * slots] the expert whose weights a slot has; -1: none
    int32_t *place; // [MoE layers][P * slots] its place in its rank's pool; -1: none
} cot_placing;

/* Experts on their way from rank to rank. */
typedef struct cot_moving {
    bool under_way, movable;        // movable: the option
    cot_engine_moves_options usual; // by the options
    int64_t timeout_ns;
    cot_migrate migrate; // while under way
    cot_migrate_budget budget;
    bool bounded;                // they are of a cycle, and end when they take longer than their bytes should
    int64_t began_ns, all_bytes; // when they did; of all their copies
    cot_engine_moves told;       // by the mutex of cot_placing: other threads read it
} cot_moving;

/* Experts that the engine moves by itself. */
typedef struct cot_rebalancing {
    cot_rebalance_mode mode;  // the option
    cot_rebalance controller; // where mode is not OFF
    int64_t steps, tokens;    // of the loop at the last cycle
    double *calls, *copy_ns;  // [MoE layers][E], [MoE layers] scratch
    double copied_ns, copied_bytes;
    uint64_t counted_id; // the moves whose copies are in those
    cot_saving saving;
    cot_engine_rebalancing told; // by the mutex of cot_placing: other threads read it
    int64_t last_ns;             // the same: when the last cycle was, or the engine was opened
} cot_rebalancing;

/* What KV pages and spare slots of experts take together, and how it is split (schedule/budget.h). */
typedef struct cot_budgeting {
    size_t bytes, page_bytes; // that they share, 0: they share none; of one page, over all ranks
    size_t states_bytes;      // of the option's bytes, that states of sequences and snapshots have beside
    bool moves;               // the split does; else slots have theirs from the beginning
    bool has_moved;           // experts, since places that none has were emptied
    int64_t pages, least;     // that are to be open; that stay open
    cot_budget split;
    cot_page_worth worth;
    int32_t *moved, *own;   // [2 pages] scratch; [MoE layers][P] slots that moves under way may fill
    int64_t steps, ns;      // of the loop at the last look
    cot_engine_budget told; // by the mutex of cot_placing
} cot_budgeting;

struct cot_engine {
    cot_checkpoint *checkpoint;
    const cot_config *config;
    cot_networks networks;
    cot_whole_weights whole;
    cot_loader_progress progress;
    cot_engine_group *group;
    cot_runner_options runner;
    cot_arena attention; // scratch of the ranks in this process
    cot_engine_info info;
    const char *name;         // of the model, for messages: while it is opened
    int32_t *moe_layer;       // [MoE layers]
    cot_expert_layout layout; // of those over the ranks, at first
    cot_placing placing;
    cot_moving moving;
    cot_rebalancing rebalancing;
    cot_budgeting budgeting;
    cot_predictor *tables;            // by whose groups experts sit, in every epoch; NULL: there are none
    int32_t first_table;              // the layer of tables that is the first MoE layer
    cot_replay replay;                // where the options give routing
    int32_t *row_of_id;               // of the tables, where the trace replayed has ids of its own
    cot_engine_signatures signatures; // what foretells the experts of requests
    bool admits_by_experts, homes_by_experts;     // the options
    int64_t block_tokens, tbt_ns, max_wait_steps; // the options
    cot_profiles_options profiles;
    uint64_t likeness; // of the model, to tell it from another
    cot_ranks ranks;
    cot_loop loop;
};

/* Whether the options let any request's experts be foretold. */
bool cot_engine_foretells(const cot_engine *engine);
/* The schedule's foresight (schedule/scheduler.h); context is the engine. A prompt's experts are those that its longest beginning in
 * the KV cache called; what that does not tell the token tables do, and if they know nothing either all of a layer are alike. */
bool cot_engine_expect(const void *context, uint8_t *share, const cot_request *request);
const cot_expert_layout *cot_engine_layout_now(const void *context);

/* The engine's group of ranks as the executor of its loop; close either way. Errors: OUT_OF_MEMORY. */
cot_status cot_ranks_open(cot_executor *executor, cot_engine *engine, cot_error *error);
void cot_ranks_close(cot_ranks *ranks);

/* Begins with the engine's first layout; close either way. Errors: OUT_OF_MEMORY. */
cot_status cot_placing_open(cot_placing *placing, const cot_runner_options *runner, cot_error *error);
void cot_placing_close(cot_placing *placing);
/* The executor's `place`; context is the engine. Errors: INVALID_ARGUMENT: those of cot_expert_changes_check; a slot that does not
 * hold the expert's weights; what drawn routing, s-moe or its tables do not allow. UNSUPPORTED: layers share experts. */
cot_status cot_engine_place(void *context, const int32_t *words, int64_t count, cot_error *error);
/* What else a layout has to be, in every epoch: as drawn routing, s-moe, tables want it. Errors: INVALID_ARGUMENT. */
cot_status cot_placing_check(const cot_engine *engine, const cot_expert_layout *layout, cot_error *error);
/* Chunks of experts go, as cot_engine_group_copy has it. A slot holds what it gets once the last chunk of it has come as it was sent, for whoever
 * asks for all of them one after the other. Between two steps. Errors: INVALID_ARGUMENT: no such slot, one to copy to that is in use, one to copy
 * from that holds another expert; UNSUPPORTED: layers share experts; those of ranks that could not take a chunk, whose verdicts say
 * so; TIMED_OUT, PEER_FAILED. */
cot_status cot_engine_copy(cot_engine *engine, const cot_runner_chunk *chunk, int64_t count,
                           cot_runner_verdict *verdict, cot_error *error);

/* cot_engine_move_experts, in whatever part of the loop between two steps. */
cot_status cot_moving_begin(cot_engine *engine, const cot_expert_map *to, const char *name,
                            const cot_engine_moves_options *options, uint64_t *id, cot_error *error);
/* Moves go on by one command, as far as their share of step_ns goes. Errors: TIMED_OUT, PEER_FAILED. */
cot_status cot_moving_go_on(cot_engine *engine, int64_t step_ns, cot_error *error);
void cot_moving_close(cot_moving *moving);
/* What would be refused again in each cycle is refused as soon as the pipeline is known. Errors: INVALID_ARGUMENT, UNSUPPORTED: what does not
 * go with the option `rebalance`, by name. */
cot_status cot_rebalancing_check(const cot_engine *engine, const cot_engine_resolved *options,
                                 cot_error *error);
/* The options' rebalancing begins. Close either way. Errors: OUT_OF_MEMORY. */
cot_status cot_rebalancing_open(cot_engine *engine, const cot_engine_resolved *options, cot_error *error);
void cot_rebalancing_close(cot_rebalancing *rebalancing);
/* A step was run, and took so long. */
void cot_rebalancing_see(cot_engine *engine, const cot_step *step, int64_t ns);
/* Moves of a cycle were given up since they took too long. */
void cot_rebalancing_give_up(cot_engine *engine);
/* Behind a step: where a cycle is due, and no moves are under way, it is made, and its moves begin. Errors: TIMED_OUT, PEER_FAILED. */
cot_status cot_rebalancing_go_on(cot_engine *engine, cot_error *error);

/* The split of the options' memory, as it is at first, of a loop and rebalancing that are open. Close either way. Errors: OUT_OF_MEMORY. */
cot_status cot_budgeting_open(cot_engine *engine, cot_error *error);
void cot_budgeting_close(cot_budgeting *budgeting);
/* Behind a step without moves under way: places that no expert has are emptied, and pages open where slots have made room. Errors: TIMED_OUT,
 * PEER_FAILED. */
cot_status cot_budgeting_go_on(cot_engine *engine, cot_error *error);
/* A cycle is due: what pages and slots are worth is weighed, pages close that slots are to have, and how much those may take is told the
 * controller. Errors: TIMED_OUT, PEER_FAILED, OUT_OF_MEMORY. */
cot_status cot_budgeting_look(cot_engine *engine, const cot_rebalance_seen *seen, cot_rebalance_clock now,
                              cot_error *error);
/* Whether slots are open for moves from one layout to another; then `own` is as those need it. Errors: INVALID_ARGUMENT. */
cot_status cot_budgeting_check_moves(cot_engine *engine, const cot_expert_layout *from,
                                     const cot_expert_layout *to, cot_error *error);

/* A status that ends the group gets the copy that is under way added to its message. Returns it. */
cot_status cot_moving_explain(const cot_engine *engine, cot_status status, cot_error *error);

/* Bytes of weights and KV that a step with this routing ([MoE layers][step_tokens][K]) had to read, each once: matrices
 * as they are packed, int8's with their scales, biases of networks, and keys and values as they are stored, of the
 * positions that the step's tokens see. Norms, biases of attention and rows of the embedding are left out. */
uint64_t cot_engine_read_bytes(cot_engine *engine, const cot_step *step, const uint16_t *experts);

/* What a step's parts cost, but for a common factor: bytes that are read. */
void cot_engine_cost_prior(const cot_engine *engine, double prior[COT_COST_TERMS]);

#endif
