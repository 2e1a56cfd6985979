/* A body that is read where it stands says what it says as JSON. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "gateway/request.h"

#include <string.h>

/* Whether the body is read where it stands, and that it then says the same. */
static bool is_skimmed(const char *body)
{
    cot_relay_request skimmed, read;
    int32_t *ids, *expected;
    size_t count, expected_count;
    if (!cot_relay_skim(&skimmed, &ids, &count, body, strlen(body))) {
        assert_null(ids);
        assert_int_equal(count, 0);
        return false;
    }
    json_t *json = json_loads(body, JSON_REJECT_DUPLICATES, NULL);
    if (!json) fail_msg("%s is no JSON", body);
    cot_relay_read(&read, json, false);
    cot_relay_read_ids(&expected, &expected_count, json);
    assert_int_equal(count, expected_count);
    assert_memory_equal(ids, expected, count * sizeof *ids);
    assert_int_equal(skimmed.chat, read.chat);
    assert_int_equal(skimmed.stream, read.stream);
    assert_int_equal(skimmed.seeded, read.seeded);
    assert_int_equal(skimmed.echo, read.echo);
    assert_int_equal(skimmed.wants_ids, read.wants_ids);
    assert_int_equal(skimmed.choices, read.choices);
    assert_int_equal(skimmed.max_tokens, read.max_tokens);
    assert_int_equal(skimmed.salt_bytes, read.salt_bytes);
    if (read.salt_bytes) assert_memory_equal(skimmed.salt, read.salt, read.salt_bytes);
    json_decref(json);
    free(expected);
    free(ids);
    return true;
}

static void test_rows(void **state)
{
    (void)state;
    static const char *const plain[] = {
        "{\"prompt\":[-2147483648]}", "{\"prompt\":[1,2,3]}",
        " {\n\"model\": \"m\", \"prompt\" : [ 2147483647 ],\"n\":4,\"stream\" : true, \"seed\":null}",
        "{\"max_tokens\":1,\"return_token_ids\":true,\"echo\":true,\"seed\":0,\"cache_salt\":\"\xc3\xa9\","
        "\"prompt\":[7,8]}",
        "{\"prompt\":[1],\"stream\":\"true\",\"echo\":1,\"x\":{\"n\":2,\"prompt\":\"\"}}"};
    static const char *const others[] = {"",
                                         "[]",
                                         "{}",
                                         "{\"prompt\":[]}",
                                         "{\"prompt\":\"a\"}",
                                         "{\"prompt\":[[1]]}",
                                         "{\"prompt\":[1,\"a\"]}",
                                         "{\"prompt\":[1.0]}",
                                         "{\"prompt\":[-2147483649]}",
                                         "{\"prompt\":[2147483648]}",
                                         "{\"prompt\":[1],\"prompt\":[2]}",
                                         "{\"prompt\":[1],\"\\u006e\":2}",
                                         "{\"prompt\":[1],\"n\":2.0}",
                                         "{\"prompt\":[1],\"n\":0}",
                                         "{\"prompt\":[1],\"n\":1025}",
                                         "{\"prompt\":[1],\"max_tokens\":null}",
                                         "{\"prompt\":[1],\"max_tokens\":-1}",
                                         "{\"prompt\":[1],\"cache_salt\":\"\\n\"}",
                                         "{\"prompt\":[1],\"cache_salt\":null}",
                                         "{\"prompt\":[1]} x",
                                         "{\"prompt\":[1]",
                                         "{\"prompt\":null}"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!is_skimmed(plain[i])) fail_msg("%s", plain[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_skimmed(others[i])) fail_msg("%s", others[i]);
}

/* Values that a member may have, among them many that it may not. */
static json_t *draw_value(uint64_t bits)
{
    static const char *const texts[] = {"", "true", "salt", "\xc3\xa9", "a\\b"};
    switch (bits % 7) {
    case 0:
        return json_boolean(bits & 8);
    case 1:
        return json_null();
    case 2:
        return json_string(texts[bits / 8 % 5]);
    case 3:
        return json_real((double)(bits >> 60) / 2);
    default:
        return json_integer((json_int_t)(bits >> (bits / 8 % 60 + 4)) - 2);
    }
}

static void test_drawn(void **state)
{
    (void)state;
    static const char *const names[] = {"stream",     "seed",  "echo", "return_token_ids", "n", "max_tokens",
                                        "cache_salt", "model", "top_p"};
    static const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2), JSON_ENSURE_ASCII};
    const uint64_t seed = test_seed();
    uint64_t at = 0;
    size_t skimmed = 0;
    for (int round = 0; round < 4000; round++) {
        json_t *json = json_object(), *prompt = json_array();
        for (uint64_t n = cot_random_bits(seed, 1, at++) % 40; n--;)
            json_array_append_new(prompt, json_integer((json_int_t)(cot_random_bits(seed, 1, at++) >> 34)));
        for (uint64_t n = cot_random_bits(seed, 1, at++) % 5; n--;) {
            const uint64_t name = cot_random_bits(seed, 1, at++);
            json_object_set_new(json, names[name % 9], draw_value(cot_random_bits(seed, 1, at++)));
        }
        json_object_set_new(json, "prompt", prompt);
        char *body = json_dumps(json, flags[round % 4]);
        skimmed += is_skimmed(body);
        free(body);
        json_decref(json);
    }
    assert_in_range(skimmed, 400, 3900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_drawn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
