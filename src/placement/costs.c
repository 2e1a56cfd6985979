#include "coterie/place.h"

#include "base/error.h"
#include "placement/double_double.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cot_costs_free(cot_costs *costs)
{
    free(costs->row);
    free(costs->layers);
    free(costs->load);
    free(costs->cost);
    free(costs->home);
    free(costs->pair);
    free(costs->round_trip);
    free(costs->sent);
    *costs = (cot_costs){0};
}

/* The layers with load, and what all sources together send to each expert. */
static bool sum_loads(cot_costs *c, const cot_load_counts *load)
{
    size_t E = (size_t)load->n_experts, n = (size_t)load->n_sources, L = (size_t)load->n_layers;
    c->row = malloc(L * sizeof *c->row);
    c->layers = malloc(L * sizeof *c->layers);
    c->load = calloc(L * E, sizeof *c->load);
    c->home = calloc(L, sizeof *c->home);
    if (!c->row || !c->layers || !c->load || !c->home) return false;
    for (size_t l = 0; l < L; l++) {
        double *to = c->load + (size_t)c->n_layers * E, most = 0;
        for (size_t r = 0; r < n; r++)
            for (size_t e = 0; e < E; e++) to[e] += load->tokens[(l * n + r) * E + e];
        for (size_t e = 0; e < E; e++) most = fmax(most, to[e]);
        if (most == 0) continue;
        c->row[c->n_layers] = (int32_t)l;
        c->layers[c->n_layers++] = load->layers[l];
    }
    return true;
}

/* Distances from and to one rank at a time, added up with its weights of a layer. */
static cot_status seen_from(double *cost, const cot_topology *t, cot_metric metric, int32_t rank,
                            bool to_rank, double weight, double *row, cot_error *error)
{
    cot_status status = cot_topology_distances_of(row, t, metric, rank, to_rank, error);
    for (int32_t s = 0; status == COT_OK && s < t->n_ranks; s++) cost[s] += weight * row[s];
    return status;
}

static cot_status paper(cot_costs *c, const cot_topology *t, cot_metric metric, double *row, cot_error *error)
{
    int32_t *first = malloc((size_t)t->n_hosts * sizeof *first);
    cot_status status = first ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for costs");
    for (int32_t r = t->n_ranks - 1; first && r >= 0; r--) first[t->host[r]] = r;
    for (int32_t l = 0; status == COT_OK && l < c->n_layers; l++) {
        double *cost = c->cost + (size_t)l * (size_t)c->n_ranks;
        int32_t sender = first[l % t->n_hosts], collector = first[(l + 1) % c->n_layers % t->n_hosts];
        c->home[l] = sender;
        status = seen_from(cost, t, metric, sender, false, 1, row, error);
        if (status == COT_OK) status = seen_from(cost, t, metric, collector, true, 1, row, error);
    }
    free(first);
    return status;
}

/* Weighted sums of whole columns and rows: cost(l,s) of all layers, one rank r after the other; without weights the
 * mean, the same for all layers. Summed in double-double numbers: ranks that see the same distances in another order cost
 * the same to the last bit, and tie. */
static cot_status weighted(cot_costs *c, const cot_topology *t, const cot_costs_options *o, double *row,
                           cot_error *error)
{
    const bool mean = !o->dispatch_weights;
    size_t S = (size_t)c->n_ranks, L = mean ? 1 : (size_t)c->n_layers;
    cot_double_double *sum = calloc(L * S, sizeof *sum);
    cot_status status = sum ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for costs");
    for (size_t r = 0; status == COT_OK && r < S; r++)
        for (int to_rank = 0; status == COT_OK && to_rank < 2; to_rank++) {
            const double *weights = to_rank ? o->collect_weights : o->dispatch_weights;
            status = cot_topology_distances_of(row, t, o->metric, (int32_t)r, to_rank, error);
            for (size_t l = 0; status == COT_OK && l < L; l++) {
                double weight = mean ? 1 : weights[(size_t)c->row[l] * S + r];
                cot_double_double *to = sum + l * S;
                for (size_t s = 0; weight != 0 && s < S; s++)
                    to[s] = cot_double_double_add(to[s], cot_double_double_product(weight, row[s]));
            }
        }
    for (size_t i = 0; status == COT_OK && i < (size_t)c->n_layers * S; i++)
        c->cost[i] = mean ? sum[i % S].high / (double)S : sum[i].high;
    free(sum);
    return status;
}

