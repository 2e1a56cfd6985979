/* Spectral co-clustering as a baseline (Dhillon 2001): tokens and experts as points in the space of the leading singular
 * vectors of the normalised matrix
 *
 *     A_n = R^-1/2 A C^-1/2      R, C the sums of A's rows and columns
 *
 * k-means on all points, and sizes repaired. Right vectors are eigenvectors of A_n^T A_n, [E][E]; left ones follow. */
#include "cocluster/eigen.h"
#include "cocluster/gram.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct state {
    int32_t dims;   // of the space: as many as ranks, less the vector that is the same for all
    double *point;  // [E+N][dims]: experts, then tokens
    double *weight; // [E+N] a point's load
    double *centre; // [D][dims]
    double *sum;    // [D]
    int32_t *rank;  // [E+N]
    double *worth;  // [E][D]
    double *gram;   // [E][E] inner products of the experts' points
} state;

static void end(cot_cocluster *p)
{
    state *s = p->state;
    if (!s) return;
    free(s->point);
    free(s->weight);
    free(s->centre);
    free(s->sum);
    free(s->rank);
    free(s->worth);
    free(s->gram);
    free(s);
    p->state = NULL;
}

static double over_root(uint64_t load)
{
    return load ? 1 / sqrt((double)load) : 0;
}

/* The experts' coordinates from the eigenvectors of largest eigenvalues, the first left out, and the tokens' from
 * these: u = A_n v / sigma, points are R^-1/2 u and C^-1/2 v. */
static void embed(state *s, const cot_cocluster *p, const double *values, const double *vectors, bool *used)
{
    const cot_affinity *a = &p->affinity;
    size_t E = (size_t)p->E, dims = (size_t)s->dims;
    for (size_t k = 0; k <= dims; k++) {
        size_t best = E;
        for (size_t v = 0; v < E; v++)
            if (!used[v] && (best == E || values[v * E + v] > values[best * E + best])) best = v;
        used[best] = true;
        if (k == 0) continue;
        double sigma = sqrt(fmax(values[best * E + best], 0));
        if (sigma < 1e-6) continue; // the null space says nothing: coordinates stay 0
        for (size_t e = 0; e < E; e++)
            s->point[e * dims + k - 1] = over_root(p->expert_load[e]) * vectors[best * E + e];
        for (size_t i = 0; i < (size_t)p->N; i++) { // R^-1 A C^-1/2 v / sigma
            double sum = 0, load = (double)p->token_load[i];
            for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++)
                sum += a->count[j] * s->point[a->expert[j] * dims + k - 1];
            s->point[(E + i) * dims + k - 1] = load > 0 ? sum / load / sigma : 0;
        }
    }
}

static cot_status decompose(state *s, const cot_cocluster *p, cot_error *error)
{
    size_t E = (size_t)p->E;
    double *values = malloc(E * E * sizeof *values), *vectors = malloc(E * E * sizeof *vectors);
    bool *used = calloc(E, sizeof *used);
    bool good = values && vectors && used;
    if (good) {
        cot_gram_of_tokens(values, p, -1);
        for (size_t e = 0; e < E; e++)
            for (size_t f = 0; f < E; f++)
                values[e * E + f] *= over_root(p->expert_load[e]) * over_root(p->expert_load[f]);
        cot_eigen_symmetric(values, vectors, E);
        embed(s, p, values, vectors, used);
    }
    free(values);
    free(vectors);
    free(used);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for vectors of %zu experts", E);
}

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    size_t E = (size_t)p->E, N = (size_t)p->N, D = (size_t)p->D;
    cot_status status = cot_gram_check(p, error);
    if (status != COT_OK) return status;
    state *s = p->state = calloc(1, sizeof *s);
    if (s) {
        s->dims = D > 1 ? p->D - 1 : 0;
        size_t dims = (size_t)s->dims;
        s->point = calloc((E + N) * dims + 1, sizeof *s->point);
        s->weight = malloc((E + N) * sizeof *s->weight);
        s->centre = malloc((D * dims + 1) * sizeof *s->centre);
        s->sum = malloc(D * sizeof *s->sum);
        s->rank = malloc((E + N) * sizeof *s->rank);
        s->worth = malloc(E * D * sizeof *s->worth);
        s->gram = calloc(E * E, sizeof *s->gram);
    }
    if (!s || !s->point || !s->weight || !s->centre || !s->sum || !s->rank || !s->worth || !s->gram)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for points of %zu tokens", N);
    else
        status = decompose(s, p, error);
    if (status != COT_OK) {
        end(p);
        return status;
    }
    for (size_t e = 0; e < E; e++) s->weight[e] = (double)p->expert_load[e];
    for (size_t i = 0; i < N; i++) s->weight[E + i] = (double)p->token_load[i];
    for (size_t e = 0, dims = (size_t)s->dims; e < E; e++)
        for (size_t f = 0; f < E; f++)
            for (size_t k = 0; k < dims; k++)
                s->gram[e * E + f] += s->point[e * dims + k] * s->point[f * dims + k];
    return COT_OK;
}

