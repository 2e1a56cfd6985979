/* What a map is worth on a trace, token by token, and on its counts, against plain sums; and ranks of a trace's experts. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/load.h"
#include "coterie/place.h"
#include "coterie/placement.h"
#include "coterie/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { S = 4, E = 6, K = 2, L = 3, SLOTS = 3, SEQUENCES = 9 };

static void near(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fmax(1, fabs(expected)))
        fail_msg("%.17g, expected %.17g", got, expected);
}

typedef struct world {
    cot_topology topology;
    cot_trace trace;
    cot_load_counts load;
    cot_expert_map map;
    double distance[S][S];
    int32_t home[1000]; // of each token
} world;

/* `sources`: 1: who sends is not recorded. */
static void make(scratch_pad *pad, world *w, int sources)
{
    cot_error error;
    cot_trace_builder *builder;
    const int32_t layers[L] = {1, 4, 5};
    *w = (world){0};
    assert_int_equal(cot_topology_build(&w->topology, "complete:ranks=4,gpus=1", 0, &error), COT_OK);
    assert_int_equal(cot_topology_distances(&w->distance[0][0], &w->topology, (cot_metric){0}, &error),
                     COT_OK);
    assert_int_equal(cot_trace_builder_open(&builder, "random", L, layers, E, K, &error), COT_OK);
    for (int s = 0, at = 0; s < SEQUENCES; s++)
        for (int t = 0, n = 1 + (int)pad_draw(pad, 30); t < n; t++) {
            uint16_t experts[L * K];
            const float weights[L * K] = {0};
            for (int l = 0; l < L; l++) draw_experts(pad, experts + l * K, K, E);
            assert_int_equal(cot_trace_builder_append(builder, s, 0, experts, weights, &error), COT_OK);
            for (int r = 0; r < S; r++)
                if (r * n / S <= t && t < (r + 1) * n / S) w->home[at] = r;
            at++;
        }
    assert_int_equal(cot_trace_builder_finish(&w->trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
    assert_int_equal(cot_load_counts_new(&w->load, L, sources, E, &error), COT_OK);
    w->load.sources_known = sources > 1;
    w->load.top_k = K;
    memcpy(w->load.layers, layers, sizeof layers);
    for (int l = 0; l < L; l++)
        for (int64_t t = 0; t < w->trace.n_tokens; t++)
            for (int k = 0; k < K; k++)
                w->load.tokens[(l * sources + (sources == S ? w->home[t] : (int)(t % sources))) * E +
                               cot_trace_expert(&w->trace, l, t, k)]++;
    // A row more than the load has; slots drawn, after one for each expert.
    assert_int_equal(cot_expert_map_new(&w->map, L + 1, E, S, SLOTS, &error), COT_OK);
    for (int l = 0; l <= L; l++) {
        w->map.layers[l] = l < 1 ? 0 : layers[l - 1];
        for (int i = 0; i < S * SLOTS; i++)
            w->map.expert[l * S * SLOTS + (i * 5 + l) % (S * SLOTS)] =
                i < E ? i : (int32_t)pad_draw(pad, E + 1) - 1;
    }
}

static void drop(world *w)
{
    cot_topology_free(&w->topology);
    cot_trace_close(&w->trace);
    cot_load_counts_free(&w->load);
    cot_expert_map_free(&w->map);
}

/* Slots of an expert on a rank. */
static int held(const world *w, int l, int e, int rank)
{
    int n = 0;
    for (int i = 0; i < SLOTS; i++) n += w->map.expert[((l + 1) * S + rank) * SLOTS + i] == e;
    return n;
}

/* The share of what rank r sends to an expert that rank s serves. */
static double part(const world *w, int l, int e, int r, int s, bool nearest)
{
    double least = INFINITY, all = 0;
    for (int i = 0; i < S; i++)
        if (held(w, l, e, i)) least = fmin(least, w->distance[r][i] + w->distance[i][r]);
    for (int i = 0; i < S; i++)
        if (!nearest || w->distance[r][i] + w->distance[i][r] <= least) all += held(w, l, e, i);
    return nearest && w->distance[r][s] + w->distance[s][r] > least ? 0 : held(w, l, e, s) / all;
}

/* What an activation costs, sent from rank r. */
static double way(const world *w, int l, int e, int r, bool nearest)
{
    double cost = 0;
    for (int s = 0; s < S; s++)
        cost += part(w, l, e, r, s, nearest) * (w->distance[r][s] + w->distance[s][r]);
    return cost;
}

static void check_tokens(const world *w, const cot_place_figures *f, bool nearest)
{
    const int64_t T = w->trace.n_tokens;
    double mean = 0, square = 0, local = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < T; t++) {
            double cost = 0;
            for (int i = 0; i < L * K; i++) {
                const int l = i / K, e = cot_trace_expert(&w->trace, l, t, i % K);
                for (int r = 0; r < S; r++)
                    cost += way(w, l, e, r, nearest) / S; // from anywhere: who sends is not known
                if (!pass) local += part(w, l, e, w->home[t], w->home[t], nearest);
            }
            if (pass)
                square += (cost - mean) * (cost - mean) / (double)T;
            else
                mean += cost / (double)T;
        }
    near(f->token_mean, mean);
    near(f->token_std, sqrt(square));
    near(f->lar, local / (double)(T * K * L));
    near(f->value.objective, mean * (double)T);
    near(cot_place_per_token(&f->value, K), mean);
}

/* What rank r sends to an expert: all of it where r is `home`, nothing where another is; -1: as the sources are recorded,
 * or all ranks alike. */
static double sent(const world *w, int l, int e, int r, int home)
{
    const int n = w->load.n_sources;
    double all = 0;
    if (home < 0 && n == S) return w->load.tokens[(l * S + r) * E + e];
    for (int i = 0; i < n; i++) all += w->load.tokens[(l * n + i) * E + e];
    return home < 0 ? all / S : r == home ? all : 0;
}

/* Every link of the network joins two ranks. `home` [L] each layer's one sender, the next layer's gets what comes back;
 * NULL: who sends, gets. */
static void check_links(const world *w, const cot_place_figures *f, bool nearest, const int32_t *home)
{
    double sum = 0, most = 0, next = 0; // the two fullest
    double traffic[S][S] = {0};
    for (int l = 0; l < L; l++)
        for (int e = 0; e < E; e++)
            for (int r = 0; r < S; r++)
                for (int s = 0; s < S; s++) {
                    const double share = part(w, l, e, r, s, nearest);
                    traffic[r][s] += share * sent(w, l, e, r, home ? home[l] : -1);
                    traffic[s][r] += share * sent(w, l, e, r, home ? home[(l + 1) % L] : -1);
                }
    for (int i = 0; i < S * S; i++) {
        if (i / S == i % S) continue;
        const double load = traffic[i / S][i % S];
        sum += load;
        next = fmax(next, fmin(most, load));
        most = fmax(most, load);
    }
    assert_int_equal(f->n_links, S * (S - 1));
    near(f->link_mean, sum / (S * (S - 1)));
    near(f->link_max, most);
    near(f->link_p99, next); // 99 % of the way from the first of 12 to the last, down to a link
}

/* `home` [L] the layer's one sender; NULL: the sources, or all ranks alike. */
static void check_counts(const world *w, const cot_place_figures *f, bool nearest, const int32_t *home)
{
    double local = 0, all = 0;
    for (int l = 0; l < L; l++)
        for (int e = 0; e < E; e++)
            for (int r = 0; r < S; r++) {
                const double n = sent(w, l, e, r, home ? home[l] : -1);
                local += n * part(w, l, e, r, r, nearest);
                all += n;
            }
    near(f->lar, local / all);
    assert_true(f->token_std < 0);
    near(f->token_mean, f->value.objective / (double)w->trace.n_tokens);
    double most = 0;
    for (int l = 0; l < L; l++) most = fmax(most, f->value.peak_load[l]);
    assert_true(f->peak == most && most >= 1);
}

static void test_measure(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 24; round++) {
        const bool sources = round % 2, nearest = round / 2 % 2;
        world w;
        cot_costs costs;
        cot_place_figures f;
        cot_error error;
        make(pad, &w, sources ? S : 1);
        const cot_costs_options made_by = {.size = sizeof made_by,
                                           .attention = COT_ATTENTION_DP,
                                           .dispatch = nearest ? COT_DISPATCH_NEAREST : COT_DISPATCH_UNIFORM};
        cot_place_measure_options o = {
            .size = sizeof o, .load = &w.load, .costs = &made_by, .topology = &w.topology, .trace = &w.trace};
        assert_int_equal(cot_costs_open(&costs, &w.load, &w.topology, &made_by, &error), COT_OK);
        assert_int_equal(cot_place_measure(&f, &w.map, &costs, &o, &error), COT_OK);
        if (!sources) check_tokens(&w, &f, nearest);
        check_links(&w, &f, nearest, NULL);
        cot_balancedness b;
        cot_place_balancedness(&b, &f.value);
        assert_memory_equal(&b, &f.balancedness, sizeof b);
        cot_place_figures_free(&f);
        o.trace = NULL;
        o.topology = NULL;
        assert_int_equal(cot_place_measure(&f, &w.map, &costs, &o, &error), COT_OK);
        check_counts(&w, &f, nearest, NULL);
        assert_true(f.n_links == 0 && f.link_max == 0);
        cot_place_figures_free(&f);

        cot_trace other = w.trace;
        cot_topology wide = w.topology;
        other.n_experts++;
        wide.n_ranks++;
        o.trace = &other;
        assert_refused(cot_place_measure(&f, &w.map, &costs, &o, &error), &error, "the trace has 7 experts");
        assert_null(f.value.peak_load);
        o.trace = NULL;
        o.topology = &wide;
        assert_refused(cot_place_measure(&f, &w.map, &costs, &o, &error), &error, "the topology has 5 ranks");
        o.size--;
        assert_refused(cot_place_measure(&f, &w.map, &costs, &o, &error), &error, "is measured by");
        w.map.n_layers--; // layer 5 is gone
        o.topology = NULL;
        o.size++;
        assert_int_equal(cot_place_measure(&f, &w.map, &costs, &o, &error), COT_MALFORMED);
        assert_non_null(strstr(error.message, "lacks layer 5"));
        cot_costs_free(&costs);
        drop(&w);
    }
}

