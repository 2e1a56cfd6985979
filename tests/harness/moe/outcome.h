/* What a run left, held against the answer and the closed forms of its bytes. */
#ifndef COT_TESTS_HARNESS_MOE_OUTCOME_H
#define COT_TESTS_HARNESS_MOE_OUTCOME_H
#include "harness/moe/run.h"

/* Every rank succeeded and every token whose routing is certain has the right answer. */
void outcome_agrees(const struct outcome *outcome, const struct world *w, const struct plan *p);

/* The bytes of every phase and pair of ranks are those of the closed form. */
void outcome_counts(const struct outcome *outcome, const struct world *w, const struct plan *p);

#endif
