/* A reload: the certificate is read again, the access log is opened anew, and what fails is told and stays. */
#include "harness/scratch.h"

#include "base/error.h"
#include "access/access.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static cot_status certificate; // how its files are

cot_status __wrap_cot_tls_reload(struct cot_tls *tls, cot_error *error);
cot_status __wrap_cot_tls_reload(struct cot_tls *tls, cot_error *error)
{
    assert_non_null(tls);
    return certificate == COT_OK ? COT_OK : cot_fail(error, certificate, "no such certificate");
}

static void note(void *context, const char *line)
{
    char *told = context;
    strcat(told, line);
    strcat(told, "\n");
}

/* What a reload tells, at most of this level. */
static void assert_told(cot_access *access, cot_log_level most, const char *expected)
{
    char told[4096] = "";
    access->options.log = note;
    access->options.log_context = told;
    access->options.log_level = most;
    cot_access_reload(access);
    assert_string_equal(told, expected);
}

static void test_certificate(void **state)
{
    (void)state;
    cot_access plain = {0}, secret = {.tls = (struct cot_tls *)&plain};
    assert_told(&plain, COT_LOG_INFO, "");
    certificate = COT_OK;
    assert_told(&secret, COT_LOG_INFO, "the certificate was read again\n");
    assert_told(&secret, COT_LOG_WARNING, "");
    certificate = COT_IO;
    assert_told(&secret, COT_LOG_ERROR, "the certificate stays as it was: no such certificate\n");
    assert_told(&plain, COT_LOG_INFO, "");
}

static void test_log(void **state)
{
    scratch_pad *pad = *state;
    cot_access access = {0};
    cot_error error;
    char expected[1200];
    assert_int_equal(mkdir(in_scratch(pad, "logs"), 0700), 0);
    assert_int_equal(cot_access_log_open(&access.access_log, in_scratch(pad, "logs/log"), &error), COT_OK);
    assert_told(&access, COT_LOG_INFO, "");
    assert_int_equal(rename(in_scratch(pad, "logs"), in_scratch(pad, "away")), 0);
    assert_int_equal(cot_access_log_reopen(access.access_log, &error), COT_IO);
    snprintf(expected, sizeof expected, "the access log stays as it was: %s\n", error.message);
    assert_told(&access, COT_LOG_ERROR, expected);
    cot_access_log_close(access.access_log);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {TEST(test_certificate), TEST(test_log)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
