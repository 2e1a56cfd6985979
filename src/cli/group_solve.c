/* Solves what `coterie group` is asked for, layer by layer and then all together. */
#include "cmd_group.h"

#include "progress.h"
#include "coterie/group_nodes.h"

#include <stdlib.h>

static cot_group_options layer_options(const char *method, const cot_group_settings *s)
{
    return (cot_group_options){.size = sizeof(cot_group_options),
                               .method = method,
                               .ranks = (int32_t)s->ranks,
                               .token_balance = s->token_balance,
                               .expert_load = s->expert_load,
                               .seed = (uint64_t)s->seed};
}

/* Rounds of one iteration for all layers, so that the number of rounds alone repeats the result; no new one begins
 * that would probably end late. */
static cot_status spend(cot_grouped *g, cot_grouper **groupers, int32_t L, const cot_group_settings *s,
                        double start, cot_error *error)
{
    cot_progress progress = {.what = g->method};
    cot_status status = COT_OK;
    double now = cot_seconds_now(), last = 0;
    bool done = false;
    while (
        status == COT_OK && !done &&
        (s->iterations ? g->iterations < s->iterations : !g->iterations || now + last < start + s->seconds)) {
        status = cot_groupers_iterate(groupers, L, 1, (int32_t)s->threads, error);
        g->iterations++;
        last = cot_seconds_now() - now;
        now += last;
        done = true;
        for (int32_t l = 0; l < L; l++) done &= cot_grouper_is_done(groupers[l]);
        if (s->iterations)
            cot_progress_show(&progress, (uint64_t)g->iterations, (uint64_t)s->iterations);
        else
            cot_progress_show(&progress, (uint64_t)((now - start) * 1000), (uint64_t)(s->seconds * 1000));
    }
    cot_progress_end(&progress);
    return status;
}

static void take_layer(cot_grouped *g, int32_t l, const cot_grouper *grouper)
{
    cot_grouping best;
    cot_grouper_best(&best, grouper);
    cot_layer_groups_set(&g->groups, l, best.expert_rank, best.token_rank);
    g->layer[l] = (cot_group_layer){.local = best.local,
                                    .total = best.total,
                                    .bound = best.bound,
                                    .token_peak = best.token_peak,
                                    .expert_peak = best.expert_peak,
                                    .expert_peak_bound = best.expert_peak_bound,
                                    .feasible = best.feasible,
                                    .proven = best.proven};
}

static cot_status solve_flat(cot_grouped *g, const cot_group_settings *s, const cot_group_inputs *in,
                             cot_error *error)
{
    const int32_t L = in->affinities.n_layers;
    const cot_group_options options = layer_options(g->method, s);
    cot_grouper **groupers = calloc((size_t)L, sizeof *groupers);
    cot_status status = COT_OK;
    if (!groupers) {
        *error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for grouping"};
        return COT_OUT_OF_MEMORY;
    }
    const double start = cot_seconds_now();
    for (int32_t l = 0; status == COT_OK && l < L; l++)
        status = cot_grouper_open(&groupers[l], &in->affinities.layer[l], &options, error);
    if (status == COT_OK) status = spend(g, groupers, L, s, start, error);
    for (int32_t l = 0; l < L; l++) {
        if (status == COT_OK) take_layer(g, l, groupers[l]);
        cot_grouper_close(groupers[l]);
    }
    free(groupers);
    return status;
}

static cot_status solve_nodes(cot_grouped *g, const cot_group_settings *s, const cot_group_inputs *in,
                              cot_error *error)
{
    const int32_t L = in->affinities.n_layers;
    const cot_nodes_options options = {.size = sizeof options,
                                       .group = layer_options(g->method, s),
                                       .nodes = (int32_t)s->nodes,
                                       .cost_in = in->cost_in,
                                       .cost_out = in->cost_out,
                                       .iterations = s->iterations ? s->iterations : 8};
    cot_progress progress = {.what = g->method};
    cot_status status = COT_OK;
    g->iterations = options.iterations;
    for (int32_t l = 0; status == COT_OK && l < L; l++) {
        cot_nodes_grouping layer;
        cot_progress_show(&progress, (uint64_t)l, (uint64_t)L);
        status = cot_group_hierarchically(&layer, &in->affinities.layer[l], &options, error);
        if (status != COT_OK) break;
        cot_layer_groups_set(&g->groups, l, layer.expert_rank, layer.token_rank);
        g->layer[l] = (cot_group_layer){.local = layer.value.local,
                                        .total = layer.value.total,
                                        .bound = layer.bound,
                                        .token_peak = layer.value.token_peak,
                                        .expert_peak = layer.value.expert_peak,
                                        .feasible = layer.feasible};
        g->cost += layer.value.cost / L;
        cot_nodes_grouping_free(&layer);
    }
    cot_progress_end(&progress);
    return status;
}

