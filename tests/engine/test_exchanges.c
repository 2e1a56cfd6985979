/* What an engine tells of a step's exchanges: together they are the bytes of their phases, pair by pair, each of them sends what
 * its collective does; and links take a shape, or refuse it, with nothing else changed. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 48, EXCHANGES = 5, DISPATCH = 0, COMBINE = 1, ATTENTION = 2, METADATA = 3, CONTROL = 4 };

static uint64_t sum_of(const cot_stats *s, size_t exchange)
{
    const size_t pairs = (size_t)(s->ranks * s->ranks);
    uint64_t sum = 0;
    for (size_t i = 0; i < pairs; i++) sum += s->exchanged[exchange * pairs + i];
    return sum;
}

static void exchanges_are_their_phases(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int time = 0; time < 8; time++) {
        const bool s_moe = time % 2, direct = s_moe || time % 4 == 2, dp = time == 4;
        struct setting s = {.folder = TINY,
                            .ranks = 2 + (int)(draw(&seed) % 4),
                            .op = draw(&seed) % 2 ? "bulk" : "fused",
                            .attention = dp ? "dp" : "tp",
                            .pipeline = dp      ? NULL
                                        : s_moe ? "s-moe"
                                                : "ds-moe",
                            .collective = dp       ? NULL
                                          : direct ? "direct"
                                                   : "ring",
                            .quiet = true,
                            .counts_exchanges = true,
                            .kv_tokens = 256};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        int32_t *ids = drawn_ids(TOKENS, info->vocab, &seed);
        const cot_request request = forced_request(ids, TOKENS, TOKENS);
        cot_stats stats;
        struct records all = must_run(engine, &request, 1);
        records_free(&all);
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_int_equal(stats.steps, 1);
        assert_int_equal(stats.exchanges, info->layers * EXCHANGES + 1);
        const uint64_t slice = (uint64_t)((s.ranks - 1) * TOKENS * info->hidden) * sizeof(float);
        for (int i = 0; i < s.ranks * s.ranks; i++) {
            uint64_t moved = 0, counted = 0;
            for (size_t x = 0; x + 1 < stats.exchanges; x++)
                moved += stats.exchanged[x * (size_t)(s.ranks * s.ranks) + (size_t)i];
            for (int p = DISPATCH; p <= METADATA; p++) counted += stats.bytes[p][i];
            assert_int_equal(moved, counted);
        }
        for (int64_t l = 0; l < info->layers && !dp; l++) {
            const size_t at = (size_t)l * EXCHANGES;
            // with norms that span the heads' split
            assert_true(sum_of(&stats, at) >= (direct ? 1 : 2) * slice &&
                        sum_of(&stats, at) < (direct ? 1 : 2) * slice + slice / 4);
            assert_int_equal(sum_of(&stats, at + 1), direct && !s_moe ? slice : 0);
            assert_true(sum_of(&stats, at + 2) > sum_of(&stats, at + 3) * (!strcmp(s.op, "bulk")));
            assert_int_equal(sum_of(&stats, at + 4), slice);
        }
        assert_true(sum_of(&stats, stats.exchanges - 1) > 0);
        cot_stats_clear(&stats);
        free(ids);
        cot_engine_close(engine);
    }
}

/* Bytes of control that a reading of the counters moves. */
static uint64_t bytes_of_reading(bool counts_exchanges, int ranks, int64_t *layers)
{
    struct setting s = {
        .folder = TINY, .ranks = ranks, .quiet = true, .counts_exchanges = counts_exchanges, .kv_tokens = 64};
    cot_engine *engine = must_open(&s);
    *layers = cot_engine_describe(engine)->layers;
    uint64_t moved[2] = {0};
    for (int time = 0; time < 2; time++) {
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_int_equal(stats.exchanges, counts_exchanges ? *layers * EXCHANGES + 1 : 0);
        assert_int_equal(stats.exchanged != NULL, counts_exchanges);
        for (int i = 0; i < ranks * ranks; i++) moved[time] += stats.bytes[CONTROL][i];
        cot_stats_clear(&stats);
    }
    cot_engine_close(engine);
    return moved[1] - moved[0];
}

static void they_are_counted_where_asked_for(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    int64_t layers;
    const uint64_t without = bytes_of_reading(false, RANKS, &layers),
                   with = bytes_of_reading(true, RANKS, &layers);
    assert_int_equal(with - without,
                     (uint64_t)((RANKS - 1) * (layers * EXCHANGES + 1) * RANKS) * sizeof(uint64_t));
}

static void links_take_a_shape(void **state)
{
    (void)state;
    const cot_engine_link none = {0}, slow = {.bytes_per_s = 1e9, .latency_ns = 1000},
                          bad[] = {
                              {.bytes_per_s = -1}, {.latency_ns = -1},         {.groups = 3},
                              {.groups = -1},      {.uplink_bytes_per_s = -1}, {.uplink_latency_ns = -1}};
    for (int processes = 0; processes < 2; processes++) {
        struct setting s = {.folder = TINY, .ranks = 2, .processes = processes, .kv_tokens = 64};
        cot_engine *engine = must_open(&s);
        const int32_t ids[] = {1, 2, 3};
        const cot_request request = forced_request(ids, 3, 2);
        cot_error error;
        assert_int_equal(cot_engine_set_link(engine, &slow, &error), COT_OK);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            assert_int_equal(cot_engine_set_link(engine, &bad[i], &error), COT_INVALID_ARGUMENT);
        struct records all = must_run(engine, &request, 1);
        assert_told_once(&all, 0, &request, true);
        records_free(&all);
        assert_int_equal(cot_engine_set_link(engine, &none, &error), COT_OK);
        all = must_run(engine, &request, 1);
        records_free(&all);
        cot_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exchanges_are_their_phases),
                                       cmocka_unit_test(they_are_counted_where_asked_for),
                                       cmocka_unit_test(links_take_a_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
