/* Every conversion against the definition of the format, computed in double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <stdbool.h>

/* A binary format of `width` bits: sign, exponent, mantissa. */
struct format {
    int exponent_bits, mantissa_bits;
    bool finite_only; // all ones is the only NaN and there is no infinity (OCP E4M3)
};
static const struct format f16 = {5, 10, false}, bf16 = {8, 7, false}, e4m3 = {4, 3, true};

/* The value that IEEE 754 gives these bits. */
static double decode(struct format f, uint32_t bits)
{
    uint32_t mantissa = bits % (1u << f.mantissa_bits), exponents = 1u << f.exponent_bits;
    uint32_t exponent = bits >> f.mantissa_bits & (exponents - 1);
    int bias = (int)exponents / 2 - 1;
    double sign = bits >> (f.exponent_bits + f.mantissa_bits) ? -1 : 1;
    double fraction = ldexp(mantissa, -f.mantissa_bits);
    if (exponent == exponents - 1 && !f.finite_only) return mantissa ? NAN : sign * INFINITY;
    if (f.finite_only && exponent == exponents - 1 && mantissa == (1u << f.mantissa_bits) - 1) return NAN;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias);
    return sign * ldexp(1 + fraction, (int)exponent - bias);
}

static void expect_same(double expected, float found, uint32_t bits)
{
    bool same =
        isnan(expected) ? isnan(found) : expected == (double)found && !signbit(expected) == !signbit(found);
    if (!same) fail_msg("bits %#x are %g, not %g", bits, expected, (double)found);
}

static void test_widening(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        expect_same(decode(f16, bits), cot_f16_to_f32((uint16_t)bits), bits);
        expect_same(decode(bf16, bits), cot_bf16_to_f32((uint16_t)bits), bits);
    }
    for (uint32_t bits = 0; bits < 0x100; bits++)
        expect_same(decode(e4m3, bits), cot_f8_e4m3_to_f32((uint8_t)bits), bits);
}

/* The bits nearest to `value`, by bisection over the format's own values. */
static uint16_t round_by_search(struct format f, float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    uint16_t infinity = (uint16_t)(((1u << f.exponent_bits) - 1) << f.mantissa_bits), low = 0,
             high = infinity;
    double end =
        2 * decode(f, (uint16_t)(infinity - 1)) - decode(f, (uint16_t)(infinity - 2)); // what would be next
    if (magnitude >= end) return sign | infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (decode(f, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - decode(f, low), above = (high == infinity ? end : decode(f, high)) - magnitude;
    return sign | (below < above || (below == above && !(low & 1)) ? low : high);
}

static void expect_narrow(float value)
{
    uint16_t a = round_by_search(f16, value), b = round_by_search(bf16, value);
    uint16_t x = cot_f32_to_f16(value), y = cot_f32_to_bf16(value);
    if (a != x) fail_msg("%a as F16 is %#x, not %#x", (double)value, a, x);
    if (b != y) fail_msg("%a as BF16 is %#x, not %#x", (double)value, b, y);
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Every value of the format, the middle between it and the next, and the neighbours of both. */
static void test_narrowing(void **state)
{
    (void)state;
    const struct format formats[] = {f16, bf16};
    for (int k = 0; k < 2; k++) {
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            double here = decode(formats[k], bits), next = decode(formats[k], bits + 1);
            if (!isfinite(here)) continue;
            float values[] = {(float)here, (float)((here + next) / 2)};
            for (int v = 0; v < 2; v++) {
                if (!isfinite(values[v])) continue;
                expect_narrow(values[v]);
                expect_narrow(nextafterf(values[v], INFINITY));
                expect_narrow(nextafterf(values[v], -INFINITY));
            }
        }
    }
    uint64_t seed = test_seed();
    for (uint64_t i = 0; i < 200000; i++) {
        float value = from_bits((uint32_t)cot_random_bits(seed, 0, i));
        if (!isnan(value)) expect_narrow(value);
    }
    expect_narrow(INFINITY);
    expect_narrow(-INFINITY);
    const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff};
    for (int i = 0; i < 5; i++) {
        assert_true(isnan(cot_f16_to_f32(cot_f32_to_f16(from_bits(nans[i])))));
        assert_true(isnan(cot_bf16_to_f32(cot_f32_to_bf16(from_bits(nans[i])))));
    }
}

static void test_names(void **state)
{
    (void)state;
    for (unsigned type = 0; type < COT_DTYPE_COUNT; type++) {
        assert_int_equal(cot_dtype_parse(cot_dtype_name((cot_dtype)type)), type);
        assert_in_range(cot_dtype_bytes((cot_dtype)type), 1, 8);
    }
    assert_int_equal(cot_dtype_parse("bf16"), COT_DTYPE_COUNT);
    assert_int_equal(cot_dtype_parse(""), COT_DTYPE_COUNT);
    assert_int_equal(cot_dtype_bytes(COT_DTYPE_COUNT), 0);
    assert_string_equal(cot_dtype_name(COT_DTYPE_COUNT), "?");
    assert_int_equal(cot_dtype_bytes(COT_BF16), 2);
    assert_int_equal(cot_dtype_bytes(COT_F8_E8M0), 1);
    assert_int_equal(cot_dtype_bytes(COT_I64), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widening),
        cmocka_unit_test(test_narrowing),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
