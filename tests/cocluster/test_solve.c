/* Groups of all layers at once against the same steps made by hand, their figures against plain sums, and their placement. */
#include "harness/cmocka.h"
#include "harness/cocluster/samples.h"
#include "harness/seed.h"

#include "coterie/group_nodes.h"
#include "coterie/group_solve.h"
#include "coterie/placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static cot_error error;
static sample s;

/* The peak over the mean of tokens dealt heaviest first to whichever rank is emptiest. */
static double dealt_peak(const double *load, int64_t N, int32_t D, double mean)
{
    bool gone[MAX_N] = {false};
    double held[MAX_D] = {0}, peak = 0;
    for (int64_t n = 0; n < N; n++) {
        int64_t next = -1;
        int32_t to = 0;
        for (int64_t i = 0; i < N; i++)
            if (!gone[i] && (next < 0 || load[i] > load[next])) next = i;
        for (int32_t d = 1; d < D; d++) to = held[d] < held[to] ? d : to;
        gone[next] = true;
        held[to] += load[next];
        peak = fmax(peak, held[to]);
    }
    return peak / mean;
}

/* Figures that anybody can count. */
static void check_figures(const cot_group_solution *found)
{
    const cot_layer_groups *g = &found->groups;
    const int32_t L = g->n_layers, E = g->n_experts, D = g->n_ranks;
    const int64_t N = g->n_tokens;
    double load_of[MAX_N], local = 0, total = 0, bound = 0, token_peaks = 0, expert_peaks = 0, stays = 0,
                           moves = 0;
    for (int32_t l = 0; l < L; l++) {
        const cot_affinity *a = &s.layer[l];
        double here = 0, all = 0, tokens[MAX_D] = {0}, experts[MAX_D] = {0}, token_peak = 0, expert_peak = 0,
               heaviest = 0;
        for (int64_t i = 0; i < N; i++) {
            const int32_t d = g->token_rank[l * N + i];
            double load = 0, next = 0;
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
                const int32_t to = g->expert_rank[l * E + a->expert[k]];
                all += a->count[k];
                here += d == to ? a->count[k] : 0;
                tokens[d] += a->count[k];
                experts[to] += a->count[k];
                load += a->count[k];
            }
            heaviest = fmax(heaviest, load);
            load_of[i] = load;
            if (l + 1 == L) continue;
            for (int64_t k = a[1].offsets[i]; k < a[1].offsets[i + 1]; k++) next += a[1].count[k];
            moves += (load + next) / 2;
            stays += d == g->token_rank[(l + 1) * N + i] ? (load + next) / 2 : 0;
        }
        for (int32_t d = 0; d < D; d++) {
            token_peak = fmax(token_peak, tokens[d] * D / all);
            expert_peak = fmax(expert_peak, experts[d] * D / all);
        }
        const cot_grouping *layer = &found->layer[l];
        assert_true(layer->expert_rank == g->expert_rank + l * E &&
                    layer->token_rank == g->token_rank + l * N);
        assert_true((double)layer->local == here && (double)layer->total == all);
        assert_true(fabs(layer->token_peak - token_peak) < 1e-12);
        assert_true(fabs(layer->expert_peak - expert_peak) < 1e-12);
        const double most = fmax(floor(1.2 * all / D * (1 + 1e-12)), heaviest) * D / all;
        if (layer->token_limit > 0) { // it is not known over nodes
            const double held = fmax(most, dealt_peak(load_of, N, D, all / D));
            const bool more = held > floor(1.2 * all / D * (1 + 1e-12)) * D / all * (1 + 1e-12);
            assert_true(fabs(layer->token_limit - (more ? held : 1.2)) < 1e-9);
            assert_true(token_peak <= layer->token_limit * (1 + 1e-12));
        }
        assert_int_equal(layer->feasible, token_peak <= most * (1 + 1e-12));
        assert_int_equal(layer->proven, layer->feasible && here >= floor(layer->bound + 1e-6));
        local += here;
        total += all;
        bound += layer->bound;
        token_peaks += token_peak / L;
        expert_peaks += expert_peak / L;
    }
    assert_true(fabs(found->lar - local / total) < 1e-12 && fabs(found->lar_bound - bound / total) < 1e-12);
    assert_true(fabs(found->token_peak - token_peaks) < 1e-12);
    assert_true(fabs(found->expert_peak - expert_peaks) < 1e-12);
    assert_true(fabs(found->stay - (moves > 0 ? stays / moves : 1)) < 1e-12);
    assert_true(found->stay >= found->stay_before || found->seated);
}

