/* What is told where COTERIE_LLGUIDANCE names something else than the library. */
#include "harness/cmocka.h"
#include "harness/refused.h"

#include "constrain/llguidance.h"

#include <stdlib.h>
#include <string.h>

static void refuse(const char *named, const char *words)
{
    const cot_llguidance *library;
    cot_error error = {0};
    assert_int_equal(setenv("COTERIE_LLGUIDANCE", named, 1), 0);
    assert_refused(cot_llguidance_open(&library, &error), &error, words);
    assert_int_equal(error.status, COT_UNSUPPORTED);
    assert_null(library);
}

static void what_is_named_is_no_library(void **state)
{
    (void)state;
    char longest[5000]; // what of it goes into a path is a folder that can be read
    memset(longest, '/', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    refuse("/nowhere/it.so",
           "COTERIE_LLGUIDANCE names '/nowhere/it.so', which cannot be read: 'tools/get-llguidance'");
    refuse(longest, "COTERIE_LLGUIDANCE names '//");
    refuse(COT_SOURCE "/README.md", "llguidance cannot be loaded: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_named_is_no_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
