/* One layer's groups in motion: the gains of all tokens kept up to date while experts are swapped. */
#ifndef COT_PLACEMENT_COCLUSTER_SWAPS_H
#define COT_PLACEMENT_COCLUSTER_SWAPS_H
#include "placement/cocluster/solver.h"

typedef struct cot_swaps {
    const cot_cocluster *problem;
    int64_t *column;     // [E+1] where each expert's tokens begin
    int32_t *member;     // [column[E]] its tokens, ascending
    float *count;        // [column[E]] how often each called it
    int32_t *rank;       // [E] the groups
    float *gain;         // [N][D] of these
    int32_t *token_rank; // [N] of the latest token step
    double *price;       // [D] its prices
    double *load;        // [D] of experts
    float *move;         // [E][D] what moving an expert alone would change, at these prices
    float *pair;         // [E][E] what else swapping two changes: tokens that call both
    void *candidate;     // [E] swaps to try
    void *scratch;       // [N * 8 bytes] of the token step
    double value;        // gain of the latest token step
} cot_swaps;

cot_status cot_swaps_open(cot_swaps *swaps, const cot_cocluster *problem, cot_error *error);
void cot_swaps_close(cot_swaps *swaps); // all zero is fine
/* Begins from `expert_rank` [E] with no prices. */
void cot_swaps_set(cot_swaps *swaps, const int32_t *expert_rank);
/* Swaps the ranks of two experts. */
void cot_swaps_swap(cot_swaps *swaps, int32_t a, int32_t b);
/* Whether the expert limit allows it, or it lessens an excess. */
bool cot_swaps_may(const cot_swaps *swaps, int32_t a, int32_t b);
/* The token step: token_rank, price and value. */
void cot_swaps_price(cot_swaps *swaps);
/* Makes the swaps that gain most at the prices of the latest token step; returns how many. */
int32_t cot_swaps_improve(cot_swaps *swaps);

#endif
