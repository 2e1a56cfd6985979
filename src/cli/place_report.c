/* `coterie place --report`: one page of HTML with its figures inside. */
#include "cmd_place.h"

#include "cluster.h"
#include "paths.h"
#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "body{font:15px/1.5 sans-serif;color:#222;max-width:1400px;margin:2em auto;padding:0 1em}"
    "h1{font-size:24px}h2{font-size:18px;margin-top:2em}table{border-collapse:collapse}"
    "td,th{padding:.25em .9em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child"
    "{text-align:left}.row{display:flex;gap:1em}.row svg{width:49%;height:auto}.note{color:#555}";

/* One method's line of the table, and its traffic. */
typedef struct entry {
    const char *name;
    const cot_place_value *value; // NULL: the method makes no placement here
    cot_place_value own;          // empty where `value` is another's
    double *traffic;              // [S][S]; NULL where it is not known
} entry;

enum { METHODS = 8 };

/* NULL where there is no cluster to send through, or no memory. */
static double *traffic_of(const cot_expert_map *map, const cot_place_inputs *in)
{
    size_t S = (size_t)in->costs.n_ranks;
    double *traffic = in->has_topology ? malloc(S * S * sizeof *traffic) : NULL;
    if (!traffic) return NULL;
    if (cot_place_traffic(traffic, map, &in->load, &in->costs, &in->costs_options, NULL) == COT_OK)
        return traffic;
    free(traffic);
    return NULL;
}

/* The run's own method is shown with what it placed, the others with what they place within the same limits, as far as
 * they know any. */
static void fill_entry(entry *e, const cot_place_method *method, const cot_place_inputs *in,
                       const cot_placed *placed)
{
    cot_expert_map map;
    cot_place_options options = in->options;
    cot_place_proof *proof = NULL;
    e->name = options.method = method->name;
    if (!strcmp(method->name, in->options.method)) {
        e->value = &placed->value;
        e->traffic = traffic_of(&placed->map, in);
        return;
    }
    if (!method->limits) options.max_load = 0;
    if (cot_place(&map, &proof, &in->costs, &options, NULL) != COT_OK) return;
    if (cot_place_value_of(&e->own, &map, &in->costs, options.dispatch, NULL) == COT_OK &&
        cot_place_prove(&e->own, proof, NULL) == COT_OK) {
        e->value = &e->own;
        e->traffic = traffic_of(&map, in);
    }
    cot_place_proof_free(proof);
    cot_expert_map_free(&map);
}

static double largest(const double *x, int32_t n)
{
    double most = 0;
    for (int32_t i = 0; i < n; i++) most = fmax(most, x[i]);
    return most;
}

