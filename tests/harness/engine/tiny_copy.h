/* A copy of the shipped model in a folder of its own: for tests that change its weights, or what lies beside them. */
#ifndef COT_TESTS_HARNESS_ENGINE_TINY_COPY_H
#define COT_TESTS_HARNESS_ENGINE_TINY_COPY_H
#include "base/safetensors.h"

#include <stdint.h>

#define TINY_COPY "coterie-test-XXXXXX" // what `folder` begins as

/* What becomes of a tensor's elements; `what` as it was handed in. */
typedef void tiny_edit(uint16_t *elements, const cot_tensor *tensor, const void *what);

/* Makes the folder, whose name is written to `folder`: config.json a link, the weights copied and edited. edit NULL: as they
 * are. What fails, fails the test. */
void tiny_copy_make(char *folder, tiny_edit *edit, const void *what);
/* With all files in it. */
void tiny_copy_remove(const char *folder);

#endif
