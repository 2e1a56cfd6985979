/* Groups of all layers: each layer's, then all together, then the names of their ranks. */
#include "coterie/group_solve.h"
#include "coterie/group_nodes.h"

#include "base/error.h"
#include "base/rng.h"
#include "cocluster/solver.h"

#include <math.h>
#include <stdlib.h>

enum { NODE_ITERATIONS = 8, JOINT_ROUNDS = 3, SEAT_STARTS = 4 };

static bool proceed(const cot_group_solve_options *o, int64_t done, int64_t all)
{
    return !o->proceed || o->proceed(o->context, done, all) || !done;
}

/* Copies a layer's groups, and what they are worth. */
static void take_layer(cot_group_solution *s, int32_t l, const cot_grouping *found)
{
    const cot_layer_groups *g = &s->groups;
    cot_layer_groups_set(&s->groups, l, found->expert_rank, found->token_rank);
    s->layer[l] = *found;
    s->layer[l].expert_rank = g->expert_rank + (size_t)l * (size_t)g->n_experts;
    s->layer[l].token_rank = g->token_rank + (size_t)l * (size_t)g->n_tokens;
}

/* A layer's tokens as they were counted to ranks, for groups that were found for shrunk rows. */
static cot_status take_regrouped(cot_group_solution *s, int32_t l, const cot_grouping *found,
                                 const cot_affinities *affinities, const cot_group_solve_options *o,
                                 cot_error *error)
{
    cot_grouper *grouper;
    cot_group_options group = o->group;
    group.method = NULL; // the problem alone is needed
    const cot_status status = cot_grouper_open(&grouper, &affinities->layer[l], &group, error);
    if (status == COT_OK) {
        cot_grouping counted;
        cot_cocluster_offer(cot_grouper_problem(grouper), found->expert_rank, NULL);
        cot_grouper_best(&counted, grouper);
        counted.iterations = found->iterations;
        take_layer(s, l, &counted);
    }
    cot_grouper_close(grouper);
    return status;
}

/* The layers that are solved: shrunk ones, of which the caller frees each, or as they are. */
static cot_status shrink_layers(cot_affinity *shrunk, const cot_affinities *affinities,
                                const cot_group_solve_options *o, cot_error *error)
{
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && o->shrink > 0 && l < affinities->n_layers; l++)
        status = cot_affinity_shrink(&shrunk[l], &affinities->layer[l], o->shrink, error);
    return status;
}

/* Rounds of one iteration for all layers, so that the number of rounds alone repeats the result. */
static cot_status solve_flat(cot_group_solution *s, const cot_affinities *affinities,
                             const cot_group_solve_options *o, cot_error *error)
{
    const int32_t L = affinities->n_layers;
    cot_grouper **groupers = calloc((size_t)L, sizeof *groupers);
    cot_affinity *shrunk = calloc((size_t)L, sizeof *shrunk);
    cot_status status = groupers && shrunk ? shrink_layers(shrunk, affinities, o, error)
                                           : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    for (int32_t l = 0; status == COT_OK && l < L; l++)
        status = cot_grouper_open(&groupers[l], o->shrink > 0 ? &shrunk[l] : &affinities->layer[l], &o->group,
                                  error);
    for (bool done = false; status == COT_OK && !done && (!o->iterations || s->iterations < o->iterations) &&
                            proceed(o, s->iterations, o->iterations);
         s->iterations++) {
        status = cot_groupers_iterate(groupers, L, 1, o->threads, error);
        done = true;
        for (int32_t l = 0; l < L; l++) done &= cot_grouper_is_done(groupers[l]);
    }
    for (int32_t l = 0; groupers && shrunk && l < L; l++) {
        cot_grouping best;
        if (status == COT_OK) {
            cot_grouper_best(&best, groupers[l]);
            if (o->shrink > 0)
                status = take_regrouped(s, l, &best, affinities, o, error);
            else
                take_layer(s, l, &best);
        }
        cot_grouper_close(groupers[l]);
        cot_affinity_free(&shrunk[l]);
    }
    free(groupers);
    free(shrunk);
    return status;
}

static cot_nodes_options by_node(const cot_group_solve_options *o)
{
    return (cot_nodes_options){.size = sizeof(cot_nodes_options),
                               .group = o->group,
                               .nodes = o->nodes,
                               .cost_in = o->cost_in,
                               .cost_out = o->cost_out,
                               .iterations = o->iterations ? o->iterations : NODE_ITERATIONS};
}

