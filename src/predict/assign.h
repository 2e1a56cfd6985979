/* Ranks for tokens, beyond what the tables say. */
#ifndef COT_PREDICT_ASSIGN_H
#define COT_PREDICT_ASSIGN_H
#include <stdint.h>

/* Gives tokens without a rank (-1) one, in inverse proportion to the ranks' load of known tokens so far; `load` [D]
 * and `credit` [D] go on from call to call and begin as zeros. */
void cot_spread_unknown(int16_t *rank, int64_t n, double *load, double *credit, int32_t ranks);

/* Writes what each rank is worth to token `i` to `score` [D]; asked only about tokens whose rank has no room. */
typedef void cot_score_ranks(void *context, float *score, int64_t i);

/* The run-time rule for one step of n < 2^31 tokens: ranks take even shares, to one token; the most confident token chooses
 * first (of equal ones the first), its own rank where that has room, else the best (the lowest of equal ones) that has;
 * tokens without a rank (-1) come last and fill the emptiest. `out` [n]; `order` [2 n] is scratch. */
void cot_assign_evenly(int16_t *out, int32_t *order, const int16_t *rank, const uint16_t *confidence,
                       int64_t n, int32_t ranks, cot_score_ranks *score_ranks, void *context);

#endif
