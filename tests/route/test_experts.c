/* Which experts requests call: signatures as they are read, kept by block and joined, unions of what runs, and decisions by them, each
 * against a plain count of its own. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "coterie/route.h"
#include "route/calls.h"
#include "route/sends.h"
#include "route/signatures.h"
#include "route/unions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 500 };

static uint64_t draws;
static uint64_t drawn(uint64_t below)
{
    return cot_random_bits(test_seed(), 48, draws++) % below;
}

/* Calls of `count` cells at random, by rising cells. */
static cot_route_calls draw_calls(uint32_t count)
{
    cot_route_calls calls = {.count = 0};
    for (uint32_t c = 0, left = count; left; c++) {
        if (drawn(CELLS - c) >= left) continue;
        calls.cell[calls.count] = (uint16_t)c;
        calls.share[calls.count++] = (float)(1 + drawn(95)) / 100;
        left--;
    }
    return calls;
}

static void write_calls(double dense[CELLS], const cot_route_calls *calls)
{
    for (size_t c = 0; c < CELLS; c++) dense[c] = 0;
    for (uint32_t i = 0; i < calls->count; i++) dense[calls->cell[i]] = calls->share[i];
}

/* ---- reading ---- */

static void signatures_are_read(void **state)
{
    (void)state;
    cot_route_calls calls;
    const uint8_t text[] = {3, 1, 100, 7, 0, 50, 9, 0, 50};
    assert_true(cot_route_calls_read(&calls, text, sizeof text, 260));
    assert_int_equal(calls.count, 3);
    const uint16_t cell[] = {7, 9, 259};
    const float share[] = {0.475f, 0.475f, 0.95f};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(calls.cell[i], cell[i]);
        assert_float_equal(calls.share[i], share[i], 1e-6);
    }
    assert_false(cot_route_calls_read(&calls, text, sizeof text, 259)); // a cell of another model
    assert_true(cot_route_calls_read(&calls, NULL, 0, 10));
    assert_int_equal(calls.count, 0);
    static const struct {
        uint8_t bytes[6];
        size_t count;
    } bad[] = {
        {{1, 0, 128}, 3},        // a count above 127
        {{1, 0, 0}, 3},          // one of 0
        {{1, 0}, 2},             // half a cell
        {{1, 0, 5, 1, 0, 5}, 6}, // one twice
        {{1, 0, 5, 2, 0, 6}, 6}, // not the largest first
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cot_route_calls_read(&calls, bad[i].bytes, bad[i].count, 260));
    uint8_t long_one[3 * (COT_ROUTE_MOST_CALLS + 1)];
    for (size_t i = 0; i <= COT_ROUTE_MOST_CALLS; i++)
        memcpy(long_one + 3 * i, (uint8_t[]){(uint8_t)i, 0, 127}, 3);
    assert_true(cot_route_calls_read(&calls, long_one, sizeof long_one - 3, 260));
    assert_int_equal(calls.count, COT_ROUTE_MOST_CALLS);
    assert_false(cot_route_calls_read(&calls, long_one, sizeof long_one, 260));
}

/* ---- means ---- */

/* The mean of all cells, of which the largest are kept: what is kept is as in the mean, and nothing left out is larger. */
static void means_keep_the_largest(void **state)
{
    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        cot_route_calls mean = draw_calls((uint32_t)drawn(COT_ROUTE_MOST_CALLS + 1));
        const cot_route_calls one = draw_calls((uint32_t)drawn(COT_ROUTE_MOST_CALLS + 1));
        const uint32_t texts = 1 + (uint32_t)drawn(64);
        double before[CELLS], new[CELLS], after[CELLS], least_kept = 1, largest_left = 0;
        size_t joined = 0;
        write_calls(before, &mean);
        write_calls(new, &one);
        cot_route_calls_join(&mean, texts, &one);
        write_calls(after, &mean);
        for (size_t c = 0; c < CELLS; c++) {
            const double share = (before[c] * texts + new[c]) / (texts + 1);
            joined += share > 0;
            if (after[c] > 0) assert_float_equal(after[c], share, 1e-5);
            if (after[c] > 0 && share < least_kept) least_kept = share;
            if (!(after[c] > 0) && share > largest_left) largest_left = share;
        }
        assert_int_equal(mean.count, joined < COT_ROUTE_MOST_CALLS ? joined : COT_ROUTE_MOST_CALLS);
        assert_true(largest_left <= least_kept + 1e-6);
        for (uint32_t i = 1; i < mean.count; i++) assert_true(mean.cell[i - 1] < mean.cell[i]);
    }
}

