/* JSON that is read where it stands: what is JSON, and what is found in it, is what jansson says. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "gateway/skim.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>

static bool is_json(const char *text, size_t bytes)
{
    cot_skim s = cot_skim_of(text, bytes);
    const cot_skim_span value = cot_skim_value(&s);
    return cot_skim_ends(&s) && value.text;
}

static void test_rows(void **state)
{
    (void)state;
    static const char *const good[] = {"0",
                                       "-0",
                                       "10",
                                       "-1.5e+07",
                                       "1E9",
                                       "\"\"",
                                       "\"\\u00e9\\ud83d\\ude00\\\"\\\\\\/\\b\"",
                                       "\"\xc3\xa9\xf0\x9f\x98\x80\"",
                                       "true",
                                       " [ ] ",
                                       "{}",
                                       "[{\"a\":[]},null,false]",
                                       "{\"a\":{\"b\":[1,2,{\"c\":\"}\"}]},\"d\":\"[\"}\n",
                                       "\"12345678\\\"12345678\\\\\"",
                                       "123456789012345678",
                                       "\"\\u0000\"",
                                       "[[[[[[[[]]]]]]]]",
                                       "{\"\\\\u0000\":\"\\u0000\"}"};
    static const char *const bad[] = {
        "", " ", "01", "-", "1.", ".5", "1e", "1e+", "+1", "tru", "truex", "nul", "\"", "\"\\\"", "\"\\x\"",
        "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"\\ud800\\", "\"\\u12",
        "\"a\nb\"", "\"\x80\"", "\"\xed\xa0\x80\"", "\"\xc3\"", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]",
        "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{,}", "{\"a\" 1}", "{a:1}", "{1:2}",
        "[}", "{]", "[1}", "{\"a\":1]", "[] []", "1,", "\"1234567\x1f\"", "\"12345678",
        // of JSON, what nobody writes who is read here
        "1234567890123456789", "1e100", "{\"\\u0000\":1}", "{\"a\":{\"b\\u0000\":1}}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!is_json(good[i], strlen(good[i]))) fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (is_json(bad[i], strlen(bad[i]))) fail_msg("%s", bad[i]);
    assert_false(is_json(NULL, 0)); // what a member that is missing holds
    for (size_t depth = 63; depth <= 66; depth++) {
        char text[160];
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(is_json(text, 2 * depth), depth <= 65); // the innermost is empty
    }
}

static json_t *draw(uint64_t seed, uint64_t *at, int depth)
{
    static const char *const texts[] = {"",
                                        "a",
                                        "index",
                                        "\"",
                                        "\\",
                                        "a,b",
                                        "{",
                                        "]",
                                        "\xc3\xa9",
                                        "\n",
                                        "\xf0\x9f\x98\x80",
                                        "sixteen letters."};
    const uint64_t bits = cot_random_bits(seed, 1, (*at)++), kind = depth ? bits % 8 : bits % 5;
    if (kind == 0) return json_string(texts[bits / 8 % 12]);
    if (kind == 1) return json_integer((json_int_t)(bits >> 20) - (1 << 30));
    if (kind == 2) return json_real((double)(int64_t)(bits >> 10) / 7e9);
    if (kind == 3) return json_boolean(bits & 64);
    if (kind == 4) return json_null();
    json_t *json = kind == 5 ? json_array() : json_object();
    for (uint64_t i = 0; i < bits / 128 % 4; i++) {
        if (kind == 5)
            json_array_append_new(json, draw(seed, at, depth - 1));
        else
            json_object_set_new(json, texts[cot_random_bits(seed, 2, (*at)++) % 12],
                                draw(seed, at, depth - 1));
    }
    return json;
}

/* Whether a text may be JSON that is refused: long numbers. */
static bool is_beyond(const char *text, size_t bytes)
{
    size_t run = 0;
    for (size_t i = 0; i < bytes; i++) {
        run = isdigit((unsigned char)text[i]) ? run + 1 : 0;
        if (run > 18) return true;
        if (run > 2)
            for (size_t back = run; back <= run + 1 && back <= i; back++)
                if (text[i - back] == 'e' || text[i - back] == 'E') return true;
    }
    return false;
}

static const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2), JSON_ENSURE_ASCII};

