/* Events of a worker as a client is to see them, and the ids by which another worker goes on. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "gateway/delivery.h"

#include <jansson.h>
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

/* Where nothing was told before, the client has the prompt's ids from whoever tells the first event. */
static void test_prompt_of_the_second(void **state)
{
    (void)state;
    static const char event[] = "{\"prompt_token_ids\":[1,2],\"id\":\"a\",\"created\":1,\"choices\":[]}",
                      rest[] = "{\"id\":\"a\",\"created\":1,\"choices\":[]}";
    cot_delivery d = {0};
    assert_true(cot_delivery_open(&d, 1));
    d.resumed = true;
    assert_event(&d, event, COT_DELIVERY_EVENT, event);
    assert_event(&d, event, COT_DELIVERY_EVENT, rest);
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
    static const char *const bad[] = {
        "",
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
        EVENT("a", "1", "{\"index\":0,\"token_ids\":[1,2,3,4]}"),
        EVENT("a", "1", "{\"index\":0,\"index\":0,\"token_ids\":[1]}"),
        EVENT("a", "1", "{\"index\":0,\"token_\\u0069ds\":[1],\"token_ids\":[1]}"),
        EVENT("a", "1", "{\"index\":0,\"token_ids\":[1]}") "x",
        EVENT("a", "1", "0"),
        EVENT("a", "1.0", "{\"index\":0,\"token_ids\":[1]}"),
        "{\"id\":1,\"created\":1,\"choices\":[{\"index\":0,\"token_ids\":[1]}]}",
        "{\"id\":\"a\",\"created\":1,\"choices\":[],\"id\":\"b\"}"};
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

/* ---- drawn streams ---- */

typedef struct stream {
    uint64_t seed, at;
    cot_delivery delivery;
    json_t *ids; // of each choice, as they were told
    bool begun[4], finished[4];
} stream;

static uint64_t bits(stream *s)
{
    return cot_random_bits(s->seed, 1, s->at++);
}

/* Members in any order. */
static json_t *shuffled(stream *s, json_t *object)
{
    json_t *out = json_object();
    while (json_object_size(object)) {
        void *at = json_object_iter(object);
        for (uint64_t skip = bits(s) % json_object_size(object); skip--;)
            at = json_object_iter_next(object, at);
        json_object_set(out, json_object_iter_key(at), json_object_iter_value(at));
        json_object_del(object, json_object_iter_key(at));
    }
    json_decref(object);
    return out;
}

static json_t *draw_choice(stream *s, size_t index)
{
    static const char *const texts[] = {"", "x", "\"token_ids\":[1]", "\xc3\xa9\\", "},{", "role"};
    json_t *choice = json_pack("{s:i, s:f, s:[]}", "index", (int)index, "logprob", -0.5, "token_ids"),
           *ids = json_object_get(choice, "token_ids");
    for (uint64_t n = bits(s) % 3; n--;)
        json_array_append_new(ids, json_integer((json_int_t)(bits(s) >> 33)));
    if (bits(s) % 2) {
        json_t *delta = json_pack("{s:s}", "content", texts[bits(s) % 6]);
        if (bits(s) % 2) json_object_set_new(delta, "role", json_string("assistant"));
        if (bits(s) % 4 == 0) json_object_del(delta, "content");
        json_object_set_new(choice, "delta", shuffled(s, delta));
    } else
        json_object_set_new(choice, "text", json_string(texts[bits(s) % 6]));
    if (bits(s) % 3)
        json_object_set_new(choice, "finish_reason", bits(s) % 4 ? json_null() : json_string("stop"));
    if (bits(s) % 3 == 0) json_object_set_new(choice, "prompt_token_ids", json_pack("[i, i]", 1, 2));
    return shuffled(s, choice);
}

/* What becomes of an event by the words of delivery.h, in values of jansson's. NULL: nothing. */
static json_t *expected(stream *s, const json_t *event)
{
    const cot_delivery *d = &s->delivery;
    json_t *shown = json_deep_copy(event), *choices = json_object_get(shown, "choices");
    const size_t count = json_array_size(choices);
    if (d->resumed) {
        json_object_set_new(shown, "id", json_string("first"));
        json_object_set_new(shown, "created", json_integer(7));
    }
    if (d->hides_ids || d->resumed) json_object_del(shown, "prompt_token_ids");
    for (size_t i = 0; i < json_array_size(choices);) {
        json_t *choice = json_array_get(choices, i);
        const size_t index = (size_t)json_integer_value(json_object_get(choice, "index"));
        if (s->finished[index]) {
            json_array_remove(choices, i);
            continue;
        }
        json_array_extend(json_array_get(s->ids, index), json_object_get(choice, "token_ids"));
        if (s->begun[index] && d->resumed) {
            json_object_del(json_object_get(choice, "delta"), "role");
            json_object_del(choice, "prompt_token_ids");
        }
        if (d->hides_ids) {
            json_object_del(choice, "token_ids");
            json_object_del(choice, "prompt_token_ids");
        }
        s->begun[index] = true;
        s->finished[index] = json_is_string(json_object_get(choice, "finish_reason"));
        i++;
    }
    if (!count || json_array_size(choices)) return shown;
    json_decref(shown);
    return NULL;
}

static void take_drawn(stream *s, bool first)
{
    static const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(1), JSON_ENSURE_ASCII};
    json_t *choices = json_array(),
           *event = json_pack("{s:s, s:i, s:s}", "object", "chunk", "n", 3, "model", "m");
    for (uint64_t n = bits(s) % 4; n--;) json_array_append_new(choices, draw_choice(s, bits(s) % 3));
    json_object_set_new(event, "id", json_string(first ? "first" : "other"));
    json_object_set_new(event, "created", json_integer(first ? 7 : 9));
    json_object_set_new(event, "choices", choices);
    if (bits(s) % 2) json_object_set_new(event, "prompt_token_ids", json_pack("[i, i]", 1, 2));
    event = shuffled(s, event);
    char *text = json_dumps(event, flags[bits(s) % 4]);
    json_t *wanted = expected(s, event);
    cot_buffer out = {0};
    const cot_delivery_kind kind = cot_delivery_take(&s->delivery, text, strlen(text), &out);
    if (kind != (wanted ? COT_DELIVERY_EVENT : COT_DELIVERY_NOTHING)) fail_msg("%s is %d", text, (int)kind);
    json_t *read = wanted ? json_loadb(out.data, out.bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (wanted && (!read || !json_equal(read, wanted))) fail_msg("%s becomes %s", text, out.data);
    if (wanted && json_equal(event, wanted))
        assert_string_equal(out.data, text); // byte for byte, where nothing changes
    json_decref(read);
    json_decref(wanted);
    json_decref(event);
    cot_buffer_free(&out);
    free(text);
}

static void test_drawn(void **state)
{
    (void)state;
    stream s = {.seed = test_seed()};
    for (int round = 0; round < 400; round++) {
        assert_true(cot_delivery_open(&s.delivery, 3));
        s.delivery.most = UINT64_MAX;
        s.delivery.hides_ids = bits(&s) % 2;
        s.ids = json_pack("[[], [], []]");
        memset(s.begun, 0, sizeof s.begun);
        memset(s.finished, 0, sizeof s.finished);
        for (int i = 0; i < 8; i++) {
            take_drawn(&s, !i);
            s.delivery.resumed |= bits(&s) % 6 == 0;
        }
        char *ids = json_dumps(s.ids, JSON_COMPACT);
        assert_ids(&s.delivery, ids);
        free(ids);
        json_decref(s.ids);
        cot_delivery_free(&s.delivery);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resumed),
                                       cmocka_unit_test(test_as_it_came),
                                       cmocka_unit_test(test_prompt_of_the_second),
                                       cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_half_wrong),
                                       cmocka_unit_test(test_drawn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
