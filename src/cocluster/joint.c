/* Groups of all layers for two aims at once: activations that are local, and tokens that stay where they are. Both a
 * layer's new groups and new names are taken only when the sum of both grows, so it never falls. */
#include "coterie/group_layers.h"

#include "base/error.h"
#include "base/rng.h"
#include "cocluster/measure.h"

#include <float.h>
#include <stdlib.h>

typedef struct joint {
    cot_layer_groups *groups;
    const cot_affinities *affinities;
    const cot_joint_options *options;
    size_t L, E, N, D;
    double *load;   // [L][N]
    float *bonus;   // [N][D]
    int32_t *size;  // [L][D]
    int32_t *names; // [L][D]
    int32_t *start; // [E]
} joint;

static bool open_joint(joint *j)
{
    j->load = calloc(j->L * j->N, sizeof *j->load);
    j->bonus = malloc(j->N * j->D * sizeof *j->bonus);
    j->size = calloc(j->L * j->D, sizeof *j->size);
    j->names = malloc(j->L * j->D * sizeof *j->names);
    j->start = malloc(j->E * sizeof *j->start);
    if (!j->load || !j->bonus || !j->size || !j->names || !j->start) return false;
    for (size_t l = 0; l < j->L; l++) {
        const cot_affinity *a = j->affinities->layer + l;
        for (size_t i = 0; i < j->N; i++)
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) j->load[l * j->N + i] += a->count[k];
        for (size_t e = 0; e < j->E; e++) j->size[l * j->D + (size_t)j->groups->expert_rank[l * j->E + e]]++;
    }
    return true;
}

static void close_joint(joint *j)
{
    free(j->load);
    free(j->bonus);
    free(j->size);
    free(j->names);
    free(j->start);
}

/* Names with which most stays; sizes go with names, so that they hold from round to round. */
static cot_status rename_ranks(joint *j, cot_layer_value *value, cot_error *error)
{
    cot_layer_traffic traffic;
    cot_status status = cot_layer_traffic_count(&traffic, j->groups, j->affinities, error);
    if (status == COT_OK) status = cot_layer_traffic_align(j->names, &traffic, j->size, error);
    *value = (cot_layer_value){0};
    double local = 0, total = 0;
    for (size_t l = 0; status == COT_OK && l < j->L; l++)
        for (size_t a = 0; a < j->D; a++)
            for (size_t b = 0; b < j->D; b++) {
                size_t i = (l * j->D + a) * j->D + b;
                total += traffic.calls[i];
                if (a == b) local += traffic.calls[i];
                if (l + 1 < j->L) value->moves += traffic.moves[i];
            }
    if (status == COT_OK) {
        value->local = (uint64_t)local;
        value->total = (uint64_t)total;
        value->stays = cot_layer_traffic_stay(&traffic, j->names) * value->moves;
        value->joint = local + j->options->stay_weight * value->stays;
        cot_layer_groups_rename(j->groups, j->names);
    }
    cot_layer_traffic_free(&traffic);
    return status;
}

/* What a token gains in layer l on the ranks that it has in the layers beside. */
static void fill_bonus(joint *j, size_t l)
{
    for (size_t i = 0; i < j->N * j->D; i++) j->bonus[i] = 0;
    for (int side = 0; side < 2; side++) {
        if (side ? l + 1 == j->L : l == 0) continue;
        size_t beside = side ? l + 1 : l - 1;
        for (size_t i = 0; i < j->N; i++) {
            size_t d = (size_t)j->groups->token_rank[beside * j->N + i];
            double load = (j->load[l * j->N + i] + j->load[beside * j->N + i]) / 2;
            j->bonus[i * j->D + d] += (float)(j->options->stay_weight * load);
        }
    }
}

