#include "checkpoint/embedding.h"

#include "base/error.h"
#include "kernels/blocks.h"
#include "coterie/model.h"

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
        status = cot_checkpoint_read(
            checkpoint, &(cot_weight_piece){COT_WEIGHT_EMBEDDING, .rows = *n_ids, .columns = *width}, *row,
            error);
    cot_checkpoint_close(checkpoint);
    if (status != COT_OK) {
        free(*row);
        *row = NULL;
    }
    return status;
}

/* Rows cannot be read from the file one by one. */
static bool is_widened(const cot_stored *s)
{
    return s->storage != COT_STORAGE_PLAIN && s->storage != COT_STORAGE_BLOCKS &&
           s->storage != COT_STORAGE_RANDOM;
}

size_t cot_embedding_bytes(const cot_checkpoint *checkpoint)
{
    cot_stored s;
    if (cot_stored_find(&s, checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, NULL) != COT_OK || !is_widened(&s))
        return 0;
    return (size_t)s.rows * (size_t)s.columns * sizeof(float);
}

cot_status cot_embedding_open(cot_embedding *e, const cot_checkpoint *checkpoint, cot_error *error)
{
    *e = (cot_embedding){.checkpoint = checkpoint};
    cot_status status = cot_stored_find(&e->stored, checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, error);
    const cot_stored *s = &e->stored;
    const size_t elements = (size_t)s->rows * (size_t)s->columns;
    if (status == COT_OK && !is_widened(s) && s->tensor) {
        const cot_tensor *tensor = s->tensor->tensor;
        const cot_file_map *map = cot_shards_map(&checkpoint->shards, s->tensor);
        e->at = (size_t)((const uint8_t *)tensor->data - map->data);
        e->row_bytes = tensor->bytes / (size_t)s->rows;
    } else if (status == COT_OK && is_widened(s)) {
        e->whole = malloc(elements * sizeof *e->whole);
        status = e->whole ? cot_checkpoint_read(checkpoint,
                                                &(cot_weight_piece){COT_WEIGHT_EMBEDDING, .rows = s->rows,
                                                                    .columns = s->columns},
                                                e->whole, error)
                          : cot_fail(error, COT_OUT_OF_MEMORY,
                                     "out of memory for an embedding of %zu numbers", elements);
    }
    if (status != COT_OK) cot_embedding_close(e);
    return status;
}

void cot_embedding_close(cot_embedding *e)
{
    free(e->whole);
    *e = (cot_embedding){0};
}

cot_status cot_embedding_read(const cot_embedding *e, const cot_kernels *kernels, float *out, float *scratch,
                              int64_t id, cot_error *error)
{
    const cot_stored *s = &e->stored;
    cot_dtype type = COT_F32;
    const void *row = scratch;
    if (e->whole) {
        row = e->whole + id * s->columns;
    } else if (s->storage == COT_STORAGE_RANDOM) {
        const cot_block block = cot_stored_block(e->checkpoint, s, id, 1, 0, s->columns, scratch);
        type = block.type;
    } else {
        const cot_shards *shards = &e->checkpoint->shards;
        if (s->storage == COT_STORAGE_PLAIN) type = s->tensor->tensor->dtype;
        if (!cot_file_map_read(cot_shards_map(shards, s->tensor), scratch, e->at + (size_t)id * e->row_bytes,
                               e->row_bytes))
            return cot_fail(error, COT_IO, "tensor '%s': row %" PRId64 " can no longer be read from its file",
                            s->name, id);
    }
    if (s->storage == COT_STORAGE_BLOCKS) {
        cot_blocks_decode(out, scratch, s->tensor->tensor->blocks, s->columns);
        row = out;
    }
    if (!cot_all_finite(row, type, s->columns))
        return cot_fail(error, COT_INVALID_ARGUMENT, "tensor '%s' holds a NaN or an infinity in row %" PRId64,
                        s->name, id);
    if (row != out) kernels->to_f32(out, row, type, s->columns);
    return COT_OK;
}
