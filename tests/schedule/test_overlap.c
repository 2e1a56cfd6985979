/* Who is taken into a step and who is admitted, by experts, against plain models; and how long anybody waits. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "schedule/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 24, CELLS = 37 };

static int64_t below(uint64_t *seed, int64_t n)
{
    return (int64_t)(draw(seed) % (uint64_t)n);
}

static void draw_shares(uint8_t *share, int64_t n, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++) share[i] = (uint8_t)(draw(seed) % 3 ? 0 : draw(seed) % 256);
}

/* Experts that are expected of `count` sequences together. */
static double expected_union(uint8_t shares[][CELLS], const bool *in, int64_t count)
{
    double all = 0;
    for (int64_t c = 0; c < CELLS; c++) {
        double none = 1;
        for (int64_t i = 0; i < count; i++)
            if (in[i]) none *= 1 - shares[i][c] / 255.0;
        all += 1 - none;
    }
    return all;
}

/* What one adds is by how much the union grows. */
static void what_one_adds_is_what_the_union_grows_by(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 200; round++) {
        static uint8_t shares[MOST][CELLS];
        bool in[MOST] = {false};
        float missing[CELLS];
        cot_overlap_clear(missing, CELLS);
        for (int i = 0; i < MOST; i++) {
            draw_shares(shares[i], CELLS, &seed);
            const double before = expected_union(shares, in, MOST);
            in[i] = true;
            const double grown = expected_union(shares, in, MOST) - before,
                         added = cot_overlap_added(missing, shares[i], CELLS);
            // some thirty products of at most 24 factors, each rounded to 2^-24
            assert_true(fabs(added - grown) < 1e-3);
            cot_overlap_take(missing, shares[i], CELLS);
        }
    }
}

/* Shares sum to K, what the token and the history both speak for is likelier than what either does alone, and where the token says
 * no more than the mean the history stands. */
static void both_sources_count(void **state)
{
    (void)state;
    enum { EXPERTS = 16, CHOSEN = 4 };
    uint64_t seed = test_seed();
    for (int round = 0; round < 200; round++) {
        float history[EXPERTS], token[EXPERTS], mean[EXPERTS];
        uint8_t share[EXPERTS], plain[EXPERTS];
        double sum = 0;
        for (int e = 0; e < EXPERTS; e++) {
            mean[e] = (float)CHOSEN / EXPERTS;
            history[e] = token[e] = mean[e] * (0.6f + 0.8f * (float)(draw(&seed) % 1000) / 1000);
        }
        const int likely = (int)below(&seed, EXPERTS);
        history[likely] = token[likely] = 0.5f;
        cot_overlap_expect(share, history, token, mean, EXPERTS, CHOSEN);
        cot_overlap_expect(plain, history, mean, mean, EXPERTS, CHOSEN);
        bool cut = false; // a share that would be more than is ever sure: then the others are fewer
        for (int e = 0; e < EXPERTS; e++) {
            sum += share[e] / 255.0;
            cut |= share[e] >= 249;
        }
        assert_true(sum < CHOSEN + 0.51 * EXPERTS / 255 && (cut || sum > CHOSEN - 0.51 * EXPERTS / 255));
        assert_true(share[likely] > plain[likely]);
        double all = 0;
        for (int e = 0; e < EXPERTS; e++) all += history[e];
        for (int e = 0; e < EXPERTS; e++)
            assert_true(fabs(plain[e] / 255.0 - history[e] * CHOSEN / all) < 1.5 / 255);
    }
    // nothing is certain, nothing impossible: a row of zeros and ones is no division by zero
    const float none[4] = {0, 0, 1, 1}, even[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    uint8_t share[4];
    cot_overlap_expect(share, none, none, even, 4, 2);
    assert_true(share[0] == 0 && share[1] == 0 && share[2] >= 245 && share[3] >= 245);
}

/* The number of the one that waited longest and is not taken, behind `behind` such; -1: there is none. */
static int64_t longest_left(const int64_t *waited, const bool *taken, int64_t count, int64_t behind)
{
    for (int64_t steps = 10; steps >= 0; steps--)
        for (int64_t i = 0; i < count; i++)
            if (!taken[i] && waited[i] == steps && behind-- == 0) return i;
    return -1;
}

/* By the rule, written down once more: who waited too long, then whatever leaves the union smallest, up to one that is not foretold.
 * Returns how many; order [count] of them. */
static int64_t plain_choice(int64_t *order, uint8_t shares[][CELLS], const bool *known, const int64_t *waited,
                            int64_t count, int64_t batch, int64_t max_wait)
{
    bool taken[MOST] = {false}, in[MOST] = {false};
    int64_t n = 0;
    for (; n < batch && n < count; n++) {
        const int64_t longest = longest_left(waited, taken, count, 0);
        int64_t best = longest;
        double least = 1e9;
        const bool overdue = n == 0 || batch >= count || waited[longest] >= max_wait;
        for (int64_t behind = 0, i; !overdue && (i = longest_left(waited, taken, count, behind)) >= 0;
             behind++) {
            if (!known[i]) break;
            in[i] = true;
            const double all = expected_union(shares, in, count);
            in[i] = false;
            if (all > least - 1e-9) continue;
            best = i;
            least = all;
        }
        order[n] = best;
        taken[best] = true;
        in[best] = known[best];
    }
    return n;
}

static void steps_take_whoever_adds_least(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 300; round++) {
        static uint8_t shares[MOST][CELLS];
        int64_t waited[MOST], expected[MOST];
        bool known[MOST];
        cot_overlap_sequence sequences[MOST];
        float missing[CELLS];
        int32_t order[MOST];
        const int64_t count = 1 + below(&seed, MOST), batch = 1 + below(&seed, MOST),
                      max_wait = 1 + below(&seed, 8), unknown = below(&seed, 8);
        for (int64_t i = 0; i < count; i++) {
            for (int c = 0; c < CELLS; c++)
                shares[i][c] = draw(&seed) % 4 ? 0 : 255; // so that unions are exact
            waited[i] = below(&seed, 10);
            known[i] = below(&seed, 20) >= unknown;
            sequences[i] = (cot_overlap_sequence){known[i] ? shares[i] : NULL, waited[i]};
        }
        cot_overlap_order(order, sequences, count);
        cot_overlap_choose(order, sequences, count, batch, max_wait, missing, CELLS);
        const int64_t n = plain_choice(expected, shares, known, waited, count, batch, max_wait);
        bool seen[MOST] = {false};
        for (int64_t i = 0; i < count; i++) {
            if (i < n && order[i] != expected[i])
                fail_msg("%d of %d: number %d is taken in place %d, not %d", (int)batch, (int)count, order[i],
                         (int)i, (int)expected[i]);
            assert_false(seen[order[i]]);
            seen[order[i]] = true;
        }
        for (int64_t i = n; i + 1 < count; i++) // the others stay in their order
            assert_true(waited[order[i]] > waited[order[i + 1]] ||
                        (waited[order[i]] == waited[order[i + 1]] && order[i] < order[i + 1]));
    }
}

