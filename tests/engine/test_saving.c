/* What moves of experts have saved: steps of known times, by arithmetic of the test's own. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "engine/saving.h"

#include <math.h>
#include <stdio.h>

static uint64_t drawn;

static double uniform(void)
{
    return (double)(cot_mix64(drawn++) >> 11) * 0x1p-53;
}

static const double weight[COT_COST_TERMS] = {
    [COT_COST_FIXED] = 5000, [COT_COST_EXPERTS] = 1e9, [COT_COST_ROWS] = 1e9, [COT_COST_SENDS] = 1e9,
    [COT_COST_TOKENS] = 70,  [COT_COST_POSITIONS] = 3, [COT_COST_PAIRS] = 0.5};

static int64_t often = 1; // as much of everything in a step

/* A step of any batch in which experts take so long, give or take a tenth; one of eight was held up by something else. */
static bool run(double *realised, cot_saving *s, double experts_ns)
{
    const cot_cost_step held = {often * (1 + (int64_t)(uniform() * 60)), often * (int64_t)(uniform() * 4000),
                                often * (int64_t)(uniform() * 9000)};
    const double ns = 5000 + 70 * (double)held.tokens + 3 * (double)held.positions +
                      0.5 * (double)held.pairs + experts_ns * (0.9 + 0.2 * uniform()) +
                      (uniform() < 0.125 ? 1e9 : 0);
    return cot_saving_add(realised, s, &held, ns, weight);
}

static void run_many(cot_saving *s, int steps, double experts_ns)
{
    double unused;
    for (int i = 0; i < steps; i++) assert_false(run(&unused, s, experts_ns));
}

static void what_was_saved_is_found(void **state)
{
    (void)state;
    drawn = test_seed();
    cot_saving s = {0};
    for (int cycle = 0; cycle < 20; cycle++) {
        const double before = 1000 + 9000 * uniform(), after = 1000 + 9000 * uniform();
        double realised = NAN;
        often = 1 + 7 * (cycle % 2); // and afterwards the other
        run_many(&s, COT_SAVING_STEPS + (int)(uniform() * 300), before);
        cot_saving_begin(&s, 12);
        run_many(&s, (int)(uniform() * 600), 1e7); // while they move
        for (int i = 0; i < 3; i++) cot_saving_end(&s);
        often = 9 - often;
        run_many(&s, COT_SAVING_STEPS - 1, after);
        assert_true(run(&realised, &s, after));
        assert_true(fabs(realised - (before - after)) <= 0.1 * (before + after));
        assert_true(s.foreseen_ns == 12);
        cot_saving_end(&s); // over for long
        cot_saving_forget(&s);
    }
}

static void what_is_not_alike_is_not_compared(void **state)
{
    (void)state;
    drawn = test_seed();
    cot_saving s = {0};
    run_many(&s, COT_SAVING_STEPS - 1, 100); // too few before
    cot_saving_begin(&s, 1);
    cot_saving_end(&s);
    run_many(&s, 3 * COT_SAVING_STEPS, 50);
    cot_saving_begin(&s, 1); // others begin before there are enough behind the first
    cot_saving_end(&s);
    run_many(&s, COT_SAVING_STEPS - 1, 50);
    cot_saving_begin(&s, 1);
    cot_saving_end(&s);
    run_many(&s, 3 * COT_SAVING_STEPS, 50);
    cot_saving_begin(&s, 1);
    cot_saving_end(&s);
    cot_saving_forget(&s); // somebody else moves experts
    run_many(&s, 3 * COT_SAVING_STEPS, 50);
    cot_saving_begin(&s, 1); // never over
    run_many(&s, 3 * COT_SAVING_STEPS, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_saved_is_found),
                                       cmocka_unit_test(what_is_not_alike_is_not_compared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
