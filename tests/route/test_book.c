/* Scores by hand, policies, what users of routers report, and breakers. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "coterie/route.h"

#include <math.h>
#include <string.h>

enum { TARGETS = 4, BLOCK = 16 };
#define SECOND INT64_C(1000000000)

static cot_route_book *open_book(cot_route_policy policy)
{
    cot_route_book *book;
    assert_int_equal(cot_route_book_open(&book, TARGETS, BLOCK, policy, 5, NULL), COT_OK);
    for (size_t t = 0; t < TARGETS; t++)
        cot_route_book_set_costs(book, t,
                                 &(cot_route_costs){.prompt_ns = 1000, .token_ns = 10, .step_ns = 2});
    return book;
}

static cot_route_request request(uint64_t tokens, const uint32_t *depth)
{
    return (cot_route_request){.blocks = tokens / BLOCK, .tokens = tokens, .max_tokens = 100, .depth = depth};
}

static uint64_t send(cot_route_book *book, const cot_route_request *r, int64_t now, cot_route_decision *d)
{
    assert_true(cot_route_choose(book, r, now, d));
    const uint64_t number = cot_route_assigned(book, r, d, now);
    assert_true(number > 0);
    return number;
}

static void terms_are_those_of_the_formula(void **state)
{
    (void)state;
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    const uint32_t depth[TARGETS] = {0, 3, 1, 0};
    const cot_route_request r = request(100, depth);
    cot_route_decision d;
    const uint64_t first = send(book, &r, 0, &d);
    assert_int_equal(d.target, 1);
    assert_int_equal(d.cached, 48);
    assert_true(d.terms.queue == 0 && d.terms.prefill == 1000 + 52 * 10 && d.terms.decode == 100 * 2);
    // What waits there costs its time, less what went by; then another target is nearer.
    send(book, &r, 20, &d);
    assert_int_equal(d.target, 2);
    assert_true(d.terms.prefill == 1000 + 84 * 10);
    const uint64_t third = send(book, &r, 1400, &d);
    assert_int_equal(d.target, 1);
    assert_true(d.terms.queue == 1520 - 1400);
    // The first token comes late: the queue is what the others take, from then on.
    cot_route_began(book, first, 2000);
    cot_route_decision next;
    for (size_t t = 0; t < TARGETS; t++) cot_route_book_set_usable(book, t, t == 1);
    assert_true(cot_route_choose(book, &r, 2000, &next));
    assert_true(next.terms.queue == 1520);
    cot_route_ended(book, third, 0, 2100); // before its first token: it failed
    assert_true(cot_route_choose(book, &r, 2100, &next));
    assert_true(next.terms.queue == 0);
    // All cached but the last token.
    const uint32_t all[TARGETS] = {9, 9, 9, 9};
    const cot_route_request whole = request(9 * BLOCK, all);
    assert_true(cot_route_choose(book, &whole, 5000, &next));
    assert_int_equal(next.cached, 9 * BLOCK - 1);
    cot_route_book_close(book);
}

static void answers_are_expected_from_answers(void **state)
{
    (void)state;
    cot_route_book *book = open_book(COT_ROUTE_KV);
    const uint32_t depth[TARGETS] = {0};
    cot_route_request r = request(16, depth);
    r.max_tokens = 1000;
    cot_route_decision d;
    for (int i = 0; i < 32; i++) {
        const uint64_t number = send(book, &r, i, &d);
        assert_true(d.terms.decode == 256 * 2);
        cot_route_ended(book, number, 40, i);
    }
    assert_true(cot_route_choose(book, &r, 99, &d));
    assert_true(fabs(d.terms.decode - 80) < 1e-9);
    // Each answer counts 1/64 less than the one after it.
    double weight = 0, tokens = 0;
    for (int i = 0; i < 42; i++) {
        const uint64_t answered = i < 32 ? 40 : 300;
        weight = weight * 63 / 64 + 1;
        tokens = tokens * 63 / 64 + (double)answered;
        if (i >= 32) cot_route_ended(book, send(book, &r, i, &d), answered, i);
    }
    assert_true(cot_route_choose(book, &r, 99, &d));
    assert_true(fabs(d.terms.decode - 2 * tokens / weight) < 1e-9);
    for (int i = 0; i < 1000; i++) cot_route_ended(book, send(book, &r, i, &d), 500, i);
    assert_true(cot_route_choose(book, &r, 99, &d));
    assert_true(fabs(d.terms.decode - 1000) < 1);
    r.max_tokens = 3;
    assert_true(cot_route_choose(book, &r, 99, &d));
    assert_true(d.terms.decode == 6);
    cot_route_book_close(book);
}

/* Requests of one turn and equal scores starve nobody, under each policy that knows loads; one burst is spread. */
static void equal_scores_are_spread(void **state)
{
    (void)state;
    const uint32_t depth[TARGETS] = {0};
    for (int policy = 0; policy < COT_ROUTE_POLICIES; policy++) {
        cot_route_book *book = open_book((cot_route_policy)policy);
        const cot_route_request r = request(64, depth);
        int idle[TARGETS] = {0}, burst[TARGETS] = {0};
        cot_route_decision d;
        for (int i = 0; i < 40; i++) { // one at a time: each finds all idle
            const uint64_t number = send(book, &r, i * SECOND, &d);
            idle[d.target]++;
            cot_route_ended(book, number, 10, i * SECOND + 1000);
        }
        for (int i = 0; i < 40; i++) {
            send(book, &r, 100 * SECOND, &d);
            burst[d.target]++;
        }
        for (int t = 0; t < TARGETS; t++) {
            if (policy == COT_ROUTE_RANDOM) {
                assert_in_range(idle[t], 1, 39);
            } else {
                assert_int_equal(idle[t], 10);
                assert_int_equal(burst[t], 10);
            }
        }
        cot_route_book_close(book);
    }
}

