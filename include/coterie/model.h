/* Models: which architectures this build runs, and what can be read of a checkpoint. */
#ifndef COTERIE_MODEL_H
#define COTERIE_MODEL_H

#include "coterie/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An architecture as config.json spells it, and the models that have it in one line. */
typedef struct cot_architecture {
    const char *name, *description;
} cot_architecture;

/* The architectures this build runs; a NULL name ends. Constant; thread-safe. */
const cot_architecture *cot_architectures(void);

/* Reads the embeddings of a checkpoint's vocabulary: `*row` [*n_ids][*width] in fp32, which the caller frees; NULL on
 * failure. `folder` is a model folder. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, INVALID_ARGUMENT (a value that is
 * not finite), OUT_OF_MEMORY. */
cot_status cot_model_embedding(float **row, int64_t *n_ids, int64_t *width, const char *folder,
                               cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