/* One rank sends in each layer and the next layer's gets it back: what a link carries differs from what its way back does.
 * Sources of another number than the ranks do not say who sends. */
static void test_one_sender(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 24; round++) {
        world w;
        cot_costs costs;
        cot_place_figures f;
        cot_error error;
        make(pad, &w, (const int[]){1, S + 1, S - 1}[round % 3]);
        const cot_costs_options made_by = {
            .size = sizeof made_by, .attention = COT_ATTENTION_PAPER, .dispatch = COT_DISPATCH_UNIFORM};
        const cot_place_measure_options o = {
            .size = sizeof o, .load = &w.load, .costs = &made_by, .topology = &w.topology};
        assert_int_equal(cot_costs_open(&costs, &w.load, &w.topology, &made_by, &error), COT_OK);
        assert_int_equal(cot_place_measure(&f, &w.map, &costs, &o, &error), COT_OK);
        check_links(&w, &f, false, costs.home);
        check_counts(&w, &f, false, costs.home);
        cot_place_figures_free(&f);
        cot_costs_free(&costs);
        drop(&w);
    }
}

/* Tokens that all cost the same, in sums that round, deviate by nothing. */
static void test_no_deviation(void **state)
{
    scratch_pad *pad = *state;
    double cost[L * S];
    for (int i = 0; i < L * S; i++) cost[i] = 0.1;
    for (int round = 0; round < 20; round++) {
        world w;
        cot_costs costs;
        cot_place_figures f;
        cot_error error;
        make(pad, &w, 1);
        const cot_costs_options made_by = {.size = sizeof made_by, .cost = cost, .n_ranks = S};
        const cot_place_measure_options o = {
            .size = sizeof o, .load = &w.load, .costs = &made_by, .trace = &w.trace};
        assert_int_equal(cot_costs_open(&costs, &w.load, NULL, &made_by, &error), COT_OK);
        assert_int_equal(cot_place_measure(&f, &w.map, &costs, &o, &error), COT_OK);
        near(f.token_mean, 0.1 * L * K);
        assert_true(f.token_std == 0);
        cot_place_figures_free(&f);
        cot_costs_free(&costs);
        drop(&w);
    }
}

