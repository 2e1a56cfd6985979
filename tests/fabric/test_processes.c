/* The conformance suite over processes forked after the group was opened. */
#include "fabric/conformance.h"

#define TEST(name)                                                                                           \
    static void test_##name(void **state)                                                                    \
    {                                                                                                        \
        (void)state;                                                                                         \
        check_##name(run_forked);                                                                            \
    }
CONFORMANCE_TESTS(TEST)

int main(void)
{
#define ENTRY(name) cmocka_unit_test(test_##name),
    const struct CMUnitTest tests[] = {CONFORMANCE_TESTS(ENTRY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
