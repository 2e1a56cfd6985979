#include "request_trace.h"
#include "command.h"
#include "whole_file.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 16 << 20, MOST_NUMBER = 1 << 28 };

static bool grow(void **array, size_t *room, size_t count, size_t bytes)
{
    if (count < *room) return true;
    const size_t wanted = *room ? 2 * *room : 4096;
    void *grown = realloc(*array, wanted * bytes);
    if (!grown) return false;
    *array = grown;
    *room = wanted;
    return true;
}

static bool add_block(request_trace *t, const json_t *number)
{
    void *blocks = t->blocks;
    if (!json_is_integer(number) || json_integer_value(number) < 0 ||
        json_integer_value(number) >= MOST_NUMBER ||
        !grow(&blocks, &t->block_room, t->block_count, sizeof *t->blocks))
        return false;
    t->blocks = blocks;
    const uint32_t value = (uint32_t)json_integer_value(number);
    t->blocks[t->block_count++] = value;
    if (value >= t->numbers) t->numbers = value + 1;
    return true;
}

/* NULL, or what is wrong. */
static const char *read_request(request_trace *t, const char *line)
{
    void *requests = t->requests;
    if (!grow(&requests, &t->room, t->count, sizeof *t->requests)) return "out of memory";
    t->requests = requests;
    json_t *const row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const json_t *const at = json_object_get(row, "timestamp"),
                        *const input = json_object_get(row, "input_length"),
                        *const output = json_object_get(row, "output_length"),
                        *const ids = json_object_get(row, "hash_ids");
    const char *wrong = NULL;
    traced_request r = {.first = t->block_count, .blocks = json_array_size(ids)};
    if (!json_is_number(at) || !(fabs(json_number_value(at)) < 1e12))
        wrong = "timestamp is no time in milliseconds";
    else if (!json_is_integer(input) || json_integer_value(input) < 1 ||
             json_integer_value(input) > MOST_TOKENS)
        wrong = "input_length is not 1 to 16777216";
    else if (!json_is_integer(output) || json_integer_value(output) < 0 ||
             json_integer_value(output) > MOST_TOKENS)
        wrong = "output_length is not 0 to 16777216";
    else if (!json_is_array(ids) ||
             r.blocks != ((size_t)json_integer_value(input) + REQUEST_TRACE_BLOCK - 1) / REQUEST_TRACE_BLOCK)
        wrong = "hash_ids are not one for each 512 tokens of input_length";
    if (!wrong) {
        r.at_ns = (int64_t)(json_number_value(at) * 1e6);
        r.tokens = (uint64_t)json_integer_value(input);
        r.answer = (uint64_t)json_integer_value(output);
        if (t->count && r.at_ns < t->requests[t->count - 1].at_ns) wrong = "timestamp goes back";
    }
    for (size_t i = 0; !wrong && i < r.blocks; i++)
        if (!add_block(t, json_array_get(ids, i))) wrong = "a hash id is not 0 to 268435455";
    json_decref(row);
    if (!wrong) t->requests[t->count++] = r;
    return wrong;
}

bool request_trace_read(request_trace *t, const char *path)
{
    *t = (request_trace){0};
    size_t bytes, number = 0;
    char *const text = read_whole(path, &bytes);
    if (!text) return false;
    const char *wrong = NULL;
    for (char *line = text, *next; line && *line && !wrong; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        if (*line) wrong = read_request(t, line);
    }
    free(text);
    if (wrong)
        cot_complain("'%s' line %zu: %s", path, number, wrong);
    else if (!t->count)
        cot_complain("'%s': no requests", path);
    if (!wrong && t->count) return true;
    request_trace_free(t);
    return false;
}

void request_trace_free(request_trace *t)
{
    free(t->requests);
    free(t->blocks);
    *t = (request_trace){0};
}
