#include "coterie/group.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* Shares of activations become whole numbers: a row counts this much more, or less where it is as heavy as that. */
static const double finest = 16, heaviest = 0x1p31;

static double heaviest_row(const cot_affinity *a)
{
    double most = 1;
    for (int64_t i = 0; i < a->n_tokens; i++) {
        double load = 0;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) load += a->count[k];
        most = fmax(most, load);
    }
    return most;
}

/* Row `i` [E], of `load` activations: what it called, and the more of the layer's shares the less it called. */
static void mix(double *row, const cot_affinity *a, const double *share, double load, int64_t i, double prior)
{
    for (int32_t e = 0; e < a->n_experts; e++) row[e] = load * prior / (load + prior) * share[e];
    for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
        row[a->expert[k]] += load / (load + prior) * a->count[k];
}

cot_status cot_affinity_shrink(cot_affinity *shrunk, const cot_affinity *affinity, double prior,
                               cot_error *error)
{
    const cot_affinity *a = affinity;
    const size_t E = (size_t)a->n_experts, N = (size_t)a->n_tokens;
    *shrunk = (cot_affinity){0};
    if (!(prior > 0) || !isfinite(prior))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "bad weight %g of the layer's mean: expected more than 0", prior);
    int64_t *offsets = calloc(N + 1, sizeof *offsets), n = 0;
    uint16_t *expert = malloc(N * E * sizeof *expert);
    uint32_t *count = malloc(N * E * sizeof *count);
    double *share = calloc(2 * E, sizeof *share), *row = share + E, all = 0;
    if (!offsets || !expert || !count || !share) {
        free(offsets);
        free(expert);
        free(count);
        free(share);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rows of %d experts", a->n_experts);
    }
    for (int64_t k = a->offsets[0]; k < a->offsets[N]; k++) {
        share[a->expert[k]] += a->count[k];
        all += a->count[k];
    }
    for (size_t e = 0; e < E && all > 0; e++) share[e] /= all;
    const double scale = fmin(finest, heaviest / heaviest_row(a));
    for (int64_t i = 0; i < a->n_tokens; i++) {
        double load = 0;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) load += a->count[k];
        if (load > 0) mix(row, a, share, load, i, prior);
        for (size_t e = 0; e < E && load > 0; e++) {
            const uint32_t whole = (uint32_t)lround(row[e] * scale);
            if (!whole) continue;
            expert[n] = (uint16_t)e;
            count[n++] = whole;
        }
        offsets[i + 1] = n;
    }
    free(share);
    *shrunk = (cot_affinity){a->n_experts, a->n_tokens, offsets, expert, count};
    return COT_OK;
}

void cot_affinity_free(cot_affinity *affinity)
{
    free((void *)affinity->offsets);
    free((void *)affinity->expert);
    free((void *)affinity->count);
    *affinity = (cot_affinity){0};
}
