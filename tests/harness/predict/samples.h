/* Random traces, and batches assembled from them as an engine would: from what it knows before the layer's gate. */
#ifndef COT_TESTS_HARNESS_PREDICT_SAMPLES_H
#define COT_TESTS_HARNESS_PREDICT_SAMPLES_H
#include "harness/scratch.h"

#include "coterie/predict.h"

#include <stdbool.h>

typedef struct sample_shape {
    int L, E, K, S, T, ids; // ids: 0: unknown all
    bool follows;           // experts follow the id and the expert in the layer before, else they are random
} sample_shape;

/* The caller closes it. */
cot_trace sample_trace(scratch_pad *pad, const sample_shape *s);

/* Tables of D ranks, learnt from the chosen sequences (NULL: from all); the caller closes them. */
cot_predictor *sample_train(scratch_pad *pad, const cot_trace *trace, int D, int order,
                            const uint8_t *chosen);

/* What is known of `n` tokens, in order, before layer `l`. */
typedef struct sample_batch {
    cot_predict_batch batch;
    int32_t *row, *row_before;
    uint16_t *own, *earlier;
    int16_t *ranks;
} sample_batch;

sample_batch sample_batch_of(const cot_predictor *p, const cot_trace *trace, int l, const int64_t *token,
                             int64_t n);
void sample_batch_free(sample_batch *b);

/* Every prediction of every method about every token, as one number. */
uint64_t sample_digest(const cot_predictor *p, const cot_trace *trace);

/* Share of the K experts with the greatest scores among those that were called, in `chosen` sequences (or not). */
double sample_recall(const cot_predictor *p, const cot_trace *trace, cot_predict_method method,
                     const uint8_t *chosen, bool want);

#endif