static cot_group_solve_options defaults(int32_t D)
{
    return (cot_group_solve_options){
        .size = sizeof(cot_group_solve_options),
        .group = {.size = sizeof(cot_group_options), .ranks = D, .token_balance = 0.2, .seed = 5},
        .iterations = 3,
        .threads = 2,
        .cost_in = 1,
        .cost_out = 4,
        .stay_weight = 0.5,
        .move_weight = 0.25};
}

static void solve(cot_group_solution *found, const cot_group_solve_options *o)
{
    if (cot_group_solve(found, &s.affinities, o, &error) != COT_OK) fail_msg("%s", error.message);
    check_figures(found);
}

/* The same by the steps of coterie/group.h and group_layers.h. */
static void by_hand(const cot_group_solution *found, const cot_group_solve_options *o)
{
    const int32_t L = s.affinities.n_layers, E = s.affinities.n_experts, D = o->group.ranks;
    const int64_t N = s.affinities.n_tokens;
    cot_layer_groups groups;
    cot_layer_traffic traffic;
    int32_t names[MAX_L * MAX_D];
    assert_int_equal(cot_layer_groups_new(&groups, &s.affinities, D, &error), COT_OK);
    for (int32_t l = 0; l < L; l++) {
        cot_grouper *grouper;
        cot_grouping best;
        assert_int_equal(cot_grouper_open(&grouper, &s.layer[l], &o->group, &error), COT_OK);
        assert_int_equal(cot_grouper_iterate(grouper, o->iterations, &error), COT_OK);
        cot_grouper_best(&best, grouper);
        cot_layer_groups_set(&groups, l, best.expert_rank, best.token_rank);
        assert_true(found->layer[l].bound == best.bound);
        if (!o->joint) assert_true(found->layer[l].proven == best.proven);
        assert_true(found->layer[l].expert_peak_bound == best.expert_peak_bound);
        if (!o->joint) assert_true(found->layer[l].feasible == best.feasible);
        cot_grouper_close(grouper);
    }
    const cot_joint_options joint = {
        .size = sizeof joint, .group = o->group, .stay_weight = o->stay_weight, .rounds = 3, .iterations = 1};
    if (o->joint)
        assert_int_equal(cot_layer_groups_improve(&groups, NULL, &s.affinities, &joint, &error), COT_OK);
    assert_int_equal(cot_layer_traffic_count(&traffic, &groups, &s.affinities, &error), COT_OK);
    assert_true(found->stay_before == cot_layer_traffic_stay(&traffic, NULL));
    assert_int_equal(cot_layer_traffic_align(names, &traffic, NULL, &error), COT_OK);
    cot_layer_groups_rename(&groups, names);
    assert_memory_equal(found->groups.expert_rank, groups.expert_rank, (size_t)(L * E) * sizeof(int32_t));
    assert_memory_equal(found->groups.token_rank, groups.token_rank, (size_t)(L * N) * sizeof(int32_t));
    cot_layer_traffic_free(&traffic);
    cot_layer_groups_free(&groups);
}

static void test_flat(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    int changed = 0;
    // That joint groups are others shows sooner or later.
    for (int round = 0; round < 6 || (!changed && round < 100); round++) {
        const int32_t D = 2 + below(draw, 4);
        cot_group_solve_options o = defaults(D);
        cot_group_solution found;
        o.joint = round % 2;
        // Where no groups are clear, joint ones differ from each layer's own.
        make_sample(&s, draw, o.joint ? 3 : 1 + below(draw, MAX_L), 14, 60, D, o.joint ? 0 : 2);
        o.stay_weight = 2;
        solve(&found, &o);
        if (o.joint) {
            cot_group_solution alone;
            o.joint = false;
            solve(&alone, &o);
            changed += found.lar < alone.lar || found.lar > alone.lar;
            cot_group_solution_free(&alone);
            o.joint = true;
        }
        assert_in_range(found.iterations, 1, 3); // fewer where all are proven
        assert_true(!found.seated && found.distance == 0 && found.cost == 0);
        by_hand(&found, &o);
        cot_group_solution_free(&found);
    }
    assert_true(changed > 0);
}

