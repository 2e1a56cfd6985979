/* What a predictor's tables are worth on a trace: recall of experts, locality of tokens, balance of ranks. */
#ifndef COTERIE_PREDICT_EVALUATE_H
#define COTERIE_PREDICT_EVALUATE_H

#include "coterie/predict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Per layer and over all layers. NaN where the trace or the method cannot give a figure (counts have no order and no
 * single tokens). An activation is a (token, expert) pair; a token's rank is where the method sends it, unknown tokens
 * being spread in inverse proportion to the ranks' load so far. */
typedef enum cot_figure {
    COT_FIGURE_RECALL,    // of the K experts, share among the K predicted
    COT_FIGURE_PRECISION, // of the experts expected with a probability of 1/2 and more (the likeliest one in any
                          // case), share that is called
    COT_FIGURE_F1,        // harmonic mean of that precision and of the share of the called that it covers
    COT_FIGURE_LAR,       // local activation rate: share of activations on their token's rank
    COT_FIGURE_LAR_GAIN, // that, less what the same shares of tokens would have on the ranks whatever the tokens are:
                         // sending everything to the busiest rank has a LAR, but gains 0
    COT_FIGURE_LAR_KNOWN,       // of known tokens alone ...
    COT_FIGURE_LAR_UNKNOWN,     // ... and of unknown ones
    COT_FIGURE_UNKNOWN,         // share of tokens that the method has no rank for
    COT_FIGURE_LAR_DEDUP,       // of the distinct ranks that tokens need, share that is their own
    COT_FIGURE_REMOTE_RANKS,    // distinct other ranks that a token needs
    COT_FIGURE_ROWS,            // rows that move for a token: one to each remote rank, one sum back from it
    COT_FIGURE_ORACLE_LAR,      // the best rank for each token, its experts known
    COT_FIGURE_TOKEN_IMBALANCE, // tokens on the busiest rank over the mean, all tokens together
    COT_FIGURE_HOME_PEAK,       // the same of each step, mean over full steps
    COT_FIGURE_EXPERT_PEAK,     // activations of the busiest rank's experts over the mean
    COT_FIGURE_LAR_EVEN, // LAR under the run-time rule: in each step ranks take even shares of tokens, to one token;
                         // the most confident token chooses first, the best rank that has room
    COT_FIGURES
} cot_figure;
/* As JSON names them: "recall_at_k", "precision", "f1", "lar", ... */
extern const char *const cot_figure_names[COT_FIGURES];

typedef struct cot_predict_evaluate_options {
    size_t size;           // sizeof(cot_predict_evaluate_options)
    const uint8_t *chosen; // [S] sequences to look at, 0: not; NULL: all. Of kind tokens
    int64_t step_tokens;   // tokens of a step; 0: 512
    int32_t resamples;     // bootstrap samples of the sequences, for the intervals; 0: no intervals
    int32_t threads;       // over layers; 0: 1
    uint64_t seed;         // of the bootstrap
} cot_predict_evaluate_options;

/* The arrays belong to it; all zero is empty. */
typedef struct cot_predict_evaluation {
    int32_t n_layers;
    int64_t n_tokens;        // that were looked at; of counts, in the layer that has most
    double *layer;           // [L][COT_FIGURES]
    double all[COT_FIGURES]; // ratios over all layers' sums; peaks: the mean of the layers'
    /* 95 % of the resampled `all` lie between, where sequences are few widened as Student's t is wider than a normal
     * distribution. NaN without resamples and where there is a single sequence. */
    double low[COT_FIGURES], high[COT_FIGURES];
} cot_predict_evaluation;

/* Evaluates `method` with the predictor's groups of experts. The trace has the predictor's layers, experts and K.
 * Errors: INVALID_ARGUMENT (shapes that differ, a method that has no tables, no tokens, counts and a method that looks
 * back), OUT_OF_MEMORY. The caller frees. Thread-safe. */
cot_status cot_predict_evaluate(cot_predict_evaluation *evaluation, const cot_predictor *predictor,
                                cot_predict_method method, const cot_trace *trace,
                                const cot_predict_evaluate_options *options, cot_error *error);
void cot_predict_evaluation_free(cot_predict_evaluation *evaluation); // an empty one is fine

/* Draws which sequences are for training: `training` [S] becomes 1 for round(share * S) of them, else 0. share in
 * [0, 1]. */
void cot_trace_split(uint8_t *training, int64_t n_sequences, double share, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
