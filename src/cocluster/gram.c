#include "cocluster/gram.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_gram_check(const cot_cocluster *p, cot_error *error)
{
    if (p->E <= COT_GRAM_MAX_EXPERTS) return COT_OK;
    return cot_fail(error, COT_UNSUPPORTED, "method '%s' takes %d experts at most, not %d",
                    p->method->name.name, COT_GRAM_MAX_EXPERTS, p->E);
}

void cot_gram_of_tokens(double *gram, const cot_cocluster *p, int power)
{
    const cot_affinity *a = &p->affinity;
    size_t E = (size_t)p->E;
    for (size_t i = 0; i < E * E; i++) gram[i] = 0;
    for (int64_t i = 0; i < p->N; i++) {
        double load = (double)p->token_load[i], by = power == 0    ? 1
                                                     : power == -1 ? 1 / load
                                                                   : 1 / load / load;
        for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++)
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
                gram[a->expert[j] * E + a->expert[k]] += by * a->count[j] * a->count[k];
    }
}

void cot_gram_normalise(double *gram, size_t E)
{
    for (size_t e = 0; e < E; e++)
        for (size_t f = 0; f < e; f++) {
            double length = sqrt(gram[e * E + e] * gram[f * E + f]);
            gram[e * E + f] = gram[f * E + e] = length > 0 ? gram[e * E + f] / length : 0;
        }
    for (size_t e = 0; e < E; e++) gram[e * E + e] = gram[e * E + e] > 0;
}

static double distance(const double *gram, size_t E, size_t e, size_t f)
{
    return fmax(0, gram[e * E + e] - 2 * gram[e * E + f] + gram[f * E + f]);
}

/* k-means++: each further centre is drawn in proportion to its squared distance from those there are. */
static void seed_centres(int32_t *centre, double *least, const cot_cocluster *p, const double *gram,
                         uint64_t seed, uint64_t stream)
{
    size_t E = (size_t)p->E;
    for (size_t e = 0; e < E; e++) least[e] = 1;
    for (int32_t d = 0; d < p->D; d++) {
        double sum = 0, at, u = cot_random_uniform(seed, stream, (uint64_t)d);
        for (size_t e = 0; e < E; e++) sum += least[e];
        size_t chosen = 0, last = (size_t)(u * (double)E);
        for (at = u * sum; chosen < E && at >= least[chosen]; chosen++) at -= least[chosen];
        if (chosen == E || least[chosen] <= 0) chosen = last; // all points lie on centres, or rounding
        centre[d] = (int32_t)chosen;
        for (size_t e = 0; e < E; e++) {
            double here = distance(gram, E, e, chosen);
            least[e] = d ? fmin(least[e], here) : here;
        }
    }
}

/* worth[e][d] = minus the squared distance of e from the mean of d's points, less what all centres share. */
static void measure(double *worth, const cot_cocluster *p, const double *gram, const int32_t *rank)
{
    size_t E = (size_t)p->E, D = (size_t)p->D;
    double spread[COT_TRACE_MAX_RANKS] = {0};
    memset(worth, 0, E * D * sizeof *worth);
    for (size_t e = 0; e < E; e++)
        for (size_t f = 0; f < E; f++) worth[e * D + (size_t)rank[f]] += gram[e * E + f];
    for (size_t e = 0; e < E; e++) spread[rank[e]] += worth[e * D + (size_t)rank[e]];
    for (size_t e = 0; e < E; e++)
        for (size_t d = 0; d < D; d++) {
            double n = p->size[d];
            worth[e * D + d] = 2 * worth[e * D + d] / n - spread[d] / n / n;
        }
}

static double sum_worth(const cot_cocluster *p, const double *worth, const int32_t *rank)
{
    double sum = 0;
    for (int32_t e = 0; e < p->E; e++) sum += worth[(size_t)e * (size_t)p->D + (size_t)rank[e]];
    return sum;
}

cot_status cot_gram_kmeans(int32_t *expert_rank, const cot_cocluster *p, const double *gram, uint64_t seed,
                           uint64_t stream, cot_error *error)
{
    size_t E = (size_t)p->E, D = (size_t)p->D;
    double *worth = malloc(E * D * sizeof *worth);
    double *least = malloc(E * sizeof *least);
    int32_t centre[COT_TRACE_MAX_RANKS], *next = malloc(E * sizeof *next);
    cot_status status = worth && least && next ? COT_OK
                                               : cot_fail(error, COT_OUT_OF_MEMORY,
                                                          "out of memory for k-means of %zu experts", E);
    if (status == COT_OK) {
        seed_centres(centre, least, p, gram, seed, stream);
        for (size_t e = 0; e < E; e++)
            for (size_t d = 0; d < D; d++) worth[e * D + d] = -distance(gram, E, e, (size_t)centre[d]);
        status = cot_cocluster_assign(expert_rank, p, worth, error);
    }
    for (bool moved = true; status == COT_OK && moved;) {
        measure(worth, p, gram, expert_rank);
        double before = sum_worth(p, worth, expert_rank);
        status = cot_cocluster_assign(next, p, worth, error);
        moved = status == COT_OK && sum_worth(p, worth, next) > before + 1e-9 * fabs(before);
        if (moved) memcpy(expert_rank, next, E * sizeof *next);
    }
    free(worth);
    free(least);
    free(next);
    return status;
}
