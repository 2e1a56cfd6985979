/* The slots of a rank: which experts are in them, and how others come. */
#ifndef COT_MODEL_SLOTS_H
#define COT_MODEL_SLOTS_H
#include "model/runner.h"
#include "placement/epoch.h"

typedef struct cot_runner_slots {
    cot_expert_epoch epoch[2];       // the one in force, and room for the one that follows
    const cot_expert_layout *layout; // of the epoch in force
    cot_sym at;                      // all pools
    cot_runner_pool *pool;           // [MoE layers]
    int32_t *place; // [MoE layers][slots of a rank] this rank's, counted from the first of the layer's own
    bool *used;     // scratch: the places of a pool
    cot_sym sums_at,
        sums_signals; // [P]: the checksum of the last chunk of each rank, and a signal that raises with it
    uint64_t copies;  // commands to copy so far
} cot_runner_slots;

/* Each slot has a place, as at first (cot_runner_first_place). Errors: OUT_OF_MEMORY. */
cot_status cot_runner_open_slots(cot_runner *r, cot_error *error);
/* KV pages and spare slots lie in the system's small pages: what is closed or empty between those that are not takes nothing. Before they are touched. */
void cot_runner_use_small_pages(const cot_runner *r);
/* The slots of this rank: what is read into them is recorded. */
void cot_runner_fill_slots(cot_runner *r, cot_loader *load);
/* Gives the operator all layers, where it keeps weights elsewhere than in the slots. */
cot_status cot_runner_keep_layers(cot_runner *r, cot_error *error);

#endif
