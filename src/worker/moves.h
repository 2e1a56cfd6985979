/* Experts that an engine's worker is asked to move: the placement that is wanted, from its text to the engine and back, and what has
 * become of all such. */
#ifndef COT_WORKER_MOVES_H
#define COT_WORKER_MOVES_H
#include "coterie/engine.h"
#include "worker/backend.h"

typedef struct cot_worker_moves {
    /* By the lock of the worker. */
    bool asked, answered; // a placement is wanted, or a cycle; the engine has said what comes of it
    bool cycle, dry;      // what is asked for is a cycle, and a dry one
    json_t *told;         // what has come of the cycle
    uint64_t cancelled;   // moves that are to end; 0: none
    cot_error answer;     // status OK: they go under
    uint64_t id;          // this number
    uint64_t last;        // the number of the last; 0: none was asked for
    cot_backend_moves kept
        [COT_BACKEND_MOVES];  // those of number n, which are not the last any more perhaps, at n modulo that
    cot_backend_moves before; // all before the last, added up
    /* The loop's until it is asked for, the engine's thread's until that is answered. */
    cot_expert_map to;
    /* The engine's thread's. */
    bool go_on;    // there are moves that are not over
    bool advanced; // the last step has brought them on
} cot_worker_moves;

/* Reads a placement for the engine's model. Errors: those of cot_expert_map_read; NOT_FOUND: it has no experts; UNSUPPORTED: they are not
 * to move. */
cot_status cot_worker_moves_read(cot_expert_map *map, const cot_engine *engine, const char *text,
                                 size_t bytes, cot_error *error);
/* The last ones; their id is 0 where none were asked for. */
static inline cot_backend_moves *cot_worker_moves_last(cot_worker_moves *m)
{
    return &m->kept[m->last % COT_BACKEND_MOVES];
}
/* As backends tell of them. */
void cot_worker_moves_of(cot_backend_moves *moves, const cot_engine_moves *m);
void cot_worker_moves_add(cot_backend_moves *sum, const cot_backend_moves *m);
/* A cycle, with what would be or is done, {"id", "dry_run", "mode", "copies", "drops", "step_seconds", "saving_seconds", "layers", "changes"}. The
 * caller's; NULL: out of memory. */
json_t *cot_worker_cycle_json(const cot_engine_cycle *cycle, bool dry, const char *mode);
/* False: it is off. */
bool cot_worker_rebalancing_of(cot_backend_rebalancing *out, cot_engine *engine);
/* Errors: NOT_FOUND: there are no experts; UNSUPPORTED: rebalancing is off. */
cot_status cot_worker_rebalances(cot_engine *engine, cot_error *error);
/* Where the engine's experts are, in Coterie's format, which the caller frees. Errors: NOT_FOUND: it has none; OUT_OF_MEMORY. */
cot_status cot_worker_placement_text(char **text, size_t *bytes, cot_engine *engine, cot_error *error);

#endif
