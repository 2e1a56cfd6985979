#include "net/http_head.h"

enum {
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF,
    OVER
};
enum { MAX_LINE = 4096, MAX_TRAILERS = 16384 };

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static bool printable(char c)
{
    return c == '\t' || ((unsigned char)c >= ' ' && c != 127);
}

/* One byte outside of data; false if it may not stand there. */
static bool step(cot_http_chunks *chunks, char c)
{
    chunks->overhead++;
    switch (chunks->state) {
    case SIZE:
        if (hex(c) >= 0) {
            chunks->left = chunks->left << 4 | (uint64_t)hex(c);
            return ++chunks->digits <= 15;
        }
        if (!chunks->digits || (c != ';' && c != '\r')) return false;
        chunks->state = c == ';' ? EXTENSION : SIZE_LF;
        return true;
    case EXTENSION: // means nothing to us
        if (c == '\r')
            chunks->state = SIZE_LF;
        else if (!printable(c))
            return false;
        return chunks->overhead <= MAX_LINE;
    case SIZE_LF:
        chunks->state = chunks->left ? DATA : TRAILER;
        chunks->overhead = chunks->digits = 0;
        return c == '\n';
    case DATA_CR:
        chunks->state = DATA_LF;
        return c == '\r';
    case DATA_LF:
        chunks->state = SIZE;
        chunks->overhead = 0;
        return c == '\n';
    case TRAILER: // a field after the body: read, and dropped
        chunks->state = c == '\r' ? LAST_LF : TRAILER_NAME;
        return c == '\r' || (c > ' ' && c < 127 && c != ':');
    case TRAILER_NAME:
        if (c == ':') chunks->state = TRAILER_VALUE;
        return c > ' ' && c < 127 && chunks->overhead <= MAX_TRAILERS;
    case TRAILER_VALUE:
        if (c == '\r')
            chunks->state = TRAILER_LF;
        else if (!printable(c))
            return false;
        return chunks->overhead <= MAX_TRAILERS;
    case TRAILER_LF:
        chunks->state = TRAILER;
        return c == '\n';
    default:
        chunks->state = OVER;
        return c == '\n';
    }
}

cot_http_chunk cot_http_chunks_read(cot_http_chunks *chunks, const char *bytes, size_t count, size_t *taken,
                                    const char **data, size_t *data_bytes)
{
    size_t i = 0;
    while (chunks->state != OVER) {
        if (i == count) {
            *taken = i;
            return COT_HTTP_CHUNK_MORE;
        }
        if (chunks->state == DATA) {
            const size_t n = count - i < chunks->left ? count - i : (size_t)chunks->left;
            *data = bytes + i;
            *data_bytes = n;
            *taken = i + n;
            chunks->left -= n;
            if (!chunks->left) chunks->state = DATA_CR;
            return COT_HTTP_CHUNK_DATA;
        }
        if (!step(chunks, bytes[i++])) {
            *taken = i;
            return COT_HTTP_CHUNK_BAD;
        }
    }
    *taken = i;
    return COT_HTTP_CHUNK_END;
}
