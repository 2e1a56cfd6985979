/* The policy of batching: which tokens the next step holds. A pure function. */
#ifndef COT_ENGINE_COMPOSE_H
#define COT_ENGINE_COMPOSE_H
#include "engine/scheduler.h"

/* Spans of a step of at most limits->step_tokens tokens and step_logits rows of logits: sequences that decode
 * first, a token each, then prompts, cut to what is left; both in the order of `active`, each of which knows
 * more tokens than it was fed. Returns how many spans, at most one a sequence and one a token. */
int32_t cot_compose(cot_span *spans, cot_request_state *const *active, int64_t count,
                    const cot_scheduler_limits *limits);

#endif
