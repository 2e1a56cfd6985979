/* Moves between placements with replicas, against set differences counted here: an expert that a rank holds costs it
 * nothing however many copies it wants, and one that it fetches is fetched once. */
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
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_uniform(test_seed(), 5, at++) * n);
}

/* Whether a rank has an expert in a layer of the model; nobody has one in a layer that the map lacks. */
static bool holds(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    for (int32_t l = 0; l < map->n_layers; l++)
        for (int32_t i = 0; map->layers[l] == layer && i < map->slots_per_rank; i++)
            if (map->expert[(l * map->n_ranks + rank) * map->slots_per_rank + i] == expert) return true;
    return false;
}

/* The set differences added up, rank name[r] of `from` counted as rank r of `to`. */
static int64_t difference(const cot_expert_map *from, const cot_expert_map *to, const int32_t *name)
{
    int64_t n = 0;
    for (int32_t l = 0; l < to->n_layers; l++)
        for (int32_t r = 0; r < to->n_ranks; r++)
            for (int32_t e = 0; e < to->n_experts; e++)
                n += holds(to, to->layers[l], r, e) && !holds(from, to->layers[l], name[r], e);
    return n;
}

static int64_t plain_difference(const cot_expert_map *from, const cot_expert_map *to)
{
    int32_t name[16];
    for (int32_t r = 0; r < 16; r++) name[r] = r;
    return difference(from, to, name);
}

/* The fewest over all renamings of the ranks. */
static int64_t least_difference(const cot_expert_map *from, const cot_expert_map *to, int32_t *name,
                                int32_t n)
{
    if (n == to->n_ranks) return difference(from, to, name);
    int64_t least = INT64_MAX;
    for (int32_t r = 0; r < to->n_ranks; r++) {
        bool taken = false;
        for (int32_t i = 0; i < n; i++) taken = taken || name[i] == r;
        if (taken) continue;
        name[n] = r;
        int64_t here = least_difference(from, to, name, n + 1);
        least = here < least ? here : least;
    }
    return least;
}

/* The transfers are the set differences, each from a rank that holds the expert, and no rank takes part twice a round. */
static void check_transfers(const cot_expert_map *from, const cot_expert_map *to)
{
    int64_t want = plain_difference(from, to), moves, n, most = 0;
    int32_t rounds, S = to->n_ranks, E = to->n_experts;
    cot_transfer *transfers;
    cot_error error;
    assert_int_equal(cot_place_moves(&moves, from, to, &error), COT_OK);
    assert_int_equal(moves, want);
    assert_int_equal(cot_place_transfers(&transfers, &n, &rounds, from, to, &error), COT_OK);
    assert_int_equal(n, want);
    int32_t *degree = calloc((size_t)S, sizeof *degree);
    bool *busy = calloc((size_t)S * (size_t)(rounds + 1), sizeof *busy);
    for (int64_t i = 0; i < n; i++) {
        const cot_transfer *t = &transfers[i];
        assert_in_range(t->to, 0, S - 1);
        assert_in_range(t->expert, 0, E - 1);
        assert_true(holds(to, t->layer, t->to, t->expert) && !holds(from, t->layer, t->to, t->expert));
        for (int64_t k = 0; k < i; k++)
            assert_false(transfers[k].layer == t->layer && transfers[k].expert == t->expert &&
                         transfers[k].to == t->to);
        if (t->from < 0) {
            for (int32_t r = 0; r < S; r++) assert_false(holds(from, t->layer, r, t->expert));
            assert_int_equal(t->round, -1);
            continue;
        }
        assert_true(t->from < S && t->from != t->to && holds(from, t->layer, t->from, t->expert));
        assert_in_range(t->round, 0, rounds - 1);
        const int32_t end[2] = {t->from, t->to};
        for (int k = 0; k < 2; k++) {
            assert_false(busy[t->round * S + end[k]]);
            busy[t->round * S + end[k]] = true;
            degree[end[k]]++;
        }
    }
    for (int32_t r = 0; r < S; r++) most = degree[r] > most ? degree[r] : most;
    assert_true(rounds >= most && rounds <= 2 * most);
    free(degree);
    free(busy);
    free(transfers);
}

