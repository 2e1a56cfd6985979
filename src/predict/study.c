#include "coterie/predict_study.h"

#include "base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void cot_affinity_kurtosis(double *kurtosis, const cot_affinity *a)
{
    for (int64_t i = 0; i < a->n_tokens; i++) {
        const int64_t begin = a->offsets[i], end = a->offsets[i + 1];
        double sum = 0, second = 0, fourth = 0;
        for (int64_t j = begin; j < end; j++) sum += a->count[j];
        const double mean = sum / a->n_experts;
        const double none = (double)(a->n_experts - (end - begin)); // experts that it never calls
        for (int64_t j = begin; j < end; j++) {
            const double off = (a->count[j] - mean) * (a->count[j] - mean);
            second += off;
            fourth += off * off;
        }
        second += none * mean * mean;
        fourth += none * mean * mean * mean * mean;
        kurtosis[i] = second > 0 ? fourth * a->n_experts / (second * second) : NAN;
    }
}

cot_status cot_trace_transitions(double *share, const cot_trace *trace, int32_t l, cot_error *error)
{
    const size_t E = (size_t)trace->n_experts;
    if (trace->kind == COT_TRACE_COUNTS || l < 0 || l + 1 >= trace->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "there is no order of experts from layer %" PRId32 " on",
                        l);
    double *called = calloc(E, sizeof *called);
    if (!called) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu experts", E);
    memset(share, 0, E * E * sizeof *share);
    for (int64_t t = 0; t < trace->n_tokens; t++)
        for (int32_t k = 0; k < trace->top_k; k++) {
            const size_t from = (size_t)cot_trace_expert(trace, l, t, k);
            called[from]++;
            for (int32_t j = 0; j < trace->top_k; j++)
                share[from * E + (size_t)cot_trace_expert(trace, l + 1, t, j)]++;
        }
    for (size_t a = 0; a < E; a++)
        for (size_t b = 0; b < E && called[a] > 0; b++) share[a * E + b] /= called[a];
    free(called);
    return COT_OK;
}