/* Each of the first texts counts alike; later ones, as one of the last 65. */
static void means_are_of_the_texts(void **state)
{
    (void)state;
    const uint64_t key = 7;
    const cot_route_calls often = {1, {1}, {0.8f}}, never = {1, {2}, {0.4f}};
    cot_route_signatures *s = cot_route_signatures_open(3, CELLS);
    cot_route_signatures_put(s, &key, 1, &often);
    for (int text = 2; text <= 64; text++) {
        cot_route_signatures_put(s, &key, 1, &never);
        const cot_route_calls *mean = cot_route_signatures_find(s, &key, 1);
        assert_float_equal(mean->share[0], 0.8f / (float)text, 1e-5);
        assert_float_equal(mean->share[1], 0.4f * (float)(text - 1) / (float)text, 1e-5);
    }
    float share = 0.8f / 64;
    for (int text = 0; text < 100; text++) {
        cot_route_signatures_put(s, &key, 1, &never);
        share *= 64.0f / 65;
        assert_float_equal(cot_route_signatures_find(s, &key, 1)->share[0], share, 1e-5);
    }
    cot_route_signatures_close(s);
}

static void the_deepest_block_counts(void **state)
{
    (void)state;
    const uint64_t system = 10, a = 11, b = 12;
    cot_route_signatures *s = cot_route_signatures_open(3, CELLS);
    const cot_route_calls one = {2, {1, 2}, {0.5f, 0.25f}}, other = {1, {2}, {0.75f}}, none = {.count = 0};
    assert_null(cot_route_signatures_find(s, &system, 1));
    cot_route_signatures_put(s, (uint64_t[]){system, a}, 2, &one);
    cot_route_signatures_put(s, (uint64_t[]){system, b}, 2, &other);
    cot_route_signatures_put(s, (uint64_t[]){99}, 1, &none); // tells nothing
    assert_int_equal(cot_route_signatures_count(s), 3);
    const cot_route_calls *found = cot_route_signatures_find(s, (uint64_t[]){system, a, 77}, 3);
    assert_memory_equal(found->share, one.share, 8);
    found = cot_route_signatures_find(s, (uint64_t[]){system, 78}, 2); // what both begin with
    assert_int_equal(found->count, 2);
    assert_float_equal(found->share[0], 0.25, 1e-6);
    assert_float_equal(found->share[1], 0.5, 1e-6);
    assert_null(cot_route_signatures_find(s, (uint64_t[]){55}, 1));
    const float *usual = cot_route_signatures_usual(s);
    assert_float_equal(usual[1], 0.25, 1e-3);
    assert_float_equal(usual[2], 0.5, 1e-3);
    // The one used longest ago goes.
    cot_route_signatures_find(s, &b, 1);
    cot_route_signatures_find(s, &system, 1);
    cot_route_signatures_put(s, (uint64_t[]){13}, 1, &other);
    assert_int_equal(cot_route_signatures_count(s), 3);
    assert_null(cot_route_signatures_find(s, &a, 1));
    assert_non_null(cot_route_signatures_find(s, &b, 1));
    assert_non_null(cot_route_signatures_find(s, &system, 1));
    cot_route_signatures_close(s);
}

/* A text that was foretold and is told of later counts once: means of either are never mixed. */
static void the_usual_is_told_or_foretold(void **state)
{
    (void)state;
    enum { ENOUGH = 32 };
    const uint64_t key = 7;
    const cot_route_calls guess = {1, {1}, {0.25f}}, call = {1, {2}, {0.5f}};
    cot_route_signatures *s = cot_route_signatures_open(3, CELLS);
    for (int with = 0; with < 2; with++) {
        if (with) cot_route_signatures_close(s);
        if (with) s = cot_route_signatures_open(3, CELLS);
        for (int text = 0; text < 2 * ENOUGH; text++) {
            if (with) cot_route_signatures_foretell(s, &guess);
            const bool guesses = with && text < ENOUGH; // so many as yet were told
            const float *usual = cot_route_signatures_usual(s);
            assert_float_equal(usual[1], guesses ? 0.25 : 0, 1e-6);
            assert_float_equal(usual[2], guesses || !text ? 0 : 0.5, 1e-6);
            cot_route_signatures_put(s, &key, 1, &call);
        }
    }
    assert_int_equal(cot_route_signatures_count(s), 1); // what is foretold is of no block
    cot_route_signatures_close(s);
}

