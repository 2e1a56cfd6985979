/* The rule of homes in its plainest words, one token after the other. */
#ifndef COT_TESTS_HARNESS_PREDICT_PLAIN_HOMES_H
#define COT_TESTS_HARNESS_PREDICT_PLAIN_HOMES_H
#include "coterie/predict.h"

#include <stdint.h>

/* home [n] by what a method says of each token: its rank or -1, how sure it is, and what each rank is worth to it [n][ranks]. */
void plain_even_shares(int16_t *home, const int16_t *rank, const uint16_t *confidence, const float *score,
                       int64_t n, int ranks);

/* home [n] of tokens at layer `l`, asked for one by one; before [n][COT_PREDICT_MAX_ORDER]: the ranks of most of each
 * one's experts at layers l - 1, l - 2, ..., -1 where there is no layer. */
void plain_homes(int16_t *home, const cot_predictor *tables, cot_predict_method method, int l,
                 const int32_t *ids, const int16_t *before, int64_t n);

/* The lowest of the ranks that hold most of these experts. */
int16_t plain_rank_of_most(const cot_predictor *tables, int l, const uint16_t *experts);

#endif