/* Texts of which some bytes were changed, taken out or doubled, most of which are JSON no more. */
static void test_what_is_json(void **state)
{
    (void)state;
    static const char bytes[] = "{}[],:\"\\0123456789.eE+-tfnrualse \n\x01\xc3\xa9\x80/b";
    const uint64_t seed = test_seed();
    uint64_t at = 0;
    size_t were_json = 0;
    for (int round = 0; round < 20000; round++) {
        json_t *json = draw(seed, &at, 3);
        char *text = json_dumps(json, JSON_ENCODE_ANY | flags[round % 4]);
        size_t n = strlen(text);
        for (uint64_t changes = cot_random_bits(seed, 3, at++) % 4; changes-- && n;) {
            const uint64_t bits = cot_random_bits(seed, 4, at++);
            const size_t place = bits / 4 % n;
            if (bits % 4 == 0) {
                memmove(text + place, text + place + 1, n - place);
                n--;
            } else
                text[place] = bytes[bits / 4096 % (sizeof bytes - 1)];
        }
        json_t *read = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!is_beyond(text, n) && is_json(text, n) != (read != NULL))
            fail_msg("%s: jansson says %d", text, read != NULL);
        were_json += read != NULL;
        json_decref(read);
        json_decref(json);
        free(text);
    }
    assert_in_range(were_json, 1000, 19000);
}

/* An object's members one by one, into lists and objects of it. */
static void assert_found(cot_skim *s, const json_t *json)
{
    if (json_is_object(json)) {
        cot_skim_span name;
        void *expected = json_object_iter((json_t *)json);
        for (bool in = cot_skim_into(s, '{'); in && cot_skim_member(s, &name);
             expected = json_object_iter_next((json_t *)json, expected)) {
            json_t *read = json_loadb(name.text - 1, name.bytes + 2, JSON_DECODE_ANY, NULL);
            assert_string_equal(json_string_value(read), json_object_iter_key(expected));
            json_decref(read);
            assert_found(s, json_object_iter_value(expected));
        }
        assert_null(expected);
    } else if (json_is_array(json)) {
        size_t i = 0;
        for (bool in = cot_skim_into(s, '['); in && cot_skim_element(s);)
            assert_found(s, json_array_get(json, i++));
        assert_int_equal(i, json_array_size(json));
    } else if (json_is_integer(json))
        assert_int_equal(cot_skim_integer(s), json_integer_value(json));
    else {
        cot_skim number = *s;
        const cot_skim_span value = cot_skim_value(s);
        json_t *read = json_loadb(value.text, value.bytes, JSON_DECODE_ANY, NULL);
        assert_true(json_equal(read, json));
        json_decref(read);
        assert_int_equal(cot_skim_integer(&number), 0);
        assert_true(number.bad);
        assert_false(cot_skim_into(&(cot_skim){value.text, value.text + value.bytes, false, false}, '{'));
    }
    assert_false(s->bad);
}

static void test_what_is_found(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    uint64_t at = 0;
    for (int round = 0; round < 3000; round++) {
        json_t *json = draw(seed, &at, 4);
        char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17) | flags[round % 4]);
        cot_skim s = cot_skim_of(text, strlen(text));
        assert_found(&s, json);
        assert_true(cot_skim_ends(&s));
        json_decref(json);
        free(text);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const cot_skim_name names[] = {COT_SKIM_NAME("a"), COT_SKIM_NAME("bc")};
    static const struct {
        const char *text;
        bool good;
        size_t which[3];
    } rows[] = {{"{\"bc\":1,\"b\":2,\"a\":3}", true, {1, 2, 0}},
                {"{\"b\":1,\"b\":2,\"bcd\":3}", true, {2, 2, 2}},
                {"{\"a\":1,\"bc\":2,\"a\":3}", false, {0, 1, 0}},
                {"{\"\\u0061\":1,\"bc\":2,\"b\":3}", false, {2, 1, 2}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_skim s = cot_skim_of(rows[i].text, strlen(rows[i].text));
        cot_skim_span name;
        uint32_t seen = 0;
        size_t n = 0;
        bool bad = false;
        for (bool in = cot_skim_into(&s, '{'); in && cot_skim_member(&s, &name);) {
            assert_int_equal(cot_skim_which(&s, &seen, name, names, 2), rows[i].which[n++]);
            bad |= s.bad;
            s.bad = false;
            cot_skim_value(&s);
        }
        assert_int_equal(n, 3);
        assert_int_equal(!bad, rows[i].good);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_what_is_json),
                                       cmocka_unit_test(test_what_is_found), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
