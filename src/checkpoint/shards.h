/* The tensors of a model folder by name, in whichever of its safetensors files they lie. */
#ifndef COT_CHECKPOINT_SHARDS_H
#define COT_CHECKPOINT_SHARDS_H
#include "base/safetensors.h"

#include <stdbool.h>

typedef struct cot_shard_tensor {
    const cot_tensor *tensor;
    size_t file;
} cot_shard_tensor;

typedef struct cot_shards {
    cot_safetensors *files;
    size_t file_count;
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
/* A file of the folder in a form that is not read (GGUF, or what torch.save writes), by name: false where there is none. */
bool cot_shards_find_unread(char name[256], const char *folder);
void cot_shards_close(cot_shards *shards);
/* NULL when no file holds it. */
const cot_shard_tensor *cot_shards_find(const cot_shards *shards, const char *name);

#endif
