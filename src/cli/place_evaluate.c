/* `coterie place --evaluate` and `--drift`. */
#include "cmd_place.h"

#include "cluster.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Figures over tokens; std below 0 where single tokens are not known. */
typedef struct token_figures {
    double mean, std, lar;
    bool by_token;
} token_figures;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Share of an expert's activations that rank `home` serves itself. */
static double local_share(const cot_expert_map *map, int32_t row, int32_t e, int32_t home,
                          cot_dispatch dispatch)
{
    const int32_t *slot = map->expert + (size_t)row * (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    int32_t all = 0, here = 0;
    for (int32_t i = 0; i < map->n_ranks * map->slots_per_rank; i++) {
        if (slot[i] != e) continue;
        all++;
        here += i / map->slots_per_rank == home;
    }
    return dispatch == COT_DISPATCH_NEAREST ? here > 0 : all ? (double)here / all : 0;
}

static int32_t map_row(const cot_expert_map *map, int32_t layer)
{
    for (int32_t i = 0; i < map->n_layers; i++)
        if (map->layers[i] == layer) return i;
    return -1;
}

/* local[l][e][r] would be large: shares are kept for one layer at a time. */
static bool walk_tokens(token_figures *f, const cot_trace *t, const cot_place_inputs *in,
                        const cot_expert_map *map, const double *unit)
{
    int32_t E = in->costs.n_experts, S = in->costs.n_ranks;
    double *sum = calloc((size_t)t->n_tokens, sizeof *sum),
           *share = malloc((size_t)E * (size_t)S * sizeof *share);
    double local = 0, activations = 0;
    for (int32_t l = 0, at = 0; sum && share && l < t->n_layers; l++) {
        while (at < in->costs.n_layers && in->costs.layers[at] < t->layers[l]) at++;
        if (at == in->costs.n_layers || in->costs.layers[at] != t->layers[l]) continue;
        int32_t row = map_row(map, t->layers[l]);
        for (int32_t e = 0; e < E; e++)
            for (int32_t r = 0; r < S; r++)
                share[(size_t)e * (size_t)S + (size_t)r] = local_share(map, row, e, r, in->options.dispatch);
        for (int64_t q = 0; q < t->n_sequences; q++) {
            int64_t begin = t->sequence_offsets[q], n = t->sequence_offsets[q + 1] - begin;
            for (int64_t i = 0; i < n; i++) {
                int32_t home = (int32_t)(((i + 1) * S - 1) / n); // contiguous parts, as trace info takes it
                for (int32_t k = 0; k < t->top_k; k++) {
                    int32_t e = cot_trace_expert(t, l, begin + i, k);
                    sum[begin + i] += unit[(size_t)at * (size_t)E + (size_t)e];
                    local += share[(size_t)e * (size_t)S + (size_t)home];
                    activations++;
                }
            }
        }
    }
    bool good = sum && share;
    if (good) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < t->n_tokens; i++) mean += sum[i] / (double)t->n_tokens;
        for (int64_t i = 0; i < t->n_tokens; i++)
            square += (sum[i] - mean) * (sum[i] - mean) / (double)t->n_tokens;
        *f = (token_figures){mean, sqrt(square), activations > 0 ? local / activations : 0, true};
    }
    free(sum);
    free(share);
    return good;
}

/* Without single tokens: the mean from the counts, local what the recorded sources, or the senders, hold themselves. */
static void walk_counts(token_figures *f, const cot_place_inputs *in, const cot_expert_map *map,
                        const cot_place_value *v)
{
    const cot_load_counts *load = &in->load;
    const cot_costs *c = &in->costs;
    double local = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        int32_t row = map_row(map, c->layers[l]);
        for (int32_t e = 0; e < c->n_experts; e++)
            for (int32_t r = 0; r < c->n_ranks; r++) {
                double n = load->sources_known && load->n_sources == c->n_ranks
                               ? load->tokens[((size_t)c->row[l] * (size_t)c->n_ranks + (size_t)r) *
                                                  (size_t)c->n_experts +
                                              (size_t)e]
                           : in->costs_options.attention == COT_ATTENTION_PAPER
                               ? (r == c->home[l] ? c->load[(size_t)l * (size_t)c->n_experts + (size_t)e] : 0)
                               : c->load[(size_t)l * (size_t)c->n_experts + (size_t)e] / c->n_ranks;
                if (n > 0) local += n * local_share(map, row, e, r, in->options.dispatch);
            }
    }
    double k = load->top_k > 0 ? load->top_k : 1;
    *f = (token_figures){v->activations > 0 ? v->objective / v->activations * k * c->n_layers : 0, -1,
                         v->activations > 0 ? local / v->activations : 0, false};
}

