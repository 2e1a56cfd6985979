/* Whole weights and random pieces of them. */
#ifndef COT_TESTS_HARNESS_CHECKPOINT_WEIGHTS_H
#define COT_TESTS_HARNESS_CHECKPOINT_WEIGHTS_H
#include "checkpoint/checkpoint.h"

#include <stdint.h>

/* Or the test fails. */
cot_checkpoint *opened(const char *path);

/* The whole weight; the caller frees. NULL where the architecture has none. */
float *whole(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
             int64_t *rows, int64_t *columns);

/* Memory of 0xa5, aligned for packed weights and no larger than that needs. */
void *dirty(int64_t bytes);

/* A random piece of every weight, read, packed in two parts and packed transposed, against the whole. */
void check_all_pieces(const cot_checkpoint *checkpoint);
/* Every weight of a folder that was made of a GGUF file is the file's, to the bit; rows of q and k that lie in pairs there lie in
 * halves in the folder. */
void expect_same_weights(const char *folder, const char *file);

#endif
