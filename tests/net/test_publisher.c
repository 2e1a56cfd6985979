/* Replays of what was published: each client that asks gets its own, from the message that it named, however many ask at
 * once. Sockets are those of one process. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "net/publisher.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

enum { KEEP = 500, SENT = 1200, CLIENTS = 40, CUT = 100 }; // more clients than are served at once

#define TOPIC "topic"

static void *joined(void *context, int type, const char *endpoint)
{
    void *socket = zmq_socket(context, type);
    assert_non_null(socket);
    const int none = 0;
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none), 0);
    if (type == ZMQ_SUB) assert_int_equal(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, TOPIC, sizeof TOPIC - 1), 0);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void ask(void *dealer, uint64_t from)
{
    uint8_t number[8];
    for (int i = 0; i < 8; i++) number[i] = (uint8_t)(from >> (56 - 8 * i));
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, number, sizeof number, 0), sizeof number);
}

/* The frames of the next message, [count] of them with their lengths; false: none is there. */
static bool taken(void *socket, uint8_t frames[][64], size_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int n = zmq_recv(socket, frames[i], 64, i ? 0 : ZMQ_DONTWAIT);
        if (n < 0 && !i) return false;
        assert_in_range(n, 0, 64);
        bytes[i] = (size_t)n;
        int more;
        size_t size = sizeof more;
        assert_int_equal(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size), 0);
        assert_int_equal(more, i + 1 < count);
    }
    return true;
}

static uint64_t number_of(const uint8_t frame[64])
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) number = number << 8 | frame[i];
    return number;
}

/* Message n has n % 40 bytes, each n % 251. */
static void assert_payload(const uint8_t *payload, size_t bytes, uint64_t n)
{
    assert_int_equal(bytes, n % 40);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(payload[i], n % 251);
}

static void publish(cot_publisher *p, uint64_t n)
{
    uint8_t payload[40];
    memset(payload, (int)(n % 251), sizeof payload);
    assert_int_equal(cot_publisher_send(p, payload, n % 40), n);
    assert_int_equal(cot_publisher_last(p), n);
}

static void test_replays(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    struct event_base *base = event_base_new();
    void *context = cot_publisher_context_open();
    cot_publisher *p;
    cot_error error;
    const cot_publisher_options options = {"inproc://events", "inproc://replays", TOPIC, KEEP, 10 * SENT};
    assert_non_null(base);
    assert_non_null(context);
    if (cot_publisher_open(&p, context, base, &options, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(cot_publisher_last(p), -1);
    for (uint64_t n = 0; n < SENT; n++) publish(p, n);

    void *dealer[CLIENTS];
    uint64_t next[CLIENTS];
    bool over[CLIENTS] = {false};
    for (uint64_t c = 0; c < CLIENTS; c++) {
        // before all that is kept, at its begin, within it, at its end, behind it
        const uint64_t from = c == 0   ? 0
                              : c == 1 ? SENT - KEEP
                              : c == 2 ? SENT - KEEP - 1
                              : c == 3 ? SENT - 1
                              : c == 4 ? SENT
                              : c == 5 ? SENT + 7
                                       : cot_random_bits(seed, 0, c) % (SENT + 10);
        dealer[c] = joined(context, ZMQ_DEALER, options.replay_endpoint);
        ask(dealer[c], from);
        next[c] = from < SENT - KEEP ? SENT - KEEP : from;
    }
    uint8_t frames[4][64];
    size_t bytes[4], left = CLIENTS;
    const time_t begin = time(NULL);
    while (left) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 60) fail_msg("%zu replays do not end", left);
        for (size_t c = 0; c < CLIENTS; c++)
            while (!over[c] && taken(dealer[c], frames, bytes, 4)) {
                assert_int_equal(bytes[0], 0);
                assert_int_equal(bytes[2], 8);
                const uint64_t number = number_of(frames[2]);
                if (number == UINT64_MAX) {
                    assert_int_equal(bytes[1] + bytes[3], 0);
                    if (next[c] < SENT) fail_msg("replay %zu ends before %d", c, (int)next[c]);
                    over[c] = true;
                    left--;
                    continue;
                }
                if (number != next[c]) fail_msg("replay %zu: %d, not %d", c, (int)number, (int)next[c]);
                assert_int_equal(bytes[1], sizeof TOPIC - 1);
                assert_memory_equal(frames[1], TOPIC, bytes[1]);
                assert_payload(frames[3], bytes[3], number);
                next[c]++;
            }
    }
    for (size_t c = 0; c < CLIENTS; c++) {
        assert_false(taken(dealer[c], frames, bytes, 4));
        zmq_close(dealer[c]);
    }
    cot_publisher_close(p);
    cot_publisher_context_close(context);
    event_base_free(base);
}