static cot_status pairs(cot_costs *c, const cot_load_counts *load, const cot_topology *t, cot_metric metric,
                        double *row, cot_error *error)
{
    size_t E = (size_t)c->n_experts, S = (size_t)c->n_ranks, L = (size_t)c->n_layers;
    double *both = malloc(S * sizeof *both);
    c->pair = calloc(L * E * S, sizeof *c->pair);
    cot_status status =
        both && c->pair ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for costs");
    for (int32_t r = 0; status == COT_OK && r < c->n_ranks; r++) {
        memset(both, 0, S * sizeof *both);
        status = seen_from(both, t, metric, r, false, 1, row, error);
        if (status == COT_OK) status = seen_from(both, t, metric, r, true, 1, row, error);
        for (size_t l = 0; status == COT_OK && l < L; l++)
            for (size_t e = 0; e < E; e++) {
                double n = load->tokens[((size_t)c->row[l] * S + (size_t)r) * E + e];
                double *cost = c->pair + (l * E + e) * S;
                for (size_t s = 0; n != 0 && s < S; s++) cost[s] += n * both[s];
            }
    }
    free(both);
    return status;
}

static cot_status check_weights(const double *weights, const char *what, size_t n, cot_error *error)
{
    if (!weights) return cot_fail(error, COT_INVALID_ARGUMENT, "no %s weights", what);
    for (size_t i = 0; i < n; i++)
        if (!(weights[i] >= 0) || !isfinite(weights[i]))
            return cot_fail(error, COT_INVALID_ARGUMENT, "%s %g is no number of 0 or more", what, weights[i]);
    return COT_OK;
}

static cot_status fill(cot_costs *c, const cot_load_counts *load, const cot_topology *t,
                       const cot_costs_options *o, cot_error *error)
{
    size_t S = (size_t)c->n_ranks, all = (size_t)load->n_layers * S;
    double *row = malloc(S * sizeof *row);
    cot_status status = COT_OK;
    bool by_pairs = t && !o->cost && o->attention == COT_ATTENTION_DP && load->sources_known;
    if (!by_pairs) c->cost = calloc((size_t)c->n_layers * S, sizeof *c->cost);
    bool anywhere = !t && !o->cost; // all costs stay 0
    if (!row || (!by_pairs && !c->cost))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for costs");
    else if (anywhere)
        status = COT_OK;
    else if (o->cost) {
        status = check_weights(o->cost, "cost", all, error);
        for (int32_t l = 0; status == COT_OK && l < c->n_layers; l++)
            memcpy(c->cost + (size_t)l * S, o->cost + (size_t)c->row[l] * S, S * sizeof *c->cost);
    } else if (o->attention == COT_ATTENTION_PAPER)
        status = paper(c, t, o->metric, row, error);
    else if (by_pairs)
        status = pairs(c, load, t, o->metric, row, error);
    else if (o->attention == COT_ATTENTION_DP) {
        const cot_costs_options everyone = {.metric = o->metric};
        status = weighted(c, t, &everyone, row, error);
    } else {
        status = check_weights(o->dispatch_weights, "dispatch", all, error);
        if (status == COT_OK) status = check_weights(o->collect_weights, "collect", all, error);
        if (status == COT_OK) status = weighted(c, t, o, row, error);
    }
    free(row);
    return status;
}

/* What sending to the nearest replica asks for. */
static cot_status keep_sources(cot_costs *c, const cot_load_counts *load, const cot_topology *t,
                               cot_metric metric, cot_error *error)
{
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts, L = (size_t)c->n_layers;
    c->round_trip = malloc(S * S * sizeof *c->round_trip);
    if (load->sources_known) c->sent = malloc(L * S * E * sizeof *c->sent);
    if (!c->round_trip || (load->sources_known && !c->sent))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the distances of %zu ranks", S);
    cot_status status = cot_topology_distances(c->round_trip, t, metric, error);
    for (size_t r = 0; status == COT_OK && r < S; r++)
        for (size_t s = r; s < S; s++)
            c->round_trip[r * S + s] = c->round_trip[s * S + r] =
                c->round_trip[r * S + s] + c->round_trip[s * S + r];
    for (size_t l = 0; c->sent && l < L; l++)
        memcpy(c->sent + l * S * E, load->tokens + (size_t)c->row[l] * S * E, S * E * sizeof *c->sent);
    return status;
}