/* A system prompt that one target holds: at low concurrency that one is taken while it is idle, as it is fastest, and others
 * when its queue costs more than computing the prompt elsewhere. A policy of overlap alone would send all there. */
static void a_shared_system_prompt(void **state)
{
    (void)state;
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    const uint32_t depth[TARGETS] = {0, 0, 4, 0};
    const cot_route_request r = request(5 * BLOCK, depth);
    int sent[TARGETS] = {0}, by_overlap[TARGETS] = {0};
    cot_route_decision d;
    for (int i = 0; i < 10; i++) {
        const uint64_t number = send(book, &r, i * SECOND, &d);
        assert_int_equal(d.target, 2);
        cot_route_ended(book, number, 1, i * SECOND + 5000);
    }
    for (int i = 0; i < 20; i++) {
        send(book, &r, 50 * SECOND, &d);
        sent[d.target]++;
        size_t best = 0;
        for (size_t t = 0; t < TARGETS; t++)
            if (depth[t] > depth[best]) best = t;
        by_overlap[best]++;
    }
    assert_int_equal(by_overlap[2], 20);
    for (int t = 0; t < TARGETS; t++) assert_in_range(sent[t], 3, 8);
    cot_route_book_close(book);
}

/* Few long requests fill a target's KV cache, which their number does not show. */
static void a_full_cache_is_seen(void **state)
{
    (void)state;
    const uint32_t depth[TARGETS] = {0};
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    for (size_t t = 0; t < TARGETS; t++) {
        cot_route_book_set_costs(
            book, t,
            &(cot_route_costs){.token_ns = 1, .step_ns = 1e6, .pages = t ? 100 : 50, .alone_ns = 1e7});
        cot_route_book_set_usable(book, t, t < 2);
    }
    cot_route_decision d;
    const cot_route_request large = request(40 * BLOCK, depth), small = request(20 * BLOCK, depth);
    const uint64_t a = send(book, &large, 0, &d);
    assert_int_equal(d.target, 0);
    cot_route_began(book, a, 640);
    send(book, &large, 640, &d);
    assert_int_equal(d.target, 1);
    // Target 0 is as idle as target 1 but for pages: 20 + 7 more than 50 - 47 that are left.
    assert_true(cot_route_choose(book, &small, 1300, &d));
    assert_int_equal(d.target, 1);
    cot_route_book_set_usable(book, 1, false);
    assert_true(cot_route_choose(book, &small, 0, &d));
    // 100 tokens of it, in steps of it alone; a second one there waits behind it, and makes steps longer.
    assert_true(fabs(d.terms.pages - (640 + 100 * 11e6) * 24 / 47) < 1);
    const uint64_t c = send(book, &small, 700, &d);
    assert_true(cot_route_choose(book, &small, 700, &d));
    assert_true(fabs(d.terms.pages - (320 + 100 * 12e6) * 51 / 74) < 1);
    cot_route_ended(book, c, 0, 800);
    cot_route_ended(book, a, 1, 1000);
    assert_true(cot_route_choose(book, &small, 1000, &d));
    assert_true(d.terms.pages == 0);
    // One that was long leaves nothing behind: what the next waits for is the short one there.
    const cot_route_request huge = request(43 * BLOCK, depth);
    cot_route_request brief = request(40 * BLOCK, depth);
    brief.max_tokens = 1;
    cot_route_ended(book, send(book, &huge, 2000, &d), 0, 2100);
    const uint64_t e = send(book, &brief, 2200, &d);
    cot_route_began(book, e, 3000);
    assert_true(cot_route_choose(book, &huge, 4000, &d));
    assert_true(fabs(d.terms.pages - 11e6 * 41 / 41) < 1);
    cot_route_book_close(book);
}

