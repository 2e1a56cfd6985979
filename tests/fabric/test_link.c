/* Shaped links: the model's arithmetic at times that the test makes up; groups, in which nothing may be seen
 * before its time; and the conformance suite, whose every call works over such a link as well. */
#include "harness/cmocka.h"
#include "harness/fabric/calls.h"
#include "harness/fabric/conformance.h"
#include "harness/fabric/job.h"
#include "harness/seed.h"

#include "fabric/threads/link.h"
#include "fabric/threads/threads.h"
#include "fabric/turns.h"

#include <math.h>
#include <string.h>

static void test_line(void **state)
{
    (void)state;
    const cot_link link = {.bytes_per_s = 2e9, .latency_ns = 500}; // 0.5 ns a byte
    int64_t free_ns = 0;
    assert_true(cot_link_shapes(&link));
    assert_int_equal(cot_link_send(&link, &free_ns, 1000, 100), 1000 + 50 + 500);
    assert_int_equal(cot_link_send(&link, &free_ns, 1010, 100), 1100 + 500); // the line is taken until 1050
    assert_int_equal(cot_link_send(&link, &free_ns, 1020, 0), 1100 + 500);
    assert_int_equal(cot_link_send(&link, &free_ns, 5000, 3), 5002 + 500); // rounded up, never early
    assert_int_equal(free_ns, 5002);

    const cot_link far = {.latency_ns = 70}, none = {0};
    assert_true(cot_link_shapes(&far) && !cot_link_shapes(&none));
    free_ns = 0;
    assert_int_equal(cot_link_send(&far, &free_ns, 10, (size_t)1 << 40), 80);
    assert_int_equal(cot_link_send(&far, &free_ns, 11, (size_t)1 << 40), 81);

    const cot_link slow = {.bytes_per_s = 0.1e9};
    free_ns = 0;
    for (int i = 1; i <= 1000; i++) assert_int_equal(cot_link_send(&slow, &free_ns, 0, 4096), i * 40960);
}

/* Words rise when their time has come, in order, and a full queue says so. */
static void test_flights(void **state)
{
    (void)state;
    static cot_flights flights;
    static _Atomic uint64_t words[COT_FLIGHTS];
    assert_true(cot_flights_empty(&flights));
    cot_flights_raise(&flights, INT64_MAX);
    for (uint64_t lap = 0; lap < 3; lap++) { // the ring goes round
        const int64_t begin_ns = (int64_t)lap * 1000000;
        for (uint64_t i = 0; i < COT_FLIGHTS; i++)
            assert_true(cot_flights_add(&flights, &(cot_flight){begin_ns + (int64_t)(i / 2),
                                                                lap * COT_FLIGHTS + i + 1, &words[i / 3]}));
        assert_false(cot_flights_add(&flights, &(cot_flight){begin_ns, 1, &words[0]}));
        cot_flights_raise(&flights, begin_ns - 1);
        assert_false(cot_flights_add(&flights, &(cot_flight){begin_ns, 1, &words[0]}));
        for (int64_t at = 0; at < COT_FLIGHTS / 2; at++) {
            cot_flights_raise(&flights, begin_ns + at);
            const uint64_t arrived = 2 * ((uint64_t)at + 1); // two at each moment
            for (uint64_t w = 0; 3 * w < COT_FLIGHTS; w++) {
                const uint64_t last = 3 * w + 3 < arrived ? 3 * w + 3 : arrived; // one after word w's last
                const uint64_t before =
                    lap ? (lap - 1) * COT_FLIGHTS + (3 * w + 3 < COT_FLIGHTS ? 3 * w + 3 : COT_FLIGHTS) : 0;
                assert_int_equal(words[w], last > 3 * w ? lap * COT_FLIGHTS + last : before);
            }
        }
        assert_true(cot_flights_empty(&flights));
    }
    atomic_flag_test_and_set(&flights.raising); // another is at it: nothing happens
    assert_true(cot_flights_add(&flights, &(cot_flight){0, 77, &words[0]}));
    cot_flights_raise(&flights, INT64_MAX);
    assert_int_not_equal(words[0], 77);
    atomic_flag_clear(&flights.raising);
    cot_flights_raise(&flights, INT64_MAX);
    assert_int_equal(words[0], 77);
}

/* Rank 0 sends messages of drawn sizes to ranks 1 and 2 by turns, more than a queue holds, each with the time
 * before which it cannot arrive: that of all bytes since the first began to leave, and the latency. */
enum { MESSAGES = 3 * COT_FLIGHTS, MESSAGE_BYTES = 3000 };

