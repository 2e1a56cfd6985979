/* Shaped links: the model's arithmetic at times that the test makes up; groups, in which nothing may be seen
 * before its time; and the conformance suite, whose every call works over such a link as well: in a few kinds of groups, or with
 * COT_LONG in all. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/fabric/calls.h"
#include "harness/fabric/conformance.h"
#include "harness/fabric/job.h"
#include "harness/seed.h"

#include "fabric/threads/link.h"
#include "fabric/threads/state.h"
#include "fabric/threads/threads.h"
#include "fabric/turns.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cot_links links;
static cot_flights *flights; // [MOST_RANKS][MOST_RANKS]
enum { MOST_RANKS = 8 };

static void open_links(int ranks, const cot_link *link)
{
    free(flights);
    flights = calloc(MOST_RANKS * MOST_RANKS, sizeof *flights);
    assert_non_null(flights);
    memset(&links, 0, sizeof links);
    cot_links_open(&links, ranks, flights);
    for (int r = 0; r < ranks; r++) assert_true(cot_links_set(&links, r, link));
}

static bool send(int from, int to, int64_t now_ns, size_t bytes, _Atomic uint64_t *word)
{
    return cot_links_send(&links, from, to, now_ns, bytes, word, 1);
}

/* It arrives at that time, and not before. */
static void arrives(_Atomic uint64_t *word, int rank, int64_t at_ns)
{
    cot_links_look(&links, rank, at_ns - 1);
    assert_int_equal(*word, 0);
    cot_links_look(&links, rank, at_ns);
    assert_int_equal(*word, 1);
}

/* Times worked out by hand: 0.5 ns a byte, 500 ns. */
static void test_line(void **state)
{
    (void)state;
    const cot_link link = {.bytes_per_s = 2e9, .latency_ns = 500};
    _Atomic uint64_t word[9] = {0};
    open_links(4, &link);
    assert_true(cot_links_shape(&links, 0, 1) && !cot_links_shape(&links, 1, 1));
    assert_true(send(0, 1, 1000, 100, &word[0]) && send(0, 2, 1010, 100, &word[1]) &&
                send(0, 1, 1020, 0, &word[2]));
    arrives(&word[0], 1, 1000 + 50 + 500);
    arrives(&word[1], 2, 1100 + 500); // the way out was taken until 1050
    cot_links_look(&links, 1, 1100 + 500);
    assert_int_equal(word[2], 1);
    assert_true(send(0, 1, 5000, 3, &word[3]));
    arrives(&word[3], 1, 5002 + 500); // rounded up, never early

    assert_true(send(0, 3, 10000, 1000, &word[4]) && send(1, 3, 10000, 1000, &word[5]) &&
                send(2, 3, 10100, 2000, &word[6]) && send(2, 1, 10100, 2, &word[7]));
    arrives(&word[4], 3, 10000 + 500 + 500);  // its bytes come in as they went out
    arrives(&word[5], 3, 10000 + 1000 + 500); // after those
    arrives(&word[7], 1, 10100 + 1001 + 500); // that way in is free
    arrives(&word[6], 3, 10000 + 2000 + 500);

    const cot_link far = {.latency_ns = 70}, slow = {.bytes_per_s = 0.1e9}, none = {0};
    assert_true(cot_link_shapes(&far) && cot_link_shapes(&slow) && !cot_link_shapes(&none));
    open_links(2, &far);
    assert_true(send(0, 1, 10, (size_t)1 << 40, &word[8]));
    arrives(&word[8], 1, 80);
    open_links(2, &slow);
    _Atomic uint64_t paced[1000] = {0};
    for (int i = 0; i < 1000; i++) assert_true(send(0, 1, 0, 4096, &paced[i]));
    for (int i = 0; i < 1000; i++) arrives(&paced[i], 1, (i + 1) * 40960);
}

