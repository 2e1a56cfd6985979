/* The figures of a load test: percentiles against a plain reading of their definition, failures by kind. */
#include "harness/cmocka.h"
#include "harness/scratch.h"
#include "harness/seed.h"
#include "base/rng.h"
#include "net/load_test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of which `share` of the way through the list lie below: counts instead of sorting. */
static double percentile(const double *values, size_t count, double share)
{
    const double at = share * (double)(count - 1);
    double found[2] = {0, 0};
    for (int side = 0; side < 2; side++) {
        const double wanted = fmin(floor(at) + side, (double)count - 1);
        for (size_t i = 0; i < count; i++) {
            size_t below = 0, equal = 0;
            for (size_t j = 0; j < count; j++)
                below += values[j] < values[i], equal += values[j] == values[i];
            if ((double)below <= wanted && wanted < (double)(below + equal)) found[side] = values[i];
        }
    }
    return found[0] * (1 - (at - floor(at))) + found[1] * (at - floor(at));
}

static void test_times(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    cot_load_test_list none = {0};
    const cot_load_test_times nothing = cot_load_test_list_times(&none);
    assert_int_equal(nothing.count, 0);
    assert_true(nothing.mean == 0 && nothing.p99 == 0);
    for (uint64_t round = 0; round < 50; round++) {
        double values[3000];
        const size_t count =
            round < 5 ? round + 1 : 1 + cot_random_bits(seed, 1, round) % (round < 45 ? 200 : 3000);
        cot_load_test_list list = {0};
        double sum = 0;
        for (size_t i = 0; i < count; i++) { // some equal
            values[i] = floor(1000 * cot_random_uniform(seed, 2 + round, i)) / 8;
            sum += values[i];
            assert_true(cot_load_test_list_add(&list, values[i]));
        }
        const cot_load_test_times times = cot_load_test_list_times(&list);
        assert_int_equal(times.count, count);
        assert_true(fabs(times.mean - sum / (double)count) < 1e-9);
        assert_true(fabs(times.p50 - percentile(values, count, 0.5)) < 1e-9);
        assert_true(fabs(times.p90 - percentile(values, count, 0.9)) < 1e-9);
        assert_true(fabs(times.p99 - percentile(values, count, 0.99)) < 1e-9);
        free(list.ms);
    }
}

static void test_kinds(void **state)
{
    (void)state;
    cot_load_test_report report = {0};
    char what[32];
    for (int i = 0; i < 3 * COT_LOAD_TEST_MOST_KINDS; i++) {
        snprintf(what, sizeof what, "kind %d", i % (COT_LOAD_TEST_MOST_KINDS + 5));
        cot_load_test_count_failure(&report, what, "wo\nrds");
    }
    assert_int_equal(report.failed, 3 * COT_LOAD_TEST_MOST_KINDS);
    assert_int_equal(report.kinds, COT_LOAD_TEST_MOST_KINDS);
    assert_string_equal(report.failures[0].what, "kind 0");
    assert_string_equal(report.failures[0].words, "wo?rds");
    assert_int_equal(report.failures[0].count, 3);
    assert_string_equal(report.failures[COT_LOAD_TEST_MOST_KINDS - 1].what, "other");
    int64_t all = 0;
    for (size_t k = 0; k < report.kinds; k++) all += report.failures[k].count;
    assert_int_equal(all, report.failed);
    assert_int_equal(report.rejected, 0);
    cot_load_test_count_rejection(&report, "full\x1b[31m");
    cot_load_test_count_rejection(&report, "still full");
    assert_int_equal(report.rejected, 2);
    assert_int_equal(report.failed, all);
    assert_string_equal(report.rejection, "full?[31m");
}

/* An open loop's gaps are exponential: their mean and spread are those of the rate, and a seed fixes them. */
static void test_plan(void **state)
{
    (void)state;
    enum { REQUESTS = 20000 };
    cot_load_test_plan plan, again;
    const cot_load_test_options options = {.requests = REQUESTS, .rate = 50, .seed = test_seed()};
    assert_int_equal(cot_load_test_plan_make(&plan, &options, NULL), COT_OK);
    assert_int_equal(cot_load_test_plan_make(&again, &options, NULL), COT_OK);
    assert_int_equal(plan.count, REQUESTS);
    assert_int_equal(plan.requests[0].at_ns, 0);
    double sum = 0, squares = 0;
    for (size_t i = 1; i < REQUESTS; i++) {
        const double gap = (double)(plan.requests[i].at_ns - plan.requests[i - 1].at_ns) / 1e9;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
        assert_int_equal(plan.requests[i].at_ns, again.requests[i].at_ns);
    }
    const double mean = sum / (REQUESTS - 1), deviation = sqrt(squares / (REQUESTS - 1) - mean * mean);
    assert_true(fabs(mean - 0.02) < 0.02 * 6 / sqrt(REQUESTS)); // six standard errors
    assert_true(fabs(deviation - 0.02) < 0.02 * 12 / sqrt(REQUESTS));
    cot_load_test_plan_free(&plan);
    cot_load_test_plan_free(&again);
    cot_error error;
    static const cot_load_test_options bad[] = {{.requests = -1},
                                                {.input_tokens = -1},
                                                {.rate = -1},
                                                {.rate = NAN},
                                                {.concurrency = -1},
                                                {.vocabulary = -1},
                                                {.output_tokens = -1},
                                                {.backend = COT_LOAD_TEST_CHATS + 1},
                                                {.trace = "a", .prompts = "b"},
                                                {.requests = 1LL << 40},
                                                {.input_tokens = 1LL << 40}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cot_load_test_plan_make(&plan, &bad[i], &error), COT_INVALID_ARGUMENT);
    }
    cot_load_test_report report;
    assert_int_equal(
        cot_load_test_run(&(cot_load_test_options){.url = "http://127.0.0.1:1"}, &report, &error),
        COT_INVALID_ARGUMENT);
}

