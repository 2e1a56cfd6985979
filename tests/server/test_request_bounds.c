/* What a request may ask for at most, and at least: each bound is served and the value beyond it is refused by name. */
#include "harness/cmocka.h"

#include "server/api_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 100 };

static const cot_api_defaults defaults = {
    .temperature = 0.5, .top_p = 0.75, .min_p = 0.125, .repetition_penalty = 1.5, .top_k = 9};

/* Reads and parses; the refusal's field is in `error->param`. The caller clears the request. */
static bool parsed(cot_api_request *r, cot_api_kind kind, const char *body, cot_api_error *error)
{
    *r = (cot_api_request){0};
    *error = (cot_api_error){0};
    json_t *json = cot_api_read_json(body, strlen(body), 1 << 22, error);
    return json && cot_api_parse(r, kind, json, &defaults, VOCAB, error);
}

static void assert_parses(cot_api_kind kind, const char *body, const char *refused)
{
    cot_api_request r;
    cot_api_error error;
    const bool good = parsed(&r, kind, body, &error);
    cot_api_request_clear(&r);
    if (good != !refused) fail_msg("%.200s: %s", body, good ? "taken" : error.message);
    if (refused && *refused && strcmp(error.param, refused))
        fail_msg("%.200s: refused for '%s'", body, error.param);
    if (refused) assert_int_equal(error.http_status, 400);
}

#define COMPLETION_OF(field) "{\"prompt\":[5]," field "}"
#define CHAT_OF(field) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," field "}"

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *least, *below, *most, *above; // NULL: there is no such bound
    } rows[] = {{"n", "1", "0", "128", "129"},
                {"min_tokens", "0", "-1", "2147483647", "2147483648"},
                {"truncate_prompt_tokens", "-1", "-2", "2147483647", "2147483648"},
                {"temperature", "0", "-0.001", "1000000", "1000001"},
                {"top_p", "1e-300", "0", "1", "1.001"},
                {"top_k", "-1", "-2", "2147483647", "2147483648"},
                {"min_p", "0", "-0.001", "1", "1.001"},
                {"presence_penalty", "-2", "-2.001", "2", "2.001"},
                {"frequency_penalty", "-2", "-2.001", "2", "2.001"},
                {"repetition_penalty", "1e-6", "9e-7", "1000000", "1000001"},
                {"max_tokens", "0", "-1", "2147483647", "2147483648"},
                {"logprobs", "0", "-1", "20", "21"},
                {"seed", "-9223372036854775808", NULL, "9223372036854775807", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const values[] = {rows[i].least, rows[i].most, rows[i].below,
                                      rows[i].above, "\"1\"",      "[1]"};
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char body[128];
            if (!values[v]) continue;
            snprintf(body, sizeof body, COMPLETION_OF("\"%s\":%s"), rows[i].name, values[v]);
            assert_parses(COT_API_COMPLETION, body, v < 2 ? NULL : rows[i].name);
        }
    }
    assert_parses(COT_API_CHAT, CHAT_OF("\"max_tokens\":1"), NULL);
    assert_parses(COT_API_CHAT, CHAT_OF("\"max_tokens\":0"), "max_tokens");
    assert_parses(COT_API_CHAT, CHAT_OF("\"max_completion_tokens\":0"), "max_completion_tokens");
    assert_parses(COT_API_CHAT, CHAT_OF("\"logprobs\":true,\"top_logprobs\":20"), NULL);
    assert_parses(COT_API_CHAT, CHAT_OF("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs");
    assert_parses(COT_API_CHAT, CHAT_OF("\"top_logprobs\":0"), NULL);
    assert_parses(COT_API_CHAT, CHAT_OF("\"top_logprobs\":1"), "top_logprobs");
}

