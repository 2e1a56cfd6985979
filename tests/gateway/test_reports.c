/* Reports of steps and snapshots of caches, as msgpack has them byte for byte. */
#include "harness/cmocka.h"

#include "gateway/reports.h"

#include <string.h>

#define TOKENS "\xa6tokens"
#define PROMPT "\xadprompt_tokens"
#define OBSERVED "\xabobserved_ns"
#define HALF "\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00" // 0.5

static bool reads(cot_route_work *work, const char *bytes, size_t count)
{
    uint64_t epoch;
    return cot_gateway_read_step(work, &epoch, bytes, count);
}
#define READS(WORK, TEXT) reads(WORK, TEXT, sizeof(TEXT) - 1)

static void test_steps(void **state)
{
    (void)state;
    cot_route_work work;
    assert_true(READS(&work, "\x84" TOKENS "\x09" PROMPT "\x07"
                             "\xa4more\xc0" OBSERVED HALF));
    assert_true(work.steps == 1 && work.prompt_tokens == 7 && work.requests == 2 && work.ns == 0.5);
    assert_true(READS(&work, "\x83" TOKENS "\xcd\x01\x00" PROMPT "\x00" OBSERVED "\xce\x00\x01\x00\x00"));
    assert_true(work.requests == 256 && work.ns == 65536);
    assert_false(READS(&work, ""));
    assert_false(READS(&work, "\x82" TOKENS "\x09" PROMPT "\x07")); // no time
    assert_false(
        READS(&work, "\x83" TOKENS "\x05" PROMPT "\x07" OBSERVED HALF)); // more of prompts than there are
    assert_false(READS(&work, "\x83" TOKENS "\xff" PROMPT "\x00" OBSERVED HALF)); // below 0
    assert_false(
        READS(&work, "\x83" TOKENS "\x09" PROMPT "\x07" OBSERVED "\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"));
    assert_false(READS(&work, "\x83" TOKENS "\x09" PROMPT "\x07" OBSERVED "\xcb\x3f"));
    assert_false(READS(&work, "\xdf\xff\xff\xff\xff" TOKENS "\x09")); // a map of what is not there
    assert_false(READS(&work, "\x93\x01\x02\x03"));
}

#define DISTINCT                                                                                             \
    "\x81\xb0"                                                                                               \
    "distinct_experts"

/* Distinct experts of all ranks are summed; where one does not tell, none are known. */
static void test_experts_of_steps(void **state)
{
    (void)state;
    cot_route_work work;
    static const char told[] =
        "\x84" TOKENS "\x09" PROMPT "\x07" OBSERVED HALF "\xa5ranks\x92" DISTINCT "\x05" DISTINCT "\x07",
                      half[] = "\x84" TOKENS "\x09" PROMPT "\x07" OBSERVED HALF "\xa5ranks\x92" DISTINCT
                               "\x05\x80";
    assert_true(READS(&work, told));
    assert_true(work.experts == 12);
    assert_true(READS(&work, half));
    assert_true(work.experts == 0);
#define SENDS "\x82\xa5sends"
    static const char sent[] = "\x85" TOKENS "\x09" PROMPT "\x07" OBSERVED HALF "\xa5"
                               "epoch\x03\xa5ranks\x92" SENDS "\x05\xa1x\x01" SENDS "\x04\xa1x\x01";
    uint64_t epoch;
    assert_true(cot_gateway_read_step(&work, &epoch, sent, sizeof sent - 1));
    assert_true(work.sends == 9 && work.experts == 0 && epoch == 3);
    assert_true(cot_gateway_read_step(&work, &epoch, told, sizeof told - 1));
    assert_true(work.sends == 0 && epoch == 0);
}

#define REQUEST "\x81\xa7request\x95\x00\x00"
#define BLOCK_9 "\xce\x00\x00\x00\x09"
#define ONE "\xc4\x03\x02\x00\x64" // cell 2, 100 times
#define TWO "\xc4\x03\x05\x00\x10" // cell 5, 16 times
#define NONE "\xc4\x00"
#define LIES "\xc4\x03\x05\x00\x80"   // 128 times
#define BEYOND "\xc4\x03\x0a\x00\x01" // cell 10

static cot_gateway_told tells(cot_route_calls *calls, uint64_t *block, const char *bytes, size_t count)
{
    cot_gateway_home home;
    return cot_gateway_read_popularity(calls, block, &home, bytes, count, 10);
}
#define TELLS(TEXT) tells(&calls, &block, TEXT, sizeof(TEXT) - 1)

