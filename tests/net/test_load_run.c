/* A load test against a server of the test's own, which answers the i-th request as a table says: every figure that does
 * not depend on the clock. */
#include "harness/cmocka.h"

#include "base/thread.h"
#include "coterie/load_test.h"
#include "net/http_server.h"
#include "net/wake.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICE "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n"
#define LAST "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n"
#define USAGE(in, out, cached)                                                                               \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":" #in ",\"completion_tokens\":" #out                 \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" #cached "}}}\n\n"
#define DONE "data: [DONE]\n\n"

typedef struct reply {
    int status;
    const char *body;
} reply;

/* On a thread of its own. */
typedef struct server {
    struct event_base *base;
    cot_http_server *http;
    cot_wake stop;
    pthread_t thread;
    const reply *replies;
    const char *models; // the list's text; NULL: of two
    size_t asked;
    char body[256]; // the first request's
} server;

static void handle(void *context, cot_http_exchange *exchange)
{
    server *s = context;
    if (strcmp(cot_http_path(exchange), "/v1/models") == 0) {
        const char *const models =
            s->models ? s->models : "{\"data\":[{\"id\":\"peer\"},{\"id\":\"other\"}]}";
        cot_http_reply(exchange, 200, "application/json", NULL, 0, models, strlen(models));
        return;
    }
    size_t bytes;
    const char *const body = cot_http_body(exchange, &bytes);
    if (!s->asked) snprintf(s->body, sizeof s->body, "%s", body);
    const reply *const r = &s->replies[s->asked++];
    cot_http_reply(exchange, r->status, r->status == 200 ? "text/event-stream" : "application/json", NULL, 0,
                   r->body, strlen(r->body));
}

static void hear_stop(void *context, uint64_t times)
{
    (void)times;
    event_base_loopbreak(context);
}

static void *run(void *context)
{
    event_base_dispatch(((server *)context)->base);
    return NULL;
}

static void start(server *s, const reply *replies, const char *models)
{
    static const cot_http_handler handler = {.handle = handle};
    cot_error error;
    *s = (server){.base = event_base_new(), .replies = replies, .models = models};
    assert_non_null(s->base);
    assert_true(cot_wake_open(&s->stop, s->base, hear_stop, s->base));
    if (cot_http_server_open(&s->http, s->base, &(cot_http_server_options){0}, &handler, s, &error) != COT_OK)
        fail_msg("%s", error.message);
    assert_true(cot_thread_start(&s->thread, run, s));
}

static void end(server *s)
{
    cot_wake_up(&s->stop);
    pthread_join(s->thread, NULL);
    cot_http_server_close(s->http);
    cot_wake_close(&s->stop);
    event_base_free(s->base);
}

static cot_load_test_report tested(const reply *replies, size_t count, cot_load_test_options *options)
{
    server s;
    cot_load_test_report report;
    cot_error error;
    char url[64];
    start(&s, replies, NULL);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/", (unsigned)cot_http_server_port(s.http));
    options->size = sizeof *options;
    options->url = url;
    options->requests = (int64_t)count;
    if (cot_load_test_run(options, &report, &error) != COT_OK) fail_msg("%s", error.message);
    end(&s);
    assert_int_equal(s.asked, count);
    assert_non_null(strstr(s.body, "\"model\":\"peer\""));
    assert_int_equal(report.sent, count);
    assert_string_equal(report.model, "peer");
    return report;
}

/* Requests go to all servers in turn; the first names the model. */
static void test_several(void **state)
{
    (void)state;
    enum { SERVERS = 3, REQUESTS = 8 };
    static const reply replies[REQUESTS] = {
        {200, CHOICE LAST DONE}, {200, CHOICE LAST DONE}, {200, CHOICE LAST DONE}};
    static server s[SERVERS];
    char texts[SERVERS][64];
    const char *urls[SERVERS];
    cot_load_test_report report;
    cot_error error;
    for (int i = 0; i < SERVERS; i++) {
        start(&s[i], replies, NULL);
        snprintf(texts[i], sizeof texts[i], "http://127.0.0.1:%u", (unsigned)cot_http_server_port(s[i].http));
        urls[i] = texts[i];
    }
    const cot_load_test_options options = {.size = sizeof options,
                                           .url = urls[0],
                                           .more_urls = urls + 1,
                                           .more_url_count = SERVERS - 1,
                                           .requests = REQUESTS,
                                           .input_tokens = 5,
                                           .output_tokens = 1};
    if (cot_load_test_run(&options, &report, &error) != COT_OK) fail_msg("%s", error.message);
    for (int i = 0; i < SERVERS; i++) {
        end(&s[i]);
        assert_int_equal(s[i].asked, (REQUESTS + SERVERS - 1 - i) / SERVERS);
    }
    assert_int_equal(report.completed, REQUESTS);
    assert_string_equal(report.model, "peer");
    urls[2] = "ftp://nowhere"; // the last one counts, too
    assert_int_equal(cot_load_test_run(&options, &report, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "ftp://nowhere"));
}

