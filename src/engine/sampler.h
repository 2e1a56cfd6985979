/* From logits to a token. Pure: the same logits, history, settings and position give the same token. */
#ifndef COT_ENGINE_SAMPLER_H
#define COT_ENGINE_SAMPLER_H
#include "coterie/engine.h"

typedef struct cot_candidate {
    float logit;
    int32_t token;
} cot_candidate;

/* The settings' ranges; the message names the one that is out. */
cot_status cot_sampling_check(const cot_sampling *sampling, cot_error *error);

/* Samples from logits [vocab] (changed in place by the penalty), after `history` (prompt and text so far,
 * whose tokens are penalised). Order: repetition penalty, temperature, top-k, top-p, min-p. `position`
 * numbers the draw. scratch: [vocab]. Errors: INVALID_ARGUMENT when a logit is not finite. */
cot_status cot_sample(int32_t *token, float *logits, int64_t vocab, const int32_t *history,
                      int64_t history_tokens, const cot_sampling *sampling, int64_t position,
                      cot_candidate *scratch, uint8_t *seen, cot_error *error);

#endif
