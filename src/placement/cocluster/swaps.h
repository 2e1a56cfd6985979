/* One layer's groups in motion: the gains of all tokens kept up to date while experts are swapped. */
#ifndef COT_PLACEMENT_COCLUSTER_SWAPS_H
#define COT_PLACEMENT_COCLUSTER_SWAPS_H
#include "placement/cocluster/solver.h"

/* A token's three largest gains less prices, and where the first two are. */
typedef struct cot_podium {
    float best[3]; // -infinity where there are fewer ranks
    int16_t at[2];
} cot_podium;

typedef struct cot_swaps {
    const cot_cocluster *problem;
    int64_t *column;     // [E+1] where each expert's tokens begin
    int32_t *member;     // [column[E]] its tokens, ascending
    float *count;        // [column[E]] how often each called it
    int32_t *rank;       // [E] the groups
    double *load;        // [D] of experts
    float *gain;         // [D][N] of these groups
    double *price;       // [D] on tokens' load
    int32_t *token_rank; // [N] at these prices; within the limit once settled
    double value;        // what it gained when settled
    float *priced;       // [N][D] gains less prices
    cot_podium *podium;  // [N] of these
    double most;         // what no assignment of tokens to these groups gains, by the prices
    float *move;         // [E][D] what moving an expert alone would change, at these prices
    float *pair;         // [E][E] what else swapping two, a < b, changes: last known
    void *scratch;       // [N * 8 bytes] of the token step
} cot_swaps;

cot_status cot_swaps_open(cot_swaps *swaps, const cot_cocluster *problem, cot_error *error);
void cot_swaps_close(cot_swaps *swaps); // all zero is fine
/* Begins from `expert_rank` [E] with `price` [D], NULL: none. */
void cot_swaps_set(cot_swaps *swaps, const int32_t *expert_rank, const double *price);
/* Swaps the ranks of two experts. */
void cot_swaps_swap(cot_swaps *swaps, int32_t a, int32_t b);
/* Whether the expert limit allows it. */
bool cot_swaps_may(const cot_swaps *swaps, int32_t a, int32_t b);
/* Finds the prices of these groups. */
void cot_swaps_price(cot_swaps *swaps);
/* The token step at these prices: token_rank and value. */
void cot_swaps_settle(cot_swaps *swaps);
/* Learns `pair` of all experts. */
void cot_swaps_pairs(cot_swaps *swaps);
/* Makes one swap or several, the most promising at these prices, such that the new groups gain at theirs; false, and
 * nothing has changed: none was found. */
bool cot_swaps_improve(cot_swaps *swaps);

#endif
