/* Methods through the public interface: what they promise, on random loads and clusters. */
#include "coterie/place.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t at;
static double uniform(void)
{
    return cot_random_uniform(test_seed(), 2, at++);
}
static int32_t below(int32_t n)
{
    return (int32_t)(uniform() * n);
}
static double gauss(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

/* A load of lognormal popularity; whole numbers of 1 or more. */
static cot_load_counts draw(int32_t L, int32_t sources, int32_t E, double skew)
{
    cot_load_counts load;
    cot_error error;
    assert_int_equal(cot_load_counts_new(&load, L, sources, E, &error), COT_OK);
    load.sources_known = sources > 1;
    for (int32_t i = 0; i < L * sources * E; i++) load.tokens[i] = 1 + floor(1000 * exp(skew * gauss()));
    return load;
}

typedef struct cluster {
    cot_topology topology;
    cot_load_counts load;
    cot_costs costs;
} cluster;

static void open_cluster(cluster *c, const char *spec, int32_t L, int32_t E, double skew,
                         cot_attention_kind attention, bool sources, cot_dispatch dispatch)
{
    cot_error error;
    if (cot_topology_build(&c->topology, spec, 0, &error) != COT_OK) fail_msg("%s", error.message);
    c->load = draw(L, sources ? c->topology.n_ranks : 1, E, skew);
    const cot_costs_options options = {.size = sizeof options, .attention = attention, .dispatch = dispatch};
    if (cot_costs_open(&c->costs, &c->load, &c->topology, &options, &error) != COT_OK)
        fail_msg("%s", error.message);
}

static void close_cluster(cluster *c)
{
    cot_costs_free(&c->costs);
    cot_load_counts_free(&c->load);
    cot_topology_free(&c->topology);
}

static cot_place_value place(cluster *c, cot_place_options options, cot_expert_map *kept)
{
    cot_expert_map map;
    cot_place_value value;
    cot_place_proof *proof;
    cot_error error;
    options.size = sizeof options;
    if (cot_place(&map, &proof, &c->costs, &options, &error) != COT_OK)
        fail_msg("%s: %s", options.method, error.message);
    if (cot_place_verify(&map, &c->costs, &options, &error) != COT_OK)
        fail_msg("%s: %s", options.method, error.message);
    assert_int_equal(cot_place_value_of(&value, &map, &c->costs, options.dispatch, &error), COT_OK);
    assert_int_equal(cot_place_prove(&value, proof, &error), COT_OK);
    cot_place_proof_free(proof);
    if (kept)
        *kept = map;
    else
        cot_expert_map_free(&map);
    return value;
}

static int by_load(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What the rank with the hottest expert has at least, over the mean: that one and the coldest beside it. */
static double least_peak(const cot_costs *c, int32_t l)
{
    const int32_t E = c->n_experts, S = c->n_ranks;
    double *load = malloc((size_t)E * sizeof *load), total = 0, peak = 0;
    for (int32_t e = 0; e < E; e++) total += load[e] = c->load[(size_t)l * (size_t)E + (size_t)e];
    qsort(load, (size_t)E, sizeof *load, by_load);
    for (int32_t e = 0; e < E / S - 1; e++) peak += load[e];
    peak = (peak + load[E - 1]) * S / total;
    free(load);
    return peak;
}

static double worst(const cot_place_value *v)
{
    double most = 0;
    for (int32_t l = 0; l < v->n_layers; l++) most = fmax(most, v->peak_load[l]);
    return most;
}

/* No method beats the optimum, and the optimum's bound is the optimum. */
static void test_order(void **state)
{
    (void)state;
    static const char *const specs[] = {
        "fattree:ranks=32,gpus=2,servers=2,leaves=2", "dragonfly:ranks=32,gpus=2,servers=2",
        "dragonfly-sparse:ranks=24,gpus=1,servers=2,routers=2", "complete:ranks=16"};
    for (int i = 0; i < 24; i++) {
        cluster c;
        int kind = i / 4 % 3;
        open_cluster(&c, specs[i % 4], 1 + below(6), 96, 1, kind ? COT_ATTENTION_DP : COT_ATTENTION_PAPER,
                     kind == 2, 0);
        int32_t S = c.costs.n_ranks, *c_layer = malloc((size_t)S * sizeof *c_layer);
        for (int32_t s = 0; s < S; s++) c_layer[s] = 96 / S + 2;
        cot_place_value best = place(&c, (cot_place_options){.method = "ilpload", .c_layer = c_layer}, NULL);
        assert_true(best.objective == best.dual);
        static const char *const others[] = {"rr", "greedy", "ilp"};
        for (int k = 0; k < 3; k++) {
            cot_place_value v = place(&c, (cot_place_options){.method = others[k], .c_layer = c_layer}, NULL);
            if (v.objective < best.objective * (1 - 1e-12)) fail_msg("%s beats the optimum", others[k]);
            if (k == 2) assert_true(v.own_objective == v.own_dual);
            cot_place_value_free(&v);
        }
        cot_place_value_free(&best);
        free(c_layer);
        close_cluster(&c);
    }
}

static void demand_balance(cluster *c, double most)
{
    cot_place_value v = place(c, (cot_place_options){.method = "ilpload"}, NULL);
    for (int32_t l = 0; l < v.n_layers; l++)
        if (v.peak_load[l] >= fmax(most, 1.02 * least_peak(&c->costs, l)))
            fail_msg("a rank has %g times the mean, where none need be above %g", v.peak_load[l], most);
    assert_true(v.objective == v.dual);
    cot_place_value_free(&v);
}

/* Where all placements tie, experts are balanced. */
static void test_indifferent(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "complete:ranks=8", 4, 64, 0.5, COT_ATTENTION_DP, false, 0);
    assert_true(c.costs.indifferent);
    demand_balance(&c, 1.05);
    close_cluster(&c);
    open_cluster(&c, "node:ranks=8,domain=8", 4, 64, 0.5, COT_ATTENTION_DP, true, 0);
    assert_true(c.costs.indifferent && c.costs.pair);
    demand_balance(&c, 1.05);
    close_cluster(&c);
}

/* Sums of the same microseconds in another order are the same. */
static void test_indifferent_costs(void **state)
{
    (void)state;
    cot_error error;
    cluster c;
    open_cluster(&c, "fattree:ranks=24,gpus=4,servers=2,leaves=3", 4, 192, 0.5, COT_ATTENTION_DP, false, 0);
    cot_costs_free(&c.costs);
    const cot_costs_options options = {
        .size = sizeof options, .attention = COT_ATTENTION_DP, .metric = {true, 1 + 1e4 * uniform()}};
    assert_int_equal(cot_costs_open(&c.costs, &c.load, &c.topology, &options, &error), COT_OK);
    for (int32_t s = 1; s < 24; s++) assert_true(c.costs.cost[s] == c.costs.cost[0]);
    demand_balance(&c, 1.1);
    close_cluster(&c);
}

/* GPUs of a server are at the same distance from everyone: a tie, though the servers differ. */
static void test_ties_by_source(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "fattree:ranks=16,gpus=16", 4, 128, 0.5, COT_ATTENTION_DP, true, 0);
    for (int i = 0; i < 4 * 128 * 16; i++) c.costs.pair[i] += 1;
    demand_balance(&c, 1.05);
    close_cluster(&c);
}