static void table(FILE *f, const entry *all, const cot_place_inputs *in)
{
    double base = all[0].value ? all[0].value->objective : 0;
    fputs("<h2>Methods</h2>\n<table><tr><th>method</th><th>cost</th><th>per activation</th><th>gain over "
          "rr</th>"
          "<th>proven bound</th><th>peak load (worst layer)</th><th>SGLang balancedness</th></tr>\n",
          f);
    for (int i = 0; i < METHODS; i++) {
        const cot_place_value *v = all[i].value;
        cot_balancedness b;
        if (!v) continue;
        cot_place_balancedness(&b, v);
        fprintf(f, "<tr><td>%s</td><td>%.8g</td><td>%.5g</td><td>", all[i].name, v->objective,
                v->activations > 0 ? v->objective / v->activations : 0);
        if (base > 0 && v->objective > 0) fprintf(f, "%+.1f %%", 100 * (base / v->objective - 1));
        fputs("</td><td>", f);
        if (v->dual > 0) fprintf(f, "%.8g", v->dual);
        fprintf(f, "</td><td>%.3f</td><td>%.4f</td></tr>\n", largest(v->peak_load, v->n_layers), b.sglang);
    }
    fputs("</table>\n<p class=\"note\">", f);
    if (in->options.max_load > 0) {
        fprintf(f, "At most %g mean ranks' loads in a layer with", in->options.max_load);
        for (const cot_place_method *m = cot_place_methods; m->name; m++)
            if (m->limits) fprintf(f, " %s", m->name);
        fputs("; the other methods know no limit. ", f);
    }
    fprintf(f,
            "%d layers of %d experts on %d ranks. Cost is the sum over "
            "activations; gain is "
            "how much more round robin costs. All figures are computed from the load, none is measured on a "
            "cluster.</p>\n",
            in->costs.n_layers, in->costs.n_experts, in->costs.n_ranks);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Loads of the links that count a hop, the fullest first. */
static void links(FILE *f, const entry *e, const cot_place_inputs *in)
{
    const cot_topology *t = &in->topology;
    double *load = malloc((size_t)t->n_links * sizeof *load + 1),
           *sorted = malloc((size_t)t->n_links * sizeof *load + 1);
    int64_t n = 0;
    if (load && sorted && e->traffic && cot_topology_link_loads(load, t, e->traffic, NULL) == COT_OK) {
        for (int64_t i = 0; i < t->n_links; i++)
            if (t->links[i].hops > 0) sorted[n++] = load[i];
        qsort(sorted, (size_t)n, sizeof *sorted, by_value);
        char title[128];
        snprintf(title, sizeof title, "%s: activations on each of %lld network links, the fullest first",
                 e->name, (long long)n);
        if (n) cot_plot_bars(f, sorted, (int32_t)(n > 100000 ? 100000 : n), 0, title, "link");
        fputs("<table><tr><th>fullest links</th><th>activations</th></tr>\n", f);
        for (int shown = 0; shown < 10 && n; shown++) {
            int64_t best = -1;
            for (int64_t i = 0; i < t->n_links; i++)
                if (t->links[i].hops > 0 && load[i] >= 0 && (best < 0 || load[i] > load[best])) best = i;
            if (best < 0) break;
            fputs("<tr><td>", f);
            cot_plot_text(f, t->labels[t->links[best].from]);
            fputs(" to ", f);
            cot_plot_text(f, t->labels[t->links[best].to]);
            fprintf(f, "</td><td>%.6g</td></tr>\n", load[best]);
            load[best] = -1;
        }
        fputs("</table>\n", f);
    }
    free(load);
    free(sorted);
}

static void distance_map(FILE *f, const cot_place_inputs *in)
{
    size_t S = (size_t)in->topology.n_ranks;
    double *d = malloc(S * S * sizeof *d);
    fputs("<h2>Distances</h2>\n", f);
    if (d && cot_topology_distances(d, &in->topology, in->costs_options.metric, NULL) == COT_OK)
        cot_plot_matrix(f, d, (int32_t)S, (int32_t)S, in->costs_options.metric.cost ? "microseconds" : "hops",
                        "to rank", "from rank");
    free(d);
}

static void loads(FILE *f, const char *name, const cot_place_value *v)
{
    size_t S = (size_t)v->n_ranks;
    double *sum = calloc(S, sizeof *sum), mean = 0;
    char title[128];
    if (sum) {
        for (size_t l = 0; l < (size_t)v->n_layers; l++)
            for (size_t s = 0; s < S; s++) sum[s] += v->rank_load[l * S + s];
        for (size_t s = 0; s < S; s++) mean += sum[s] / (double)S;
        snprintf(title, sizeof title, "%s: activations served by each rank, all layers (dashed: the mean)",
                 name);
        cot_plot_bars(f, sum, v->n_ranks, mean, title, "rank");
    }
    free(sum);
    snprintf(title, sizeof title, "%s: most loaded rank of each layer over the mean", name);
    cot_plot_bars(f, v->peak_load, v->n_layers, 1, title, "layer");
}

/* The best by cost and, of the others, the next best. */
static void best_two(const entry *all, int best[2])
{
    best[0] = best[1] = -1;
    for (int i = 0; i < METHODS; i++) {
        if (!all[i].traffic) continue;
        if (best[0] < 0 || all[i].value->objective < all[best[0]].value->objective) {
            best[1] = best[0];
            best[0] = i;
        } else if (best[1] < 0 || all[i].value->objective < all[best[1]].value->objective)
            best[1] = i;
    }
}

static void page(FILE *f, const cot_place_settings *s, const cot_place_inputs *in, const cot_placed *placed,
                 entry *all)
{
    fprintf(
        f,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Placement</title><style>%s"
        "</style></head>\n<body><h1>Expert placement</h1>\n<p>Cluster: ",
        style);
    cot_plot_text(f, s->topology ? s->topology : s->cost ? s->cost : "all ranks equally near");
    fputs(". Load: ", f);
    for (size_t i = 0; i < s->loads.count; i++) {
        if (i) fputs(", ", f);
        cot_plot_text(f, s->loads.items[i].text);
    }
    fputs(".</p>\n", f);
    table(f, all, in);
    if (in->has_topology) distance_map(f, in);
    int best[2];
    best_two(all, best);
    if (best[0] >= 0) {
        fputs("<h2>Who talks to whom</h2>\n<p class=\"note\">Activations from rank to rank, there and back, "
              "summed over "
              "layers: the two cheapest methods.</p>\n<div class=\"row\">\n",
              f);
        for (int i = 1; i >= 0; i--)
            if (best[i] >= 0)
                cot_plot_matrix(f, all[best[i]].traffic, in->costs.n_ranks, in->costs.n_ranks,
                                all[best[i]].name, "to rank", "from rank");
        fputs("</div>\n", f);
    }
    fputs("<h2>Loads of ranks</h2>\n", f);
    loads(f, in->options.method, &placed->value);
    if (best[0] >= 0) {
        fputs("<h2>Loads of links</h2>\n<p class=\"note\">Routed along the routes of fewest hops, evenly "
              "over equal "
              "ones.</p>\n",
              f);
        links(f, &all[best[0]], in);
    }
    fputs("</body></html>\n", f);
}

int cot_place_report(const cot_place_settings *s, const cot_place_inputs *in, const cot_placed *placed)
{
    entry all[METHODS] = {0};
    for (int i = 0; i < METHODS && cot_place_methods[i].name; i++)
        fill_entry(&all[i], &cot_place_methods[i], in, placed);
    cot_file_writer writer;
    FILE *f = cot_open_output(&writer, s->report);
    if (f) page(f, s, in, placed, all);
    int status = f && cot_close_output(&writer) ? COT_EXIT_OK : COT_EXIT_FAILURE;
    for (int i = 0; i < METHODS; i++) {
        cot_place_value_free(&all[i].own);
        free(all[i].traffic);
    }
    return status;
}