/* Where looking at all would be too much work, of those that waited longest so many are looked at. */
static void work_is_bounded(void **state)
{
    (void)state;
    enum { MANY = COT_OVERLAP_WORK / 4, COUNT = COT_OVERLAP_LOOKED_AT + 4, BATCH = 4 };
    uint8_t *all = must_allocate(MANY, 1), *none = must_allocate(MANY, 1);
    float *missing = must_allocate(MANY, sizeof *missing);
    memset(all, 200, MANY);
    memset(none, 0, MANY);
    for (int best = 1; best < COUNT; best++) {
        cot_overlap_sequence sequences[COUNT];
        int32_t order[COUNT];
        for (int i = 0; i < COUNT; i++) sequences[i] = (cot_overlap_sequence){i == best ? none : all, 0};
        cot_overlap_order(order, sequences, COUNT);
        cot_overlap_choose(order, sequences, COUNT, 2, 9, missing, MANY);
        assert_int_equal(order[0], 0);
        assert_int_equal(order[1], best <= COT_OVERLAP_LOOKED_AT ? best : 1);
    }
    free(all);
    free(none);
    free(missing);
}

/* Shares that would have some left out for ever, of 10,000 drawn runs; some of which nothing is known. */
static void nobody_sits_out_longer_than_the_bound(void **state)
{
    (void)state;
    enum { RUNS = 10000, STEPS = 60, FEW = 5 };
    uint64_t seed = test_seed();
    int64_t reached = 0;
    for (int run = 0; run < RUNS; run++) {
        static uint8_t shares[MOST][FEW];
        cot_overlap_sequence sequences[MOST];
        int32_t order[MOST];
        float missing[FEW];
        const int64_t count = 1 + below(&seed, MOST), batch = 1 + below(&seed, count),
                      max_wait = 1 + below(&seed, 12), bound = max_wait + (count + batch - 1) / batch - 1;
        for (int64_t i = 0; i < count; i++) {
            for (int c = 0; c < FEW; c++) shares[i][c] = (uint8_t)(draw(&seed) % 256);
            sequences[i] = (cot_overlap_sequence){draw(&seed) % 16 ? shares[i] : NULL, 0};
        }
        for (int step = 0; step < STEPS; step++) {
            cot_overlap_order(order, sequences, count);
            cot_overlap_choose(order, sequences, count, batch, max_wait, missing, FEW);
            for (int64_t i = 0; i < count; i++) {
                cot_overlap_sequence *s = &sequences[order[i]];
                s->waited = i < batch ? 0 : s->waited + 1;
                if (s->waited > bound)
                    fail_msg("%d of %d, wait %d: one sat out %d steps, the bound is %d", (int)batch,
                             (int)count, (int)max_wait, (int)s->waited, (int)bound);
                reached += s->waited >= max_wait;
            }
        }
    }
    assert_true(reached > RUNS); // the bound is no idle one
}

