/* A trace of requests as Mooncake publishes them: JSON lines with timestamp (ms), input_length, output_length and hash_ids, which
 * are numbers of the prompt's blocks of 512 tokens, its last one may be a part; equal numbers are equal beginnings. */
#ifndef COT_CLI_REQUEST_TRACE_H
#define COT_CLI_REQUEST_TRACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REQUEST_TRACE_BLOCK = 512 };

typedef struct traced_request {
    int64_t at_ns;
    uint64_t tokens, answer; // prompt, 1 or more; answer
    size_t first, blocks;    // in the trace's blocks
} traced_request;

typedef struct request_trace {
    traced_request *requests; // [count]
    size_t count, room;
    uint32_t *blocks; // of all requests, one after the other
    size_t block_count, block_room;
    uint32_t numbers; // block numbers are below this
} request_trace;

/* False after a line on stderr, which names the trace's line. */
bool request_trace_read(request_trace *trace, const char *path);
void request_trace_free(request_trace *trace);

#endif
