/* The policy of batching: which tokens the next step holds, and whether one more sequence may join. Pure functions. */
#ifndef COT_SCHEDULE_COMPOSE_H
#define COT_SCHEDULE_COMPOSE_H
#include "schedule/cost.h"
#include "schedule/scheduler.h"

enum { COT_COMPOSE_LEAST = 64, COT_COMPOSE_MOST_ACTIVE = 1024 };

/* Spans of a step of at most limits->step_tokens tokens and step_logits rows of logits, for sequences in the order of
 * `active`, each of which knows more tokens than it was fed. A sequence that knows one more decodes; the others have
 * chunks to be fed. In this order, as far as tokens and rows go, get
 *
 *   - a token: whoever sat out max_wait_steps steps or more, the longest first;
 *   - COT_COMPOSE_LEAST tokens, but no more than half the step: the first that has a chunk;
 *   - a token: those that decode, who sat out longest first;
 *   - what is left of their chunks: the others in order, as long as the step is expected to take no more than
 *     limits->target_ns, and twice as much longer as steps have lately been foreseen wrongly (0, or nobody decodes: as long
 *     as it takes).
 *
 * So that a sequence sits out max_wait_steps steps and then as many as it takes to serve a token each to those that waited
 * longer. Spans come out with those that decode first. Returns how many, at most one a sequence and one a token. */
int32_t cot_compose(cot_span *spans, cot_request_state *const *active, int64_t count,
                    const cot_scheduler_limits *limits,
                    const cot_cost *cost); // cost: NULL where target_ns is 0

/* Whether one more sequence may join `count` active ones: not where all of them decoding are expected to take longer than the
 * target, unless one alone does. */
bool cot_compose_admits(cot_request_state *const *active, int64_t count, const cot_scheduler_limits *limits,
                        const cot_cost *cost);

#endif
