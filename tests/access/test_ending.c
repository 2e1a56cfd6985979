/* Whoever serves ends when it is asked to: first by waiting for what is under way, then by cutting it. */
#include "harness/cmocka.h"

#include "access/ending.h"

#include <event2/event.h>
#include <string.h>

typedef struct serving {
    struct event_base *base;
    cot_access access;
    cot_access_ending ending;
    cot_http_server *http;
    int rests, cuts, lines;
} serving;

static void on_rest(void *context)
{
    ((serving *)context)->rests++;
}

static void on_cut(void *context)
{
    serving *s = context;
    s->cuts++;
    if (!s->ending.is_over) cot_access_ending_finish(&s->ending, s->http); // nothing is under way any more
}

static void log_line(void *context, const char *line)
{
    assert_non_null(strstr(line, "shutting down: no new requests; those under way have 7 s"));
    ((serving *)context)->lines++;
}

static void open(serving *s, int64_t shutdown_ms)
{
    static const cot_http_handler nobody = {0};
    cot_error error;
    *s = (serving){.base = event_base_new()};
    s->access.options = (cot_access_options){.log = log_line, .log_context = s, .log_level = COT_LOG_INFO};
    assert_int_equal(
        cot_http_server_open(&s->http, s->base, &(cot_http_server_options){0}, &nobody, s, &error), COT_OK);
    assert_true(cot_access_ending_open(&s->ending, &s->access, s->base, shutdown_ms, on_rest, on_cut, s));
    event_base_loop(s->base, EVLOOP_NONBLOCK);
    assert_int_equal(s->ending.heard, 0);
}

static void close_it(serving *s)
{
    cot_http_server_close(s->http);
    cot_access_ending_close(&s->ending);
    event_base_free(s->base);
}

/* Asked once: nothing is cut; what was under way ends, and so does the loop. */
static void test_once(void **state)
{
    (void)state;
    serving s;
    open(&s, 7000);
    cot_access_ending_ask(&s.ending);
    while (!s.ending.heard) event_base_loop(s.base, EVLOOP_ONCE);
    assert_int_equal(s.ending.heard, 1);
    assert_int_equal(s.rests, 1);
    assert_int_equal(s.cuts, 0);
    assert_int_equal(s.lines, 1);
    assert_false(s.ending.is_over);
    cot_access_ending_finish(&s.ending, s.http);
    assert_true(s.ending.is_over);
    event_base_dispatch(s.base); // it comes back
    assert_true(event_base_got_break(s.base));
    close_it(&s);
}

/* Asked again, before or after the first was heard: it is cut. */
static void test_twice(void **state)
{
    (void)state;
    for (int together = 0; together < 2; together++) {
        serving s;
        open(&s, 7000);
        cot_access_ending_ask(&s.ending);
        while (!together && !s.ending.heard) event_base_loop(s.base, EVLOOP_ONCE);
        assert_int_equal(s.cuts, 0);
        cot_access_ending_ask(&s.ending);
        event_base_dispatch(s.base);
        assert_int_equal(s.ending.heard, 2);
        assert_int_equal(s.rests, 1);
        assert_int_equal(s.cuts, 1);
        assert_int_equal(s.lines, 1);
        close_it(&s);
    }
}

/* After its time it is cut, also where it began to end by itself, of which nothing is said here. */
static void test_deadline(void **state)
{
    (void)state;
    serving s;
    open(&s, 20);
    cot_access_ending_begin(&s.ending);
    assert_int_equal(s.rests, 1);
    assert_int_equal(s.cuts, 0);
    event_base_dispatch(s.base);
    assert_int_equal(s.cuts, 1);
    assert_int_equal(s.lines, 0);
    close_it(&s);
}

static void test_closed(void **state)
{
    (void)state;
    cot_access_ending ending = {0};
    cot_access_ending_close(&ending);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_once), cmocka_unit_test(test_twice),
                                       cmocka_unit_test(test_deadline), cmocka_unit_test(test_closed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
