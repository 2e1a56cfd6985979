#include "harness/gguf.h"

#include "harness/cmocka.h"

static void append(cot_buffer *buffer, const void *data, size_t bytes)
{
    assert_true(cot_buffer_append(buffer, data, bytes));
}

void gguf_number(cot_buffer *buffer, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) append(buffer, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

void gguf_text(cot_buffer *buffer, const char *text)
{
    gguf_number(buffer, strlen(text), 8);
    append(buffer, text, strlen(text));
}

void gguf_key(gguf_file *file, const char *key, cot_gguf_type type)
{
    file->pair_count++;
    gguf_text(&file->pairs, key);
    gguf_number(&file->pairs, type, 4);
}

void gguf_u32(gguf_file *file, const char *key, uint32_t value)
{
    gguf_key(file, key, COT_GGUF_U32);
    gguf_number(&file->pairs, value, 4);
}

void gguf_f32(gguf_file *file, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_key(file, key, COT_GGUF_F32);
    gguf_number(&file->pairs, bits, 4);
}

void gguf_bool(gguf_file *file, const char *key, bool value)
{
    gguf_key(file, key, COT_GGUF_BOOL);
    gguf_number(&file->pairs, value, 1);
}

void gguf_string(gguf_file *file, const char *key, const char *value)
{
    gguf_key(file, key, COT_GGUF_STRING);
    gguf_text(&file->pairs, value);
}

void gguf_array(gguf_file *file, const char *key, cot_gguf_type type, size_t count)
{
    gguf_key(file, key, COT_GGUF_ARRAY);
    gguf_number(&file->pairs, type, 4);
    gguf_number(&file->pairs, count, 8);
}

void gguf_strings(gguf_file *file, const char *key, const char *const *values, size_t count)
{
    gguf_array(file, key, COT_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) gguf_text(&file->pairs, values[i]);
}

static uint32_t alignment_of(const gguf_file *file)
{
    return file->alignment ? file->alignment : 32;
}

static void pad(cot_buffer *buffer, size_t alignment)
{
    while (buffer->bytes % alignment) append(buffer, "", 1);
}

void gguf_tensor(gguf_file *file, const char *name, uint32_t type, const int64_t *shape, int dims,
                 const void *data, size_t bytes)
{
    pad(&file->data, alignment_of(file));
    file->tensor_count++;
    gguf_text(&file->entries, name);
    gguf_number(&file->entries, (uint64_t)dims, 4);
    for (int d = dims - 1; d >= 0; d--) gguf_number(&file->entries, (uint64_t)shape[d], 8);
    gguf_number(&file->entries, type, 4);
    gguf_number(&file->entries, file->data.bytes, 8);
    append(&file->data, data, bytes);
}

uint8_t *gguf_bytes(const gguf_file *file, size_t *bytes)
{
    cot_buffer all = {0};
    append(&all, "GGUF", 4);
    gguf_number(&all, file->version ? file->version : 3, 4);
    gguf_number(&all, file->tensor_count, 8);
    gguf_number(&all, file->pair_count, 8);
    append(&all, file->pairs.data, file->pairs.bytes);
    append(&all, file->entries.data, file->entries.bytes);
    pad(&all, alignment_of(file));
    append(&all, file->data.data, file->data.bytes);
    uint8_t *exact = malloc(all.bytes); // so that a sanitizer sees who reads beyond
    assert_non_null(exact);
    memcpy(exact, all.data, all.bytes);
    *bytes = all.bytes;
    free(all.data);
    return exact;
}

void gguf_free(gguf_file *file)
{
    free(file->pairs.data), free(file->entries.data), free(file->data.data);
    *file = (gguf_file){0};
}
