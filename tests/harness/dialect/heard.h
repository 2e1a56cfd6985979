/* What a parser of dialects says of a text, collected. */
#ifndef COT_TESTS_HARNESS_DIALECT_HEARD_H
#define COT_TESTS_HARNESS_DIALECT_HEARD_H
#include "base/buffer.h"
#include "dialect/dialect.h"

typedef struct heard_call {
    cot_buffer name, id, arguments;
    bool has_id;
} heard_call;

typedef struct heard {
    cot_buffer content, reasoning;
    heard_call *calls;
    size_t count, capacity;
    size_t unread;
} heard;

/* Parses a text [bytes] in pieces that end at `cuts` [cut_count], ascending; options' listener is filled in. */
heard heard_parse(const cot_dialect_options *options, const char *text, size_t bytes, const size_t *cuts,
                  size_t cut_count, bool is_cut);
bool heard_equal(const heard *a, const heard *b);
void heard_print(const heard *h);
void heard_free(heard *h);

/* A text in which each of the markers (JSON strings of a list) is an added token, but where its offset is in `plain` (a list of
 * integers, NULL: none). */
cot_buffer heard_mark(const char *text, size_t bytes, const json_t *markers, const json_t *plain);

#endif