/* What is beyond those that run at once waits for one of them: it goes where there is a place, and of full ones to the one that is free first. */
static void places_are_seen(void **state)
{
    (void)state;
    enum { SLOTS = 3 };
    const uint32_t depth[TARGETS] = {0, 0, 9, 0};
    cot_route_book *book = open_book(COT_ROUTE_KV);
    const cot_route_request r = request(9 * BLOCK, depth);
    cot_route_decision d;
    cot_route_costs costs = {.token_ns = 10, .step_ns = 2, .alone_ns = 50, .slots = SLOTS};
    for (size_t t = 0; t < TARGETS; t++) {
        cot_route_book_set_costs(book, t, &costs);
        cot_route_book_set_usable(book, t, t > 1); // and 2 has the prompt
    }
    for (int i = 0; i < 2 * SLOTS; i++) {
        const int64_t now = i * 10000;
        const uint64_t number = send(book, &r, now, &d);
        assert_int_equal(d.target, i < SLOTS ? 2 : 3);
        assert_true(d.terms.pages == 0);
        cot_route_began(book, number, now);
    }
    for (int more = 1; more < 4; more++) { // 100 tokens each, in steps of all that are there
        const int there = SLOTS + more - 1;
        const double stay = 100 * (50.0 + 2 * there), part = (double)more / there;
        cot_route_weigh(book, &r, 2, SECOND, &d);
        assert_true(fabs(d.terms.pages - stay * part) < 1e-6);
        const uint64_t number = cot_route_assigned(book, &r, &d, SECOND);
        cot_route_began(book, number, SECOND);
    }
    assert_true(cot_route_choose(book, &r, SECOND, &d)); // three wait at 2, nobody at 3
    assert_int_equal(d.target, 3);
    cot_route_ended(book, 1, 5, SECOND);
    cot_route_weigh(book, &r, 2, SECOND, &d);
    assert_true(fabs(d.terms.pages - 100 * (50.0 + 2 * 5) * 3 / 5) < 1e-6);
    cot_route_book_set_scales(book, &(cot_route_scales){.kv = 1, .experts = 1, .load = 0});
    assert_true(cot_route_choose(book, &r, SECOND, &d)); // who does not look at load goes to the prompt
    assert_int_equal(d.target, 2);
    costs.slots = 0.25; // one at the least
    cot_route_book_set_costs(book, 3, &costs);
    cot_route_book_costs(book, 3, &costs);
    assert_true(costs.slots == 1);
    costs.slots = 0;
    cot_route_book_set_costs(book, 2, &costs);
    cot_route_weigh(book, &r, 2, SECOND, &d);
    assert_true(d.terms.pages == 0);
    cot_route_book_costs(book, 2, &costs);
    assert_true(costs.slots == 0);
    cot_route_book_close(book);
}