/* Blocks at random, in a small store, beside a list that is searched from one end to the other. */
static void the_newest_stay(void **state)
{
    (void)state;
    enum { MOST = 20, KEYS = 60 };
    uint64_t used[KEYS] = {0}, clock = 0;
    cot_route_signatures *s = cot_route_signatures_open(MOST, CELLS);
    for (int turn = 0; turn < 3000; turn++) {
        const uint64_t k = drawn(KEYS), key = k; // 0 and 1 are keys, too
        if (drawn(2)) {
            const cot_route_calls calls = {1, {(uint16_t)k}, {0.5f}};
            cot_route_signatures_put(s, &key, 1, &calls);
            used[k] = ++clock;
            size_t kept = 0, oldest = KEYS;
            for (size_t i = 0; i < KEYS; i++) {
                kept += used[i] > 0;
                if (used[i] && (oldest == KEYS || used[i] < used[oldest])) oldest = i;
            }
            if (kept > MOST) used[oldest] = 0;
        } else {
            const cot_route_calls *found = cot_route_signatures_find(s, &key, 1);
            assert_int_equal(found != NULL, used[k] > 0);
            if (found) {
                assert_int_equal(found->cell[0], k);
                used[k] = ++clock;
            }
        }
    }
    assert_int_equal(cot_route_signatures_count(s), MOST);
    cot_route_signatures_close(s);
}

/* Blocks of a text, from any of them to its beginning. */
static void paths_lead_to_beginnings(void **state)
{
    (void)state;
    const uint64_t keys[] = {100, 101, 102, 103}, other[] = {200}, parent = 101;
    uint64_t path[4];
    cot_route_stored stored = {0};
    cot_route_index *index;
    assert_int_equal(cot_route_index_open(&index, 2, NULL), COT_OK);
    assert_int_equal(cot_route_index_path(index, 103, path, 4), 0);
    cot_route_index_store(index, 0, NULL, keys, 4, &stored);
    cot_route_index_store(index, 0, &parent, other, 1, &stored);
    assert_int_equal(cot_route_index_path(index, 103, path, 4), 4);
    for (size_t i = 0; i < 4; i++) assert_int_equal(path[i], 103 - i);
    static const uint64_t of[][4] = {{103}, {103, 100}, {103, 102, 100}, {103, 102, 101, 100}};
    for (size_t most = 0; most <= 4; most++) { // of many the first and the last
        memset(path, 0xff, sizeof path);
        assert_int_equal(cot_route_index_path(index, 103, path, most), most);
        for (size_t i = 0; i < 4; i++) assert_true(path[i] == (i < most ? of[most - 1][i] : UINT64_MAX));
    }
    assert_int_equal(cot_route_index_path(index, 200, path, 4), 3);
    assert_int_equal(path[1], 101);
    assert_int_equal(cot_route_index_path(index, 104, path, 4), 0);
    cot_route_index_clear(index, 0);
    assert_int_equal(cot_route_index_path(index, 200, path, 4), 0);
    cot_route_index_close(index);
}

/* ---- unions ---- */

/* Chances of all that is there, multiplied anew. */
static double added_plainly(const cot_route_calls *there, const bool *is_there, size_t count,
                            const double *usual, const cot_route_calls *one)
{
    double calls[CELLS], added = 0, dense[CELLS];
    write_calls(calls, one);
    for (size_t c = 0; c < CELLS; c++) dense[c] = 1;
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; is_there[i] && k < there[i].count; k++)
            dense[there[i].cell[k]] *= 1 - (double)there[i].share[k];
    for (size_t c = 0; c < CELLS; c++) added += dense[c] * (calls[c] - usual[c]);
    return added;
}

