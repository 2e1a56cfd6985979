/* EPLB against the maps that the public reference computed. */
#include "harness/cmocka.h"
#include "harness/placement/samples.h"
#include "harness/refused.h"
#include "harness/cmocka.h"

#include "coterie/placement.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double weight[1 << 16];
static int64_t p2l[1 << 16], l2p[1 << 20], count[1 << 16];

static int64_t whole(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static int by_slot(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The replicas' slots as a set: ties order them. */
static void assert_same_slots(const int64_t *slots, const json_t *expected, int64_t n)
{
    int64_t mine[1024], theirs[1024];
    assert_true(n <= 1024);
    for (int64_t i = 0; i < n; i++) {
        mine[i] = slots[i];
        theirs[i] = json_integer_value(json_array_get(expected, (size_t)i));
    }
    qsort(mine, (size_t)n, sizeof *mine, by_slot);
    qsort(theirs, (size_t)n, sizeof *theirs, by_slot);
    assert_memory_equal(mine, theirs, (size_t)n * sizeof *mine);
}

static void check_case(const json_t *o, int number)
{
    const json_t *load = json_object_get(o, "load"), *maps = json_object_get(o, "physical_to_logical");
    const json_t *places = json_object_get(o, "logical_to_physical"),
                 *counts = json_object_get(o, "replicas");
    int64_t L = (int64_t)json_array_size(load), E = (int64_t)json_array_size(json_array_get(load, 0));
    int64_t slots = whole(o, "slots"),
            R = (int64_t)json_array_size(json_array_get(json_array_get(places, 0), 0));
    for (int64_t l = 0; l < L; l++)
        for (int64_t e = 0; e < E; e++)
            weight[l * E + e] = json_number_value(json_array_get(json_array_get(load, (size_t)l), (size_t)e));
    memset(p2l, 0xa5, sizeof p2l);
    memset(l2p, 0xa5, sizeof l2p);
    cot_error error = {0};
    if (cot_eplb_rebalance(
            p2l, l2p, count, weight,
            &(cot_eplb_sizes){L, E, slots, whole(o, "groups"), whole(o, "nodes"), whole(o, "gpus"), R},
            &error) != COT_OK)
        fail_msg("case %d: %s", number, error.message);
    for (int64_t l = 0; l < L; l++) {
        const json_t *map = json_array_get(maps, (size_t)l), *place = json_array_get(places, (size_t)l);
        for (int64_t i = 0; i < slots; i++)
            if (p2l[l * slots + i] != json_integer_value(json_array_get(map, (size_t)i)))
                fail_msg("case %d: layer %d, slot %d differs", number, (int)l, (int)i);
        for (int64_t e = 0; e < E; e++) {
            assert_int_equal(count[l * E + e], json_integer_value(json_array_get(
                                                   json_array_get(counts, (size_t)l), (size_t)e)));
            assert_same_slots(l2p + (l * E + e) * R, json_array_get(place, (size_t)e), R);
        }
    }
}

static void test_golden(void **state)
{
    (void)state;
    FILE *file = fopen(COT_SHARED "/golden/eplb/vectors.jsonl", "r");
    if (!file) {
        print_message("SKIPPED: no EPLB cases in '%s'\n", COT_SHARED);
        skip();
    }
    char *line = NULL;
    size_t room = 0;
    int cases = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0; cases++) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        assert_non_null(o);
        check_case(o, cases);
        json_decref(o);
    }
    free(line);
    fclose(file);
    assert_int_equal(cases, 200);
}

/* The example of EPLB's documentation. */
static void test_example(void **state)
{
    (void)state;
    static const double load[2 * 12] = {90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                                        20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};
    static const int64_t expected[2 * 16] = {5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                                             7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1};
    assert_int_equal(
        cot_eplb_rebalance(p2l, l2p, count, load, &(cot_eplb_sizes){2, 12, 16, 4, 2, 8, 5}, NULL), COT_OK);
    assert_memory_equal(p2l, expected, sizeof expected);
}

/* One of each; as many slots as experts; equal loads; no layers. */
static void test_edges(void **state)
{
    (void)state;
    const double one[1] = {3}, equal[6] = {2, 2, 2, 2, 2, 2}, zero[4] = {0};
    assert_int_equal(cot_eplb_rebalance(p2l, l2p, count, one, &(cot_eplb_sizes){1, 1, 4, 1, 1, 2, 4}, NULL),
                     COT_OK);
    for (int i = 0; i < 4; i++) assert_true(p2l[i] == 0 && l2p[i] >= 0 && l2p[i] < 4);
    assert_int_equal(count[0], 4);
    assert_int_equal(cot_eplb_rebalance(p2l, l2p, count, equal, &(cot_eplb_sizes){1, 6, 6, 1, 1, 6, 1}, NULL),
                     COT_OK);
    for (int i = 0; i < 6; i++) assert_true(p2l[i] == i && l2p[i] == i && count[i] == 1);
    assert_int_equal(cot_eplb_rebalance(p2l, l2p, count, zero, &(cot_eplb_sizes){1, 4, 8, 2, 2, 4, 5}, NULL),
                     COT_OK);
    assert_int_equal(cot_eplb_rebalance(p2l, l2p, count, NULL, &(cot_eplb_sizes){0, 4, 8, 2, 2, 4, 5}, NULL),
                     COT_OK);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        int64_t experts, slots, groups, nodes, gpus, replicas;
        double last;
        const char *words;
    } bad[] = {
        {4, 3, 1, 1, 1, 4, 1, "3 slots are too few for 4 experts"},
        {4, 6, 1, 1, 4, 4, 1, "4 GPUs do not divide 6 slots"},
        {4, 8, 3, 1, 4, 5, 1, "3 groups do not divide 4 experts"},
        {4, 9, 4, 2, 9, 5, 1, "2 nodes do not divide 9 GPUs"},
        {4, 8, 0, 1, 4, 5, 1, "0 groups"},
        {4, 8, 1, 1, 4, 5, -1, "layer 0, expert 3 has a load of -1"},
        {4, 8, 1, 1, 4, 5, 1e300, "expected a float32"},
        {4, 8, 1, 1, 4, 1, 1, "has over 1 replicas"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const double load[4] = {1, 2, 3, bad[i].last};
        cot_error error = {0};
        assert_refused(cot_eplb_rebalance(p2l, l2p, count, load,
                                          &(cot_eplb_sizes){1, bad[i].experts, bad[i].slots, bad[i].groups,
                                                            bad[i].nodes, bad[i].gpus, bad[i].replicas},
                                          &error),
                       &error, bad[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_example),
                                       cmocka_unit_test(test_edges), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
