/* What an engine's options come to with a model: its weights and caches laid out, nothing loaded. */
#ifndef COT_ENGINE_MEASURE_H
#define COT_ENGINE_MEASURE_H
#include "engine/engine_state.h"
#include "engine/options.h"
#include "model/loader.h"

/* Threads of all ranks together. */
int cot_engine_threads(const cot_engine_resolved *options);
cot_scheduler_limits cot_engine_limits(const cot_engine *engine);
/* What an engine that is laid out has most experts as; of the first layer's. */
const char *cot_engine_weights_name(const cot_engine *engine);
/* Fills the engine, which has a checkpoint and a name, and the sizes. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY, those of reading
 * tables. */
cot_status cot_engine_lay_out(cot_engine *engine, const cot_engine_resolved *options, cot_loader *load,
                              cot_engine_sizes *sizes, cot_error *error);

#endif
