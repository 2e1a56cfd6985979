#include "coterie/trace.h"

#include "base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(COT_TRACE_MAX_RANKS <= 64, "the ranks that a token reaches are a bit each");

void cot_trace_load(uint64_t *load, const cot_trace *trace, int32_t l)
{
    int64_t E = trace->n_experts;
    memset(load, 0, (size_t)E * sizeof *load);
    if (trace->kind == COT_TRACE_COUNTS) {
        const uint32_t *row = trace->counts + l * trace->n_tokens * E;
        for (int64_t t = 0; t < trace->n_tokens; t++, row += E)
            for (int64_t e = 0; e < E; e++) load[e] += row[e];
    } else {
        for (int64_t t = 0; t < trace->n_tokens; t++)
            for (int32_t k = 0; k < trace->top_k; k++) load[cot_trace_expert(trace, l, t, k)]++;
    }
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

cot_status cot_load_measure(cot_load_spread *spread, const uint64_t *load, int64_t n, cot_error *error)
{
    *spread = (cot_load_spread){0};
    if (n < 1) return COT_OK;
    uint64_t *sorted = malloc((size_t)n * sizeof *sorted), top = 0;
    if (!sorted) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId64 " loads", n);
    memcpy(sorted, load, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    for (int64_t i = 0; i < n; i++) {
        spread->total += sorted[i];
        spread->unused += !sorted[i];
        if (i < (n + 9) / 10) top += sorted[i];
    }
    if (spread->total) {
        double mean = (double)spread->total / (double)n, squares = 0;
        for (int64_t i = 0; i < n; i++) squares += ((double)sorted[i] - mean) * ((double)sorted[i] - mean);
        spread->peak_over_mean = (double)sorted[0] / mean;
        spread->variation = sqrt(squares / (double)n) / mean;
        spread->top_tenth_share = (double)top / (double)spread->total;
    }
    free(sorted);
    return COT_OK;
}

double cot_load_peak(const double *load, int64_t n)
{
    double sum = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += load[i];
        most = fmax(most, load[i]);
    }
    return sum > 0 ? most / (sum / (double)n) : 0;
}

cot_status cot_trace_locality_measure(cot_locality *locality, const cot_trace *trace, int32_t l, int ranks,
                                      cot_error *error)
{
    const int32_t E = trace->n_experts, K = trace->top_k;
    *locality = (cot_locality){0};
    if (trace->kind == COT_TRACE_COUNTS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "counts have no order of tokens, so no local activation rate");
    if (l < 0 || l >= trace->n_layers || ranks < 1 || ranks > COT_TRACE_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no locality for layer %" PRId32 " of %" PRId32 " at %d ranks (1 to %d)", l,
                        trace->n_layers, ranks, COT_TRACE_MAX_RANKS);
    int32_t *expert_rank = malloc((size_t)E * sizeof *expert_rank);
    if (!expert_rank) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId32 " experts", E);
    for (int32_t e = 0; e < E; e++) expert_rank[e] = cot_trace_home(e, E, ranks);
    for (int64_t s = 0; s < trace->n_sequences; s++) {
        const int64_t begin = trace->sequence_offsets[s], T = trace->sequence_offsets[s + 1] - begin;
        for (int64_t t = 0; t < T; t++) {
            const int32_t home = cot_trace_home(t, T, ranks);
            uint64_t reached = 0;
            for (int32_t k = 0; k < K; k++)
                reached |=
                    cot_locality_call(locality, home, expert_rank[cot_trace_expert(trace, l, begin + t, k)]);
            cot_locality_token(locality, reached);
        }
    }
    free(expert_rank);
    return COT_OK;
}
