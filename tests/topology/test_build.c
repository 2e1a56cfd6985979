/* Graphs from parameters: the distances that their text promises, and what is refused. */
#include "coterie/topology.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static double *all(cot_topology *t, const char *spec, int32_t ranks)
{
    cot_error error;
    if (cot_topology_build(t, spec, ranks, &error) != COT_OK) fail_msg("%s", error.message);
    double *d = malloc((size_t)t->n_ranks * (size_t)t->n_ranks * sizeof *d);
    memset(d, 0xa5, (size_t)t->n_ranks * (size_t)t->n_ranks * sizeof *d);
    if (cot_topology_distances(d, t, (cot_metric){0}, &error) != COT_OK) fail_msg("%s", error.message);
    return d;
}

/* Demands hops(a, b) for all pairs; s is the number of GPUs a server. */
#define DEMAND(spec, ranks, expression)                                                                      \
    do {                                                                                                     \
        cot_topology t;                                                                                      \
        double *d = all(&t, spec, ranks);                                                                    \
        for (int a = 0; a < t.n_ranks; a++)                                                                  \
            for (int b = 0; b < t.n_ranks; b++) {                                                            \
                double want = expression, got = d[a * t.n_ranks + b];                                        \
                if (got != want) fail_msg("%s: %d to %d is %g, expected %g", spec, a, b, got, want);         \
            }                                                                                                \
        free(d);                                                                                             \
        cot_topology_free(&t);                                                                               \
    } while (0)

static double tree(int a, int b, int gpus, int leaf, int pod, int half)
{
    if (a / gpus == b / gpus) return 0;
    if (a / leaf == b / leaf) return 2;
    if (a / pod == b / pod) return 4;
    return a / half == b / half ? 6 : 8;
}

static double dragonfly(int a, int b, int gpus, int router, int group, int ring)
{
    if (a / gpus == b / gpus) return 0;
    if (a / router == b / router) return 2;
    if (a / group == b / group) return 3;
    int from = a / group, to = b / group, hops = 1;
    if (ring) {
        hops = abs(from - to);
        hops = hops < ring - hops ? hops : ring - hops;
    }
    return 2 + hops + (a % group >= router) + (b % group >= router);
}

static void test_trees(void **state)
{
    (void)state;
    DEMAND("fattree", 256, tree(a, b, 4, 16, 64, 256));
    DEMAND("fattree:ranks=256,gpus=4,servers=4,leaves=4", 0, tree(a, b, 4, 16, 64, 256));
    DEMAND("fattree:gpus=1,servers=1", 32, tree(a, b, 1, 1, 4, 32));
    DEMAND("fattree-sparse", 256, tree(a, b, 4, 16, 64, 128));
    DEMAND("fattree:ranks=36,gpus=2,servers=3,leaves=2,spines=1", 36, tree(a, b, 2, 6, 12, 36));
    DEMAND("fattree:ranks=1,gpus=1", 0, 0 * a * b);
    DEMAND("rail:ranks=64,gpus=4,servers=8", 0,
           a / 4 == b / 4                       ? 0
           : a % 4 == b % 4 && a / 32 == b / 32 ? 2
                                                : 4);
    DEMAND("rail:ranks=32,gpus=4,servers=8,pxn=1", 0, a / 4 == b / 4 ? 0 : 2);
}

static void test_flies(void **state)
{
    (void)state;
    DEMAND("dragonfly", 256, dragonfly(a, b, 4, 16, 64, 0));
    DEMAND("dragonfly-sparse", 256, dragonfly(a, b, 4, 16, 64, 4));
    DEMAND("dragonfly-sparse:gpus=1,servers=1,routers=2", 18, dragonfly(a, b, 1, 1, 2, 9));
    DEMAND("complete", 7, a != b);
    DEMAND("complete:gpus=4", 16, a / 4 != b / 4);
    DEMAND("node", 0, 0 * a * b);
    DEMAND("node:domain=4", 8, a / 4 == b / 4 ? 0 : 2);
}

static void test_dragonfly_plus(void **state)
{
    (void)state;
    cot_topology t;
    double *d = all(&t, "dragonfly+:ranks=256", 0);
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            double x = d[a * 256 + b];
            if (a / 64 == b / 64)
                assert_true(x == tree(a, b, 4, 16, 64, 256));
            else
                assert_true(x == 5 || x == 6 || x == 7);
        }
    free(d);
    cot_topology_free(&t);
}