/* A running placement: every expert somewhere, the other slots of any experts or empty. Layers 0, 1, ... */
static cot_expert_map draw_running(int32_t L, int32_t E, int32_t S, int32_t k)
{
    cot_expert_map map;
    cot_error error;
    assert_int_equal(cot_expert_map_new(&map, L, E, S, k, &error), COT_OK);
    for (int32_t l = 0; l < L; l++) {
        int32_t *slot = map.expert + l * S * k;
        for (int32_t e = 0; e < E; e++) {
            int32_t i = below(S * k);
            while (slot[i] >= 0) i = (i + 1) % (S * k);
            slot[i] = e;
        }
        for (int32_t i = 0; i < S * k; i++)
            if (slot[i] < 0 && below(5)) slot[i] = below(E);
    }
    return map;
}

/* Loads of the layers 1, 3, ... that a placement with 2 L + 1 layers has, too. */
static cot_costs draw_costs(int32_t L, int32_t E, int32_t S)
{
    cot_load_counts load;
    cot_costs costs;
    cot_error error;
    double *cost = malloc((size_t)(L * S) * sizeof *cost);
    assert_int_equal(cot_load_counts_new(&load, L, 1, E, &error), COT_OK);
    for (int32_t l = 0; l < L; l++) load.layers[l] = 2 * l + 1;
    for (int32_t i = 0; i < L * E; i++) load.tokens[i] = 1 + below(below(2) ? 10 : 1000);
    for (int32_t i = 0; i < L * S; i++) cost[i] = below(8);
    const cot_costs_options options = {.size = sizeof options, .n_ranks = S, .cost = below(2) ? cost : NULL};
    if (cot_costs_open(&costs, &load, NULL, &options, &error) != COT_OK) fail_msg("%s", error.message);
    cot_load_counts_free(&load);
    free(cost);
    return costs;
}

