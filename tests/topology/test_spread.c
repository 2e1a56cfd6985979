/* How many pairs are how far apart, and distances in hops, against relaxing every link until nothing changes. */
#include "coterie/topology.h"

#include "base/rng.h"
#include "harness/seed.h"
#include "topology/graph.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 40 };

struct draw {
    uint64_t seed, count;
};

/* Below `n`. */
static int32_t below(struct draw *draw, int32_t n)
{
    return (int32_t)(cot_random_bits(draw->seed, 0, draw->count++) % (uint64_t)n);
}

/* A few switches, ranks at some of them, of which several often hang on the same links. `fractions`: hops besides 0, 1. */
static void open_graph(cot_topology *t, bool fractions, struct draw *draw)
{
    const int32_t ranks = 1 + below(draw, 12), switches = 1 + below(draw, 8);
    const double hops[] = {0, 1, fractions ? 0.5 : 0, fractions ? 3 : 1};
    assert_int_equal(cot_graph_start(t, "drawn", NULL), COT_OK);
    assert_true(cot_graph_ranks(t, ranks));
    for (int32_t s = 0; s < switches; s++) assert_int_equal(cot_graph_vertex(t, "switch %d", s), ranks + s);
    for (int32_t s = 1; s < switches; s++) // a tree joins all
        assert_true(cot_graph_cable(
            t, (cot_topology_link){ranks + s, ranks + below(draw, s), hops[below(draw, 4)], 1, 10}));
    for (int32_t extra = below(draw, 12); extra > 0; extra--)
        assert_true(cot_graph_link(t, (cot_topology_link){below(draw, ranks + switches),
                                                          below(draw, ranks + switches), hops[below(draw, 4)],
                                                          2, 5}));
    for (int32_t r = 0; r < ranks; r++) {
        const cot_topology_link link = {r, ranks + below(draw, switches), hops[below(draw, 4)],
                                        below(draw, 4) ? 1 : 4, below(draw, 4) ? 10 : 3};
        assert_true(cot_graph_cable(t, link));
    }
    t->ranks_forward = below(draw, 4) == 0;
    assert_int_equal(cot_graph_finish(t, true, NULL), COT_OK);
}

static void relax(double *best, const cot_topology *t, int32_t from)
{
    for (int32_t v = 0; v < t->n_vertices; v++) best[v] = v == from ? 0 : INFINITY;
    for (bool changed = true; changed;) {
        changed = false;
        for (int64_t i = 0; i < t->n_links; i++) {
            const cot_topology_link *l = &t->links[i];
            if (l->from < t->n_ranks && l->from != from && !t->ranks_forward) continue;
            if (best[l->from] + l->hops < best[l->to]) {
                best[l->to] = best[l->from] + l->hops;
                changed = true;
            }
        }
    }
}

static void assert_counts(const cot_topology *t, cot_metric metric, const double *distance)
{
    cot_distance_count *counts;
    size_t n;
    int64_t pairs = 0;
    assert_int_equal(cot_topology_spread(&counts, &n, t, metric, NULL), COT_OK);
    for (size_t i = 0; i < n; i++) {
        int64_t found = 0;
        assert_true(i == 0 || counts[i - 1].distance < counts[i].distance);
        for (int32_t a = 0; a < t->n_ranks; a++)
            for (int32_t b = 0; b < t->n_ranks; b++)
                found += a != b && distance[a * t->n_ranks + b] == counts[i].distance;
        assert_int_equal(counts[i].pairs, found);
        pairs += found;
    }
    assert_int_equal(pairs, t->n_ranks * (t->n_ranks - 1));
    free(counts);
}

static void drawn_graphs(void **state)
{
    (void)state;
    struct draw draw = {.seed = test_seed()};
    for (int round = 0; round < 500; round++) {
        cot_topology t;
        double hops[MOST * MOST], cost[MOST * MOST], best[MOST];
        open_graph(&t, round % 2, &draw);
        assert_int_equal(cot_topology_distances(hops, &t, (cot_metric){0}, NULL), COT_OK);
        for (int32_t r = 0; r < t.n_ranks; r++) {
            relax(best, &t, r);
            assert_memory_equal(hops + r * t.n_ranks, best, (size_t)t.n_ranks * sizeof *best);
            double back[MOST];
            assert_int_equal(cot_topology_distances_of(back, &t, (cot_metric){0}, r, true, NULL), COT_OK);
            for (int32_t from = 0; from < t.n_ranks; from++) {
                relax(best, &t, from);
                assert_true(back[from] == best[r]);
            }
        }
        assert_counts(&t, (cot_metric){0}, hops);
        const cot_metric metric = {true, 30000};
        assert_int_equal(cot_topology_distances(cost, &t, metric, NULL), COT_OK);
        assert_counts(&t, metric, cost);
        cot_topology_free(&t);
    }
}

/* Distances that are all different: more than the table begins with. */
static void many_distances(void **state)
{
    (void)state;
    enum { RANKS = 30 };
    cot_topology t;
    double distance[RANKS * RANKS];
    assert_int_equal(cot_graph_start(&t, "matrix", NULL), COT_OK);
    assert_true(cot_graph_ranks(&t, RANKS));
    for (int32_t a = 0; a < RANKS; a++)
        for (int32_t b = 0; b < RANKS; b++) {
            distance[a * RANKS + b] = a == b ? 0 : a * RANKS + b;
            if (a != b) assert_true(cot_graph_link(&t, (cot_topology_link){a, b, a * RANKS + b, 1, 1}));
        }
    assert_int_equal(cot_graph_finish(&t, true, NULL), COT_OK);
    assert_counts(&t, (cot_metric){0}, distance);
    cot_topology_free(&t);
}

static void no_route(void **state)
{
    (void)state;
    cot_topology t;
    cot_distance_count *counts;
    size_t n;
    cot_error error;
    assert_int_equal(cot_graph_start(&t, "apart", NULL), COT_OK);
    assert_true(cot_graph_ranks(&t, 2));
    assert_int_equal(cot_graph_finish(&t, true, NULL), COT_OK);
    assert_int_equal(cot_topology_spread(&counts, &n, &t, (cot_metric){0}, &error), COT_MALFORMED);
    assert_null(counts);
    assert_non_null(strstr(error.message, "no route from 'rank 0' to 'rank 1'"));
    cot_topology_free(&t);
    assert_int_equal(cot_topology_build(&t, "complete:ranks=1", 1, NULL), COT_OK);
    assert_int_equal(cot_topology_spread(&counts, &n, &t, (cot_metric){0}, NULL), COT_OK);
    assert_true(counts == NULL && n == 0);
    cot_topology_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_graphs), cmocka_unit_test(many_distances),
                                       cmocka_unit_test(no_route)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