static void test_popularity(void **state)
{
    (void)state;
    cot_route_calls calls;
    uint64_t block = 0;
    assert_int_equal(TELLS(REQUEST BLOCK_9 ONE TWO), COT_GATEWAY_TOLD_REQUEST);
    assert_int_equal(block, 9);
    assert_int_equal(calls.count, 2); // of prompt and answer, each half
    assert_true(calls.cell[0] == 2 && calls.cell[1] == 5);
    assert_float_equal(calls.share[0], 0.475, 1e-6);
    assert_float_equal(calls.share[1], 0.475, 1e-6);
    assert_int_equal(TELLS(REQUEST BLOCK_9 ONE NONE), COT_GATEWAY_TOLD_REQUEST);
    assert_float_equal(calls.share[0], 0.95, 1e-6);
    assert_int_equal(TELLS(REQUEST BLOCK_9 NONE TWO), COT_GATEWAY_TOLD_REQUEST);
    assert_true(calls.count == 1 && calls.cell[0] == 5);
    assert_int_equal(TELLS(REQUEST BLOCK_9 NONE NONE), COT_GATEWAY_TOLD_OTHER);
    assert_int_equal(TELLS(REQUEST "\xc0" ONE TWO), COT_GATEWAY_TOLD_OTHER); // no whole block
    assert_int_equal(TELLS("\x81\xa4more\x90"), COT_GATEWAY_TOLD_OTHER);
#define COUNTS "\xc4\x04\x00\x00\x80\x3f" // 1
    cot_gateway_home home;
    static const char told[] = "\x81\xa4home\x93\x02" HALF COUNTS;
    assert_int_equal(cot_gateway_read_popularity(&calls, &block, &home, told, sizeof told - 1, 10),
                     COT_GATEWAY_TOLD_HOME);
    float count;
    memcpy(&count, home.counts, sizeof count);
    assert_true(home.home == 2 && home.tokens == 0.5 && home.bytes == 4 && count == 1);
    static const struct {
        const char *bytes;
        size_t count;
    } wrong[] = {
#define ROW(TEXT) {TEXT, sizeof(TEXT) - 1}
        ROW(""),
        ROW("\x93\x01\x02\x03"),
        ROW(REQUEST BLOCK_9 ONE),
        ROW(REQUEST BLOCK_9 ONE LIES),
        ROW(REQUEST BLOCK_9 BEYOND TWO),
        ROW(REQUEST BLOCK_9 ONE "\x05"),
        ROW(REQUEST "\xa1x" ONE TWO),
        ROW("\x81\xa7request\x94\x00\x00" BLOCK_9 ONE),
        ROW("\x81\xa7request\x05"),
        ROW("\x81\xa4home\x90"),
        ROW("\x81\xa4home\x05"),
        ROW("\x81\xa4home\x93\x02\x01" COUNTS),
        ROW("\x81\xa4home\x93\xff" HALF COUNTS),
        ROW("\x81\xa4home\x93\x02" HALF "\xa1x"),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(tells(&calls, &block, wrong[i].bytes, wrong[i].count), COT_GATEWAY_TOLD_WRONG);
}

typedef struct told {
    int ranks, rank[4];
    uint64_t batches[4];
    size_t bytes[4];
    char first[4];
} told;

static void take(void *context, int rank, uint64_t batches, const void *batch, size_t bytes)
{
    told *t = context;
    assert_in_range(t->ranks, 0, 3);
    t->rank[t->ranks] = rank;
    t->batches[t->ranks] = batches;
    t->bytes[t->ranks] = bytes;
    t->first[t->ranks++] = *(const char *)batch;
}

#define RANK                                                                                                 \
    "\xb2"                                                                                                   \
    "data_parallel_rank"
#define SEQ "\xa3seq"
#define BATCH                                                                                                \
    "\xa5"                                                                                                   \
    "batch"

static void test_snapshots(void **state)
{
    (void)state;
    told t = {0};
    static const char two[] = "\x81\xa5ranks\x92\x83" RANK "\x00" SEQ "\xff" BATCH "\x93\x01\x90\x00\x83" RANK
                              "\x01" SEQ "\x29" BATCH "\x92\x01\x90";
    assert_true(cot_gateway_read_snapshot(two, sizeof two - 1, take, &t));
    assert_int_equal(t.ranks, 2);
    assert_int_equal(t.rank[1], 1);
    assert_int_equal(t.batches[0], 0); // before the first
    assert_int_equal(t.batches[1], 42);
    assert_int_equal(t.bytes[0], 4);
    assert_int_equal(t.first[0], (char)0x93);
    assert_int_equal(t.bytes[1], 3);
    t = (told){0};
    static const char none[] = "\x81\xa5ranks\x90",
                      missing[] = "\x81\xa5ranks\x91\x82" RANK "\x00" SEQ "\x01",
                      wrong[] = "\x81\xa5ranks\x91\x83" RANK "\x00" SEQ "\xfe" BATCH "\x90", list[] = "\x90";
    assert_true(cot_gateway_read_snapshot(none, sizeof none - 1, take, &t));
    assert_false(cot_gateway_read_snapshot(missing, sizeof missing - 1, take, &t));
    assert_false(cot_gateway_read_snapshot(wrong, sizeof wrong - 1, take, &t));
    assert_false(cot_gateway_read_snapshot(list, sizeof list - 1, take, &t));
    assert_false(cot_gateway_read_snapshot(two, sizeof two - 2, take, &t));
    assert_int_equal(t.ranks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_experts_of_steps),
                                       cmocka_unit_test(test_popularity), cmocka_unit_test(test_snapshots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
