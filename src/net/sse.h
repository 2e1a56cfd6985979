/* Server-Sent Events as a client reads them: bytes in, in any pieces; events out. */
#ifndef COT_NET_SSE_H
#define COT_NET_SSE_H
#include "base/buffer.h"

/* Zero it, set `on_event`, `context` and `max_bytes`, feed it. */
typedef struct cot_sse {
    /* An event's data: its lines joined by LF, NUL-terminated. `type` is "message" unless the event names one. false
     * ends the feeding. */
    bool (*on_event)(void *context, const char *type, const char *data, size_t bytes);
    void *context;
    size_t max_bytes; // of one event, its lines and names; 0: 16 MiB

    cot_buffer line, data; // what has come of the current line and event
    char *type;
    bool has_data, after_cr, begun, ended;
} cot_sse;

/* false: an event was too long, memory ran out, or on_event said false; nothing more is read then. */
bool cot_sse_feed(cot_sse *sse, const char *bytes, size_t count);
void cot_sse_free(cot_sse *sse);

#endif
