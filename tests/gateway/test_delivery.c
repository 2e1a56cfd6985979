/* Events of a worker as a client is to see them, and the ids by which another worker goes on. */
#include "harness/cmocka.h"

#include "gateway/delivery.h"

#include <stdio.h>
#include <string.h>

#define EVENT(ID, CREATED, CHOICE) "{\"id\":\"" ID "\",\"created\":" CREATED ",\"choices\":[" CHOICE "]}"

static void assert_event(cot_delivery *d, const char *data, cot_delivery_kind kind, const char *sent)
{
    cot_buffer out = {0};
    const cot_delivery_kind taken = cot_delivery_take(d, data, strlen(data), &out);
    if (taken != kind) fail_msg("%s is %d, not %d", data, (int)taken, (int)kind);
    if (sent) assert_string_equal(out.data, sent);
    cot_buffer_free(&out);
}

static void assert_ids(const cot_delivery *d, const char *ids)
{
    cot_buffer out = {0};
    assert_true(cot_delivery_write(d, &out));
    assert_string_equal(out.data, ids);
    cot_buffer_free(&out);
}

/* Another worker goes on: one id, one time, one role a choice; what is finished is not told again. */
static void test_resumed(void **state)
{
    (void)state;
    cot_delivery d = {0};
    assert_true(cot_delivery_open(&d, 2));
    d.most = 3;
    d.hides_ids = true;
    assert_ids(&d, "[[],[]]");
    assert_event(
        &d,
        EVENT("a", "1",
              "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"x\"},\"finish_reason\":null,"
              "\"token_ids\":[7],\"prompt_token_ids\":[1,2]}"),
        COT_DELIVERY_EVENT,
        EVENT("a", "1",
              "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"x\"},\"finish_reason\":null}"));
    assert_event(
        &d,
        EVENT("a", "1",
              "{\"index\":0,\"delta\":{\"content\":\"y\"},\"finish_reason\":\"length\",\"token_ids\":[8]}"),
        COT_DELIVERY_EVENT,
        EVENT("a", "1", "{\"index\":0,\"delta\":{\"content\":\"y\"},\"finish_reason\":\"length\"}"));
    assert_ids(&d, "[[7,8],[]]");
    assert_int_equal(d.tokens, 2);
    d.resumed = true;
    assert_event(&d,
                 EVENT("b", "9",
                       "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":"
                       "\"length\",\"token_ids\":[]}"),
                 COT_DELIVERY_NOTHING, NULL);
    assert_event(
        &d,
        EVENT("b", "9",
              "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"z\"},\"finish_reason\":null,"
              "\"token_ids\":[3]}"),
        COT_DELIVERY_EVENT,
        EVENT("a", "1",
              "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"z\"},\"finish_reason\":null}"));
    assert_event(&d,
                 EVENT("c", "9",
                       "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"w\"},\"finish_reason\":"
                       "null,\"token_ids\":[4,5]}"),
                 COT_DELIVERY_EVENT,
                 EVENT("a", "1", "{\"index\":1,\"delta\":{\"content\":\"w\"},\"finish_reason\":null}"));
    assert_ids(&d, "[[7,8],[3,4,5]]");
    assert_event(&d, "{\"id\":\"c\",\"created\":9,\"choices\":[],\"usage\":{\"total_tokens\":9}}",
                 COT_DELIVERY_EVENT,
                 "{\"id\":\"a\",\"created\":1,\"choices\":[],\"usage\":{\"total_tokens\":9}}");
    assert_event(&d, "[DONE]", COT_DELIVERY_DONE, "[DONE]");
    cot_delivery_free(&d);
}

/* Who asked for ids sees every byte as it came. */
static void test_as_it_came(void **state)
{
    (void)state;
    static const char event[] =
        "{ \"id\":\"a\", \"created\":1, \"choices\":[{\"index\":0,\"text\":\"\\u00e9\",\"token_ids\":[1]}], "
        "\"x\":1.50}";
    cot_delivery d = {0};
    assert_true(cot_delivery_open(&d, 1));
    d.most = 3;
    assert_event(&d, event, COT_DELIVERY_EVENT, event);
    assert_ids(&d, "[[1]]");
    cot_delivery_free(&d);
}

static void test_bad(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{\"id\":\"a\",\"created\":1}",
                                      EVENT("a", "null", "{\"index\":0,\"token_ids\":[1]}"),
                                      EVENT("a", "1", "{\"index\":1,\"token_ids\":[1]}"),
                                      EVENT("a", "1", "{\"index\":-1,\"token_ids\":[1]}"),
                                      EVENT("a", "1", "{\"token_ids\":[1]}"),
                                      EVENT("a", "1", "{\"index\":0}"),
                                      EVENT("a", "1", "{\"index\":0,\"token_ids\":[-1]}"),
                                      EVENT("a", "1", "{\"index\":0,\"token_ids\":[2147483648]}"),
                                      EVENT("a", "1", "{\"index\":0,\"token_ids\":[1.5]}"),
                                      EVENT("a", "1", "{\"index\":0,\"token_ids\":\"1\"}"),
                                      EVENT("a", "1", "{\"index\":0,\"token_ids\":[1,2,3,4]}")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_delivery d = {0};
        assert_true(cot_delivery_open(&d, 1));
        d.most = 3;
        assert_event(&d, bad[i], COT_DELIVERY_BAD, NULL);
        cot_delivery_free(&d);
    }
    cot_delivery d = {0};
    assert_true(cot_delivery_open(&d, 1));
    d.most = 3;
    assert_event(&d, "{\"error\":{\"message\":\"m\"}}", COT_DELIVERY_ERROR,
                 "{\"error\":{\"message\":\"m\"}}");
    cot_delivery_free(&d);
}

/* Of an event that is not sent on nothing was delivered: whoever goes on says all of it. */
static void test_half_wrong(void **state)
{
    (void)state;
    static const char *const bad[] = {
        EVENT("b", "2",
              "{\"index\":0,\"token_ids\":[1],\"finish_reason\":\"stop\"},{\"index\":2,\"token_ids\":[1]}"),
        EVENT("b", "2", "{\"index\":0,\"token_ids\":[1]},{\"index\":1,\"token_ids\":[-1]}"),
        EVENT("b", "2", "{\"index\":1,\"token_ids\":[1]},{\"index\":0,\"token_ids\":[1,2,3,4]}"),
        EVENT("b", "2", "{\"index\":0,\"token_ids\":[1,\"2\"]}")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_delivery d = {0};
        assert_true(cot_delivery_open(&d, 2));
        d.most = 3;
        assert_event(&d, bad[i], COT_DELIVERY_BAD, NULL);
        assert_ids(&d, "[[],[]]");
        assert_int_equal(d.tokens, 0);
        assert_null(d.id);
        assert_false(d.choice[0].finished);
        cot_delivery_free(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resumed), cmocka_unit_test(test_as_it_came),
                                       cmocka_unit_test(test_bad), cmocka_unit_test(test_half_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