/* A replan within as many moves, or a refusal that says how many it takes. */
static void check_replan(const cot_expert_map *running, const cot_costs *costs, const cot_expert_map *fresh,
                         const double *peak, int64_t max_moves)
{
    cot_expert_map map;
    cot_error error;
    int64_t moves;
    cot_replan_options options = {
        .size = sizeof options,
        .peak = below(4) ? peak : NULL,
        .max_moves = max_moves,
        .move_cost = below(4) ? 0 : 0.01 * below(10),
        .slots_per_rank =
            running->slots_per_rank == fresh->slots_per_rank && below(2) ? 0 : fresh->slots_per_rank,
        .fresh = below(2) ? fresh : NULL};
    cot_status status = cot_place_replan(&map, &moves, running, costs, &options, &error);
    if (status != COT_OK) {
        const char *takes = strstr(error.message, "slots a rank takes ");
        assert_non_null(takes);
        options.max_moves = strtoll(takes + strlen("slots a rank takes "), NULL, 10);
        assert_true(max_moves >= 0 && max_moves < options.max_moves);
        status = cot_place_replan(&map, &moves, running, costs, &options, &error);
    }
    if (status != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(moves, plain_difference(running, &map));
    assert_true(options.max_moves < 0 || moves <= options.max_moves);
    if (options.fresh && options.peak && options.max_moves < 0 && options.move_cost <= 0) {
        cot_place_value value; // no layer is above the fresh placement's peak, which would stand in for it
        assert_int_equal(cot_place_value_of(&value, &map, costs, 0, &error), COT_OK);
        for (int32_t l = 0; l < map.n_layers; l++) assert_true(value.peak_load[l] <= peak[l] * (1 + 2e-6));
        cot_place_value_free(&value);
    }
    check_transfers(running, &map);
    cot_expert_map_free(&map);
}

/* A limit of as many moves as replanning takes without one changes nothing. */
static void check_exact_limit(const cot_expert_map *running, const cot_costs *costs)
{
    cot_expert_map map[2];
    cot_error error;
    int64_t moves = -1;
    for (int k = 0; k < 2; k++) {
        const cot_replan_options options = {.size = sizeof options, .max_moves = moves};
        if (cot_place_replan(&map[k], &moves, running, costs, &options, &error) != COT_OK)
            fail_msg("%s", error.message);
    }
    size_t n = (size_t)(map[0].n_layers * map[0].n_ranks * map[0].slots_per_rank);
    assert_memory_equal(map[0].expert, map[1].expert, n * sizeof *map[0].expert);
    cot_expert_map_free(&map[0]);
    cot_expert_map_free(&map[1]);
}

static void test_random_replans(void **state)
{
    (void)state;
    int64_t copies = 0; // cases in which a rank wants an expert twice
    for (int i = 0; i < 2000; i++) {
        int32_t L = 1 + below(3), S = 1 + below(i % 100 ? 6 : 12), E = 1 + below(i % 10 ? 10 : 40),
                least = (E + S - 1) / S;
        cot_expert_map running = draw_running(2 * L + 1, E, S, least + below(5)), fresh;
        cot_costs costs = draw_costs(L, E, S);
        const cot_place_method *method = &cot_place_methods[below(7)];
        cot_place_options options = {.size = sizeof options, .method = method->name};
        if (method->replicas) options.slots = S * (below(3) ? least + below(6) : running.slots_per_rank);
        cot_place_value value;
        cot_error error;
        if (cot_place(&fresh, NULL, &costs, &options, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(cot_place_value_of(&value, &fresh, &costs, 0, &error), COT_OK);
        if (method->replicas)
            check_replan(&running, &costs, &fresh, value.peak_load, below(3) ? below(L * S * 4) : -1);
        check_exact_limit(&running, &costs);
        if (!below(4)) running.n_layers = 2 * L - 1; // the last layer is nowhere yet
        check_transfers(&running, &fresh);
        copies += fresh.slots_per_rank > E;
        if (S <= 5) {
            int32_t name[16];
            int64_t moves, want = least_difference(&running, &fresh, name, 0);
            assert_int_equal(cot_place_relabel(&moves, &running, &fresh, &error), COT_OK);
            assert_int_equal(moves, want);
            assert_int_equal(plain_difference(&running, &fresh), want);
        }
        cot_place_value_free(&value);
        cot_costs_free(&costs);
        cot_expert_map_free(&running);
        cot_expert_map_free(&fresh);
    }
    assert_true(copies > 100);
}

/* Five slots a rank for four experts, from slots in which rank 0 holds expert 1 twice. */
static void test_copies_on_a_rank(void **state)
{
    (void)state;
    static const int32_t slots[8] = {1, 1, 3, 2, 0, 2, 3, 2};
    static const double tokens[4] = {1, 3, 8, 8};
    cot_expert_map running, fresh;
    cot_load_counts load;
    cot_costs costs;
    cot_place_value value;
    cot_error error;
    assert_int_equal(cot_load_counts_new(&load, 1, 1, 4, &error), COT_OK);
    memcpy(load.tokens, tokens, sizeof tokens);
    const cot_costs_options options = {.size = sizeof options, .n_ranks = 4};
    assert_int_equal(cot_costs_open(&costs, &load, NULL, &options, &error), COT_OK);
    assert_int_equal(cot_expert_map_new(&running, 1, 4, 4, 2, &error), COT_OK);
    memcpy(running.expert, slots, sizeof slots);
    const cot_place_options place = {.size = sizeof place, .method = "eplb", .slots = 20};
    assert_int_equal(cot_place(&fresh, NULL, &costs, &place, &error), COT_OK);
    assert_int_equal(cot_place_value_of(&value, &fresh, &costs, 0, &error), COT_OK);
    check_transfers(&running, &fresh);
    check_replan(&running, &costs, &fresh, value.peak_load, -1);
    const cot_replan_options wrong = {.size = sizeof wrong - 1};
    cot_expert_map none = fresh;
    int64_t moves;
    assert_int_equal(cot_place_replan(&none, &moves, &running, &costs, &wrong, &error), COT_INVALID_ARGUMENT);
    assert_true(none.expert == NULL && none.n_layers == 0 && moves == 0);
    cot_place_value_free(&value);
    cot_expert_map_free(&fresh);
    cot_expert_map_free(&running);
    cot_costs_free(&costs);
    cot_load_counts_free(&load);
}

/* The slots of one layer of two ranks, and what it takes to get from one to the other. */
static void test_counts(void **state)
{
    (void)state;
    static const struct {
        int32_t from[6], to[6];
        int64_t moves;
    } cases[] = {
        {{0, 1, -1, 2, -1, -1}, {0, 0, 0, 2, 2, 1}, 1}, // copies of what a rank holds, and expert 1 to rank 1
        {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 0, 0, 0}, 2}, // three copies of expert 0 are fetched once
        {{0, 0, 1, 2, 2, 1}, {0, 1, -1, 2, -1, -1}, 0}, // copies go
        {{0, 1, 2, 0, 1, 2}, {2, 2, 2, 1, 0, 0}, 0},    // all hold all
        {{0, 0, 0, 1, 2, -1}, {1, 2, -1, 0, -1, -1}, 3}}; // ranks trade places
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_expert_map map[2];
        cot_error error;
        int64_t moves;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(cot_expert_map_new(&map[k], 1, 3, 2, 3, &error), COT_OK);
            memcpy(map[k].expert, k ? cases[i].to : cases[i].from, 6 * sizeof(int32_t));
        }
        assert_int_equal(cot_place_moves(&moves, &map[0], &map[1], &error), COT_OK);
        assert_int_equal(moves, cases[i].moves);
        check_transfers(&map[0], &map[1]);
        cot_expert_map_free(&map[0]);
        cot_expert_map_free(&map[1]);
    }
}

