/* Simulated annealing of one layer's groups. One expert after the other stays or swaps with another one, by chance: the
 * more a swap loses, the less likely it is. The tokens' gains and the prices on their load are kept up to date. */
#ifndef COT_COCLUSTER_ANNEAL_H
#define COT_COCLUSTER_ANNEAL_H
#include "cocluster/solver.h"

typedef struct cot_anneal {
    const cot_cocluster *problem;
    int64_t stride; // N rounded up to whole blocks; what is beyond N is 0
    float *called;  // [E][stride] how often each token called each expert
    int32_t *rank;  // [E] the groups
    int32_t *seat;  // [E] the experts of rank 0, of rank 1, ...
    int32_t *place; // [E] where each expert is in `seat`
    int32_t *order; // [E] the order in which experts get their turn
    double *load;   // [D] of each rank's experts
    double *price;  // [D] on the load of each rank's tokens
    double *kept;   // [D] the prices before a swap
    double *change; // [E] what a swap of the expert at hand with each other changes, at these prices
    float *excess;  // [E][E] by how much `change` proved too high once prices had followed the swap; it fades
    float *gain;    // [D][N] of these groups
    float *priced;  // [D][stride] gains less prices
    double most;    // by the prices an upper bound of what tokens gain with these groups
    int32_t *token_rank; // [N] within the limit once settled
    double value;        // what the tokens gain there
} cot_anneal;

/* Errors: OUT_OF_MEMORY; close it then, too. */
cot_status cot_anneal_open(cot_anneal *anneal, const cot_cocluster *problem, cot_error *error);
void cot_anneal_close(cot_anneal *anneal); // all zero is fine
/* Begins from `expert_rank` [E]; prices begin at `price` [D]; NULL: at none. */
void cot_anneal_set(cot_anneal *anneal, const int32_t *expert_rank, const double *price);
/* Each expert once, in the order that (seed, iteration) draws. At `temperature`, in the unit of gains, a swap that
 * loses as much is e times less likely than none; at 0 only what gains is done. Returns what the swaps looked at
 * lose in the mean. */
double cot_anneal_sweep(cot_anneal *anneal, double temperature, int64_t iteration);
/* The tokens at these prices, settled as cot_cocluster_token_settle does: token_rank and value. */
void cot_anneal_settle(cot_anneal *anneal, int tries, uint64_t stream);

#endif
