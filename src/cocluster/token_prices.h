/* Prices on the load of ranks, at which tokens choose their ranks by themselves: of all tokens (cocluster/solver.h), or of
 * some where the others have taken their part of the room. */
#ifndef COT_COCLUSTER_TOKEN_PRICES_H
#define COT_COCLUSTER_TOKEN_PRICES_H
#include "cocluster/solver.h"

typedef struct cot_cocluster_tokens {
    int64_t n, stride; // tokens, and how far one rank's gains are from the next one's
    int32_t D;
    const float *gain;                // [D][stride]
    const float *weight;              // [n] the loads that prices are put on
    const uint64_t *load;             // [n]
    double room[COT_TRACE_MAX_RANKS]; // the load that each rank takes
    double slack;                     // a rank that is as little off its room is as full as it should be
} cot_cocluster_tokens;

cot_cocluster_tokens cot_cocluster_all_tokens(const cot_cocluster *problem, const float *gain);
/* As cot_cocluster_token_prices, in `sweeps` sweeps and one at most; steps are short where a price to begin with is not 0. */
double cot_cocluster_find_prices(int32_t *rank, double *price, double least, int sweeps,
                                 const cot_cocluster_tokens *tokens);
/* As cot_cocluster_token_choose. */
double cot_cocluster_at_prices(int32_t *rank, const double *price, const cot_cocluster_tokens *tokens);

#endif
