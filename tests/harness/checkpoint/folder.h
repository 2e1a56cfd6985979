/* Model folders made for a test: tensors by name, spoilt as the test wants, written to a temporary folder. */
#ifndef COT_TESTS_HARNESS_CHECKPOINT_FOLDER_H
#define COT_TESTS_HARNESS_CHECKPOINT_FOLDER_H
#include "base/safetensors.h"

#include <stddef.h>
#include <stdint.h>

enum { MAX_TENSORS = 256 };

typedef struct folder {
    char path[64];
    cot_tensor tensors[MAX_TENSORS]; // names and data are malloc'd
    size_t count;
    uint64_t seed, draws;
} folder;

/* An empty one; folder_delete removes it and its files. */
folder *folder_new(uint64_t seed);

void folder_delete(folder *f);

void write_text(const folder *f, const char *name, const char *text);

/* A tensor of random numbers. Unused dimensions are 0. */
cot_tensor *add(folder *f, const char *name, cot_dtype type, int64_t a, int64_t b, int64_t c, int64_t d);

cot_tensor *tensor_of(folder *f, const char *name);

/* Writes tensors [first, first + count) to FOLDER/NAME. */
void write_shard(const folder *f, const char *name, size_t first, size_t count);

void write_all(const folder *f);

/* Writes all tensors and fails the test unless opening the checkpoint is an error whose message contains `words`. */
void folder_refused(const folder *f, const char *words);

#define TINY_MIXTRAL                                                                                         \
    "{\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 19, \"hidden_size\": 24, "                \
    "\"intermediate_size\": 10,"                                                                             \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 1, "                    \
    "\"num_local_experts\": 3,"                                                                              \
    " \"num_experts_per_tok\": 2, \"max_position_embeddings\": 64}"

/* Attention of heads x head_dim and norms of one layer: [heads * d][h] and so on. */
void add_attention(folder *f, int layer, cot_dtype type, int64_t h, int64_t q, int64_t kv);

void add_ends(folder *f, cot_dtype type, int64_t v, int64_t h);

/* A model of two layers of three experts, of the config of TINY_MIXTRAL. */
folder *tiny_mixtral(uint64_t seed, cot_dtype type);

#endif
