/* EPLB against the maps that the public reference computes. */
#include "coterie/placement.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Maps `load` [L][E] and demands `want` [L][slots]; `slots_of` (may be NULL) [L][E][] compared as sets. */
static void demand(const double *load, int64_t L, int64_t E, int64_t slots, int64_t groups, int64_t nodes,
                   int64_t gpus, const int64_t *want, const json_t *slots_of, const json_t *replicas,
                   const char *name)
{
    int64_t most = slots - E + 1, *map = malloc((size_t)(L * slots) * 8),
            *back = malloc((size_t)(L * E * most) * 8), *count = malloc((size_t)(L * E) * 8);
    cot_error error;
    memset(map, 0xa5, (size_t)(L * slots) * 8);
    if (cot_eplb_rebalance(map, back, count, load, L, E, slots, groups, nodes, gpus, most, &error) != COT_OK)
        fail_msg("%s: %s", name, error.message);
    for (int64_t i = 0; i < L * slots; i++)
        if (map[i] != want[i])
            fail_msg("%s: slot %lld is %lld, expected %lld", name, (long long)i, (long long)map[i],
                     (long long)want[i]);
    for (int64_t l = 0; slots_of && l < L; l++)
        for (int64_t e = 0; e < E; e++) {
            const int64_t *mine = back + (l * E + e) * most;
            const json_t *theirs = json_array_get(json_array_get(slots_of, (size_t)l), (size_t)e);
            int64_t n = 0, m = 0, sum = 0;
            for (int64_t i = 0; i < most; i++)
                if (mine[i] >= 0) {
                    assert_int_equal(map[l * slots + mine[i]], e);
                    sum += mine[i] * mine[i];
                    n++;
                }
            for (size_t i = 0; i < json_array_size(theirs); i++) {
                int64_t x = json_integer_value(json_array_get(theirs, i));
                m += x >= 0;
                sum -= x >= 0 ? x * x : 0;
            }
            assert_int_equal(n, m);
            assert_int_equal(sum, 0);
            assert_int_equal(count[l * E + e], json_integer_value(json_array_get(
                                                   json_array_get(replicas, (size_t)l), (size_t)e)));
        }
    free(map);
    free(back);
    free(count);
}

static void test_readme(void **state)
{
    (void)state;
    const double load[24] = {90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                             20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};
    const int64_t want[32] = {5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                              7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1};
    demand(load, 2, 12, 16, 4, 2, 8, want, NULL, NULL, "the reference's example");
}

static int64_t number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void test_golden(void **state)
{
    (void)state;
    FILE *file = fopen(COT_SHARED "/golden/eplb/vectors.jsonl", "r");
    if (!file) {
        print_message("SKIPPED: no " COT_SHARED "/golden/eplb/vectors.jsonl\n");
        skip();
    }
    char *line = NULL, name[32];
    size_t room = 0;
    int cases = 0;
    while (getline(&line, &room, file) > 0) {
        json_t *o = json_loads(line, 0, NULL), *load = json_object_get(o, "load"),
               *map = json_object_get(o, "physical_to_logical");
        size_t L = json_array_size(load), E = json_array_size(json_array_get(load, 0));
        size_t slots = (size_t)number(o, "slots");
        double *weight = malloc(L * E * sizeof *weight);
        int64_t *want = malloc(L * slots * sizeof *want);
        for (size_t l = 0; l < L; l++) {
            for (size_t e = 0; e < E; e++)
                weight[l * E + e] = json_number_value(json_array_get(json_array_get(load, l), e));
            for (size_t i = 0; i < slots; i++)
                want[l * slots + i] = json_integer_value(json_array_get(json_array_get(map, l), i));
        }
        snprintf(name, sizeof name, "case %d", cases++);
        demand(weight, (int64_t)L, (int64_t)E, (int64_t)slots, number(o, "groups"), number(o, "nodes"),
               number(o, "gpus"), want, json_object_get(o, "logical_to_physical"),
               json_object_get(o, "replicas"), name);
        free(weight);
        free(want);
        json_decref(o);
    }
    free(line);
    fclose(file);
    assert_int_equal(cases, 200);
}

static void refuse(int64_t E, int64_t slots, int64_t groups, int64_t nodes, int64_t gpus, double load,
                   const char *words)
{
    double weight[64];
    int64_t map[256], back[4096], count[64];
    cot_error error;
    for (int i = 0; i < 64; i++) weight[i] = load;
    assert_int_equal(
        cot_eplb_rebalance(map, back, count, weight, 1, E, slots, groups, nodes, gpus, 16, &error),
        COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse(8, 7, 1, 1, 1, 1, "7 slots for 8 experts");
    refuse(8, 9, 1, 1, 2, 1, "2 ranks do not divide 9 slots");
    refuse(8, 12, 3, 3, 3, 1, "3 groups do not divide 8 experts");
    refuse(8, 12, 4, 4, 6, 1, "4 nodes do not divide 6 ranks");
    refuse(8, 8, 1, 1, 1, -1, "the load of expert 0 is -1");
    refuse(8, 8, 1, 1, 1, 0.0 / 0.0, "the load of expert 0 is");
    refuse(1, 32, 1, 1, 1, 1, "more than 16 replicas");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_readme), cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
