/* Groups of neighbouring layers, on topologies, and of nodes. */
#include "harness/cmocka.h"
#include "harness/cocluster/samples.h"
#include "harness/seed.h"

#include "coterie/group_nodes.h"
#include "coterie/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Groups that obey the sizes and nothing else. */
static void draw_groups(struct draw *draw, cot_layer_groups *g, const sample *s, int32_t D)
{
    cot_error error;
    assert_int_equal(cot_layer_groups_new(g, &s->affinities, D, &error), COT_OK);
    for (int32_t l = 0; l < g->n_layers; l++) {
        int32_t expert[MAX_E], token[MAX_N];
        for (int32_t e = 0; e < g->n_experts; e++) expert[e] = e % D;
        for (int32_t e = g->n_experts - 1; e > 0; e--) {
            int32_t other = below(draw, e + 1), held = expert[e];
            expert[e] = expert[other];
            expert[other] = held;
        }
        for (int64_t i = 0; i < g->n_tokens; i++) token[i] = below(draw, D);
        cot_layer_groups_set(g, l, expert, token);
    }
}

/* The n-th permutation of D. */
static void permute(int32_t *to, int32_t D, int32_t n)
{
    for (int32_t d = 0; d < D; d++) to[d] = d;
    for (int32_t d = D; d > 1; n /= d--) {
        int32_t other = n % d, held = to[d - 1];
        to[d - 1] = to[other];
        to[other] = held;
    }
}

static const int32_t factorial[] = {1, 1, 2, 6, 24};

