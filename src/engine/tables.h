/* Tables of `coterie group` that an engine runs by: where experts sit, and which experts a text will call. */
#ifndef COT_ENGINE_TABLES_H
#define COT_ENGINE_TABLES_H
#include "coterie/engine.h"
#include "coterie/predict.h"
#include "checkpoint/config.h"

/* The model, or the trace whose routing takes the place of its gates'. */
typedef struct cot_engine_known {
    const char *name; // for messages
    uint64_t hash;    // of cot_engine_info
} cot_engine_known;

/* Opens a file of tables. Errors: cot_predictor_open's; INVALID_ARGUMENT where they are of other layers, experts, ids or
 * ranks (unless shape->n_ranks is 0) than the model and its group (`shape`), or, where a trace is cut, of other layers than the trace, and where they learnt from
 * another model than `known`, as far as both are known. The caller closes. */
cot_status cot_engine_tables_open(cot_predictor **tables, const char *path, const cot_config *config,
                                  const cot_expert_layout_shape *shape, const cot_engine_routing *routing,
                                  const cot_engine_known *known, cot_error *error);
/* Whether placement `name`, where it says so, was made for that model. Errors: INVALID_ARGUMENT. */
cot_status cot_engine_placement_check(const cot_expert_map *map, const char *name,
                                      const cot_engine_known *known, cot_error *error);
/* [MoE layers][E] the rank of each expert, from the tables' layer `first` on; NULL without tables. */
const int32_t *cot_engine_tables_groups(const cot_predictor *tables, int32_t first);
/* Whether the layout of placement `name` has every expert once, on the rank of the tables' groups. Errors:
 * INVALID_ARGUMENT, naming the first expert that is elsewhere. */
cot_status cot_engine_tables_agree(const int32_t *group, const char *path, const cot_expert_layout *layout,
                                   const char *name, cot_error *error);

/* What foretells the experts of texts. */
typedef struct cot_engine_signatures {
    cot_predictor *tables; // NULL: nothing does
    int32_t n_layers, n_experts;
    float *scores; // [1 + COT_PREDICT_TEXT_TOKENS][E] scratch
} cot_engine_signatures;

/* By the token table of a file, of the model's MoE layers `moe_layer`. Errors: cot_engine_tables_open's, of any number of ranks;
 * INVALID_ARGUMENT where it has no token table. Close either way. */
cot_status cot_engine_signatures_open(cot_engine_signatures *signatures, const char *path,
                                      const cot_config *config, const int32_t *moe_layer,
                                      const cot_engine_known *known, cot_error *error);
void cot_engine_signatures_close(cot_engine_signatures *signatures);
/* Fills in share [MoE layers][E] (schedule/overlap.h) of a text that begins with these n tokens: the mean over its last ones that the
 * table knows; false: it knows none, or there is no table. Not thread-safe. */
bool cot_engine_signature(const cot_engine_signatures *signatures, uint8_t *share, const int32_t *tokens,
                          int64_t n);

#endif
