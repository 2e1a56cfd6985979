/* What others computed of a checkpoint, and an engine held against it. */
#ifndef COT_TESTS_HARNESS_ENGINE_ANSWERS_H
#define COT_TESTS_HARNESS_ENGINE_ANSWERS_H
#include "harness/engine/settings.h"

#include "coterie/eval.h"
#include "base/safetensors.h"

/* A folder that holds a checkpoint and expected.safetensors, as shared/golden's do. */
struct answers {
    char folder[1024]; // or file
    cot_eval_set *set;
    cot_safetensors file;
    double scaling; // of the gate's weights
    /* The worst that any comparison found; weight: relative to the scaling. */
    double worst_logit, worst_weight;
};

/* False where the folder has no such files; what else fails, fails the test. */
bool answers_open(struct answers *a, const char *folder);
/* The same of a model anywhere, the hub's config.json of its shape, and the file of answers. */
bool answers_open_of(struct answers *a, const char *model, const char *config, const char *file);
void answers_close(struct answers *a);

/* Runs the sequences with all their logits by `s`, which needs no folder and has room for 256 tokens, and fails the test where logits are
 * off by more than 5e-4, weights by more than 1e-5, or an expert is another. With the pipeline s-moe tables are drawn. */
void answers_compare(struct answers *a, const struct setting *s);

#endif
