/* What groups of a layer are worth, counted once for all who ask. */
#ifndef COT_COCLUSTER_MEASURE_H
#define COT_COCLUSTER_MEASURE_H
#include "coterie/group.h"

/* Adds to `calls` [D][D] the layer's activations: row the token's rank, column the expert's. Whole numbers, so exact. */
void cot_group_calls(double *calls, const cot_affinity *affinity, const int32_t *expert_rank,
                     const int32_t *token_rank, int32_t D);

typedef struct cot_group_value {
    uint64_t local, total;          // activations on their token's rank, and all
    double token_peak, expert_peak; // loads of the busiest rank's tokens and experts over the mean
} cot_group_value;
cot_group_value cot_group_value_of(const double *calls, int32_t D);

#endif