/* Numbers that cannot be added up are refused. */
static void test_too_large(void **state)
{
    (void)state;
    static const double loads[] = {1e308, 1e200, 1}, costs[] = {0, 1e200, 1e300};
    for (int i = 0; i < 3; i++) {
        cot_costs c;
        cot_error error;
        cot_load_counts load;
        assert_int_equal(cot_load_counts_new(&load, 1, 1, 2, &error), COT_OK);
        load.tokens[0] = load.tokens[1] = loads[i];
        const double cost[2] = {costs[i], costs[i]};
        const cot_costs_options options = {.size = sizeof options, .cost = cost, .n_ranks = 2};
        assert_int_equal(cot_costs_open(&c, &load, NULL, &options, &error), COT_MALFORMED);
        assert_non_null(strstr(error.message, "too large"));
        cot_load_counts_free(&load);
    }
}

static void test_limit(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        cluster c;
        open_cluster(&c, "fattree:ranks=16,gpus=2,servers=2,leaves=2", 3, 128, 0.4,
                     i % 2 ? COT_ATTENTION_DP : 0, i % 2, 0);
        cot_place_value free_of = place(&c, (cot_place_options){.method = "ilpload"}, NULL);
        double limit = 1.05;
        for (int32_t l = 0; l < 3; l++) limit = fmax(limit, 1.05 * least_peak(&c.costs, l));
        cot_place_value v = place(&c, (cot_place_options){.method = "ilpload", .max_load = limit}, NULL);
        assert_true(worst(&v) <= limit * (1 + 1e-12));
        assert_true(v.dual <= v.objective && v.dual >= free_of.objective * (1 - 1e-9));
        if (v.objective - v.dual > 2e-3 * v.objective)
            fail_msg("case %d: objective %.10g, bound %.10g", i, v.objective, v.dual);
        cot_place_value_free(&free_of);
        cot_place_value_free(&v);
        close_cluster(&c);
    }
}