/* Two groups of two; the uplink is half as fast and 300 ns long. */
static void test_uplink(void **state)
{
    (void)state;
    const cot_link link = {2e9, 500, 2, 1e9, 300};
    _Atomic uint64_t word[8] = {0};
    open_links(4, &link);
    assert_true(send(0, 1, 0, 1000, &word[0])); // within a group
    arrives(&word[0], 1, 500 + 500);
    assert_true(send(0, 2, 10000, 1000, &word[1]) && send(1, 3, 10100, 1000, &word[2]));
    arrives(&word[1], 2, 10000 + 1000 + 800); // at the uplink's rate
    arrives(&word[2], 3, 10000 + 2000 + 800); // which both share on the way out
    assert_true(send(2, 0, 20000, 1000, &word[3]) && send(0, 2, 20000, 1000, &word[4]));
    arrives(&word[3], 0, 20000 + 1000 + 800); // out and in are two
    cot_links_look(&links, 2, 21800);
    assert_int_equal(word[4], 1);

    const cot_link three = {0, 0, 3, 1e9, 0}; // {0, 1}, {2, 3}, {4, 5}
    open_links(6, &three);
    assert_true(send(0, 4, 0, 100, &word[5]) && send(2, 5, 10, 100, &word[6]) &&
                send(3, 2, 0, 100, &word[7]));
    arrives(&word[7], 2, 0);
    arrives(&word[5], 4, 100);
    arrives(&word[6], 5, 200); // the uplink in is shared
}

/* ---- against what a message list comes to when it is worked out whole ---- */

enum { RANDOM_MESSAGES = 300 };
struct message {
    int from, to;
    int64_t sent_ns;
    size_t bytes;
    bool crosses, signals;
    int64_t first_ns, last_ns; // at the line in hand, at last of the arrival
};

struct world {
    int ranks;
    cot_link link;
    int count;
    struct message m[RANDOM_MESSAGES];
    _Atomic uint64_t word[RANDOM_MESSAGES];
};

static int by_first(const void *a, const void *b)
{
    const struct message *const x = *(struct message *const *)a, *const y = *(struct message *const *)b;
    const int64_t order[] = {x->first_ns - y->first_ns, x->to - y->to, x->from - y->from,
                             x->sent_ns - y->sent_ns};
    for (int i = 0; i < 4; i++)
        if (order[i]) return order[i] < 0 ? -1 : 1;
    return 0;
}

/* When a line has done the work of its first n messages: some message was the first of an unbroken row of work. */
static int64_t done_ns(struct message *const *queue, int n, double rate)
{
    int64_t latest_ns = INT64_MIN, work_ns = 0;
    for (int i = n - 1; i >= 0; i--) {
        if (rate > 0) work_ns += ((int64_t)queue[i]->bytes * 1000000000 + (int64_t)rate - 1) / (int64_t)rate;
        if (queue[i]->first_ns + work_ns > latest_ns) latest_ns = queue[i]->first_ns + work_ns;
    }
    return latest_ns;
}

static void pass_line(struct message **queue, int n, double rate, int64_t latency_ns)
{
    int64_t first_ns[RANDOM_MESSAGES], last_ns[RANDOM_MESSAGES];
    qsort(queue, (size_t)n, sizeof *queue, by_first);
    for (int i = 0; i < n; i++) {
        const int64_t before_ns = i ? done_ns(queue, i, rate) : INT64_MIN,
                      after_ns = done_ns(queue, i + 1, rate);
        first_ns[i] = (before_ns > queue[i]->first_ns ? before_ns : queue[i]->first_ns) + latency_ns;
        last_ns[i] = (after_ns > queue[i]->last_ns ? after_ns : queue[i]->last_ns) + latency_ns;
    }
    for (int i = 0; i < n; i++) {
        queue[i]->first_ns = first_ns[i];
        queue[i]->last_ns = last_ns[i];
    }
}

static int group_in(const struct world *w, int rank)
{
    for (int g = 0; g < w->link.groups; g++)
        if (rank < cot_share_begin(w->ranks, g + 1, w->link.groups)) return g;
    return 0;
}

