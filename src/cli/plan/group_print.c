/* What `coterie group` found, for people and for programs. */
#include "cli/plan/cmd_group.h"

#include "cli/frame/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static double of_test(const cli_grouped *g, cot_figure figure)
{
    return g->row.has_test ? g->row.test.all[figure] : NAN;
}

static void print_locality(const cli_grouped *g)
{
    const cot_group_solution *o = &g->found;
    printf("%-10s %7.4f %7.4f", g->method, o->lar, o->lar_bound);
    cli_print_cell(7, 4, of_test(g, COT_FIGURE_LAR));
    if (g->row.has_test && !isnan(g->row.test.low[COT_FIGURE_LAR]))
        printf(" %.4f..%.4f", g->row.test.low[COT_FIGURE_LAR], g->row.test.high[COT_FIGURE_LAR]);
    else
        printf(" %14s", "-");
    cli_print_cell(7, 4, of_test(g, COT_FIGURE_LAR_EVEN));
    cli_print_cell(7, 4, of_test(g, COT_FIGURE_ORACLE_LAR));
    printf(" %8" PRId64 " %7.1f\n", o->iterations, g->seconds);
}

static void print_load(const cli_grouped *g)
{
    const cot_group_solution *o = &g->found;
    printf("%-10s", g->method);
    cli_print_cell(7, 3, o->token_peak);
    cli_print_cell(7, 3, of_test(g, COT_FIGURE_TOKEN_IMBALANCE));
    cli_print_cell(6, 3, of_test(g, COT_FIGURE_HOME_PEAK));
    cli_print_cell(7, 3, o->expert_peak);
    cli_print_cell(7, 3, of_test(g, COT_FIGURE_EXPERT_PEAK));
    printf(" %7.3f %7.3f\n", o->stay_before, o->stay);
}

/* Layers where no groups were found within the limit of expert load. */
static void print_missed(const cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    if (s->expert_load <= 0) return;
    for (int32_t l = 0; l < g->found.groups.n_layers; l++) {
        const cot_grouping *layer = &g->found.layer[l];
        if (layer->expert_peak <= s->expert_load * (1 + 1e-9)) continue;
        char text[256];
        const size_t used =
            (size_t)snprintf(text, sizeof text,
                             "%s, layer %" PRId32 ": no groups within %g of the mean load were "
                             "found; the smallest peak found is %.4f",
                             g->method, in->trace.layers[l], s->expert_load, layer->expert_peak);
        if (layer->expert_peak_bound > 0)
            snprintf(text + used, sizeof text - used, ", none is below %.4f", layer->expert_peak_bound);
        cli_print_wrapped(text, 0, 2);
    }
}

/* How many layers' tokens are not as evenly divided as was asked. */
static void print_uneven(const cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    const int32_t L = g->found.groups.n_layers;
    int32_t n = 0, worst = 0;
    for (int32_t l = 0; l < L; l++) {
        if (g->found.layer[l].token_peak <= (1 + s->token_balance) * (1 + 1e-9)) continue;
        if (!n++ || g->found.layer[l].token_peak > g->found.layer[worst].token_peak) worst = l;
    }
    if (!n) return;
    char text[320];
    snprintf(text, sizeof text,
             "%s: in %" PRId32 " of %" PRId32 " layers tokens were not found to divide within %g of the mean "
             "load, as where one token is more than that; the busiest rank's have %.4f, in layer %" PRId32,
             g->method, n, L, 1 + s->token_balance, g->found.layer[worst].token_peak,
             in->trace.layers[worst]);
    cli_print_wrapped(text, 0, 2);
}

static void print_layers(const cli_grouped *g, const cli_group_inputs *in)
{
    cli_heading(stdout, "\n%s by layer\nlayer   LAR train   bound    test   token peak  expert peak\n",
                g->method);
    for (int32_t l = 0; l < g->found.groups.n_layers; l++) {
        const cot_grouping *layer = &g->found.layer[l];
        printf("%5" PRId32 "  ", in->trace.layers[l]);
        cli_print_cell(10, 4, (double)layer->local / (double)layer->total);
        cli_print_cell(7, 4, layer->bound / (double)layer->total);
        cli_print_cell(7, 4,
                       g->row.has_test ? g->row.test.layer[(size_t)l * COT_FIGURES + COT_FIGURE_LAR] : NAN);
        cli_print_cell(12, 3, layer->token_peak);
        cli_print_cell(12, 3, layer->expert_peak);
        puts(layer->proven ? "  optimal" : "");
    }
}

