/* `coterie place --evaluate` and `--drift`. */
#include "cli/plan/cmd_place.h"

#include "cli/frame/progress.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_evaluation(const cli_place_settings *s, const cot_place_figures *f)
{
    const cot_place_value *v = &f->value;
    const cot_balancedness *b = &f->balancedness;
    const double per_activation = cli_place_per_activation(v);
    const bool by_token = f->token_std >= 0;
    if (!s->json) {
        printf("objective     %.10g, %.6g per activation\n", v->objective, per_activation);
        if (f->token_mean < 0)
            printf("per token     not known: the load does not say K; give --top-k K\n");
        else if (by_token)
            printf("per token     %.6g (standard deviation %.6g over tokens)\n", f->token_mean, f->token_std);
        else
            printf("per token     %.6g (counts: no deviation is known)\n", f->token_mean);
        char text[256];
        snprintf(text, sizeof text, "max %.6g, p99 %.6g, mean %.6g activations on %" PRId64 " network links",
                 f->link_max, f->link_p99, f->link_mean, f->n_links);
        if (f->n_links) cli_print_wrapped(text, printf("link load     "), 14);
        snprintf(text, sizeof text,
                 "sglang %.4f, vllm %.4f, vllm by layers %.4f, tensorrt-llm imbalance %.4f", b->sglang,
                 b->vllm, b->vllm_layers, b->tensorrt_llm);
        cli_print_wrapped(text, printf("balancedness  "), 14);
        printf("LAR           %.4f\n", f->lar);
        printf("peak load     %.4g times the mean rank's at worst\n", f->peak);
        return CLI_EXIT_OK;
    }
    json_t *peaks = json_array();
    for (int32_t l = 0; l < v->n_layers; l++) json_array_append_new(peaks, json_real(v->peak_load[l]));
    json_t *o = json_pack(
        "{s:f, s:f, s:{s:o, s:o}, s:{s:f, s:f, s:f, s:I}, s:{s:f, s:f, s:f, s:f}, s:f, s:f, s:o}",
        "objective", v->objective, "objective_per_activation", per_activation, "hops_per_token", "mean",
        f->token_mean < 0 ? json_null() : json_real(f->token_mean), "std",
        by_token ? json_real(f->token_std) : json_null(), "link_load", "max", f->link_max, "p99", f->link_p99,
        "mean", f->link_mean, "links", (json_int_t)f->n_links, "balancedness", "sglang", b->sglang, "vllm",
        b->vllm, "vllm_layers", b->vllm_layers, "tensorrt_llm_imbalance", b->tensorrt_llm, "lar", f->lar,
        "peak_rank_load", f->peak, "peak_load", peaks);
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    if (!text) return cli_complain("cannot spell the figures as JSON");
    puts(text);
    free(text);
    return CLI_EXIT_OK;
}

int cli_place_run_evaluate(const cli_place_settings *s, cli_place_inputs *in)
{
    cot_expert_map map = {0};
    cot_place_figures figures = {0};
    cot_trace trace = {0};
    cot_error error = {0};
    cot_expert_map_options options = {.size = sizeof options, .first_layer = (int32_t)s->first_layer};
    if (!s->placement) {
        cli_complain("nothing to evaluate: --placement P");
        return CLI_EXIT_USAGE;
    }
    int status = cli_place_open_load(in, s, &s->evaluate, 1);
    if (status != CLI_EXIT_OK) return status;
    options.ranks = in->costs.n_ranks;
    cli_progress progress = {"evaluating", 0};
    cli_progress_show(&progress, 0, 0);
    // A load that is no trace has no single tokens.
    const bool traced = cot_trace_import(&trace, s->evaluate, NULL, NULL) == COT_OK;
    const cot_place_measure_options measured_by = {.size = sizeof measured_by,
                                                   .load = &in->load,
                                                   .costs = &in->costs_options,
                                                   .topology = in->has_topology ? &in->topology : NULL,
                                                   .trace = traced ? &trace : NULL};
    cot_status done = cot_expert_map_read(&map, s->placement, &options, &error);
    if (done == COT_OK) done = cot_place_measure(&figures, &map, &in->costs, &measured_by, &error);
    cli_progress_end(&progress);
    status = done == COT_OK ? print_evaluation(s, &figures) : cli_complain_of(&error);
    cot_expert_map_free(&map);
    cot_place_figures_free(&figures);
    cot_trace_close(&trace);
    return status;
}

