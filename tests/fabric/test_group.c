/* What needs no second rank at work: options, the heap, shares, names. */
#include "harness/cmocka.h"
#include "harness/fabric/job.h"
#include "harness/seed.h"

#include "fabric/collectives.h"
#include "base/rng.h"
#include "fabric/threads/threads.h"

#include <stdio.h>
#include <string.h>

static cot_fabric_group *open_group(const cot_fabric_group_options *options)
{
    cot_fabric_group *group;
    cot_error error;
    if (cot_fabric_group_open(&group, options, &error)) fail_msg("%s", error.message);
    return group;
}

static void test_options(void **state)
{
    (void)state;
    const cot_fabric_group_options good = {.ranks = 2, .heap_bytes = 4096, .running = 1, .timeout_ns = 1};
    const struct {
        cot_fabric_group_options options;
        cot_status status;
        const char *message;
    } bad[] = {
        {{.ranks = 0, .running = 1, .timeout_ns = 1},
         COT_INVALID_ARGUMENT,
         "cannot open a group of 0 ranks: 1 to 64 expected"},
        {{.ranks = 65, .running = 1, .timeout_ns = 1},
         COT_INVALID_ARGUMENT,
         "cannot open a group of 65 ranks: 1 to 64 expected"},
        {{.ranks = 1, .running = 0, .timeout_ns = 1},
         COT_INVALID_ARGUMENT,
         "cannot let 0 ranks run at once: at least 1 expected"},
        {{.ranks = 1, .running = 1},
         COT_INVALID_ARGUMENT,
         "a group's time-out must be more than 0 ns, found 0"},
        {{.ranks = 3, .running = 1, .timeout_ns = 1, .heap_bytes = SIZE_MAX / 3},
         COT_OUT_OF_MEMORY,
         "cannot map symmetric heaps of 6148914691236517205 bytes for 3 ranks"},
        {{.ranks = 64, .running = 1, .timeout_ns = 1, .heap_bytes = SIZE_MAX},
         COT_OUT_OF_MEMORY,
         "cannot map symmetric heaps of 18446744073709551615 bytes for 64 ranks"},
        {{.ranks = 2, .running = 1, .timeout_ns = 1, .heap_bytes = (size_t)1 << 60},
         COT_OUT_OF_MEMORY,
         "cannot map symmetric heaps of 1152921504606846976 bytes for 2 ranks"},
    };
    cot_fabric_group *group;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_error error = {0};
        group = (void *)&error;
        assert_int_equal(cot_fabric_group_open(&group, &bad[i].options, &error), bad[i].status);
        assert_null(group);
        assert_int_equal(error.status, bad[i].status);
        assert_string_equal(error.message, bad[i].message);
        assert_int_equal(cot_fabric_group_open(&group, &bad[i].options, NULL), bad[i].status);
    }
    assert_int_equal(cot_fabric_group_open(&group, &good, NULL), COT_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(cot_fabric_group_rank(group, r)->rank, r);
        assert_int_equal(cot_fabric_group_rank(group, r)->ranks, 2);
    }
    cot_fabric_group_close(group);
    cot_fabric_group_close(NULL);
    cot_collectives_close(NULL);
}

/* Random allocations until nothing more fits: aligned, zeroed, apart, at the same offsets on all ranks,
 * within the sizes that cot_alloc_bytes foretells; the ranks' memory does not overlap. */
