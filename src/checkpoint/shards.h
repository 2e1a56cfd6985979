/* The tensors of a model by name, in whichever of its files they lie: a folder of safetensors, or GGUF in one part or several. */
#ifndef COT_CHECKPOINT_SHARDS_H
#define COT_CHECKPOINT_SHARDS_H
#include "base/gguf.h"
#include "base/safetensors.h"

#include <stdbool.h>

typedef struct cot_shard_tensor {
    const cot_tensor *tensor;
    size_t file;
} cot_shard_tensor;

typedef struct cot_shards {
    cot_safetensors *files;    // NULL: GGUF
    cot_gguf *parts;           // the first has the metadata
    size_t file_count;         // of files or parts
    cot_shard_tensor *tensors; // ascending by name; names differ
    size_t tensor_count;
    size_t bytes;    // of all tensors
    char other[256]; // the file that is read for model.safetensors; "": that is there, or its index
} cot_shards;

/* Opens FOLDER/model.safetensors or, where there is none, the files that FOLDER/model.safetensors.index.json
 * names; they must lie in the folder itself (links are followed). Where neither is there a lone .safetensors is opened, unless
 * its name says that it is one of several ("-of-"). Refuses a tensor that two files hold and
 * one that is not in the file where the index places it. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED,
 * OUT_OF_MEMORY. On failure `*shards` is empty. */
cot_status cot_shards_open(cot_shards *shards, const char *folder, cot_error *error);
/* The same of a GGUF file, or the first of NAME-00001-of-0000N.gguf, beside which the others lie. Errors also: what the parts say of
 * each other does not fit. */
cot_status cot_shards_open_gguf(cot_shards *shards, const char *path, cot_error *error);
/* Fills in `tensors` out of the files that are open: for who opens them. */
cot_status cot_shards_merge(cot_shards *shards, const char *name, cot_error *error);
/* The map of the file that a tensor lies in. */
const cot_file_map *cot_shards_map(const cot_shards *shards, const cot_shard_tensor *tensor);
/* A file of the folder in a form that is not read (GGUF beside other files, or what torch.save writes), by name: false where there is none. */
bool cot_shards_find_unread(char name[256], const char *folder);
/* What to say behind the name of such a file: "', which is not read", or to give the file itself. */
const char *cot_shards_advice(const char *name);
void cot_shards_close(cot_shards *shards);
/* NULL when no file holds it. */
const cot_shard_tensor *cot_shards_find(const cot_shards *shards, const char *name);

#endif