/* Each number goes where its name says, and where nothing is said the model's defaults stand. */
static void test_values(void **state)
{
    (void)state;
    cot_api_request r;
    cot_api_error error;
    const char *const body =
        "{\"prompt\":[5,99],\"n\":2,\"min_tokens\":3,\"truncate_prompt_tokens\":4,\"temperature\":0.1,\"top_"
        "p\":0.2,"
        "\"top_k\":5,\"min_p\":0.3,\"presence_penalty\":0.4,\"frequency_penalty\":0.6,"
        "\"repetition_penalty\":0.7,\"max_tokens\":6,\"logprobs\":7,\"seed\":8,\"stop\":[\"a\",\"bc\"],"
        "\"cache_salt\":\"salt\",\"model\":\"m\",\"logit_bias\":{\"9\":-100,\"10\":100}}";
    assert_true(parsed(&r, COT_API_COMPLETION, body, &error));
    const cot_sampling *s = &r.sampling;
    assert_int_equal(r.n, 2);
    assert_int_equal(s->min_tokens, 3);
    assert_int_equal(r.truncate_prompt_tokens, 4);
    assert_true(s->temperature == 0.1 && s->top_p == 0.2 && s->min_p == 0.3);
    assert_true(s->presence_penalty == 0.4 && s->frequency_penalty == 0.6 && s->repetition_penalty == 0.7);
    assert_int_equal(s->top_k, 5);
    assert_int_equal(r.max_tokens, 6);
    assert_int_equal(r.logprobs, 7);
    assert_int_equal(s->seed, 8);
    assert_true(r.seeded);
    assert_int_equal(r.stop_count, 2);
    assert_string_equal(r.stops[0], "a");
    assert_string_equal(r.stops[1], "bc");
    assert_string_equal(r.cache_salt, "salt");
    assert_int_equal(r.cache_salt_bytes, 4);
    assert_string_equal(r.model, "m");
    assert_int_equal(s->bias_count, 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(s->bias_tokens[i] == 9 ? s->bias[i] == -100
                                           : s->bias_tokens[i] == 10 && s->bias[i] == 100);
    assert_int_equal(r.prompt_count, 1);
    assert_int_equal(r.prompts->tokens.count, 2);
    assert_int_equal(r.prompts->tokens.ids[1], 99);
    assert_string_equal(r.unknown, "");
    cot_api_request_clear(&r);

    assert_true(
        parsed(&r, COT_API_COMPLETION, "{\"prompt\":[[1],[2]],\"top_k\":-1,\"odd\":1,\"odder\":2}", &error));
    assert_true(s->temperature == 0.5 && s->top_p == 0.75 && s->min_p == 0.125 &&
                s->repetition_penalty == 1.5);
    assert_int_equal(s->top_k, 0); // all
    assert_int_equal(r.n, 1);
    assert_int_equal(r.max_tokens, -1);
    assert_int_equal(r.logprobs, -1);
    assert_false(r.seeded || r.stream || r.echo || r.return_token_ids || r.include_stop_str);
    assert_true(r.skip_special_tokens && r.add_special_tokens);
    assert_int_equal(r.prompt_count, 2);
    assert_int_equal(r.prompts[1].tokens.ids[0], 2);
    assert_string_equal(r.unknown, "odd, odder");
    cot_api_request_clear(&r);
    assert_true(parsed(&r, COT_API_COMPLETION, "{\"prompt\":\"x\"}", &error));
    assert_int_equal(s->top_k, 9);
    assert_int_equal(r.prompts->bytes, 1);
    cot_api_request_clear(&r);
    assert_true(parsed(&r, COT_API_CHAT,
                       CHAT_OF("\"logprobs\":true,\"max_tokens\":null,\"max_completion_tokens\":4"), &error));
    assert_int_equal(r.logprobs, 0);
    assert_int_equal(r.max_tokens, 4);
    assert_true(r.add_generation_prompt && !r.add_special_tokens);
    cot_api_request_clear(&r);
}

/* `count` times `one`, between commas. */
static char *listed(const char *begin, const char *one, size_t count, const char *end)
{
    char *text = malloc(strlen(begin) + count * (strlen(one) + 1) + strlen(end) + 1), *at = text;
    assert_non_null(text);
    at += sprintf(at, "%s", begin);
    for (size_t i = 0; i < count; i++) at += sprintf(at, "%s%s", i ? "," : "", one);
    sprintf(at, "%s", end);
    return text;
}

static void assert_listed(const char *begin, const char *one, size_t most, const char *end,
                          const char *refused)
{
    for (size_t more = 0; more < 2; more++) {
        char *body = listed(begin, one, most + more, end);
        assert_parses(COT_API_COMPLETION, body, more ? refused : NULL);
        free(body);
    }
}

static void test_lists(void **state)
{
    (void)state;
    char stop[COT_API_MAX_STOP_BYTES + 2], body[COT_API_MAX_STOP_BYTES + 64];
    assert_listed("{\"prompt\":\"x\",\"stop\":[", "\"s\"", COT_API_MAX_STOPS, "]}", "stop");
    for (int more = 0; more < 2; more++) {
        memset(stop, 's', sizeof stop);
        stop[COT_API_MAX_STOP_BYTES + more] = '\0';
        snprintf(body, sizeof body, COMPLETION_OF("\"stop\":\"%s\""), stop);
        assert_parses(COT_API_COMPLETION, body, more ? "stop" : NULL);
    }
    assert_listed("{\"prompt\":[", "[5]", COT_API_MAX_CHOICES, "]}", "prompt");
    assert_listed("{\"n\":4,\"prompt\":[", "[5]", COT_API_MAX_CHOICES / 4, "]}", "prompt");
    // depth: the object is one
    for (size_t more = 0; more < 2; more++) {
        char deep[4 * COT_API_MAX_DEPTH], *at = deep;
        at += sprintf(at, "{\"prompt\":[5],\"x\":");
        for (size_t i = 0; i < COT_API_MAX_DEPTH - 1 + more; i++) *at++ = '[';
        for (size_t i = 0; i < COT_API_MAX_DEPTH - 1 + more; i++) *at++ = ']';
        sprintf(at, "}");
        assert_parses(COT_API_COMPLETION, deep, more ? "" : NULL);
    }
    // ids end with the vocabulary
    assert_parses(COT_API_COMPLETION, "{\"prompt\":[0,99]}", NULL);
    assert_parses(COT_API_COMPLETION, "{\"prompt\":[0,100]}", "prompt");
    assert_parses(COT_API_COMPLETION, "{\"prompt\":[-1]}", "prompt");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"logit_bias\":{\"99\":1,\"0\":1}"), NULL);
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"logit_bias\":{\"100\":1}"), "logit_bias");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"logit_bias\":{\"00\":1}"), "logit_bias");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"logit_bias\":{\"1\":-100.001}"), "logit_bias");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"logit_bias\":{\"1\":100.001}"), "logit_bias");
    assert_parses(COT_API_DETOKENIZE, "{\"tokens\":[0,99]}", NULL);
    assert_parses(COT_API_DETOKENIZE, "{\"tokens\":[100]}", "tokens");
    // a list for each choice
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"n\":2,\"continue_token_ids\":[[1],[2]]"), NULL);
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"n\":2,\"continue_token_ids\":[[1]]"),
                  "continue_token_ids");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"n\":2,\"continue_token_ids\":[[1],[2],[3]]"),
                  "continue_token_ids");
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"continue_token_ids\":[1,2]"), NULL);
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"continue_token_ids\":[1],\"logprobs\":0"), NULL);
    assert_parses(COT_API_COMPLETION, COMPLETION_OF("\"continue_token_ids\":[1],\"echo\":true"),
                  "continue_token_ids");
}

