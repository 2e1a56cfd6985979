/* Tables of `coterie group` that an engine runs by: where experts sit. */
#ifndef COT_ENGINE_TABLES_H
#define COT_ENGINE_TABLES_H
#include "coterie/engine.h"
#include "coterie/predict.h"
#include "model/config.h"

/* Opens a file of tables. Errors: cot_predictor_open's; INVALID_ARGUMENT where they are of other layers, experts, ids or
 * ranks than the model and its group (`shape`), or, where a trace is cut, of other layers than the trace. A model of the same shape is not told apart. The caller closes. */
cot_status cot_engine_tables_open(cot_predictor **tables, const char *path, const cot_config *config,
                                  const cot_expert_layout_shape *shape, const cot_engine_routing *routing,
                                  cot_error *error);
/* [MoE layers][E] the rank of each expert, from the tables' layer `first` on; NULL without tables. */
const int32_t *cot_engine_tables_groups(const cot_predictor *tables, int32_t first);
/* Whether the layout of placement `name` has every expert once, on the rank of the tables' groups. Errors:
 * INVALID_ARGUMENT, naming the first expert that is elsewhere. */
cot_status cot_engine_tables_agree(const int32_t *group, const char *path, const cot_expert_layout *layout,
                                   const char *name, cot_error *error);

#endif