static bool is_permutation(const int32_t *names, int32_t L, int32_t D)
{
    for (int32_t l = 0; l < L; l++)
        for (int32_t d = 0, seen = 0; d < D; d++) {
            int32_t bit = 1 << names[l * D + d];
            if (names[l * D + d] < 0 || names[l * D + d] >= D || seen & bit) return false;
            seen |= bit;
        }
    return true;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

static void test_align(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    cot_error error;
    for (int n = 0; n < 40; n++) {
        static sample s;
        int32_t D = 1 + below(draw, 4), L = 1 + below(draw, 3), names[MAX_L * MAX_D], trial[MAX_L * MAX_D];
        make_sample(&s, draw, L, D + below(draw, 6), 1 + below(draw, 20), D, 3);
        cot_layer_groups g;
        cot_layer_traffic t, after;
        draw_groups(draw, &g, &s, D);
        assert_int_equal(cot_layer_traffic_count(&t, &g, &s.affinities, &error), COT_OK);
        memset(names, 0x7f, sizeof names);
        assert_int_equal(cot_layer_traffic_align(names, &t, NULL, &error), COT_OK);
        assert_true(is_permutation(names, L, D));
        for (int32_t d = 0; d < D; d++) assert_int_equal(names[d], d);
        double found = cot_layer_traffic_stay(&t, names), most = 0;
        int32_t all = 1, f = factorial[D]; // layer 0 need not be renamed
        for (int32_t l = 1; l < L; l++) all *= f;
        for (int32_t m = 0; m < all; m++) {
            permute(trial, D, 0);
            for (int32_t l = 1, rest = m; l < L; l++, rest /= f) permute(trial + l * D, D, rest % f);
            most = fmax(most, cot_layer_traffic_stay(&t, trial));
        }
        assert_true(near(found, most));
        cot_layer_groups_rename(&g, names);
        assert_int_equal(cot_layer_traffic_count(&after, &g, &s.affinities, &error), COT_OK);
        assert_true(near(cot_layer_traffic_stay(&after, NULL), most));
        cot_layer_traffic_free(&after);
        cot_layer_traffic_free(&t);
        cot_layer_groups_free(&g);
    }
}

/* Ranks of unequal size keep their size. */
static void test_align_sizes(void **state)
{
    (void)state;
    cot_error error;
    double moves[9] = {0, 9, 0, 9, 0, 0, 0, 0, 9}, calls[18] = {0};
    const cot_layer_traffic t = {2, 3, calls, moves};
    int32_t names[6];
    assert_int_equal(cot_layer_traffic_align(names, &t, NULL, &error), COT_OK);
    assert_true(cot_layer_traffic_stay(&t, names) == 1);
    const int32_t size[6] = {2, 1, 1, 2, 1, 1};
    assert_int_equal(cot_layer_traffic_align(names, &t, size, &error), COT_OK);
    assert_int_equal(names[3], 0);
    assert_true(near(cot_layer_traffic_stay(&t, names), 9. / 27));
}

static void test_seat(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    cot_error error;
    int optimal = 0, cases = 60;
    for (int n = 0; n < cases; n++) {
        int32_t D = 1 + below(draw, 4), L = D == 4 ? 2 : 1 + below(draw, 3), f = factorial[D], all = 1;
        double calls[MAX_L * 16], moves[MAX_L * 16], distance[16], found, least = INFINITY;
        int32_t names[MAX_L * MAX_D], trial[MAX_L * MAX_D];
        for (int i = 0; i < MAX_L * 16; i++) {
            calls[i] = below(draw, 50);
            moves[i] = below(draw, 50);
        }
        for (int i = 0; i < 16; i++) distance[i] = below(draw, 8); // neither symmetric nor 0 within a rank
        const cot_layer_traffic t = {L, D, calls, moves};
        cot_seat_options options = {sizeof options, distance, n % 4 / 2., 1, test_seed()};
        double before = cot_layer_traffic_distance(&t, &options, NULL), once;
        assert_int_equal(cot_layer_traffic_seat(names, &once, &t, &options, &error), COT_OK);
        assert_true(once <= before * (1 + 1e-9));
        options.starts = 8;
        assert_int_equal(cot_layer_traffic_seat(names, &found, &t, &options, &error), COT_OK);
        assert_true(is_permutation(names, L, D));
        assert_true(found <= once);
        double sum = 0; // the formula, told apart from the code
        for (int32_t l = 0; l < L; l++)
            for (int32_t a = 0; a < D; a++)
                for (int32_t b = 0; b < D; b++) {
                    int32_t x = names[l * D + a], y = names[l * D + b], i = (l * D + a) * D + b;
                    sum += calls[i] * (distance[x * D + y] + distance[y * D + x]);
                    if (l + 1 < L)
                        sum += options.move_weight * moves[i] * distance[x * D + names[(l + 1) * D + b]];
                }
        assert_true(near(sum, found));
        for (int32_t l = 0; l < L; l++) all *= f;
        for (int32_t m = 0; m < all; m++) {
            for (int32_t l = 0, rest = m; l < L; l++, rest /= f) permute(trial + l * D, D, rest % f);
            least = fmin(least, cot_layer_traffic_distance(&t, &options, trial));
        }
        assert_true(found >= least * (1 - 1e-9));
        optimal += near(found, least);
    }
    if (optimal < cases * 9 / 10) fail_msg("%d of %d are optimal", optimal, cases);
    const double bad[1] = {-1};
    const cot_layer_traffic one = {1, 1, (double[]){1}, (double[]){0}};
    int32_t name;
    cot_seat_options options = {sizeof options, bad, 1, 1, 0};
    assert_int_equal(cot_layer_traffic_seat(&name, NULL, &one, &options, &error), COT_INVALID_ARGUMENT);
}

static void test_transitions(void **state)
{
    (void)state;
    cot_error error;
    cot_trace_builder *builder;
    cot_trace trace;
    assert_int_equal(cot_trace_builder_open(&builder, "", 2, NULL, 4, 2, &error), COT_OK);
    const float weights[4] = {0};
    /* Experts 0 and 1 are on rank 0, 2 and 3 on rank 1. */
    cot_trace_builder_append(builder, 0, -1, (const uint16_t[]){0, 1, 0, 2}, weights, &error);
    cot_trace_builder_append(builder, 1, -1, (const uint16_t[]){0, 3, 2, 3}, weights, &error);
    assert_int_equal(cot_trace_builder_finish(&trace, builder, &error), COT_OK);
    const cot_affinities shape = {.n_layers = 2, .n_experts = 4, .n_tokens = 1};
    cot_layer_groups g;
    cot_layer_traffic t;
    assert_int_equal(cot_layer_groups_new(&g, &shape, 2, &error), COT_OK);
    for (int32_t l = 0; l < 2; l++)
        cot_layer_groups_set(&g, l, (const int32_t[]){0, 0, 1, 1}, (const int32_t[]){0});
    assert_int_equal(cot_layer_traffic_count_trace(&t, &g, &trace, NULL, &error), COT_OK);
    const double moves[4] = {2, 2 + 2, 0, 2};
    for (int i = 0; i < 4; i++) assert_true(t.moves[i] == moves[i]);
    assert_true(near(cot_layer_traffic_stay(&t, NULL), 0.5));
    cot_layer_traffic_free(&t);
    assert_int_equal(cot_layer_traffic_count_trace(&t, &g, &trace, (const uint8_t[]){0, 1}, &error), COT_OK);
    assert_true(t.moves[0] == 0 && t.moves[1] == 2 && t.moves[2] == 0 && t.moves[3] == 2);
    cot_layer_traffic_free(&t);
    cot_layer_groups_free(&g);
    cot_trace_close(&trace);
    cot_trace_builder_close(builder);
}

static cot_group_options options_of(int32_t ranks)
{
    return (cot_group_options){
        .size = sizeof(cot_group_options), .ranks = ranks, .token_balance = 0.3, .seed = test_seed()};
}

static void test_joint(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    cot_error error;
    for (int n = 0; n < 4; n++) {
        static sample s;
        int32_t D = n == 3 ? 1 : 2 + n, L = n == 2 ? 1 : 3;
        make_sample(&s, draw, L, 2 * D + n % 2, 60, D, 6);
        cot_layer_groups g;
        cot_layer_traffic t;
        cot_layer_value first, value;
        draw_groups(draw, &g, &s, D);
        for (int32_t l = 0; l < L; l++) { // what is there obeys the balance
            cot_grouper *grouper;
            cot_grouping best;
            cot_group_options options = options_of(D);
            assert_int_equal(cot_grouper_open(&grouper, s.layer + l, &options, &error), COT_OK);
            assert_int_equal(cot_grouper_iterate(grouper, 1, &error), COT_OK);
            cot_grouper_best(&best, grouper);
            cot_layer_groups_set(&g, l, best.expert_rank, best.token_rank);
            cot_grouper_close(grouper);
        }
        cot_joint_options options = {sizeof options, options_of(D), 0.5, 0, 3};
        assert_int_equal(cot_layer_groups_improve(&g, &first, &s.affinities, &options, &error), COT_OK);
        options.rounds = 3;
        assert_int_equal(cot_layer_groups_improve(&g, &value, &s.affinities, &options, &error), COT_OK);
        assert_true(value.joint >= first.joint * (1 - 1e-9));
        assert_true(near(value.joint, (double)value.local + 0.5 * value.stays));
        assert_int_equal(cot_layer_traffic_count(&t, &g, &s.affinities, &error), COT_OK);
        double local = 0;
        for (int32_t l = 0; l < L; l++)
            for (int32_t d = 0; d < D; d++) local += t.calls[(l * D + d) * D + d];
        assert_true(local == (double)value.local);
        assert_true(near(cot_layer_traffic_stay(&t, NULL), L > 1 ? value.stays / value.moves : 1));
        cot_layer_traffic_free(&t);
        for (int32_t l = 0; l < L; l++) { // sizes hold
            int32_t held[MAX_D] = {0}, E = g.n_experts;
            for (int32_t e = 0; e < E; e++) held[g.expert_rank[l * E + e]]++;
            for (int32_t d = 0; d < D; d++) assert_int_equal(held[d], E / D + (d < E % D));
        }
        /* Each kind of token calls one block, layer after layer: all can be had, or nearly, where blocks divide. */
        if (n % 2 == 0) assert_true(L == 1 || value.stays > 0.9 * value.moves);
        options.rounds = -1;
        assert_int_equal(cot_layer_groups_improve(&g, NULL, &s.affinities, &options, &error),
                         COT_INVALID_ARGUMENT);
        cot_layer_groups_free(&g);
    }
}

static void test_nodes(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    cot_error error;
    const char *const methods[] = {NULL, "metis", "kmeans", "spectral"};
    for (int n = 0; n < 16; n++) {
        static sample s;
        int32_t D = n < 12 ? 4 : 6, nodes = n < 4 ? 1 : n < 8 ? 4 : 2, E = n % 2 ? 13 : 24;
        make_sample(&s, draw, 1, E, 60, D, 6);
        cot_nodes_options options = {sizeof options, options_of(D), nodes, 1, 4, 4};
        options.group.method = methods[n % 4];
        if (n % 3 == 0) options.group.expert_load = 1.3;
        cot_nodes_grouping found;
        cot_nodes_value value;
        assert_int_equal(cot_group_hierarchically(&found, s.layer, &options, &error), COT_OK);
        assert_int_equal(
            cot_nodes_value_of(&value, s.layer, found.expert_rank, found.token_rank, &options, &error),
            COT_OK);
        assert_memory_equal(&value, &found.value, sizeof value);
        int32_t held[MAX_D] = {0};
        for (int32_t e = 0; e < E; e++) held[found.expert_rank[e]]++;
        for (int32_t d = 0; d < D; d++) assert_in_range(held[d], E / D, (E + D - 1) / D);
        double in = 0, out = 0, total = 0, local = 0; // counted anew
        for (int64_t i = 0; i < 60; i++)
            for (int64_t k = s.offsets[0][i]; k < s.offsets[0][i + 1]; k++) {
                int32_t a = found.token_rank[i], b = found.expert_rank[s.expert[0][k]], each = D / nodes;
                double calls = s.count[0][k];
                total += calls;
                local += a == b ? calls : 0;
                in += a != b && a / each == b / each ? calls : 0;
                out += a / each != b / each ? calls : 0;
            }
        assert_true((double)value.local == local && (double)value.in_node == in);
        assert_true(near(value.cost, (in + 4 * out) / total));
        assert_true(local <= found.bound * (1 + 1e-9));
        if (found.feasible) {
            assert_true(value.token_peak <= 1.3 * (1 + 1e-9));
            assert_true(!(options.group.expert_load > 0) || value.expert_peak <= 1.3 * (1 + 1e-9));
        }
        /* One node, or one rank a node, is a flat problem: what is clear is found. */
        if (E == 24 && !(options.group.expert_load > 0) && nodes != 2 && local <= 0.8 * total)
            fail_msg("case %d: %g of %g", n, local, total);
        cot_nodes_grouping_free(&found);
        options.nodes = D == 4 ? 3 : 4;
        assert_int_equal(cot_group_hierarchically(&found, s.layer, &options, &error), COT_INVALID_ARGUMENT);
        assert_null(found.expert_rank);
    }
}

/* What experts from e on cost at least, `cost` [E][D] being what each costs on each rank and `room` [D] how many a rank still takes. */
static double cheapest(const double *cost, int32_t *room, int32_t e, int32_t E, int32_t D)
{
    double least = e == E ? 0 : INFINITY;
    for (int32_t d = 0; d < D && e < E; d++) {
        if (!room[d]) continue;
        room[d]--;
        least = fmin(least, cost[e * D + d] + cheapest(cost, room, e + 1, E, D));
        room[d]++;
    }
    return least;
}

/* Where no limit binds, no other places of the experts cost less for the tokens' ranks that were found. */
static void test_steps_over_all_ranks(void **state)
{
    (void)state;
    enum { D = 4, EACH = 2, N = 30, IN = 1, OUT = 4 };
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 11};
    for (int n = 0; n < 40; n++) {
        static sample s;
        const int32_t E = D + below(draw, 5);
        make_sample(&s, draw, 1, E, N, D, 1);
        cot_nodes_options options = {sizeof options, options_of(D), D / EACH, IN, OUT, 1};
        options.group.token_balance = D;
        options.group.method = "consecutive"; // the steps over all ranks have all to do
        cot_nodes_grouping found;
        cot_error error;
        assert_int_equal(cot_group_hierarchically(&found, s.layer, &options, &error), COT_OK);
        double cost[MAX_E * D] = {0};
        int32_t room[D] = {0};
        for (int32_t e = 0; e < E; e++) room[found.expert_rank[e]]++;
        for (int64_t i = 0; i < N; i++)
            for (int64_t k = s.offsets[0][i]; k < s.offsets[0][i + 1]; k++)
                for (int32_t d = 0; d < D; d++) {
                    const int32_t at = found.token_rank[i];
                    const int each = d == at ? 0 : d / EACH == at / EACH ? IN : OUT;
                    cost[s.expert[0][k] * D + d] += each * (double)s.count[0][k];
                }
        const double least = cheapest(cost, room, 0, E, D);
        if (!near(found.value.cost * (double)found.value.total, least))
            fail_msg("case %d: %g, and %g are enough", n, found.value.cost * (double)found.value.total,
                     least);
        cot_nodes_grouping_free(&found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_align),
                                       cmocka_unit_test(test_align_sizes),
                                       cmocka_unit_test(test_seat),
                                       cmocka_unit_test(test_transitions),
                                       cmocka_unit_test(test_joint),
                                       cmocka_unit_test(test_nodes),
                                       cmocka_unit_test(test_steps_over_all_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
