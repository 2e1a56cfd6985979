/* Placements of an engine's experts as maps of all its slots, and moves to them: what tests of moves share. */
#ifndef COT_TESTS_HARNESS_ENGINE_PLACEMENTS_H
#define COT_TESTS_HARNESS_ENGINE_PLACEMENTS_H
#include "engine/engine_state.h"

#include <stdbool.h>

/* Slot number `place` of a layer, rank after rank. */
int32_t *slot_of(const cot_expert_map *map, int32_t layer, int32_t place);
/* Where experts are now; the caller's. */
cot_expert_map map_of(cot_engine *engine);
bool rank_has(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert);
/* Slots of the rank that are not free. */
int32_t count_on(const cot_expert_map *map, int32_t layer, int32_t rank);
/* Into a free slot of the rank, one of which stays free; whether there was one, and it does not have the expert. */
bool put(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert);
/* Every rank has the experts that the map gives it, in whatever slots. */
void assert_reached(cot_engine *engine, const cot_expert_map *to);

/* As fast as steps allow. */
cot_engine_moves_options at_once(void);
/* Begins moves to where the map has experts; their number. */
uint64_t must_move(cot_engine *engine, const cot_expert_map *to);
cot_engine_moves moves_of(cot_engine *engine);
/* For whatever reason. */
int64_t given_up(const cot_engine_moves *moves);

#endif
