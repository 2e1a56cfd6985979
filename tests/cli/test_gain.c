/* When `coterie group` and `coterie predict` say that no gain is proven, and what of. The frame is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/plan/cmd_predict.h"

#include "harness/cli/capture.h"

#include <math.h>

static int print_gain(void *row)
{
    cli_prediction_row_print_gain(row);
    return 0;
}

/* What is said of a gain over `tokens` tokens of 4 layers, with an interval or NANs. */
static const char *said(double gain, double low, double high, int64_t tokens)
{
    static capture c;
    cli_prediction_row row = {.name = "coterie", .ranks = 4, .has_test = true};
    row.test.n_tokens = tokens;
    row.test.n_layers = 4;
    row.test.all[COT_FIGURE_LAR_GAIN] = gain;
    row.test.low[COT_FIGURE_LAR_GAIN] = low;
    row.test.high[COT_FIGURE_LAR_GAIN] = high;
    capture_call(&c, print_gain, &row);
    assert_int_equal(c.status, 0);
    return c.out;
}

static void test_gain(void **state)
{
    (void)state;
    const int64_t many = 1000000; // whose mean is off by 0.001 at most
    // An interval above zero is still no proof: the line says what is, and does not say that nothing is gained.
    assert_string_equal(
        said(0.0061, 0.0026, 0.0094, many),
        "coterie@4: no gain is proven: test LAR is +0.0061 beyond sending as many tokens to each\n"
        "  rank blindly, 95 % interval +0.0026..+0.0094; more than 0.0068 is asked for, four\n"
        "  standard errors, as wide as that interval\n");
    assert_string_equal(said(0.0069, 0.0026, 0.0094, many), "");
    // Few tokens may agree by chance.
    assert_string_equal(
        said(0.0061, 0.0060, 0.0062, 10000),
        "coterie@4: no gain is proven: test LAR is +0.0061 beyond sending as many tokens to each\n"
        "  rank blindly, 95 % interval +0.0060..+0.0062; more than 0.0100 is asked for, four\n"
        "  standard errors of so many independent tokens\n");
    assert_string_equal(said(0.0101, 0.0100, 0.0102, 10000), "");
    assert_string_equal(
        said(-0.02, NAN, NAN, 10000),
        "coterie@4: no gain is proven: test LAR is -0.0200 beyond sending as many tokens to each\n"
        "  rank blindly; more than 0.0100 is asked for, four standard errors of so many independent\n"
        "  tokens\n");
    assert_string_equal(said(0.0101, NAN, NAN, 10000), "");
    assert_string_equal(said(NAN, NAN, NAN, 10000), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
