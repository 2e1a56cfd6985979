/* `coterie place --report`: one page of HTML with its figures inside. */
#include "cli/plan/cmd_place.h"

#include "cli/plan/cluster.h"
#include "cli/plan/page.h"
#include "cli/frame/paths.h"
#include "cli/plan/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void cell(FILE *f, const char *format, double x)
{
    fputs("<td>", f);
    if (!isnan(x)) fprintf(f, format, x);
    fputs("</td>", f);
}

/* A line of the table; `dearer` is what the placement costs more than the one in use, as a share of that. */
static void line(FILE *f, const char *name, const char *mark, const cli_place_side *side,
                 const cli_place_side *before, const cli_place_settings *s)
{
    const cot_place_value *v = &side->value;
    const double base = before->value.objective;
    fprintf(f, "<tr%s><td>", *mark ? " class=\"chosen\"" : "");
    cli_page_text(f, name);
    fprintf(f, "%s</td>", mark);
    cell(f, "%.5g", cli_place_per_activation(v));
    const double more = side == before || !(base > 0) ? NAN : 100 * (v->objective / base - 1);
    cell(f, fabs(more) < 0.05 ? "the same" : "%+.1f %%", more);
    cell(f, "%.2f %%", v->dual > 0 && v->objective > 0 ? 100 * (1 - v->dual / v->objective) : NAN);
    cell(f, "%.1f %%", side->between_nodes < 0 ? NAN : 100 * side->between_nodes);
    cell(f, "%.3f", side->worst_peak);
    cell(f, "%.3f", side->mean_peak);
    cell(f, "%.4f", cli_place_balancedness_of(&side->balancedness, s));
    fputs("</tr>\n", f);
}

/* What another method places within the same limits, as far as it knows any; no line where it places nothing. */
static void other_method(FILE *f, const cot_place_method *method, const cli_place_settings *s,
                         const cli_place_inputs *in, const cli_place_side *before)
{
    cot_expert_map map = {0};
    cot_place_options options = in->options;
    cot_place_proof *proof = NULL;
    cli_place_side side = {0};
    options.method = method->name;
    if (!method->limits) options.max_load = 0;
    if (cot_place(&map, &proof, &in->costs, &options, NULL) == COT_OK &&
        cli_place_open_side(&side, method->name, &map, in, false, NULL) == COT_OK &&
        cot_place_prove(&side.value, proof, NULL) == COT_OK)
        line(f, method->name, "", &side, before, s);
    cli_place_close_side(&side);
    cot_place_proof_free(proof);
    cot_expert_map_free(&map);
}

static void table(FILE *f, const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed,
                  const cli_place_side sides[2])
{
    const char *unit = cli_place_unit(in);
    char total[2][CLI_PEOPLE_BYTES], name[128];
    fprintf(f,
            "<h2>Placements</h2>\n<table><tr><th>placement</th><th>%s an<br>activation</th><th>beside the "
            "one<br>in use</th><th>above the<br>proven bound</th><th>leave their<br>node</th><th>peak, "
            "worst<br>layer</th><th>peak, mean<br>layer</th><th>%s</th></tr>\n",
            unit, cli_place_balancedness_name(s));
    snprintf(name, sizeof name, "%s: %.100s", s->current ? "in use" : "without a map", sides[0].name);
    line(f, name, "", &sides[0], &sides[0], s);
    for (const cot_place_method *m = cot_place_methods; m->name; m++)
        if (strcmp(m->name, in->options.method))
            other_method(f, m, s, in, &sides[0]);
        else {
            cli_place_side chosen = sides[1]; // with the bound that its own method proved
            chosen.value.dual = placed->value.dual;
            line(f, m->name, " &#9664; chosen", &chosen, &sides[0], s);
        }
    fprintf(f,
            "</table>\n<p class=\"note\">%d layers of %d experts on %d ranks. In all, %s %s without the new "
            "placement and %s with it. A peak is the most loaded rank's share, in mean ranks' loads. ",
            in->costs.n_layers, in->costs.n_experts, in->costs.n_ranks,
            cli_people_number(total[0], sides[0].value.objective), unit,
            cli_people_number(total[1], sides[1].value.objective));
    if (in->options.max_load > 0) {
        fprintf(f, "At most %g mean ranks' loads in a layer with", in->options.max_load);
        for (const cot_place_method *m = cot_place_methods; m->name; m++)
            if (m->limits) fprintf(f, " %s", m->name);
        fputs("; the other methods know no limit. ", f);
    }
    fputs("All figures are computed from the load, none is measured on a cluster.</p>\n", f);
}

