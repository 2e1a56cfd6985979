/* Intervals of rebalancing, as people write them. */
#include "harness/cmocka.h"

#include "placement/rebalance.h"

#include <stdio.h>
#include <string.h>

static void test_intervals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t steps, ns;
    } good[] = {{"4096steps,60s", 4096, 60000000000},
                {"60s,4096steps", 4096, 60000000000},
                {"1steps", 1, 0},
                {"0.5s", 0, 500000000},
                {"1000000000000steps", 1000000000000, 0},
                {"1000000000s", 0, 1000000000000000000}};
    static const char *const wrong[] = {
        "",     "0s",   "0steps",    "0steps,60s", "-1s",       "60",   "steps", "60s,60s", "1steps,2steps",
        "60s,", ",60s", "60 s",      "1.5steps",   "nans",      "infs", "0x10s", "1e3s",    "60m",
        "60ss", " 60s", "1e13steps", "1e10s",      "60s;1steps"};
    int64_t steps, ns;
    cot_error error;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(cot_rebalance_read_interval(&steps, &ns, good[i].text, &error), COT_OK);
        assert_int_equal(steps, good[i].steps);
        assert_int_equal(ns, good[i].ns);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char named[64];
        snprintf(named, sizeof named, "'%s' is no interval", wrong[i]);
        assert_int_equal(cot_rebalance_read_interval(&steps, &ns, wrong[i], &error), COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, named));
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_intervals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