/* The kinds of lines in the order in which a message takes them, all lines of one before the next. */
static void work_out(struct world *w)
{
    enum { OUT, UP_OUT, UP_IN, IN, KINDS_OF_LINES };
    const double rate[] = {w->link.bytes_per_s, w->link.uplink_bytes_per_s, w->link.uplink_bytes_per_s,
                           w->link.bytes_per_s};
    const int64_t latency_ns[] = {w->link.latency_ns, w->link.uplink_latency_ns, 0, 0};
    for (int kind = 0; kind < KINDS_OF_LINES; kind++)
        for (int number = 0; number < w->ranks; number++) {
            struct message *queue[RANDOM_MESSAGES];
            int n = 0;
            for (int i = 0; i < w->count; i++) {
                struct message *m = &w->m[i];
                const int at[] = {m->from, m->crosses ? group_in(w, m->from) : -1,
                                  m->crosses ? group_in(w, m->to) : -1, m->to};
                if (at[kind] == number) queue[n++] = m;
            }
            pass_line(queue, n, rate[kind], latency_ns[kind]);
        }
}

static void draw_world(struct world *w, struct draw *draw)
{
    static const double rates[] = {0, 0.1e9, 1e9, 3e9, 7.7e9};
    static const int64_t latencies[] = {0, 1, 300, 20000};
    memset(w, 0, sizeof *w);
    w->ranks = 2 + (int)draw_below(draw, MOST_RANKS - 1);
    w->link = (cot_link){rates[draw_below(draw, 5)], latencies[draw_below(draw, 4)],
                         (int)draw_below(draw, w->ranks + 1), rates[draw_below(draw, 5)],
                         latencies[draw_below(draw, 4)]};
    if (!cot_link_shapes(&w->link)) w->link.latency_ns = 5;
    w->count = RANDOM_MESSAGES;
    int64_t now_ns = 0;
    const int64_t pace = draw_below(draw, 2) ? 300 : 5000, most_bytes = draw_below(draw, 2) ? 500 : 20000;
    for (int i = 0; i < w->count; i++) {
        struct message *m = &w->m[i];
        now_ns += 1 + draw_below(draw, pace);
        m->from = (int)draw_below(draw, w->ranks);
        m->to = (m->from + 1 + (int)draw_below(draw, w->ranks - 1)) % w->ranks;
        m->sent_ns = m->first_ns = m->last_ns = now_ns;
        m->bytes = draw_below(draw, 5) ? (size_t)draw_below(draw, most_bytes) : 0;
        m->crosses = w->link.groups > 1 && group_in(w, m->from) != group_in(w, m->to);
        m->signals = draw_below(draw, 4);
    }
}

static void look(struct world *w, int rank, int64_t now_ns)
{
    cot_links_look(&links, rank, now_ns);
    for (int i = 0; i < w->count; i++) {
        const struct message *m = &w->m[i];
        if (m->to != rank || !m->signals) continue;
        if (w->word[i] != (m->last_ns <= now_ns))
            fail_msg("message %d of %d ranks in %d groups at %lld: arrives at %lld", i, w->ranks,
                     w->link.groups, (long long)now_ns, (long long)m->last_ns);
    }
}