void cli_grouped_print(const cli_grouped *grouped, size_t n, const cli_group_settings *s,
                       const cli_group_inputs *in)
{
    printf("%" PRId64 " ranks, %" PRId32 " experts in %" PRId32 " layers, %" PRId64 " %s\n\n", s->ranks,
           in->affinities.n_experts, in->affinities.n_layers, in->affinities.n_tokens,
           in->affinities.token_ids ? "token ids" : "positions (no token has an id)");
    cli_heading(stdout,
                "locality       LAR    none    test  95 %% interval    even  oracle\n"
                "method       train   above     LAR    of test LAR     LAR     LAR   rounds seconds\n");
    for (size_t i = 0; i < n; i++) print_locality(&grouped[i]);
    cli_heading(stdout, "\nload       token imbalance   home    expert peak  stays in next\n"
                        "method       train    test   peak   train    test  before   named\n");
    for (size_t i = 0; i < n; i++) print_load(&grouped[i]);
    if (n > 1) putchar('\n');
    for (size_t i = 0; i < n; i++) print_uneven(&grouped[i], s, in);
    for (size_t i = 0; i < n; i++) print_missed(&grouped[i], s, in);
    for (size_t i = 0; i < n; i++) {
        const cli_grouped *g = &grouped[i];
        if (g->found.seated)
            printf("%s: traffic's distance %.6g, before its ranks were seated %.6g\n", g->method,
                   g->found.distance, g->found.distance_before);
        if (s->nodes > 1) printf("%s: a mean activation costs %.4f on the links\n", g->method, g->found.cost);
        cli_prediction_row_print_gain(&g->row);
    }
    if (n == 1) print_layers(&grouped[0], in);
}

json_t *cli_grouped_json(const cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    const cot_group_solution *o = &g->found;
    json_t *row = cli_prediction_row_json(&g->row, in->trace.layers, o->groups.n_layers, 0);
    for (int32_t l = 0; l < o->groups.n_layers; l++) {
        const cot_grouping *layer = &o->layer[l];
        json_t *found =
            json_pack("{s:f, s:f, s:f, s:o, s:f, s:o, s:b, s:b}", "lar_train",
                      (double)layer->local / (double)layer->total, "lar_bound",
                      layer->bound / (double)layer->total, "token_imbalance_train", layer->token_peak,
                      "token_limit", layer->token_limit > 0 ? json_real(layer->token_limit) : json_null(),
                      "expert_peak_train", layer->expert_peak, "expert_peak_bound",
                      layer->expert_peak_bound > 0 ? json_real(layer->expert_peak_bound) : json_null(),
                      "feasible", layer->feasible, "proven", layer->proven);
        json_object_update(json_array_get(json_object_get(row, "layers"), (size_t)l), found);
        json_decref(found);
    }
    json_object_set_new(row, "seconds", json_real(g->seconds));
    json_object_set_new(row, "table_bytes", json_null());
    json_object_set_new(row, "iterations", json_integer(o->iterations));
    json_object_set_new(row, "lar_train", json_real(o->lar));
    json_object_set_new(row, "lar_bound", json_real(o->lar_bound));
    json_object_set_new(row, "token_imbalance_train", json_real(o->token_peak));
    json_object_set_new(row, "expert_peak_train", json_real(o->expert_peak));
    json_object_set_new(row, "stay", json_real(o->stay));
    json_object_set_new(row, "stay_before", json_real(o->stay_before));
    json_object_set_new(row, "distance", o->seated ? json_real(o->distance) : json_null());
    json_object_set_new(row, "distance_before", o->seated ? json_real(o->distance_before) : json_null());
    json_object_set_new(row, "link_cost", s->nodes > 1 ? json_real(o->cost) : json_null());
    return row;
}