/* What a mean activation of a layer costs with the groups so far. */
static cot_status cost_of(double *cost, const cot_group_solution *s, int32_t l,
                          const cot_affinities *affinities, const cot_nodes_options *options,
                          cot_error *error)
{
    cot_nodes_value value;
    const cot_layer_groups *g = &s->groups;
    const cot_status status =
        cot_nodes_value_of(&value, &affinities->layer[l], g->expert_rank + (size_t)l * (size_t)g->n_experts,
                           g->token_rank + (size_t)l * (size_t)g->n_tokens, options, error);
    *cost = status == COT_OK ? value.cost : 0;
    return status;
}

/* One layer; of an earlier round's groups and these the solution keeps those that meet the limits, and the cheaper. */
static cot_status solve_layer_of_nodes(cot_group_solution *s, int32_t l, const cot_affinities *affinities,
                                       const cot_nodes_options *options, cot_error *error)
{
    cot_nodes_grouping layer;
    double before = INFINITY;
    cot_status status = cot_group_hierarchically(&layer, &affinities->layer[l], options, error);
    if (status == COT_OK && s->iterations) status = cost_of(&before, s, l, affinities, options, error);
    const cot_grouping found = {.expert_rank = layer.expert_rank,
                                .token_rank = layer.token_rank,
                                .local = layer.value.local,
                                .total = layer.value.total,
                                .bound = layer.bound,
                                .token_peak = layer.value.token_peak,
                                .expert_peak = layer.value.expert_peak,
                                .feasible = layer.feasible,
                                .proven = layer.proven};
    const bool better = layer.feasible == s->layer[l].feasible ? layer.value.cost < before : layer.feasible;
    if (status == COT_OK && (!s->iterations || better)) take_layer(s, l, &found);
    cot_nodes_grouping_free(&layer);
    return status;
}

/* One round of as many iterations as are asked for; where none are, rounds of few from other seeds. */
static cot_status solve_nodes(cot_group_solution *s, const cot_affinities *affinities,
                              const cot_group_solve_options *o, cot_error *error)
{
    cot_nodes_options options = by_node(o);
    cot_status status = COT_OK;
    for (int64_t round = 0; status == COT_OK && (!round || (!o->iterations && o->proceed)); round++) {
        if (!o->iterations && !proceed(o, round, 0)) break;
        if (round) options.group.seed = cot_random_bits(o->group.seed, 0x6e6f6465, (uint64_t)round);
        for (int32_t l = 0; status == COT_OK && l < affinities->n_layers; l++) {
            if (o->iterations) proceed(o, l, affinities->n_layers);
            status = solve_layer_of_nodes(s, l, affinities, &options, error);
        }
        s->iterations += options.iterations;
    }
    return status;
}

/* Joint groups of a layer are measured anew, beside the bound of the layer alone. */
static cot_status measure_layer(cot_group_solution *s, int32_t l, const cot_affinities *affinities,
                                const cot_group_solve_options *o, cot_error *error)
{
    cot_group_options group = o->group;
    cot_grouper *grouper;
    group.method = NULL; // the problem alone is needed
    const cot_status status = cot_grouper_open(&grouper, &affinities->layer[l], &group, error);
    if (status == COT_OK) cot_cocluster_measure(&s->layer[l], cot_grouper_problem(grouper));
    cot_grouper_close(grouper);
    return status;
}

static cot_status solve_jointly(cot_group_solution *s, const cot_affinities *affinities,
                                const cot_group_solve_options *o, cot_error *error)
{
    const cot_joint_options options = {.size = sizeof options,
                                       .group = o->group,
                                       .stay_weight = o->stay_weight,
                                       .rounds = JOINT_ROUNDS,
                                       .iterations = 1};
    cot_status status = cot_layer_groups_improve(&s->groups, NULL, affinities, &options, error);
    for (int32_t l = 0; status == COT_OK && l < s->groups.n_layers; l++)
        status = measure_layer(s, l, affinities, o, error);
    return status;
}

/* Between ranks of one node the one cost, of two the other. */
static double *node_distances(const cot_group_solve_options *o)
{
    const size_t D = (size_t)o->group.ranks, each = D / (size_t)o->nodes;
    double *distance = calloc(D * D, sizeof *distance);
    for (size_t a = 0; distance && a < D; a++)
        for (size_t b = 0; b < D; b++)
            if (a != b) distance[a * D + b] = a / each == b / each ? o->cost_in : o->cost_out;
    return distance;
}

