/* EPLB's map of experts to slots, and how good such a map is. */
#ifndef COT_PLACEMENT_EPLB_H
#define COT_PLACEMENT_EPLB_H
#include "coterie/status.h"
#include <stdint.h>

/* Sizes of one layer of EPLB's problem; slots and ranks divide as it demands. */
typedef struct cot_eplb_shape {
    int32_t experts, slots, groups, nodes, gpus;
} cot_eplb_shape;

/* Room for the work on a layer; all zero is closed. */
typedef struct cot_eplb_scratch {
    void *memory;
} cot_eplb_scratch;

/* Checks what the reference asserts. Errors: INVALID_ARGUMENT. */
cot_status cot_eplb_check(const cot_eplb_shape *shape, cot_error *error);
cot_status cot_eplb_open(cot_eplb_scratch *scratch, const cot_eplb_shape *shape, cot_error *error);
void cot_eplb_close(cot_eplb_scratch *scratch);
/* One layer: `expert` [slots] of each slot, `replica` [slots] which of the expert's it is, `replicas` [experts]. */
void cot_eplb_layer(int32_t *expert, int32_t *replica, int32_t *replicas, const float *weight,
                    const cot_eplb_shape *shape, cot_eplb_scratch *scratch);

#endif
