/* From logits to a token. Pure: the same logits, history, settings and position give the same token. */
#ifndef COT_ENGINE_SAMPLER_H
#define COT_ENGINE_SAMPLER_H
#include "coterie/engine.h"

typedef struct cot_candidate {
    float logit;
    int32_t token;
} cot_candidate;

/* The settings' ranges; the message names the one that is out. */
cot_status cot_sampler_check(const cot_sampling *sampling, cot_error *error);

/* What is sampled from, and scratch. */
typedef struct cot_sampler {
    int64_t vocab;
    float *logits;             // [vocab] the caller's, changed in place by biases and penalties
    cot_candidate *candidates; // [vocab]
    int32_t *counts;           // [vocab] zero between calls
    const int32_t *eos;        // [eos_count] tokens that end a sequence
    size_t eos_count;
    const uint32_t *mask; // tokens that may be drawn: bit t % 32 of word t / 32; NULL: all
} cot_sampler;

/* A sequence so far: a prompt, then `tokens - prompt_tokens` tokens of text. */
typedef struct cot_sampler_history {
    const int32_t *ids;
    int64_t tokens, prompt_tokens;
} cot_sampler_history;

/* Whether the token is among the settings' stop tokens. */
bool cot_sampler_stops(const cot_sampling *sampling, int32_t token);

/* Samples what comes after `history`, in the order of cot_sampling. `position`, the token's place in the sequence, numbers
 * the draw. The logits are finite, and the mask is not empty. */
int32_t cot_sample(cot_sampler *sampler, const cot_sampler_history *history, const cot_sampling *sampling,
                   int64_t position);

#endif
