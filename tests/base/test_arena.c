/* What is handed out, measured and then mapped; and what is said of memory that cannot be mapped. */
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

static const struct {
    size_t count, size;
} asked[] = {{1, 1}, {0, 8}, {3, 21}, {64, 1}, {65, 1}, {1000, 4096}};
enum { ASKED = sizeof asked / sizeof *asked };

/* What was measured is enough: each piece is zero, aligned, and no other's. */
static void test_pieces(void **state)
{
    (void)state;
    cot_arena arena = {0};
    cot_error error;
    uint8_t *piece[ASKED];
    for (int i = 0; i < ASKED; i++) assert_null(cot_arena_take(&arena, asked[i].count, asked[i].size));
    assert_int_equal(arena.used, 64 + 0 + 64 + 64 + 128 + 4096000);
    assert_int_equal(cot_arena_open(&arena, arena.used, &error), COT_OK);
    for (int i = 0; i < ASKED; i++) {
        piece[i] = cot_arena_take(&arena, asked[i].count, asked[i].size);
        assert_int_equal((uintptr_t)piece[i] % 64, 0);
        for (size_t at = 0; at < asked[i].count * asked[i].size; at++) assert_int_equal(piece[i][at], 0);
        memset(piece[i], i + 1, asked[i].count * asked[i].size);
    }
    assert_int_equal(arena.used, arena.bytes);
    for (int i = 0; i < ASKED; i++)
        for (size_t at = 0; at < asked[i].count * asked[i].size; at++) assert_int_equal(piece[i][at], i + 1);
    cot_arena_close(&arena);
    assert_true(cot_arena_measures(&arena));
    assert_int_equal(cot_arena_open(&arena, 0, &error), COT_OK);
    assert_false(cot_arena_measures(&arena));
    cot_arena_close(&arena);
}

/* What no memory can hold stays so, however much is asked for behind it. */
static void test_too_much(void **state)
{
    (void)state;
    static const struct {
        size_t count, size;
    } rows[] = {{SIZE_MAX, 2}, {SIZE_MAX / 2, 1}, {(size_t)1 << 33, (size_t)1 << 33}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_arena arena = {0};
        for (int k = 0; k < 20; k++) {
            assert_null(cot_arena_take(&arena, rows[i].count, rows[i].size));
            assert_true(arena.used >= SIZE_MAX / 4);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit), cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_too_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
