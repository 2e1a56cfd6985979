/* Requests that are assigned together, against every way to assign them, with costs that are counted anew. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "coterie/route.h"
#include "route/book.h"

#include <math.h>
#include <string.h>

enum { CELLS = 24, MOST_TARGETS = 3, MOST_REQUESTS = 6, TOKENS = 20 };
static const double PROMPT_NS = 7, EXPERT_NS = 2;

static uint64_t draws;
static uint64_t drawn(uint64_t below)
{
    return cot_random_bits(test_seed(), 49, draws++) % below;
}

typedef struct batch {
    size_t targets, count;
    cot_route_calls calls[MOST_REQUESTS];
    cot_route_request request[MOST_REQUESTS];
    uint32_t depth[MOST_REQUESTS * MOST_TARGETS];
    cot_route_decision decision[MOST_REQUESTS];
    uint64_t number[MOST_REQUESTS];
} batch;

static void draw_batch(batch *b)
{
    *b = (batch){.targets = 2 + drawn(MOST_TARGETS - 1), .count = 1 + drawn(MOST_REQUESTS)};
    for (size_t i = 0; i < b->count; i++) {
        for (uint16_t c = 0; c < CELLS; c++) {
            if (drawn(3)) continue;
            b->calls[i].cell[b->calls[i].count] = c;
            b->calls[i].share[b->calls[i].count++] = (float)(1 + drawn(95)) / 100;
        }
        b->request[i] = (cot_route_request){.tokens = 10, .max_tokens = TOKENS, .calls = &b->calls[i]};
    }
}

/* Every prompt takes as long and nothing is cached, so that the sum of what they wait is a matter of how many there are; and what they call
 * in a step is a matter of who is there. */
static double cost(const batch *b, const size_t *target)
{
    double all = 0;
    for (size_t t = 0; t < b->targets; t++) {
        double absent[CELLS], there = 0;
        for (size_t c = 0; c < CELLS; c++) absent[c] = 1;
        for (size_t i = 0; i < b->count; i++) {
            if (target[i] != t) continue;
            all += (there + 1) * PROMPT_NS; // with all that wait before it
            there++;
            for (uint32_t k = 0; k < b->calls[i].count; k++)
                absent[b->calls[i].cell[k]] *= 1 - (double)b->calls[i].share[k];
        }
        for (size_t c = 0; c < CELLS; c++) all += TOKENS * EXPERT_NS * (1 - absent[c]);
    }
    return all;
}

static double least_cost(const batch *b, size_t *target, size_t from)
{
    double least = HUGE_VAL;
    if (from == b->count) return cost(b, target);
    for (target[from] = 0; target[from] < b->targets; target[from]++)
        least = fmin(least, least_cost(b, target, from + 1));
    return least;
}

static cot_route_book *open_book(size_t targets, cot_route_policy policy)
{
    cot_route_book *book;
    assert_int_equal(cot_route_book_open(&book, targets, 16, policy, 5, NULL), COT_OK);
    assert_int_equal(cot_route_book_set_cells(book, CELLS, NULL), COT_OK);
    for (size_t t = 0; t < targets; t++)
        cot_route_book_set_costs(book, t, &(cot_route_costs){.prompt_ns = PROMPT_NS, .expert_ns = EXPERT_NS});
    return book;
}

static void targets_of(size_t *target, const batch *b)
{
    for (size_t i = 0; i < b->count; i++) {
        assert_true(b->number[i] > 0 && b->decision[i].target < b->targets);
        target[i] = b->decision[i].target;
    }
}

/* No dearer than one by one, no cheaper than the best of all ways, and no two would be better off in each other's place. */
static void no_two_would_exchange(void **state)
{
    (void)state;
    int gained = 0;
    for (int turn = 0; turn < 300; turn++) {
        batch one, all;
        size_t target[MOST_REQUESTS];
        draw_batch(&one);
        all = one;
        cot_route_book *book = open_book(one.targets, COT_ROUTE_JOINT);
        for (size_t i = 0; i < one.count; i++) {
            all.request[i].calls = &all.calls[i];
            one.request[i].calls = &one.calls[i];
            one.request[i].depth = one.depth;
            assert_true(cot_route_choose(book, &one.request[i], 0, &one.decision[i]));
            one.number[i] = cot_route_assigned(book, &one.request[i], &one.decision[i], 0);
        }
        cot_route_book_close(book);
        targets_of(target, &one);
        const double singly = cost(&one, target);
        book = open_book(all.targets, COT_ROUTE_JOINT);
        cot_route_choose_together(book, all.request, all.depth, all.decision, all.number, all.count, 0);
        targets_of(target, &all);
        const double together = cost(&all, target), slack = 1e-4 * (1 + together);
        assert_true(together <= singly + slack);
        gained += together < singly - slack;
        for (size_t i = 0; i < all.count; i++)
            for (size_t k = 0; k < i; k++) {
                size_t other[MOST_REQUESTS];
                memcpy(other, target, sizeof other);
                other[i] = target[k];
                other[k] = target[i];
                assert_true(cost(&all, other) >= together - slack);
            }
        assert_true(least_cost(&all, target, 0) <= together + slack);
        for (size_t i = 0; i < all.count; i++) cot_route_ended(book, all.number[i], 0, 0);
        for (size_t t = 0; t < all.targets; t++) { // and nothing is left
            cot_route_decision after;
            cot_route_weigh(book, &all.request[0], t, 0, &after);
            assert_true(after.terms.queue == 0);
        }
        cot_route_book_close(book);
    }
    assert_true(gained > 0);
}

static const cot_route_calls law = {2, {1, 2}, {0.9f, 0.9f}}, code = {2, {8, 9}, {0.9f, 0.9f}};