static void distance_map(FILE *f, const cli_place_inputs *in, const char *const *hosts)
{
    size_t S = (size_t)in->topology.n_ranks;
    double *d = malloc(S * S * sizeof *d);
    const cli_plot_map how = {.title = "distance from rank to rank",
                              .unit = cli_place_unit(in),
                              .x = {"to rank", hosts, NULL},
                              .y = {"from rank", hosts, NULL}};
    fputs("<h2>Distances</h2>\n", f);
    if (d && cot_topology_distances(d, &in->topology, in->costs_options.metric, NULL) == COT_OK)
        cli_page_matrix(f, d, (int32_t)S, (int32_t)S, &how);
    free(d);
}

/* Both placements' traffic, a colour means the same in both. */
static void traffic_maps(FILE *f, const cli_place_inputs *in, const cli_place_side sides[2],
                         const char *const *hosts)
{
    const int32_t S = in->costs.n_ranks;
    if (!sides[0].traffic || !sides[1].traffic) return;
    const size_t n = (size_t)S * (size_t)S;
    cli_plot_map how = {
        .unit = "activations",
        .x = {"to rank", hosts, NULL},
        .y = {"from rank", hosts, NULL},
        .most = fmax(cli_plot_largest(sides[0].traffic, n), cli_plot_largest(sides[1].traffic, n))};
    fputs("<h2>Who talks to whom</h2>\n<p class=\"note\">Activations from rank to rank, there and back, "
          "summed over layers; both on one scale.</p>\n<div class=\"row\">\n",
          f);
    for (int i = 0; i < 2; i++) {
        how.title = sides[i].name;
        cli_page_matrix(f, sides[i].traffic, S, S, &how);
    }
    fputs("</div>\n", f);
}

static double *loads_of_ranks(const cot_place_value *v)
{
    size_t S = (size_t)v->n_ranks;
    double *sum = calloc(S + 1, sizeof *sum);
    for (size_t l = 0; sum && l < (size_t)v->n_layers; l++)
        for (size_t s = 0; s < S; s++) sum[s] += v->rank_load[l * S + s];
    return sum;
}

static void loads(FILE *f, const cli_place_inputs *in, const cli_place_side sides[2],
                  const char *const *hosts)
{
    double *before = loads_of_ranks(&sides[0].value), *after = loads_of_ranks(&sides[1].value), mean = 0;
    cli_plot_chart how = {.title = "activations that each rank serves, all layers (dashed: the mean)",
                          .unit = "activations",
                          .x = {"rank", hosts, NULL},
                          .name = sides[1].name,
                          .behind_name = sides[0].name};
    fputs("<h2>Loads of ranks</h2>\n", f);
    if (before && after) {
        for (int32_t s = 0; s < in->costs.n_ranks; s++) mean += after[s] / in->costs.n_ranks;
        how.behind = before;
        how.mark = mean;
        cli_page_bars(f, after, in->costs.n_ranks, &how);
    }
    how.title = "most loaded rank of each layer over the mean rank (dashed: perfect balance)";
    how.unit = "times the mean";
    how.x = (cli_plot_axis){"layer", NULL, in->costs.layers};
    how.behind = sides[0].value.peak_load;
    how.mark = 1;
    cli_page_bars(f, sides[1].value.peak_load, in->costs.n_layers, &how);
    free(before);
    free(after);
}

static void page(FILE *f, const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed,
                 const cli_place_side sides[2])
{
    const char *senders = cli_place_senders(s, in);
    const char **hosts = in->has_topology ? cli_host_names(&in->topology) : NULL;
    cli_page_begin(f, "Expert placement");
    fputs("<p>Cluster: ", f);
    if (s->topology || s->cost || !in->has_topology)
        cli_page_text(f, s->topology ? s->topology : s->cost ? s->cost : "all ranks equally near");
    else
        fprintf(f, "%d nodes of %d ranks, a hop apart", in->topology.n_hosts,
                in->topology.n_ranks / in->topology.n_hosts);
    fputs(". Load: ", f);
    for (size_t i = 0; i < s->loads.count; i++) {
        if (i) fputs(", ", f);
        cli_page_text(f, s->loads.items[i].text);
    }
    if (senders) {
        fputs(". Who sends: ", f);
        cli_page_text(f, senders);
    }
    fputs(".</p>\n", f);
    table(f, s, in, placed, sides);
    loads(f, in, sides, hosts);
    if (in->has_topology) {
        distance_map(f, in, hosts);
        traffic_maps(f, in, sides, hosts);
        cli_place_report_links(f, &in->topology, sides);
    }
    cli_page_end(f);
    free(hosts);
}

int cli_place_report(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed,
                     const cli_place_side sides[2])
{
    cot_file_writer writer;
    FILE *f = cli_open_output(&writer, s->report);
    if (f) page(f, s, in, placed, sides);
    return f && cli_close_output(&writer) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