/* Diameter 2 between routers, for primes of both kinds; every router has (3q - delta) / 2 links to routers. */
static void test_slimfly(void **state)
{
    (void)state;
    static const int primes[] = {5, 7, 11, 13};
    for (int i = 0; i < 4; i++) {
        char spec[64];
        cot_topology t;
        int q = primes[i], n = 2 * q * q, delta = q % 4 == 1 ? 1 : -1;
        snprintf(spec, sizeof spec, "slimfly:q=%d,gpus=1", q);
        double *d = all(&t, spec, n);
        for (int k = 0; k < n * n; k++) assert_true(k % (n + 1) ? d[k] == 3 || d[k] == 4 : d[k] == 0);
        int *degree = calloc((size_t)t.n_vertices, sizeof *degree);
        for (int64_t k = 0; k < t.n_links; k++)
            if (t.links[k].from >= 2 * n && t.links[k].to >= 2 * n) degree[t.links[k].from]++;
        for (int v = 2 * n; v < t.n_vertices; v++) assert_int_equal(degree[v], (3 * q - delta) / 2);
        free(degree);
        free(d);
        cot_topology_free(&t);
    }
}

/* Costs: the best of all routes, also where the one of least latency is the narrower. */
static void test_cost(void **state)
{
    (void)state;
    cot_topology t;
    cot_error error;
    double d[4];
    assert_int_equal(
        cot_topology_build(&t, "complete:ranks=2,gpus=1,latency=2,bandwidth=10,nvlink=100", 0, &error), 0);
    assert_int_equal(cot_topology_distances(d, &t, (cot_metric){true, 1e6}, &error), COT_OK);
    assert_true(fabs(d[1] - (3 + 1e6 / 10e3)) <= 1e-9);
    assert_true(d[0] == 0);
    cot_topology_free(&t);
}

static void refuse(const char *spec, int32_t ranks, const char *words)
{
    cot_topology t;
    cot_error error = {0};
    if (cot_topology_build(&t, spec, ranks, &error) != COT_INVALID_ARGUMENT)
        fail_msg("'%s' was accepted", spec);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
    assert_null(t.owner);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("torus:ranks=4", 0, "'torus' is neither a file nor a topology (fattree,");
    refuse("fattree", 0, "does not say how many ranks");
    refuse("fattree:ranks=256", 128, "has 256 ranks, expected 128");
    refuse("fattree:ranks=250", 0, "250 ranks are no multiple of gpus=4");
    refuse("fattree:ranks=1.5", 0, "whole number from 1 to");
    refuse("fattree:ranks=nan", 0, "whole number from 1 to");
    refuse("fattree:ranks", 0, "has no value");
    refuse("fattree:colour=3", 4, "'colour' is no parameter of fattree");
    refuse("dragonfly:leaves=3", 4, "'leaves' is no parameter of dragonfly");
    refuse("slimfly:q=9", 4, "no prime");
    refuse("node:domain=3", 8, "no multiple of domain=3");
    refuse("fattree:ranks=4x", 0, "takes a whole number");
}

/* All that enters a link leaves it: what ranks send and receive adds up, and links inside a server carry no hop. */
static void test_link_loads(void **state)
{
    (void)state;
    cot_topology t;
    cot_error error;
    double *d = all(&t, "fattree", 64), *load = malloc((size_t)t.n_links * sizeof *load),
           *traffic = calloc(64 * 64, 8);
    double hops = 0, carried = 0;
    for (int i = 0; i < 64 * 64; i++) {
        traffic[i] = i % 7;
        hops += traffic[i] * d[i];
    }
    assert_int_equal(cot_topology_link_loads(load, &t, traffic, &error), COT_OK);
    for (int64_t k = 0; k < t.n_links; k++) carried += load[k] * t.links[k].hops;
    assert_true(fabs(carried - (hops)) <= 1e-6 * hops);
    for (int i = 0; i < 64 * 64; i++) traffic[i] = 0;
    traffic[0 * 64 + 63] = 16; // through four spines and as many leaves' ways: evenly
    assert_int_equal(cot_topology_link_loads(load, &t, traffic, &error), COT_OK);
    for (int64_t k = 0; k < t.n_links; k++) {
        if (!strncmp(t.labels[t.links[k].from], "leaf", 4) && load[k] > 0 &&
            !strncmp(t.labels[t.links[k].to], "sp", 2))
            assert_true(fabs(load[k] - (4)) <= 1e-12);
        assert_true(load[k] >= 0 && load[k] <= 16);
    }
    free(load);
    free(traffic);
    free(d);
    cot_topology_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),          cmocka_unit_test(test_flies),
        cmocka_unit_test(test_dragonfly_plus), cmocka_unit_test(test_slimfly),
        cmocka_unit_test(test_cost),           cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_link_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
