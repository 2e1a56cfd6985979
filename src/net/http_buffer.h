/* Bytes that came or wait to go: appended at the end, taken from the front. All zero is empty. */
#ifndef COT_NET_HTTP_BUFFER_H
#define COT_NET_HTTP_BUFFER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { COT_HTTP_BUFFER_KEEP = 16 << 10 }; // an empty buffer that is larger than this is freed

typedef struct cot_http_buffer {
    char *bytes;
    size_t begin, end, room; // what it holds is [begin, end)
} cot_http_buffer;

static inline size_t cot_http_buffer_count(const cot_http_buffer *buffer)
{
    return buffer->end - buffer->begin;
}

/* Makes place for `count` more bytes behind the end; false when out of memory. */
static inline bool cot_http_buffer_reserve(cot_http_buffer *buffer, size_t count)
{
    if (buffer->room - buffer->end >= count) return true;
    const size_t held = buffer->end - buffer->begin;
    if (buffer->begin && buffer->room - held >= count && buffer->begin >= held) {
        memcpy(buffer->bytes, buffer->bytes + buffer->begin, held);
        buffer->begin = 0;
        buffer->end = held;
        return true;
    }
    size_t room = buffer->room ? buffer->room : 2048;
    while (room - held < count) {
        if (room > (size_t)-1 / 2) return false;
        room *= 2;
    }
    char *const bytes = malloc(room);
    if (!bytes) return false;
    if (held) memcpy(bytes, buffer->bytes + buffer->begin, held);
    free(buffer->bytes);
    *buffer = (cot_http_buffer){bytes, 0, held, room};
    return true;
}

static inline bool cot_http_buffer_add(cot_http_buffer *buffer, const void *bytes, size_t count)
{
    if (!count) return true;
    if (!cot_http_buffer_reserve(buffer, count)) return false;
    memcpy(buffer->bytes + buffer->end, bytes, count);
    buffer->end += count;
    return true;
}

/* Takes `count` bytes from the front. */
static inline void cot_http_buffer_take(cot_http_buffer *buffer, size_t count)
{
    buffer->begin += count;
    if (buffer->begin < buffer->end) return;
    buffer->begin = buffer->end = 0;
    if (buffer->room > COT_HTTP_BUFFER_KEEP) {
        free(buffer->bytes);
        buffer->bytes = NULL;
        buffer->room = 0;
    }
}

static inline void cot_http_buffer_free(cot_http_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (cot_http_buffer){0};
}

#endif
