/* Sequences at home on ranks give the same bits alone and in company, on 1, 2 and 4 ranks, threads or processes. */
#ifndef COT_TESTS_HARNESS_ENGINE_EVERY_GROUP_H
#define COT_TESTS_HARNESS_ENGINE_EVERY_GROUP_H
#include "harness/engine/settings.h"

/* Opens an engine of `what` with these settings, or the test fails. */
typedef cot_engine *open_with(const void *what, const struct setting *s);

enum { GROUP_TOKENS = 21, GROUP_PREFILL = 15 };

/* Runs three sequences of drawn ids on engines of `what`; ranks, attention, kv_tokens and processes are set here. `weights` is what
 * each engine tells of them, NULL: anything. */
void check_every_group(open_with *open, const void *what, const struct setting *setting, const char *weights,
                       uint64_t *seed);

#endif