static void unions_are_products(void **state)
{
    (void)state;
    enum { REQUESTS = 12 };
    cot_route_unions u;
    cot_route_calls there[REQUESTS];
    bool is_there[REQUESTS] = {false};
    float usual[CELLS];
    double plain[CELLS] = {0};
    assert_true(cot_route_unions_open(&u, 2, CELLS));
    for (int turn = 0; turn < 1500; turn++) {
        const size_t i = drawn(REQUESTS);
        if (is_there[i]) {
            cot_route_unions_drop(&u, 1, &there[i]);
        } else {
            there[i] = draw_calls((uint32_t)drawn(COT_ROUTE_MOST_CALLS + 1));
            assert_true(cot_route_unions_add(&u, 1, &there[i]));
        }
        is_there[i] = !is_there[i];
        if (!drawn(10)) {
            for (size_t c = 0; c < CELLS; c++) plain[c] = usual[c] = (float)drawn(100) / 100;
            cot_route_unions_set_usual(&u, usual);
        }
        const cot_route_calls one = draw_calls(50);
        // Chances are floats, multiplied and divided by 0.05 at the least some hundred times: each loses 1e-7 of itself.
        assert_float_equal(cot_route_unions_added(&u, 1, &one),
                           added_plainly(there, is_there, REQUESTS, plain, &one), 0.02);
        assert_float_equal(cot_route_unions_added(&u, 0, &one),
                           added_plainly(there, is_there, 0, plain, &one), 1e-3);
    }
    for (size_t i = 0; i < REQUESTS; i++)
        if (is_there[i]) cot_route_unions_drop(&u, 1, &there[i]);
    const cot_route_calls one = {1, {3}, {0.5f}};
    assert_true(cot_route_unions_added(&u, 1, &one) ==
                cot_route_unions_added(&u, 0, &one)); // nothing is left
    cot_route_unions_free(&u);
}

/* ---- decisions ---- */

static const uint32_t no_depth[16];

static cot_route_request asking(const cot_route_calls *calls)
{
    return (cot_route_request){.tokens = 10, .max_tokens = 20, .depth = no_depth, .calls = calls};
}

static cot_route_book *open_book(size_t targets, cot_route_policy policy, const cot_route_costs *costs)
{
    cot_route_book *book;
    assert_int_equal(cot_route_book_open(&book, targets, 16, policy, 5, NULL), COT_OK);
    assert_int_equal(cot_route_book_set_cells(book, CELLS, NULL), COT_OK);
    for (size_t t = 0; t < targets; t++) cot_route_book_set_costs(book, t, costs);
    return book;
}

static uint64_t send_to(cot_route_book *book, const cot_route_request *r, size_t target)
{
    cot_route_decision d;
    cot_route_weigh(book, r, target, 0, &d);
    const uint64_t number = cot_route_assigned(book, r, &d, 0);
    assert_true(number > 0);
    return number;
}

/* As many as a busy worker has, all of the same cells: their product is far below what a float holds. */
static void many_come_and_go(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    static const float usual[4] = {1, 0.5F, 0.25F, 0};
    const cot_route_calls calls = {.count = 3, .cell = {0, 1, 3}, .share = {0.95F, 0.5F, 1}};
    cot_route_unions u;
    assert_true(cot_route_unions_open(&u, 1, 4));
    cot_route_unions_set_usual(&u, usual);
    for (int i = 1; i <= 2 * MANY; i++) {
        const int there = i <= MANY ? i : 2 * MANY - i;
        if (i > MANY) cot_route_unions_drop(&u, 0, &calls);
        if (i <= MANY) assert_true(cot_route_unions_add(&u, 0, &calls));
        const double none[] = {pow(0.05, there), pow(0.5, there), !there}; // that none calls cells 0, 1, 3
        const double added = 0.95 * none[0] + 0.5 * none[1] + none[2],
                     usually = none[0] + 0.5 * none[1] + 0.25;
        assert_true(fabs(cot_route_unions_added(&u, 0, &calls) - (added - usually)) < 2e-6);
    }
    cot_route_unions_free(&u);
}

