/* What an evaluation counts, sequence by sequence, so that sequences can be drawn again (bootstrap). */
#ifndef COT_PREDICT_TALLY_H
#define COT_PREDICT_TALLY_H
#include "coterie/predict_evaluate.h"

/* Sums over a layer's tokens of one sequence, or over more of both. */
typedef enum cot_tally_sum {
    COT_SUM_TOKENS,
    COT_SUM_UNKNOWN, // tokens
    COT_SUM_ACTIVATIONS,
    COT_SUM_HITS,   // activations whose expert is among the K predicted
    COT_SUM_PICKED, // experts expected with 1/2 or more
    COT_SUM_RIGHT,  // of those, called
    COT_SUM_LOCAL,  // activations on the token's rank
    COT_SUM_UNKNOWN_ACTIVATIONS,
    COT_SUM_UNKNOWN_LOCAL,
    COT_SUM_REMOTE, // distinct other ranks that a token's experts sit on
    COT_SUM_OWN,    // tokens that have experts on their own
    COT_SUM_ORACLE, // activations on the best rank
    COT_SUM_EVEN,   // local under the run-time rule
    COT_SUM_BLIND, // activations expected to be local if each rank got as many tokens, but any; of whole layers alone
    COT_SUMS
} cot_tally_sum;

/* One layer. */
typedef struct cot_tally {
    double *sum;         // [S][COT_SUMS]
    double *token_load;  // [S][D] tokens by their rank
    double *expert_load; // [S][D] activations by the rank of their expert
    double *step_peak;   // [steps] the busiest rank's tokens over the mean, of full steps or of a single one
    double *called;      // [E] scratch
    double *unknown_on;  // [D] of counts: activations of unknown tokens by the rank of their expert
} cot_tally;

typedef struct cot_tallies {
    int32_t n_layers, n_ranks;
    int64_t n_sequences, n_steps;
    bool ordered; // sequences of tokens, not counts: every figure is known
    cot_tally *layer;
    double *memory;
} cot_tallies;

/* All zero. Errors: OUT_OF_MEMORY. */
cot_status cot_tallies_open(cot_tallies *tallies, const cot_predictor_info *info, int64_t sequences,
                            int64_t steps, bool ordered, cot_error *error);
void cot_tallies_close(cot_tallies *tallies);

/* Fills in the evaluation's figures, with intervals of `resamples` bootstrap samples. Errors: OUT_OF_MEMORY. */
cot_status cot_tallies_figure(cot_predict_evaluation *evaluation, const cot_tallies *tallies,
                              int32_t resamples, uint64_t seed, cot_error *error);

#endif
