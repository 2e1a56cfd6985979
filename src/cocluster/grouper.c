/* Opening, iterating and closing: what all methods share of coterie/group.h. */
#include "cocluster/solver.h"

#include "base/error.h"
#include "base/rng.h"
#include "placement/sort.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cot_grouper {
    cot_cocluster problem;
};

enum { OWN, CE, CE_JOINT, METIS, KMEANS, SPECTRAL, CONSECUTIVE, METHODS };

static const cot_cocluster_method *const methods[METHODS] = {
    [OWN] = &cot_cocluster_own,
    [CE] = &cot_cocluster_ce,
    [CE_JOINT] = &cot_cocluster_ce_joint,
    [METIS] = &cot_cocluster_metis,
    [KMEANS] = &cot_cocluster_kmeans,
    [SPECTRAL] = &cot_cocluster_spectral,
    [CONSECUTIVE] = &cot_cocluster_consecutive,
};

const cot_group_method cot_group_methods[METHODS + 1] = {
    [OWN] = {"coterie",
             "k-means, then swaps of experts at the tokens' prices, annealed; all groups where they are few"},
    [CE] = {"ce", "cross-entropy method: experts drawn, tokens solved for them"},
    [CE_JOINT] = {"ce-joint", "cross-entropy method: experts and tokens drawn together"},
    [METIS] = {"metis", "METIS on tokens and experts, and on experts alone; sizes repaired"},
    [KMEANS] = {"kmeans", "balanced k-means of experts by their tokens, then the tokens"},
    [SPECTRAL] = {"spectral", "spectral co-clustering: k-means on singular vectors, sizes repaired"},
    [CONSECUTIVE] = {"consecutive", "no groups: experts in consecutive blocks; tokens alone are grouped"},
};

static cot_status bad(cot_error *error, const char *what, int64_t found, int64_t least, int64_t most)
{
    return cot_fail(error, COT_INVALID_ARGUMENT, "bad %s %" PRId64 ": expected %" PRId64 " to %" PRId64, what,
                    found, least, most);
}

static cot_status check_affinity(const cot_affinity *a, cot_error *error)
{
    if (a->n_experts < 1 || a->n_experts > COT_TRACE_MAX_EXPERTS)
        return bad(error, "number of experts", a->n_experts, 1, COT_TRACE_MAX_EXPERTS);
    if (a->n_tokens < 1 || a->n_tokens > INT32_MAX)
        return bad(error, "number of tokens", a->n_tokens, 1, INT32_MAX);
    if (a->offsets[0] != 0 || a->offsets[a->n_tokens] < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "no token calls an expert in this layer");
    for (int64_t i = 0; i < a->n_tokens; i++) {
        if (a->offsets[i + 1] < a->offsets[i])
            return cot_fail(error, COT_INVALID_ARGUMENT, "row %" PRId64 " ends before it begins", i);
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            if (a->expert[k] >= a->n_experts || !a->count[k] ||
                (k > a->offsets[i] && a->expert[k] <= a->expert[k - 1]))
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "row %" PRId64 ": expected rising experts below %" PRId32
                                ", called once or more",
                                i, a->n_experts);
    }
    return COT_OK;
}

static cot_status check_start(const int32_t *start, const cot_cocluster *p, cot_error *error)
{
    int32_t held[COT_TRACE_MAX_RANKS] = {0};
    for (int32_t e = 0; e < p->E; e++) {
        if (start[e] < 0 || start[e] >= p->D) return bad(error, "rank of an expert", start[e], 0, p->D - 1);
        held[start[e]]++;
    }
    for (int32_t d = 0; d < p->D; d++)
        if (held[d] != p->size[d])
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "rank %" PRId32 " starts with %" PRId32 " experts: expected %" PRId32, d, held[d],
                            p->size[d]);
    return COT_OK;
}