static void experts_decide(void **state)
{
    (void)state;
    const cot_route_costs costs = {.step_ns = 5, .expert_ns = 2};
    const cot_route_calls law = {2, {1, 2}, {0.5f, 0.5f}}, code = {2, {8, 9}, {0.5f, 0.5f}};
    cot_route_request a = asking(&law), b = asking(&code), unknown = asking(NULL);
    float usual[CELLS] = {0};
    usual[1] = usual[8] = 0.25f;
    for (int policy = 0; policy < 2; policy++) {
        cot_route_book *book = open_book(2, policy ? COT_ROUTE_KV : COT_ROUTE_JOINT, &costs);
        cot_route_decision d;
        cot_route_book_set_usual(book, usual);
        send_to(book, &a, 0);
        send_to(book, &b, 1);
        for (int i = 0; i < 4; i++) { // the worker that has its like; another policy takes turns
            assert_true(cot_route_choose(book, i % 2 ? &a : &b, 0, &d));
            assert_int_equal(d.target, policy ? i % 2 : !(i % 2));
        }
        cot_route_weigh(book, &a, 0, 0, &d);
        // 2 cells of 0.5 each half there; the usual adds 0.25 x 0.5 + 0.25
        assert_float_equal(d.terms.experts, 2 * 20 * (0.5 - 0.375), 1e-4);
        assert_float_equal(d.terms.decode, 100, 1e-9);
        cot_route_weigh(book, &unknown, 0, 0, &d);
        assert_true(d.terms.experts == 0);
        const cot_route_scales scales = {.kv = 2, .experts = 3, .load = 5};
        const cot_route_terms terms = {
            .queue = 1, .prefill = 10, .decode = 100, .pages = 1000, .experts = 10000};
        cot_route_book_set_scales(book, &scales);
        assert_float_equal(cot_route_score(book, &terms), 5 * 1101 + 2 * 10 + (policy ? 0 : 3 * 10000), 1e-9);
        cot_route_book_close(book);
    }
}

/* Ranks of one worker run the same steps: what is on one of them is there for the other. */
static void ranks_share_a_union(void **state)
{
    (void)state;
    const cot_route_costs costs = {.expert_ns = 1};
    const cot_route_calls law = {1, {1}, {0.5f}};
    const cot_route_request a = asking(&law);
    cot_route_book *book = open_book(3, COT_ROUTE_JOINT, &costs);
    cot_route_decision d;
    cot_route_book_set_worker(book, 1, 0);
    const uint64_t number = send_to(book, &a, 1);
    const double expected[] = {5, 5, 10};
    for (size_t t = 0; t < 3; t++) {
        cot_route_weigh(book, &a, t, 0, &d);
        assert_float_equal(d.terms.experts, expected[t], 1e-4);
    }
    cot_route_book_set_worker(book, 1,
                              1); // another worker has that place now: what was there goes from where it was
    cot_route_ended(book, number, 3, 0);
    cot_route_weigh(book, &a, 0, 0, &d);
    assert_float_equal(d.terms.experts, 10, 1e-4);
    cot_route_book_close(book);
}

/* Each layer and rank anew: a rank is not sent to where none of its experts is called. */
static double sends_plainly(const cot_route_placement *p, const cot_route_calls *calls, size_t home)
{
    double sends = 0;
    for (size_t l = 0; l < CELLS / p->experts; l++)
        for (size_t rank = 0; rank < COT_ROUTE_MOST_HOMES; rank++) {
            double none = 1;
            for (uint32_t i = 0; rank != home && i < calls->count; i++) {
                const uint64_t ranks = p->ranks_of[calls->cell[i]];
                size_t count = 0;
                for (size_t r = 0; r < COT_ROUTE_MOST_HOMES; r++) count += ranks >> r & 1;
                if (calls->cell[i] / p->experts == l && ranks >> rank & 1 && !(ranks >> home & 1))
                    none *= 1 - (double)calls->share[i] / (double)count;
            }
            sends += 1 - none;
        }
    return sends;
}

static void sends_are_counted(void **state)
{
    (void)state;
    for (int turn = 0; turn < 40; turn++) {
        uint64_t ranks_of[CELLS];
        double sends[COT_ROUTE_MOST_HOMES];
        const size_t homes = turn % 4 ? 1 + drawn(8) : COT_ROUTE_MOST_HOMES;
        const cot_route_placement p = {homes, turn % 2 ? 50 : 125, ranks_of};
        const cot_route_calls calls = draw_calls((uint32_t)drawn(COT_ROUTE_MOST_CALLS + 1));
        for (size_t c = 0; c < CELLS; c++) {
            ranks_of[c] = UINT64_C(1) << drawn(homes);
            if (!drawn(3)) ranks_of[c] |= UINT64_C(1) << drawn(homes); // a replica
        }
        cot_route_sends(sends, &p, &calls);
        for (size_t home = 0; home < homes; home++)
            assert_true(fabs(sends[home] - sends_plainly(&p, &calls, home)) < 1e-6);
    }
}