static void test_too_hot(void **state)
{
    (void)state;
    cluster c;
    cot_expert_map map;
    cot_error error;
    open_cluster(&c, "complete:ranks=8", 1, 16, 0.1, COT_ATTENTION_DP, false, 0);
    for (int e = 0; e < 16; e++) c.costs.load[e] = e == 3 ? 34 : 2; // 34 of 64: the mean rank has 8
    const cot_place_options options = {.size = sizeof options, .method = "ilpload", .max_load = 2};
    assert_int_equal(cot_place(&map, NULL, &c.costs, &options, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, "the smallest feasible found is 4.5")) fail_msg("%s", error.message);
    close_cluster(&c);
}

static void test_replicas(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        cluster c;
        cot_dispatch dispatch = i % 2 ? COT_DISPATCH_NEAREST : COT_DISPATCH_UNIFORM;
        open_cluster(&c, "fattree:ranks=16,gpus=2,servers=2,leaves=2", 2, 64, 0.8,
                     i & 2 ? COT_ATTENTION_DP : 0, i & 4, dispatch);
        cot_place_options o = {.method = "eplb", .slots = 96, .dispatch = dispatch};
        cot_place_value eplb = place(&c, o, NULL);
        o.method = "eplb-swap";
        cot_place_value swap = place(&c, o, NULL);
        o.method = "replicate";
        cot_place_value near = place(&c, o, NULL);
        for (int32_t l = 0; l < 2; l++) {
            if (!(i % 2)) assert_true(swap.peak_load[l] <= eplb.peak_load[l] * (1 + 1e-12));
            if (!(i % 2)) assert_true(near.peak_load[l] <= swap.peak_load[l] * (1 + 1e-9));
            assert_true(swap.peak_load[l] >= swap.peak_bound[l] * (1 - 1e-12));
        }
        if (near.objective > swap.objective * (1 + 1e-9))
            fail_msg("case %d: replicate is dearer than eplb-swap", i);
        cot_place_value_free(&eplb);
        cot_place_value_free(&swap);
        cot_place_value_free(&near);
        close_cluster(&c);
    }
}

