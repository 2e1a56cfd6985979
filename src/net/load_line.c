/* A line of a trace of requests in the form of Mooncake's. */
#include "base/buffer.h"
#include "coterie/load_test.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

enum { MOST_TOKENS = 16 << 20, MOST_HASH_ID = 1 << 28 };

static bool is_in(const json_t *number, json_int_t least, json_int_t most)
{
    return json_is_integer(number) && json_integer_value(number) >= least &&
           json_integer_value(number) <= most;
}

/* NULL, or what is wrong. */
static const char *add_ids(cot_load_test_ids *list, const json_t *ids)
{
    const size_t had = list->count;
    void *grown = list->ids;
    if (!cot_grow(&grown, &list->room, had + json_array_size(ids) + 1, sizeof *list->ids))
        return "out of memory";
    list->ids = grown;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *const id = json_array_get(ids, i);
        if (!is_in(id, 0, MOST_HASH_ID - 1)) {
            list->count = had;
            return "a hash id is not 0 to 268435455";
        }
        list->ids[list->count++] = (uint32_t)json_integer_value(id);
    }
    return NULL;
}

const char *cot_load_test_read_line(cot_load_test_line *line, cot_load_test_ids *list, const char *text)
{
    json_t *const row = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *const at = json_object_get(row, "timestamp"),
                        *const input = json_object_get(row, "input_length"),
                        *const output = json_object_get(row, "output_length"),
                        *const ids = json_object_get(row, "hash_ids");
    const char *wrong = NULL;
    *line = (cot_load_test_line){.first_block = list->count, .blocks = json_array_size(ids)};
    if (!json_is_object(row))
        wrong = "no JSON object";
    else if (!json_is_number(at) || !(fabs(json_number_value(at)) < 1e12))
        wrong = "timestamp is no time in milliseconds";
    else if (!is_in(input, 1, MOST_TOKENS))
        wrong = "input_length is not 1 to 16777216";
    else if (!is_in(output, 0, MOST_TOKENS))
        wrong = "output_length is not 0 to 16777216";
    else if (ids && (!json_is_array(ids) ||
                     (json_int_t)line->blocks !=
                         (json_integer_value(input) + COT_LOAD_TEST_HASHED - 1) / COT_LOAD_TEST_HASHED))
        wrong = "hash_ids are not one for each 512 tokens of input_length";
    else
        wrong = add_ids(list, ids);
    if (!wrong) {
        line->at_ns = (int64_t)(json_number_value(at) * 1e6);
        line->input_tokens = json_integer_value(input);
        line->output_tokens = json_integer_value(output);
    }
    json_decref(row);
    return wrong;
}