/* A beginning that many requests share is in memory once, as long as one of them is there; what each has of its own counts for each. */
static void shared_blocks_count_once(void **state)
{
    (void)state;
    enum { ALL = 95, SHARED = 90, FIT = 151 };
    uint64_t seed = test_seed(), keys[ALL], number[FIT];
    const uint32_t depth[TARGETS] = {SHARED, 0, 0, 0};
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    for (size_t t = 0; t < TARGETS; t++)
        cot_route_book_set_costs(
            book, t,
            &(cot_route_costs){.prompt_ns = 1, .token_ns = 1000, .step_ns = 1e6, .pages = t ? 1e6 : 1000});
    for (int i = 0; i < ALL; i++) keys[i] = draw(&seed);
    cot_route_request r = request(ALL * BLOCK, depth);
    r.max_tokens = 16;
    r.keys = keys;
    cot_route_decision d;
    int sent = 0;
    for (int64_t now = 0; sent < FIT; sent++, now += 1000000) { // each has 6 blocks of its own
        keys[ALL - 1] = draw(&seed);
        number[sent] = send(book, &r, now, &d);
        cot_route_began(book, number[sent], now);
        assert_int_equal(d.target, 0);
        assert_true(d.terms.pages == 0);
    }
    for (size_t t = 1; t < TARGETS; t++) cot_route_book_set_usable(book, t, false);
    assert_true(cot_route_choose(book, &r, SECOND, &d));
    assert_true(d.terms.pages > 0);
    // As they go, in any order, their own blocks go; with the last one the shared ones.
    for (int left = sent; left; left--) {
        const size_t at = (size_t)(draw(&seed) % (uint64_t)left);
        cot_route_ended(book, number[at], 0, SECOND);
        number[at] = number[left - 1];
        const uint64_t room = 1000 - (left > 1 ? SHARED + 6 * (uint64_t)(left - 1) : 0);
        const uint32_t none[TARGETS] = {0};
        cot_route_request fits = {.tokens = (room - 1) * BLOCK, .max_tokens = 16, .depth = none};
        assert_true(cot_route_choose(book, &fits, SECOND, &d));
        assert_true(d.terms.pages == 0);
        fits.tokens++;
        assert_true(cot_route_choose(book, &fits, SECOND, &d));
        assert_true(d.terms.pages > 0);
    }
    cot_route_book_close(book);
}

/* What has no room in a target even when it is alone there goes to another, if there is one. */
static void what_never_fits_goes_elsewhere(void **state)
{
    (void)state;
    const uint32_t depth[TARGETS] = {0};
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    cot_route_decision d;
    const cot_route_request r = request(100 * BLOCK, depth);
    for (size_t t = 0; t < TARGETS; t++)
        cot_route_book_set_costs(
            book, t, &(cot_route_costs){.token_ns = t == 3 ? 1e6 : 1, .pages = t == 3 ? 1000 : 5});
    for (int i = 0; i < 8; i++) {
        send(book, &r, 0, &d);
        assert_int_equal(d.target, 3);
    }
    cot_route_book_set_usable(book, 3, false);
    cot_route_book_set_costs(book, 1, &(cot_route_costs){.token_ns = 0.5, .pages = 5});
    assert_true(cot_route_choose(book, &r, 0, &d));
    assert_int_equal(d.target, 1); // which is the fastest still
    cot_route_book_close(book);
}

static void policies_by_hand(void **state)
{
    (void)state;
    const uint32_t depth[TARGETS] = {0, 6, 0, 0}, none[TARGETS] = {0};
    cot_route_decision d;
    cot_route_request r = request(8 * BLOCK, depth);
    cot_route_book *book = open_book(COT_ROUTE_DYNAMO);
    send(book, &r, 0, &d); // 8 - 6 + 8 against 8 + 8
    assert_int_equal(d.target, 1);
    send(book, &r, 0, &d); // (2 + 8) - 6 + 8 + 8 against 16
    assert_int_equal(d.target, 2);
    cot_route_book_close(book);
    book = open_book(COT_ROUTE_LEAST);
    const cot_route_request small = request(BLOCK, none), large = request(20 * BLOCK, none);
    int got[TARGETS] = {0};
    for (int i = 0; i < 3; i++) {
        send(book, &large, 0, &d);
        got[d.target]++;
    }
    for (int i = 0; i < 20; i++) {
        send(book, &small, 0, &d);
        assert_int_equal(got[d.target], 0); // the fourth, until it has as much
    }
    cot_route_book_close(book);
    book = open_book(COT_ROUTE_ROUND_ROBIN);
    cot_route_book_set_usable(book, 2, false);
    for (int i = 0; i < 9; i++) {
        send(book, &r, 0, &d);
        assert_int_equal(d.target, i % 3 == 2 ? 3 : i % 3);
    }
    for (size_t t = 0; t < TARGETS; t++) cot_route_book_set_usable(book, t, false);
    assert_false(cot_route_choose(book, &r, 0, &d));
    cot_route_book_close(book);
    book = open_book(COT_ROUTE_RANDOM);
    cot_route_book_set_usable(book, 0, false);
    int random[TARGETS] = {0};
    for (int i = 0; i < 3000; i++) {
        assert_true(cot_route_choose(book, &r, 0, &d));
        random[d.target]++;
    }
    assert_int_equal(random[0], 0);
    for (int t = 1; t < TARGETS; t++) assert_in_range(random[t], 800, 1200);
    cot_route_book_close(book);
}

