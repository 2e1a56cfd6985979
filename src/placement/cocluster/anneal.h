/* One layer's groups in motion, the gains of all tokens and the prices on their load kept up to date: one expert after
 * the other swaps with one of all the others or stays, by chance, the less likely the more it loses. */
#ifndef COT_PLACEMENT_COCLUSTER_ANNEAL_H
#define COT_PLACEMENT_COCLUSTER_ANNEAL_H
#include "placement/cocluster/solver.h"

typedef struct cot_anneal {
    const cot_cocluster *problem;
    int64_t stride;      // N rounded up to whole blocks; what is beyond N is 0
    float *called;       // [E][stride] how often each token called each expert
    int32_t *rank;       // [E] the groups
    int32_t *seat;       // [E] experts by rank
    int32_t *place;      // [E] where each is among them
    int32_t *order;      // [E] in which experts get their turn
    double *load;        // [D] of experts
    double *price;       // [D] on tokens' load
    double *kept;        // [D] before a swap
    double *change;      // [E] what swapping the expert at hand with each changes, at these prices
    float *excess;       // [E][E] by how much this was too much when prices had answered: last known
    float *gain;         // [D][N] of these groups
    float *priced;       // [D][stride] gains less prices
    double most;         // what no assignment of tokens to these groups gains, by the prices
    int32_t *token_rank; // [N] within the limit once settled
    double value;        // what it gained when settled
    void *scratch;       // [N * 8 bytes] of the token step
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
/* The token step at these prices: token_rank and value. */
void cot_anneal_settle(cot_anneal *anneal);

#endif
