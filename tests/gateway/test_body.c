/* Members are set in a body and taken out of it, and every other byte stays as it came. What JSON says of the result is jansson's. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "gateway/body.h"

#include <jansson.h>
#include <string.h>

static const cot_body_member SET = {"seed", "5"}, OUT = {"ids", NULL};

static void assert_becomes(const char *from, const char *to)
{
    const cot_body_member members[] = {SET, OUT};
    cot_buffer out = {0};
    assert_true(cot_body_set(&out, from, strlen(from), members, 2));
    assert_string_equal(out.data, to);
    cot_buffer_free(&out);
}

static void test_rows(void **state)
{
    (void)state;
    assert_becomes("{}", "{\"seed\":5}");
    assert_becomes(" { } \n", " {\"seed\":5} \n");
    assert_becomes("{\"a\": 1.50}", "{\"a\": 1.50,\"seed\":5}");
    assert_becomes("{\"seed\":7}", "{\"seed\":5}");
    assert_becomes("{\"seed\":7,\"a\":[1, {\"seed\":2}]}", "{\"a\":[1, {\"seed\":2}],\"seed\":5}");
    assert_becomes("{\"a\":1, \"ids\":[[1],[2]], \"b\":\"}\"}", "{\"a\":1, \"b\":\"}\",\"seed\":5}");
    assert_becomes("{\"a\":\"\\\"ids\\\":1,\",\"ids\":{\"x\":\"]}\"}}",
                   "{\"a\":\"\\\"ids\\\":1,\",\"seed\":5}");
    assert_becomes("{ \"\\u0069ds\" : null , \"z\" : 3 }", "{ \"z\" : 3 ,\"seed\":5}"); // a name in disguise
    assert_becomes("{\"a\":\"\\\\\",\"ids\":1}", "{\"a\":\"\\\\\",\"seed\":5}");
}

/* A random value of JSON, with strings that look like structure. */
static json_t *draw(uint64_t seed, uint64_t *at, int depth)
{
    static const char *const texts[] = {"",  "ids", "seed", "\"",  "\\",       "a,b", "{",
                                        "}", "[",   "]",    "\":", "\xc3\xa9", "\n"};
    const uint64_t bits = cot_random_bits(seed, 1, (*at)++);
    switch (depth ? bits % 6 : bits % 4) {
    case 0:
        return json_string(texts[bits / 8 % (sizeof texts / sizeof *texts)]);
    case 1:
        return json_integer((json_int_t)(bits >> 40));
    case 2:
        return json_real((double)(bits >> 30) / 7);
    case 3:
        return json_null();
    default: {
        json_t *json = bits & 64 ? json_array() : json_object();
        for (uint64_t i = 0; i < bits / 128 % 4; i++) {
            json_t *value = draw(seed, at, depth - 1);
            if (json_is_array(json))
                json_array_append_new(json, value);
            else
                json_object_set_new(json, texts[cot_random_bits(seed, 2, (*at)++) % 13], value);
        }
        return json;
    }
    }
}

static void test_random(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    const cot_body_member members[] = {SET, OUT};
    static const char *const names[] = {"ids", "seed", "a", "model", "\"", "{"};
    uint64_t at = 0;
    for (int round = 0; round < 2000; round++) {
        json_t *json = json_object();
        for (uint64_t i = cot_random_bits(seed, 3, at++) % 6; i--;)
            json_object_set_new(json, names[cot_random_bits(seed, 4, at++) % 6], draw(seed, &at, 3));
        const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2), JSON_ENSURE_ASCII};
        char *text = json_dumps(json, flags[round % 4]);
        cot_buffer out = {0};
        assert_non_null(text);
        assert_true(cot_body_set(&out, text, strlen(text), members, 2));
        json_t *read = json_loadb(out.data, out.bytes, JSON_REJECT_DUPLICATES, NULL);
        if (!read) fail_msg("%s becomes %s", text, out.data);
        json_object_del(json, "ids");
        json_object_set_new(json, "seed", json_integer(5));
        if (!json_equal(read, json)) fail_msg("%s becomes %s", text, out.data);
        json_decref(read);
        json_decref(json);
        cot_buffer_free(&out);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