/* What a layer's present groups are worth, and their peaks. */
static cot_grouping measure(const joint *j, size_t l)
{
    const cot_affinity *a = j->affinities->layer + l;
    cot_grouping now = {.expert_rank = j->groups->expert_rank + l * j->E,
                        .token_rank = j->groups->token_rank + l * j->N};
    double calls[COT_TRACE_MAX_RANKS * COT_TRACE_MAX_RANKS] = {0};
    cot_group_calls(calls, a, now.expert_rank, now.token_rank, (int32_t)j->D);
    const cot_group_value value = cot_group_value_of(calls, (int32_t)j->D);
    for (size_t i = 0; i < j->N; i++) now.bonus += j->bonus[i * j->D + (size_t)now.token_rank[i]];
    now.local = value.local;
    now.total = value.total;
    now.token_peak = value.token_peak;
    now.expert_peak = value.expert_peak;
    return now;
}

/* Looks for better groups of one layer, its neighbours being what they are; takes them if they are worth more and
 * break no limit further than what is there. */
static cot_status solve(joint *j, size_t l, uint64_t stream, bool *better, cot_error *error)
{
    cot_group_options options = j->options->group;
    cot_grouper *grouper;
    fill_bonus(j, l);
    cot_grouping now = measure(j, l), found;
    for (size_t e = 0; e < j->E; e++) j->start[e] = now.expert_rank[e];
    options.bonus = j->bonus;
    options.start = j->start;
    options.seed = cot_random_bits(options.seed, stream, l);
    cot_status status = cot_grouper_open(&grouper, j->affinities->layer + l, &options, error);
    if (status != COT_OK) return status;
    status = cot_grouper_iterate(grouper, j->options->iterations, error);
    if (status == COT_OK) {
        cot_grouper_best(&found, grouper);
        double had = (double)now.local + now.bonus, has = (double)found.local + found.bonus;
        bool sound = found.feasible || (found.token_peak <= now.token_peak * (1 + 1e-9) &&
                                        found.expert_peak <= now.expert_peak * (1 + 1e-9));
        if (sound && has > had * (1 + 1e-9)) {
            cot_layer_groups_set(j->groups, (int32_t)l, found.expert_rank, found.token_rank);
            *better = true;
        }
    }
    cot_grouper_close(grouper);
    return status;
}

static cot_status check(const cot_layer_groups *groups, const cot_affinities *affinities,
                        const cot_joint_options *options, cot_error *error)
{
    if (options->size != sizeof *options || options->group.bonus || options->group.start ||
        !(options->stay_weight >= 0 && options->stay_weight <= DBL_MAX) || options->rounds < 0 ||
        options->iterations < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "joint groups need a weight and rounds of 0 or more, iterations, no bonus or start, "
                        "options of %zu bytes",
                        sizeof *options);
    if (options->group.ranks != groups->n_ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "groups of %d ranks, options of %d", groups->n_ranks,
                        options->group.ranks);
    if (affinities->n_layers == groups->n_layers && affinities->n_experts == groups->n_experts &&
        affinities->n_tokens == groups->n_tokens)
        return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "the groups were not made for these affinities");
}

cot_status cot_layer_groups_improve(cot_layer_groups *groups, cot_layer_value *value,
                                    const cot_affinities *affinities, const cot_joint_options *options,
                                    cot_error *error)
{
    cot_status status = check(groups, affinities, options, error);
    if (status != COT_OK) return status;
    joint j = {.groups = groups,
               .affinities = affinities,
               .options = options,
               .L = (size_t)groups->n_layers,
               .E = (size_t)groups->n_experts,
               .N = (size_t)groups->n_tokens,
               .D = (size_t)groups->n_ranks};
    cot_layer_value worth = {0};
    status = open_joint(&j)
                 ? rename_ranks(&j, &worth, error)
                 : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups of %zu layers", j.L);
    for (int32_t round = 0; status == COT_OK && round < options->rounds; round++) {
        bool better = false;
        for (size_t l = 0; status == COT_OK && l < j.L; l++)
            status = solve(&j, l, (uint64_t)round, &better, error);
        if (status == COT_OK && better) status = rename_ranks(&j, &worth, error);
        if (!better) break;
    }
    close_joint(&j);
    if (status == COT_OK && value) *value = worth;
    return status;
}
