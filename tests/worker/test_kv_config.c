/* What --kv-events-config says, and which ports that takes, each bound from both sides. */
#include "harness/cmocka.h"

#include "worker/kv_config.h"

#include <stdio.h>
#include <string.h>

static void test_members(void **state)
{
    (void)state;
    cot_kv_config c;
    cot_error error;
    assert_int_equal(cot_kv_config_read(&c, NULL, &error), COT_OK);
    assert_false(c.enabled);
    const char *const all =
        "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:1\","
        "\"replay_endpoint\":\"tcp://[::1]:2\",\"topic\":\"t\",\"buffer_steps\":3,\"hwm\":4,"
        "\"max_queue_size\":5}";
    assert_int_equal(cot_kv_config_read(&c, all, &error), COT_OK);
    assert_true(c.enabled);
    assert_string_equal(c.endpoint.address, "*");
    assert_int_equal(c.endpoint.port, 1);
    assert_string_equal(c.replay_endpoint.address, "[::1]");
    assert_int_equal(c.replay_endpoint.port, 2);
    assert_string_equal(c.topic, "t");
    assert_int_equal(c.buffer_steps, 3);
    assert_int_equal(c.hwm, 4);
    assert_int_equal(c.max_queue_size, 5);
    static const struct {
        const char *text;
        int enabled; // -1: it is refused
    } rows[] = {
        {"{}", 0},
        {"{\"enable_kv_cache_events\":true}", 1},
        {"{\"enable_kv_cache_events\":false,\"publisher\":\"zmq\"}", 0},
        {"{\"enable_kv_cache_events\":true,\"publisher\":\"null\"}", 0},
        {"{\"enable_kv_cache_events\":true,\"publisher\":null,\"topic\":null}", 1}, // as if it were not there
        {"{\"publisher\":\"zmq\"}", 0},
        {"{\"publisher\":\"other\"}", -1},
        {"{\"publisher\":1}", -1},
        {"{\"enable_kv_cache_events\":1}", -1},
        {"{\"endpoint\":\"tcp://host:1\"}", -1},
        {"{\"endpoint\":\"tcp://*:1\\u0000\"}", -1},
        {"{\"topic\":1}", -1},
        {"{\"nothing\":1}", -1},
        {"{\"topic\":\"a\",\"topic\":\"b\"}", -1},
        {"[]", -1},
        {"{", -1},
        {"", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cot_status status = cot_kv_config_read(&c, rows[i].text, &error);
        const cot_status expected = rows[i].enabled < 0 ? COT_INVALID_ARGUMENT : COT_OK;
        if (status != expected) fail_msg("%s", rows[i].text);
        if (status == COT_OK && c.enabled != rows[i].enabled) fail_msg("%s: %d", rows[i].text, c.enabled);
    }
    assert_int_equal(cot_kv_config_read(&c, "{}", &error), COT_OK);
    assert_string_equal(c.endpoint.address, "127.0.0.1");
    assert_int_equal(c.endpoint.port, 5557);
    assert_string_equal(c.replay_endpoint.address, "");
    assert_string_equal(c.topic, "");
    assert_int_equal(c.buffer_steps, 10000);
    assert_int_equal(c.hwm, 10000);
    assert_int_equal(c.max_queue_size, 16384);
    static const char *const counts[] = {"buffer_steps", "hwm", "max_queue_size"},
                             *const good[] = {"1", "1000000"},
                             *const bad[] = {"0", "1000001", "1.0", "\"1\""};
    for (size_t i = 0; i < 3; i++) {
        char text[64];
        for (size_t v = 0; v < 2; v++) {
            snprintf(text, sizeof text, "{\"%s\":%s}", counts[i], good[v]);
            assert_int_equal(cot_kv_config_read(&c, text, &error), COT_OK);
        }
        for (size_t v = 0; v < 4; v++) {
            snprintf(text, sizeof text, "{\"%s\":%s}", counts[i], bad[v]);
            assert_int_equal(cot_kv_config_read(&c, text, &error), COT_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, counts[i]));
        }
    }
    for (int bytes = 255; bytes < 257; bytes++) {
        char text[300];
        snprintf(text, sizeof text, "{\"topic\":\"%0*d\"}", bytes, 0);
        assert_int_equal(cot_kv_config_read(&c, text, &error), bytes == 255 ? COT_OK : COT_INVALID_ARGUMENT);
    }
}

static void test_ports(void **state)
{
    (void)state;
    static const struct {
        const char *address, *replay_address;
        int port, replay_port, ranks, http_port;
        bool no_auth;
        const char *refused; // a part of what is said; NULL: nothing
    } rows[] = {
        {"127.0.0.1", "", 65535, 0, 1, 80, false, NULL},
        {"127.0.0.1", "", 65534, 0, 2, 80, false, NULL},
        {"127.0.0.1", "", 65535, 0, 2, 80, false, "'endpoint' leaves no port for rank 1: ranks take 65535"},
        {"127.0.0.1", "", 65534, 0, 3, 80, false, "'endpoint' leaves no port for rank 2"},
        {"127.0.0.1", "127.0.0.1", 10, 65534, 3, 80, false, "'replay_endpoint' leaves no port for rank 2"},
        {"127.0.0.1", "", 10, 0, 3, 9, false, NULL},
        {"127.0.0.1", "", 10, 0, 3, 10, false, "'endpoint' takes the server's own port 10"},
        {"127.0.0.1", "", 10, 0, 3, 12, false, "'endpoint' takes the server's own port 12"},
        {"127.0.0.1", "", 10, 0, 3, 13, false, NULL},
        {"127.0.0.1", "", 10, 0, 3, 0, false, NULL}, // any that is free
        {"127.0.0.1", "127.0.0.1", 10, 13, 3, 80, false, NULL},
        {"127.0.0.1", "127.0.0.1", 13, 10, 3, 80, false, NULL},
        {"127.0.0.1", "127.0.0.1", 10, 12, 3, 80, false, "3 ranks take ports 10 to 12 and 12 to 14"},
        {"127.0.0.1", "127.0.0.1", 12, 10, 3, 80, false, "3 ranks take ports 12 to 14 and 10 to 12"},
        {"127.0.0.1", "127.0.0.1", 10, 10, 1, 80, false, "1 rank take ports 10 to 10"},
        {"*", "", 10, 0, 1, 80, false, "'endpoint' at * can be reached"},
        {"127.0.0.1", "[::]", 10, 20, 1, 80, false, "'replay_endpoint' at [::] can be reached"},
        {"*", "[::]", 10, 20, 1, 80, true, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_error error = {0};
        cot_kv_config c = {
            .enabled = true, .endpoint.port = rows[i].port, .replay_endpoint.port = rows[i].replay_port};
        snprintf(c.endpoint.address, sizeof c.endpoint.address, "%s", rows[i].address);
        snprintf(c.replay_endpoint.address, sizeof c.replay_endpoint.address, "%s", rows[i].replay_address);
        const cot_status status =
            cot_kv_config_check(&c, rows[i].ranks, rows[i].http_port, rows[i].no_auth, &error);
        if (status != (rows[i].refused ? COT_INVALID_ARGUMENT : COT_OK))
            fail_msg("row %zu: %s", i, error.message);
        if (rows[i].refused && !strstr(error.message, rows[i].refused))
            fail_msg("row %zu: %s", i, error.message);
        c.enabled = false; // what is not published takes nothing
        assert_int_equal(cot_kv_config_check(&c, rows[i].ranks, rows[i].http_port, false, &error), COT_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_members), cmocka_unit_test(test_ports)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
