/* What a mock is told to be: every key at its bounds, faults of each kind, and what is refused by name. */
#include "harness/cmocka.h"

#include "worker/mock.h"

#include <stdio.h>
#include <string.h>

static cot_status status_of(cot_mock *mock, const char *spec, cot_error *error)
{
    memset(mock, 0, sizeof *mock);
    memset(error, 0, sizeof *error);
    return cot_mock_read_spec(mock, spec, strlen(spec), "mock", error);
}

static void assert_refused(const char *spec, cot_status expected, const char *message)
{
    cot_mock mock;
    cot_error error;
    assert_int_equal(status_of(&mock, spec, &error), expected);
    assert_string_equal(error.message, message);
}

static void test_numbers(void **state)
{
    (void)state;
    cot_mock m;
    cot_error error;
    assert_int_equal(status_of(&m, "{}", &error), COT_OK);
    assert_true(m.workers == 1 && m.homes == 1 && m.sequences == 64 && m.ttft_ms == 50 &&
                m.ttft_ms_per_token == 0 && m.tpot_ms == 20 && m.tokens == 0 && m.seed == 0 &&
                m.block_tokens == 16 && m.blocks == 1024 && m.context_tokens == 32768 && m.fault_count == 0);
    assert_int_equal(status_of(&m,
                               "{\"workers\": 2, \"ranks\": 3, \"max_num_seqs\": 4, \"ttft_ms\": 0.5, "
                               "\"ttft_ms_per_token\": 0.25, \"tpot_ms\": 1, \"tokens\": 5, \"seed\": 6, "
                               "\"block_size\": 8, \"cached_blocks\": 9, \"max_model_len\": 10}",
                               &error),
                     COT_OK);
    assert_true(m.workers == 2 && m.homes == 3 && m.sequences == 4 && m.ttft_ms == 0.5 &&
                m.ttft_ms_per_token == 0.25 && m.tpot_ms == 1 && m.tokens == 5 && m.seed == 6 &&
                m.block_tokens == 8 && m.blocks == 9 && m.context_tokens == 10);
    assert_int_equal(status_of(&m, "{\"workers\": 1000}", &error), COT_OK);
    assert_refused("{\"workers\": 1001}", COT_MALFORMED,
                   "'mock': 'workers' is not a whole number of 1 to 1000");
    assert_refused("{\"workers\": 0}", COT_MALFORMED, "'mock': 'workers' is not a whole number of 1 to 1000");
    assert_refused("{\"workers\": 1.0}", COT_MALFORMED,
                   "'mock': 'workers' is not a whole number of 1 to 1000");
    assert_refused("{\"tpot_ms\": -1}", COT_MALFORMED, "'mock': 'tpot_ms' is not a number of 0 to 1e+07");
    assert_refused("{\"block_size\": 12}", COT_MALFORMED, "'mock': 'block_size' 12 is no power of two");
    assert_refused("[]", COT_MALFORMED, "'mock' is no JSON object: it is another value");
    cot_mock other;
    assert_int_equal(status_of(&other, "{\"worker\": 1}", &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "'mock': there is no 'worker'; there are workers,"));
}

static void test_faults(void **state)
{
    (void)state;
    cot_mock m;
    cot_error error;
    assert_int_equal(status_of(&m,
                               "{\"workers\": 3, \"faults\": [{\"fault\": \"die\", \"after_tokens\": 7}, "
                               "{\"fault\": \"fail\", \"worker\": 2}, {\"fault\": \"stall\", \"every\": 4, "
                               "\"after_tokens\": 0}, {\"fault\": \"refuse\"}, {\"fault\": \"late\", "
                               "\"ms\": 1.5, \"worker\": 0}, {\"fault\": \"twice\"}]}",
                               &error),
                     COT_OK);
    static const cot_mock_fault expected[] = {{COT_MOCK_DIE, -1, 1, 7, 0},   {COT_MOCK_FAIL, 2, 1, 0, 0},
                                              {COT_MOCK_STALL, -1, 4, 0, 0}, {COT_MOCK_REFUSE, -1, 1, 0, 0},
                                              {COT_MOCK_LATE, 0, 1, 0, 1.5}, {COT_MOCK_TWICE, -1, 1, 0, 0}};
    assert_int_equal(m.fault_count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < m.fault_count; i++) {
        const cot_mock_fault *f = &m.faults[i], *e = &expected[i];
        if (f->kind != e->kind || f->worker != e->worker || f->every != e->every ||
            f->after_tokens != e->after_tokens || f->ms != e->ms)
            fail_msg("fault %zu: kind %d of worker %lld, each %lld-th, after %lld tokens, %g ms", i, f->kind,
                     (long long)f->worker, (long long)f->every, (long long)f->after_tokens, f->ms);
    }
    assert_int_equal(status_of(&m, "{\"faults\": []}", &error), COT_OK);
    assert_int_equal(m.fault_count, 0);
    char list[2048];
    for (int count = COT_MOCK_MOST_FAULTS; count <= COT_MOCK_MOST_FAULTS + 1; count++) {
        size_t used = (size_t)snprintf(list, sizeof list, "{\"faults\": [");
        for (int i = 0; i < count; i++)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s{\"fault\": \"twice\"}", i ? ", " : "");
        snprintf(list + used, sizeof list - used, "]}");
        if (count > COT_MOCK_MOST_FAULTS)
            assert_refused(list, COT_MALFORMED, "'mock': 'faults' is no list of at most 32");
        else
            assert_int_equal(status_of(&m, list, &error), COT_OK);
    }
    assert_refused("{\"faults\": {}}", COT_MALFORMED, "'mock': 'faults' is no list of at most 32");
    assert_refused("{\"faults\": [7]}", COT_MALFORMED, "'mock': fault 0 is no object");
    assert_refused("{\"faults\": [{\"fault\": \"twice\"}, {\"fault\": \"dies\"}]}", COT_UNSUPPORTED,
                   "'mock': fault 1: 'fault' is none of die, fail, stall, refuse, late, twice");
    assert_refused("{\"faults\": [{}]}", COT_UNSUPPORTED,
                   "'mock': fault 0: 'fault' is none of die, fail, stall, refuse, late, twice");
    assert_refused("{\"workers\": 2, \"faults\": [{\"fault\": \"die\", \"worker\": 2}]}", COT_MALFORMED,
                   "'mock': fault 0: 'worker' 2 is not in [0, 2)");
    assert_refused("{\"faults\": [{\"fault\": \"late\", \"at\": 2}]}", COT_UNSUPPORTED,
                   "'mock': fault 0: there is no 'at'; there are fault, worker, every, after_tokens, ms");
    static const char *const useless[][2] = {{"die", "every"},          {"die", "ms"},
                                             {"fail", "every"},         {"stall", "ms"},
                                             {"refuse", "ms"},          {"late", "after_tokens"},
                                             {"twice", "after_tokens"}, {"twice", "ms"}};
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        char spec[200], message[200];
        snprintf(spec, sizeof spec, "{\"faults\": [{\"fault\": \"%s\", \"%s\": 1}]}", useless[i][0],
                 useless[i][1]);
        snprintf(message, sizeof message, "'mock': fault 0: '%s' says nothing of '%s'", useless[i][1],
                 useless[i][0]);
        assert_refused(spec, COT_UNSUPPORTED, message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
