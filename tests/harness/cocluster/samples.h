/* Affinities to group. */
#ifndef COT_TESTS_HARNESS_COCLUSTER_SAMPLES_H
#define COT_TESTS_HARNESS_COCLUSTER_SAMPLES_H
#include "harness/draw.h"

#include "coterie/group_layers.h"

enum { MAX_L = 4, MAX_E = 24, MAX_N = 120, MAX_D = 8 };

/* Affinities of several layers, and the block that each expert was drawn into. */
typedef struct sample {
    cot_affinities affinities;
    cot_affinity layer[MAX_L];
    int64_t offsets[MAX_L][MAX_N + 1];
    uint16_t expert[MAX_L][MAX_N * MAX_E];
    uint32_t count[MAX_L][MAX_N * MAX_E];
    int32_t block[MAX_L][MAX_E];
} sample;

/* Below n, as ranks and experts are counted. */
int32_t below(struct draw *draw, int32_t n);

/* Tokens of D kinds; in each layer a kind calls a block of experts of its own, `clear` times each, and others now and then
 * once. s points into itself: it is not copied. */
void make_sample(sample *s, struct draw *draw, int32_t L, int32_t E, int32_t N, int32_t D, uint32_t clear);

#endif