/* Where no rank sends for all, a layer's middle is the rank that is cheapest. */
static void choose_homes(cot_costs *c)
{
    for (int32_t l = 0; c->cost && l < c->n_layers; l++)
        for (int32_t s = 1; s < c->n_ranks; s++) {
            const double *cost = c->cost + (size_t)l * (size_t)c->n_ranks;
            if (cost[s] < cost[c->home[l]]) c->home[l] = s;
        }
}

/* Whether all placements tie. Sums over ranks may round differently: then the costs become equal to the last bit. */
static bool indifferent(cot_costs *c)
{
    size_t S = (size_t)c->n_ranks, n = (size_t)c->n_layers * (c->pair ? (size_t)c->n_experts : 1);
    double *at = c->pair ? c->pair : c->cost;
    for (size_t i = 0; i < n * S; i++)
        if (fabs(at[i] - at[i / S * S]) > 1e-12 * fabs(at[i / S * S])) return false;
    for (size_t i = 0; i < n * S; i++) at[i] = at[i / S * S];
    return true;
}

/* Refuses what the objective, or its proof in double-double numbers, could not be added up of. */
static cot_status check_range(const cot_costs *c, cot_error *error)
{
    const double most = 1e290;
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts;
    double loads = 0, costs = 0, sum = 0;
    for (size_t l = 0; l < (size_t)c->n_layers; l++) {
        double load = 0, worst = 0;
        for (size_t e = 0; e < E; e++) {
            double here = 0;
            for (size_t s = 0; c->pair && s < S; s++) here = fmax(here, c->pair[(l * E + e) * S + s]);
            load += c->load[l * E + e];
            sum += here;
        }
        for (size_t s = 0; c->cost && s < S; s++) worst = fmax(worst, c->cost[l * S + s]);
        loads += load;
        costs = fmax(costs, worst);
        sum += load * worst;
    }
    if (loads < most && costs < most && sum < most) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "loads or distances are too large: they add up to more than %g",
                    most);
}

cot_status cot_costs_open(cot_costs *costs, const cot_load_counts *load, const cot_topology *topology,
                          const cot_costs_options *options, cot_error *error)
{
    *costs = (cot_costs){.n_experts = load->n_experts,
                         .n_ranks = topology ? topology->n_ranks : options->n_ranks,
                         .model_hash = load->model_hash};
    if (options->size != sizeof *options || costs->n_ranks < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "costs need ranks, and options of %zu bytes",
                        sizeof *options);
    bool by_source =
        topology && !options->cost && options->attention == COT_ATTENTION_DP && load->sources_known;
    if (by_source && load->n_sources != costs->n_ranks)
        return cot_fail(error, COT_MALFORMED, "the load has %d source ranks, the topology '%s' %d ranks",
                        load->n_sources, topology->name, costs->n_ranks);
    cot_status status =
        sum_loads(costs, load) ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for costs");
    if (status == COT_OK && !costs->n_layers) status = cot_fail(error, COT_MALFORMED, "the load is empty");
    if (status == COT_OK) status = fill(costs, load, topology, options, error);
    if (status == COT_OK && topology && !options->cost && options->attention == COT_ATTENTION_DP &&
        options->dispatch == COT_DISPATCH_NEAREST)
        status = keep_sources(costs, load, topology, options->metric, error);
    if (status == COT_OK && options->attention != COT_ATTENTION_PAPER) choose_homes(costs);
    if (status == COT_OK) status = check_range(costs, error);
    if (status == COT_OK) costs->indifferent = indifferent(costs);
    if (status != COT_OK) cot_costs_free(costs);
    return status;
}