/* Of the ranks of a worker the one that has a request's experts is taken; between workers sends decide nothing. */
static void homes_are_chosen_by_sends(void **state)
{
    (void)state;
    const cot_route_costs costs = {.send_ns = 3};
    const cot_route_calls law = {2, {1, 260}, {0.5f, 0.75f}};
    const cot_route_request a = asking(&law);
    uint64_t ranks_of[CELLS];
    cot_route_book *book = open_book(5, COT_ROUTE_JOINT, &costs);
    cot_route_decision d;
    for (size_t c = 0; c < CELLS; c++) ranks_of[c] = 1;
    ranks_of[1] = ranks_of[260] = 2; // the second rank of the worker at 1 to 2
    cot_route_book_set_worker(book, 2, 1);
    assert_int_equal(cot_route_book_set_placement(book, 1, 2, 250, ranks_of, NULL), COT_OK);
    const double more[] = {0, 1.25 / 2, -1.25 / 2, 0};
    for (size_t t = 0; t < 4; t++) {
        cot_route_weigh(book, &a, t, 0, &d);
        assert_true(fabs(d.terms.experts - 20 * 3 * more[t]) < 1e-4);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(cot_route_choose(book, &a, 0, &d));
        assert_int_equal(d.target, 2);
    }
    for (size_t c = 0; c < CELLS; c++)
        ranks_of[c] = 3 - ranks_of[c]; // another worker has them the other way round
    cot_route_book_set_worker(book, 4, 3);
    assert_int_equal(cot_route_book_set_placement(book, 3, 2, 250, ranks_of, NULL), COT_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(cot_route_choose(book, &a, 0, &d));
        assert_int_equal(d.target, i % 2 ? 2 : 3);
    }
    assert_int_equal(cot_route_book_set_placement(book, 3, 2, 250, NULL, NULL),
                     COT_OK); // they are not known any more
    assert_int_equal(cot_route_book_set_placement(book, 1, 2, 250, NULL, NULL), COT_OK);
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 3); // in turn
    assert_true(d.terms.experts == 0);
    cot_route_costs learnt; // what sending takes is learnt of steps
    for (int i = 0; i < 500; i++) {
        const double requests = 1 + (double)drawn(8), sends = 1 + (double)drawn(40);
        cot_route_learn_work(
            book, 0,
            &(cot_route_work){
                .steps = 1, .requests = requests, .sends = sends, .ns = 1000 + 20 * requests + 7 * sends});
    }
    cot_route_book_costs(book, 0, &learnt);
    assert_float_equal(learnt.send_ns, 7, 0.01);
    cot_route_book_close(book);
}

/* Scales change what is taken: a long queue, a cached beginning or experts in common. Beyond the eight best experts do not count. */
static void scales_and_the_best(void **state)
{
    (void)state;
    enum { TARGETS = 12 };
    const cot_route_calls law = {1, {1}, {0.9f}};
    cot_route_book *book = open_book(TARGETS, COT_ROUTE_JOINT, &(cot_route_costs){0});
    uint32_t depth[TARGETS] = {0};
    cot_route_request a = {.tokens = 100, .max_tokens = 20, .depth = depth, .calls = &law};
    for (size_t t = 0; t < TARGETS; t++) // each slower than the one before
        cot_route_book_set_costs(book, t,
                                 &(cot_route_costs){.token_ns = 1, .step_ns = (double)t, .expert_ns = 100});
    cot_route_decision d;
    send_to(book, &a, 7);
    for (size_t t = 8; t < 10; t++) {
        send_to(book, &a, t);
        send_to(book, &a, t);
    }
    for (uint64_t number = 1; number <= 5; number++) cot_route_began(book, number, 0);
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 7); // the eighth; those behind it have more in common
    cot_route_book_set_scales(book, &(cot_route_scales){.kv = 1, .experts = 0, .load = 1});
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 0);
    depth[11] = 2;
    cot_route_book_set_scales(book, &(cot_route_scales){.kv = 1, .experts = 0, .load = 0});
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 11);
    cot_route_book_set_scales(book, &(cot_route_scales){.kv = 0, .experts = 1, .load = 0.001});
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 7);
    for (size_t t = 0; t < TARGETS; t++) cot_route_book_set_usable(book, t, t > 8);
    assert_true(cot_route_choose(book, &a, 0, &d));
    assert_int_equal(d.target, 9);
    cot_route_book_close(book);
}

