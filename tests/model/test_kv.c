/* Pages of keys and values: what a map clears, keeps and copies. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "model/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A mapped page is cleared, or kept where the map says so. */
static void pages_are_cleared_or_kept(void **state)
{
    (void)state;
    enum { WIDTH = 16 };
    cot_kv kv = {.type = COT_F32,
                 .layers = 2,
                 .heads = 1,
                 .key_width = WIDTH,
                 .value_width = WIDTH,
                 .pages = 3,
                 .sequences = 2,
                 .pages_a_sequence = 4};
    cot_arena arena = {0};
    cot_kv_lay_out(&kv, &arena);
    assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
    cot_kv_lay_out(&kv, &arena);
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++) ones[i] = 1;
    uint8_t *zero = must_allocate(1, kv.page_bytes), *full = must_allocate(1, kv.page_bytes);
    cot_kv_map(&kv, 0, 1, 2, 2, 0);
    for (int64_t t = 0; t < COT_KV_PAGE; t++)
        for (int64_t l = 0; l < 2; l++) cot_kv_store(&kv, 0, COT_KV_PAGE + t, l, 0, ones, ones);
    memcpy(full, cot_kv_keys(&kv, 0, 1, 0, 0), kv.page_bytes);
    assert_memory_not_equal(full, zero, kv.page_bytes);
    cot_kv_map(&kv, 1, 3, 2, 2, COT_KV_PAGE);
    assert_ptr_equal(cot_kv_keys(&kv, 1, 3, 0, 0), cot_kv_keys(&kv, 0, 1, 0, 0));
    assert_memory_equal(cot_kv_keys(&kv, 1, 3, 0, 0), full, kv.page_bytes);
    cot_kv_map(&kv, 1, 0, 2, 2, 0);
    assert_memory_equal(cot_kv_keys(&kv, 1, 0, 0, 0), zero, kv.page_bytes);
    assert_int_equal(cot_page_count(0), 0);
    assert_int_equal(cot_page_count(1), 1);
    assert_int_equal(cot_page_count(COT_KV_PAGE), 1);
    assert_int_equal(cot_page_count(COT_KV_PAGE + 1), 2);
    free(zero);
    free(full);
    cot_arena_close(&arena);
}

/* A copy holds the first positions alone, as if they had been stored there; what stood behind them, no numbers among it,
 * is gone. */
static void pages_are_copied_in_part(void **state)
{
    (void)state;
    enum { KEYS = 10, VALUES = 35 };
    uint64_t seed = test_seed();
    for (int way = 0; way < 2; way++) {
        cot_kv kv = {.type = way ? COT_BF16 : COT_F32,
                     .layers = 2,
                     .heads = 2,
                     .key_width = KEYS,
                     .value_width = VALUES,
                     .pages = 3,
                     .sequences = 3,
                     .pages_a_sequence = 2};
        cot_arena arena = {0};
        cot_kv_lay_out(&kv, &arena);
        assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
        cot_kv_lay_out(&kv, &arena);
        for (int64_t keep = 0; keep <= COT_KV_PAGE; keep += 1 + (int64_t)(draw(&seed) % 5)) {
            cot_kv_map(&kv, 0, 0, 0, 0, 0); // the source
            cot_kv_map(&kv, 1, 1, 1, 1, 0); // what the copy should be
            memset(kv.memory + 2 * kv.page_bytes, 0xff, kv.page_bytes);
            for (int64_t p = 0; p < COT_KV_PAGE; p++)
                for (int64_t at = 0; at < 4; at++) {
                    float key[KEYS], value[VALUES];
                    for (int i = 0; i < KEYS; i++) key[i] = p < keep ? (float)(draw(&seed) % 1000) : NAN;
                    for (int i = 0; i < VALUES; i++) value[i] = p < keep ? (float)(draw(&seed) % 1000) : NAN;
                    cot_kv_store(&kv, 0, p, at / 2, at % 2, key, value);
                    if (p < keep) cot_kv_store(&kv, 1, COT_KV_PAGE + p, at / 2, at % 2, key, value);
                }
            cot_kv_map(&kv, 2, 1, 2, 0, keep);
            assert_memory_equal(kv.memory + 2 * kv.page_bytes, kv.memory + kv.page_bytes, kv.page_bytes);
            cot_kv_map(&kv, 2, 0, 0, 0, keep); // in place
            assert_memory_equal(kv.memory, kv.memory + kv.page_bytes, kv.page_bytes);
        }
        cot_arena_close(&arena);
    }
}

