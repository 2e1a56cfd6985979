/* Who may call: keys, names of this host, origins. The exchange is the test's: a head and nothing else. */
#include "harness/cmocka.h"

#include "base/error.h"
#include "access/access.h"
#include "worker/endpoint.h"

#include <stdio.h>
#include <string.h>

/* What the wrapped functions below say of the exchange that they are given. */
typedef struct head {
    const char *method, *path, *host, *authorization, *origin, *api_key;
} head;

const char *__wrap_cot_http_method(const cot_http_exchange *exchange);
const char *__wrap_cot_http_path(const cot_http_exchange *exchange);
const char *__wrap_cot_http_host(const cot_http_exchange *exchange);
const char *__wrap_cot_http_header(const cot_http_exchange *exchange, const char *name);

const char *__wrap_cot_http_method(const cot_http_exchange *exchange)
{
    return ((const head *)exchange)->method;
}

const char *__wrap_cot_http_path(const cot_http_exchange *exchange)
{
    return ((const head *)exchange)->path;
}

const char *__wrap_cot_http_host(const cot_http_exchange *exchange)
{
    return ((const head *)exchange)->host;
}

const char *__wrap_cot_http_header(const cot_http_exchange *exchange, const char *name)
{
    const head *h = (const head *)exchange;
    if (strcmp(name, "Authorization") == 0) return h->authorization;
    if (strcmp(name, "Origin") == 0) return h->origin;
    if (strcmp(name, "X-Api-Key") == 0) return h->api_key;
    fail_msg("asks for '%s'", name);
    return NULL;
}

/* The status that the exchange is refused with; 0: it is let in. */
static int checked(const cot_access_options *o, const head *h)
{
    cot_api_error error = {0};
    const bool good = cot_access_check(o, (const cot_http_exchange *)h, &error);
    assert_int_equal(good, error.http_status == 0);
    return error.http_status;
}

/* A key and nothing that resembles it: no part, no repetition, no key that another continues. */
static void test_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"abc", "x", "longer-key", NULL};
    static const struct {
        const char *sent;
        bool good;
    } rows[] = {{"Bearer abc", true},
                {"bearer abc", true},
                {"BEARER    abc", true},
                {"Bearer x", true},
                {"Bearer longer-key", true},
                {"Bearer abcabc", false},
                {"Bearer xx", false},
                {"Bearer xxx", false},
                {"Bearer abca", false},
                {"Bearer ab", false},
                {"Bearer a", false},
                {"Bearer ", false},
                {"Bearer", false},
                {"", false},
                {"abc", false},
                {"Basic abc", false},
                {"Bearer ABC", false},
                {"Bearer abc ", false},
                {"Bearer abd", false},
                {"Bearer bbc", false},
                {"Bearer longer-kez", false},
                {"Bearer abcx", false},
                {"Bearer longer-keylonger-key", false},
                {"Bearer abc,x", false},
                {"Bearerabc", false}};
    const cot_access_options o = {.host = "0.0.0.0", .api_keys = keys};
    static const struct {
        const char *sent;
        bool good;
    } bare[] = {{"abc", true}, {"x", true}, {"Bearer abc", false}, {"ab", false}, {"", false}};
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++) {
        head h = {.method = "GET", .path = "/v1/models", .host = "anything", .api_key = bare[i].sent};
        if (checked(&o, &h) != (bare[i].good ? 0 : 401)) fail_msg("X-Api-Key '%s'", bare[i].sent);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        head h = {.method = "GET", .path = "/v1/models", .host = "anything", .authorization = rows[i].sent};
        if (checked(&o, &h) != (rows[i].good ? 0 : 401)) fail_msg("'%s'", rows[i].sent);
        h.path = "/health"; // for all
        assert_int_equal(checked(&o, &h), 0);
    }
    static const struct {
        const char *method, *path, *origin;
        int status;
    } without[] = {{"GET", "/", NULL, 0},
                   {"GET", "/health", NULL, 0},
                   {"GET", "/healthy", NULL, 401},
                   {"GET", "/metrics", NULL, 401},
                   {"POST", "/v1/completions", NULL, 401},
                   {"OPTIONS", "/v1/completions", NULL, 401},
                   {"OPTIONS", "/v1/completions", "http://no", 401},
                   {"OPTIONS", "/v1/completions", "http://ok", 0}, // a browser asks without the key
                   {"POST", "/v1/completions", "http://ok", 401}};
    static const char *const origins[] = {"http://ok", NULL};
    const cot_access_options with_origins = {.host = "0.0.0.0", .api_keys = keys, .allowed_origins = origins};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        const head h = {.method = without[i].method,
                        .path = without[i].path,
                        .host = "anything",
                        .origin = without[i].origin};
        if (checked(&with_origins, &h) != without[i].status) fail_msg("%s %s", h.method, h.path);
    }
}

