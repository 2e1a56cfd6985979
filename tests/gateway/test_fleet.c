/* Lists of workers: what they say, and what is wrong with them, by name. */
#include "harness/cmocka.h"

#include "gateway/fleet.h"

#include <stdio.h>
#include <string.h>

static void test_good(void **state)
{
    (void)state;
    static const char text[] =
        "[{\"url\": \"http://a:1/v1/\"}, {\"url\": \"http://b\", \"name\": \"second\", \"engine\": \"vllm\", "
        "\"ranks\": 4, "
        "\"kv_events\": \"tcp://b:5557\", \"kv_replay\": \"tcp://b:6557\", \"step_reports\": \"tcp://*:9\", "
        "\"popularity\": \"tcp://*:10\"}]";
    cot_fleet f;
    cot_error error;
    if (cot_fleet_read(&f, text, sizeof text - 1, "list", &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(f.count, 2);
    assert_string_equal(f.entry[0].url, "http://a:1");
    assert_string_equal(f.entry[0].name, "a:1");
    assert_false(f.entry[0].foreign);
    assert_int_equal(f.entry[0].ranks, 0);
    assert_null(f.entry[0].kv_events);
    assert_string_equal(f.entry[1].name, "second");
    assert_true(f.entry[1].foreign);
    assert_int_equal(f.entry[1].ranks, 4);
    assert_string_equal(f.entry[1].kv_events, "tcp://b:5557");
    assert_string_equal(f.entry[1].kv_replay, "tcp://b:6557");
    assert_string_equal(f.entry[1].step_reports, "tcp://*:9");
    assert_string_equal(f.entry[1].popularity, "tcp://*:10");
    assert_false(cot_fleet_entry_equals(&f.entry[0], &f.entry[1]));
    assert_true(cot_fleet_entry_equals(&f.entry[1], &f.entry[1]));
    cot_fleet_free(&f);
    static const char host[] = "[{\"url\": \"http://v1\"}]"; // a host's name, no path
    assert_int_equal(cot_fleet_read(&f, host, sizeof host - 1, "list", &error), COT_OK);
    assert_string_equal(f.entry[0].url, "http://v1");
    cot_fleet_free(&f);
    static const char prefix[] = "[{\"url\": \"http://a:1/some/path/v1\"}]";
    assert_int_equal(cot_fleet_read(&f, prefix, sizeof prefix - 1, "list", &error), COT_OK);
    assert_string_equal(f.entry[0].url, "http://a:1/some/path");
    assert_string_equal(f.entry[0].name, "a:1/some/path");
    cot_fleet_free(&f);
    assert_int_equal(cot_fleet_read(&f, "[]", 2, "list", &error), COT_OK);
    assert_int_equal(f.count, 0);
    cot_fleet_free(&f);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        cot_status status;
        const char *says;
    } rows[] = {
        {"", COT_MALFORMED, "'list' is no JSON"},
        {"{}", COT_MALFORMED, "'list' is no list of workers"},
        {"[1]", COT_MALFORMED, "worker 0 is no JSON object"},
        {"[{}]", COT_MALFORMED, "worker 0 has no 'url'"},
        {"[{\"url\": 1}]", COT_MALFORMED, "'url' is no text"},
        {"[{\"url\": \"ftp://x\"}]", COT_MALFORMED, "'ftp://x' is no URL"},
        {"[{\"url\": \"http://\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"http:///\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"http://x/a?b\"}]", COT_MALFORMED, "'http://x/a?b' is no URL"},
        {"[{\"url\": \"http://x#a\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"http://\u00e9\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"http://x y\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"https://\"}]", COT_MALFORMED, "is no URL"},
        {"[{\"url\": \"http://x\", \"url\": \"http://y\"}]", COT_MALFORMED, "duplicate"},
        {"[{\"url\": \"http://x\", \"weight\": 2}]", COT_UNSUPPORTED, "worker 0: there is no 'weight'"},
        {"[{\"url\": \"http://x\", \"engine\": \"trt\"}]", COT_MALFORMED, "'engine'"},
        {"[{\"url\": \"http://x\", \"ranks\": 0}]", COT_MALFORMED, "'ranks' is not in [1, 64]"},
        {"[{\"url\": \"http://x\", \"ranks\": 65}]", COT_MALFORMED, "'ranks'"},
        {"[{\"url\": \"http://x\", \"ranks\": \"2\"}]", COT_MALFORMED, "'ranks'"},
        {"[{\"url\": \"http://x\", \"name\": \"a/b\"}]", COT_MALFORMED, "'name'"},
        {"[{\"url\": \"http://x\", \"name\": \"\"}]", COT_MALFORMED, "'name'"},
        {"[{\"url\": \"http://x\", \"kv_events\": \"tcp://x\"}]", COT_MALFORMED,
         "'kv_events' is not tcp://HOST:PORT"},
        {"[{\"url\": \"http://x\", \"kv_events\": \"tcp://x:65536\"}]", COT_MALFORMED, "'kv_events'"},
        {"[{\"url\": \"http://x\", \"kv_replay\": \"tcp://x:1\"}]", COT_MALFORMED,
         "'kv_replay' without 'kv_events'"},
        {"[{\"url\": \"http://x\", \"step_reports\": \"x:1\"}]", COT_MALFORMED, "'step_reports'"},
        {"[{\"url\": \"http://x\", \"popularity\": \"x:1\"}]", COT_MALFORMED, "'popularity'"},
        {"[{\"url\": \"http://x\", \"key_file\": \"/nowhere/at/all\"}]", COT_NOT_FOUND, "/nowhere/at/all"},
        {"[{\"url\": \"http://x\"}, {\"url\": \"http://x/v1\"}]", COT_MALFORMED,
         "worker 1 has the name 'x', as worker 0"},
        {"[{\"url\": \"http://x\"}, {\"url\": \"http://y\", \"name\": \"x\"}]", COT_MALFORMED, "'x'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_fleet f;
        cot_error error;
        assert_int_equal(cot_fleet_read(&f, rows[i].text, strlen(rows[i].text), "list", &error),
                         rows[i].status);
        if (!strstr(error.message, rows[i].says)) fail_msg("%s: %s", rows[i].text, error.message);
        assert_int_equal(f.count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
