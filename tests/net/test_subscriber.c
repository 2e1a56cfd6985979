/* What a publisher sends reaches who follows it, live and from replays, with its numbers; what is no such message is passed over. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "net/publisher.h"
#include "net/subscriber.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

enum { SENT = 300, KEEP = 200, MOST_BYTES = 100 };

typedef struct heard {
    uint64_t live[SENT], replayed[SENT]; // how often each came
    uint64_t next;                       // of a replay
    int ends;
} heard;

/* Message n has n % 40 bytes, each n % 251. */
static void on_message(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes)
{
    heard *h = context;
    assert_in_range(number, 0, SENT - 1);
    assert_int_equal(bytes, number % 40);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const uint8_t *)payload)[i], number % 251);
    (replayed ? h->replayed : h->live)[number]++;
    if (!replayed) return;
    assert_int_equal(number, h->next);
    h->next++;
}

static void on_replay_end(void *context)
{
    ((heard *)context)->ends++;
}

static void publish(cot_publisher *p, uint64_t n)
{
    uint8_t payload[40];
    memset(payload, (int)(n % 251), sizeof payload);
    assert_int_equal(cot_publisher_send(p, payload, n % 40), n);
}

static void run_until(struct event_base *base, const int *ends, int wanted, const uint64_t *count)
{
    const time_t begin = time(NULL);
    while (*ends < wanted || !*count) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 60) fail_msg("%d of %d replays, %d messages", *ends, wanted, (int)*count);
    }
}

/* A publisher and who follows it, of one context. */
typedef struct pair {
    struct event_base *base;
    void *context;
    heard *heard;
    cot_publisher *publisher;
    cot_subscriber *subscriber;
    cot_subscriber_options follow;
} pair;

/* `looped`: the subscriber takes what comes by itself. The test closes both. */
static void open_pair(pair *a, bool looped)
{
    cot_error error;
    *a = (pair){.base = event_base_new(),
                .context = cot_publisher_context_open(),
                .heard = calloc(1, sizeof *a->heard)};
    assert_non_null(a->base);
    assert_non_null(a->context);
    assert_non_null(a->heard);
    const cot_publisher_options options = {"inproc://live", "inproc://again", "topic", KEEP, 10 * SENT};
    if (cot_publisher_open(&a->publisher, a->context, a->base, &options, &error) != COT_OK)
        fail_msg("%s", error.message);
    a->follow = (cot_subscriber_options){.endpoint = "inproc://live",
                                         .replay_endpoint = "inproc://again",
                                         .topic = "topic",
                                         .max_bytes = MOST_BYTES,
                                         .on_message = on_message,
                                         .on_replay_end = on_replay_end,
                                         .context = a->heard};
    if (cot_subscriber_open(&a->subscriber, a->context, looped ? a->base : NULL, &a->follow, &error) !=
        COT_OK)
        fail_msg("%s", error.message);
}

static void close_pair(pair *a)
{
    cot_publisher_context_close(a->context);
    event_base_free(a->base);
    free(a->heard);
}

static void test_follows(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    pair a;
    open_pair(&a, true);
    struct event_base *base = a.base;
    heard *h = a.heard;
    cot_subscriber *s = a.subscriber;
    event_base_loop(base, EVLOOP_NONBLOCK);
    for (uint64_t n = 0; n < SENT; n++) publish(a.publisher, n);
    run_until(base, &h->ends, 0, &h->live[SENT - 1]);
    for (size_t n = 0; n < SENT; n++) assert_int_equal(h->live[n], 1);
    for (int i = 0; i < 5; i++) {
        // before all that is kept, and within it
        const uint64_t from = i ? SENT - 1 - cot_random_bits(seed, 0, (uint64_t)i) % KEEP : 0;
        memset(h->replayed, 0, sizeof h->replayed);
        h->next = from < SENT - KEEP ? SENT - KEEP : from;
        assert_true(cot_subscriber_ask(s, from));
        run_until(base, &h->ends, i + 1, &h->live[0]);
        assert_int_equal(h->next, SENT);
    }
    assert_int_equal(h->ends, 5);
    for (size_t n = 0; n < SENT; n++) assert_int_equal(h->live[n], 1); // none of them twice
    cot_subscriber_close(s);
    cot_publisher_close(a.publisher);

    // without replays nothing can be asked
    cot_error error;
    cot_subscriber_options plain = a.follow;
    plain.replay_endpoint = NULL;
    plain.endpoint = "tcp://127.0.0.1:1"; // where nobody is yet
    if (cot_subscriber_open(&s, a.context, base, &plain, &error) != COT_OK) fail_msg("%s", error.message);
    assert_false(cot_subscriber_ask(s, 0));
    cot_subscriber_close(s);
    plain.endpoint = "nowhere";
    assert_int_equal(cot_subscriber_open(&s, a.context, base, &plain, &error), COT_INVALID_ARGUMENT);
    assert_null(s);
    close_pair(&a);
}

static void test_frames(void **state)
{
    (void)state;
    static const uint8_t number[8] = {0, 0, 0, 0, 0, 0, 2, 1};
    const void *const frames[] = {"topic", number, "payload", "more"}, *const replay[] = {"", "topic", number,
                                                                                          "x"};
    const size_t bytes[] = {5, 8, 7, 4}, short_number[] = {5, 7, 7}, of_replay[] = {0, 5, 8, 1};
    uint64_t read;
    const void *payload;
    size_t payload_bytes;
    assert_true(cot_subscriber_read(&read, &payload, &payload_bytes, frames, bytes, 3, 1));
    assert_int_equal(read, 513);
    assert_int_equal(payload_bytes, 7);
    assert_ptr_equal(payload, frames[2]);
    assert_true(cot_subscriber_read(&read, &payload, &payload_bytes, replay, of_replay, 4, 1));
    assert_int_equal(read, 513);
    assert_ptr_equal(payload, replay[3]);
    assert_false(cot_subscriber_read(&read, &payload, &payload_bytes, frames, bytes, 2, 1));
    assert_false(cot_subscriber_read(&read, &payload, &payload_bytes, frames, bytes, 1, 1));
    assert_false(cot_subscriber_read(&read, &payload, &payload_bytes, frames, short_number, 3, 1));
    assert_false(cot_subscriber_read(&read, &payload, &payload_bytes, frames, bytes, 4, 1));
    assert_false(cot_subscriber_read(&read, &payload, &payload_bytes, frames, bytes, 5, 1));
}

/* Without a loop what comes waits until it is taken, all of it in few takes, and a take ends. */
static void test_taken(void **state)
{
    (void)state;
    pair a;
    open_pair(&a, false);
    heard *h = a.heard;
    cot_subscriber *s = a.subscriber;
    cot_subscriber_take(s);
    for (uint64_t n = 0; n < SENT; n++) publish(a.publisher, n);
    assert_int_equal(h->live[0], 0);
    cot_subscriber_take(s);
    for (size_t n = 0; n < SENT; n++) assert_int_equal(h->live[n], 1);
    assert_false(cot_subscriber_ask(s, 0));
    cot_subscriber_close(s);
    cot_publisher_close(a.publisher);
    close_pair(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_follows), cmocka_unit_test(test_frames),
                                       cmocka_unit_test(test_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