static cot_status check_options(cot_cocluster *p, const cot_group_options *o, cot_error *error)
{
    if (o->size < sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "bad size of the options: expected %zu, found %zu",
                        sizeof *o, o->size);
    const int32_t most = p->E < COT_TRACE_MAX_RANKS ? p->E : COT_TRACE_MAX_RANKS;
    if (o->ranks < 1 || o->ranks > most) return bad(error, "number of ranks", o->ranks, 1, most);
    if (!(o->token_balance >= 0) || !isfinite(o->token_balance))
        return cot_fail(error, COT_INVALID_ARGUMENT, "bad token balance %g: expected 0 or more",
                        o->token_balance);
    if (o->expert_load != 0 && !(o->expert_load >= 1 && isfinite(o->expert_load)))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "bad expert load %g: expected 1 or more, or 0 for no limit", o->expert_load);
    for (int64_t i = 0; o->bonus && i < p->N * o->ranks; i++)
        if (!(o->bonus[i] >= 0) || !isfinite(o->bonus[i]))
            return cot_fail(error, COT_INVALID_ARGUMENT, "bad bonus %g: expected 0 or more",
                            (double)o->bonus[i]);
    const char *name = o->method ? o->method : methods[0]->name.name;
    for (int i = 0; i < METHODS; i++)
        if (!strcmp(name, methods[i]->name.name)) p->method = methods[i];
    if (!p->method) return cot_fail(error, COT_INVALID_ARGUMENT, "unknown method '%s' of grouping", name);
    return COT_OK;
}

static cot_status allocate(cot_cocluster *p, cot_error *error)
{
    const size_t N = (size_t)p->N, E = (size_t)p->E, D = (size_t)p->D;
    p->size = malloc(D * sizeof *p->size);
    p->token_load = calloc(N, sizeof *p->token_load);
    p->expert_load = calloc(E, sizeof *p->expert_load);
    p->packed = malloc(E * sizeof *p->packed);
    p->token_weight = malloc(N * sizeof *p->token_weight);
    p->heavy_first = malloc(N * sizeof *p->heavy_first);
    p->expert_rank = malloc(E * sizeof *p->expert_rank);
    p->token_rank = malloc(N * sizeof *p->token_rank);
    p->gain = malloc(N * D * sizeof *p->gain);
    p->scratch = malloc(N * 8);
    p->sorted_gain = malloc(N * D * sizeof *p->sorted_gain);
    p->sorted_weight = malloc(N * sizeof *p->sorted_weight);
    p->sorted_load = malloc(N * sizeof *p->sorted_load);
    p->settled = malloc(N * sizeof *p->settled);
    p->worth = malloc(E * D * sizeof *p->worth);
    p->price = calloc(D, sizeof *p->price);
    p->trial = malloc((2 * E + N) * sizeof *p->trial);
    return p->size && p->token_load && p->expert_load && p->packed && p->token_weight && p->heavy_first &&
                   p->expert_rank && p->token_rank && p->gain && p->scratch && p->sorted_gain &&
                   p->sorted_weight && p->sorted_load && p->settled && p->worth && p->price && p->trial
               ? COT_OK
               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping %" PRId64 " tokens", p->N);
}

static void add_loads(cot_cocluster *p)
{
    const cot_affinity *a = &p->affinity;
    for (int32_t d = 0; d < p->D; d++) p->size[d] = p->E / p->D + (d < p->E % p->D);
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            p->token_load[i] += a->count[k];
            p->expert_load[a->expert[k]] += a->count[k];
            p->total += a->count[k];
        }
    /* Most tokens are seen a few times, so that many are worth the same on two ranks at the same price, and would move
     * all at once. */
    for (int64_t i = 0; i < p->N; i++)
        p->token_weight[i] =
            (float)((double)p->token_load[i] * (1 + 0x1p-9 * cot_random_uniform(0, 0x74696573, (uint64_t)i)));
}

static cot_status sort_tokens(cot_cocluster *p, cot_error *error)
{
    double *key = malloc((size_t)p->N * sizeof *key);
    cot_sort_item *item = malloc(2 * (size_t)p->N * sizeof *item);
    const bool good = key && item;
    for (int64_t i = 0; good && i < p->N; i++) key[i] = (double)p->token_load[i];
    if (good) cot_sort_indices(p->heavy_first, key, (int32_t)p->N, true, item);
    free(key);
    free(item);
    return good ? COT_OK
                : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for ordering %" PRId64 " tokens", p->N);
}

/* The peak of tokens dealt heaviest first to the emptiest rank: what a limit is worth asking for. */
static double packed_peak(const cot_cocluster *p)
{
    uint64_t load[COT_TRACE_MAX_RANKS] = {0}, peak = 0;
    for (int64_t k = 0; k < p->N; k++) {
        int32_t to = 0;
        for (int32_t d = 1; d < p->D; d++)
            if (load[d] < load[to]) to = d;
        load[to] += p->token_load[p->heavy_first[k]];
        peak = load[to] > peak ? load[to] : peak;
    }
    return (double)peak;
}

