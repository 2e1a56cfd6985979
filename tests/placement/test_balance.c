/* The method balance against plain sums: peaks never above EPLB's, activations between nodes, limits that a layer cannot
 * meet; and the map that engines run without one. */
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
    return cot_random_uniform(test_seed(), 7, at++);
}
static int32_t below(int32_t n)
{
    return (int32_t)(uniform() * n);
}
static double lognormal(double sigma)
{
    return exp(sigma * sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()));
}

typedef struct world {
    cot_topology topology;
    cot_load_counts load;
    cot_costs costs;
    cot_costs_options options;
} world;

static void open_world(world *w, int32_t nodes, int32_t each, int32_t L, int32_t E, bool sources)
{
    char spec[64];
    cot_error error;
    *w = (world){.options = {.size = sizeof w->options, .attention = COT_ATTENTION_DP}};
    snprintf(spec, sizeof spec, "complete:ranks=%d,gpus=%d", nodes * each, each);
    if (cot_topology_build(&w->topology, spec, 0, &error) != COT_OK) fail_msg("%s", error.message);
    const int32_t n = sources ? nodes * each : 1;
    assert_int_equal(cot_load_counts_new(&w->load, L, n, E, &error), COT_OK);
    w->load.sources_known = sources;
    const double sigma = 0.2 + 1.5 * uniform();
    for (int32_t l = 0; l < L; l++)
        for (int32_t e = 0; e < E; e++) {
            const double tokens = 1000 * lognormal(sigma);
            for (int32_t r = 0; r < n; r++)
                w->load.tokens[(l * n + r) * E + e] = floor(tokens / n * (sources ? 2 * uniform() : 1)) + 1;
        }
    if (cot_costs_open(&w->costs, &w->load, &w->topology, &w->options, &error) != COT_OK)
        fail_msg("%s", error.message);
}

static void close_world(world *w)
{
    cot_costs_free(&w->costs);
    cot_load_counts_free(&w->load);
    cot_topology_free(&w->topology);
}

static cot_expert_map place(const world *w, const char *method, int32_t slots, double max_load)
{
    const cot_place_options options = {
        .size = sizeof options, .method = method, .slots = slots, .max_load = max_load};
    cot_expert_map map;
    cot_error error;
    if (cot_place(&map, NULL, &w->costs, &options, &error) != COT_OK ||
        cot_place_verify(&map, &w->costs, &options, &error) != COT_OK)
        fail_msg("%s of %d slots: %s", method, slots, error.message);
    return map;
}

static const int32_t *slot_of(const cot_expert_map *m, int32_t l, int32_t r)
{
    return m->expert + ((size_t)l * (size_t)m->n_ranks + (size_t)r) * (size_t)m->slots_per_rank;
}

static int32_t replicas(const cot_expert_map *m, int32_t l, int32_t e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_ranks * m->slots_per_rank; i++) n += slot_of(m, l, 0)[i] == e;
    return n;
}

static double tokens_of(const world *w, int32_t l, int32_t e)
{
    double sum = 0;
    for (int32_t r = 0; r < w->load.n_sources; r++)
        sum += w->load.tokens[(l * w->load.n_sources + r) * w->load.n_experts + e];
    return sum;
}

/* The most loaded rank of a layer over the mean. */
static double peak(const world *w, const cot_expert_map *m, int32_t l)
{
    double most = 0, all = 0;
    for (int32_t r = 0; r < m->n_ranks; r++) {
        double sum = 0;
        for (int32_t i = 0; i < m->slots_per_rank; i++) {
            const int32_t e = slot_of(m, l, r)[i];
            if (e >= 0) sum += tokens_of(w, l, e) / replicas(m, l, e);
        }
        most = fmax(most, sum);
        all += sum;
    }
    return most / (all / m->n_ranks);
}