/* Loads of the links that count a hop, most first; NULL without a topology, or after saying what failed. */
static double *link_loads(int64_t *n, double *mean, const cot_place_inputs *in, const cot_expert_map *map,
                          cot_error *error)
{
    const cot_topology *t = &in->topology;
    size_t S = (size_t)in->costs.n_ranks;
    double *traffic = malloc(S * S * sizeof *traffic), *load = malloc((size_t)t->n_links * sizeof *load + 1);
    cot_status status = COT_OUT_OF_MEMORY;
    *n = 0;
    *mean = 0;
    if (traffic && load)
        status = cot_place_traffic(traffic, map, &in->load, &in->costs, &in->costs_options, error);
    if (status == COT_OK) status = cot_topology_link_loads(load, t, traffic, error);
    for (int64_t i = 0; status == COT_OK && i < t->n_links; i++)
        if (t->links[i].hops > 0) load[(*n)++] = load[i];
    for (int64_t i = 0; i < *n; i++) *mean += load[i] / (double)*n;
    if (*n) qsort(load, (size_t)*n, sizeof *load, by_value);
    free(traffic);
    if (status == COT_OK) return load;
    free(load);
    return NULL;
}

typedef struct evaluation {
    token_figures tokens;
    cot_balancedness balance;
    double link_max, link_p99, link_mean;
    int64_t n_links;
} evaluation;

static double largest(const double *x, int32_t n)
{
    double most = 0;
    for (int32_t i = 0; i < n; i++) most = fmax(most, x[i]);
    return most;
}

static int print_evaluation(const cot_place_settings *s, const cot_place_value *v, const evaluation *e)
{
    if (!s->json) {
        printf("objective     %.10g, %.6g per activation\n", v->objective,
               v->activations > 0 ? v->objective / v->activations : 0);
        printf("per token     %.6g", e->tokens.mean);
        if (e->tokens.by_token)
            printf(" (standard deviation %.6g over tokens)\n", e->tokens.std);
        else
            printf(" (counts: no deviation is known)\n");
        if (e->n_links)
            printf("link load     max %.6g, p99 %.6g, mean %.6g activations on %" PRId64 " network links\n",
                   e->link_max, e->link_p99, e->link_mean, e->n_links);
        printf("balancedness  sglang %.4f, vllm %.4f, vllm by layers %.4f, tensorrt-llm imbalance %.4f\n",
               e->balance.sglang, e->balance.vllm, e->balance.vllm_layers, e->balance.tensorrt_llm);
        printf("LAR           %.4f\n", e->tokens.lar);
        printf("peak load     %.4g times the mean rank's at worst\n", largest(v->peak_load, v->n_layers));
        return COT_EXIT_OK;
    }
    json_t *peaks = json_array();
    for (int32_t l = 0; l < v->n_layers; l++) json_array_append_new(peaks, json_real(v->peak_load[l]));
    json_t *o = json_pack(
        "{s:f, s:f, s:{s:f, s:o}, s:{s:f, s:f, s:f, s:I}, s:{s:f, s:f, s:f, s:f}, s:f, s:f, s:o}",
        "objective", v->objective, "objective_per_activation",
        v->activations > 0 ? v->objective / v->activations : 0.0, "hops_per_token", "mean", e->tokens.mean,
        "std", e->tokens.by_token ? json_real(e->tokens.std) : json_null(), "link_load", "max", e->link_max,
        "p99", e->link_p99, "mean", e->link_mean, "links", (json_int_t)e->n_links, "balancedness", "sglang",
        e->balance.sglang, "vllm", e->balance.vllm, "vllm_layers", e->balance.vllm_layers,
        "tensorrt_llm_imbalance", e->balance.tensorrt_llm, "lar", e->tokens.lar, "peak_rank_load",
        largest(v->peak_load, v->n_layers), "peak_load", peaks);
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    if (!text) return cot_complain("cannot spell the figures as JSON");
    puts(text);
    free(text);
    return COT_EXIT_OK;
}