static void demand_refusal(cluster *c, cot_place_options options, const char *words)
{
    cot_expert_map map;
    cot_error error;
    options.size = sizeof options;
    assert_int_equal(cot_place(&map, NULL, &c->costs, &options, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
}

static void test_refusals(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "complete:ranks=8", 2, 16, 0.3, COT_ATTENTION_DP, false, 0);
    demand_refusal(&c, (cot_place_options){.method = "best"}, "'best' is no placement method");
    demand_refusal(&c, (cot_place_options){.slots = 8}, "8 slots are too few for 16 experts, 8 short");
    demand_refusal(&c, (cot_place_options){.slots = 20}, "8 ranks do not divide 20 slots");
    demand_refusal(&c, (cot_place_options){.method = "ilpload", .slots = 24}, "places each expert once");
    demand_refusal(&c, (cot_place_options){.method = "rr", .max_load = 2}, "knows no load limit");
    close_cluster(&c);
}

/* Replanning reaches the balance that it is asked for; transfers turn one map into the other, no rank twice a round. */
static void test_replan(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        cluster c;
        cot_expert_map old, fresh, map;
        cot_error error;
        cot_transfer *transfers;
        int64_t moves, counted, n, fresh_moves;
        int32_t rounds;
        open_cluster(&c, "complete:ranks=12", 3, 64, 0.55, COT_ATTENTION_DP, false, 0);
        const cot_place_options options = {.method = "eplb", .slots = 84};
        cot_place_value v = place(&c, options, &old);
        cot_place_value_free(&v);
        for (int k = 0; k < 3 * 64; k++) c.costs.load[k] *= exp(0.1 * gauss());
        v = place(&c, options, &fresh);
        cot_replan_options replan = {.size = sizeof replan, .peak = v.peak_load, .max_moves = -1};
        assert_int_equal(cot_place_replan(&map, &moves, &old, &c.costs, &replan, &error), COT_OK);
        cot_place_value got;
        assert_int_equal(cot_place_value_of(&got, &map, &c.costs, 0, &error), COT_OK);
        for (int32_t l = 0; l < 3; l++) assert_true(got.peak_load[l] <= v.peak_load[l] * (1 + 1e-6));
        assert_int_equal(cot_place_moves(&counted, &old, &map, &error), COT_OK);
        assert_int_equal(counted, moves);
        assert_int_equal(cot_place_relabel(&fresh_moves, &old, &fresh, &error), COT_OK);
        assert_true(moves * 2 < fresh_moves);
        assert_int_equal(cot_place_transfers(&transfers, &n, &rounds, &old, &map, &error), COT_OK);
        assert_int_equal(n, moves);
        for (int64_t a = 0; a < n; a++) {
            const cot_transfer *x = &transfers[a];
            bool holds = false;
            for (int32_t k = 0; k < old.slots_per_rank; k++)
                holds = holds || old.expert[(x->layer * 12 + x->from) * old.slots_per_rank + k] == x->expert;
            assert_true(holds && x->from != x->to && x->round >= 0 && x->round < rounds);
            for (int64_t b = 0; b < a; b++)
                if (transfers[b].round == x->round)
                    assert_true(transfers[b].from != x->from && transfers[b].from != x->to &&
                                transfers[b].to != x->from && transfers[b].to != x->to);
        }
        free(transfers);
        cot_place_value_free(&got);
        cot_expert_map_free(&map);
        replan.max_moves = 3;
        assert_int_equal(cot_place_replan(&map, &moves, &old, &c.costs, &replan, &error), COT_OK);
        assert_true(moves <= 3);
        cot_place_value_free(&v);
        cot_expert_map_free(&map);
        cot_expert_map_free(&old);
        cot_expert_map_free(&fresh);
        close_cluster(&c);
    }
}

/* On small layers exchanges may end above the fresh plan's peak: its layers then stand in. */
static void test_replan_small(void **state)
{
    (void)state;
    int stood_in = 0;
    for (int i = 0; i < 40; i++) {
        cluster c;
        cot_expert_map old, fresh, map;
        cot_error error;
        int64_t moves;
        open_cluster(&c, "complete:ranks=4", 5, 24, 0.9, COT_ATTENTION_DP, false, 0);
        const cot_place_options options = {.method = "eplb-swap", .slots = 32};
        cot_place_value v = place(&c, options, &old), got[2];
        cot_place_value_free(&v);
        for (int k = 0; k < 5 * 24; k++) c.costs.load[k] *= exp(0.3 * gauss());
        v = place(&c, options, &fresh);
        for (int with = 0; with < 2; with++) {
            const cot_replan_options replan = {
                .size = sizeof replan, .peak = v.peak_load, .max_moves = -1, .fresh = with ? &fresh : NULL};
            assert_int_equal(cot_place_replan(&map, &moves, &old, &c.costs, &replan, &error), COT_OK);
            assert_int_equal(cot_place_value_of(&got[with], &map, &c.costs, 0, &error), COT_OK);
            cot_expert_map_free(&map);
        }
        for (int32_t l = 0; l < 5; l++) {
            assert_true(got[1].peak_load[l] <= v.peak_load[l] * (1 + 2e-6));
            stood_in += got[0].peak_load[l] > v.peak_load[l] * (1 + 2e-6);
        }
        cot_place_value_free(&got[0]);
        cot_place_value_free(&got[1]);
        cot_place_value_free(&v);
        cot_expert_map_free(&old);
        cot_expert_map_free(&fresh);
        close_cluster(&c);
    }
    printf("%d of 200 layers needed the fresh plan's\n", stood_in);
}

