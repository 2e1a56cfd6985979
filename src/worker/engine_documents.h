/* What an engine says of itself, as the documents of a backend. */
#ifndef COT_WORKER_ENGINE_DOCUMENTS_H
#define COT_WORKER_ENGINE_DOCUMENTS_H
#include "coterie/engine.h"
#include "worker/step_reports.h"

/* All but the fingerprint. What it points to is the engine's. */
cot_backend_info cot_worker_info_of(const cot_engine *engine);
/* Takes what `*stats` holds over, which is cleared. False where memory ran out, and `*metrics` is empty. */
bool cot_worker_metrics_of(cot_backend_metrics *metrics, cot_stats *stats);
void cot_worker_metrics_clear(cot_backend_metrics *metrics); // an empty one is fine
/* The caller frees it. Errors: OUT_OF_MEMORY. Thread-safe. */
cot_status cot_worker_placement_of(cot_backend_placement *placement, cot_engine *engine, cot_error *error);
/* As of now. The caller frees it. Errors: OUT_OF_MEMORY. Between two steps. */
cot_status cot_worker_popularity_of(cot_backend_popularity *popularity, const cot_engine *engine,
                                    cot_error *error);
/* A step's, whose ranks are written to `ranks` [report->ranks]. */
cot_backend_report cot_worker_report_of(const cot_step_report *report, cot_backend_rank *ranks);

#endif
