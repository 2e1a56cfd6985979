/* What a pickle of torch.save holds: plain Python values and tensors. Nothing in it is ever run. */
#ifndef COT_ROUTING_TORCH_VALUE_H
#define COT_ROUTING_TORCH_VALUE_H
#include "base/dtype.h"
#include "routing/torch/zip.h"
#include <stdbool.h>

enum { COT_TORCH_MAX_DIMS = 8 };

typedef enum cot_torch_kind {
    COT_TORCH_NONE,
    COT_TORCH_BOOL,    // integer 0 or 1
    COT_TORCH_INTEGER, // integer
    COT_TORCH_REAL,    // real
    COT_TORCH_TEXT,    // text
    COT_TORCH_TUPLE,   // list
    COT_TORCH_LIST,    // list
    COT_TORCH_DICT,    // list: key, value, key, value, ...
    COT_TORCH_GLOBAL,  // global: a name from the list of those that are known
    COT_TORCH_STORAGE, // storage
    COT_TORCH_TENSOR,  // tensor
} cot_torch_kind;

/* A strided view of a storage, checked: every element lies within the file. */
typedef struct cot_torch_tensor {
    const uint8_t *data; // first element, at any alignment, little-endian
    cot_dtype dtype;
    int dims;
    int64_t shape[COT_TORCH_MAX_DIMS], stride[COT_TORCH_MAX_DIMS]; // stride in elements, >= 0
} cot_torch_tensor;

typedef struct cot_torch_value {
    cot_torch_kind kind;
    union {
        int64_t integer;
        double real;
        struct {
            const char *at; // not NUL-terminated
            size_t bytes;
        } text;
        struct {
            struct cot_torch_value **items;
            uint32_t count, room;
        } list;
        int global;
        struct {
            const uint8_t *data;
            size_t count; // elements
            cot_dtype dtype;
        } storage;
        cot_torch_tensor *tensor;
    };
} cot_torch_value;

/* The value of `dict`'s text key `key`; NULL where there is none or `dict` is none (NULL is fine). */
const cot_torch_value *cot_torch_get(const cot_torch_value *dict, const char *key);
/* Likewise the tensor. */
const cot_torch_tensor *cot_torch_get_tensor(const cot_torch_value *dict, const char *key);

/* The memory behind a pickle's values. All zero is empty. */
typedef struct cot_torch_memory {
    struct cot_torch_block *blocks;
    uint8_t *at;
    size_t left;
} cot_torch_memory;
void cot_torch_memory_free(cot_torch_memory *memory);
/* `bytes` zeroed bytes, 8-aligned; NULL when out of memory. */
void *cot_torch_take(cot_torch_memory *memory, size_t bytes);

/* Where a pickle's storages are: the members `folder`data/KEY of `zip`; or nowhere yet, and `found` lists them as they occur,
 * tensors then have no data. */
typedef struct cot_torch_storages {
    const cot_zip *zip;
    const char *folder;
    size_t folder_bytes;
    struct cot_torch_found *found; // NULL: they are in `zip`
    size_t n_found, room_found;
} cot_torch_storages;

/* A storage that a pickle names. */
typedef struct cot_torch_found {
    const char *key; // [key_bytes], in the pickle
    size_t key_bytes;
    cot_dtype dtype;
} cot_torch_found;

/* Reads the pickle at `data`, of which `*used` bytes are its own; `path` is for messages. The values live in `memory`, and
 * point into `data` and the storages. Opcodes and names that no recording needs are refused, whatever they would do.
 * Errors: MALFORMED, UNSUPPORTED (such an opcode or name), OUT_OF_MEMORY. */
cot_status cot_torch_unpickle(const cot_torch_value **value, size_t *used, cot_torch_memory *memory,
                              const uint8_t *data, size_t bytes, cot_torch_storages *storages,
                              const char *path, cot_error *error);

/* Element `i` (of its storage, from the tensor's first on) where it is a whole number from `least` to `most`; else false. */
bool cot_torch_whole(int64_t *n, const cot_torch_tensor *tensor, int64_t i, int64_t least, int64_t most);

/* The element at `at`, of any dtype but the 8-bit floats; false for those. */
bool cot_torch_number(double *number, cot_dtype dtype, const void *at);

#endif
