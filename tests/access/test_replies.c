/* What goes with an answer: the fields of a head to the last, a page's, and those that a browser asks for first. The exchange
 * is the test's: what a client sent, and the reply that it got. */
#include "harness/cmocka.h"

#include "access/access.h"

#include <stdio.h>
#include <string.h>

typedef struct talk {
    const char *method, *origin, *asked, *request_id; // what was sent
    int status, replies;
    char type[64], fields[1024], body[64]; // "Name: value\n" each
} talk;

const char *__wrap_cot_http_method(const cot_http_exchange *exchange);
const char *__wrap_cot_http_header(const cot_http_exchange *exchange, const char *name);
void __wrap_cot_http_reply(cot_http_exchange *exchange, int status, const char *type,
                           const cot_http_field *fields, size_t count, const void *body, size_t bytes);

const char *__wrap_cot_http_method(const cot_http_exchange *exchange)
{
    return ((const talk *)exchange)->method;
}

const char *__wrap_cot_http_header(const cot_http_exchange *exchange, const char *name)
{
    const talk *t = (const talk *)exchange;
    if (strcmp(name, "Origin") == 0) return t->origin;
    if (strcmp(name, "Access-Control-Request-Headers") == 0) return t->asked;
    if (strcmp(name, "X-Request-Id") == 0) return t->request_id;
    fail_msg("asks for '%s'", name);
    return NULL;
}

void __wrap_cot_http_reply(cot_http_exchange *exchange, int status, const char *type,
                           const cot_http_field *fields, size_t count, const void *body, size_t bytes)
{
    talk *t = (talk *)exchange;
    t->replies++;
    t->status = status;
    snprintf(t->type, sizeof t->type, "%s", type ? type : "none");
    snprintf(t->body, sizeof t->body, "%.*s", (int)bytes, body ? (const char *)body : "");
    size_t used = 0;
    t->fields[0] = 0;
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(t->fields + used, sizeof t->fields - used, "%s: %s\n", fields[i].name,
                                 fields[i].value);
    assert_true(used < sizeof t->fields);
}

static const char *const some[] = {"http://a.test", NULL};
static const cot_access_options options = {.allowed_origins = some};

static void assert_reply(const talk *t, int status, const char *type, const char *fields, const char *body)
{
    assert_int_equal(t->replies, 1);
    assert_int_equal(t->status, status);
    assert_string_equal(t->type, type);
    assert_string_equal(t->fields, fields);
    assert_string_equal(t->body, body);
}

/* Each field is there where its reason is, and nowhere else. */
static void test_heads(void **state)
{
    (void)state;
    char longest[129], too_long[130], field[160];
    memset(longest, 'i', sizeof longest - 1);
    memset(too_long, 'i', sizeof too_long - 1);
    longest[128] = too_long[129] = 0;
    snprintf(field, sizeof field, "X-Request-Id: %s\n", longest);
    const struct {
        cot_access_head head;
        const char *origin, *request_id, *fields;
    } rows[] = {
        {{.status = 200}, NULL, NULL, ""},
        {{.status = 200}, NULL, "theirs", "X-Request-Id: theirs\n"},
        {{.status = 200, .request_id = "own"}, NULL, "theirs", "X-Request-Id: own\n"},
        {{.status = 200}, NULL, longest, field},
        {{.status = 200}, NULL, too_long, ""},
        {{.status = 200},
         "http://A.test",
         NULL,
         "Access-Control-Allow-Origin: http://A.test\nVary: Origin\n"},
        {{.status = 200}, "http://a.tes", NULL, ""},
        {{.status = 400}, NULL, NULL, ""},
        {{.status = 401}, NULL, NULL, "WWW-Authenticate: Bearer\n"},
        {{.status = 402}, NULL, NULL, ""},
        {{.status = 503, .retry_after = "7"}, NULL, NULL, "Retry-After: 7\n"},
        {{.status = 500, .is_final = true}, NULL, NULL, "X-Should-Retry: false\n"},
        {{.status = 401, .request_id = "own", .retry_after = "1", .is_final = true},
         "http://a.test",
         NULL,
         "X-Request-Id: own\nAccess-Control-Allow-Origin: http://a.test\nVary: Origin\nRetry-After: 1\n"
         "WWW-Authenticate: Bearer\nX-Should-Retry: false\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        talk t = {.method = "POST", .origin = rows[i].origin, .request_id = rows[i].request_id};
        cot_access_head head = rows[i].head;
        head.type = "text/plain";
        cot_access_reply(&options, (cot_http_exchange *)&t, &head, "body and more", 4);
        assert_reply(&t, head.status, "text/plain", rows[i].fields, "body");
    }
}

static void test_page(void **state)
{
    (void)state;
    talk t = {.method = "GET"};
    cot_access_reply_page((cot_http_exchange *)&t, "<p>", 3);
    assert_reply(
        &t, 200, "text/html; charset=utf-8",
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\n"
        "X-Content-Type-Options: nosniff\nReferrer-Policy: no-referrer\nCache-Control: no-cache\n",
        "<p>");
}

/* A browser that asks before it sends is answered where its page's origin is allowed, and left to others where not. */
static void test_preflight(void **state)
{
    (void)state;
    const struct {
        const char *method, *origin, *asked, *allowed; // NULL: no answer
    } rows[] = {{"OPTIONS", "http://a.test", "x-own", "x-own"},
                {"OPTIONS", "http://a.test", NULL, "content-type, authorization"},
                {"OPTIONS", "http://b.test", NULL, NULL},
                {"OPTIONS", NULL, NULL, NULL},
                {"GET", "http://a.test", NULL, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        talk t = {.method = rows[i].method, .origin = rows[i].origin, .asked = rows[i].asked};
        char fields[300];
        const bool answered = cot_access_answer_preflight(&options, (cot_http_exchange *)&t);
        assert_int_equal(answered, rows[i].allowed != NULL);
        assert_int_equal(t.replies, answered);
        if (!answered) continue;
        snprintf(fields, sizeof fields,
                 "Access-Control-Allow-Methods: GET, POST, OPTIONS\nAccess-Control-Allow-Headers: %s\n"
                 "Access-Control-Max-Age: 600\nAccess-Control-Allow-Origin: http://a.test\nVary: Origin\n",
                 rows[i].allowed);
        assert_reply(&t, 204, "none", fields, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_page),
                                       cmocka_unit_test(test_preflight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
