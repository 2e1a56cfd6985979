/* The exact method for any costs: a min-cost flow expert -> (layer, rank) -> rank, by successive shortest paths.
 *
 * Every expert starts at its cheapest rank. First each layer alone: what is beyond c_layer moves along shortest paths
 * within the layer. Then all together: what is beyond c_exp moves along shortest paths through all layers. A path
 * from one place (layer, rank) to another moves the expert there that pays the least for it.
 *
 *     vertices: l * S + s a place; L * S + s a rank */
#ifndef COT_PLACEMENT_PAIRS_H
#define COT_PLACEMENT_PAIRS_H
#include "placement/problem.h"
#include "placement/units.h"

typedef struct cot_pairs {
    const cot_problem *problem;
    int32_t L, E, S;
    cot_units *cost;      // [L][E][S]
    int32_t unit;         // exponent of the unit that they are multiples of
    int32_t *rank;        // [L][E]
    int32_t *head;        // [L][S] an expert at each place, -1 where there is none
    int32_t *next;        // [L][E] another expert at the same place, -1 after the last
    int32_t *count;       // [L][S]
    int32_t *used;        // [S]
    cot_units *potential; // [(L + 1) * S]
} cot_pairs;

cot_status cot_pairs_open(cot_pairs *pairs, const cot_problem *problem, int32_t *rank, cot_error *error);
void cot_pairs_close(cot_pairs *pairs);
cot_status cot_pairs_solve(cot_pairs *pairs, cot_error *error);
/* Lowers peak loads at no cost. Errors: OUT_OF_MEMORY. */
cot_status cot_pairs_even(cot_assignment *assignment, const cot_problem *problem, cot_error *error);
/* Moves an expert to another rank of its layer. */
void cot_pairs_move(cot_pairs *pairs, int32_t l, int32_t e, int32_t to);

#endif