static void test_ranks(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 20; round++) {
        world w;
        cot_error error;
        int32_t rank[L][E];
        int64_t replicas = -1, several = 0;
        make(pad, &w, 1);
        assert_int_equal(cot_expert_map_ranks(&rank[0][0], &replicas, &w.map, &w.trace, "p", &error), COT_OK);
        for (int l = 0; l < L; l++)
            for (int e = 0; e < E; e++) {
                int slots = 0, first = -1;
                for (int s = S - 1; s >= 0; s--) {
                    slots += held(&w, l, e, s);
                    if (held(&w, l, e, s)) first = s;
                }
                assert_int_equal(rank[l][e], first);
                several += slots > 1;
            }
        assert_int_equal(replicas, several);
        w.map.n_experts++;
        assert_int_equal(cot_expert_map_ranks(&rank[0][0], NULL, &w.map, &w.trace, "p", &error),
                         COT_MALFORMED);
        assert_non_null(strstr(error.message, "'p' places 7 experts, the trace has 6"));
        w.map.n_experts--;
        w.map.layers[2] = 3;
        assert_int_equal(cot_expert_map_ranks(&rank[0][0], NULL, &w.map, &w.trace, "p", &error),
                         COT_MALFORMED);
        assert_non_null(strstr(error.message, "'p' has no layer 4, the trace does"));
        w.map.layers[2] = 4;
        w.map.dense[2] = 1;
        assert_int_equal(cot_expert_map_ranks(&rank[0][0], NULL, &w.map, &w.trace, "p", &error),
                         COT_MALFORMED);
        assert_non_null(strstr(error.message, "'p' has no layer 4, the trace does"));
        w.map.dense[2] = 0;
        for (int i = 0; i < S * SLOTS; i++)
            if (w.map.expert[S * SLOTS + i] == 2) w.map.expert[S * SLOTS + i] = -1;
        assert_int_equal(cot_expert_map_ranks(&rank[0][0], NULL, &w.map, &w.trace, "p", &error),
                         COT_MALFORMED);
        assert_non_null(strstr(error.message, "no slot for expert 2"));
        drop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measure), cmocka_unit_test(test_one_sender),
                                       cmocka_unit_test(test_no_deviation), cmocka_unit_test(test_ranks)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
