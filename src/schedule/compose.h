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
 *   - a token: those that decode. Where there is not room for all, those of cot_overlap_choose: who sat out longest, then by the
 *     experts that the requests are expected to call, where these are foretold (`missing` [foresight.cells] is scratch), else
 *     again who sat out longest. Where all that decode are expected to take longer than limits->target_ns, only so many of
 *     them, in that order, as do not, as long as these are at least half; if even half of them take longer, all;
 *   - what is left of their chunks: the others in order, as long as the step is expected to take no more than
 *     limits->target_ns, and twice as much longer as steps have lately been foreseen wrongly (0, or nobody decodes: as long
 *     as it takes).
 *
 * All that decode are taken where they can be, since parts of them read no fewer experts than all: a union is at most the sum of its
 * parts. Of a batch that is somewhat too long for the target most tokens meet it where a few sit out each step, and none do
 * where nobody does; where half sit out, no token comes sooner than two steps after the one before.
 *
 * Nobody sits out more than
 *
 *     max_wait_steps + ceil(count / least(step_tokens, step_logits)) - 1 steps,
 *
 * max_wait_steps being at least 1: one that has sat out so many is in the line of those that get their token before anything else,
 * whatever the target is; of the others in this line, at most count - 1, each step serves step_tokens or step_logits, whichever
 * is less, or all; and who was served, or comes, begins behind it. Spans come out with those that decode first. Returns how
 * many, at most one a sequence and one a token. */
int32_t cot_compose(cot_span *spans, cot_request_state *const *active, int64_t count,
                    const cot_scheduler_limits *limits,
                    const cot_cost *cost, // NULL where target_ns is 0
                    float *missing);      // NULL where nothing is foretold

/* Whether one more sequence may join `count` active ones: not where all of them decoding are expected to take longer than the
 * target, unless one alone does. */
bool cot_compose_admits(cot_request_state *const *active, int64_t count, const cot_scheduler_limits *limits,
                        const cot_cost *cost);

#endif
