#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "harness/seed.h"

/* The values are part of the contract: the same request draws the same numbers in every version. */
static void test_fixed(void **state)
{
    (void)state;
    assert_true(cot_mix64(0) == 0xe220a8397b1dcdaf); // first output of splitmix64 with state 0
    assert_true(cot_random_bits(1, 2, 3) == cot_mix64(cot_mix64(cot_mix64(1) ^ 2) ^ 3));
    assert_true(cot_random_uniform(1, 2, 3) == cot_random_uniform(1, 2, 3));
}

/* Neighbours in seed, stream and position alike give uniform, uncorrelated numbers. */
static void test_uniform(void **state)
{
    (void)state;
    enum { N = 100000, CELLS = 100 };
    uint64_t seed = test_seed();
    for (int axis = 0; axis < 3; axis++) {
        int counts[CELLS] = {0};
        double sum = 0, product = 0, previous = 0.5;
        for (uint64_t i = 0; i < N; i++) {
            double u = cot_random_uniform(seed + (axis == 0) * i, (axis == 1) * i, (axis == 2) * i);
            assert_true(u >= 0 && u < 1);
            counts[(int)(u * CELLS)]++;
            sum += u;
            product += (u - 0.5) * (previous - 0.5);
            previous = u;
        }
        double chi2 = 0;
        for (int c = 0; c < CELLS; c++)
            chi2 += (counts[c] - N / CELLS) * (double)(counts[c] - N / CELLS) / (N / CELLS);
        // Six standard deviations: sqrt(2 (CELLS - 1)), 1 / sqrt(12 N), 1 / (12 sqrt(N)).
        assert_true(chi2 < CELLS - 1 + 6 * 14.08);
        assert_true(sum / N > 0.5 - 6 * 0.00092 && sum / N < 0.5 + 6 * 0.00092);
        assert_true(product / N > -6 * 0.000264 && product / N < 6 * 0.000264);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixed), cmocka_unit_test(test_uniform)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
