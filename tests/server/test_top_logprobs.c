/* The likeliest tokens of a completion are told by their text: where several have the same, the likeliest of them counts. */
#include "harness/cmocka.h"

#include "coterie/tokenizer.h"
#include "server/wire.h"

#include <stdlib.h>
#include <string.h>

/* Tokens whose text alone is U+FFFD: the first bytes of characters. */
static size_t find_halves(int32_t *halves, size_t most, const cot_tokenizer *tokenizer)
{
    size_t n = 0;
    for (int32_t t = 0; (size_t)t < cot_tokenizer_size(tokenizer) && n < most; t++) {
        char *text;
        size_t bytes;
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, &t, 1, false, NULL), COT_OK);
        if (bytes == 3 && !memcmp(text, "\xef\xbf\xbd", 3)) halves[n++] = t;
        free(text);
    }
    return n;
}

static int32_t token_of(const cot_tokenizer *tokenizer, const char *text)
{
    int32_t *ids, id;
    size_t count;
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, text, strlen(text), false, NULL), COT_OK);
    assert_int_equal(count, 1);
    id = *ids;
    free(ids);
    return id;
}

static void test_equal_texts(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error;
    int32_t half[3];
    if (cot_tokenizer_open(&tokenizer, COT_SOURCE "/models/tiny", &error)) fail_msg("%s", error.message);
    assert_int_equal(find_halves(half, 3, tokenizer), 3);
    const int32_t a = token_of(tokenizer, "a");
    const cot_served_model model = {.tokenizer = tokenizer};
    const cot_logprob top[] = {{half[2], -0.25f}, {a, -1}, {half[0], -2}};
    const struct {
        cot_sampled sampled;
        size_t texts;
        double a;
    } rows[] = {{{.token = half[1], .logprob = -3, .top = top, .top_count = 3}, 2, -1},
                {{.token = half[2], .logprob = -0.25f, .top = top, .top_count = 3}, 2, -1},
                {{.token = a, .logprob = -1, .top = top, .top_count = 1}, 2, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_wire_logprobs gathered = {0};
        assert_true(cot_wire_add_logprob(&gathered, &model, &rows[i].sampled, true));
        json_t *json = cot_wire_take_logprobs(&gathered);
        const json_t *told = json_array_get(json_object_get(json, "top_logprobs"), 0);
        assert_int_equal(json_object_size(told), rows[i].texts);
        assert_true(json_real_value(json_object_get(told, "\xef\xbf\xbd")) == -0.25);
        assert_true(json_real_value(json_object_get(told, "a")) == rows[i].a);
        assert_true(json_real_value(json_array_get(json_object_get(json, "token_logprobs"), 0)) ==
                    (double)rows[i].sampled.logprob);
        json_decref(json);
        cot_wire_logprobs_clear(&gathered);
    }
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