/* A body is weighed before it is read: what it may take is bounded by what there is. */
static void test_weight(void **state)
{
    (void)state;
    cot_api_error error = {0};
    const char *const body = "{\"prompt\":[1,2,3],\"x\":{\"y\":\"}{[,:\\\"\"}}";
    size_t least = 0; // the first bound that lets it in
    for (size_t bytes = 1; !least && bytes < 10000; bytes++) {
        json_t *json = cot_api_read_json(body, strlen(body), bytes, &error);
        if (json) least = bytes;
        if (!json) assert_int_equal(error.http_status, 413);
        json_decref(json);
    }
    // two objects, a list, three commas, three members, and text four times; what stands in strings weighs as text alone
    assert_int_equal(least, 2 * (96 + 224) + 96 + 128 + 3 * 96 + 3 * 190 + 4 * strlen(body));
}

/* A message that is cut stays UTF-8, and has no control characters. */
static void test_messages(void **state)
{
    (void)state;
    static const char *const characters[] = {"a", "é", "的", "😀"};
    for (size_t c = 0; c < 4; c++)
        for (size_t before = 0; before < 5; before++) {
            cot_api_error error;
            char text[1024] = "";
            const size_t bytes = strlen(characters[c]);
            for (size_t i = 0; i < before; i++) strcat(text, "b");
            while (strlen(text) < 600) strcat(text, characters[c]);
            assert_false(cot_api_fail(&error, 400, "code", text, "%s", text));
            const size_t whole = before + (sizeof error.message - 1 - before) / bytes * bytes;
            assert_int_equal(strlen(error.message), whole);
            assert_memory_equal(error.message, text, whole);
            assert_int_equal(strlen(error.param), before + (sizeof error.param - 1 - before) / bytes * bytes);
        }
    cot_api_error error;
    cot_api_fail(&error, 400, NULL, NULL, "a\nb\x7f\x1b[c\xc3\xa9");
    assert_string_equal(error.message, "a?b??[c\xc3\xa9");
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
                 {404, "not_found_error"},       {413, "invalid_request_error"}, {429, "rate_limit_error"},
                 {499, "invalid_request_error"}, {500, "server_error"},          {503, "server_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        cot_api_fail(&error, types[i].status, i % 2 ? "code" : NULL, i % 2 ? NULL : "field", "said");
        json_t *json = cot_api_error_json(&error), *inner = json_object_get(json, "error");
        assert_string_equal(json_string_value(json_object_get(inner, "type")), types[i].type);
        assert_string_equal(json_string_value(json_object_get(inner, "message")), "said");
        assert_int_equal(json_is_null(json_object_get(inner, "code")), i % 2 == 0);
        assert_int_equal(json_is_null(json_object_get(inner, "param")), i % 2);
        json_decref(json);
    }
}

/* A model's own defaults: what makes no sense is as if it were not there, and an integer beyond 64 bits is no more. */
static void test_defaults(void **state)
{
    (void)state;
    char folder[] = "/tmp/coterie-defaults-XXXXXX", path[64];
    cot_api_defaults d;
    cot_error error = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"max_new_tokens\": 1000000000000000019884624838656, \"top_k\": 7, \"top_p\": 2}", file);
    fclose(file);
    if (cot_api_defaults_read(&d, folder, &error)) fail_msg("%s", error.message);
    assert_int_equal(d.top_k, 7);
    assert_int_equal(d.max_tokens, 0);
    assert_true(d.top_p == 1);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers),  cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_lists),    cmocka_unit_test(test_weight),
                                       cmocka_unit_test(test_messages), cmocka_unit_test(test_defaults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
