/* The embedding's rows as a step reads them: found once, then a row at a time without allocating. */
#ifndef COT_CHECKPOINT_EMBEDDING_H
#define COT_CHECKPOINT_EMBEDDING_H
#include "kernels/kernels.h"
#include "checkpoint/stored.h"

typedef struct cot_embedding {
    const cot_checkpoint *checkpoint;
    cot_stored stored;
    size_t at, row_bytes; // of the first row in its file; of a row; plain storage, and blocks
    float *whole;         // [V][H] where the file's form cannot be read row by row (FP8), else NULL
} cot_embedding;

/* Bytes that opening a checkpoint's embedding takes: 0 where rows are read from its file. */
size_t cot_embedding_bytes(const cot_checkpoint *checkpoint);
/* Finds the embedding of a checkpoint, which must live on. Errors: as cot_checkpoint_read. On failure it is empty. */
cot_status cot_embedding_open(cot_embedding *embedding, const cot_checkpoint *checkpoint, cot_error *error);
void cot_embedding_close(cot_embedding *embedding); // an empty one is fine
/* out [H] = row `id`, below V, in fp32; `scratch` [H] floats. Never allocates; thread-safe. Errors: INVALID_ARGUMENT (a
 * value that is not finite), IO (the file has been cut off since it was opened). */
cot_status cot_embedding_read(const cot_embedding *embedding, const cot_kernels *kernels, float *out,
                              float *scratch, int64_t id, cot_error *error);

#endif