static cot_status evaluate(evaluation *e, const cot_place_inputs *in, const cot_expert_map *map,
                           const cot_place_value *v, const char *path, cot_error *error)
{
    cot_trace trace;
    double *unit = malloc((size_t)in->costs.n_layers * (size_t)in->costs.n_experts * sizeof *unit);
    cot_status status =
        unit ? cot_place_unit_costs(unit, map, &in->costs, in->options.dispatch, error) : COT_OUT_OF_MEMORY;
    bool tokens = status == COT_OK && cot_trace_import(&trace, path, NULL, NULL) == COT_OK;
    if (tokens && trace.kind == COT_TRACE_TOKENS) {
        if (!walk_tokens(&e->tokens, &trace, in, map, unit)) status = COT_OUT_OF_MEMORY;
    } else if (status == COT_OK)
        walk_counts(&e->tokens, in, map, v);
    if (tokens) cot_trace_close(&trace);
    free(unit);
    cot_place_balancedness(&e->balance, v);
    if (status != COT_OK || !in->has_topology) return status;
    double *load = link_loads(&e->n_links, &e->link_mean, in, map, error);
    if (load && e->n_links) {
        e->link_max = load[e->n_links - 1];
        e->link_p99 = load[(int64_t)(0.99 * (double)(e->n_links - 1))];
    }
    free(load);
    return load ? COT_OK : COT_OUT_OF_MEMORY;
}

int cot_place_run_evaluate(const cot_place_settings *s, cot_place_inputs *in)
{
    cot_expert_map map = {0};
    cot_place_value value = {0};
    evaluation e = {0};
    cot_error error = {COT_OUT_OF_MEMORY, ""};
    cot_expert_map_options options = {.size = sizeof options, .first_layer = (int32_t)s->first_layer};
    if (!s->placement) {
        cot_complain("nothing to evaluate: --placement P");
        return COT_EXIT_USAGE;
    }
    int status = cot_place_open_load(in, s, &s->evaluate, 1);
    if (status != COT_EXIT_OK) return status;
    options.ranks = in->costs.n_ranks;
    cot_status done = cot_expert_map_read(&map, s->placement, &options, &error);
    if (done == COT_OK) done = cot_place_value_of(&value, &map, &in->costs, in->options.dispatch, &error);
    if (done == COT_OK) done = evaluate(&e, in, &map, &value, s->evaluate, &error);
    status = done == COT_OK ? print_evaluation(s, &value, &e) : cot_complain_of(&error);
    cot_expert_map_free(&map);
    cot_place_value_free(&value);
    return status;
}

/* Drift: `count` loads, each with the costs of its own. */
typedef struct drift {
    cot_place_inputs *in;
    const char **name;
    size_t count;
    double *cost, *rr; // [count][count] per token: placed on the row, loaded by the column
} drift;

static double per_token(const cot_place_inputs *in, const cot_place_value *v)
{
    return v->objective / v->activations * in->load.top_k * in->costs.n_layers;
}

