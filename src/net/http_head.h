/* Heads of HTTP/1 messages, and bodies in chunks, read strictly. What two readers could take for two different
 * messages is refused (RFC 9112 lets a reader be lenient in places; whoever is, can be told a request that a proxy
 * before it never saw): lines end with CR LF, a field is one line, no blank before a colon, one way to tell the
 * length. */
#ifndef COT_NET_HTTP_HEAD_H
#define COT_NET_HTTP_HEAD_H
#include "net/http_field.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COT_HTTP_MAX_FIELDS = 100 };

/* A head that was read. Strings lie in the bytes that were read. */
typedef struct cot_http_head {
    int minor;                         // of HTTP/1.minor: 0 or 1
    const char *method, *path, *query; // of a request; path decoded, query as sent, "" if none
    const char *host;                  // of a request; "" where none is named
    int status;                        // of an answer
    cot_http_field fields[COT_HTTP_MAX_FIELDS];
    size_t count;
    int64_t length;  // Content-Length; -1 without one
    bool chunked;    // Transfer-Encoding: chunked
    bool keep_alive; // what version and Connection say
    bool expects;    // Expect: 100-continue
} cot_http_head;

/* Looks for the end of the head that `bytes` begin with, from *at on, and moves *at (0 at first), so that no byte is
 * looked at twice. Returns the head's length with its empty line, 0 if more must come, -1 if no head can begin so: a
 * control character, a CR or LF alone. */
int64_t cot_http_head_end(const char *bytes, size_t count, size_t *at);

/* Read the head of `count` bytes, as cot_http_head_end measured it; NUL is put behind names and values. Return 0, or
 * the status of the refusal (400, 417, 431, 501, 505) and in *why one lowercase line. */
int cot_http_read_request(char *bytes, size_t count, cot_http_head *head, const char **why);
int cot_http_read_answer(char *bytes, size_t count, cot_http_head *head, const char **why);
/* The value of the first field of that name (any case); NULL if there is none. */
const char *cot_http_head_find(const cot_http_head *head, const char *name);

/* A body in chunks, read piece by piece. All zero at first. */
typedef struct cot_http_chunks {
    int state;
    uint64_t left;   // of the chunk's data
    size_t digits;   // of its size
    size_t overhead; // bytes of the line, or of all trailers, so far
} cot_http_chunks;

typedef enum cot_http_chunk {
    COT_HTTP_CHUNK_MORE, // everything was read and more must come
    COT_HTTP_CHUNK_DATA, // `data` is a piece of the body
    COT_HTTP_CHUNK_END,  // the body is complete; what was not taken is another message's
    COT_HTTP_CHUNK_BAD,
} cot_http_chunk;

/* Reads on: *taken of the bytes are done with. To be called until it does not answer DATA. */
cot_http_chunk cot_http_chunks_read(cot_http_chunks *chunks, const char *bytes, size_t count, size_t *taken,
                                    const char **data, size_t *data_bytes);

#endif