/* Looks at drawn times by drawn ranks, and at each message's arrival and just before. */
static void test_messages(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 7, 0};
    static struct world w;
    for (int round = 0; round < 60; round++) {
        draw_world(&w, &draw);
        open_links(w.ranks, &w.link);
        work_out(&w);
        int64_t now_ns = 0;
        for (int sent = 0, left = w.count; left || sent < w.count;) {
            int64_t next_ns = INT64_MAX; // the next arrival, unless a message is sent before
            int next = -1;
            for (int i = 0; i < w.count; i++)
                if (w.m[i].last_ns > now_ns && w.m[i].last_ns < next_ns) next_ns = w.m[next = i].last_ns;
            if (sent < w.count && w.m[sent].sent_ns <= next_ns) {
                const struct message *m = &w.m[sent];
                now_ns = m->sent_ns;
                assert_true(send(m->from, m->to, now_ns, m->bytes, m->signals ? &w.word[sent] : NULL));
                sent++;
                if (!draw_below(&draw, 3)) look(&w, (int)draw_below(&draw, w.ranks), now_ns);
                left = 1;
                continue;
            }
            left = next >= 0;
            if (next < 0) continue;
            if (next_ns - 1 > now_ns) look(&w, w.m[next].to, next_ns - 1);
            look(&w, w.m[next].to, now_ns = next_ns);
        }
        for (int i = 0; i < w.count; i++) look(&w, w.m[i].to, INT64_MAX);
        for (int r = 0; r < w.ranks; r++) assert_int_equal(links.end[r].sources, 0);
    }
}

/* As many as there is room for, with signals or not; the ring goes round; while somebody is at it nothing happens. */
static void test_room(void **state)
{
    (void)state;
    const cot_link link = {.latency_ns = 1000000};
    static _Atomic uint64_t words[COT_FLIGHTS];
    open_links(2, &link);
    for (int64_t lap = 0; lap < 3; lap++) {
        const int64_t begin_ns = lap * 10000000;
        memset(words, 0, sizeof words);
        for (int i = 0; i < COT_FLIGHTS; i++)
            assert_true(send(0, 1, begin_ns + i, 9, i % 3 ? &words[i] : NULL));
        assert_false(send(0, 1, begin_ns + COT_FLIGHTS, 9, &words[0]));
        assert_true(cot_links_send(&links, 1, 0, begin_ns, 9, NULL, 0)); // the other way
        cot_links_look(&links, 1, begin_ns + 999999);
        assert_false(send(0, 1, begin_ns + 999999, 9, &words[0]));
        for (int i = 0; i < COT_FLIGHTS; i++) {
            cot_links_look(&links, 1, begin_ns + 1000000 + i);
            assert_int_equal(words[i], i % 3 != 0);
            if (i + 1 < COT_FLIGHTS) assert_int_equal(words[i + 1], 0);
        }
        cot_links_look(&links, 0, begin_ns + 5000000);
    }
    memset(words, 0, sizeof words);
    assert_true(send(0, 1, 0, 9, &words[1]));
    atomic_flag_test_and_set(&links.busy);
    cot_links_look(&links, 1, INT64_MAX);
    assert_int_equal(words[1], 0);
    assert_false(cot_links_set(&links, 0, &(cot_link){0}));
    atomic_flag_clear(&links.busy);
    assert_true(cot_links_set(&links, 0, &(cot_link){0})); // arrives at once
    assert_int_equal(words[1], 1);
    assert_true(!cot_links_shape(&links, 0, 1) && cot_links_shape(&links, 1, 0));
    assert_int_equal(links.shaped, 1);
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
    set_link(from, 0, INT64_MAX / 4);
    cot_put_signal(from, 1, 0, NULL, 0, signal, 5, COT_PHASE_CONTROL);
    cot_put_signal(from, 0, 0, NULL, 0, signal, 9, COT_PHASE_CONTROL); // what stays takes no link
    assert_int_equal(cot_signal_load(from, signal), 9);
    assert_int_equal(cot_signal_load(to, signal), 0);
    set_link(from, 0, 0);
    assert_int_equal(cot_signal_load(to, signal), 5);
    cot_put_signal(from, 1, 0, NULL, 0, signal, 6, COT_PHASE_CONTROL);
    assert_int_equal(cot_signal_load(to, signal), 6);
    set_link(from, 1, 0);
    uint8_t bytes[100] = {0};
    cot_put(from, 1, 4096, bytes, sizeof bytes, COT_PHASE_CONTROL); // takes the line for 100 s
    cot_put_signal(from, 1, 0, NULL, 0, signal, 7, COT_PHASE_CONTROL);
    assert_int_equal(cot_signal_load(to, signal), 6);
    cot_fabric_group_close(group);
}

