/* What a placement is worth on a load, or on the tokens of a trace one by one. */
#include "coterie/place.h"

#include "base/error.h"
#include "placement/seats.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* One measurement: what is asked, and memory for a layer. */
typedef struct measurement {
    const cot_expert_map *map;
    const cot_costs *costs;
    const cot_place_measure_options *options;
    cot_seats seats;
    double *share; // [E][S] of an expert's activations that rank s serves itself, where it holds the tokens
    double *unit;  // [L][E] what an activation costs
} measurement;

static cot_status open_measurement(measurement *m, cot_error *error)
{
    const size_t L = (size_t)m->costs->n_layers, E = (size_t)m->costs->n_experts,
                 S = (size_t)m->costs->n_ranks;
    m->share = malloc(E * S * sizeof *m->share);
    m->unit = malloc(L * E * sizeof *m->unit);
    if (!m->share || !m->unit)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu experts on %zu ranks", E, S);
    cot_status status = cot_seats_open(&m->seats, m->map, error);
    if (status == COT_OK)
        status = cot_place_unit_costs(m->unit, m->map, m->costs, m->options->costs->dispatch, error);
    return status;
}

static void close_measurement(measurement *m)
{
    cot_seats_close(&m->seats);
    free(m->share);
    free(m->unit);
}

static cot_status fill_shares(measurement *m, int32_t l, cot_error *error)
{
    const size_t E = (size_t)m->costs->n_experts, S = (size_t)m->costs->n_ranks;
    const bool nearest = m->options->costs->dispatch == COT_DISPATCH_NEAREST;
    const cot_status status = cot_seats_find_layer(&m->seats, m->map, m->costs, l, error);
    for (size_t i = 0; i < E * S; i++) m->share[i] = 0;
    for (size_t e = 0; status == COT_OK && e < E; e++) {
        const int32_t first = m->seats.first[e], end = m->seats.first[e + 1];
        double *share = m->share + e * S;
        for (int32_t k = first; k < end; k++) share[m->seats.rank[k]]++;
        for (size_t s = 0; s < S; s++) share[s] = nearest ? share[s] > 0 : share[s] / (end - first);
    }
    return status;
}

/* Adds what the tokens of the trace's l-th layer cost, in the costs' layer `at`, to `sum` [T], and their local
 * activations to `local`. */
static void walk_layer(double *sum, double *local, const measurement *m, int32_t l, int32_t at)
{
    const cot_trace *t = m->options->trace;
    const int32_t E = m->costs->n_experts, S = m->costs->n_ranks;
    const double *unit = m->unit + (size_t)at * (size_t)E;
    for (int64_t q = 0; q < t->n_sequences; q++) {
        const int64_t begin = t->sequence_offsets[q], n = t->sequence_offsets[q + 1] - begin;
        for (int64_t i = 0; i < n; i++) {
            const int32_t home = cot_trace_home(i, n, S);
            for (int32_t k = 0; k < t->top_k; k++) {
                const int32_t e = cot_trace_expert(t, l, begin + i, k);
                sum[begin + i] += unit[e];
                *local += m->share[(size_t)e * (size_t)S + (size_t)home];
            }
        }
    }
}

static cot_status measure_tokens(cot_place_figures *f, measurement *m, cot_error *error)
{
    const cot_trace *t = m->options->trace;
    const cot_costs *c = m->costs;
    double local = 0, mean = 0, square = 0;
    int64_t layers = 0;
    if (t->n_experts != c->n_experts)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the trace has %d experts, the costs %d", t->n_experts,
                        c->n_experts);
    double *sum = calloc((size_t)t->n_tokens + 1, sizeof *sum);
    if (!sum)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld tokens", (long long)t->n_tokens);
    cot_status status = COT_OK;
    for (int32_t l = 0, at = 0; status == COT_OK && l < t->n_layers; l++) {
        while (at < c->n_layers && c->layers[at] < t->layers[l]) at++;
        if (at == c->n_layers || c->layers[at] != t->layers[l]) continue;
        status = fill_shares(m, at, error);
        if (status == COT_OK) walk_layer(sum, &local, m, l, at);
        layers++;
    }
    mean = sum[0]; // of tokens that all cost the same it is that, whatever their number
    for (int64_t i = 0; i < t->n_tokens; i++) mean += (sum[i] - sum[0]) / (double)t->n_tokens;
    for (int64_t i = 0; i < t->n_tokens; i++)
        square += (sum[i] - mean) * (sum[i] - mean) / (double)t->n_tokens;
    free(sum);
    const double activations = (double)layers * (double)t->n_tokens * t->top_k;
    f->token_mean = mean;
    // Of tokens that cost the same, sums in other orders differ by what rounding each term leaves.
    const double rounding = (double)layers * t->top_k * DBL_EPSILON * fabs(mean);
    f->token_std = sqrt(square) > rounding ? sqrt(square) : 0;
    f->lar = activations > 0 ? local / activations : 0;
    return status;
}

