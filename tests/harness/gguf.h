/* GGUF files made in memory, piece by piece, so that a test can say anything in them, wrong things too. */
#ifndef COT_TESTS_HARNESS_GGUF_H
#define COT_TESTS_HARNESS_GGUF_H
#include "base/buffer.h"
#include "base/gguf.h"

typedef struct gguf_file {
    cot_buffer pairs, entries, data;
    uint64_t pair_count, tensor_count;
    uint32_t version, alignment; // 0: 3, 32, of which no key tells
} gguf_file;

/* Little-endian. */
void gguf_number(cot_buffer *buffer, uint64_t value, int bytes);
void gguf_text(cot_buffer *buffer, const char *text);

void gguf_key(gguf_file *file, const char *key, cot_gguf_type type); // its value follows in file->pairs
void gguf_u32(gguf_file *file, const char *key, uint32_t value);
void gguf_f32(gguf_file *file, const char *key, float value);
void gguf_bool(gguf_file *file, const char *key, bool value);
void gguf_string(gguf_file *file, const char *key, const char *value);
void gguf_strings(gguf_file *file, const char *key, const char *const *values, size_t count);
void gguf_array(gguf_file *file, const char *key, cot_gguf_type type, size_t count); // its values follow
/* `shape`: the fastest last. */
void gguf_tensor(gguf_file *file, const char *name, uint32_t type, const int64_t *shape, int dims,
                 const void *data, size_t bytes);
/* The whole file, malloc'd to its very size; `*file` is as before. */
uint8_t *gguf_bytes(const gguf_file *file, size_t *bytes);
void gguf_free(gguf_file *file);

#endif
