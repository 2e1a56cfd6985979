#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"

#include <string.h>

static void test_status_text(void **state)
{
    (void)state;
    assert_string_equal(cot_status_text(COT_OK), "ok");
    assert_string_equal(cot_status_text(COT_PEER_FAILED), "another rank failed");
    assert_string_equal(cot_status_text((cot_status)12345), "unknown status");
}

static void test_fail(void **state)
{
    (void)state;
    cot_error error;
    memset(&error, 0x5a, sizeof error);
    assert_int_equal(cot_fail(NULL, COT_IO, "%d", 1), COT_IO);
    assert_int_equal(cot_fail(&error, COT_MALFORMED, "'%s' holds %d", "a\nb\x1b[2J\x7f", 7), COT_MALFORMED);
    assert_int_equal(error.status, COT_MALFORMED);
    assert_string_equal(error.message, "'a?b?[2J?' holds 7");
}

/* A message that is too long is cut, and ends where a character ends. */
static void test_long_message(void **state)
{
    (void)state;
    cot_error error;
    char text[600];
    for (int lead = 0; lead < 4; lead++) {
        memset(text, 'x', (size_t)lead);
        for (int i = 0; i < 190; i++) memcpy(text + lead + 3 * i, "\xe2\x82\xac", 4); // euro signs
        cot_fail(&error, COT_IO, "%s", text);
        size_t length = strlen(error.message);
        assert_in_range(length, sizeof error.message - 4, sizeof error.message - 1);
        assert_int_equal((length - (size_t)lead) % 3, 0);
        assert_memory_equal(error.message, text, length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_text),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_long_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
