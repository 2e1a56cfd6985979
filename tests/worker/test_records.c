/* What happens to jobs survives its way from one thread to another, whatever comes in which order. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "worker/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS = 5, MOST = 400 };

/* Records of random jobs with random texts and chances, each compared with what was put in. */
static void records_keep_what_they_are_given(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    static cot_job jobs[JOBS];
    cot_records records = {0};
    for (uint64_t round = 0; round < 20; round++) {
        const size_t count = cot_random_bits(seed, round, 0) % MOST;
        for (size_t i = 0; i < count; i++) {
            const uint64_t bits = cot_random_bits(seed, round, i + 1);
            cot_logprob top[COT_MAX_LOGPROBS];
            const size_t top_count = bits % (COT_MAX_LOGPROBS + 1);
            for (size_t t = 0; t < top_count; t++) top[t] = (cot_logprob){(int32_t)(i + t), -(float)t};
            const cot_sampled sampled = {.token = (int32_t)i, .top = top, .top_count = top_count};
            cot_record *record = cot_records_add(&records, &jobs[bits >> 8 & 3], COT_JOB_TOKEN);
            assert_non_null(record);
            assert_true(cot_records_set_sampled(&records, record, &sampled));
            for (uint64_t part = 0; part < (bits >> 16 & 3); part++) {
                char text[32];
                const int bytes = snprintf(text, sizeof text, "%zu.%d;", i, (int)part);
                assert_true(cot_records_add_text(&records, record, text, (size_t)bytes));
            }
        }
        assert_int_equal(records.count, count);
        for (size_t i = 0; i < count; i++) {
            const uint64_t bits = cot_random_bits(seed, round, i + 1);
            const cot_job_event event = cot_records_event(&records, i);
            char text[128] = "";
            for (uint64_t part = 0; part < (bits >> 16 & 3); part++)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%zu.%d;", i, (int)part);
            assert_ptr_equal(records.list[i].job, &jobs[bits >> 8 & 3]);
            assert_int_equal(event.sampled.token, i);
            assert_int_equal(event.sampled.top_count, bits % (COT_MAX_LOGPROBS + 1));
            for (size_t t = 0; t < event.sampled.top_count; t++)
                assert_int_equal(event.sampled.top[t].token, i + t);
            assert_int_equal(event.bytes, strlen(text));
            assert_memory_equal(event.text, text, event.bytes);
            assert_false(event.last);
            assert_null(event.error);
        }
        cot_records_clear(&records);
    }
    cot_records_free(&records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(records_keep_what_they_are_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
