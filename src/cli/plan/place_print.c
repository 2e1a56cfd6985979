#include "cli/plan/cmd_place.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double largest(const double *x, int32_t n)
{
    double most = 0;
    for (int32_t i = 0; i < n; i++) most = fmax(most, x[i]);
    return most;
}

static double mean(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : 0;
}

static json_t *numbers(const double *x, int32_t n)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(array, json_real(x[i]));
    return array;
}

static bool is_above(const cot_place_value *v, int32_t l, double limit)
{
    return v->peak_load[l] > limit * (1 + 1e-12);
}

/* The limit, whether all layers are within it, and the numbers of those that are not; null where none was given. */
static json_t *limit_json(const cli_place_inputs *in, const cot_place_value *v)
{
    const double limit = in->options.max_load;
    if (limit <= 0) return json_null();
    json_t *above = json_array();
    for (int32_t l = 0; l < v->n_layers; l++)
        if (is_above(v, l, limit)) json_array_append_new(above, json_integer(in->costs.layers[l]));
    return json_pack("{s:f, s:b, s:o}", "limit", limit, "met", json_array_size(above) == 0, "layers_above",
                     above);
}

static int print_json(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *p,
                      const cli_place_side sides[2])
{
    const cot_place_value *v = &p->value;
    double per_activation = cli_place_per_activation(v);
    json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:i}", "method", in->options.method, "layers",
                          (int)in->costs.n_layers, "experts", (int)in->costs.n_experts, "ranks",
                          (int)in->costs.n_ranks, "slots_per_rank", (int)p->map.slots_per_rank);
    json_object_set_new(o, "objective", json_real(v->objective));
    json_object_set_new(o, "dual", json_real(v->dual));
    json_object_set_new(o, "gap", json_real(fabs(v->objective - v->dual)));
    if (v->own_dual > 0 || v->own_objective > 0)
        json_object_set_new(o, "certificate",
                            json_pack("{s:f, s:f, s:f}", "objective", v->own_objective, "dual", v->own_dual,
                                      "gap", fabs(v->own_objective - v->own_dual)));
    json_object_set_new(o, "objective_per_activation", json_real(per_activation));
    json_object_set_new(o, "objective_per_token",
                        in->load.top_k > 0 ? json_real(per_activation * in->load.top_k * in->costs.n_layers)
                                           : json_null());
    json_object_set_new(o, "peak_load", numbers(v->peak_load, v->n_layers));
    json_object_set_new(o, "peak_bound", numbers(v->peak_bound, v->n_layers));
    json_object_set_new(o, "max_load", limit_json(in, v));
    json_object_set_new(o, "indifferent", json_boolean(in->costs.indifferent));
    json_object_set_new(o, "moves", json_integer(p->moves < 0 ? 0 : p->moves));
    if (p->moves >= 0) {
        json_t *list = json_array();
        for (int64_t i = 0; i < p->n_transfers; i++) {
            const cot_transfer *t = &p->transfers[i];
            json_array_append_new(list, json_pack("[i, i, i, i, i]", (int)t->round, (int)t->layer,
                                                  (int)t->expert, (int)t->from, (int)t->to));
        }
        json_object_set_new(o, "rounds", json_integer(p->rounds));
        json_object_set_new(o, "transfers", list); // [round, layer, expert, from, to]
        if (s->expert_bytes > 0)
            json_object_set_new(o, "move_bytes", json_real((double)p->moves * s->expert_bytes));
        if (s->link > 0) json_object_set_new(o, "move_seconds", json_real(cli_place_move_seconds(s, p)));
    }
    cli_place_add_sides(o, sides, s, in);
    json_object_set_new(o, "milliseconds", json_real(p->milliseconds));
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(o);
    if (!text) return cli_complain("cannot spell the result as JSON");
    puts(text);
    free(text);
    return CLI_EXIT_OK;
}

/* Layers that a soft limit was too low for. */
static void print_limit(const cli_place_inputs *in, const cot_place_value *v)
{
    const double limit = in->options.max_load;
    int32_t above = 0, worst = 0;
    for (int32_t l = 0; l < v->n_layers; l++) {
        above += is_above(v, l, limit);
        if (v->peak_load[l] > v->peak_load[worst]) worst = l;
    }
    if (limit <= 0 || !above) return;
    char text[256];
    snprintf(text, sizeof text,
             "%.6g is not met in %" PRId32 " of %" PRId32
             " layers, which have the least peak found: %.6g in layer %" PRId32 " at worst",
             limit, above, v->n_layers, v->peak_load[worst], in->costs.layers[worst]);
    cli_print_wrapped(text, printf("max load    "), 12);
}

static int print_text(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *p,
                      const cli_place_side sides[2])
{
    const cot_place_value *v = &p->value;
    const char *senders = cli_place_senders(s, in);
    printf("placed      %" PRId32 " layers of %" PRId32 " experts on %" PRId32 " ranks\n", in->costs.n_layers,
           in->costs.n_experts, in->costs.n_ranks);
    if (senders) printf("senders     %s\n", senders);
    if (in->costs.indifferent)
        printf("note        all maps cost the same on the way here: only balance tells them apart\n");
    printf("objective   %.10g\n", v->objective);
    printf("  per activation %.6g", cli_place_per_activation(v));
    if (in->load.top_k > 0 && v->activations > 0)
        printf(", per token %.6g (%" PRId32 " experts in each of %" PRId32 " layers)",
               v->objective / v->activations * in->load.top_k * in->costs.n_layers, in->load.top_k,
               in->costs.n_layers);
    putchar('\n');
    if (v->dual > 0)
        printf("lower bound %.10g (gap %.3g, %.3g %%)\n", v->dual, v->objective - v->dual,
               v->objective > 0 ? 100 * (v->objective - v->dual) / v->objective : 0);
    if (v->own_dual > 0)
        printf("own measure %.10g, lower bound %.10g (loads taken as equal)\n", v->own_objective,
               v->own_dual);
    printf(
        "peak load   %.4g times the mean rank's at worst, %.4g in the mean layer (no placement below %.4g)\n",
        largest(v->peak_load, v->n_layers), mean(v->peak_load, v->n_layers),
        mean(v->peak_bound, v->n_layers));
    print_limit(in, v);
    int status = p->moves >= 0 ? cli_place_print_moves(s, in, p) : CLI_EXIT_OK;
    printf("solved in   %.3f ms\n", p->milliseconds);
    if (status == CLI_EXIT_OK) cli_place_print_sides(sides, s, in);
    return status;
}

int cli_place_print(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *p,
                    const cli_place_side sides[2])
{
    int status = (s->json ? print_json : print_text)(s, in, p, sides);
    if (status == CLI_EXIT_OK) cli_place_warn(sides, in);
    return status;
}
