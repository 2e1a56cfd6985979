/* In what formats a checkpoint stores weights. */
#ifndef COT_TESTS_HARNESS_CHECKPOINT_FORMATS_H
#define COT_TESTS_HARNESS_CHECKPOINT_FORMATS_H
#include "checkpoint/checkpoint.h"

/* The one format that holds `count` weights of all experts, of `layer` or of all layers that have them (-1), as they are stored;
 * COT_FORMATS: there is none. */
cot_format stored_format(const cot_checkpoint *checkpoint, const cot_weight *weights, int count,
                         int64_t layer);
/* The same of the networks of routed experts, of shared experts and of dense layers: gate, up and down. */
cot_format experts_format(const cot_checkpoint *checkpoint);
cot_format shared_format(const cot_checkpoint *checkpoint);
cot_format dense_format(const cot_checkpoint *checkpoint);

#endif