static double distance(const double *x, const double *y, size_t dims)
{
    double sum = 0;
    for (size_t k = 0; k < dims; k++) sum += (x[k] - y[k]) * (x[k] - y[k]);
    return sum;
}

/* Each point to its nearest centre; whether any moved. */
static bool move_points(state *s, size_t n, size_t D)
{
    size_t dims = (size_t)s->dims;
    bool moved = false;
    for (size_t i = 0; i < n; i++) {
        int32_t nearest = 0;
        double least = INFINITY;
        for (size_t d = 0; d < D; d++) {
            double here = distance(s->point + i * dims, s->centre + d * dims, dims);
            if (here < least) {
                least = here;
                nearest = (int32_t)d;
            }
        }
        moved |= s->rank[i] != nearest;
        s->rank[i] = nearest;
    }
    return moved;
}

/* Centres to the means of their points; one without points stays. */
static void move_centres(state *s, size_t n, size_t D)
{
    size_t dims = (size_t)s->dims;
    memset(s->sum, 0, D * sizeof *s->sum);
    for (size_t i = 0; i < n; i++) s->sum[s->rank[i]] += s->weight[i];
    for (size_t d = 0; d < D; d++)
        for (size_t k = 0; k < dims && s->sum[d] > 0; k++) s->centre[d * dims + k] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0, d = (size_t)s->rank[i]; k < dims && s->sum[d] > 0; k++)
            s->centre[d * dims + k] += s->weight[i] / s->sum[d] * s->point[i * dims + k];
}

/* Iteration after iteration: balanced k-means of the experts' points gives centres, k-means of all points moves them. */
static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    enum { STEPS = 30 };
    state *s = p->state;
    size_t E = (size_t)p->E, n = E + (size_t)p->N, D = (size_t)p->D, dims = (size_t)s->dims;
    cot_status status = cot_gram_kmeans(s->rank, p, s->gram, p->options.seed, (uint64_t)iteration, error);
    if (status != COT_OK) return status;
    if (iteration % 2 == 0) {
        cot_cocluster_offer(p, s->rank, NULL);
        return COT_OK;
    }
    memset(s->centre, 0, D * dims * sizeof *s->centre); // where experts that nobody calls are
    for (size_t i = E; i < n; i++) s->rank[i] = -1;     // tokens are nowhere yet, whatever came before
    move_centres(s, E, D);
    for (int step = 0; step < STEPS && move_points(s, n, D); step++) move_centres(s, n, D);
    for (size_t e = 0; e < E; e++)
        for (size_t d = 0; d < D; d++)
            s->worth[e * D + d] = -distance(s->point + e * dims, s->centre + d * dims, dims);
    cot_cocluster_repair_sizes(s->rank, p, s->worth);
    cot_cocluster_offer(p, s->rank, NULL);
    return COT_OK;
}

const cot_cocluster_method cot_cocluster_spectral = {
    {"spectral", "spectral co-clustering: k-means on singular vectors, sizes repaired"}, begin, iterate, end};