typedef struct asked {
    int64_t times, last, all, most;
} asked;

static bool proceed(void *context, int64_t done, int64_t all)
{
    asked *a = context;
    assert_int_equal(done, a->times++);
    a->last = done;
    a->all = all;
    return done < a->most;
}

/* Who is asked ends the rounds, but not before the first; a number of rounds ends them too. */
static void test_rounds(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    const int32_t D = 5;
    make_sample(&s, draw, 2, 24, 120, D, 1);
    cot_group_solve_options o = defaults(D);
    o.proceed = proceed;
    for (int64_t most = 0; most < 4; most++)
        for (int64_t iterations = 0; iterations < 4; iterations++) {
            asked a = {.most = most};
            cot_group_solution found;
            o.context = &a;
            o.iterations = iterations;
            solve(&found, &o);
            const int64_t made = most < 1 ? 1 : most;
            assert_int_equal(found.iterations, iterations && iterations < made ? iterations : made);
            assert_int_equal(a.all, iterations);
            cot_group_solution_free(&found);
        }
    asked a = {.most = 0};
    cot_group_solution found;
    o.nodes = 5;
    o.context = &a;
    o.iterations = 0;
    double cost = INFINITY;
    for (int64_t most = 0; most < 5; most++) { // as many rounds as it allows, none in vain
        a = (asked){.most = most};
        solve(&found, &o);
        assert_true(a.times == (most < 1 ? 2 : most + 1) && a.all == 0);
        assert_int_equal(found.iterations, 8 * (most < 1 ? 1 : most));
        assert_true(found.cost <= cost + 1e-12);
        cost = found.cost;
        cot_group_solution_free(&found);
    }
    o.iterations = 3;
    a = (asked){.most = 0};
    solve(&found, &o); // told of layers
    assert_true(a.times == 2 && a.all == 2 && found.iterations == 3);
    cot_group_solution_free(&found);
    o.iterations = 0;
    o.proceed = NULL;
    solve(&found, &o);
    assert_int_equal(found.iterations, 8);
    cot_group_solution_free(&found);
}

static void test_nodes_and_seats(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    const int32_t L = 3, E = 16, N = 80, D = 8;
    make_sample(&s, draw, L, E, N, D, 3);
    cot_group_solve_options o = defaults(D);
    cot_group_solution found, again;
    double distance[8 * 8], cost = 0;
    o.nodes = 2;
    solve(&found, &o);
    assert_true(found.seated && found.distance <= found.distance_before);
    for (int32_t i = 0; i < D * D; i++) distance[i] = i / D == i % D ? 0 : i / D / 4 == i % D / 4 ? 1 : 4;
    double traffic = 0;
    for (int32_t l = 0; l < L; l++) {
        const cot_affinity *a = &s.layer[l];
        const int32_t *rank = found.groups.expert_rank + l * E, *at = found.groups.token_rank + l * N;
        double sum = 0;
        for (int64_t i = 0; i < N; i++) {
            double load = 0, next = 0;
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
                sum += a->count[k] * distance[at[i] * D + rank[a->expert[k]]];
                load += a->count[k];
            }
            for (int64_t k = l + 1 < L ? a[1].offsets[i] : 0; l + 1 < L && k < a[1].offsets[i + 1]; k++)
                next += a[1].count[k];
            if (l + 1 < L) traffic += 0.25 * (load + next) / 2 * distance[at[i] * D + at[N + i]];
        }
        traffic += 2 * sum; // there and back
        cost += sum / (double)found.layer[l].total / L;
        const cot_nodes_options by_node = {.size = sizeof by_node,
                                           .group = o.group,
                                           .nodes = 2,
                                           .cost_in = 1,
                                           .cost_out = 4,
                                           .iterations = 3};
        cot_nodes_grouping layer;
        assert_int_equal(cot_group_hierarchically(&layer, a, &by_node, &error), COT_OK);
        assert_true(found.layer[l].local == layer.value.local && found.layer[l].feasible == layer.feasible);
        cot_nodes_grouping_free(&layer);
    }
    assert_true(fabs(found.distance - traffic) < 1e-6 * traffic);
    assert_true(cost > 0 && fabs(found.cost - cost) < 1e-12);
    o.distance = distance; // the same, given
    solve(&again, &o);
    assert_true(again.distance == found.distance && again.distance_before == found.distance_before);
    assert_memory_equal(again.groups.expert_rank, found.groups.expert_rank,
                        (size_t)(L * E) * sizeof(int32_t));
    cot_group_solution_free(&again);
    o.nodes = 0;
    solve(&again, &o); // flat groups, seated
    assert_true(again.seated && again.distance <= again.distance_before && again.cost == 0);
    cot_group_solution_free(&again);
    cot_group_solution_free(&found);
}