static void set_limits(cot_cocluster *p)
{
    const double mean = (double)p->total / p->D,
                 asked = floor((1 + p->options.token_balance) * mean * (1 + 1e-12));
    const double heaviest = (double)p->token_load[p->heavy_first[0]];
    const double promised = fmax(asked, heaviest);
    p->token_limit = fmax(promised, packed_peak(p));
    p->token_asked = promised / mean * (1 + 1e-12);
    p->best.token_limit = p->token_limit > asked ? p->token_limit / mean : 1 + p->options.token_balance;
    p->best.expert_peak_bound = cot_cocluster_peak_bound(p) / mean;
    p->expert_limit = p->expert_asked = INFINITY;
    if (p->options.expert_load > 0) {
        const double most = p->options.expert_load * mean * (1 + 1e-12),
                     peak = cot_cocluster_pack(p->packed, p);
        p->expert_limit = fmax(most, peak);
        p->expert_asked = most / mean;
    }
    p->best.bound = cot_cocluster_bound(p);
}

cot_status cot_grouper_open(cot_grouper **grouper, const cot_affinity *affinity,
                            const cot_group_options *options, cot_error *error)
{
    *grouper = NULL;
    cot_grouper *g = calloc(1, sizeof *g);
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    cot_cocluster *p = &g->problem;
    *p = (cot_cocluster){.affinity = *affinity, .E = affinity->n_experts, .N = affinity->n_tokens};
    cot_status status = check_affinity(affinity, error);
    if (status == COT_OK) status = check_options(p, options, error);
    if (status == COT_OK) {
        p->options = *options;
        p->options.start = NULL;
        p->D = options->ranks;
        status = allocate(p, error);
    }
    if (status == COT_OK) {
        add_loads(p);
        status = sort_tokens(p, error);
    }
    if (status == COT_OK && options->start) {
        status = check_start(options->start, p, error);
        int32_t *start = status == COT_OK ? malloc((size_t)p->E * sizeof *start) : NULL;
        if (start) memcpy(start, options->start, (size_t)p->E * sizeof *start);
        if (status == COT_OK && !start)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups");
        p->options.start = start;
    }
    if (status == COT_OK) {
        set_limits(p);
        cot_cocluster_sort_loads(p);
        if (p->method->begin) status = p->method->begin(p, error);
    }
    if (status != COT_OK) {
        cot_grouper_close(g);
        return status;
    }
    *grouper = g;
    return COT_OK;
}

cot_status cot_grouper_iterate(cot_grouper *grouper, int64_t iterations, cot_error *error)
{
    cot_cocluster *p = &grouper->problem;
    cot_status status = COT_OK;
    for (int64_t i = 0; status == COT_OK && i < iterations && !cot_grouper_is_done(grouper); i++) {
        const int64_t iteration = p->best.iterations;
        if (!iteration && p->options.start) cot_cocluster_offer(p, p->options.start, NULL);
        status = p->method->iterate(p, iteration, error);
        if (status == COT_OK) p->best.iterations++;
    }
    return status;
}

bool cot_grouper_is_done(const cot_grouper *grouper)
{
    return grouper->problem.done || grouper->problem.best.proven;
}

void cot_grouper_best(cot_grouping *grouping, const cot_grouper *grouper)
{
    *grouping = grouper->problem.best;
}

cot_cocluster *cot_grouper_problem(cot_grouper *grouper)
{
    return &grouper->problem;
}

void cot_grouper_close(cot_grouper *grouper)
{
    if (!grouper) return;
    cot_cocluster *p = &grouper->problem;
    if (p->state && p->method->end) p->method->end(p);
    free((void *)p->options.start);
    free(p->size);
    free(p->token_load);
    free(p->expert_load);
    free(p->packed);
    free(p->token_weight);
    free(p->heavy_first);
    free(p->expert_rank);
    free(p->token_rank);
    free(p->gain);
    free(p->scratch);
    free(p->sorted_gain);
    free(p->sorted_weight);
    free(p->sorted_load);
    free(p->settled);
    free(p->worth);
    free(p->price);
    free(p->trial);
    free(grouper);
}
