/* JSON with integers beyond 64 bits: they are read as reals, and all else as jansson reads it. */
#include "harness/allocations.h"

#include "base/json_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static json_t *load(const char *text)
{
    json_error_t why;
    return cot_json_load(text, strlen(text), JSON_DECODE_ANY, &why);
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *text, *same; // the same value as jansson reads it
    } rows[] = {
        {"1000000000000000019884624838656", "1e30"},
        {"-1000000000000000019884624838656", "-1e30"},
        {"9223372036854775807", "9223372036854775807"},
        {"9223372036854775808", "9223372036854775808.0"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"-9223372036854775809", "-9223372036854775809.0"},
        {"[9223372036854775808,9223372036854775807,18446744073709551616]",
         "[9223372036854775808.0,9223372036854775807,18446744073709551616.0]"},
        {"{\"a\":99999999999999999999,\"b\":[-7, 12345678901234567890.5, 1e3, 123456789012345678901e2]}",
         "{\"a\":99999999999999999999.0,\"b\":[-7, 12345678901234567890.5, 1e3, 123456789012345678901e2]}"},
        // digits of a string are no number, whatever it quotes
        {"[\"99999999999999999999\", 99999999999999999999, \"\\\"99999999999999999999\\\\\", 5]",
         "[\"99999999999999999999\", 99999999999999999999.0, \"\\\"99999999999999999999\\\\\", 5]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *got = load(rows[i].text), *wanted = json_loads(rows[i].same, JSON_DECODE_ANY, NULL);
        assert_non_null(wanted);
        if (!json_equal(got, wanted)) fail_msg("row %zu", i);
        json_decref(got);
        json_decref(wanted);
    }
}

/* What is no JSON stays refused, behind such an integer too. */
static void test_refusals(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "[99999999999999999999",        "[99999999999999999999, \"", "[99999999999999999999, \"\\",
        "099999999999999999999",        "[99999999999999999999 1]",  "-",
        "[99999999999999999999, -]",    "99999999999999999999-",     "[1e400]",
        "[99999999999999999999, 1e400]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (load(texts[i])) fail_msg("row %zu", i);
    json_error_t why;
    const char *text = "{\"a\": 99999999999999999999, \"a\": 1}"; // flags count
    assert_null(cot_json_load(text, strlen(text), JSON_REJECT_DUPLICATES, &why));
    assert_int_equal(json_error_code(&why), json_error_duplicate_key);
}

/* Where every value needs room. */
static void test_many(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    char text[COUNT * 20 + 2] = "[";
    for (int i = 0; i < COUNT; i++) memcpy(text + 1 + 20 * i, "9223372036854775808,", 21);
    text[COUNT * 20] = ']';
    json_t *list = load(text);
    assert_int_equal(json_array_size(list), COUNT);
    assert_true(json_is_real(json_array_get(list, COUNT - 1)));
    json_decref(list);
}

/* Where there is no room to read it anew the number is not called too large. */
static void test_no_memory(void **state)
{
    (void)state;
    json_error_t why;
    const char *text = "[99999999999999999999]";
    fail_allocation(allocations_so_far() + 1);
    assert_null(cot_json_load(text, strlen(text), 0, &why));
    fail_allocation(0);
    assert_int_equal(json_error_code(&why), json_error_out_of_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_many), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
