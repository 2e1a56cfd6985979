/* When what is called has become another: a change far beyond those before it, and beyond chance. */
#include "harness/cmocka.h"

#include "placement/rebalance.h"

#include <math.h>

static bool turns(cot_rebalance *r, double change)
{
    return cot_rebalance_turns(r, change, 1e-9);
}

static void test_turns(void **state)
{
    (void)state;
    cot_rebalance r = {0};
    assert_false(cot_rebalance_turns(&r, 0.5, 0)); // nothing is known: not looked at
    assert_int_equal(r.changes, 0);
    assert_false(turns(&r, 0.75)); // none before it
    assert_true(r.usual_change == 0.75);
    assert_false(turns(&r, 0.25));
    assert_true(r.usual_change == 0.5);
    assert_false(turns(&r, 1)); // twice the usual is not beyond it
    r = (cot_rebalance){0};
    for (int i = 0; i < 4; i++) assert_false(turns(&r, 0.125));
    assert_true(turns(&r, 0.375)); // and counts as one of eight
    assert_true(r.usual_change == 0.15625);
    assert_false(cot_rebalance_turns(&r, 0, 0));
    assert_true(r.usual_change == 0.15625);
    r = (cot_rebalance){0};
    for (int i = 0; i < 4; i++) assert_false(turns(&r, 0)); // the same experts all the time
    assert_true(turns(&r, 1));
}

/* Calls that change to and fro from one cycle to the next are no news in the end; once they have ceased to, a change is again. */
static void test_to_and_fro(void **state)
{
    (void)state;
    cot_rebalance r = {0};
    int turned = 0;
    for (int i = 0; i < 8; i++) assert_false(turns(&r, 0.04));
    for (int i = 0; i < 20; i++) turned += turns(&r, 0.2);
    assert_in_range(turned, 1, 5);
    for (int i = 0; i < 20; i++) assert_false(turns(&r, 0.04));
    assert_true(turns(&r, 0.2));
}

static void test_chance(void **state)
{
    (void)state;
    cot_rebalance r = {0};
    assert_false(cot_rebalance_turns(&r, 0.125, 0.125));
    assert_false(cot_rebalance_turns(&r, 0.375, 0.1876)); // so few calls differ by so much
    r = (cot_rebalance){0};
    assert_false(cot_rebalance_turns(&r, 0.125, 0.125));
    assert_true(cot_rebalance_turns(&r, 0.375, 0.1874));
}

/* The usual is a mean of all, and from the eighth on one that follows: by an eighth each time. */
static void test_usual(void **state)
{
    (void)state;
    cot_rebalance r = {0};
    for (int i = 0; i < 8; i++) assert_false(turns(&r, 0.125));
    for (int i = 0; i < 3; i++) {
        const double before = r.usual_change;
        assert_false(turns(&r, before + 0.08));
        assert_true(fabs(r.usual_change - before - 0.01) < 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_to_and_fro),
                                       cmocka_unit_test(test_chance), cmocka_unit_test(test_usual)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
