#include "routing/store.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static cot_status check_sizes(const cot_trace *trace, const char *subject, cot_error *error)
{
    if (trace->n_layers < 1 || trace->n_layers > COT_TRACE_MAX_LAYERS)
        return cot_fail(error, COT_MALFORMED, "'%s': %" PRId32 " layers, expected 1 to %d", subject,
                        trace->n_layers, COT_TRACE_MAX_LAYERS);
    if (trace->n_experts < 1 || trace->n_experts > COT_TRACE_MAX_EXPERTS)
        return cot_fail(error, COT_MALFORMED, "'%s': %" PRId32 " experts, expected 1 to %d", subject,
                        trace->n_experts, COT_TRACE_MAX_EXPERTS);
    if (trace->top_k < 1 || trace->top_k > trace->n_experts)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': a token has %" PRId32 " experts, expected 1 to the model's %" PRId32, subject,
                        trace->top_k, trace->n_experts);
    for (int32_t l = 0; l < trace->n_layers; l++)
        if (trace->layers[l] < 0 || (l && trace->layers[l] <= trace->layers[l - 1]))
            return cot_fail(error, COT_MALFORMED,
                            "'%s': layer numbers are not ascending from 0 at '%" PRId32 "'", subject,
                            trace->layers[l]);
    return COT_OK;
}

static cot_status check_offsets(const int64_t *offsets, int64_t n, int64_t total, const char *name,
                                const char *subject, cot_error *error)
{
    if (offsets[0] != 0 || offsets[n] != total)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': %s go from %" PRId64 " to %" PRId64 ", expected 0 to %" PRId64, subject, name,
                        offsets[0], offsets[n], total);
    for (int64_t i = 0; i < n; i++)
        if (offsets[i + 1] < offsets[i])
            return cot_fail(error, COT_MALFORMED, "'%s': %s fall from %" PRId64 " to %" PRId64 " at %" PRId64,
                            subject, name, offsets[i], offsets[i + 1], i + 1);
    return COT_OK;
}

static cot_status check_ids(const cot_trace *trace, const char *subject, cot_error *error)
{
    int64_t limit = trace->n_strings ? trace->n_strings : (int64_t)INT32_MAX + 1;
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (trace->token_ids[t] < -1 || trace->token_ids[t] >= limit)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': token %" PRId64 " has id %" PRId32 ", expected -1 to %" PRId64, subject, t,
                            trace->token_ids[t], limit - 1);
    if (trace->kind != COT_TRACE_COUNTS || !trace->n_tokens) return COT_OK;
    size_t bytes = (size_t)trace->n_tokens * sizeof(int32_t);
    int32_t *sorted = malloc(bytes);
    if (!sorted)
        return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory for %zu bytes", subject, bytes);
    memcpy(sorted, trace->token_ids, bytes);
    qsort(sorted, (size_t)trace->n_tokens, sizeof *sorted, ascending);
    cot_status status = COT_OK;
    for (int64_t i = 1; i < trace->n_tokens && status == COT_OK; i++)
        if (sorted[i] == sorted[i - 1])
            status =
                cot_fail(error, COT_MALFORMED, "'%s': two rows count token id %" PRId32, subject, sorted[i]);
    free(sorted);
    return status;
}

/* Blames the first bad element; the scan before it only asks whether there is one, which the compiler
 * vectorises. */
static cot_status check_routing(const cot_trace *trace, const char *subject, cot_error *error)
{
    int64_t n = trace->n_layers * trace->n_tokens * trace->top_k, bad = -1;
    int32_t largest = 0;
    if (trace->experts_u8)
        for (int64_t i = 0; i < n; i++)
            largest = trace->experts_u8[i] > largest ? trace->experts_u8[i] : largest;
    else
        for (int64_t i = 0; i < n; i++)
            largest = trace->experts_u16[i] > largest ? trace->experts_u16[i] : largest;
    if (largest >= trace->n_experts) {
        do bad++;
        while ((trace->experts_u8 ? trace->experts_u8[bad] : trace->experts_u16[bad]) < trace->n_experts);
        int64_t row = bad / trace->top_k;
        return cot_fail(error, COT_MALFORMED,
                        "'%s': token %" PRId64 " in layer %" PRId32 " goes to expert %" PRId32 " of %" PRId32,
                        subject, row % trace->n_tokens, trace->layers[row / trace->n_tokens],
                        cot_trace_expert(trace, 0, row, (int32_t)(bad % trace->top_k)), trace->n_experts);
    }
    if (!trace->weights) return COT_OK;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite &= (trace->weights[i] & 0x7c00) != 0x7c00;
    if (finite) return COT_OK;
    do bad++;
    while ((trace->weights[bad] & 0x7c00) != 0x7c00);
    int64_t row = bad / trace->top_k;
    return cot_fail(error, COT_MALFORMED,
                    "'%s': a weight of token %" PRId64 " in layer %" PRId32 " is not finite", subject,
                    row % trace->n_tokens, trace->layers[row / trace->n_tokens]);
}

cot_status cot_trace_validate(const cot_trace *trace, const char *subject, cot_error *error)
{
    cot_status status = check_sizes(trace, subject, error);
    if (status == COT_OK && trace->n_strings)
        status =
            check_offsets(trace->string_offsets, trace->n_strings, trace->string_offsets[trace->n_strings],
                          "token_string_offsets", subject, error);
    if (status == COT_OK) status = check_ids(trace, subject, error);
    if (status != COT_OK || trace->kind == COT_TRACE_COUNTS) return status;
    status = check_offsets(trace->sequence_offsets, trace->n_sequences, trace->n_tokens, "sequence_offsets",
                           subject, error);
    return status == COT_OK ? check_routing(trace, subject, error) : status;
}
