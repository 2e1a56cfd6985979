/* An engine with a small random model. */
#ifndef COT_TESTS_HARNESS_ENGINE_RANDOM_MODEL_H
#define COT_TESTS_HARNESS_ENGINE_RANDOM_MODEL_H
#include "harness/engine/settings.h"

enum { CONTEXT = 200, VOCAB = 61, WEIGHTS_SEED = 5 };

/* `eos` as config.json spells it. */
cot_engine *open_random_of(int vocab, const char *eos, const struct setting *s);

cot_engine *open_random(const char *eos, const struct setting *s);

#endif