/* 10,000 drawn histories of a queue that never runs dry: who was overtaken most often by COT_OVERLAP_OVERTAKEN, a `first` one
 * never, and who is taken stands in the window and adds least of those that may be. */
static void nobody_is_overtaken_more_often_than_the_bound(void **state)
{
    (void)state;
    enum { RUNS = 10000, ADMISSIONS = 60, QUEUE = 40, FEW = 5 };
    uint64_t seed = test_seed();
    int64_t most = 0, choices = 0;
    for (int run = 0; run < RUNS; run++) {
        struct {
            uint8_t share[FEW];
            bool known, first;
            int64_t overtaken, before; // how many may still go before it
        } queue[QUEUE];
        const int64_t length = 1 + below(&seed, QUEUE), unknown = run % 3 ? 0 : 8;
        float missing[FEW];
        for (int c = 0; c < FEW; c++) missing[c] = (float)(draw(&seed) % 256) / 255;
        for (int64_t i = 0; i < length + ADMISSIONS; i++) {
            // i: who comes; from `length` on one is admitted for each that comes
            const int64_t at = i < length ? i : length - 1;
            if (i >= length) {
                cot_overlap_waiting waiting[QUEUE];
                for (int64_t w = 0; w < length; w++)
                    waiting[w] = (cot_overlap_waiting){queue[w].known ? queue[w].share : NULL,
                                                       queue[w].overtaken, queue[w].first};
                const int64_t next = cot_overlap_admit(waiting, length, missing, FEW);
                assert_in_range(next, 0, length < COT_OVERLAP_WINDOW ? length - 1 : COT_OVERLAP_WINDOW - 1);
                assert_true(next == 0 || queue[next].known);
                for (int64_t w = 0; w < next; w++) {
                    assert_true(queue[w].known && !queue[w].first);
                    assert_true(++queue[w].overtaken <= COT_OVERLAP_OVERTAKEN);
                    if (queue[w].overtaken > most) most = queue[w].overtaken;
                }
                for (int64_t w = 0; w < length; w++) {
                    if (w == next) continue;
                    assert_true(queue[w].before-- > 0);
                }
                bool barred = false; // behind who may not be passed
                for (int64_t w = 0; w < length && w < COT_OVERLAP_WINDOW && !barred; w++) {
                    barred = queue[w].first || !queue[w].known || queue[w].overtaken > COT_OVERLAP_OVERTAKEN;
                    barred |= queue[w].overtaken - (w < next) >= COT_OVERLAP_OVERTAKEN;
                    if (queue[w].known && queue[next].known)
                        assert_true(cot_overlap_added(missing, queue[w].share, FEW) >=
                                    cot_overlap_added(missing, queue[next].share, FEW));
                }
                choices += next > 0;
                memmove(queue + next, queue + next + 1, (size_t)(length - next - 1) * sizeof *queue);
            }
            memset(&queue[at], 0, sizeof queue[at]);
            queue[at].known = !unknown || draw(&seed) % (uint64_t)unknown;
            queue[at].first = i == 0 && run % 2;
            queue[at].before = at + COT_OVERLAP_OVERTAKEN;
            for (int c = 0; c < FEW; c++) queue[at].share[c] = (uint8_t)(draw(&seed) % 256);
        }
    }
    assert_int_equal(most, COT_OVERLAP_OVERTAKEN);
    assert_true(choices > RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_one_adds_is_what_the_union_grows_by),
                                       cmocka_unit_test(both_sources_count),
                                       cmocka_unit_test(steps_take_whoever_adds_least),
                                       cmocka_unit_test(work_is_bounded),
                                       cmocka_unit_test(nobody_sits_out_longer_than_the_bound),
                                       cmocka_unit_test(nobody_is_overtaken_more_often_than_the_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
