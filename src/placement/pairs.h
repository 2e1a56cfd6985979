/* The exact method for any costs: a min-cost flow expert -> (layer, rank) -> rank, by successive shortest paths.
 *
 * Every expert starts at its cheapest rank. First each layer alone: what is beyond c_layer moves along shortest paths
 * within the layer. Then all together: what is beyond c_exp moves along shortest paths through all layers. A path
 * from one place (layer, rank) to another moves the expert there that pays the least for it.
 *
 *     vertices: l * S + s a place; L * S + s a rank; (L + 1) * S the sink */
#ifndef COT_PLACEMENT_PAIRS_H
#define COT_PLACEMENT_PAIRS_H
#include "placement/problem.h"

typedef struct cot_pairs {
    const cot_problem *problem;
    int32_t L, E, S;
    double *cost;      // [L][E][S] multiples of a unit, so that their sums are exact
    bool exact;        // the problem's costs are such multiples, so that none was rounded
    int32_t *rank;     // [L][E]
    int32_t *head;     // [L][S] an expert at each place, -1 where there is none
    int32_t *next;     // [L][E] another expert at the same place, -1 after the last
    int32_t *count;    // [L][S]
    int32_t *used;     // [S]
    double *potential; // [(L + 1) * S + 1]
} cot_pairs;

cot_status cot_pairs_open(cot_pairs *pairs, const cot_problem *problem, int32_t *rank, cot_error *error);
void cot_pairs_close(cot_pairs *pairs);
cot_status cot_pairs_solve(cot_pairs *pairs, cot_error *error);
/* As cot_chain_polish: `potential` [(L + 1) * S + 1] become exact. */
cot_status cot_pairs_polish(cot_pairs *pairs, cot_double_double *potential, cot_error *error);
/* Lowers peak loads at no cost. Errors: OUT_OF_MEMORY. */
cot_status cot_pairs_even(cot_assignment *assignment, const cot_problem *problem, cot_error *error);
/* Moves an expert to another rank of its layer. */
void cot_pairs_move(cot_pairs *pairs, int32_t l, int32_t e, int32_t to);

#endif