/* Drift: `count` loads, each with the costs of its own. */
typedef struct drift {
    cli_place_inputs *in;
    const char **name;
    size_t count;
    double *cost, *rr; // [count][count] per token: placed on the row, loaded by the column
} drift;

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
        to[row * d->count + k] = cot_place_per_token(&v, d->in[k].load.top_k);
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

static int print_drift(const cli_place_settings *s, const drift *d)
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
        if (!text) return cli_complain("cannot spell the matrix as JSON");
        puts(text);
        free(text);
        return CLI_EXIT_OK;
    }
    enum { BESIDE = 4 }; // columns in a line
    puts("cost per token, placed on the row's load and loaded by the column's (gain over round robin)");
    for (size_t from = 0; from < n; from += BESIDE) {
        const size_t to = from + BESIDE < n ? from + BESIDE : n;
        printf("%s%-16s", from ? "\n" : "", "");
        for (size_t k = from; k < to; k++) printf(" %20.20s", base_name(d->name[k]));
        for (size_t i = 0; i < n; i++) {
            printf("\n%-15.15s ", base_name(d->name[i]));
            for (size_t k = from; k < to; k++)
                printf(" %10.1f (%+5.1f %%)", d->cost[i * n + k],
                       100 * (d->rr[i * n + k] / d->cost[i * n + k] - 1));
        }
        putchar('\n');
    }
    return CLI_EXIT_OK;
}

static int open_drift(drift *d, const cli_place_settings *s, const cli_place_inputs *shared)
{
    for (size_t i = 0; i < d->count; i++) {
        d->in[i].topology = shared->topology;
        d->in[i].has_topology = shared->has_topology;
        d->in[i].ranks = shared->ranks;
        int status = cli_place_open_load(&d->in[i], s, &d->name[i], 1);
        if (status != CLI_EXIT_OK) return status;
        if (d->in[i].load.top_k < 1) return cli_complain("'%s' does not say K: give --top-k", d->name[i]);
        if (d->in[i].costs.n_layers != d->in[0].costs.n_layers ||
            memcmp(d->in[i].costs.layers, d->in[0].costs.layers,
                   (size_t)d->in[0].costs.n_layers * sizeof *d->in[0].costs.layers))
            return cli_complain("'%s' and '%s' have different layers with load", d->name[0], d->name[i]);
    }
    return CLI_EXIT_OK;
}

int cli_place_run_drift(const cli_place_settings *s, cli_place_inputs *in)
{
    size_t n = s->drift.count + s->more.count;
    drift d = {.count = n,
               .in = calloc(n, sizeof *d.in),
               .name = calloc(n, sizeof *d.name),
               .cost = calloc(2 * n * n, sizeof *d.cost)};
    cot_error error = {COT_OUT_OF_MEMORY, ""};
    bool room = d.in && d.name && d.cost;
    int status = room ? CLI_EXIT_OK : cli_complain("out of memory");
    if (room) {
        d.rr = d.cost + n * n;
        for (size_t i = 0; i < n; i++)
            d.name[i] = i < s->drift.count ? s->drift.items[i].text : s->more.items[i - s->drift.count].text;
        status = open_drift(&d, s, in);
    }
    cli_progress progress = {"placing", 0};
    cot_status done = COT_OK;
    for (size_t i = 0; status == CLI_EXIT_OK && done == COT_OK && i < n; i++) {
        cli_progress_show(&progress, i, n);
        done = fill_row(&d, i, NULL, d.cost, &error);
        if (done == COT_OK) done = fill_row(&d, i, "rr", d.rr, &error);
    }
    cli_progress_end(&progress);
    if (status == CLI_EXIT_OK) status = done == COT_OK ? print_drift(s, &d) : cli_complain_of(&error);
    for (size_t i = 0; d.in && i < n; i++) {
        d.in[i].topology = (cot_topology){0}; // it is the caller's
        cli_place_close(&d.in[i]);
    }
    free(d.in);
    free(d.name);
    free(d.cost);
    return status;
}