/* What rank r sends to an expert in a layer, from what is recorded, or as attention has it. */
static double sent_by(const measurement *m, int32_t l, int32_t e, int32_t r)
{
    const cot_load_counts *load = m->options->load;
    const cot_costs *c = m->costs;
    const size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts;
    const double all = c->load[(size_t)l * E + (size_t)e];
    if (load->sources_known && load->n_sources == c->n_ranks)
        return load->tokens[((size_t)c->row[l] * S + (size_t)r) * E + (size_t)e];
    if (m->options->costs->attention == COT_ATTENTION_PAPER) return r == c->home[l] ? all : 0;
    return all / c->n_ranks;
}

/* Single tokens are not known: the mean from the counts, local what the senders hold themselves. */
static cot_status measure_counts(cot_place_figures *f, measurement *m, cot_error *error)
{
    const cot_costs *c = m->costs;
    double local = 0;
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < c->n_layers; l++) {
        status = fill_shares(m, l, error);
        for (int32_t e = 0; status == COT_OK && e < c->n_experts; e++)
            for (int32_t r = 0; r < c->n_ranks; r++)
                local += sent_by(m, l, e, r) * m->share[(size_t)e * (size_t)c->n_ranks + (size_t)r];
    }
    f->token_mean = cot_place_per_token(&f->value, m->options->load->top_k);
    f->token_std = -1;
    f->lar = f->value.activations > 0 ? local / f->value.activations : 0;
    return status;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Loads of the links that count a hop. */
static cot_status measure_links(cot_place_figures *f, const measurement *m, cot_error *error)
{
    const cot_topology *t = m->options->topology;
    const size_t S = (size_t)m->costs->n_ranks;
    double *traffic = malloc(S * S * sizeof *traffic), *load = malloc((size_t)t->n_links * sizeof *load + 1);
    cot_status status =
        traffic && load
            ? cot_place_traffic(traffic, m->map, m->options->load, m->costs, m->options->costs, error)
            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the traffic of %zu ranks", S);
    if (status == COT_OK) status = cot_topology_link_loads(load, t, traffic, error);
    if (status == COT_OK) {
        int64_t n = 0;
        for (int64_t i = 0; i < t->n_links; i++)
            if (t->links[i].hops > 0) load[n++] = load[i];
        for (int64_t i = 0; i < n; i++) f->link_mean += load[i] / (double)n;
        if (n) {
            qsort(load, (size_t)n, sizeof *load, by_value);
            f->link_max = load[n - 1];
            f->link_p99 = load[(int64_t)(0.99 * (double)(n - 1))];
        }
        f->n_links = n;
    }
    free(traffic);
    free(load);
    return status;
}

double cot_place_per_token(const cot_place_value *v, int32_t top_k)
{
    if (top_k < 1) return -1;
    return v->activations > 0 ? v->objective / v->activations * top_k * v->n_layers : 0;
}

cot_status cot_place_measure(cot_place_figures *figures, const cot_expert_map *map, const cot_costs *costs,
                             const cot_place_measure_options *options, cot_error *error)
{
    const cot_place_measure_options *o = options;
    measurement m = {.map = map, .costs = costs, .options = o};
    *figures = (cot_place_figures){0};
    if (o->size != sizeof *o || !o->load || !o->costs)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a placement is measured by a load and the options of its costs");
    if (o->topology && o->topology->n_ranks != costs->n_ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the topology has %d ranks, the costs %d",
                        o->topology->n_ranks, costs->n_ranks);
    cot_status status = cot_place_value_of(&figures->value, map, costs, o->costs->dispatch, error);
    if (status == COT_OK) status = open_measurement(&m, error);
    if (status == COT_OK)
        status = o->trace && o->trace->kind == COT_TRACE_TOKENS ? measure_tokens(figures, &m, error)
                                                                : measure_counts(figures, &m, error);
    if (status == COT_OK && o->topology) status = measure_links(figures, &m, error);
    close_measurement(&m);
    if (status != COT_OK) {
        cot_place_figures_free(figures);
        return status;
    }
    cot_place_balancedness(&figures->balancedness, &figures->value);
    for (int32_t l = 0; l < costs->n_layers; l++)
        figures->peak = fmax(figures->peak, figures->value.peak_load[l]);
    return COT_OK;
}

void cot_place_figures_free(cot_place_figures *figures)
{
    cot_place_value_free(&figures->value);
    *figures = (cot_place_figures){0};
}
