/* Exchanges of slots towards the cheap ranks, against the same exchanges without anything kept or estimated: every pair
 * of slots is weighed anew by what both experts cost before and after. */
#include "placement/methods.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_RANKS = 16, MOST_SLOTS = 64, MOST_EXPERTS = 32 };

static uint64_t at;
static double uniform(void)
{
    return cot_random_uniform(test_seed(), 6, at++);
}
static int32_t below(int32_t n)
{
    return (int32_t)(uniform() * n);
}

/* A layer whose slots are exchanged. */
typedef struct exchanging {
    cot_slots *s;
    const cot_costs *c;
    int32_t l;
    cot_dispatch dispatch;
} exchanging;

/* The ranks of expert e, slot `but` (-1: none) counted as on rank `instead`; returns how many. */
static int32_t ranks_of(int32_t *rank, const exchanging *x, int32_t e, int32_t but, int32_t instead)
{
    int32_t n = 0;
    for (int32_t i = 0; i < x->s->S * x->s->slots; i++)
        if (x->s->expert[i] == e) rank[n++] = i == but ? instead : i / x->s->slots;
    return n;
}

/* `load` goes to the nearest of rank[0..k) by `way`, or evenly to all; returns the mean way. Adds to served [S]. */
static double split(double *served, double load, const int32_t *rank, int32_t k, const double *way,
                    cot_dispatch dispatch)
{
    double least = INFINITY, sum = 0;
    int32_t chosen = 0;
    for (int32_t i = 0; i < k; i++) least = fmin(least, way[rank[i]]);
    if (dispatch == COT_DISPATCH_UNIFORM) least = INFINITY;
    for (int32_t i = 0; i < k; i++) chosen += way[rank[i]] <= least;
    for (int32_t i = 0; i < k; i++) {
        if (way[rank[i]] > least) continue;
        served[rank[i]] += load / chosen;
        sum += way[rank[i]] / chosen;
    }
    return sum;
}

/* What expert e costs with slot `but` on rank `instead`, and what each rank then serves of it [S]. */
static double serve(double *served, const exchanging *x, int32_t e, int32_t but, int32_t instead)
{
    const cot_costs *c = x->c;
    int32_t rank[MOST_SLOTS], S = c->n_ranks, E = c->n_experts, k = ranks_of(rank, x, e, but, instead);
    double load = c->load[x->l * E + e], sum = 0;
    memset(served, 0, (size_t)S * sizeof *served);
    if (c->pair && !(x->dispatch == COT_DISPATCH_NEAREST && c->round_trip))
        return split(served, load, rank, k, c->pair + (x->l * E + e) * S, x->dispatch);
    if (x->dispatch == COT_DISPATCH_UNIFORM || !c->round_trip)
        return load * split(served, load, rank, k, c->cost + x->l * S, x->dispatch);
    for (int32_t r = 0; r < S; r++) {
        double sent = c->sent ? c->sent[(x->l * S + r) * E + e] : load / S;
        sum += sent * split(served, sent, rank, k, c->round_trip + r * S, x->dispatch);
    }
    return sum;
}

static bool on_rank(const cot_slots *s, int32_t rank, int32_t e)
{
    for (int32_t i = 0; i < s->slots; i++)
        if (s->expert[rank * s->slots + i] == e) return true;
    return false;
}

/* Exchanges slots i and j if that saves more than `least` and no rank goes beyond the limit by it. */
static bool exchange(exchanging *x, double *sum, int32_t i, int32_t j, double least, double limit)
{
    int32_t *expert = x->s->expert, a = i / x->s->slots, b = j / x->s->slots, e = expert[i], f = expert[j];
    double before[2][MOST_RANKS], after[2][MOST_RANKS], change[MOST_RANKS];
    if (e < 0 || f < 0 || e == f || on_rank(x->s, b, e) || on_rank(x->s, a, f)) return false;
    double saved = serve(before[0], x, e, -1, 0) + serve(before[1], x, f, -1, 0);
    saved -= serve(after[0], x, e, i, b) + serve(after[1], x, f, j, a);
    if (saved <= least) return false;
    for (int32_t r = 0; r < x->s->S; r++) {
        change[r] = after[0][r] - before[0][r] + after[1][r] - before[1][r];
        if (change[r] > 1e-9 * limit && sum[r] + change[r] > limit * (1 + 1e-9)) return false;
    }
    for (int32_t r = 0; r < x->s->S; r++) sum[r] += change[r];
    expert[i] = f;
    expert[j] = e;
    return true;
}

/* What cot_slots_near does. */
static void exchange_all(exchanging *x, double limit)
{
    int32_t all = x->s->S * x->s->slots;
    double sum[MOST_RANKS] = {0}, served[MOST_RANKS], cost = 0;
    bool changed = true;
    for (int32_t e = 0; e < x->s->E; e++) {
        cost += serve(served, x, e, -1, 0);
        for (int32_t r = 0; r < x->s->S; r++) sum[r] += served[r];
    }
    for (int sweep = 0; sweep < 32 && changed; sweep++) {
        changed = false;
        for (int32_t i = 0; i < all; i++)
            for (int32_t j = (i / x->s->slots + 1) * x->s->slots; j < all; j++)
                changed = exchange(x, sum, i, j, 1e-9 * cost / all, limit) || changed;
    }
}

