#include "coterie/model.h"

#include "base/error.h"
#include "model/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_model_embedding(float **row, int64_t *n_ids, int64_t *width, const char *folder,
                               cot_error *error)
{
    cot_checkpoint *checkpoint;
    char *notes = NULL;
    *row = NULL;
    cot_status status = cot_checkpoint_open(&checkpoint, folder, &notes, error);
    free(notes);
    if (status == COT_OK)
        status = cot_checkpoint_shape(checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, n_ids, width, error);
    if (status == COT_OK && !(*row = malloc((size_t)*n_ids * (size_t)*width * sizeof **row)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId64 " embeddings of %" PRId64,
                          *n_ids, *width);
    if (status == COT_OK)
        status =
            cot_checkpoint_read(checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, 0, *n_ids, 0, *width, *row, error);
    cot_checkpoint_close(checkpoint);
    if (status != COT_OK) {
        free(*row);
        *row = NULL;
    }
    return status;
}
