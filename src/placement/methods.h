/* The methods beside the exact ones: each fills an assignment or a map of slots. */
#ifndef COT_PLACEMENT_METHODS_H
#define COT_PLACEMENT_METHODS_H
#include "coterie/place.h"
#include "placement/problem.h"

/* Round robin (paper, section 4.1): a layer's experts in order, c_layer to a rank, on the ranks around the layer's
 * home, half to the left and half to the right on the circle of ranks; a full rank is passed over. */
cot_status cot_place_rr(cot_assignment *assignment, const cot_problem *problem, const int32_t *home,
                        cot_error *error);
/* Greedy (section 4.2): each expert in order on the cheapest rank with room, the lower number of equal ones. */
cot_method cot_place_greedy;
/* Exact for load(rank) <= limit * mean in every layer as far as that can be: the assignment obeys it, and its prices,
 * with those of load, prove `*dual`. `layers` [L] are the numbers that messages name. Errors: also INVALID_ARGUMENT,
 * with the least limit that was met: asked for that one, it is met again. */
cot_status cot_place_limited(cot_assignment *assignment, double *dual, const cot_problem *problem,
                             const int32_t *layers, double limit, cot_error *error);

/* A layer of slots: which expert sits in slot i of rank s, [S][slots]; an expert in several of them is replicated and
 * its load split evenly. */
typedef struct cot_slots {
    int32_t S, E, slots; // a rank
    int32_t *expert;     // [S][slots]
    const double *load;  // [E]
    int32_t *replicas;   // [E]
} cot_slots;

/* Swaps slots of the most loaded rank with others as long as that lowers the peak, down to within 1e-4 of what no
 * placement of these replicas is below. `sum` [S + S * slots] is scratch; its first S are the ranks' loads afterwards. */
void cot_slots_balance(cot_slots *slots, double *sum);
/* Swaps slots as long as that lowers the cost without any rank above `limit` (a load); cost as cot_costs has it for
 * layer `l`. Errors: OUT_OF_MEMORY. */
cot_status cot_slots_near(cot_slots *slots, const cot_costs *costs, int32_t l, cot_dispatch dispatch,
                          double limit, cot_error *error);

#endif
