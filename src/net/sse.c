#include "net/sse.h"
#include <stdlib.h>
#include <string.h>

/* False when the event grows too long or memory runs out. */
static bool add(const cot_sse *sse, cot_buffer *text, const char *more, size_t count)
{
    const size_t most = sse->max_bytes ? sse->max_bytes : 16 << 20;
    return count <= most && text->bytes <= most - count && cot_buffer_append(text, more, count);
}

/* An empty line ends an event; one without data is none. */
static bool dispatch(cot_sse *sse)
{
    bool on = true;
    if (sse->has_data) {
        sse->data.data[--sse->data.bytes] = '\0'; // the LF behind the last line
        on = sse->on_event(sse->context, sse->type && *sse->type ? sse->type : "message", sse->data.data,
                           sse->data.bytes);
    }
    free(sse->type);
    sse->type = NULL;
    sse->data.bytes = 0;
    sse->has_data = false;
    return on;
}

static bool is(const char *name, size_t count, const char *wanted)
{
    return count == strlen(wanted) && !memcmp(name, wanted, count);
}

/* One line, without its end: "name: value", ": a comment", or "name". */
static bool read_line(cot_sse *sse)
{
    const char *line = sse->line.bytes ? sse->line.data : "";
    size_t count = sse->line.bytes;
    if (!sse->begun && count >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) { // a byte order mark begins no name
        line += 3;
        count -= 3;
    }
    sse->begun = true;
    sse->line.bytes = 0;
    if (!count) return dispatch(sse);
    const char *const colon = memchr(line, ':', count);
    const size_t name = colon ? (size_t)(colon - line) : count;
    const char *value = colon ? colon + 1 : line + count;
    if (colon && value < line + count && *value == ' ') value++;
    const size_t bytes = (size_t)(line + count - value);
    if (is(line, name, "data")) {
        sse->has_data = true;
        return add(sse, &sse->data, value, bytes) && add(sse, &sse->data, "\n", 1);
    }
    if (is(line, name, "event")) {
        free(sse->type);
        sse->type = strndup(value, bytes);
        return sse->type;
    }
    return true;
}

/* Bytes up to the first CR or LF. */
static size_t line_length(const char *bytes, size_t count)
{
    const char *const lf = memchr(bytes, '\n', count);
    if (lf) count = (size_t)(lf - bytes);
    const char *const cr = memchr(bytes, '\r', count);
    return cr ? (size_t)(cr - bytes) : count;
}

bool cot_sse_feed(cot_sse *sse, const char *bytes, size_t count)
{
    size_t begin = 0;
    while (begin < count && !sse->ended) {
        if (sse->after_cr && bytes[begin] == '\n') { // CR LF ends one line
            sse->after_cr = false;
            begin++;
            continue;
        }
        sse->after_cr = false;
        const size_t stop = begin + line_length(bytes + begin, count - begin);
        if (!add(sse, &sse->line, bytes + begin, stop - begin)) sse->ended = true;
        if (stop < count && !sse->ended) {
            sse->after_cr = bytes[stop] == '\r';
            sse->ended = !read_line(sse);
        }
        begin = stop + 1;
    }
    return !sse->ended;
}

void cot_sse_free(cot_sse *sse)
{
    cot_buffer_free(&sse->line);
    cot_buffer_free(&sse->data);
    free(sse->type);
    sse->type = NULL;
}