static bool paced_body(cot_fabric *fabric, const group_job *job)
{
    cot_sym notes, signal, block, seen_signals;
    CHECK(!cot_alloc(fabric, &notes, MESSAGES * sizeof(int64_t), NULL) &&
              !cot_alloc(fabric, &seen_signals, 3 * 8, NULL) && !cot_alloc(fabric, &signal, 8, NULL) &&
              !cot_alloc(fabric, &block, MESSAGE_BYTES, NULL),
          "memory");
    const int64_t *earliest_ns = cot_local(fabric, notes);
    if (fabric->rank == 0) {
        static const unsigned char data[MESSAGE_BYTES];
        const int64_t begin_ns = fabric->ops->now_ns(fabric);
        double bytes = 0;
        for (uint64_t i = 0; i < MESSAGES; i++) {
            const size_t size = draw_of_job(job, (int)i, 3, MESSAGE_BYTES);
            bytes += (double)(size + sizeof(int64_t));
            const int64_t at_ns =
                begin_ns + (int64_t)(bytes * 1e9 / job->link_bytes_per_s) + job->link_latency_ns;
            const int to = 1 + (int)(i % 2);
            cot_put(fabric, to, block, data, size, COT_PHASE_DISPATCH);
            cot_put_signal(fabric, to, notes + i * sizeof at_ns, &at_ns, sizeof at_ns, signal, i + 1,
                           COT_PHASE_DISPATCH);
        }
        for (int from = 1; from < 3; from++) // whose link loses its shape lets all arrive
            CHECK(!cot_wait(fabric, seen_signals + (cot_sym)from * 8, 1, from, COT_PHASE_CONTROL, NULL),
                  "nobody looked");
        return true;
    }
    uint64_t seen = 0;
    for (uint64_t now_seen; seen < MESSAGES - 2 + (uint64_t)fabric->rank; seen = now_seen) {
        now_seen = cot_signal_load(fabric, signal);
        const int64_t now_ns = fabric->ops->now_ns(fabric);
        CHECK(now_seen >= seen, "a signal fell from %llu to %llu", (unsigned long long)seen,
              (unsigned long long)now_seen);
        if (now_seen == seen) {
            cot_back_off(0);
            continue;
        }
        CHECK((int)(1 + (now_seen - 1) % 2) == fabric->rank, "another's signal");
        CHECK(now_ns >= earliest_ns[now_seen - 1], "message %llu came %lld ns early",
              (unsigned long long)now_seen, (long long)(earliest_ns[now_seen - 1] - now_ns));
    }
    cot_put_signal(fabric, 0, 0, NULL, 0, seen_signals + (cot_sym)fabric->rank * 8, 1, COT_PHASE_CONTROL);
    return true;
}

static void run_on_all(group_job *job)
{
    cot_traffic totals[COT_PHASES];
    for (const char *const *name = cot_fabric_backend_names(); *name; name++) {
        job->backend = cot_fabric_backend_find(*name);
        run_job(job, totals);
    }
}

static void test_paced(void **state)
{
    (void)state;
    const struct subject paced = {.link_bytes_per_s = 0.05e9, .link_latency_ns = 300000};
    group_job job;
    small_job(&job, &paced, 3, 3, paced_body);
    job.seed = test_seed();
    run_on_all(&job);
}

/* A new shape holds for what is sent from then on; what was under way is there. */
static void test_reshaped(void **state)
{
    (void)state;
    const cot_fabric_group_options options = {
        .ranks = 2, .heap_bytes = 1 << 16, .running = 2, .timeout_ns = PATIENT_NS};
    cot_fabric_group *group;
    assert_int_equal(cot_fabric_group_open(&group, &options, NULL), COT_OK);
    cot_fabric *from = cot_fabric_group_rank(group, 0), *to = cot_fabric_group_rank(group, 1);
    cot_sym signal;
    assert_int_equal(cot_alloc(to, &signal, 8, NULL), COT_OK);
    from->ops->set_link(from, 0, INT64_MAX / 4);
    cot_put_signal(from, 1, 0, NULL, 0, signal, 5, COT_PHASE_CONTROL);
    cot_put_signal(from, 0, 0, NULL, 0, signal, 9, COT_PHASE_CONTROL); // what stays takes no link
    assert_int_equal(cot_signal_load(from, signal), 9);
    assert_int_equal(cot_signal_load(to, signal), 0);
    from->ops->set_link(from, 0, 0);
    assert_int_equal(cot_signal_load(to, signal), 5);
    cot_put_signal(from, 1, 0, NULL, 0, signal, 6, COT_PHASE_CONTROL);
    assert_int_equal(cot_signal_load(to, signal), 6);
    from->ops->set_link(from, 1, 0);
    uint8_t bytes[100] = {0};
    cot_put(from, 1, 4096, bytes, sizeof bytes, COT_PHASE_CONTROL); // takes the line for 100 s
    cot_put_signal(from, 1, 0, NULL, 0, signal, 7, COT_PHASE_CONTROL);
    assert_int_equal(cot_signal_load(to, signal), 6);
    cot_fabric_group_close(group);
}

/* The latency is longer than the group's patience. */
static bool too_far_body(cot_fabric *fabric, const group_job *job)
{
    cot_sym signal;
    CHECK(!cot_alloc(fabric, &signal, 8, NULL), "memory");
    cot_put_signal(fabric, 1 - fabric->rank, 0, NULL, 0, signal, 1, COT_PHASE_COMBINE);
    cot_error error = {0};
    const cot_status status = cot_wait(fabric, signal, 1, 1 - fabric->rank, COT_PHASE_COMBINE, &error);
    CHECK(status == COT_TIMED_OUT && strstr(error.message, "did not answer in 'combine' within 0.2 s"),
          "status %d of %d: '%s'", (int)status, job->ranks, error.message);
    sleep_us(job->timeout_ns / 1000); // until the other's is over: then the link loses its shape
    return true;
}

static void test_too_far(void **state)
{
    (void)state;
    const struct subject too_far = {.link_latency_ns = 100000000000};
    group_job job;
    small_job(&job, &too_far, 2, 2, too_far_body);
    job.timeout_ns = 200000000;
    run_on_all(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_line), cmocka_unit_test(test_flights),
                                       cmocka_unit_test(test_reshaped), cmocka_unit_test(test_paced),
                                       cmocka_unit_test(test_too_far)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (const char *const *name = cot_fabric_backend_names(); *name; name++) {
        struct subject shaped = {cot_fabric_backend_find(*name), 2e9, 5000};
        failed += run_conformance(&shaped);
    }
    return failed;
}
