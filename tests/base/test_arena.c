/* What is said of memory that cannot be mapped. */
#include "harness/cmocka.h"

#include "base/arena.h"

#include <string.h>
#include <sys/resource.h>

/* A limit of the process's own is named, with what it leaves. */
static void test_limit(void **state)
{
    (void)state;
    const size_t bytes = (size_t)1 << 40;
    struct rlimit before, most;
    cot_arena arena;
    cot_error error = {0};
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    most = before;
    most.rlim_cur = (rlim_t)1 << 39;
    if (before.rlim_max != RLIM_INFINITY && before.rlim_max < most.rlim_cur) return;
    assert_int_equal(setrlimit(RLIMIT_AS, &most), 0);
    const uint64_t left = cot_arena_mappable_bytes();
    assert_int_equal(cot_arena_open(&arena, bytes, &error), COT_OUT_OF_MEMORY);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_true(left < (uint64_t)1 << 39 && left > (uint64_t)1 << 38);
    if (!strstr(error.message, "cannot map 1099511627776 bytes of memory") ||
        !strstr(error.message, "GB more (ulimit -v)"))
        fail_msg("%s", error.message);
    if (before.rlim_cur == RLIM_INFINITY) assert_true(cot_arena_mappable_bytes() == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