/* A trace's times count from its first request, and go by as many times faster as is said. */
static void test_trace_times(void **state)
{
    scratch_pad *pad = *state;
    static const char *const texts[] = {
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5000000,3,4\n"
        "2023-11-16 18:17:04.0000000,30,0\n2023-11-16 18:18:03.4999999,5,6\n",
        "{\"timestamp\": 500, \"input_length\": 3, \"output_length\": 4}\n"
        "{\"timestamp\": 1000, \"input_length\": 30, \"output_length\": 0}\n\n"
        "{\"timestamp\": 60499.9999, \"input_length\": 5, \"output_length\": 6}\n"};
    static const int64_t at_ns[] = {0, 500000000, 59999999900}, input[] = {3, 20, 5}, output[] = {4, 1, 6};
    static const double speeds[] = {0, 1, 4, 0.25};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t s = 0; s < sizeof speeds / sizeof *speeds; s++) {
            cot_load_test_plan plan;
            cot_error error;
            put_text(pad, "trace", texts[t]);
            const cot_load_test_options options = {
                .trace = in_scratch(pad, "trace"), .speed = speeds[s], .most_input_tokens = 20};
            if (cot_load_test_plan_make(&plan, &options, &error)) fail_msg("%s", error.message);
            assert_int_equal(plan.count, 3);
            for (size_t i = 0; i < 3; i++) {
                const double wanted = (double)at_ns[i] / (speeds[s] > 0 ? speeds[s] : 1);
                assert_true(fabs((double)plan.requests[i].at_ns - wanted) <= 8);
                assert_int_equal(plan.requests[i].input_tokens, input[i]);
                assert_int_equal(plan.requests[i].output_tokens, output[i]);
            }
            cot_load_test_plan_free(&plan);
        }
}

/* Lengths of a trace times a scale: none comes to nothing, and prompts of blocks keep as many, the last one with a token. */
static void test_scaled_lengths(void **state)
{
    scratch_pad *pad = *state;
    enum { REQUESTS = 5 };
    static const double scales[] = {0.25, 0.3, 0.0001};
    static const int64_t input[][REQUESTS] = {{25, 1, 257, 384, 128},
                                              {30, 1, 309, 461, 154},
                                              {1, 1, 3, 3, 1}},
                         output[][REQUESTS] = {{2, 1, 2, 1, 3}, {2, 1, 2, 1, 3}, {1, 1, 1, 1, 1}};
    put_text(pad, "lengths",
             "{\"timestamp\": 0, \"input_length\": 100, \"output_length\": 6}\n"
             "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n"
             "{\"timestamp\": 0, \"input_length\": 1025, \"output_length\": 8, \"hash_ids\": [1, 2, 3]}\n"
             "{\"timestamp\": 0, \"input_length\": 1536, \"output_length\": 0, \"hash_ids\": [1, 2, 4]}\n"
             "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 10, \"hash_ids\": [5]}\n");
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        const cot_load_test_options options = {.trace = in_scratch(pad, "lengths"),
                                               .length_scale = scales[s]};
        cot_load_test_plan plan;
        cot_error error;
        if (cot_load_test_plan_make(&plan, &options, &error)) fail_msg("%s", error.message);
        assert_int_equal(plan.count, REQUESTS);
        for (size_t i = 0; i < REQUESTS; i++) {
            assert_int_equal(plan.requests[i].input_tokens, input[s][i]);
            assert_int_equal(plan.requests[i].output_tokens, output[s][i]);
        }
        assert_int_equal(plan.requests[3].blocks, 3);
        assert_int_equal(plan.requests[3].novel, 1);
        cot_load_test_plan_free(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_times), cmocka_unit_test(test_kinds),
                                       cmocka_unit_test(test_plan), cmocka_unit_test(test_trace_times),
                                       cmocka_unit_test(test_scaled_lengths)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
