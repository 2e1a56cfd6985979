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

/* What is sampled from, and scratch. */
typedef struct cot_sampler {
    int64_t vocab;
    float *logits;             // [vocab] the caller's, changed in place by the penalty
    cot_candidate *candidates; // [vocab]
    uint8_t *seen;             // [vocab]
} cot_sampler;

/* Samples after `history` (prompt and text so far, whose tokens are penalised). Order: repetition penalty, temperature,
 * top-k, top-p, min-p. `position`, the token's place in the sequence, numbers the draw. Errors: INVALID_ARGUMENT when a
 * logit is not finite. */
cot_status cot_sample(int32_t *token, cot_sampler *sampler, const int32_t *history, int64_t history_tokens,
                      const cot_sampling *sampling, int64_t position, cot_error *error);

#endif