/* Pages that close take what is in them elsewhere, tables follow, and of what is closed nothing is left; what this rank does not hold stays another's. */
static void pages_close(void **state)
{
    (void)state;
    enum { WIDTH = 64, PAGES = 12, SEQUENCES = 6, TIMES = 300 };
    uint64_t seed = test_seed();
    cot_kv kv = {.type = COT_F32,
                 .layers = 1,
                 .heads = 1,
                 .key_width = WIDTH,
                 .value_width = WIDTH,
                 .pages = PAGES,
                 .sequences = SEQUENCES,
                 .pages_a_sequence = 2};
    cot_arena arena = {0};
    cot_kv_lay_out(&kv, &arena);
    assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
    cot_kv_lay_out(&kv, &arena);
    int moves = 0;
    for (int time = 0; time < TIMES; time++) {
        const int32_t open = 3 + (int32_t)(draw(&seed) % (PAGES - 2)); // and behind it some are held
        int32_t page_of[SEQUENCES], moved[2 * PAGES];
        bool used[PAGES] = {false};
        int n = (int)(draw(&seed) % SEQUENCES), count = 0;
        if (n > open) n = open;
        for (int s = 0; s < n; s++) {
            do page_of[s] = (int32_t)(draw(&seed) % PAGES);
            while (used[page_of[s]]);
            used[page_of[s]] = true;
            cot_kv_map(&kv, s, 1, page_of[s], page_of[s], 0);
            memset(kv.memory + (size_t)page_of[s] * kv.page_bytes, 1 + s, kv.page_bytes);
        }
        for (int32_t from = open, to = 0; from < PAGES; from++) {
            if (!used[from]) continue;
            while (used[to]) to++;
            used[to] = true;
            moved[2 * count] = from;
            moved[2 * count++ + 1] = to;
        }
        if (count && draw(&seed) % 2) { // another rank's
            cot_kv_give_up(&kv, moved[0]);
            kv.held[moved[1]] = true;
            memset(kv.memory + (size_t)moved[1] * kv.page_bytes, 99, kv.page_bytes);
        }
        const bool elsewhere = count && !kv.held[moved[0]];
        moves += count;
        cot_kv_resize(&kv, moved, count, open);
        for (int s = 0; s < n; s++) {
            int32_t now = page_of[s];
            for (int i = 0; i < count; i++)
                if (moved[2 * i] == page_of[s]) now = moved[2 * i + 1];
            assert_int_equal(kv.table[s * 2 + 1], now);
            assert_true(now < open);
            if (elsewhere && page_of[s] == moved[0]) {
                assert_false(kv.held[now]);
                continue;
            }
            assert_true(kv.held[now]);
            for (size_t b = 0; b < kv.page_bytes; b++)
                assert_int_equal(kv.memory[(size_t)now * kv.page_bytes + b], 1 + s);
        }
        for (int32_t p = open; p < PAGES; p++) assert_false(kv.held[p]);
        // but for a page of the kernel that the last open one has a part of
        const uint8_t *end = kv.memory + (size_t)PAGES * kv.page_bytes;
        for (const uint8_t *b = kv.memory + (size_t)open * kv.page_bytes + 4096; b + 4096 < end; b += 64)
            assert_int_equal(*b, 0);
    }
    assert_true(moves > TIMES / 4);
    cot_arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_cleared_or_kept),
        cmocka_unit_test(pages_are_copied_in_part),
        cmocka_unit_test(pages_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
