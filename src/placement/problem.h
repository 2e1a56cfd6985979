/* The placement problem, and what every method without replicas makes of it.
 *
 * Each of E experts of each of L layers goes to one of S ranks; a rank holds at most c_layer of a layer and c_exp of
 * all. The objective is the sum over experts of what they cost where they are:
 *
 *     product     load[l][e] * cost[l][s]     what an activation costs times how many there are
 *     pair        pair_cost[l][e][s]          sources known: experts of a layer are seen from different ranks */
#ifndef COT_PLACEMENT_PROBLEM_H
#define COT_PLACEMENT_PROBLEM_H
#include "coterie/status.h"
#include "placement/double_double.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_problem {
    int32_t L, E, S;
    const double *load;      // [L][E] >= 0
    const double *cost;      // [L][S] >= 0; NULL when pair_cost is given
    const double *pair_cost; // [L][E][S] >= 0; NULL when cost is given
    const int32_t *c_layer;  // [S] >= 0
    const int32_t *c_exp;    // [S] >= 0
} cot_problem;

/* Where experts are, and what proves that no placement is better: prices of capacity. For any prices of 0 or more,
 *
 *     sum_le min_s (cost of e at s + price_s + layer_price_ls) - sum_s price_s c_exp_s - sum_ls layer_price_ls c_layer_s
 *
 * is no more than the cost of any placement. */
typedef struct cot_assignment {
    int32_t *rank;                  // [L][E]
    bool priced;                    // the prices below are filled in
    cot_double_double *price;       // [S]
    cot_double_double *layer_price; // [L][S]
} cot_assignment;

/* Errors: OUT_OF_MEMORY. The caller frees, on failure too. */
cot_status cot_assignment_open(cot_assignment *assignment, const cot_problem *problem, cot_error *error);
void cot_assignment_close(cot_assignment *assignment);

/* Checks that the capacities suffice. Errors: INVALID_ARGUMENT, naming the constraint and what is missing. */
cot_status cot_problem_feasible(const cot_problem *problem, cot_error *error);

/* A method: fills an assignment that is open. Each checks feasibility. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
typedef cot_status cot_method(cot_assignment *assignment, const cot_problem *problem, cot_error *error);

/* The exact methods, for product costs and for any costs. Of several optima they take one with a small peak load. */
cot_method cot_place_chain;
cot_method cot_place_pairs;

static inline double cot_problem_cost(const cot_problem *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e;
    return p->cost ? p->load[at] * p->cost[(size_t)l * (size_t)p->S + (size_t)s]
                   : p->pair_cost[at * (size_t)p->S + (size_t)s];
}

#endif
