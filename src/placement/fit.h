/* A running placement in other slots. */
#ifndef COT_PLACEMENT_FIT_H
#define COT_PLACEMENT_FIT_H
#include "coterie/place.h"

/* `*map` holds, for each layer of `costs`, the experts of `current`, in `slots_per_rank` slots of every rank, all of them
 * filled: what a rank has too many of goes, replicas first; what is empty is filled, least loaded ranks first. With
 * `slots_per_rank` 0 they are current's slots, empty ones stay empty. Errors: INVALID_ARGUMENT, MALFORMED (layers,
 * experts or ranks that disagree, an expert without a slot), OUT_OF_MEMORY. The caller frees. */
cot_status cot_place_fit(cot_expert_map *map, const cot_expert_map *current, const cot_costs *costs,
                         int32_t slots_per_rank, cot_error *error);

#endif
