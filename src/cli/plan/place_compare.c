/* What `coterie place` says beside its map: what runs now, or contiguous experts, and what becomes of it. */
#include "cli/plan/cmd_place.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_place_close_side(cli_place_side *side)
{
    cot_place_value_free(&side->value);
    free(side->traffic);
    *side = (cli_place_side){0};
}

cot_status cli_place_open_side(cli_place_side *side, const char *name, const cot_expert_map *map,
                               const cli_place_inputs *in, bool keep_traffic, cot_error *error)
{
    const size_t S = (size_t)in->costs.n_ranks;
    *side = (cli_place_side){.name = name, .between_nodes = -1};
    cot_status status = cot_place_value_of(&side->value, map, &in->costs, in->options.dispatch, error);
    if (status != COT_OK) return status;
    cot_place_balancedness(&side->balancedness, &side->value);
    const cot_place_value *v = &side->value;
    for (int32_t l = 0; l < v->n_layers; l++) {
        side->worst_peak = fmax(side->worst_peak, v->peak_load[l]);
        side->mean_peak += v->peak_load[l] / v->n_layers;
    }
    if (!in->has_topology) return COT_OK;
    double *traffic = malloc(S * S * sizeof *traffic);
    status = traffic ? cot_place_traffic(traffic, map, &in->load, &in->costs, &in->costs_options, error)
                     : COT_OUT_OF_MEMORY;
    if (status == COT_OK && v->activations > 0) // half of what goes there and back
        side->between_nodes = cot_place_between_nodes(traffic, &in->topology) / 2 / v->activations;
    if (keep_traffic && status == COT_OK)
        side->traffic = traffic;
    else
        free(traffic);
    return status;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

cot_status cli_place_contiguous(cot_expert_map *map, const cli_place_inputs *in, const cli_placed *placed,
                                cot_error *error)
{
    const int32_t slots = placed->map.n_ranks * placed->map.slots_per_rank;
    const bool filled = in->options.slots || placed->has_replicas;
    return cot_place_contiguous(map, &in->costs, filled ? slots : 0, error);
}

int cli_place_compare(cli_place_side sides[2], const cli_place_settings *s, const cli_place_inputs *in,
                      const cli_placed *placed)
{
    cot_error error = {COT_OUT_OF_MEMORY, "out of memory for a comparison"};
    cot_expert_map plain = {0};
    // What runs may lack layers: then it has no figures.
    cot_status status = COT_NOT_FOUND;
    if (s->current)
        status = cli_place_open_side(&sides[0], base_name(s->current), &placed->current, in, s->report, NULL);
    if (status != COT_OK) {
        cli_place_close_side(&sides[0]);
        status = cli_place_contiguous(&plain, in, placed, &error);
        if (status == COT_OK)
            status = cli_place_open_side(&sides[0], "contiguous", &plain, in, s->report, &error);
    }
    if (status == COT_OK) status = cli_place_open_side(&sides[1], "new", &placed->map, in, s->report, &error);
    cot_expert_map_free(&plain);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

const char *cli_place_senders(const cli_place_settings *s, const cli_place_inputs *in)
{
    if (!in->has_topology) return NULL;
    if (in->costs_options.attention == COT_ATTENTION_PAPER)
        return "the first rank of server l all of layer l (--attention paper)";
    if (in->costs_options.attention == COT_ATTENTION_WEIGHTS) return s->attention;
    return in->load.sources_known ? "every rank what the load says that it sent"
                                  : "every rank evenly: the load does not say which rank sent a token";
}

/* What a token sends to other nodes, over all layers; below 0 where it is not known. */
static double a_token(const cli_place_side *side, const cli_place_inputs *in)
{
    return side->between_nodes < 0 || in->load.top_k < 1
               ? -1
               : side->between_nodes * in->load.top_k * side->value.n_layers;
}

double cli_place_balancedness_of(const cot_balancedness *b, const cli_place_settings *s)
{
    return !strcmp(s->to, "vllm") ? b->vllm : !strcmp(s->to, "tensorrt-llm") ? b->tensorrt_llm : b->sglang;
}

const char *cli_place_balancedness_name(const cli_place_settings *s)
{
    return !strcmp(s->to, "vllm")           ? "balancedness (vllm)"
           : !strcmp(s->to, "tensorrt-llm") ? "imbalance ratio (tensorrt-llm)"
                                            : "balancedness (sglang)";
}

const char *cli_place_unit(const cli_place_inputs *in)
{
    return !in->has_topology ? "cost" : in->costs_options.metric.cost ? "microseconds" : "hops";
}

double cli_place_per_activation(const cot_place_value *v)
{
    return v->activations > 0 ? v->objective / v->activations : 0;
}

enum { NAME = 39, CELL = 16 };

static void row(const char *name, const char *format, double before, double after)
{
    const double x[2] = {before, after};
    printf("%-*s", NAME, name);
    for (int i = 0; i < 2; i++)
        if (x[i] < 0)
            printf("%*s", CELL, "?");
        else
            printf(format, CELL, x[i]);
    putchar('\n');
}

void cli_place_print_sides(const cli_place_side sides[2], const cli_place_settings *s,
                           const cli_place_inputs *in)
{
    const cli_place_side *a = &sides[0], *b = &sides[1];
    printf("\n%-*s%*.*s%*s\n", NAME, "", CELL, CELL - 2, a->name, CELL, b->name);
    row("peak over mean rank, worst layer", "%*.4f", a->worst_peak, b->worst_peak);
    row("peak over mean rank, mean layer", "%*.4f", a->mean_peak, b->mean_peak);
    row(cli_place_balancedness_name(s), "%*.4f", cli_place_balancedness_of(&a->balancedness, s),
        cli_place_balancedness_of(&b->balancedness, s));
    if (in->has_topology || in->matrix) {
        char name[NAME];
        snprintf(name, sizeof name, "%s an activation", cli_place_unit(in));
        row(name, "%*.4f", cli_place_per_activation(&a->value), cli_place_per_activation(&b->value));
    }
    if (a->between_nodes < 0) return;
    row("activations that leave their node, %", "%*.2f", 100 * a->between_nodes, 100 * b->between_nodes);
    row("  a token, in all layers", "%*.2f", a_token(a, in), a_token(b, in));
    const double bytes = 2 * in->bytes;
    if (bytes > 0)
        row("  their bytes a token, there and back", "%*.0f", a_token(a, in) * bytes, a_token(b, in) * bytes);
    if (in->load.top_k < 1) puts("?: the load does not say K; --top-k K gives figures of a token");
}

void cli_place_warn(const cli_place_side sides[2], const cli_place_inputs *in)
{
    const cli_place_side *a = &sides[0], *b = &sides[1];
    const double tiny = 1e-9;
    const bool worse = b->worst_peak > a->worst_peak * (1 + tiny) || b->mean_peak > a->mean_peak * (1 + tiny),
               lower = b->worst_peak < a->worst_peak * (1 - tiny) || b->mean_peak < a->mean_peak * (1 - tiny),
               nearer = in->has_topology && b->value.objective < a->value.objective * (1 - tiny);
    if (!lower && !nearer)
        cli_complain("warning: the new map is no better than '%s': neither lower peaks nor cheaper ways",
                     a->name);
    else if (worse)
        cli_complain("warning: the new map loads ranks less evenly than '%s' does; --method balance "
                     "gives the least peaks",
                     a->name);
}

static json_t *side_json(const cli_place_side *side, const cli_place_inputs *in)
{
    const cot_balancedness *b = &side->balancedness;
    const double token = a_token(side, in);
    return json_pack("{s:s, s:f, s:f, s:{s:f, s:f, s:f, s:f}, s:o, s:o, s:o}", "name", side->name,
                     "worst_peak", side->worst_peak, "mean_peak", side->mean_peak, "balancedness", "sglang",
                     b->sglang, "vllm", b->vllm, "vllm_layers", b->vllm_layers, "tensorrt_llm_imbalance",
                     b->tensorrt_llm, "between_nodes",
                     side->between_nodes < 0 ? json_null() : json_real(side->between_nodes),
                     "between_nodes_per_token", token < 0 ? json_null() : json_real(token), "bytes_per_token",
                     token < 0 || in->bytes <= 0 ? json_null() : json_real(token * 2 * in->bytes));
}

void cli_place_add_sides(json_t *to, const cli_place_side sides[2], const cli_place_settings *s,
                         const cli_place_inputs *in)
{
    const char *senders = cli_place_senders(s, in);
    json_object_set_new(to, "senders", senders ? json_string(senders) : json_null());
    json_object_set_new(to, "before", side_json(&sides[0], in));
    json_object_set_new(to, "after", side_json(&sides[1], in));
}