/* Who has sent and fetched least sends, so that all goes in one round: of two ranks that hold an expert each serves one of two
 * others, or the one that does not fetch another expert serves. */
static void test_senders(void **state)
{
    (void)state;
    static const struct {
        int32_t from[8], to[8];
    } cases[] = {{{0, -1, 0, -1, 1, -1, 1, -1}, {0, -1, 0, -1, 1, 0, 1, 0}},
                 {{0, -1, 0, -1, 2, -1, 1, -1}, {0, 1, 0, -1, 2, 0, 1, -1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_expert_map map[2];
        cot_error error;
        cot_transfer *transfers;
        int64_t n;
        int32_t rounds;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(cot_expert_map_new(&map[k], 1, 3, 4, 2, &error), COT_OK);
            memcpy(map[k].expert, k ? cases[i].to : cases[i].from, 8 * sizeof(int32_t));
        }
        assert_int_equal(cot_place_transfers(&transfers, &n, &rounds, &map[0], &map[1], &error), COT_OK);
        assert_int_equal(n, 2);
        assert_int_equal(rounds, 1);
        free(transfers);
        cot_expert_map_free(&map[0]);
        cot_expert_map_free(&map[1]);
    }
}

/* Where those who send fetch nothing there are as many rounds as a rank has transfers at most (Koenig's theorem). */
static void test_rounds_from_one_side(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        const int32_t senders = 1 + below(6), S = senders + 1 + below(6), E = 1 + below(20);
        cot_expert_map map[2];
        cot_error error;
        cot_transfer *transfers;
        int64_t n;
        int32_t rounds, degree[12] = {0}, most = 0;
        for (int k = 0; k < 2; k++) assert_int_equal(cot_expert_map_new(&map[k], 1, E, S, E, &error), COT_OK);
        for (int32_t e = 0; e < E; e++) {
            const int32_t one = below(senders);
            for (int32_t r = 0; r < S; r++) {
                const bool held = r < senders && (r == one || !below(3));
                if (held) map[0].expert[r * E + e] = e;
                if (held || (r >= senders && below(2))) map[1].expert[r * E + e] = e;
            }
        }
        assert_int_equal(cot_place_transfers(&transfers, &n, &rounds, &map[0], &map[1], &error), COT_OK);
        for (int64_t k = 0; k < n; k++) {
            assert_true(transfers[k].from < senders && transfers[k].to >= senders);
            degree[transfers[k].from]++;
            degree[transfers[k].to]++;
        }
        for (int32_t r = 0; r < S; r++) most = degree[r] > most ? degree[r] : most;
        assert_int_equal(rounds, most);
        check_transfers(&map[0], &map[1]);
        free(transfers);
        cot_expert_map_free(&map[0]);
        cot_expert_map_free(&map[1]);
    }
}

