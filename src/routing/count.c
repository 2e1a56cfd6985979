#include "routing/store.h"

#include "base/error.h"
#include "routing/ids.h"

#include <inttypes.h>

cot_status cot_trace_count(cot_trace *counts, const cot_trace *trace, cot_error *error)
{
    *counts = (cot_trace){0};
    if (trace->kind == COT_TRACE_COUNTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the trace holds counts already");
    cot_status status = cot_trace_own(counts, error);
    if (status == COT_OK)
        status = cot_trace_set_names(counts, trace->model, trace->n_layers, trace->layers, trace, error);
    int32_t *ids = NULL;
    uint32_t *table = NULL;
    int64_t n = 0, L = trace->n_layers, E = trace->n_experts;
    if (status == COT_OK && (ids = cot_trace_alloc(counts, trace->n_tokens, sizeof *ids))) {
        for (int64_t t = 0; t < trace->n_tokens; t++) ids[t] = trace->token_ids[t];
        n = cot_ids_sort(ids, trace->n_tokens);
        table = cot_trace_alloc(counts, cot_product(L, n, E), sizeof *table);
    }
    if (status == COT_OK && !table)
        status = cot_fail(error, COT_OUT_OF_MEMORY,
                          "out of memory for counts of %" PRId64 " ids, %" PRId64 " layers and %" PRId64
                          " experts",
                          n, L, E);
    for (int64_t t = 0; status == COT_OK && t < trace->n_tokens; t++) {
        int64_t row = cot_ids_find(ids, n, trace->token_ids[t]);
        for (int32_t l = 0; l < trace->n_layers; l++)
            for (int32_t k = 0; k < trace->top_k; k++) {
                uint32_t *count = &table[(l * n + row) * E + cot_trace_expert(trace, l, t, k)];
                if (*count == UINT32_MAX)
                    status = cot_fail(error, COT_UNSUPPORTED,
                                      "token id %" PRId32 " goes to one expert over %" PRIu32 " times",
                                      trace->token_ids[t], UINT32_MAX);
                else
                    (*count)++;
            }
    }
    if (status != COT_OK) {
        cot_trace_close(counts);
        return status;
    }
    counts->kind = COT_TRACE_COUNTS;
    counts->n_experts = trace->n_experts;
    counts->top_k = trace->top_k;
    counts->n_tokens = n;
    counts->token_ids = ids;
    counts->counts = table;
    return COT_OK;
}