/* Activations that leave their node, each once, over all layers. */
static double crossing(const world *w, const cot_expert_map *m)
{
    const int32_t S = m->n_ranks, n = w->load.n_sources;
    double sum = 0;
    for (int32_t l = 0; l < m->n_layers; l++)
        for (int32_t s = 0; s < S; s++)
            for (int32_t i = 0; i < m->slots_per_rank; i++) {
                const int32_t e = slot_of(m, l, s)[i];
                if (e < 0) continue;
                for (int32_t r = 0; r < S; r++)
                    if (w->topology.host[r] != w->topology.host[s])
                        sum += (n == S ? w->load.tokens[(l * n + r) * w->load.n_experts + e]
                                       : tokens_of(w, l, e) / S) /
                               replicas(m, l, e);
            }
    return sum;
}

static bool doubled(const cot_expert_map *m, int32_t l)
{
    for (int32_t r = 0; r < m->n_ranks; r++)
        for (int32_t i = 0; i < m->slots_per_rank; i++)
            for (int32_t k = 0; k < i; k++)
                if (slot_of(m, l, r)[i] == slot_of(m, l, r)[k]) return true;
    return false;
}

/* Whatever the sizes, every slot is filled and no layer's peak is above EPLB's. */
static void test_peaks(void **state)
{
    (void)state;
    for (int i = 0; i < 150; i++) {
        world w;
        const int32_t nodes = 1 + below(3), each = 1 + below(4), S = nodes * each, E = 1 + below(40),
                      least = (E + S - 1) / S * S, slots = least + S * below(4);
        open_world(&w, nodes, each, 1 + below(3), E, below(2));
        cot_expert_map eplb = place(&w, "eplb", slots, 0), own = place(&w, "balance", slots, 0);
        for (int32_t l = 0; l < own.n_layers; l++) {
            const double here = peak(&w, &own, l);
            if (here > peak(&w, &eplb, l) * (1 + 1e-12))
                fail_msg("layer %d, %d experts, %d ranks, %d slots: %.17g, EPLB %.17g", l, E, S, slots, here,
                         peak(&w, &eplb, l));
            for (int32_t e = 0; e < E; e++) assert_true(replicas(&own, l, e) > 0);
            if (slots <= E * S && !doubled(&eplb, l)) assert_false(doubled(&own, l));
        }
        cot_expert_map open = place(&w, "balance", 0, 0);
        assert_int_equal(open.slots_per_rank * S, least);
        cot_expert_map_free(&open);
        cot_expert_map_free(&eplb);
        cot_expert_map_free(&own);
        close_world(&w);
    }
}

/* Few experts on many slots: EPLB gives a rank the hottest one twice, which formats of engines cannot say. */
static void test_differ(void **state)
{
    (void)state;
    world w;
    open_world(&w, 1, 2, 1, 3, false);
    w.costs.load[0] = w.load.tokens[0] = 1e6;
    cot_expert_map eplb = place(&w, "eplb", 6, 0), own = place(&w, "balance", 6, 0);
    assert_true(doubled(&eplb, 0));
    assert_false(doubled(&own, 0));
    cot_expert_map_free(&own);
    close_world(&w);

    // Exchanges alone end at this peak with an expert twice on a rank; a packing of its own has none.
    static const double loads[] = {20, 100, 50};
    open_world(&w, 1, 4, 1, 3, false);
    for (int e = 0; e < 3; e++) w.costs.load[e] = w.load.tokens[e] = loads[e];
    own = place(&w, "balance", 8, 0);
    assert_false(doubled(&own, 0));
    assert_true(fabs(peak(&w, &own, 0) - 45 / 42.5) < 1e-12);
    cot_expert_map_free(&eplb);
    cot_expert_map_free(&own);
    close_world(&w);
}

/* Where sources are known, fewer activations leave their node than with EPLB, over some draws, and within its peak; where
 * ranks send evenly, as many do whatever the map is. */