static void test_refusals(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    make_sample(&s, draw, 2, 8, 30, 4, 2);
    enum { CASES = 11 };
    cot_group_solve_options bad[CASES];
    const char *words[CASES] = {"something to end them",
                                "something to end them",
                                "threads",
                                "options of",
                                "9 ranks for 8 experts",
                                "nope",
                                "4 ranks cannot be on 3 nodes",
                                "iterations",
                                "shrunk",
                                "shrunk",
                                "shrunk"};
    for (int i = 0; i < CASES; i++) bad[i] = defaults(4);
    bad[0].iterations = 0;
    bad[1].iterations = -1;
    bad[2].threads = 0;
    bad[3].size--;
    bad[4].group.ranks = 9;
    bad[5].group.method = "nope";
    bad[6].nodes = 3;
    bad[7].nodes = -1;
    bad[8].shrink = -1;
    bad[9].shrink = 1;
    bad[9].joint = true;
    bad[10].shrink = 1;
    bad[10].nodes = 2;
    for (int i = 0; i < CASES; i++) {
        cot_group_solution found;
        assert_int_equal(cot_group_solve(&found, &s.affinities, &bad[i], &error), COT_INVALID_ARGUMENT);
        if (!strstr(error.message, words[i])) fail_msg("'%s' lacks '%s'", error.message, words[i]);
        assert_null(found.layer);
        assert_null(found.groups.expert_rank);
    }
}

/* Rows against the same sums made expert by expert. */
static void test_shrunk_rows(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    for (int round = 0; round < 20; round++) {
        const int32_t E = 1 + below(draw, 20), N = 2 + below(draw, 60);
        const double prior = 0.5 * (1 + below(draw, 80));
        cot_affinity shrunk;
        make_sample(&s, draw, 1, E, N, 1 + below(draw, 3), 1 + (uint32_t)below(draw, 6));
        const cot_affinity *a = s.layer;
        double column[MAX_E] = {0}, all = 0;
        for (int64_t k = 0; k < a->offsets[N]; k++) {
            column[a->expert[k]] += a->count[k];
            all += a->count[k];
        }
        assert_int_equal(cot_affinity_shrink(&shrunk, a, prior, &error), COT_OK);
        assert_true(shrunk.n_experts == E && shrunk.n_tokens == N && shrunk.offsets[0] == 0);
        for (int64_t i = 0; i < N; i++) {
            double load = 0;
            uint32_t found[MAX_E] = {0};
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) load += a->count[k];
            for (int64_t k = shrunk.offsets[i]; k < shrunk.offsets[i + 1]; k++) {
                assert_true(k == shrunk.offsets[i] || shrunk.expert[k] > shrunk.expert[k - 1]);
                assert_true(shrunk.count[k] > 0);
                found[shrunk.expert[k]] = shrunk.count[k];
            }
            for (int32_t e = 0; e < E; e++) {
                double own = 0;
                for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
                    own += a->expert[k] == e ? a->count[k] : 0;
                const double weight = load > 0 ? load / (load + prior) : 0;
                const double expected = 16 * (weight * own + (1 - weight) * load * column[e] / all);
                assert_true(fabs(found[e] - expected) <= 0.5 + 1e-9);
            }
        }
        cot_affinity_free(&shrunk);
        assert_null(shrunk.offsets);
    }
    const double bad[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        cot_affinity shrunk;
        assert_int_equal(cot_affinity_shrink(&shrunk, s.layer, bad[i], &error), COT_INVALID_ARGUMENT);
        assert_null(shrunk.offsets);
    }
    /* A row as heavy as there are: units get coarser, sums stay within 32 bits. */
    const int64_t offsets[] = {0, 2, 3};
    const uint16_t expert[] = {0, 1, 1};
    const uint32_t count[] = {4000000000u, 4000000000u, 3};
    const cot_affinity heavy = {2, 2, offsets, expert, count};
    cot_affinity shrunk;
    assert_int_equal(cot_affinity_shrink(&shrunk, &heavy, 4, &error), COT_OK);
    assert_true(fabs((double)shrunk.count[0] - 0x1p30) < 2 && fabs((double)shrunk.count[1] - 0x1p30) < 2);
    cot_affinity_free(&shrunk);
}