/* What waits decides, so that one by one those that come first, which are alike, part. */
static void the_best_is_found(void **state)
{
    (void)state;
    for (int policy = COT_ROUTE_JOINT; policy < COT_ROUTE_POLICIES; policy++) {
        batch b = {.targets = 2, .count = 4};
        size_t target[MOST_REQUESTS], best[MOST_REQUESTS];
        const cot_route_calls *const order[] = {&law, &law, &code, &code};
        for (size_t i = 0; i < b.count; i++) {
            b.calls[i] = *order[i];
            b.request[i] = (cot_route_request){.tokens = 10, .max_tokens = TOKENS, .calls = &b.calls[i]};
        }
        cot_route_book *book = open_book(2, (cot_route_policy)policy);
        cot_route_book_set_scales(book, &(cot_route_scales){.kv = 1, .experts = 1e-3, .load = 1});
        cot_route_choose_together(book, b.request, b.depth, b.decision, b.number, b.count, 0);
        targets_of(target, &b);
        if (policy == COT_ROUTE_JOINT) assert_true(cost(&b, target) <= least_cost(&b, best, 0) + 1e-3);
        if (policy == COT_ROUTE_KV ||
            policy == COT_ROUTE_ROUND_ROBIN) // experts are not looked at, nothing is exchanged
            for (size_t i = 0; i < b.count; i++) assert_int_equal(target[i], i % 2);
        cot_route_book_close(book);
    }
}

/* Who begins like another goes to where that one goes, and neither is exchanged for it; of one that nobody follows nothing is presumed. */
static void beginnings_stay_together(void **state)
{
    (void)state;
    static const uint64_t keys[] = {11, 12, 13, 14}, other[] = {11, 12, 23, 24}, third[] = {31, 32, 33, 34};
    batch b = {.targets = 2, .count = 4};
    const uint64_t *const of[] = {keys, third, other, third};
    for (size_t i = 0; i < b.count; i++)
        b.request[i] = (cot_route_request){.blocks = 4,
                                           .tokens = 70,
                                           .max_tokens = 1,
                                           .keys = of[i],
                                           .calls = i == 0 || i == 3 ? &law : &code};
    cot_route_book *book = open_book(2, COT_ROUTE_JOINT);
    for (size_t t = 0; t < 2; t++)
        cot_route_book_set_costs(book, t, &(cot_route_costs){.token_ns = 100, .expert_ns = 200});
    b.depth[1 * 2 + 1] = 1; // target 1 has a block of the second's: that is where it goes
    cot_route_choose_together(book, b.request, b.depth, b.decision, b.number, b.count, 0);
    assert_int_equal(b.decision[0].target, 0);
    assert_int_equal(b.decision[0].cached, 0);
    assert_int_equal(b.decision[1].target, 1);
    assert_int_equal(b.decision[1].cached, 16);
    assert_int_equal(b.decision[2].target, 0); // though its like in experts is on 1
    assert_int_equal(b.decision[2].cached, 32);
    assert_int_equal(b.decision[3].target, 1);
    assert_int_equal(b.decision[3].cached, 64);
    const uint32_t left[] = {0, 0, 0, 1, 0, 0, 0, 0};
    assert_memory_equal(b.depth, left, sizeof left); // as it was
    cot_route_book_close(book);
}

/* A target that failed gets one request, which is not exchanged; where nobody may be asked there is no number. */
static void trials_and_nobody(void **state)
{
    (void)state;
    batch b = {.targets = 2, .count = 3};
    for (size_t i = 0; i < b.count; i++)
        b.request[i] =
            (cot_route_request){.tokens = 10, .max_tokens = TOKENS, .calls = i == 1 ? &law : &code};
    cot_route_book *book = open_book(2, COT_ROUTE_JOINT);
    const int64_t later_ns = INT64_C(6000000000);
    cot_route_decision there;
    for (int i = 0; i < 3; i++) cot_route_failed(book, 0, 0);
    cot_route_request of_peer = b.request[0]; // what another router sends is no trial
    of_peer.of_peer = true;
    of_peer.depth = b.depth;
    cot_route_weigh(book, &of_peer, 0, later_ns, &there);
    const uint64_t number = cot_route_assigned(book, &of_peer, &there, later_ns);
    assert_false(cot_route_is_trial(book, number));
    assert_false(cot_route_is_open(book, 0, later_ns));
    cot_route_ended(book, number, 1, later_ns);
    cot_route_choose_together(book, b.request, b.depth, b.decision, b.number, b.count, later_ns);
    size_t tried = 0;
    for (size_t i = 0; i < b.count; i++) tried += cot_route_is_trial(book, b.number[i]);
    assert_int_equal(tried, 1);
    for (size_t i = 0; i < b.count; i++)
        assert_int_equal(b.decision[i].target, i > 0); // though 0 and 2 are alike
    assert_true(cot_route_is_open(book, 0, later_ns));
    for (size_t t = 0; t < 2; t++) cot_route_book_set_usable(book, t, false);
    cot_route_choose_together(book, b.request, b.depth, b.decision, b.number, b.count, later_ns);
    for (size_t i = 0; i < b.count; i++) {
        assert_true(b.decision[i].target == COT_ROUTE_NOBODY);
        assert_int_equal(b.number[i], 0);
    }
    cot_route_choose_together(book, b.request, b.depth, b.decision, b.number, 0, later_ns);
    cot_route_book_close(book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_would_exchange),
        cmocka_unit_test(the_best_is_found),
        cmocka_unit_test(beginnings_stay_together),
        cmocka_unit_test(trials_and_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
