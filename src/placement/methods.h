/* The methods beside the exact ones: each fills an assignment or a map of slots. */
#ifndef COT_PLACEMENT_METHODS_H
#define COT_PLACEMENT_METHODS_H
#include "coterie/place.h"
#include "placement/problem.h"

/* Round robin (paper, section 4.1): a layer's experts in order, c_layer to a rank, on the ranks around the layer's
 * home, half to the left and half to the right on the cycle of ranks; a full rank is passed over. */
cot_status cot_place_rr(cot_assignment *assignment, const cot_problem *problem, const int32_t *home,
                        cot_error *error);
/* Greedy (section 4.2): each expert in order on the cheapest rank with room, the lower number of equal ones. */
cot_method cot_place_greedy;
/* Places so that no rank's load is above `limit` times the mean in any layer. `*dual` is the lower bound of the cost of
 * all such placements that its prices, of capacities and of load, prove. `layers` [L] are the numbers that messages name.
 * Errors: as a method's; INVALID_ARGUMENT also where no such placement was found: the message names the least limit
 * that was met, which can be asked for. */
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

/* Swaps slots of the most loaded rank with others as long as that lowers the peak, and until it is within 1e-4 of the
 * lower bound of all placements of these replicas. `sum` [S + S * slots] is scratch; its first S are the ranks' loads
 * afterwards. */
void cot_slots_balance(cot_slots *slots, double *sum);
/* Exchanges and, where that is not enough, packs anew for the least peak found. A rank holds an expert twice only where
 * that lowers the peak by a fiftieth. `*was` and `*peak` are the most loaded rank's loads before and afterwards; of
 * experts with more replicas than there are ranks, others may get some. Errors: OUT_OF_MEMORY. */
cot_status cot_slots_least(cot_slots *slots, double *was, double *peak, cot_error *error);
/* Swaps slots as long as that lowers the cost without any rank above `limit` (a load); cost as cot_costs has it for
 * layer `l`. Errors: OUT_OF_MEMORY. */
cot_status cot_slots_near(cot_slots *slots, const cot_costs *costs, int32_t l, cot_dispatch dispatch,
                          double limit, cot_error *error);
/* The same where replicas share evenly and all slots are filled, faster; it ends when a round of exchanges saves less
 * than 3e-3 of the cost. */
cot_status cot_slots_draw(cot_slots *slots, const cot_costs *costs, int32_t l, double limit,
                          cot_error *error);

#endif
