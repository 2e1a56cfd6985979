/* A limit on the load of a rank: what is placed obeys it, what is refused names a limit that is then met. */
#include "coterie/place.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <cmocka.h>

enum { RANKS = 8, EXPERTS = 32, LAYERS = 3 };

static uint64_t at;
static double uniform(void)
{
    return cot_random_uniform(test_seed(), 3, at++);
}

/* Loads and costs of 1 or more, the costs of few values. */
static cot_costs draw(double skew)
{
    cot_load_counts load;
    cot_error error;
    double cost[LAYERS * RANKS];
    assert_int_equal(cot_load_counts_new(&load, LAYERS, 1, EXPERTS, &error), COT_OK);
    for (int i = 0; i < LAYERS * EXPERTS; i++) load.tokens[i] = 1 + floor(100 * exp(skew * uniform()));
    for (int i = 0; i < LAYERS * RANKS; i++) cost[i] = 1 + floor(4 * uniform());
    const cot_costs_options options = {.size = sizeof options, .cost = cost, .n_ranks = RANKS};
    cot_costs costs;
    assert_int_equal(cot_costs_open(&costs, &load, NULL, &options, &error), COT_OK);
    cot_load_counts_free(&load);
    return costs;
}

/* Places within the limit; false where that is refused, with the limit that the message says can be met. */
static bool place(const cot_costs *costs, double limit, const int32_t *c_layer, const int32_t *c_exp,
                  double *met)
{
    const cot_place_options options = {
        .size = sizeof options, .method = "ilpload", .max_load = limit, .c_layer = c_layer, .c_exp = c_exp};
    cot_expert_map map;
    cot_place_proof *proof;
    cot_place_value value;
    cot_error error;
    if (cot_place(&map, &proof, costs, &options, &error) != COT_OK) {
        const char *words = strstr(error.message, "the smallest feasible found is ");
        if (!words) fail_msg("%s", error.message);
        *met = strtod(strstr(words, "is ") + 3, NULL);
        assert_true(*met > limit);
        return false;
    }
    if (cot_place_verify(&map, costs, &options, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(cot_place_value_of(&value, &map, costs, options.dispatch, &error), COT_OK);
    assert_int_equal(cot_place_prove(&value, proof, &error), COT_OK);
    assert_true(value.dual > 0 && value.dual <= value.objective * (1 + 1e-12));
    cot_place_value_free(&value);
    cot_place_proof_free(proof);
    cot_expert_map_free(&map);
    return true;
}

static void test_refused_limits(void **state)
{
    (void)state;
    int refused = 0;
    for (int trial = 0; trial < 24; trial++) {
        cot_costs costs = draw(trial % 4);
        int32_t c_layer[RANKS], c_exp[RANKS];
        double limit = 0.9 + 0.5 * uniform(), met = 0;
        for (int s = 0; s < RANKS; s++) {
            c_layer[s] = EXPERTS / RANKS + (int32_t)(trial % 3 ? 8 * uniform() : 0);
            c_exp[s] = LAYERS * (EXPERTS / RANKS + trial % 2);
        }
        if (!place(&costs, limit, c_layer, c_exp, &met)) {
            double again = 0;
            refused++;
            if (!place(&costs, met, c_layer, c_exp, &again))
                fail_msg("trial %d: %g is refused, %g said to be met, then %g", trial, limit, met, again);
        }
        cot_costs_free(&costs);
    }
    assert_true(refused > 0);
}

/* Equal experts and room on the cheap ranks: all the same, every rank has to take its share. */
static void test_room_to_spare(void **state)
{
    (void)state;
    cot_costs costs = draw(0);
    int32_t c_layer[RANKS], c_exp[RANKS];
    double met = 0;
    for (int i = 0; i < LAYERS * EXPERTS; i++) costs.load[i] = 100;
    for (int s = 0; s < RANKS; s++) c_exp[s] = LAYERS * (c_layer[s] = EXPERTS);
    assert_true(place(&costs, 1, c_layer, c_exp, &met));
    cot_costs_free(&costs);
}

/* Places `experts` of load 1 (or drawn ones) at these costs within the limit, and ends. */
static void end(int32_t experts, int32_t ranks, const double *cost, double limit, bool drawn)
{
    cot_load_counts load;
    cot_costs costs;
    cot_expert_map map;
    cot_error error;
    assert_int_equal(cot_load_counts_new(&load, 1, 1, experts, &error), COT_OK);
    for (int32_t e = 0; e < experts; e++) load.tokens[e] = drawn ? 1 + floor(3 * uniform()) : 1;
    const cot_costs_options options = {.size = sizeof options, .cost = cost, .n_ranks = ranks};
    assert_int_equal(cot_costs_open(&costs, &load, NULL, &options, &error), COT_OK);
    const cot_place_options within = {.size = sizeof within, .method = "ilpload", .max_load = limit};
    if (cot_place(&map, NULL, &costs, &within, &error) == COT_OK) {
        if (cot_place_verify(&map, &costs, &within, &error) != COT_OK) fail_msg("%s", error.message);
        cot_expert_map_free(&map);
    } else
        assert_non_null(strstr(error.message, "the smallest feasible found is "));
    cot_costs_free(&costs);
    cot_load_counts_free(&load);
}

/* Beside a cost of 1e16 what an exchange of two small costs saves is rounded: an exchange of equals seemed to save 1, for
 * ever. */
static void test_far_costs(void **state)
{
    (void)state;
    const struct itimerval minute = {.it_value.tv_sec = 60}, none = {0};
    setitimer(ITIMER_VIRTUAL, &minute, NULL); // of its own work: a busy machine makes no test hang
    end(2, 2, (const double[]){3, 1e16}, 1, false);
    end(4, 2, (const double[]){3, 1e16}, 1.5, false);
    for (int trial = 0; trial < 300; trial++) {
        double cost[RANKS];
        const int32_t ranks = 2 + (int32_t)(3 * uniform());
        for (int32_t s = 0; s < ranks; s++)
            cost[s] = floor(1 + 9 * uniform()) * pow(10, floor(19 * uniform()));
        end(ranks * (1 + (int32_t)(3 * uniform())), ranks, cost, 1 + uniform(), trial % 2);
    }
    setitimer(ITIMER_VIRTUAL, &none, NULL);
}

int main(void)
{
    test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_limits),
                                       cmocka_unit_test(test_room_to_spare),
                                       cmocka_unit_test(test_far_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