static void speeds_are_learnt(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    cot_route_costs c;
    cot_route_learn_prompt(book, 1, 100, 5000); // one alone: through nothing
    cot_route_book_costs(book, 1, &c);
    assert_true(fabs(c.token_ns - 50) < 1e-9 && c.prompt_ns == 0);
    for (int i = 0; i < 2000; i++) {
        const uint64_t n = 1 + draw(&seed) % 4000;
        cot_route_learn_prompt(book, 1, n, 7e5 + 43.0 * (double)n);
        cot_route_learn_step(book, 1, n % 50, 1e6 + 900.0 * (double)(n % 50));
    }
    cot_route_book_costs(book, 1, &c);
    assert_true(fabs(c.prompt_ns - 7e5) < 1 && fabs(c.token_ns - 43) < 1e-3 && fabs(c.step_ns - 900) < 1e-3 &&
                fabs(c.alone_ns - 1e6) < 1);
    for (int i = 0; i < 2000; i++) { // a line below 0 at its beginning, then one that falls
        const double n = (double)(100 + draw(&seed) % 100);
        cot_route_learn_prompt(book, 2, (uint64_t)n, 10 * n - 500);
        cot_route_learn_step(book, 2, (uint64_t)n, 1e6 - n);
    }
    cot_route_book_costs(book, 2, &c);
    assert_true(c.prompt_ns == 0 && c.token_ns > 5 && c.token_ns < 10 && c.step_ns == 0);
    cot_route_book_close(book);
}

static const double TRUE_NS[] = {3e6, 40e3, 150e3}; // of a step, a token of a prompt, a request

/* What so many steps are, of which some fed prompts, and took: what they should, up to a few parts of a hundred more or less. */
static cot_route_work some_work(uint64_t *seed, int steps, double noise)
{
    cot_route_work w = {0};
    for (int i = 0; i < steps; i++) {
        const double tokens = draw(seed) % 3 ? 0 : (double)(draw(seed) % 2000),
                     requests = (double)(draw(seed) % 60);
        const double ns = TRUE_NS[0] + tokens * TRUE_NS[1] + requests * TRUE_NS[2];
        w.steps++;
        w.prompt_tokens += tokens;
        w.requests += requests;
        w.ns += ns * (1 + noise * ((double)(draw(seed) % 2001) / 1000 - 1));
    }
    return w;
}

static bool costs_are(cot_route_book *book, const double *ns, double within)
{
    cot_route_costs c;
    cot_route_book_costs(book, 1, &c);
    return fabs(c.prompt_ns - ns[0]) <= within * ns[0] && fabs(c.token_ns - ns[1]) <= within * ns[1] &&
           fabs(c.step_ns - ns[2]) <= within * ns[2] && c.alone_ns == c.prompt_ns;
}

