/* Routing that an engine replays, from its options. */
#ifndef COT_ENGINE_REPLAY_H
#define COT_ENGINE_REPLAY_H
#include "coterie/engine.h"
#include "coterie/predict.h"
#include "checkpoint/config.h"
#include "model/replay.h"

/* Fills in and checks what does not depend on where experts sit; `moe_layer` are the numbers of the model's MoE layers.
 * Errors: INVALID_ARGUMENT: a trace of another E, K or of other layers, or whose tokens call an expert twice. */
cot_status cot_engine_replay_of(cot_replay *replay, const cot_engine_routing *routing,
                                const cot_config *config, const int32_t *moe_layer, cot_error *error);
/* Whether drawn routing can be had where experts sit. Errors: INVALID_ARGUMENT: replicas, a rank with too few experts or too
 * many. */
cot_status cot_engine_replay_check_layout(const cot_replay *replay, const cot_expert_layout *layout,
                                          int32_t top_k, cot_error *error);
/* The layer of tables that is the model's first MoE layer. */
int32_t cot_engine_replay_first_layer(const cot_engine_routing *routing);
/* Where the tables know the trace's tokens by their strings: `*row` of the tables for each id of the trace, -1 where they have
 * none, which the caller frees; else NULL. Errors: INVALID_ARGUMENT: one of them has strings, the other ids of a vocabulary;
 * OUT_OF_MEMORY. */
cot_status cot_engine_replay_rows(int32_t **row, const cot_engine_routing *routing,
                                  const cot_predictor *tables, cot_error *error);
/* Whether a request's tokens, up to `limit`, are recorded. Errors: INVALID_ARGUMENT. */
cot_status cot_engine_replay_check_request(const cot_replay *replay, const cot_request *request,
                                           int64_t limit, cot_error *error);

#endif
