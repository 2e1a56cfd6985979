/* Who serves an expert: the ranks of its slots. */
#ifndef COT_PLACEMENT_SEATS_H
#define COT_PLACEMENT_SEATS_H
#include "coterie/place.h"

/* Slots of a layer, expert by expert: the ranks of e are rank[first[e] .. first[e+1]). */
typedef struct cot_seats {
    int32_t *first; // [E+2]
    int32_t *rank;  // [S * slots]
} cot_seats;

cot_status cot_seats_open(cot_seats *seats, const cot_expert_map *map, cot_error *error);
void cot_seats_close(cot_seats *seats);
/* Fills in a row of the map. Errors: MALFORMED (a slot that holds no expert, an expert without a slot). */
cot_status cot_seats_find(cot_seats *seats, const cot_expert_map *map, int32_t row, cot_error *error);
/* Fills in the l-th layer of the costs. Errors: likewise, and where the map lacks it or has other experts or ranks. */
cot_status cot_seats_find_layer(cot_seats *seats, const cot_expert_map *map, const cot_costs *costs,
                                int32_t l, cot_error *error);
/* Ranks from `at` [n] that are the nearest by `cost` go to the front; returns how many they are. */
int32_t cot_seats_nearest(int32_t *at, int32_t n, const double *cost);
/* The map's row of the model's layer, -1 when it has none. */
int32_t cot_map_row(const cot_expert_map *map, int32_t layer);

#endif
