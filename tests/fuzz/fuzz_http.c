/* Any bytes are a head and a body, or refused, and mean the same however they are cut. The first byte says whether they are
 * a request or an answer (bit 7) and how long the pieces are (bits 0..6); what follows a head is read as a body in chunks
 * and as events. */
#include "net/http_head.h"
#include "net/sse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef struct text {
    char *bytes;
    size_t count;
} text;

static void add(text *to, const char *bytes, size_t count)
{
    to->bytes = realloc(to->bytes, to->count + count + 1);
    if (!to->bytes) abort();
    if (count) memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
}

static bool same(const text *a, const text *b)
{
    return a->count == b->count && (!a->count || !memcmp(a->bytes, b->bytes, a->count));
}

/* The head's length, found in pieces; every answer before the last is that more must come. */
static int64_t find_end(const char *bytes, size_t count, size_t piece)
{
    size_t at = 0;
    for (size_t seen = piece;; seen += piece) {
        if (seen > count) seen = count;
        const int64_t end = cot_http_head_end(bytes, seen, &at);
        if (end || seen == count) return end;
    }
}

/* The body and how it ended. */
static cot_http_chunk read_chunks(const char *bytes, size_t count, size_t piece, text *body, size_t *taken)
{
    cot_http_chunks chunks = {0};
    for (size_t at = 0;;) {
        const size_t n = count - at < piece ? count - at : piece;
        size_t done, found;
        const char *data;
        const cot_http_chunk said = cot_http_chunks_read(&chunks, bytes + at, n, &done, &data, &found);
        if (done > n) abort();
        if (said == COT_HTTP_CHUNK_DATA) {
            if (data < bytes + at || data + found > bytes + at + done || !found) abort();
            add(body, data, found);
        }
        at += done;
        *taken = at;
        if (said == COT_HTTP_CHUNK_END || said == COT_HTTP_CHUNK_BAD) return said;
        if (said == COT_HTTP_CHUNK_MORE && done != n) abort();
        if (said == COT_HTTP_CHUNK_MORE && at == count) return said;
    }
}

static bool on_event(void *context, const char *type, const char *data, size_t bytes)
{
    if (!*type || data[bytes]) abort();
    add(context, type, strlen(type) + 1);
    add(context, data, bytes + 1);
    return true;
}

static bool read_events(const char *bytes, size_t count, size_t piece, text *events)
{
    cot_sse sse = {.on_event = on_event, .context = events, .max_bytes = 64};
    bool fine = true;
    for (size_t at = 0; at < count && fine; at += piece) {
        fine = cot_sse_feed(&sse, bytes + at, count - at < piece ? count - at : piece);
    }
    cot_sse_free(&sse);
    return fine;
}

static void read_body(const char *bytes, size_t count, size_t piece)
{
    text whole = {0}, parts = {0};
    size_t taken, in_parts;
    const cot_http_chunk said = read_chunks(bytes, count, count + 1, &whole, &taken);
    if (said != read_chunks(bytes, count, piece, &parts, &in_parts) || taken != in_parts ||
        !same(&whole, &parts))
        abort();
    whole.count = parts.count = 0;
    if (read_events(bytes, count, count + 1, &whole) != read_events(bytes, count, piece, &parts)) abort();
    if (!same(&whole, &parts)) abort();
    free(whole.bytes);
    free(parts.bytes);
}

/* A head that was taken: what it says can be relied on. */
static void look(const cot_http_head *head, bool request)
{
    if (head->count > COT_HTTP_MAX_FIELDS || (head->chunked && head->length >= 0) || head->minor > 1) abort();
    for (size_t i = 0; i < head->count; i++) {
        if (!*head->fields[i].name || !cot_http_head_find(head, head->fields[i].name)) abort();
        for (const char *c = head->fields[i].value; *c; c++) {
            if (*c == '\r' || *c == '\n') abort();
        }
    }
    if (!request) return;
    if (*head->path != '/' && strcmp(head->path, "*")) abort();
    for (const char *c = head->path; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) abort();
    }
    if (!*head->method || strpbrk(head->method, " \t\r\n") || strpbrk(head->host, "@/ \r\n")) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes) return 0;
    const bool request = !(data[0] & 0x80);
    const size_t piece = (data[0] & 0x7f) + 1u, count = bytes - 1;
    char *const copy = malloc(bytes); // so that a read beyond is seen
    if (!copy) return 0;
    memcpy(copy, data + 1, count);
    size_t at = 0;
    const int64_t end = cot_http_head_end(copy, count, &at);
    if (end != find_end(copy, count, piece) || end > (int64_t)count) abort();
    read_body(copy + (end > 0 ? end : 0), count - (end > 0 ? (size_t)end : 0), piece);
    if (end > 2) {
        cot_http_head head;
        const char *why = NULL;
        char *const head_text = malloc((size_t)end);
        if (!head_text) abort();
        memcpy(head_text, copy, (size_t)end);
        const int status = request ? cot_http_read_request(head_text, (size_t)end, &head, &why)
                                   : cot_http_read_answer(head_text, (size_t)end, &head, &why);
        if (status ? !why : why != NULL) abort();
        if (!status) look(&head, request);
        free(head_text);
    }
    free(copy);
    return 0;
}
