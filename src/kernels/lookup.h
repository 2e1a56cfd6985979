/* Look-ups in a predictor's tables, and its logistic rows: one table of functions per instruction set, as kernels.h. */
#ifndef COT_KERNELS_LOOKUP_H
#define COT_KERNELS_LOOKUP_H
#include "coterie/status.h"
#include <stdint.h>

/* Tables of pairs (a rank, its confidence; 65535 and 0: nothing to say), looked up for a batch of tokens. Token i's own
 * pair is the first of row row[i] of `token`. The pair of the ranks before it, r_j = before[j * before_stride + i], is
 * row sum_j (r_j + 1) ranks^j of `sequence`, over j = 0, 1, ... below `order` and up to the first r_j that is no rank.
 * The own pair is taken unless the other one is more confident. */
typedef struct cot_rank_tables {
    const uint16_t *token; // [n_rows][row_pairs][2], of which the first pair is read; NULL: none
    int64_t n_rows, row_pairs;
    const int32_t *row;       // [n]; what is not below n_rows has nothing to say
    const uint16_t *sequence; // [1 + ranks + ranks^2 + ... + ranks^order][2]; NULL: none
    int32_t ranks, order;     // order <= 5, the number of rows < 2^31
    const int16_t *before;
    int64_t before_stride;
} cot_rank_tables;

typedef struct cot_lookup_kernels {
    /* Writes the pairs of n tokens, apart; `confidence` may be NULL. */
    void (*look_up_ranks)(int16_t *rank, uint16_t *confidence, const cot_rank_tables *tables, int64_t n);
    /* p[i] = 1 / (1 + exp(-scale (bias[i] + sum of row[r][i], 0 <= r < n_rows))); the sum, of n_rows < 2^20, is exact. */
    void (*logistic_rows)(float *p, const int8_t *const *row, int64_t n_rows, const int16_t *bias,
                          float scale, int64_t n);
} cot_lookup_kernels;

/* The best functions that this CPU runs; `cap` and errors as in cot_kernels_choose. */
cot_status cot_lookup_kernels_choose(const cot_lookup_kernels **kernels, const char *cap, cot_error *error);

#endif
