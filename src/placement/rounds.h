/* Matching ranks, and rounds of transfers. */
#ifndef COT_PLACEMENT_ROUNDS_H
#define COT_PLACEMENT_ROUNDS_H
#include "coterie/place.h"

/* The matching of least cost: row i goes to column match[i]; cost [n][n] finite. Errors: OUT_OF_MEMORY. */
cot_status cot_match(int32_t *match, const double *cost, int32_t n, cot_error *error);
/* Fills in the rounds: an edge colouring of the multigraph of ranks, in which no edge is a loop (from == to is a bug).
 * Errors: OUT_OF_MEMORY. */
cot_status cot_colour_transfers(cot_transfer *transfers, int64_t n, int32_t ranks, int32_t *rounds,
                                cot_error *error);

#endif
