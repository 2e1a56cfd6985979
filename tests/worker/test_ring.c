/* A ring between two threads: every message arrives whole, once and in order; what finds no room changes nothing. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "base/thread.h"
#include "worker/ring.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 90, MESSAGES = 60000 };

struct source {
    cot_ring *ring;
    uint64_t seed;
    size_t refused;
};

/* Message n: its length and bytes follow from the seed. */
static size_t message_of(uint64_t seed, uint64_t n, uint8_t bytes[MOST])
{
    const size_t count = 1 + cot_random_bits(seed, n, 0) % MOST;
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)cot_random_bits(seed, n, i + 1);
    return count;
}

static bool put_one(cot_ring *ring, uint64_t seed, uint64_t n, size_t spare)
{
    uint8_t bytes[MOST];
    const size_t count = message_of(seed, n, bytes), first = count / 3;
    const cot_ring_part parts[] = {{bytes, first}, {NULL, 0}, {bytes + first, count - first}};
    return cot_ring_put(ring, parts, 3, spare);
}

static void take_one(cot_ring *ring, uint64_t seed, uint64_t n)
{
    uint8_t bytes[MOST], got[MOST + 1];
    const size_t count = message_of(seed, n, bytes);
    memset(got, 0xa5, sizeof got);
    assert_int_equal(cot_ring_take(ring, got, MOST), count);
    assert_memory_equal(got, bytes, count);
    assert_int_equal(got[count], 0xa5);
}

static void *put_all(void *argument)
{
    struct source *s = argument;
    for (uint64_t n = 0; n < MESSAGES;)
        if (put_one(s->ring, s->seed, n, 0))
            n++;
        else {
            s->refused++;
            sched_yield();
        }
    return NULL;
}

static void two_threads(void **state)
{
    (void)state;
    cot_ring ring;
    struct source source = {&ring, test_seed(), 0};
    pthread_t thread;
    assert_true(cot_ring_open(&ring, 200));
    assert_true(cot_thread_start(&thread, put_all, &source));
    for (uint64_t n = 0; n < MESSAGES;) {
        uint8_t bytes[MOST], got[MOST];
        const size_t taken = cot_ring_take(&ring, got, sizeof got);
        if (!taken) {
            sched_yield();
            continue;
        }
        assert_int_equal(taken, message_of(source.seed, n++, bytes));
        assert_memory_equal(got, bytes, taken);
    }
    pthread_join(thread, NULL);
    assert_true(cot_ring_is_empty(&ring));
    cot_ring_close(&ring);
}

/* In one thread, against what there is room for. */
static void full_and_empty(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    cot_ring ring;
    uint64_t put = 0, taken = 0;
    size_t used = 0, refusals = 0;
    assert_true(cot_ring_open(&ring, 500));
    assert_int_equal(ring.room, 512);
    for (uint64_t n = 0; n < 20000; n++) {
        uint8_t bytes[MOST];
        const uint64_t bits = cot_random_bits(seed, n, 77);
        if (bits % 2) {
            const size_t needs = 4 + (message_of(seed, put, bytes) + 3) / 4 * 4, spare = bits >> 8 & 63;
            const bool fits = used + needs + spare <= 512;
            assert_int_equal(put_one(&ring, seed, put, spare), fits);
            if (fits) {
                put++;
                used += needs;
            }
            refusals += !fits;
        } else if (taken < put) {
            used -= 4 + (message_of(seed, taken, bytes) + 3) / 4 * 4;
            take_one(&ring, seed, taken++);
        } else
            assert_int_equal(cot_ring_take(&ring, bytes, MOST), 0);
        assert_int_equal(cot_ring_is_empty(&ring), taken == put);
    }
    assert_true(refusals > 100);
    cot_ring_close(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_threads), cmocka_unit_test(full_and_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
