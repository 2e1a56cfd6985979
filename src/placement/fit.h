/* Fits a running placement into another number of slots. */
#ifndef COT_PLACEMENT_FIT_H
#define COT_PLACEMENT_FIT_H
#include "coterie/place.h"

/* `*map` holds, for each layer of `costs`, the experts of `current` in `slots_per_rank` slots of every rank, all of them
 * filled. Where a rank has too many experts some leave it, replicas first; where it has too few, its slots are filled,
 * those of the least loaded ranks first. With `slots_per_rank` 0 the slots are those of `current`, and empty ones stay
 * empty. Errors: INVALID_ARGUMENT, MALFORMED (layers, experts or ranks that disagree, an expert without a slot),
 * OUT_OF_MEMORY. The caller frees. */
cot_status cot_place_fit(cot_expert_map *map, const cot_expert_map *current, const cot_costs *costs,
                         int32_t slots_per_rank, cot_error *error);

#endif
