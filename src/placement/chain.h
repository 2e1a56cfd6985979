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
 * shortest paths of the residual graph (successive shortest paths with potentials), until nothing is beyond. */
#ifndef COT_PLACEMENT_CHAIN_H
#define COT_PLACEMENT_CHAIN_H
#include "placement/problem.h"
#include "placement/sort.h"

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
    double *step;         // [C] cost of the layer's next class minus the class's; 0 of the last
    int32_t *below;       // [C] N_k
    int32_t *count;       // [G][L] experts that a group has of a layer
    int32_t *class_of;    // [G][L]
    double *potential;    // [G + C] groups, then classes
    double unit;          // all costs are multiples of it, so that their sums are exact
    bool exact;           // the data are such multiples themselves
    void *memory;
} cot_chain;

cot_status cot_chain_open(cot_chain *chain, const cot_problem *problem, cot_error *error);
void cot_chain_close(cot_chain *chain);
/* Finds the optimum of the rounded costs. */
cot_status cot_chain_solve(cot_chain *chain, cot_error *error);
/* Turns it into the optimum of the costs themselves: potentials become exact ([G + C + 1], the last one the sink's),
 * cycles that are worth it by less than the rounding are turned. */
cot_status cot_chain_polish(cot_chain *chain, cot_double_double *potential, cot_error *error);
/* Deals experts to ranks: in every class and layer the smaller peak load. */
cot_status cot_chain_deal(cot_assignment *assignment, const cot_chain *chain, cot_error *error);

/* What the i-th hottest expert of a layer pays for going from class c to the next. */
static inline double cot_chain_pay(const cot_chain *chain, int32_t c, int32_t i)
{
    double pay = chain->step[c] * chain->load[(size_t)chain->layer[c] * (size_t)chain->E + (size_t)i];
    if (chain->exact) return pay;
    return __builtin_rint(pay / chain->unit) * chain->unit; // unit is a power of two
}
static inline cot_double_double cot_chain_pay_exactly(const cot_chain *chain, int32_t c, int32_t i)
{
    const double *cost = chain->problem->cost + (size_t)chain->layer[c] * (size_t)chain->S;
    double load = chain->load[(size_t)chain->layer[c] * (size_t)chain->E + (size_t)i];
    double here = cost[chain->member[chain->first[chain->group[chain->group_first[c]]]]];
    double next = cost[chain->member[chain->first[chain->group[chain->group_first[c + 1]]]]];
    return cot_double_double_subtract(cot_double_double_product(load, next),
                                      cot_double_double_product(load, here));
}
static inline bool cot_chain_last(const cot_chain *chain, int32_t c)
{
    return c + 1 == chain->class_first[chain->layer[c] + 1];
}

#endif