static cot_status fill_row(drift *d, size_t row, const char *method, double *to, cot_error *error)
{
    cot_expert_map map;
    cot_place_options options = d->in[row].options;
    if (method) options.method = method;
    cot_status status = cot_place(&map, NULL, &d->in[row].costs, &options, error);
    for (size_t k = 0; status == COT_OK && k < d->count; k++) {
        cot_place_value v;
        status = cot_place_value_of(&v, &map, &d->in[k].costs, options.dispatch, error);
        if (status != COT_OK) break;
        to[row * d->count + k] = per_token(&d->in[k], &v);
        cot_place_value_free(&v);
    }
    cot_expert_map_free(&map);
    return status;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int print_drift(const cot_place_settings *s, const drift *d)
{
    size_t n = d->count;
    if (s->json) {
        json_t *o = json_object(), *names = json_array(), *cost = json_array(), *rr = json_array();
        for (size_t i = 0; i < n; i++) {
            json_t *a = json_array(), *b = json_array();
            for (size_t k = 0; k < n; k++) {
                json_array_append_new(a, json_real(d->cost[i * n + k]));
                json_array_append_new(b, json_real(d->rr[i * n + k]));
            }
            json_array_append_new(names, json_string(d->name[i]));
            json_array_append_new(cost, a);
            json_array_append_new(rr, b);
        }
        json_object_set_new(o, "loads", names);
        json_object_set_new(o, "per_token", cost);
        json_object_set_new(o, "per_token_rr", rr);
        char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
        json_decref(o);
        if (!text) return cot_complain("cannot spell the matrix as JSON");
        puts(text);
        free(text);
        return COT_EXIT_OK;
    }
    printf(
        "cost per token, placed on the row's load and loaded by the column's (gain over round robin)\n%-16s",
        "");
    for (size_t k = 0; k < n; k++) printf(" %20.20s", base_name(d->name[k]));
    for (size_t i = 0; i < n; i++) {
        printf("\n%-16.16s", base_name(d->name[i]));
        for (size_t k = 0; k < n; k++)
            printf(" %11.1f (%+5.1f %%)", d->cost[i * n + k],
                   100 * (d->rr[i * n + k] / d->cost[i * n + k] - 1));
    }
    putchar('\n');
    return COT_EXIT_OK;
}

static int open_drift(drift *d, const cot_place_settings *s, const cot_place_inputs *shared)
{
    for (size_t i = 0; i < d->count; i++) {
        d->in[i].topology = shared->topology;
        d->in[i].has_topology = shared->has_topology;
        int status = cot_place_open_load(&d->in[i], s, &d->name[i], 1);
        if (status != COT_EXIT_OK) return status;
        if (d->in[i].load.top_k < 1) return cot_complain("'%s' does not say K: give --top-k", d->name[i]);
        if (d->in[i].costs.n_layers != d->in[0].costs.n_layers ||
            memcmp(d->in[i].costs.layers, d->in[0].costs.layers,
                   (size_t)d->in[0].costs.n_layers * sizeof *d->in[0].costs.layers))
            return cot_complain("'%s' and '%s' have different layers with load", d->name[0], d->name[i]);
    }
    return COT_EXIT_OK;
}

int cot_place_run_drift(const cot_place_settings *s, cot_place_inputs *in)
{
    size_t n = s->drift.count + s->more.count;
    drift d = {.count = n,
               .in = calloc(n, sizeof *d.in),
               .name = calloc(n, sizeof *d.name),
               .cost = calloc(2 * n * n, sizeof *d.cost)};
    cot_error error = {COT_OUT_OF_MEMORY, ""};
    bool room = d.in && d.name && d.cost;
    int status = room ? COT_EXIT_OK : cot_complain("out of memory");
    if (room) {
        d.rr = d.cost + n * n;
        for (size_t i = 0; i < n; i++)
            d.name[i] = i < s->drift.count ? s->drift.items[i].text : s->more.items[i - s->drift.count].text;
        status = open_drift(&d, s, in);
    }
    cot_status done = COT_OK;
    for (size_t i = 0; status == COT_EXIT_OK && done == COT_OK && i < n; i++) {
        done = fill_row(&d, i, NULL, d.cost, &error);
        if (done == COT_OK) done = fill_row(&d, i, "rr", d.rr, &error);
    }
    if (status == COT_EXIT_OK) status = done == COT_OK ? print_drift(s, &d) : cot_complain_of(&error);
    for (size_t i = 0; d.in && i < n; i++) {
        d.in[i].topology = (cot_topology){0}; // it is the caller's
        cot_place_close(&d.in[i]);
    }
    free(d.in);
    free(d.name);
    free(d.cost);
    return status;
}