/* By reports of steps, and by counters each second, whose steps are many and not as many each time. */
static void speeds_are_learnt_from_inside(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int by_counters = 0; by_counters < 2; by_counters++) {
        cot_route_book *book = open_book(COT_ROUTE_JOINT);
        for (int noisy = 0; noisy < 2; noisy++) {
            for (int i = 0; i < 2000; i++) {
                const int steps = by_counters ? (int)(draw(&seed) % 300) : 1; // of 0 nothing is learnt
                const cot_route_work w = some_work(&seed, steps, noisy ? 0.03 : 0);
                cot_route_learn_work(book, 1, &w);
            }
            assert_true(costs_are(book, TRUE_NS, noisy ? 0.2 : 1e-6));
        }
        // All becomes twice as fast: what was before is forgotten.
        const double half[] = {TRUE_NS[0] / 2, TRUE_NS[1] / 2, TRUE_NS[2] / 2};
        for (int i = 0; i < 4000; i++) {
            cot_route_work w = some_work(&seed, by_counters ? 1 + (int)(draw(&seed) % 300) : 1, 0);
            w.ns /= 2;
            cot_route_learn_work(book, 1, &w);
        }
        assert_true(costs_are(book, half, 1e-4));
        // A long time without prompts: what they cost is known still.
        for (int i = 0; i < 100000; i++) {
            const double requests = (double)(draw(&seed) % 60);
            cot_route_learn_work(
                book, 1,
                &(cot_route_work){.steps = 1, .requests = requests, .ns = half[0] + requests * half[2]});
        }
        assert_true(costs_are(book, half, 1e-4));
        cot_route_book_close(book);
    }
}

/* Steps that are all alike, or in which a part would cost less than nothing. */
static void what_steps_leave_open(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    for (int i = 0; i < 300; i++)
        cot_route_learn_work(book, 1, &(cot_route_work){.steps = 1, .requests = 8, .ns = 4e6});
    assert_true(costs_are(book, (double[]){0, 0, 5e5}, 1e-9));
    cot_route_book_close(book);
    book = open_book(COT_ROUTE_JOINT);
    cot_route_costs c;
    for (int i = 0; i < 300; i++) { // the more requests the faster, as no engine does
        const double tokens = (double)(1 + draw(&seed) % 2000), requests = (double)(draw(&seed) % 50);
        cot_route_learn_work(book, 1,
                             &(cot_route_work){.steps = 1,
                                               .prompt_tokens = tokens,
                                               .requests = requests,
                                               .ns = 1e6 + 50 * tokens - 1e4 * requests});
    }
    cot_route_book_costs(book, 1, &c);
    // What 24 requests of a step save is taken off the two parts that are left, from which of them these draws say.
    assert_true(c.step_ns == 0 && c.prompt_ns > 5e5 && c.prompt_ns < 1.1e6 && c.token_ns >= 0 &&
                c.token_ns < 150);
    // Of no steps, of times and numbers that are none.
    cot_route_learn_work(book, 2, &(cot_route_work){.ns = 5e6});
    static const double none[] = {NAN, INFINITY, -1, -1e9, 1e200};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        cot_route_learn_work(book, 2, &(cot_route_work){.steps = 1, .prompt_tokens = 9, .ns = none[i]});
        cot_route_learn_work(book, 2, &(cot_route_work){.steps = 1, .prompt_tokens = none[i], .ns = 9});
        cot_route_learn_work(book, 2, &(cot_route_work){.steps = 1, .requests = none[i], .ns = 9});
        cot_route_learn_work(book, 2, &(cot_route_work){.steps = none[i], .requests = 1, .ns = 9});
        cot_route_learn_prompt(book, 2, 9, none[i]);
        cot_route_learn_step(book, 2, 9, none[i]);
    }
    cot_route_book_costs(book, 2, &c); // as it was
    assert_true(c.prompt_ns == 1000 && c.token_ns == 10 && c.step_ns == 2);
    cot_route_book_close(book);
}

