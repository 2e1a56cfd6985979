/* Lines of the access log to the last field, which of them are written, and what comes of a file that is renamed or full. */
#include "harness/http_peer.h"
#include "harness/scratch.h"

#include "access/access_log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *__wrap_cot_http_peer(const cot_http_exchange *exchange);
const char *__wrap_cot_http_peer(const cot_http_exchange *exchange)
{
    return (const char *)exchange;
}

static bool written(cot_access_log *log, cot_log_level most, const cot_http_outcome *outcome)
{
    return cot_access_log_write(log, most, (const cot_http_exchange *)"127.0.0.1:9", outcome);
}

/* The last line of a file, NULL of none; how many there are. */
static json_t *last_line(const char *path, size_t *count)
{
    char line[1024];
    json_t *json = NULL;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (*count = 0; fgets(line, sizeof line, file); ++*count) {
        json_decref(json);
        json = json_loads(line, 0, NULL);
        assert_non_null(json);
        assert_int_equal(line[strlen(line) - 1], '\n');
    }
    fclose(file);
    return json;
}

/* NULL: null. */
static void assert_text(const json_t *line, const char *name, const char *expected)
{
    const json_t *value = json_object_get(line, name);
    assert_non_null(value);
    assert_int_equal(json_is_null(value), !expected);
    if (expected) assert_string_equal(json_string_value(value), expected);
}

static void test_lines(void **state)
{
    scratch_pad *pad = *state;
    cot_access_log *log;
    cot_error error;
    const char *path = in_scratch(pad, "log");
    assert_int_equal(cot_access_log_open(&log, path, &error), COT_OK);
    static const struct {
        cot_http_outcome outcome;
        const char *level;
        cot_log_level needed;
    } rows[] = {{{"GET", "/a b", "id-1", 200, true, 123, 1500000000}, "info", COT_LOG_INFO},
                {{"POST", "/é", "", 399, true, 0, 1}, "info", COT_LOG_INFO},
                {{"POST", "/x", "", 200, false, 5, 1}, "warning", COT_LOG_WARNING}, // the client has left
                {{"POST", "/x", "", 400, true, 5, 1}, "warning", COT_LOG_WARNING},
                {{"POST", "/x", "", 499, true, 5, 1}, "warning", COT_LOG_WARNING},
                {{"POST", "/x", "", 500, true, 5, 1}, "error", COT_LOG_ERROR},
                {{"POST", "/x", "", 503, false, 5, 1}, "error", COT_LOG_ERROR},
                {{"POST", "/\xff", "", 200, true, 5, 1}, "info", COT_LOG_INFO}, // no UTF-8
                {{NULL, NULL, "", 0, false, 0, 0}, "warning", COT_LOG_WARNING}};
    size_t expected = 0, count;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int most = COT_LOG_ERROR; most <= COT_LOG_INFO; most++) {
            const cot_http_outcome *o = &rows[i].outcome;
            assert_true(written(log, (cot_log_level)most, o));
            expected += rows[i].needed <= (cot_log_level)most;
            json_t *line = last_line(path, &count);
            assert_int_equal(count, expected);
            if (rows[i].needed <= (cot_log_level)most) {
                const bool has_path = o->path && o->path[1] != '\xff';
                const json_t *status = json_object_get(line, "status");
                const double seconds = json_real_value(json_object_get(line, "seconds"));
                struct tm parts;
                assert_int_equal(json_object_size(line), 10);
                assert_text(line, "level", rows[i].level);
                assert_text(line, "client", "127.0.0.1:9");
                assert_text(line, "method", o->method);
                assert_text(line, "path", has_path ? o->path : NULL);
                assert_text(line, "request_id", *o->request_id ? o->request_id : NULL);
                assert_int_equal(json_integer_value(status), o->status);
                assert_int_equal(json_is_null(status), o->status == 0);
                assert_int_equal(json_is_true(json_object_get(line, "whole")), o->whole);
                assert_int_equal(json_integer_value(json_object_get(line, "bytes")), o->body_bytes);
                assert_true(seconds >= 0.99999 * (double)o->ns / 1e9 &&
                            seconds <= 1.00001 * (double)o->ns / 1e9);
                const char *rest =
                    strptime(json_string_value(json_object_get(line, "time")), "%Y-%m-%dT%H:%M:%S", &parts);
                assert_non_null(rest);
                assert_true(*rest == '.' && strspn(rest + 1, "0123456789") == 3 &&
                            strcmp(rest + 4, "Z") == 0);
                const time_t said = timegm(&parts), clock = time(NULL);
                assert_true(said <= clock && clock - said < 600);
            }
            json_decref(line);
        }
    cot_access_log_close(log);
    cot_access_log_close(NULL);
}

/* Who renames the file and asks for a new one has two; where there is none to be had, the old one goes on. */
static void test_files(void **state)
{
    scratch_pad *pad = *state;
    cot_access_log *log;
    cot_error error;
    size_t count;
    const size_t open = test_descriptors();
    const cot_http_outcome outcome = {"GET", "/", "", 200, true, 1, 1234567891};
    put_text(pad, "log", "{}\n"); // it is added to
    assert_int_equal(cot_access_log_open(&log, in_scratch(pad, "log"), &error), COT_OK);
    assert_true(written(log, COT_LOG_INFO, &outcome));
    json_t *line = last_line(in_scratch(pad, "log"), &count);
    assert_true(json_real_value(json_object_get(line, "seconds")) == 1.23457); // six digits
    json_decref(line);
    assert_int_equal(rename(in_scratch(pad, "log"), in_scratch(pad, "old")), 0);
    assert_true(written(log, COT_LOG_INFO, &outcome));
    json_decref(last_line(in_scratch(pad, "old"), &count));
    assert_int_equal(count, 3);
    assert_int_equal(cot_access_log_reopen(log, &error), COT_OK);
    assert_true(written(log, COT_LOG_INFO, &outcome));
    json_decref(last_line(in_scratch(pad, "log"), &count));
    assert_int_equal(count, 1);
    cot_access_log_close(log);
    assert_int_equal(cot_access_log_open(&log, in_scratch(pad, "none/log"), &error), COT_IO);
    assert_null(log);

    assert_int_equal(cot_access_log_open(&log, "/dev/full", &error), COT_OK);
    for (int row = 0; row < 2; row++) { // it is told once
        errno = 0;
        assert_int_equal(written(log, COT_LOG_INFO, &outcome), row > 0);
        assert_int_equal(errno, ENOSPC);
    }
    cot_access_log_close(log);
    assert_int_equal(test_descriptors(), open);

    assert_int_equal(cot_access_log_open(&log, "-", &error), COT_OK);
    cot_access_log_close(log);
    assert_int_equal(test_descriptors(), open); // standard output is not the log's to close
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {TEST(test_lines), TEST(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