/* From any running slots to any others: all are filled, and the moves are what there is to fetch. */
static void test_replan_slots(void **state)
{
    (void)state;
    cluster c;
    cot_error error;
    open_cluster(&c, "complete:ranks=8", 3, 60, 0.6, COT_ATTENTION_DP, false, 0);
    int32_t c_layer[8], c_exp[8];
    for (int s = 0; s < 8; s++) c_exp[s] = 3 * (c_layer[s] = s < 4 ? 20 : 6);
    for (int from = 56; from <= 96; from += 8)
        for (int to = 64; to <= 96; to += 16) {
            cot_expert_map old, map;
            int64_t moves, counted;
            cot_place_options options = {.method = "replicate", .slots = from};
            if (from < 60)
                options = (cot_place_options){.c_layer = c_layer, .c_exp = c_exp}; // with empty slots
            cot_place_value v = place(&c, options, &old);
            const cot_replan_options replan = {
                .size = sizeof replan, .max_moves = -1, .slots_per_rank = to / 8};
            if (cot_place_replan(&map, &moves, &old, &c.costs, &replan, &error) != COT_OK)
                fail_msg("%s", error.message);
            const cot_place_options want = {.size = sizeof want, .slots = to};
            if (cot_place_verify(&map, &c.costs, &want, &error) != COT_OK) fail_msg("%s", error.message);
            assert_int_equal(cot_place_moves(&counted, &old, &map, &error), COT_OK);
            assert_true(moves == counted);
            cot_expert_map_free(&old);
            cot_expert_map_free(&map);
            cot_place_value_free(&v);
        }
    close_cluster(&c);
}

/* Traffic adds up: every activation goes there and back, and hops times loads of links are the objective. */
static void test_traffic(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        cluster c;
        cot_expert_map map;
        cot_error error;
        open_cluster(&c, "fattree:ranks=16,gpus=2,servers=2,leaves=2", 3, 32, 0.8, i ? COT_ATTENTION_DP : 0,
                     i == 2, 0);
        cot_place_value v = place(&c, (cot_place_options){.method = "ilpload"}, &map);
        const cot_costs_options options = {.size = sizeof options, .attention = i ? COT_ATTENTION_DP : 0};
        double traffic[256], *load = malloc((size_t)c.topology.n_links * sizeof *load), hops = 0, sum = 0;
        assert_int_equal(cot_place_traffic(traffic, &map, &c.load, &c.costs, &options, &error), COT_OK);
        assert_int_equal(cot_topology_link_loads(load, &c.topology, traffic, &error), COT_OK);
        for (int64_t k = 0; k < c.topology.n_links; k++) hops += load[k] * c.topology.links[k].hops;
        for (int k = 0; k < 256; k++) sum += traffic[k];
        assert_true(fabs(hops - v.objective) <= 1e-9 * v.objective);
        assert_true(fabs(sum - 2 * v.activations) <= 1e-9 * sum);
        free(load);
        cot_place_value_free(&v);
        cot_expert_map_free(&map);
        close_cluster(&c);
    }
}

static void test_balancedness(void **state)
{
    (void)state;
    double load[4] = {1, 3, 2, 2};
    const cot_place_value v = {.n_layers = 2, .n_ranks = 2, .rank_load = load};
    cot_balancedness b;
    cot_place_balancedness(&b, &v);
    assert_true(fabs(b.sglang - (2.00001 / 3.00001 + 1) / 2) < 1e-9);
    assert_true(fabs(b.vllm - (1.5 + 2.5) / (2 + 3)) < 1e-9);
    assert_true(fabs(b.vllm_layers - 4.0 / 5) < 1e-9);
    assert_true(fabs(b.tensorrt_llm - 0.25) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_indifferent),
        cmocka_unit_test(test_indifferent_costs),
        cmocka_unit_test(test_ties_by_source),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_too_hot),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_replan),
        cmocka_unit_test(test_replan_small),
        cmocka_unit_test(test_replan_slots),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_balancedness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