/* What is published later reaches who listens; what is no request has no answer. */
static void test_subscribers(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    void *context = cot_publisher_context_open();
    cot_publisher *p;
    cot_error error;
    const cot_publisher_options options = {"inproc://events", "inproc://replays", TOPIC, KEEP, 10 * SENT};
    if (cot_publisher_open(&p, context, base, &options, &error) != COT_OK) fail_msg("%s", error.message);
    void *subscriber = joined(context, ZMQ_SUB, options.endpoint),
         *dealer = joined(context, ZMQ_DEALER, options.replay_endpoint);
    uint8_t frames[4][64];
    size_t bytes[4];
    uint64_t sent = 0, heard = 0, first = UINT64_MAX;
    const time_t begin = time(NULL);
    while (first == UINT64_MAX) { // a subscription takes its time
        publish(p, sent++);
        if (taken(subscriber, frames, bytes, 3)) first = heard = number_of(frames[1]);
        if (time(NULL) - begin > 30) fail_msg("nothing is heard");
    }
    for (int i = 0; i < CUT; i++) publish(p, sent++);
    for (; heard < sent; heard++) {
        if (heard > first)
            while (!taken(subscriber, frames, bytes, 3)) {}
        assert_int_equal(bytes[0], sizeof TOPIC - 1);
        assert_memory_equal(frames[0], TOPIC, bytes[0]);
        assert_int_equal(bytes[1], 8);
        assert_int_equal(number_of(frames[1]), heard);
        assert_payload(frames[2], bytes[2], heard);
    }
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0); // no request: nobody answers
    assert_int_equal(zmq_send(dealer, "1234567", 7, 0), 7);
    ask(dealer, sent - 1);
    size_t answers = 0;
    for (uint64_t number = 0; number != UINT64_MAX;) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        if (!taken(dealer, frames, bytes, 4)) continue;
        number = number_of(frames[2]);
        if (!answers++) assert_int_equal(number, sent - 1);
    }
    assert_int_equal(answers, 2);
    zmq_close(subscriber);
    zmq_close(dealer);
    cot_publisher_close(p);
    cot_publisher_context_close(context);
    event_base_free(base);
}

static void test_requests(void **state)
{
    (void)state;
    const uint8_t number[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const void *const frames[] = {"", number, ""};
    uint64_t read = 0;
    assert_true(cot_publisher_read_request(frames, (const size_t[]){0, 8}, 2, &read));
    assert_int_equal(read, 0x0102030405060708);
    assert_false(cot_publisher_read_request(frames, (const size_t[]){0, 7}, 2, &read));
    assert_false(cot_publisher_read_request(frames, (const size_t[]){0, 9}, 2, &read));
    assert_false(cot_publisher_read_request(frames, (const size_t[]){1, 8}, 2, &read));
    assert_false(cot_publisher_read_request(frames, (const size_t[]){0, 8, 0}, 3, &read));
    assert_false(cot_publisher_read_request(frames + 1, (const size_t[]){8}, 1, &read));
    assert_false(cot_publisher_read_request(frames, (const size_t[]){0}, 0, &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replays), cmocka_unit_test(test_subscribers),
                                       cmocka_unit_test(test_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