/* Ranks of neighbouring layers are named so that tokens stay, or, on a topology, seated so that traffic goes short ways. */
static cot_status name_ranks(cot_grouped *g, const cot_group_settings *s, const cot_group_inputs *in,
                             cot_error *error)
{
    cot_layer_traffic traffic;
    cot_status status = cot_layer_traffic_count(&traffic, &g->groups, &in->affinities, error);
    int32_t *names =
        status == COT_OK ? malloc((size_t)traffic.n_layers * (size_t)traffic.n_ranks * sizeof *names) : NULL;
    if (status == COT_OK && !names) {
        *error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for the names of ranks"};
        status = COT_OUT_OF_MEMORY;
    }
    const cot_seat_options seats = {.size = sizeof seats,
                                    .distance = in->distance,
                                    .move_weight = 1.0 / in->trace.top_k,
                                    .starts = 4,
                                    .seed = (uint64_t)s->seed};
    if (status == COT_OK) {
        g->stay_unnamed = cot_layer_traffic_stay(&traffic, NULL);
        if (in->distance) g->distance_unnamed = cot_layer_traffic_distance(&traffic, &seats, NULL);
        status = in->distance ? cot_layer_traffic_seat(names, &g->distance, &traffic, &seats, error)
                              : cot_layer_traffic_align(names, &traffic, NULL, error);
    }
    if (status == COT_OK) {
        g->stay = cot_layer_traffic_stay(&traffic, names);
        cot_layer_groups_rename(&g->groups, names);
    }
    free(names);
    cot_layer_traffic_free(&traffic);
    return status;
}

/* What a layer's groups are worth after they were changed. */
static void measure_layer(cot_group_layer *layer, const cot_layer_groups *groups, const cot_affinity *a,
                          int32_t l)
{
    const int32_t *expert_rank = groups->expert_rank + (size_t)l * (size_t)groups->n_experts;
    const int32_t *token_rank = groups->token_rank + (size_t)l * (size_t)groups->n_tokens;
    uint64_t token_load[COT_TRACE_MAX_RANKS] = {0}, expert_load[COT_TRACE_MAX_RANKS] = {0}, tokens = 0,
             experts = 0;
    layer->local = 0;
    for (int64_t i = 0; i < a->n_tokens; i++)
        for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++) {
            const int32_t on = expert_rank[a->expert[j]];
            layer->local += on == token_rank[i] ? a->count[j] : 0;
            expert_load[on] += a->count[j];
            token_load[token_rank[i]] += a->count[j];
        }
    for (int32_t d = 0; d < groups->n_ranks; d++) {
        if (token_load[d] > tokens) tokens = token_load[d];
        if (expert_load[d] > experts) experts = expert_load[d];
    }
    layer->token_peak = (double)tokens * groups->n_ranks / (double)layer->total;
    layer->expert_peak = (double)experts * groups->n_ranks / (double)layer->total;
}

static cot_status solve_jointly(cot_grouped *g, const cot_group_settings *s, const cot_group_inputs *in,
                                cot_error *error)
{
    const cot_joint_options options = {.size = sizeof options,
                                       .group = layer_options(g->method, s),
                                       .stay_weight = s->stay_weight,
                                       .rounds = 3,
                                       .iterations = 1};
    const cot_status status = cot_layer_groups_improve(&g->groups, NULL, &in->affinities, &options, error);
    for (int32_t l = 0; status == COT_OK && l < g->groups.n_layers; l++)
        measure_layer(&g->layer[l], &g->groups, &in->affinities.layer[l], l);
    return status;
}

int cot_group_solve(cot_grouped *g, const char *method, const cot_group_settings *s,
                    const cot_group_inputs *in)
{
    cot_error error = {0};
    const double start = cot_seconds_now();
    *g = (cot_grouped){.method = method};
    cot_status status = cot_layer_groups_new(&g->groups, &in->affinities, (int32_t)s->ranks, &error);
    if (status == COT_OK && !(g->layer = calloc((size_t)in->affinities.n_layers, sizeof *g->layer)))
        return cot_complain("out of memory for groups");
    if (status == COT_OK)
        status = s->nodes > 1 ? solve_nodes(g, s, in, &error) : solve_flat(g, s, in, &error);
    if (status == COT_OK && s->joint) status = solve_jointly(g, s, in, &error);
    if (status == COT_OK) status = name_ranks(g, s, in, &error);
    g->seconds = cot_seconds_now() - start;
    return status == COT_OK ? COT_EXIT_OK : cot_complain_of(&error);
}

void cot_grouped_free(cot_grouped *g)
{
    cot_layer_groups_free(&g->groups);
    free(g->layer);
    cot_prediction_rows_free(&g->row, 1);
    *g = (cot_grouped){0};
}