static void test_figures(void **state)
{
    (void)state;
    static const reply replies[] = {
        {200, CHOICE CHOICE LAST USAGE(7, 3, 2) DONE},                   // as asked
        {200, CHOICE LAST USAGE(9, 5, 4) DONE},                          // the server counts otherwise
        {200, CHOICE CHOICE CHOICE LAST DONE},                           // it does not count
        {200, CHOICE CHOICE LAST "data: {\"usage\":\"many\"}\n\n" DONE}, // nor here
        {200, LAST USAGE(11, 1, 0) DONE}};
    for (int strict = 0; strict < 3; strict++) {
        cot_load_test_options options = {.input_tokens = 20,
                                         .output_tokens = 3,
                                         .slo_ttft_ms = strict == 1   ? 1e-9
                                                        : strict == 2 ? 1e9
                                                                      : 0,
                                         .slo_tpot_ms = strict == 2 ? 1e9 : 0};
        const cot_load_test_report r = tested(replies, 5, &options);
        assert_int_equal(r.completed, 5);
        assert_int_equal(r.failed + r.rejected, 0);
        assert_int_equal(r.kinds, 0);
        assert_int_equal(r.events, 3 + 2 + 4 + 3 + 1);
        assert_int_equal(r.input_tokens, 7 + 9 + 20 + 20 + 11);
        assert_int_equal(r.output_tokens, 3 + 5 + 4 + 3 + 1);
        assert_int_equal(r.cached_tokens, 2 + 4);
        assert_int_equal(r.unlike, 3);
        assert_int_equal(r.ttft.count, 5);
        assert_int_equal(r.e2e.count, 5);
        assert_int_equal(r.tpot.count, 4); // one token has no time a token
        assert_int_equal(r.itl.count, 2 + 1 + 3 + 2 + 0);
        assert_int_equal(r.good, strict == 1 ? 0 : 5);
    }
}

#define LONG_TEXT_OF(x) x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x

static void test_failures(void **state)
{
    (void)state;
    static const reply replies[] = {
        {400, "{\"error\":{\"message\":\"no\\nway\"}}"},
        {400, "{\"error\":{\"message\":\"another\"}}"},
        {500, LONG_TEXT_OF("a page that is no JSON and as long as no error is ever: ") "the end"},
        {200, CHOICE LAST},        // without its end
        {200, CHOICE CHOICE DONE}, // without a reason
        {200, CHOICE "data: {no\n\n" DONE},
        {200, CHOICE "data: {\"error\":{\"message\":\"boom\"}}\n\n" LAST DONE},
        {200, CHOICE "data: {\"error\":{}}\n\n" LAST DONE},
        {200, DONE},
        {429,
         "{\"error\":{\"message\":\"full\"}}"}, // a client that waits for its answer is not to be sent away
        {200, CHOICE LAST DONE}};
    static const struct {
        const char *what, *words;
        int64_t count;
    } expected[] = {{"HTTP 400", "no?way", 2},
                    {"HTTP 500", "", 1},
                    {"a stream that ended early", "", 2},
                    {"an event that is no JSON", "", 1},
                    {"in the stream: boom", "", 1},
                    {"in the stream: an error", "", 1},
                    {"an answer without a token", "", 1},
                    {"HTTP 429", "full", 1}};
    cot_load_test_options options = {.input_tokens = 20, .output_tokens = 2};
    const cot_load_test_report r = tested(replies, 11, &options);
    assert_int_equal(r.completed, 1);
    assert_int_equal(r.failed, 10);
    assert_int_equal(r.rejected, 0);
    assert_int_equal(r.events, 2); // of completed requests
    assert_int_equal(r.ttft.count, 1);
    assert_int_equal(r.kinds, sizeof expected / sizeof *expected);
    for (size_t k = 0; k < r.kinds; k++) {
        assert_string_equal(r.failures[k].what, expected[k].what);
        assert_string_equal(r.failures[k].words, expected[k].words);
        assert_int_equal(r.failures[k].count, expected[k].count);
    }
}

/* Who comes by a clock may be sent away: that is no failure. */
static void test_rejections(void **state)
{
    (void)state;
    static const reply replies[] = {{429, "{\"error\":{\"message\":\"full\"}}"},
                                    {429, "{\"error\":{\"message\":\"fuller\"}}"},
                                    {200, CHOICE LAST DONE},
                                    {503, "{\"error\":{\"message\":\"ends\"}}"}};
    cot_load_test_options options = {.input_tokens = 20, .output_tokens = 2, .rate = 1000, .concurrency = 1};
    const cot_load_test_report r = tested(replies, 4, &options);
    assert_int_equal(r.completed, 1);
    assert_int_equal(r.failed, 1);
    assert_int_equal(r.rejected, 2);
    assert_string_equal(r.rejection, "full");
    assert_int_equal(r.kinds, 1);
    assert_string_equal(r.failures[0].what, "HTTP 503");
    assert_string_equal(r.failures[0].words, "ends");
}

/* The list of models is read up to a megabyte: what is longer is no list. */
static void test_long_lists(void **state)
{
    (void)state;
    static const char head[] = "{\"data\":[{\"id\":\"peer\"}]";
    static const reply replies[] = {{200, CHOICE LAST DONE}};
    const size_t lengths[] = {1 << 20, (1 << 20) + 1, 3 << 20};
    for (int i = 0; i < 3; i++) {
        server s;
        cot_load_test_report report;
        cot_error error;
        char url[64], expected[128], *models = malloc(lengths[i] + 1);
        assert_non_null(models);
        memset(models, ' ', lengths[i]);
        memcpy(models, head, sizeof head - 1);
        strcpy(models + lengths[i] - 1, "}");
        start(&s, replies, models);
        snprintf(url, sizeof url, "http://127.0.0.1:%u", (unsigned)cot_http_server_port(s.http));
        const cot_load_test_options options = {
            .size = sizeof options, .url = url, .requests = 1, .input_tokens = 20, .output_tokens = 2};
        const cot_status status = cot_load_test_run(&options, &report, &error);
        end(&s);
        assert_int_equal(status, i ? COT_MALFORMED : COT_OK);
        if (i) {
            snprintf(expected, sizeof expected, "'%s': /v1/models names no model", url);
            assert_string_equal(error.message, expected);
        } else
            assert_string_equal(report.model, "peer");
        free(models);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_figures), cmocka_unit_test(test_several),
                                       cmocka_unit_test(test_failures), cmocka_unit_test(test_rejections),
                                       cmocka_unit_test(test_long_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
