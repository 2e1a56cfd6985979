/* The exact method for product costs: a min-cost flow over few nodes.
 *
 * Ranks whose columns of costs and whose capacities are equal merge into groups. In a layer, groups at the same cost
 * form a class. By the rearrangement inequality an optimum puts the layer's experts, sorted by falling load, into its
 * classes, sorted by rising cost; so a layer is told by how many experts each class takes, and with N_k of them in
 * classes 0..k its cost is a sum of convex functions of the N_k. That is a flow down a chain:
 *
 *     E experts --> class 0 --> class 1 --> class 2 ...      on the arc from class k to k + 1 the E - N_k experts
 *                     |           |           |              of least load pay cost[k + 1] - cost[k] more each
 *                   groups      groups      groups           at most c_layer a rank
 *                     \___________|___________/
 *                           all layers: at most c_exp a rank
 *
 * Each layer alone is filled from the near classes on. What that puts on a group beyond its c_exp then moves along
 * shortest paths of the residual graph (successive shortest paths with potentials), until nothing is beyond. Costs are
 * whole multiples of a unit (placement/units.h): what an expert pays is its load times a difference of costs, rounded down
 * where at all, which keeps it rising with the load, and so the functions convex. */
#ifndef COT_PLACEMENT_CHAIN_H
#define COT_PLACEMENT_CHAIN_H
#include "placement/problem.h"
#include "placement/sort.h"
#include "placement/units.h"

typedef struct cot_chain {
    const cot_problem *problem;
    int32_t L, E, S;
    int32_t G;            // groups
    int32_t C;            // classes of all layers
    int32_t *member;      // [S] ranks, group by group
    int32_t *first;       // [G+1] members of group g are member[first[g] .. first[g+1])
    int32_t *cap_layer;   // [G] experts of a layer that a group holds
    int64_t *cap;         // [G] experts in all
    int64_t *used;        // [G]
    int32_t *expert;      // [L][E] experts by falling load
    double *load;         // [L][E] their loads
    int32_t *group;       // [L][G] groups by rising cost
    int32_t *class_first; // [L+1] classes of layer l
    int32_t *layer;       // [C]
    int32_t *group_first; // [C+1] the class's groups, in `group`
    cot_units_magnitude
        *step;            // [C] cost of the layer's next class minus the class's, in 2^grid; 0 of the last
    int32_t *below;       // [C] N_k
    int32_t *count;       // [G][L] experts that a group has of a layer
    int32_t *class_of;    // [G][L]
    cot_units *potential; // [G + C] groups, then classes; in units
    int32_t unit, grid;   // exponents of the unit, and of what steps are multiples of
    void *memory;
} cot_chain;

cot_status cot_chain_open(cot_chain *chain, const cot_problem *problem, cot_error *error);
void cot_chain_close(cot_chain *chain);
/* Finds the optimum and its potentials. */
cot_status cot_chain_solve(cot_chain *chain, cot_error *error);
/* Deals experts to ranks: in every class and layer the smaller peak load. */
cot_status cot_chain_deal(cot_assignment *assignment, const cot_chain *chain, cot_error *error);

/* What the i-th hottest expert of a layer pays for going from class c to the next. */
static inline cot_units cot_chain_pay(const cot_chain *chain, int32_t c, int32_t i)
{
    const double load = chain->load[(size_t)chain->layer[c] * (size_t)chain->E + (size_t)i];
    const cot_units_factor f = cot_units_split(load);
    return cot_units_times(chain->step[c], f.mantissa, f.exponent + chain->grid - chain->unit);
}
static inline bool cot_chain_last(const cot_chain *chain, int32_t c)
{
    return c + 1 == chain->class_first[chain->layer[c] + 1];
}

#endif