/* What a step costs beside its experts, and a distinct expert, are learnt; requests keep the whole of what they cost, experts in it. */
static void experts_costs_are_learnt(void **state)
{
    (void)state;
    cot_route_book *book = open_book(1, COT_ROUTE_JOINT, &(cot_route_costs){0});
    cot_route_costs costs;
    for (int i = 0; i < 2000; i++) {
        const double requests = 1 + (double)drawn(8), experts = 50 + 10 * requests + (double)drawn(40);
        cot_route_learn_work(book, 0,
                             &(cot_route_work){.steps = 1,
                                               .requests = requests,
                                               .experts = experts,
                                               .ns = 1000 + 20 * requests + 3 * experts});
    }
    cot_route_book_costs(book, 0, &costs);
    assert_float_equal(costs.expert_ns, 3, 0.01);
    assert_float_equal(
        costs.step_ns, 50,
        5); // 20, and the 10 experts that one adds; experts scatter by 12, which 128 steps remember
    cot_route_book_close(book);
    book = open_book(1, COT_ROUTE_JOINT, &(cot_route_costs){0});
    for (int i = 0; i < 300; i++) { // experts that always come with requests cost nothing by themselves
        const double requests = 1 + (double)drawn(8);
        cot_route_learn_work(
            book, 0,
            &(cot_route_work){
                .steps = 1, .requests = requests, .experts = 4 * requests, .ns = 1000 + 20 * requests});
    }
    cot_route_book_costs(book, 0, &costs);
    assert_float_equal(costs.step_ns, 20, 0.1);
    assert_true(costs.expert_ns < 0.1);
    cot_route_book_close(book);
}

/* Requests that were sent badly find each other: the sum of terms falls, counts stay, and the book is that of the new places. */
static void exchanges_join_what_is_alike(void **state)
{
    (void)state;
    enum { KINDS = 4, EACH = 4, COUNT = KINDS * EACH };
    cot_route_calls calls[KINDS];
    cot_route_request asked[COUNT];
    cot_route_decision d[COUNT];
    uint64_t number[COUNT];
    cot_route_book *book = open_book(KINDS, COT_ROUTE_JOINT, &(cot_route_costs){.expert_ns = 1});
    for (int k = 0; k < KINDS; k++) {
        calls[k].count = 20;
        for (uint16_t i = 0; i < 20; i++) {
            calls[k].cell[i] = (uint16_t)(100 * k + i);
            calls[k].share[i] = 0.8f;
        }
    }
    for (int i = 0; i < COUNT; i++) {
        asked[i] = asking(&calls[i / EACH]);
        cot_route_weigh(book, &asked[i], (size_t)i % KINDS, 0, &d[i]); // each worker has one of each kind
        number[i] = cot_route_assigned(book, &asked[i], &d[i], 0);
    }
    cot_route_exchange(book, asked, d, number, COUNT, 0);
    size_t count[KINDS] = {0};
    for (int i = 0; i < COUNT; i++) {
        count[d[i].target]++;
        assert_int_equal(d[i].target, d[i / EACH * EACH].target);
    }
    for (int k = 0; k < KINDS; k++) assert_int_equal(count[k], EACH);
    for (int i = 0; i < COUNT; i++) cot_route_ended(book, number[i], 1, 0);
    cot_route_decision after;
    for (size_t t = 0; t < KINDS; t++) {
        cot_route_weigh(book, &asked[0], t, 0, &after);
        assert_float_equal(after.terms.experts, 20 * 0.8 * 20, 1e-3);
    }
    cot_route_book_close(book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signatures_are_read),       cmocka_unit_test(means_keep_the_largest),
        cmocka_unit_test(the_deepest_block_counts),  cmocka_unit_test(means_are_of_the_texts),
        cmocka_unit_test(the_newest_stay),           cmocka_unit_test(unions_are_products),
        cmocka_unit_test(many_come_and_go),          cmocka_unit_test(experts_decide),
        cmocka_unit_test(ranks_share_a_union),       cmocka_unit_test(scales_and_the_best),
        cmocka_unit_test(experts_costs_are_learnt),  cmocka_unit_test(exchanges_join_what_is_alike),
        cmocka_unit_test(paths_lead_to_beginnings),  cmocka_unit_test(sends_are_counted),
        cmocka_unit_test(homes_are_chosen_by_sends), cmocka_unit_test(the_usual_is_told_or_foretold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