static void breakers_open_and_close(void **state)
{
    (void)state;
    const uint32_t depth[TARGETS] = {0, 9, 0, 0};
    const cot_route_request r = request(160, depth);
    cot_route_book *book = open_book(COT_ROUTE_JOINT);
    cot_route_decision d;
    cot_route_failed(book, 1, 0);
    cot_route_failed(book, 1, 6 * SECOND);
    cot_route_failed(book, 1, 11 * SECOND); // three in 11 s
    assert_false(cot_route_is_open(book, 1, 11 * SECOND));
    cot_route_failed(book, 1, 12 * SECOND);
    int64_t now = 12 * SECOND;
    for (int64_t open = 5; open < 200; open *= 2) {
        const int64_t until = now + (open < 60 ? open : 60) * SECOND;
        assert_true(cot_route_is_open(book, 1, now) && cot_route_is_open(book, 1, until - 1));
        assert_true(cot_route_choose(book, &r, until - 1, &d));
        assert_true(d.target != 1);
        cot_route_failed(book, 1, until - 1); // what was on its way
        assert_false(cot_route_is_open(book, 1, until));
        assert_true(cot_route_choose(book, &r, until, &d));
        assert_int_equal(d.target, 1);
        cot_route_failed(book, 1, now = until + 7);
    }
    cot_route_succeeded(book, 1); // what was on its way
    assert_true(cot_route_is_open(book, 1, now + 1));
    // One request tries it; when that one tells nothing, another.
    now += 60 * SECOND;
    for (int tried = 0; tried < 2; tried++) {
        const uint64_t number = send(book, &r, now, &d);
        assert_int_equal(d.target, 1);
        assert_true(cot_route_is_open(book, 1, now));
        for (int i = 0; i < 10; i++) {
            send(book, &r, now, &d);
            assert_true(d.target != 1);
        }
        cot_route_ended(book, number, 0, now);
    }
    // The one that tries fails: twice as long, which is the most.
    const uint64_t failing = send(book, &r, now, &d);
    assert_int_equal(d.target, 1);
    cot_route_failed(book, 1, now);
    cot_route_ended(book, failing, 0, now);
    assert_true(cot_route_is_open(book, 1, now + 60 * SECOND - 1));
    // It succeeds, by a word or by its tokens: the next time it opens for 5 s again.
    for (int by_word = 0; by_word < 2; by_word++) {
        now += 60 * SECOND;
        const uint64_t number = send(book, &r, now, &d);
        assert_int_equal(d.target, 1);
        if (by_word) cot_route_succeeded(book, 1);
        cot_route_ended(book, number, !by_word, now);
        assert_false(cot_route_is_open(book, 1, now));
        for (int i = 0; i < 3; i++) cot_route_failed(book, 1, now + i - 3);
        assert_true(cot_route_is_open(book, 1, now + 5 * SECOND - 2));
        assert_false(cot_route_is_open(book, 1, now + 5 * SECOND - 1));
    }
    assert_true(cot_route_is_open(book, 1, now));
    cot_route_renewed(book, 1); // another target has its place
    assert_false(cot_route_is_open(book, 1, now));
    now += 60 * SECOND;
    for (int i = 0; i < 3; i++) { // each second one
        cot_route_failed(book, 1, now + i);
        cot_route_succeeded(book, 1);
    }
    assert_true(cot_route_is_open(book, 1, now + 5 * SECOND));
    assert_false(cot_route_is_open(book, 1, now + 5 * SECOND + 2));
    cot_route_book_close(book);
}

static void refusals(void **state)
{
    (void)state;
    cot_route_book *book;
    cot_error error;
    assert_int_equal(cot_route_book_open(&book, 0, 16, COT_ROUTE_JOINT, 1, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "a book of 0 targets, with blocks of 16 tokens");
    assert_int_equal(cot_route_book_open(&book, 1, 0, COT_ROUTE_JOINT, 1, NULL), COT_INVALID_ARGUMENT);
    assert_int_equal(cot_route_book_open(&book, 1, 1, COT_ROUTE_POLICIES, 1, NULL), COT_INVALID_ARGUMENT);
    cot_route_book_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_are_those_of_the_formula),
        cmocka_unit_test(answers_are_expected_from_answers),
        cmocka_unit_test(equal_scores_are_spread),
        cmocka_unit_test(a_shared_system_prompt),
        cmocka_unit_test(a_full_cache_is_seen),
        cmocka_unit_test(places_are_seen),
        cmocka_unit_test(shared_blocks_count_once),
        cmocka_unit_test(what_never_fits_goes_elsewhere),
        cmocka_unit_test(policies_by_hand),
        cmocka_unit_test(speeds_are_learnt),
        cmocka_unit_test(speeds_are_learnt_from_inside),
        cmocka_unit_test(what_steps_leave_open),
        cmocka_unit_test(breakers_open_and_close),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