/* Without keys, on this machine alone: a page's own name for it is not served. */
static void test_hosts(void **state)
{
    (void)state;
    static const char *const names[] = {"box", "Other.Example", NULL}, *const any[] = {"*", NULL};
    static const struct {
        const char *host;
        bool good, with_names;
    } rows[] = {{"localhost", true, true},
                {"LOCALHOST:80", true, true},
                {"127.0.0.1:8000", true, true},
                {"[::1]", true, true},
                {"[::1]:5", true, true},
                {"", true, true},
                {"127.0.0.2", true, true}, // what it listens on
                {"127.0.0.3", false, false},
                {"localhost.evil", false, false},
                {"evil", false, false},
                {"localhos", false, false},
                {"[::1", false, false},
                {"[::2]:5", false, false},
                {"box", false, true},
                {"box:9", false, true},
                {"other.example", false, true},
                {"boxes", false, false},
                {"bo", false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const head h = {.method = "GET", .path = "/v1/models", .host = rows[i].host};
        cot_access_options o = {.host = "127.0.0.2"};
        if (checked(&o, &h) != (rows[i].good ? 0 : 403)) fail_msg("'%s'", h.host);
        o.allowed_hosts = names;
        if (checked(&o, &h) != (rows[i].with_names ? 0 : 403)) fail_msg("'%s' with names", h.host);
        o.allowed_hosts = any;
        assert_int_equal(checked(&o, &h), 0);
        o = (cot_access_options){.host = "0.0.0.0",
                                 .no_auth = true}; // who is reached by others has no such names
        assert_int_equal(checked(&o, &h), 0);
    }
}

static void test_origins(void **state)
{
    (void)state;
    static const char *const two[] = {"http://a.example", "https://b.example:8", NULL}, *const any[] = {"*",
                                                                                                        NULL};
    static const struct {
        const char *origin;
        bool good;
    } rows[] = {{"http://a.example", true},
                {"HTTP://A.example", true},
                {"https://b.example:8", true},
                {"http://b.example:8", false},
                {"http://a.example.evil", false},
                {"http://a.exampl", false},
                {"*", false},
                {"", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const head h = {.method = "GET", .path = "/v1/models", .host = "localhost", .origin = rows[i].origin};
        const cot_http_exchange *const exchange = (const cot_http_exchange *)&h;
        cot_access_options o = {.host = "localhost", .allowed_origins = two};
        const char *const said = cot_access_origin(&o, exchange);
        if ((said == h.origin) != rows[i].good || (said && !rows[i].good)) fail_msg("'%s'", h.origin);
        o.allowed_origins = any;
        assert_ptr_equal(cot_access_origin(&o, exchange), h.origin);
        o.allowed_origins = NULL;
        assert_null(cot_access_origin(&o, exchange));
    }
    const head none = {.method = "GET", .path = "/", .host = "localhost"};
    assert_null(
        cot_access_origin(&(cot_access_options){.allowed_origins = any}, (const cot_http_exchange *)&none));
}

/* Who can be reached from other machines has keys, or was told to need none. */
static void test_options(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        bool own;
    } rows[] = {{"localhost", true},
                {"LocalHost", true},
                {"127.0.0.1", true},
                {"127.255.0.9", true},
                {"::1", true},
                {"126.0.0.1", false},
                {"128.0.0.1", false},
                {"0.0.0.0", false},
                {"::", false},
                {"::2", false},
                {"10.0.0.127", false},
                {"localhost.example", false},
                {"127.0.0.1.example", false},
                {"", false}};
    static const char *const key[] = {"k", NULL}, *const none[] = {NULL}, *const empty[] = {"k", "", NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_error error;
        cot_access_options o = {.host = rows[i].host, .max_connections = 1};
        const cot_status open = rows[i].own ? COT_OK : COT_INVALID_ARGUMENT;
        if (cot_endpoint_is_loopback(o.host) != rows[i].own) fail_msg("'%s'", o.host);
        assert_int_equal(cot_access_check_options(&o, &error), open);
        o.api_keys = none;
        assert_int_equal(cot_access_check_options(&o, &error), open);
        o.no_auth = true;
        assert_int_equal(cot_access_check_options(&o, &error), COT_OK);
        o = (cot_access_options){.host = rows[i].host, .api_keys = key, .max_connections = 1};
        assert_int_equal(cot_access_check_options(&o, &error), COT_OK);
        o.api_keys = empty; // whoever sends nothing would have it
        assert_int_equal(cot_access_check_options(&o, &error), COT_INVALID_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys), cmocka_unit_test(test_hosts),
                                       cmocka_unit_test(test_origins), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
