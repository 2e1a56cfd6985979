/* Teacher-forced evaluation: token sequences in, logits, routing and losses out. */
#ifndef COTERIE_EVAL_H
#define COTERIE_EVAL_H
#include "coterie/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One sequence q: the first prefill_tokens are fed at once, the rest a token at a time. */
typedef struct cot_eval_sequence {
    const char *name; /* q */
    const int32_t *ids;
    int64_t tokens, prefill_tokens; /* 1 <= prefill_tokens <= tokens */
    int64_t unscored; /* leading predictions that only lead up to those that count: 0 <= unscored < tokens */
    int32_t recorded; /* the sequence of replayed routing that it is (cot_engine_routing) */
} cot_eval_sequence;

/* Sequences read from a safetensors file: every tensor `ids.q` (int32 or int64 [T]; q is all that follows,
 * dots included), with `prefill_tokens.q` (int32 or int64, one number) where it is given, else T. Ascending
 * by name. */
typedef struct cot_eval_set cot_eval_set;
/* Errors: NOT_FOUND, IO, MALFORMED (no `ids.q`, wrong types, lengths out of range: named), OUT_OF_MEMORY. */
cot_status cot_eval_set_open(cot_eval_set **set, const char *path, cot_error *error);
void cot_eval_set_close(cot_eval_set *set); /* NULL is fine */
const cot_eval_sequence *cot_eval_set_sequences(const cot_eval_set *set, size_t *count);

/* Runs the sequences. nats [count]: each one's mean negative log-likelihood of the predictions that count,
 * tokens - 1 - unscored of them (0 where there are none). With `output`, writes a safetensors file of `logits.q` float32 [T][V],
 * `experts.q.L` int32 [T][K] ascending and `weights.q.L` float32 [T][K] for each MoE layer L (by the model's
 * number; needs capture_routing). `on_routing` (may be NULL) is called as cot_events says, with `context`.
 * Errors: as cot_engine_run's, with the sequence named; IO, NOT_FOUND (the output's folder). */
cot_status cot_eval_run(cot_engine *engine, const cot_eval_sequence *sequences, size_t count,
                        const char *output, double *nats,
                        void (*on_routing)(void *context, uint64_t request, int64_t position, int32_t token,
                                           const uint16_t *experts, const float *weights),
                        void *context, cot_error *error);

/* What sets a model apart from another on a sequence. */
typedef struct cot_eval_difference {
    double nats, other_nats; /* losses, as cot_eval_run's */
    double kl; /* of the next token, from the other's distribution to the model's: a mean over tokens, nats */
    double same_tokens;  /* share of tokens after which both think the same token most likely */
    double same_experts; /* share of the chosen experts that both chose */
} cot_eval_difference;

/* Runs each sequence on both engines, one after the other, both with capture_routing; differences [count]. Keeps the logits of
 * one sequence in memory. Errors: as cot_eval_run's; INVALID_ARGUMENT (vocabularies, MoE layers or experts differ). */
cot_status cot_eval_compare(cot_engine *engine, cot_engine *other, const cot_eval_sequence *sequences,
                            size_t count, cot_eval_difference *differences, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