/* Ranks of neighbouring layers are named so that tokens stay, or seated so that traffic goes short ways. */
static cot_status name_ranks(cot_group_solution *s, const cot_affinities *affinities,
                             const cot_group_solve_options *o, cot_error *error)
{
    const size_t L = (size_t)s->groups.n_layers, D = (size_t)s->groups.n_ranks;
    cot_layer_traffic traffic;
    cot_status status = cot_layer_traffic_count(&traffic, &s->groups, affinities, error);
    if (status != COT_OK) return status;
    s->seated = o->distance || o->nodes > 1;
    int32_t *names = malloc(L * D * sizeof *names);
    double *made = s->seated && !o->distance ? node_distances(o) : NULL;
    const cot_seat_options seats = {.size = sizeof seats,
                                    .distance = made ? made : o->distance,
                                    .move_weight = o->move_weight,
                                    .starts = SEAT_STARTS,
                                    .seed = o->group.seed};
    if (!names || (s->seated && !seats.distance))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the names of ranks");
    if (status == COT_OK) {
        s->stay_before = cot_layer_traffic_stay(&traffic, NULL);
        if (s->seated) s->distance_before = cot_layer_traffic_distance(&traffic, &seats, NULL);
        status = s->seated ? cot_layer_traffic_seat(names, &s->distance, &traffic, &seats, error)
                           : cot_layer_traffic_align(names, &traffic, NULL, error);
    }
    if (status == COT_OK) {
        s->stay = cot_layer_traffic_stay(&traffic, names);
        cot_layer_groups_rename(&s->groups, names);
    }
    free(names);
    free(made);
    cot_layer_traffic_free(&traffic);
    return status;
}

static cot_status sum_costs(cot_group_solution *s, const cot_affinities *affinities,
                            const cot_group_solve_options *o, cot_error *error)
{
    const cot_nodes_options options = by_node(o);
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < affinities->n_layers; l++) {
        double cost;
        status = cost_of(&cost, s, l, affinities, &options, error);
        s->cost += cost / affinities->n_layers;
    }
    return status;
}

static void sum_up(cot_group_solution *s)
{
    const int32_t L = s->groups.n_layers;
    double total = 0;
    for (int32_t l = 0; l < L; l++) {
        const cot_grouping *layer = &s->layer[l];
        total += (double)layer->total;
        s->lar += (double)layer->local;
        s->lar_bound += layer->bound;
        s->token_peak += layer->token_peak / L;
        s->expert_peak += layer->expert_peak / L;
    }
    s->lar /= total;
    s->lar_bound /= total;
}

cot_status cot_group_solve(cot_group_solution *solution, const cot_affinities *affinities,
                           const cot_group_solve_options *options, cot_error *error)
{
    const cot_group_solve_options *o = options;
    *solution = (cot_group_solution){0};
    if (o->size != sizeof *o || o->iterations < 0 || (!o->iterations && !o->proceed && o->nodes <= 1) ||
        o->threads < 1 || o->nodes < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "groups need iterations or something to end them, threads, options of %zu bytes",
                        sizeof *o);
    if (!(o->shrink >= 0 && o->shrink <= 1e12) || (o->shrink > 0 && (o->nodes > 1 || o->joint)))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "rows are shrunk by a prior of 0 or more, and neither over nodes nor jointly");
    cot_status status = cot_layer_groups_new(&solution->groups, affinities, o->group.ranks, error);
    if (status == COT_OK &&
        !(solution->layer = calloc((size_t)affinities->n_layers, sizeof *solution->layer)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups");
    if (status == COT_OK)
        status = o->nodes > 1 ? solve_nodes(solution, affinities, o, error)
                              : solve_flat(solution, affinities, o, error);
    if (status == COT_OK && o->joint) status = solve_jointly(solution, affinities, o, error);
    if (status == COT_OK) status = name_ranks(solution, affinities, o, error);
    if (status == COT_OK && o->nodes > 1) status = sum_costs(solution, affinities, o, error);
    if (status == COT_OK)
        sum_up(solution);
    else
        cot_group_solution_free(solution);
    return status;
}

void cot_group_solution_free(cot_group_solution *solution)
{
    cot_layer_groups_free(&solution->groups);
    free(solution->layer);
    *solution = (cot_group_solution){0};
}
