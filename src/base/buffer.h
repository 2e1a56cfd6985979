/* Bytes and arrays that grow. */
#ifndef COT_BASE_BUFFER_H
#define COT_BASE_BUFFER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `need` elements of `size` bytes at `*array`, which has room for `*capacity`. False when out
 * of memory; the array is kept then. */
static inline bool cot_grow(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return true;
    if (need > SIZE_MAX / 4 / size) return false; // and so is twice the capacity no overflow
    size_t wanted = *capacity * 2 < need ? need : *capacity * 2;
    if (wanted < 16) wanted = 16;
    void *grown = realloc(*array, wanted * size);
    if (!grown) return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

typedef struct cot_buffer {
    char *data; // NULL until something is appended
    size_t bytes, capacity;
} cot_buffer;

static inline bool cot_buffer_append(cot_buffer *buffer, const void *data, size_t bytes)
{
    if (bytes > SIZE_MAX - buffer->bytes - 1) return false;
    void *grown = buffer->data;
    if (!cot_grow(&grown, &buffer->capacity, buffer->bytes + bytes + 1, 1)) return false;
    buffer->data = grown;
    if (bytes) memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = 0; // always NUL-terminated
    return true;
}

static inline bool cot_buffer_text(cot_buffer *buffer, const char *text)
{
    return cot_buffer_append(buffer, text, strlen(text));
}

static inline void cot_buffer_free(cot_buffer *buffer)
{
    free(buffer->data);
    *buffer = (cot_buffer){0};
}

#endif