/* Somebody has died as it served the lines, so that nobody else ever does. A send that finds no room ends with the time-out, or at
 * once where the group has failed; a change of shape, which changes nothing then, ends with the time-out too. */
static void test_wedged(void **state)
{
    (void)state;
    const int64_t timeout_ns = 50000000;
    for (int failed = 0; failed < 2; failed++) {
        const cot_fabric_group_options options = {
            .ranks = 2, .heap_bytes = 1 << 16, .running = 2, .timeout_ns = failed ? PATIENT_NS : timeout_ns};
        cot_fabric_group *group;
        assert_int_equal(cot_fabric_group_open(&group, &options, NULL), COT_OK);
        cot_fabric *from = cot_fabric_group_rank(group, 0), *to = cot_fabric_group_rank(group, 1);
        cot_sym signal;
        assert_int_equal(cot_alloc(from, &signal, 8, NULL), COT_OK);
        set_link(from, 0, 1);
        atomic_flag_test_and_set(&group->links.busy);
        for (uint64_t i = 1; i <= COT_FLIGHTS; i++)
            cot_put_signal(from, 1, 0, NULL, 0, signal, i, COT_PHASE_CONTROL);
        if (failed) (to->ops->fail)(to); // in parentheses: cmocka has a macro of that name
        const int64_t since_ns = from->ops->now_ns(from);
        alarm(20);
        cot_put_signal(from, 1, 0, NULL, 0, signal, COT_FLIGHTS + 1, COT_PHASE_CONTROL);
        if (!failed) {
            assert_true(from->ops->now_ns(from) - since_ns >= timeout_ns);
            set_link(from, 0, 0);
            assert_true(from->ops->now_ns(from) - since_ns >= 2 * timeout_ns);
            assert_true(cot_links_shape(&group->links, 0, 1)); // as it was
        }
        alarm(0);
        assert_int_equal(cot_signal_load(to, signal), 0);
        atomic_flag_clear(&group->links.busy);
        assert_int_equal(cot_signal_load(to, signal), COT_FLIGHTS); // the last one is lost
        cot_fabric_group_close(group);
    }
}

/* The latency is longer than the group's patience. */
static bool too_far_body(cot_fabric *fabric, const group_job *job)
{
    cot_sym signal;
    CHECK(!cot_alloc(fabric, &signal, 8, NULL), "memory");
    cot_put_signal(fabric, 1 - fabric->rank, 0, NULL, 0, signal, 1, COT_PHASE_COMBINE);
    cot_error error = {0};
    const cot_status status = cot_wait(fabric, signal, 1, 1 - fabric->rank, COT_PHASE_COMBINE, &error);
    CHECK(status == COT_TIMED_OUT &&
              strstr(error.message, "did not answer") && // the one who is blamed first hears it so
              strstr(error.message, "in 'combine'") && strstr(error.message, "within 0.5 s"),
          "status %d of %d: '%s'", (int)status, job->ranks, error.message);
    sleep_us(job->timeout_ns / 20000); // until the other has heard, too: then the link loses its shape
    return true;
}

static void test_too_far(void **state)
{
    (void)state;
    const struct subject too_far = {.link_latency_ns = 100000000000};
    group_job job;
    small_job(&job, &too_far, 2, 2, too_far_body);
    job.timeout_ns = 500000000;
    run_on_all(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_line),     cmocka_unit_test(test_uplink),
                                       cmocka_unit_test(test_messages), cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_reshaped), cmocka_unit_test(test_paced),
                                       cmocka_unit_test(test_wedged),   cmocka_unit_test(test_too_far)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (const char *const *name = cot_fabric_backend_names(); *name; name++) {
        struct subject shaped = {cot_fabric_backend_find(*name), 2e9, 5000, !getenv("COT_LONG")};
        if (!shaped.backend->from_outside) failed += run_conformance(&shaped);
    }
    return failed;
}