/* ---- replanning against plain steps ---- */

enum { MOST_SLOTS = 24 };

/* One layer of S ranks of k slots, all sums made anew. */
typedef struct plain {
    int32_t S, E, k, was[MOST_SLOTS], expert[MOST_SLOTS];
    const double *load; // [E]
    double target;
} plain;

static double plain_share(const plain *p, int32_t e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->S * p->k; i++) n += p->expert[i] == e;
    return e < 0 ? 0 : p->load[e] / n;
}

static bool plain_holds(const int32_t *expert, const plain *p, int32_t rank, int32_t e)
{
    for (int32_t i = rank * p->k; i < (rank + 1) * p->k; i++)
        if (expert[i] == e) return true;
    return false;
}

/* The most loaded rank's load, which `rank` is (-1: several are), and what all ranks have above the target. */
static double plain_peak(const plain *p, int32_t *rank, double *excess)
{
    double most = -1;
    *excess = 0;
    for (int32_t r = 0; r < p->S; r++) {
        double sum = 0;
        for (int32_t i = 0; i < p->k; i++) sum += plain_share(p, p->expert[r * p->k + i]);
        if (fabs(sum - most) <= 1e-9 * most) *rank = -1;
        if (sum > most * (1 + 1e-9)) most = sum, *rank = r;
        if (sum > p->target) *excess += sum - p->target;
    }
    return most;
}

static int32_t plain_moves(const plain *p)
{
    int32_t n = 0;
    for (int32_t r = 0; r < p->S; r++)
        for (int32_t e = 0; e < p->E; e++)
            n += plain_holds(p->expert, p, r, e) && !plain_holds(p->was, p, r, e);
    return n;
}

/* The step that takes most off the excess for each move, which is taken. Whether there is one; *equal: several are that good. */
static bool plain_step(plain *p, bool *equal)
{
    double before, best = 0;
    int32_t a, unread, moves = plain_moves(p);
    plain after = *p;
    plain_peak(p, &a, &before);
    *equal = a < 0;
    if (*equal) return false;
    for (int32_t x = 0; x < p->S * p->k; x++)
        for (int32_t y = a * p->k; y < (a + 1) * p->k; y++) // the slot of rank a, and of another one
            for (int way = 0; way < 2; way++) {
                const int32_t r = x / p->k, e = p->expert[y], old = p->expert[x];
                plain t = *p;
                double excess;
                if (r == a || e < 0 || plain_holds(p->expert, p, r, e)) continue;
                if (way && (plain_share(p, e) <= plain_share(p, old) ||
                            (old >= 0 && plain_holds(p->expert, p, a, old))))
                    continue;
                t.expert[x] = e;
                if (way) t.expert[y] = old;
                bool lost = old >= 0;
                for (int32_t i = 0; i < p->S * p->k; i++) lost = lost && t.expert[i] != old;
                if (lost) continue;
                plain_peak(&t, &unread, &excess);
                const int32_t more = plain_moves(&t) - moves;
                const double rate = (before - excess) / ((more > 0 ? more : 0) + 0.01);
                if (before - excess <= 1e-9 * before) continue;
                if (fabs(rate - best) <= 1e-9 * best && memcmp(&t, &after, sizeof t)) *equal = true;
                if (rate > best * (1 + 1e-9)) best = rate, after = t, *equal = false;
            }
    *p = after;
    return best > 0;
}

/* The layouts that steps lead to, of which `taken` is the last one to be taken: again and again those steps together that lower
 * the peak most for each move, while moves last, as long as that is worth `move_cost` of the mean. */
enum { MOST_STEPS = 64 };

typedef struct plain_plan {
    plain after[MOST_STEPS];
    double peak[MOST_STEPS];
    int count, taken;
    bool equal; // of several ways one would do as well
} plain_plan;