/* The groups are those of the shrunk rows, what is said of them is of the counts. */
static void test_shrink(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    enum { L = 2, E = 14 };
    int changed = 0;
    for (int round = 0; round < 8 || (!changed && round < 100); round++) {
        const int32_t D = 2 + below(draw, 3);
        cot_group_solve_options o = defaults(D);
        cot_group_solution plain, found;
        make_sample(&s, draw, L, E, 60, D, 0);
        solve(&plain, &o);
        o.shrink = 50;
        solve(&found, &o);
        assert_true(found.lar <= found.lar_bound && found.lar_bound == plain.lar_bound);
        changed += memcmp(found.groups.expert_rank, plain.groups.expert_rank, L * E * sizeof(int32_t)) != 0;
        for (int32_t l = 0; l < L; l++) { // ranks may have got other names
            const int32_t *rank = found.groups.expert_rank + l * E;
            cot_affinity shrunk;
            cot_grouper *grouper;
            cot_grouping best;
            assert_int_equal(cot_affinity_shrink(&shrunk, &s.layer[l], o.shrink, &error), COT_OK);
            assert_int_equal(cot_grouper_open(&grouper, &shrunk, &o.group, &error), COT_OK);
            assert_int_equal(cot_grouper_iterate(grouper, o.iterations, &error), COT_OK);
            cot_grouper_best(&best, grouper);
            for (int32_t e = 0; e < E; e++)
                for (int32_t f = 0; f < E; f++)
                    assert_int_equal(rank[e] == rank[f], best.expert_rank[e] == best.expert_rank[f]);
            cot_grouper_close(grouper);
            cot_affinity_free(&shrunk);
        }
        cot_group_solution_free(&plain);
        cot_group_solution_free(&found);
    }
    assert_true(changed > 0);
}

static void test_map(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    const int32_t L = 3, E = 14, D = 4, layers[3] = {2, 3, 7};
    make_sample(&s, draw, L, E, 40, D, 3);
    cot_group_solution found;
    const cot_group_solve_options o = defaults(D);
    cot_expert_map map;
    solve(&found, &o);
    assert_int_equal(cot_layer_groups_map(&map, &found.groups, layers, &error), COT_OK);
    assert_int_equal(cot_expert_map_check(&map, "groups", &error), COT_OK);
    assert_true(map.n_layers == L && map.n_experts == E && map.n_ranks == D && map.slots_per_rank == 4);
    assert_memory_equal(map.layers, layers, sizeof layers);
    int32_t seen = 0;
    for (int32_t i = 0; i < L * D * 4; i++) {
        const int32_t e = map.expert[i], before = i % 4 ? map.expert[i - 1] : -1;
        if (e < 0) continue;
        seen++;
        assert_true(e > before && (i % 4 == 0 || before >= 0));
        assert_int_equal(found.groups.expert_rank[i / 4 / D * E + e], i / 4 % D);
    }
    assert_int_equal(seen, L * E);
    cot_expert_map_free(&map);
    for (int32_t e = 0; e < E; e++) found.groups.expert_rank[e] = e < 6 ? 2 : 3; // uneven, as nobody groups
    assert_int_equal(cot_layer_groups_map(&map, &found.groups, NULL, &error), COT_OK);
    assert_int_equal(cot_expert_map_check(&map, "groups", &error), COT_OK);
    assert_true(map.slots_per_rank == 8 && map.layers[2] == 2);
    cot_expert_map_free(&map);
    cot_group_solution_free(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flat),
                                       cmocka_unit_test(test_rounds),
                                       cmocka_unit_test(test_nodes_and_seats),
                                       cmocka_unit_test(test_shrunk_rows),
                                       cmocka_unit_test(test_shrink),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_map)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
