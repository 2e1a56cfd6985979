/* The pipeline of an engine, from its options. */
#ifndef COT_ENGINE_PIPELINE_H
#define COT_ENGINE_PIPELINE_H
#include "coterie/layout.h"
#include "engine/options.h"

/* Fills in defaults (coterie/engine.h). Errors: INVALID_ARGUMENT: choices that do not go together, tables
 * that lack what the prediction reads, replicas where there may be none. */
cot_status cot_engine_pipeline_of(cot_pipeline *pipeline, const cot_engine_resolved *options,
                                  const cot_predictor *tables, const cot_expert_layout *layout,
                                  cot_error *error);
/* Whether s-moe can run where experts of placement `name` sit. Errors: INVALID_ARGUMENT: there are replicas. */
cot_status cot_engine_pipeline_check_layout(const cot_expert_layout *layout, const char *name,
                                            cot_error *error);
/* As the options spell it. */
const char *cot_engine_pipeline_name(const cot_pipeline *pipeline);
const char *cot_engine_predict_name(const cot_pipeline *pipeline);
const char *cot_engine_collective_name(const cot_pipeline *pipeline);

#endif
