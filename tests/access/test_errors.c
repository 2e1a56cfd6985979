/* What a client is told of an error: the object, the message cut at a character's border, bodies that are no JSON. */
#include "harness/cmocka.h"

#include "access/access.h"
#include "access/api_json.h"

#include <stdlib.h>
#include <string.h>

/* The member of an error's object; NULL: it is null. */
static char *member(const cot_api_error *error, const char *name)
{
    json_t *json = cot_api_error_json(error);
    const char *text = json_string_value(json_object_get(json_object_get(json, "error"), name));
    assert_int_equal(json_object_size(json_object_get(json, "error")), 4);
    char *own = text ? strdup(text) : NULL;
    json_decref(json);
    return own;
}

static void assert_member(const cot_api_error *error, const char *name, const char *wanted)
{
    char *text = member(error, name);
    if (wanted)
        assert_string_equal(text, wanted);
    else
        assert_null(text);
    free(text);
}

static void test_objects(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *type;
    } rows[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                {404, "not_found_error"},       {429, "rate_limit_error"},     {499, "invalid_request_error"},
                {500, "server_error"},          {503, "server_error"}};
    cot_api_error error;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_false(cot_api_fail(&error, rows[i].status, NULL, NULL, "no %s", "room"));
        assert_member(&error, "type", rows[i].type);
        assert_member(&error, "message", "no room");
        assert_member(&error, "param", NULL);
        assert_member(&error, "code", NULL);
    }
    cot_api_fail(&error, 400, "code", "a\nb\x7f", "x\r\ny\t\xc3\xa9");
    assert_member(&error, "code", "code");
    assert_member(&error, "param", "a?b?");
    assert_member(&error, "message", "x??y?\xc3\xa9");
    cot_api_fail(&error, 400, NULL, NULL, "\xff%s", "x");
    assert_member(&error, "message", "the message is not UTF-8");
}

/* Of characters of 1 to 4 bytes none is cut, wherever the room ends. */
static void test_cut(void **state)
{
    (void)state;
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t c = 0; c < 4; c++)
        for (size_t before = 0; before < 8; before++) {
            cot_api_error error;
            char text[1024] = "";
            const size_t n = strlen(characters[c]);
            memset(text, 'x', before);
            for (size_t at = before; at + n < 700; at += n) memcpy(text + at, characters[c], n);
            cot_api_fail(&error, 400, NULL, text, "%s", text);
            const size_t message = sizeof error.message - 1, param = sizeof error.param - 1;
            assert_int_equal(strlen(error.message), message - (message - before) % n);
            assert_int_equal(strlen(error.param), param - (param - before) % n);
            assert_memory_equal(error.message, text, strlen(error.message));
        }
}

static void test_of_status(void **state)
{
    (void)state;
    cot_api_error error;
    cot_api_fail_of(&error, 400, "p", &(cot_error){COT_MALFORMED, "bad"});
    assert_int_equal(error.http_status, 400);
    assert_string_equal(error.message, "bad");
    assert_string_equal(error.param, "p");
    cot_api_fail_of(&error, 400, NULL, &(cot_error){COT_OUT_OF_MEMORY, "out"});
    assert_int_equal(error.http_status, 503);
}

static void test_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int status;
        const char *says;
    } rows[] = {{"", 400, "the body is empty"},
                {"[]", 400, "the body is no JSON object"},
                {"1", 400, "the body is no JSON object"},
                {"{", 400, "the body is no JSON: line 1"},
                {"{\"a\":1,\"a\":2}", 400, "duplicate"},
                {"{\"a\":123456789012345678901}", 400, "the body cannot be taken: line 1, column "},
                {"{\"\\u0000\":1}", 400, "a name with the character U+0000"},
                {"{\"a\":\"\xff\"}", 400, "a byte that is not UTF-8"},
                {"{\"a\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14]}", 413, "of memory"}};
    cot_api_error error;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_null(cot_api_read_json(rows[i].body, strlen(rows[i].body), 1024, &error));
        assert_int_equal(error.http_status, rows[i].status);
        if (!strstr(error.message, rows[i].says)) fail_msg("%s: %s", rows[i].body, error.message);
    }
    for (size_t depth = COT_API_MAX_DEPTH - 1; depth <= COT_API_MAX_DEPTH; depth++) {
        char body[2 * COT_API_MAX_DEPTH + 16] = "{\"a\":";
        memset(body + 5, '[', depth);
        memset(body + 5 + depth, ']', depth);
        strcat(body, "}");
        json_t *json = cot_api_read_json(body, strlen(body), 1 << 20, &error);
        assert_int_equal(json != NULL, depth < COT_API_MAX_DEPTH);
        json_decref(json);
    }
}

static void test_types(void **state)
{
    (void)state;
    static const char *const good[] = {"application/json", "Application/JSON",
                                       "application/json; charset=utf-8", "application/json "};
    static const char *const bad[] = {"application/jsonl", "application/jso", "text/plain",
                                      "application/json,", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(cot_access_is_json(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(cot_access_is_json(bad[i]));
    assert_false(cot_access_is_json(NULL));
}

/* The body of an answer that the HTTP server makes fits, or there is none. */
static void test_own_errors(void **state)
{
    (void)state;
    char out[1024];
    const size_t bytes = cot_access_error_body(NULL, 408, "late", out, sizeof out);
    json_t *json = json_loadb(out, bytes, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "error"), "message")),
                        "late");
    json_decref(json);
    assert_int_equal(cot_access_error_body(NULL, 408, "late", out, bytes), bytes);
    assert_int_equal(cot_access_error_body(NULL, 408, "late", out, bytes - 1), 0);
}

static void test_lists(void **state)
{
    (void)state;
    const char *const texts[] = {"a", "b", NULL}, *const none[] = {NULL}, *const *list = texts;
    assert_true(cot_access_list_copy(&list));
    assert_ptr_not_equal(list, texts);
    assert_ptr_not_equal(list[0], texts[0]);
    assert_string_equal(list[0], "a");
    assert_string_equal(list[1], "b");
    assert_null(list[2]);
    cot_access_list_free(list);
    list = none;
    assert_true(cot_access_list_copy(&list));
    assert_null(list[0]);
    cot_access_list_free(list);
    list = NULL;
    assert_true(cot_access_list_copy(&list));
    assert_null(list);
    cot_access_list_free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_objects),   cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_of_status), cmocka_unit_test(test_bodies),
                                       cmocka_unit_test(test_types),     cmocka_unit_test(test_own_errors),
                                       cmocka_unit_test(test_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