static void test_between_nodes(void **state)
{
    (void)state;
    double own = 0, of_eplb = 0;
    for (int i = 0; i < 12; i++) {
        const bool sources = i % 3 > 0;
        world w;
        cot_error error;
        double traffic[16 * 16], left[3];
        open_world(&w, 4, 4, 2, 64 + below(64), sources);
        const int32_t E = w.load.n_experts, slots = (E + 31) / 16 * 16;
        cot_expert_map maps[3] = {place(&w, "eplb", slots, 0), place(&w, "balance", slots, 0), {0}};
        assert_int_equal(cot_place_contiguous(&maps[2], &w.costs, slots, &error), COT_OK);
        for (int k = 0; k < 3; k++) {
            left[k] = crossing(&w, &maps[k]);
            assert_int_equal(cot_place_traffic(traffic, &maps[k], &w.load, &w.costs, &w.options, &error),
                             COT_OK);
            const double got = cot_place_between_nodes(traffic, &w.topology);
            assert_true(fabs(got - 2 * left[k]) < 1e-9 * got);
        }
        if (sources) {
            own += left[1];
            of_eplb += left[0];
        } else
            assert_true(w.costs.indifferent && fabs(left[1] - left[0]) < 1e-9 * left[0] &&
                        fabs(left[2] - left[0]) < 1e-9 * left[0]);
        for (int32_t l = 0; sources && l < 2; l++)
            assert_true(peak(&w, &maps[1], l) <= peak(&w, &maps[0], l) * (1 + 1e-12));
        for (int k = 0; k < 3; k++) cot_expert_map_free(&maps[k]);
        close_world(&w);
    }
    assert_true(own < of_eplb);
}

/* A layer that cannot meet the limit has its least peak, here that of one expert alone; the others meet it. */
static void test_soft_limit(void **state)
{
    (void)state;
    world w;
    open_world(&w, 2, 2, 3, 32, true);
    for (int32_t r = 0; r < 4; r++)
        for (int32_t l = 0; l < 3; l++)
            for (int32_t e = 0; e < 32; e++)
                w.load.tokens[(l * 4 + r) * 32 + e] = l == 1 && e == 5 ? 5000 : 10 + below(10);
    cot_costs_free(&w.costs);
    cot_error error;
    assert_int_equal(cot_costs_open(&w.costs, &w.load, &w.topology, &w.options, &error), COT_OK);
    cot_expert_map own = place(&w, "balance", 32, 1.05), map;
    double all = 0;
    for (int32_t e = 0; e < 32; e++) all += tokens_of(&w, 1, e);
    // what else the hot expert's rank has to hold: 7 experts, of 40 tokens at least each
    const double lightest = (20000 + 7 * 40) / (all / 4);
    assert_true(peak(&w, &own, 0) <= 1.05 && peak(&w, &own, 2) <= 1.05);
    assert_true(peak(&w, &own, 1) >= lightest && peak(&w, &own, 1) < 1.05 * lightest);
    const cot_place_options exact = {.size = sizeof exact, .method = "ilpload", .max_load = 1.05};
    assert_int_equal(cot_place(&map, NULL, &w.costs, &exact, &error), COT_INVALID_ARGUMENT);
    cot_expert_map_free(&own);
    close_world(&w);
}

/* SGLang and vLLM run slot i with expert i modulo E until they are told otherwise. */
static void test_contiguous(void **state)
{
    (void)state;
    static const int32_t uneven[3][2] = {{0, -1}, {1, 2}, {3, 4}};
    cot_expert_map map;
    cot_error error;
    world w;
    open_world(&w, 1, 3, 2, 5, false);
    assert_int_equal(cot_place_contiguous(&map, &w.costs, 9, &error), COT_OK);
    assert_int_equal(map.slots_per_rank, 3);
    for (int32_t i = 0; i < 18; i++) assert_int_equal(map.expert[i], i % 9 % 5);
    cot_expert_map_free(&map);
    assert_int_equal(cot_place_contiguous(&map, &w.costs, 0, &error), COT_OK);
    for (int32_t i = 0; i < 12; i++) assert_int_equal(map.expert[i], uneven[i / 2 % 3][i % 2]);
    cot_expert_map_free(&map);
    for (int32_t slots = 4; slots <= 8; slots += 4) // too few, and none that 3 ranks divide
        assert_int_equal(cot_place_contiguous(&map, &w.costs, slots, &error), COT_INVALID_ARGUMENT);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peaks), cmocka_unit_test(test_differ),
                                       cmocka_unit_test(test_between_nodes),
                                       cmocka_unit_test(test_soft_limit), cmocka_unit_test(test_contiguous)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
