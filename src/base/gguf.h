/* The container of one file: metadata, a table of tensors, their bytes. Versions 2 and 3, little-endian, which are laid out alike:
 *
 *     "GGUF", u32 version, u64 tensors, u64 pairs
 *     a pair: string key, u32 type, value; an array's value: u32 type, u64 count, values
 *     a tensor: string name, u32 dimensions, u64 of each, the fastest first, u32 type, u64 offset
 *     data, at the next multiple of general.alignment (32); offsets are from there, and multiples of it
 *
 * A string is a u64 length and its bytes. Nothing outside of the file is ever read, whatever it says. */
#ifndef COT_BASE_GGUF_H
#define COT_BASE_GGUF_H
#include "base/file.h"
#include "base/tensor.h"
#include "coterie/status.h"
#include <jansson.h>
#include <stdbool.h>

typedef enum cot_gguf_type {
    COT_GGUF_U8,
    COT_GGUF_I8,
    COT_GGUF_U16,
    COT_GGUF_I16,
    COT_GGUF_U32,
    COT_GGUF_I32,
    COT_GGUF_F32,
    COT_GGUF_BOOL,
    COT_GGUF_STRING,
    COT_GGUF_ARRAY,
    COT_GGUF_U64,
    COT_GGUF_I64,
    COT_GGUF_F64,
    COT_GGUF_TYPES
} cot_gguf_type;

/* A string where it lies in the file: without a NUL after it, and not known to be UTF-8. */
typedef struct cot_gguf_string {
    const char *data;
    size_t bytes;
} cot_gguf_string;

typedef struct cot_gguf_pair {
    const char *key;    // UTF-8
    cot_gguf_type type; // of the value, or of an array's elements
    bool array;
    size_t count;        // of elements; 1 where it is no array
    const uint8_t *data; // of the first; all lie in the file
} cot_gguf_pair;

typedef struct cot_gguf {
    cot_file_map map;
    cot_tensor *tensors; // ascending by name
    size_t count;
    cot_gguf_pair *pairs; // ascending by key
    size_t pair_count;
    char *names; // keys and names
} cot_gguf;

/* Whether bytes begin as such a file does. */
bool cot_gguf_is(const void *data, size_t bytes);
/* Whether a file does, or is called so; false where it cannot be opened. */
bool cot_gguf_is_file(const char *path);
/* Maps a file and checks all of its header: counts, lengths, types, keys and names that differ, shapes that multiply to what lies
 * in the file, tensors that do not overlap. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED (big-endian, version 1 or above 3, a
 * tensor's type), OUT_OF_MEMORY. On failure `*file` is empty. The caller closes it. */
cot_status cot_gguf_open(cot_gguf *file, const char *path, cot_error *error);
/* The same on bytes in memory, which must outlive `*file`; `path` is used in messages only. */
cot_status cot_gguf_parse(cot_gguf *file, const void *data, size_t bytes, const char *path, cot_error *error);
void cot_gguf_close(cot_gguf *file);

/* The pair of that key, or NULL. */
const cot_gguf_pair *cot_gguf_find(const cot_gguf *file, const char *key);
/* A value as JSON: a number, true or false, a string, or a list of these; a new reference. NULL where JSON has no such value: a NaN
 * or an infinity, a whole number of 2^63 or more, a string that is not UTF-8; or out of memory. */
json_t *cot_gguf_json(const cot_gguf_pair *pair);
/* Element i of a pair of strings; `*at`, which begins as NULL, is where the search for element i + 1 goes on. */
cot_gguf_string cot_gguf_next_string(const cot_gguf_pair *pair, const uint8_t **at);
/* Number i of a pair, as the nearest double; 0 where it holds no numbers. */
double cot_gguf_number(const cot_gguf_pair *pair, size_t i);

#endif
