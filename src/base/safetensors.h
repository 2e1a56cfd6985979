/* The container that checkpoints and every binary table of ours use: a length, a JSON header, raw tensors.
 * https://github.com/huggingface/safetensors#format */
#ifndef COT_BASE_SAFETENSORS_H
#define COT_BASE_SAFETENSORS_H
#include "base/file.h"
#include "base/tensor.h"
#include <jansson.h>
#include <stdbool.h>

typedef struct cot_safetensors {
    cot_file_map map;
    cot_tensor *tensors; // ascending by name
    size_t count;
    json_t *metadata; // the header's "__metadata__" object of strings; NULL when absent
    json_t *header;   // owns the names
} cot_safetensors;

/* Whether bytes begin as a safetensors file does: the length of a header that may be read, then its brace. No text does,
 * whatever its ninth character: its first eight are no such length. */
bool cot_safetensors_is(const void *data, size_t bytes);
/* Maps a file and checks all of it: header length and JSON, known dtypes, shapes that multiply to the byte
 * counts, offsets within the file, tensors that neither overlap nor leave holes. Errors: NOT_FOUND, IO,
 * MALFORMED, OUT_OF_MEMORY. On failure `*file` is empty. The caller closes it. */
cot_status cot_safetensors_open(cot_safetensors *file, const char *path, cot_error *error);
/* The same on bytes in memory, which must outlive `*file`; `path` is used in messages only. */
cot_status cot_safetensors_parse(cot_safetensors *file, const void *data, size_t bytes, const char *path,
                                 cot_error *error);
void cot_safetensors_close(cot_safetensors *file);
/* The tensor of that name, or NULL. */
const cot_tensor *cot_safetensors_find(const cot_safetensors *file, const char *name);
/* Metadata value of that key, or NULL. Owned by `file`. */
const char *cot_safetensors_meta(const cot_safetensors *file, const char *key);

/* Writes what stands before the tensors' bytes, which the caller writes after it in the same order, without gaps; `data` is
 * not looked at. `path` is used in messages only. Errors: IO, OUT_OF_MEMORY. */
cot_status cot_safetensors_begin(FILE *stream, const char *path, const cot_tensor *tensors, size_t count,
                                 const char *const *meta, size_t n_meta, cot_error *error);
/* Writes tensors (their data, in the order given) and string metadata (pairs key, value; n_meta pairs) to
 * `path`; the file appears whole or not at all. Errors: IO, OUT_OF_MEMORY. */
cot_status cot_safetensors_write(const char *path, const cot_tensor *tensors, size_t count,
                                 const char *const *meta, size_t n_meta, cot_error *error);

#endif