/* A cluster of few ranks, its distances a little uneven now and then, with whole loads and, maybe, known sources. */
static cot_costs draw_costs(int32_t L, int32_t E, cot_dispatch dispatch)
{
    static const char *const specs[] = {"fattree:ranks=8,gpus=2,servers=2,leaves=2",
                                        "fattree:ranks=16,gpus=2,servers=2,leaves=2",
                                        "fattree:ranks=6,gpus=1,servers=1,leaves=3",
                                        "complete:ranks=5,gpus=1",
                                        "dragonfly:ranks=16,gpus=2",
                                        "node:ranks=8,domain=4"};
    cot_topology topology;
    cot_load_counts load;
    cot_costs costs;
    cot_error error;
    if (cot_topology_build(&topology, specs[below(6)], 0, &error) != COT_OK) fail_msg("%s", error.message);
    bool sources = below(2);
    int32_t S = topology.n_ranks, most = below(2) ? 5 : 1000;
    assert_int_equal(cot_load_counts_new(&load, L, sources ? S : 1, E, &error), COT_OK);
    load.sources_known = sources;
    for (int32_t i = 0; i < L * load.n_sources * E; i++) load.tokens[i] = below(most) + !sources;
    for (int32_t l = 0; l < L; l++) load.tokens[l * load.n_sources * E] += 1; // some
    const cot_costs_options options = {.size = sizeof options,
                                       .attention = below(4) ? COT_ATTENTION_DP : COT_ATTENTION_PAPER,
                                       .metric = {.cost = below(3) == 0, .bytes = 14336},
                                       .dispatch = dispatch};
    if (cot_costs_open(&costs, &load, &topology, &options, &error) != COT_OK) fail_msg("%s", error.message);
    for (int32_t r = 0; costs.round_trip && most == 5 && r < S; r++)
        for (int32_t s = 0; s < r; s++)
            costs.round_trip[r * S + s] = costs.round_trip[s * S + r] += 0.125 * below(3);
    cot_load_counts_free(&load);
    cot_topology_free(&topology);
    return costs;
}

/* Every expert in a slot, the others of any experts, also twice on a rank, or empty. */
static void draw_slots(int32_t *expert, int32_t n, int32_t E)
{
    for (int32_t i = 0; i < n; i++) expert[i] = -1;
    for (int32_t e = 0; e < E; e++) {
        int32_t i = below(n);
        while (expert[i] >= 0) i = (i + 1) % n;
        expert[i] = e;
    }
    for (int32_t i = 0; i < n; i++)
        if (expert[i] < 0 && below(8)) expert[i] = below(E);
}

static void test_exchanges(void **state)
{
    (void)state;
    int64_t moved = 0, by_source = 0;
    for (int i = 0; i < 500; i++) {
        enum { L = 2 };
        cot_dispatch dispatch = i % 4 ? COT_DISPATCH_NEAREST : COT_DISPATCH_UNIFORM;
        int32_t E = 2 + below(MOST_EXPERTS - 1), l = below(L);
        cot_costs costs = draw_costs(L, E, dispatch);
        int32_t S = costs.n_ranks, least = (E + S - 1) / S, slots = least + below(MOST_SLOTS / S - least + 1),
                n = S * slots, start[MOST_SLOTS], fast[MOST_SLOTS], slow[MOST_SLOTS],
                replicas[MOST_EXPERTS] = {0};
        draw_slots(start, n, E);
        memcpy(fast, start, sizeof fast);
        memcpy(slow, start, sizeof slow);
        for (int32_t k = 0; k < n; k++)
            if (start[k] >= 0) replicas[start[k]]++;
        cot_slots layer = {S, E, slots, fast, costs.load + l * E, replicas};
        double total = 0;
        for (int32_t e = 0; e < E; e++) total += layer.load[e];
        // loads are whole or simple fractions: no sum is so close to such a limit that rounding would decide
        double limit = total / S * (1 + 1.5 * uniform());
        cot_error error;
        assert_int_equal(cot_slots_near(&layer, &costs, l, dispatch, limit, &error), COT_OK);
        cot_slots same = layer;
        same.expert = slow;
        exchange_all(&(exchanging){&same, &costs, l, dispatch}, limit);
        if (!costs.indifferent || costs.round_trip) // else it is left alone
            for (int32_t k = 0; k < n; k++)
                if (fast[k] != slow[k]) fail_msg("case %d: slot %d holds %d, not %d", i, k, fast[k], slow[k]);
        for (int32_t k = 0; k < n; k++) moved += fast[k] != start[k];
        by_source += costs.round_trip && memcmp(fast, start, (size_t)n * sizeof *fast);
        cot_costs_free(&costs);
    }
    assert_true(moved > 500 && by_source > 50);
    printf("%lld slots changed; %lld layers by source\n", (long long)moved, (long long)by_source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exchanges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
