/* A trace of requests with hash ids, of which equal ones are equal beginnings, each a block of 512 tokens. */
#ifndef COT_CLI_BENCH_REQUEST_TRACE_H
#define COT_CLI_BENCH_REQUEST_TRACE_H
#include "coterie/load_test.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_request_trace {
    cot_load_test_line *requests; // [count] each with 1 block or more
    size_t count, room;
    cot_load_test_ids blocks; // of all requests, one after the other
    uint32_t numbers;         // hash ids are below this
} cli_request_trace;

/* False after a line on stderr, which names the trace's line. */
bool cli_request_trace_read(cli_request_trace *trace, const char *path);
void cli_request_trace_free(cli_request_trace *trace);

#endif
