/* The texts of the room: events as a client reads them, metrics as Prometheus does. */
#include "harness/cmocka.h"
#include "harness/seed.h"
#include "base/rng.h"
#include "net/http_client.h"
#include "net/prometheus.h"
#include "net/sse.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct heard {
    char text[1000];
    int events, stop_after;
} heard;

static bool on_event(void *context, const char *type, const char *data, size_t bytes)
{
    heard *const l = context;
    assert_int_equal(strlen(data), bytes);
    snprintf(l->text + strlen(l->text), sizeof l->text - strlen(l->text), "<%s|%s>", type, data);
    return ++l->events != l->stop_after;
}

static const struct {
    const char *bytes, *events;
} streams[] = {
    {"data: a\n\ndata: b\n\n", "<message|a><message|b>"},
    {"data:a\r\n\r\ndata:  b\r\n\r\n", "<message|a><message| b>"},
    {"data: a\r\ndata: b\r\n\r\n", "<message|a\nb>"},
    {"data: a\rdata: b\r\rdata\r\r", "<message|a\nb><message|>"},
    {"\xef\xbb\xbf"
     "data: a\n\n",
     "<message|a>"},
    {": ping\n\nevent: e\ndata: a\nid: 7\nretry: 1\nother: x\n\n", "<e|a>"},
    {"event: e\n\ndata: a\n\n", "<message|a>"}, // a type without data is forgotten
    {"data: a\n\n\n\ndata\n\n", "<message|a><message|>"},
    {"data: {\"a\": \"b: c\"}\n\n", "<message|{\"a\": \"b: c\"}>"},
    {"data: not ended", ""},
    {"data: not ended\n", ""},
    {" data: a\n\nDATA: b\n\n", ""},
    {"data: \xef\xbb\xbf\n\n", "<message|\xef\xbb\xbf>"},
    {"", ""},
};

static void test_events(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    for (size_t s = 0; s < sizeof streams / sizeof *streams; s++) {
        const size_t count = strlen(streams[s].bytes);
        for (uint64_t cut = 0; cut < 40; cut++) {
            heard l = {.stop_after = -1};
            cot_sse sse = {.on_event = on_event, .context = &l};
            for (size_t at = 0, n, i = 0; at < count; at += n, i++) {
                n = cut ? 1 + cot_random_bits(seed, s * 100 + cut, i) % (cut < 20 ? 3 : count) : count;
                if (n > count - at) n = count - at;
                assert_true(cot_sse_feed(&sse, streams[s].bytes + at, n));
            }
            assert_string_equal(l.text, streams[s].events);
            cot_sse_free(&sse);
        }
    }
    heard l = {.stop_after = 2};
    cot_sse sse = {.on_event = on_event, .context = &l};
    assert_false(cot_sse_feed(&sse, "data: a\n\ndata: b\n\ndata: c\n\n", 27));
    assert_false(cot_sse_feed(&sse, "data: d\n\n", 9));
    assert_int_equal(l.events, 2);
    cot_sse_free(&sse);
    // neither a line nor an event grows beyond the bound
    for (int many = 0; many < 2; many++) {
        cot_sse bounded = {.on_event = on_event, .context = &l, .max_bytes = 1000};
        bool fine = true;
        int fed = 0;
        for (; fine && fed < 1000; fed++) fine = cot_sse_feed(&bounded, many ? "data: x\n" : "datadata", 8);
        assert_false(fine);
        assert_in_range(fed, 100, 510);
        cot_sse_free(&bounded);
    }
}

static void test_metrics(void **state)
{
    (void)state;
    cot_prometheus out = {0};
    const cot_prometheus_label labels[] = {{"model_name", "a\\b\"c\nd"}, {"engine", "0"}};
    cot_prometheus_metric(&out, "vllm:requests", "counter", "All\nof \"them\" \\.");
    cot_prometheus_value(&out, "vllm:requests", labels, 2, 12345678901.0);
    cot_prometheus_metric(&out, "g", "gauge", "");
    cot_prometheus_value(&out, "g", NULL, 0, 0.1);
    cot_prometheus_value(&out, "g", NULL, 0, 1.0 / 3);
    cot_prometheus_value(&out, "g", NULL, 0, -INFINITY);
    cot_prometheus_value(&out, "g", NULL, 0, NAN);
    const double bounds[] = {0.001, 0.5, 10};
    uint64_t counts[4] = {0};
    cot_prometheus_histogram histogram = {bounds, counts, 3, 0};
    static const double values[] = {0, 0.001, 0.0011, 10, 10.5, 1e9};
    for (size_t i = 0; i < 6; i++) cot_prometheus_observe(&histogram, values[i]);
    cot_prometheus_metric(&out, "h", "histogram", "H");
    cot_prometheus_histogram_lines(&out, "h", labels + 1, 1, &histogram);
    cot_prometheus_histogram_lines(&out, "h", NULL, 0,
                                   &(cot_prometheus_histogram){bounds, (uint64_t[]){7}, 0, 1.5});
    assert_false(out.failed);
    assert_int_equal(strlen(out.text.data), out.text.bytes);
    assert_string_equal(out.text.data,
                        "# HELP vllm:requests All\\nof \"them\" \\\\.\n# TYPE vllm:requests counter\n"
                        "vllm:requests{model_name=\"a\\\\b\\\"c\\nd\",engine=\"0\"} 12345678901\n"
                        "# HELP g \n# TYPE g gauge\ng 0.1\ng 0.33333333333333331\ng -Inf\ng NaN\n"
                        "# HELP h H\n# TYPE h histogram\n"
                        "h_bucket{engine=\"0\",le=\"0.001\"} 2\nh_bucket{engine=\"0\",le=\"0.5\"} 3\n"
                        "h_bucket{engine=\"0\",le=\"10\"} 4\nh_bucket{engine=\"0\",le=\"+Inf\"} 6\n"
                        "h_sum{engine=\"0\"} 1000000020.5021\nh_count{engine=\"0\"} 6\n"
                        "h_bucket{le=\"+Inf\"} 7\nh_sum 1.5\nh_count 7\n");
    cot_prometheus_free(&out);
    for (int i = 0; i < 2000; i++) cot_prometheus_value(&out, "a_metric_with_a_name", NULL, 0, i); // it grows
    assert_int_equal(out.text.bytes, 2000 * 22 + 10 + 90 * 2 + 900 * 3 + 1000 * 4);
    cot_prometheus_free(&out);
}

/* What is before /v1 in a URL, whether that and a slash are given or not. */
static void test_api_roots(void **state)
{
    (void)state;
    static const struct {
        const char *url, *root;
    } rows[] = {{"http://a:1", "http://a:1"},
                {"http://a:1/", "http://a:1"},
                {"http://a:1///", "http://a:1"},
                {"http://a:1/v1", "http://a:1"},
                {"http://a:1/v1//", "http://a:1"},
                {"http://a:1/x/v1/", "http://a:1/x"},
                {"http://a:1/v1/x", "http://a:1/v1/x"},
                {"http://a:1/v12", "http://a:1/v12"},
                {"/x//", "/x"},
                {"/v1", "/v1"},             // nothing is before it
                {"http://v1", "http://v1"}, // a host of that name
                {"http://v1/v1", "http://v1"},
                {"a/v1", "a"},
                {"//", ""},
                {"", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = cot_http_api_root(rows[i].url);
        assert_string_equal(root, rows[i].root);
        free(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_api_roots), cmocka_unit_test(test_events),
                                       cmocka_unit_test(test_metrics)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