static void plain_plan_of(plain_plan *plan, const plain *start, double mean, int64_t left, double move_cost)
{
    int32_t rank;
    double excess;
    plan->after[0] = *start;
    plan->peak[0] = plain_peak(start, &rank, &excess);
    plan->equal = false;
    plan->taken = 0;
    for (plan->count = 1; plan->count < MOST_STEPS && excess > 0 && !plan->equal; plan->count++) {
        plain next = plan->after[plan->count - 1];
        if (!plain_step(&next, &plan->equal)) break;
        plan->after[plan->count] = next;
        plan->peak[plan->count] = plain_peak(&next, &rank, &excess);
    }
    if (plan->count == MOST_STEPS) plan->equal = true; // it may go on
    for (int best = 0; best >= 0 && !plan->equal;) {
        double most = 0;
        const int32_t had = plain_moves(&plan->after[plan->taken]);
        best = -1;
        for (int n = plan->taken + 1; n < plan->count; n++) {
            const int32_t moves = plain_moves(&plan->after[n]) - had;
            const double rate = (plan->peak[plan->taken] - plan->peak[n]) / mean / (moves > 1 ? moves : 1);
            if (moves > left || rate <= 1e-9) continue;
            if (fabs(rate - move_cost) < 1e-9 || (best >= 0 && fabs(rate - most) < 1e-9)) plan->equal = true;
            if (rate >= move_cost && rate > most) most = rate, best = n;
        }
        if (best < 0) break;
        left -= plain_moves(&plan->after[best]) - had;
        plan->taken = best;
    }
}

static void test_steps(void **state)
{
    (void)state;
    int compared = 0, odd = 0, shorter = 0;
    for (int i = 0; i < 2000; i++) {
        const int32_t S = 2 + below(3), k = 2 + below(3), E = 1 + below(S * k);
        cot_expert_map running = draw_running(1, E, S, k), map;
        cot_load_counts load;
        cot_costs costs;
        cot_error error;
        static plain_plan plan;
        double mean = 0, peak = 1 + 0.02 * below(10);
        assert_int_equal(cot_load_counts_new(&load, 1, 1, E, &error), COT_OK);
        for (int32_t e = 0; e < E; e++) mean += (load.tokens[e] = 1 + below(100000)) / S;
        const cot_costs_options options = {.size = sizeof options, .n_ranks = S};
        assert_int_equal(cot_costs_open(&costs, &load, NULL, &options, &error), COT_OK);
        plain start = {.S = S, .E = E, .k = k, .load = load.tokens, .target = peak * mean * (1 + 1e-9)};
        memcpy(start.was, running.expert, (size_t)(S * k) * sizeof *start.was);
        memcpy(start.expert, running.expert, (size_t)(S * k) * sizeof *start.was);
        const cot_replan_options how = {.size = sizeof how,
                                        .peak = &peak,
                                        .max_moves = below(2) ? below(8) : -1,
                                        .move_cost =
                                            below(2) ? 0 : 0.3 * cot_random_uniform(test_seed(), 6, at++)};
        plain_plan_of(&plan, &start, mean, how.max_moves < 0 ? INT64_MAX : how.max_moves, how.move_cost);
        int64_t moves;
        if (cot_place_replan(&map, &moves, &running, &costs, &how, &error) != COT_OK)
            fail_msg("%s", error.message);
        const plain *end = &plan.after[plan.taken];
        if (!plan.equal) {
            compared++;
            odd += plain_moves(end) % 2;
            shorter += plan.taken + 1 < plan.count;
            for (int32_t s = 0; s < S * k; s++)
                if (map.expert[s] != end->expert[s])
                    fail_msg(
                        "layout %d of %d experts on %d ranks of %d slots, %d moves at %g: slot %d holds %d, "
                        "expected %d",
                        i, E, S, k, (int)how.max_moves, how.move_cost, s, map.expert[s], end->expert[s]);
            assert_int_equal(moves, plain_moves(end));
        }
        cot_expert_map_free(&map);
        cot_expert_map_free(&running);
        cot_costs_free(&costs);
        cot_load_counts_free(&load);
    }
    print_message("%d compared: %d of an odd number of moves, %d before the last step\n", compared, odd,
                  shorter);
    assert_true(compared > 200 && odd > 20 && shorter > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),  cmocka_unit_test(test_copies_on_a_rank),
        cmocka_unit_test(test_senders), cmocka_unit_test(test_rounds_from_one_side),
        cmocka_unit_test(test_steps),   cmocka_unit_test(test_random_replans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
