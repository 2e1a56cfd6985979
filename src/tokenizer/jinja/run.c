#include "tokenizer/jinja/run.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16, SMALL_CHUNK = 1 << 12, LARGE_CHUNK = 1 << 20, OFTEN = 1 << 12 };

typedef struct cot_jinja_chunk {
    struct cot_jinja_chunk *next;
    size_t used, capacity;
    _Alignas(ALIGNMENT) unsigned char data[];
} cot_jinja_chunk;

/* Chunks grow from a page to a megabyte; what is larger has a chunk of its own. */
static cot_jinja_chunk *add_chunk(cot_jinja_run *run, size_t bytes)
{
    size_t capacity = run->chunks ? run->chunks->capacity * 2 : SMALL_CHUNK;
    if (capacity > LARGE_CHUNK) capacity = LARGE_CHUNK;
    if (capacity < bytes) capacity = bytes;
    if (capacity > run->limits.bytes - run->bytes) capacity = bytes;
    cot_jinja_chunk *chunk = malloc(sizeof *chunk + capacity);
    if (!chunk) cot_jinja_fail(run, COT_JINJA_NO_MEMORY, "out of memory");
    chunk->used = 0;
    chunk->capacity = capacity;
    chunk->next = run->chunks;
    run->bytes += capacity;
    return run->chunks = chunk;
}

void *cot_jinja_take(cot_jinja_run *run, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) bytes = SIZE_MAX / 2;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    cot_jinja_chunk *chunk = run->chunks;
    if (!chunk || bytes > chunk->capacity - chunk->used) {
        if (bytes > run->limits.bytes - run->bytes)
            cot_jinja_fail(run, COT_JINJA_LIMIT, "the template makes more than %zu MiB",
                           run->limits.bytes >> 20);
        chunk = add_chunk(run, bytes);
    }
    void *memory = chunk->data + chunk->used;
    chunk->used += bytes;
    return bytes ? memset(memory, 0, bytes) : memory;
}

void cot_jinja_end(cot_jinja_run *run)
{
    for (cot_jinja_chunk *chunk = run->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    run->chunks = NULL;
    run->bytes = 0;
}

void cot_jinja_fail(cot_jinja_run *run, cot_jinja_reason reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->failure.message, sizeof run->failure.message, format, arguments);
    va_end(arguments);
    run->failure.reason = reason;
    run->failure.line = run->line;
    longjmp(run->out, 1);
}

void cot_jinja_look(cot_jinja_run *run)
{
    const cot_jinja_limits *limits = &run->limits;
    if (run->steps > limits->steps)
        cot_jinja_fail(run, COT_JINJA_LIMIT, "the template takes more than %" PRIu64 " steps", limits->steps);
    if (limits->is_stopped && limits->is_stopped(limits->context))
        cot_jinja_fail(run, COT_JINJA_STOPPED, "stopped");
    run->look = limits->steps - run->steps > OFTEN ? run->steps + OFTEN : limits->steps;
}

void cot_jinja_fail_depth(cot_jinja_run *run)
{
    cot_jinja_fail(run, COT_JINJA_LIMIT, "the template nests deeper than %d", COT_JINJA_MOST_DEPTH);
}
