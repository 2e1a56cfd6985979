#include "predict/window.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

typedef struct named_row {
    const char *bytes;
    size_t length;
    int32_t row;
} named_row;

static int by_name(const void *a, const void *b)
{
    const named_row *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* The row for each of the trace's strings, [n_strings], -1 where the tables do not have it. */
static bool rows_of_strings(int32_t *row, const cot_predictor_info *info, const cot_trace *trace)
{
    const size_t n = (size_t)info->n_tokens;
    named_row *known = malloc((n + 1) * sizeof *known);
    if (!known) return false;
    for (size_t i = 0; i < n; i++)
        known[i] = (named_row){info->token_strings + info->token_string_offsets[i],
                               (size_t)(info->token_string_offsets[i + 1] - info->token_string_offsets[i]),
                               (int32_t)i};
    qsort(known, n, sizeof *known, by_name);
    for (int64_t s = 0; s < trace->n_strings; s++) {
        const named_row wanted = {trace->strings + trace->string_offsets[s],
                                  (size_t)(trace->string_offsets[s + 1] - trace->string_offsets[s]), 0};
        const named_row *found = bsearch(&wanted, known, n, sizeof *known, by_name);
        row[s] = found ? found->row : -1;
    }
    free(known);
    return true;
}

cot_status cot_rows_of_tokens(int32_t *row, const cot_predictor *predictor, const cot_trace *trace,
                              const int32_t *ids, int64_t n, cot_error *error)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, predictor);
    if (!info.token_strings || !trace->n_strings) {
        cot_predict_rows(row, predictor, ids, n);
        return COT_OK;
    }
    int32_t *string_row = malloc((size_t)trace->n_strings * sizeof *string_row);
    const bool good = string_row && rows_of_strings(string_row, &info, trace);
    for (int64_t i = 0; good && i < n; i++)
        row[i] = ids[i] >= 0 && ids[i] < trace->n_strings ? string_row[ids[i]] : -1;
    free(string_row);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for token strings");
}