static void test_heap(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    for (int forked = 0; forked < 2; forked++) {
        const cot_fabric_group_options job = {
            .ranks = 3, .running = 3, .heap_bytes = 40000001, .timeout_ns = 1, .forked = forked};
        cot_fabric_group *group = open_group(&job);
        size_t end = 0, foretold = 0, allocations = 0;
        for (bool full = false; !full; allocations++) {
            const uint64_t bits = cot_random_bits(seed, (uint64_t)forked, allocations);
            const size_t bytes = 1 + (bits >> 8) % (bits % 4 == 0 ? 9000000 : 3000);
            const size_t align = bytes >= 2 << 20 ? 2 << 20 : 64;
            cot_sym first = 0;
            for (int r = 0; r < job.ranks; r++) {
                cot_fabric *fabric = cot_fabric_group_rank(group, r);
                cot_sym where;
                cot_error error = {0};
                const cot_status status = cot_alloc(fabric, &where, bytes, &error);
                if (status) {
                    assert_int_equal(status, COT_OUT_OF_MEMORY);
                    char want[200];
                    snprintf(want, sizeof want,
                             "rank %d's symmetric heap of 40000001 bytes is full: %zu more bytes asked for, "
                             "%zu in use",
                             r, bytes, end);
                    assert_string_equal(error.message, want);
                    assert_true(foretold + cot_alloc_bytes(bytes) > job.heap_bytes);
                    full = true;
                    continue;
                }
                assert_false(full);
                if (r == 0) first = where;
                assert_int_equal(where, first);
                assert_true(where >= end && where + bytes <= job.heap_bytes && where % align == 0);
                unsigned char *memory = cot_local(fabric, where);
                assert_int_equal((uintptr_t)memory % align, 0);
                unsigned char any = 0;
                for (size_t i = 0; i < bytes; i++) any |= memory[i];
                assert_int_equal(any, 0);
                memset(memory, 0xff, bytes);
            }
            if (!full) end = first + bytes, foretold += cot_alloc_bytes(bytes);
        }
        assert_true(allocations > 3);
        cot_sym where;
        cot_fabric *fabric = cot_fabric_group_rank(group, 0);
        assert_int_equal(cot_alloc(fabric, &where, SIZE_MAX, NULL), COT_OUT_OF_MEMORY);
        assert_int_equal(cot_alloc(fabric, &where, SIZE_MAX - 63, NULL), COT_OUT_OF_MEMORY);
        cot_fabric_group_close(group);
    }
}

/* A heap of exactly heap_bytes is enough for the collectives, also of large ones; what is too much is
 * refused. */
static void test_collectives_heap(void **state)
{
    (void)state;
    const cot_collectives_options options[] = {
        {0},
        {.reduce_elements = 1},
        {.reduce_elements = 999, .gather_bytes = 17, .exchange_bytes = 5},
        {.reduce_elements = 1 << 20, .gather_bytes = 3333333, .exchange_bytes = 7777777},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (int ranks = 1; ranks <= 64; ranks = ranks * 2 + 1) {
            const size_t bytes = cot_collectives_heap_bytes(&options[i], ranks);
            const cot_fabric_group_options job = {
                .ranks = ranks, .running = 1, .heap_bytes = bytes + 1, .timeout_ns = 1};
            cot_fabric_group *group = open_group(&job);
            cot_fabric *fabric = cot_fabric_group_rank(group, ranks - 1);
            cot_sym first;
            assert_int_equal(cot_alloc(fabric, &first, 1, NULL), COT_OK); // whatever stands before
            cot_collectives *collectives;
            assert_int_equal(cot_collectives_open(&collectives, fabric, &options[i], NULL), COT_OK);
            cot_collectives_close(collectives);
            cot_error error = {0};
            assert_int_equal(cot_collectives_open(&collectives, fabric, &options[3], &error),
                             COT_OUT_OF_MEMORY);
            assert_int_equal(error.status, COT_OUT_OF_MEMORY);
            assert_null(collectives);
            cot_fabric_group_close(group);
        }
    assert_int_equal(cot_collectives_heap_bytes(&(cot_collectives_options){.exchange_bytes = SIZE_MAX}, 2),
                     SIZE_MAX);
    assert_int_equal(
        cot_collectives_heap_bytes(&(cot_collectives_options){.reduce_elements = SIZE_MAX / 8}, 2), SIZE_MAX);
}

static void test_shares(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 300; n++)
        for (int ranks = 1; ranks <= 64; ranks++) {
            assert_int_equal(cot_share_begin(n, 0, ranks), 0);
            assert_int_equal(cot_share_begin(n, ranks, ranks), n);
            for (int r = 0; r < ranks; r++) {
                const int64_t part = cot_share_begin(n, r + 1, ranks) - cot_share_begin(n, r, ranks);
                assert_true(part == n / ranks || part == (n + ranks - 1) / ranks);
            }
        }
}

static void test_names(void **state)
{
    (void)state;
    const char *const names[] = {"dispatch", "combine", "attention", "metadata", "control", "migration"};
    for (int p = 0; p < COT_PHASES; p++) assert_string_equal(cot_phase_name((cot_phase)p), names[p]);
    assert_string_equal(cot_phase_name(COT_PHASES), "?");
    assert_string_equal(cot_phase_name((cot_phase)-1), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options), cmocka_unit_test(test_heap),  cmocka_unit_test(test_collectives_heap),
        cmocka_unit_test(test_shares),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
