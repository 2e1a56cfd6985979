/* Calls of tools and reasoning in answers, whole and streamed, over a backend that says what the test has it say. */
#include "harness/cmocka.h"
#include "harness/server/scripted.h"

#include "server/tools.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAT "/v1/chat/completions"
#define TOOL                                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","               \
    "\"properties\":{\"a\":{\"type\":"                                                                       \
    "\"string\"},\"n\":{\"type\":\"integer\"}}}}}"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define CALL(arguments) "<tool_call>{\"name\": \"f\", \"arguments\": " arguments "}</tool_call>"

static cot_chat_template *chat;

static int open_chat(void **state)
{
    (void)state;
    return cot_chat_template_open(&chat, COT_SOURCE "/models/tiny", NULL, NULL) != COT_OK;
}

static int close_chat(void **state)
{
    (void)state;
    cot_chat_template_close(chat);
    return 0;
}

static void open_with(scripted_server *f, const char *calls, const char *reasoning)
{
    cot_server_options options;
    cot_server_options_init(&options);
    options.tool_call_parser = calls;
    options.reasoning_parser = reasoning;
    f->chat = chat;
    scripted_open(f, &options);
}

/* The request's answer is this text, token by token; `finish` ends it. */
static void say(scripted_server *f, const char *body, const char *text, cot_finish finish)
{
    int32_t *ids;
    size_t count;
    const size_t job = f->submitted;
    assert_int_equal(cot_tokenizer_encode(f->tokenizer, &ids, &count, text, strlen(text), false, NULL),
                     COT_OK);
    scripted_post_jobs(f, CHAT, "", body, 1);
    scripted_admit(f, job, 0, 1);
    for (size_t i = 0; i < count; i++)
        scripted_token(f, job, ids[i],
                       i + 1 < count || finish == COT_FINISH_EOS ? SCRIPTED_GOES_ON : (int)finish,
                       (int64_t)i + 2);
    if (finish == COT_FINISH_EOS) scripted_token(f, job, 0, COT_FINISH_EOS, (int64_t)count + 2);
    free(ids);
}

static const char *text_in(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text ? text : "(none)";
}

static json_t *message_of(const json_t *answer, const char *reason)
{
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    assert_string_equal(text_in(choice, "finish_reason"), reason);
    return json_object_get(choice, "message");
}

static const json_t *function_of(const json_t *message, size_t index)
{
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), index);
    assert_non_null(call);
    assert_string_equal(text_in(call, "type"), "function");
    assert_int_equal(strncmp(text_in(call, "id"), "call_", 5), 0);
    return json_object_get(call, "function");
}

static void whole_answers(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", "think");
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "]}", "Hm." CALL("{\"a\": \"b\"}"), COT_FINISH_EOS);
    json_t *answer = scripted_answer(f), *message = message_of(answer, "tool_calls");
    assert_string_equal(text_in(message, "content"), "Hm.");
    assert_string_equal(text_in(function_of(message, 0), "name"), "f");
    assert_string_equal(text_in(function_of(message, 0), "arguments"), "{\"a\": \"b\"}");
    json_decref(answer);

    // two tools may have one name
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "," TOOL "]}", CALL("{\"n\": 1}"), COT_FINISH_EOS);
    answer = scripted_answer(f);
    assert_string_equal(text_in(function_of(message_of(answer, "tool_calls"), 0), "arguments"), "{\"n\": 1}");
    json_decref(answer);

    // without content it is null; reasoning has both of its names, or none where it is not wanted
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "]}", "<think>r</think>" CALL("{}"), COT_FINISH_EOS);
    answer = scripted_answer(f);
    message = message_of(answer, "tool_calls");
    assert_true(json_is_null(json_object_get(message, "content")));
    assert_string_equal(text_in(message, "reasoning_content"), "r");
    assert_string_equal(text_in(message, "reasoning"), "r");
    json_decref(answer);
    say(f, "{" MESSAGES ",\"include_reasoning\":false}", "<think>r</think>yes", COT_FINISH_EOS);
    answer = scripted_answer(f);
    message = message_of(answer, "stop");
    assert_string_equal(text_in(message, "content"), "yes");
    assert_null(json_object_get(message, "reasoning_content"));
    json_decref(answer);

    // of several calls one stands where no more are wanted
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "],\"parallel_tool_calls\":false}", CALL("{}") CALL("{}"),
        COT_FINISH_EOS);
    answer = scripted_answer(f);
    message = message_of(answer, "tool_calls");
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 1);
    json_decref(answer);

    // a call is text where there are no tools, or none is to be called
    static const char *const none[] = {"{" MESSAGES "}",
                                       "{" MESSAGES ",\"tools\":[" TOOL "],\"tool_choice\":\"none\"}"};
    for (size_t i = 0; i < 2; i++) {
        say(f, none[i], CALL("{}"), COT_FINISH_EOS);
        answer = scripted_answer(f);
        message = message_of(answer, "stop");
        assert_string_equal(text_in(message, "content"), CALL("{}"));
        assert_null(json_object_get(message, "tool_calls"));
        json_decref(answer);
    }

    // former functions
    say(f, "{" MESSAGES ",\"functions\":[{\"name\":\"f\"}],\"function_call\":\"auto\"}", CALL("{}"),
        COT_FINISH_EOS);
    answer = scripted_answer(f);
    message = message_of(answer, "function_call");
    assert_string_equal(text_in(json_object_get(message, "function_call"), "arguments"), "{}");
    json_decref(answer);
    assert_int_equal(f->server->metrics.stopped, 8); // answers that end in calls end by themselves
    assert_int_equal(f->server->metrics.ended_by_length, 0);
}

/* The tokenizer has these tokens too from now on. */
static void add_tokens(scripted_server *f, const char *const *names, size_t count)
{
    json_t *json = json_load_file(COT_SOURCE "/models/tiny/tokenizer.json", 0, NULL);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(json_object_get(json, "added_tokens"),
                              json_pack("{s:I, s:s, s:b, s:b}", "id",
                                        (json_int_t)(cot_tokenizer_size(f->tokenizer) + i), "content",
                                        names[i], "special", 1, "normalized", 0));
    char *text = json_dumps(json, 0);
    cot_tokenizer_close(f->tokenizer);
    assert_int_equal(cot_tokenizer_parse(&f->tokenizer, text, strlen(text), "it", NULL), COT_OK);
    free(text);
    json_decref(json);
}

/* Harmony's content is within its messages: these are read where nothing may be called, and a call is content then. */
static void none_is_called(void **state)
{
    static const char *const tokens[] = {"<|channel|>", "<|message|>", "<|call|>", "<|start|>", "<|end|>"};
    static const char said[] = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
    scripted_server *f = *state;
    add_tokens(f, tokens, sizeof tokens / sizeof *tokens);
    open_with(f, "gpt-oss", NULL);
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "]}", said, COT_FINISH_EOS);
    json_t *answer = scripted_answer(f);
    assert_string_equal(text_in(function_of(message_of(answer, "tool_calls"), 0), "arguments"), "{}");
    json_decref(answer);
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "],\"tool_choice\":\"none\"}", said, COT_FINISH_EOS);
    answer = scripted_answer(f);
    assert_string_equal(text_in(message_of(answer, "stop"), "content"), "{}");
    json_decref(answer);
}

static void cut_and_unread_calls(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", NULL);
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "]}", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        COT_FINISH_LENGTH);
    json_t *answer = scripted_answer(f), *message = message_of(answer, "length");
    assert_string_equal(text_in(function_of(message, 0), "arguments"), "{\"a\": \"b");
    json_decref(answer);
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "]}", "<tool_call>no</tool_call>", COT_FINISH_EOS);
    answer = scripted_answer(f);
    message = message_of(answer, "stop");
    assert_string_equal(text_in(message, "content"), "<tool_call>no</tool_call>");
    json_decref(answer);
    assert_int_equal(f->server->metrics.calls, 1);
    assert_int_equal(f->server->metrics.unread_calls, 1);
}

/* The next event's data of a stream; NULL: there is none. */
static json_t *next_event(const char **at)
{
    const char *data = strstr(*at, "data: ");
    if (!data || strncmp(data, "data: [DONE]", 12) == 0) return NULL;
    const char *end = strstr(data, "\n");
    *at = end;
    json_t *event = json_loadb(data + 6, (size_t)(end - data - 6), 0, NULL);
    assert_non_null(event);
    return event;
}

static void streams(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", "think");
    say(f, "{" MESSAGES ",\"tools\":[" TOOL "],\"stream\":true}",
        "<think>r</think>a" CALL("{\"a\": \"b\"}") CALL("{}"), COT_FINISH_EOS);
    json_decref(scripted_answer(f)); // no JSON
    const char *at = f->answer.body;
    char content[64] = "", reasoning[64] = "", arguments[2][64] = {"", ""}, reason[16] = "";
    size_t calls = 0, events = 0;
    for (json_t *event; (event = next_event(&at)); events++) {
        const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
                     *delta = json_object_get(choice, "delta");
        const json_t *list = json_object_get(delta, "tool_calls"), *call;
        size_t i;
        assert_int_equal(json_object_get(delta, "role") != NULL, events == 0);
        if (json_object_get(delta, "content")) strcat(content, text_in(delta, "content"));
        if (json_object_get(delta, "reasoning")) strcat(reasoning, text_in(delta, "reasoning"));
        if (json_is_string(json_object_get(choice, "finish_reason")))
            strcpy(reason, text_in(choice, "finish_reason"));
        json_array_foreach(list, i, call)
        {
            const size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
            const json_t *function = json_object_get(call, "function");
            const bool is_new = json_object_get(function, "name") != NULL;
            assert_int_equal(json_object_get(call, "id") != NULL, is_new);
            assert_int_equal(index, is_new ? calls : calls - 1);
            calls += is_new;
            assert_true(calls <= 2);
            strcat(arguments[index], text_in(function, "arguments"));
        }
        json_decref(event);
    }
    assert_string_equal(content, "a");
    assert_string_equal(reasoning, "r");
    assert_int_equal(calls, 2);
    assert_string_equal(arguments[0], "{\"a\": \"b\"}");
    assert_string_equal(arguments[1], "{}");
    assert_string_equal(reason, "tool_calls");
}

/* What was delivered before is not told again, and a call goes on where it was. */
static void continued_streams(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", NULL);
    static const char before[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
                      behind[] = ": \"b\"}}</tool_call>";
    int32_t *ids;
    size_t count;
    char body[2048];
    assert_int_equal(cot_tokenizer_encode(f->tokenizer, &ids, &count, before, strlen(before), false, NULL),
                     COT_OK);
    size_t used =
        (size_t)snprintf(body, sizeof body, "{" MESSAGES ",\"tools\":[" TOOL "],\"continue_token_ids\":[[");
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(body + used, sizeof body - used, "%s%d", i ? "," : "", (int)ids[i]);
    snprintf(body + used, sizeof body - used, "]],\"stream\":true}");
    free(ids);
    say(f, body, behind, COT_FINISH_EOS);
    json_decref(scripted_answer(f));
    const char *at = f->answer.body;
    char arguments[64] = "";
    for (json_t *event; (event = next_event(&at));) {
        const json_t *delta = json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta");
        const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        assert_null(json_object_get(call, "id"));
        if (call) strcat(arguments, text_in(json_object_get(call, "function"), "arguments"));
        json_decref(event);
    }
    assert_string_equal(arguments, ": \"b\"}");
}

/* Former messages have ids that any template takes: some want nine letters and digits. */
static void former_calls_have_ids(void **state)
{
    (void)state;
    json_t *former =
               json_loads("[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
                          "{\"role\":\"function\",\"name\":\"f\",\"content\":\"1\"}]",
                          0, NULL),
           *messages = cot_api_tool_messages(former);
    const char *id =
        text_in(json_array_get(json_object_get(json_array_get(messages, 0), "tool_calls"), 0), "id");
    assert_int_equal(strlen(id), 9);
    for (const char *c = id; *c; c++) assert_true(isalnum((unsigned char)*c));
    assert_string_equal(text_in(json_array_get(messages, 1), "tool_call_id"), id);
    assert_string_equal(text_in(json_array_get(messages, 1), "role"), "tool");
    json_decref(former);
    json_decref(messages);
}

typedef struct refusal {
    const char *fields, *param, *words;
} refusal;

static const refusal refusals[] = {
    {"\"tools\":7", "tools", "is a whole number"},
    {"\"tools\":[{\"type\":\"function\"}]", "tools", "no 'function'"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools", "no 'name'"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools", "no 'name'"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]", "tools",
     "expected an object"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}}]",
     "tools", "type 'object'"},
    {"\"functions\":[{\"name\":\"f\",\"parameters\":{\"type\":[\"array\",\"null\"]}}]", "functions",
     "type 'object'"},
    {"\"tools\":[{\"type\":\"web_search\"}]", "tools", "no tool of type"},
    {"\"tools\":[" TOOL "],\"functions\":[{\"name\":\"g\"}]", "functions", "exclude"},
    {"\"tools\":[" TOOL "],\"tool_choice\":\"maybe\"", "tool_choice", "'maybe'"},
    {"\"tools\":[" TOOL "],\"tool_choice\":7", "tool_choice", "is a whole number"},
    {"\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
     "tool_choice", "none of the tools"},
    {"\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\"}", "tool_choice", "names no tool"},
    {"\"tool_choice\":\"required\"", "tool_choice", "no tools"},
    {"\"tools\":[" TOOL "],\"function_call\":{\"name\":\"f\"}", "function_call", "goes with 'functions'"},
    {"\"tools\":[" TOOL "],\"function_call\":\"none\"", "function_call", "goes with 'functions'"},
    {"\"functions\":[{\"name\":\"f\"}],\"tool_choice\":\"required\"", "tool_choice", "goes with 'tools'"},
    {"\"function_call\":{\"name\":\"f\"}", "function_call", "goes with 'functions'"},
    {"\"tools\":[" TOOL "],\"tool_choice\":\"required\"", "tool_choice", "not supported by this worker"},
    {"\"thinking_token_budget\":5", "thinking_token_budget", "not supported"},
    {"\"thinking_token_budget\":-1", "thinking_token_budget", ""},
};

static void bad_tools_are_refused(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", NULL);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char body[2048];
        json_t *json;
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", refusals[i].fields);
        if (scripted_refused(f, CHAT, "", body, &json) != 400)
            fail_msg("%s is not refused", refusals[i].fields);
        const json_t *error = json_object_get(json, "error");
        assert_string_equal(text_in(error, "param"), refusals[i].param);
        if (!strstr(text_in(error, "message"), refusals[i].words))
            fail_msg("%s: %s", refusals[i].fields, text_in(error, "message"));
        json_decref(json);
    }
}

/* A name of a megabyte, and more tools than may be. */
static void large_tools_are_refused(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", NULL);
    f->server->model.request_bytes = (size_t)64 << 20;
    const size_t room = (size_t)2 << 20;
    char *body = malloc(room);
    assert_non_null(body);
    size_t used = (size_t)snprintf(
        body, room, "{" MESSAGES ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"");
    memset(body + used, 'a', (size_t)1 << 20);
    strcpy(body + used + ((size_t)1 << 20), "\"}}]}");
    json_t *json;
    assert_int_equal(scripted_refused(f, CHAT, "", body, &json), 400);
    assert_true(strlen(text_in(json_object_get(json, "error"), "message")) < 300);
    json_decref(json);
    used = (size_t)snprintf(body, room, "{" MESSAGES ",\"tools\":[");
    for (int i = 0; i < 1025; i++)
        used +=
            (size_t)snprintf(body + used, room - used,
                             "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}", i ? "," : "", i);
    strcpy(body + used, "]}");
    assert_int_equal(scripted_refused(f, CHAT, "", body, &json), 400);
    json_decref(json);
    free(body);
}

/* A refusal shows as much of a long name as is whole characters, wherever it is cut. */
static void names_are_shown_in_whole_characters(void **state)
{
    scripted_server *f = *state;
    open_with(f, "hermes", NULL);
    for (int shift = 0; shift < 4; shift++)
        for (int named = 0; named < 2; named++) {
            char name[260] = "", body[1024];
            for (int i = 0; i < shift; i++) strcat(name, "a");
            for (int i = 0; i < 40; i++) strcat(name, "\xf0\x9f\x98\x80");
            snprintf(body, sizeof body, "{" MESSAGES ",\"tools\":[" TOOL "],\"tool_choice\":%s\"%s\"%s}",
                     named ? "{\"function\":{\"name\":" : "", name, named ? "}}" : "");
            json_t *json;
            assert_int_equal(scripted_refused(f, CHAT, "", body, &json), 400);
            const char *message = text_in(json_object_get(json, "error"), "message");
            assert_non_null(strstr(message, "\xf0\x9f\x98\x80'"));
            assert_true(strlen(message) > 128);
            json_decref(json);
        }
}

/* The template of model tiny has no calls: what could not be read is not asked for. */
static void tools_need_a_format(void **state)
{
    scripted_server *f = *state;
    open_with(f, NULL, NULL);
    json_t *json;
    assert_int_equal(scripted_refused(f, CHAT, "", "{" MESSAGES ",\"tools\":[" TOOL "]}", &json), 400);
    assert_non_null(strstr(text_in(json_object_get(json, "error"), "message"), "--tool-call-parser"));
    json_decref(json);
}

int main(void)
{
#define SERVED(test) cmocka_unit_test_setup_teardown(test, scripted_set_up, scripted_tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(former_calls_have_ids),
        SERVED(none_is_called),
        SERVED(whole_answers),
        SERVED(cut_and_unread_calls),
        SERVED(streams),
        SERVED(continued_streams),
        SERVED(bad_tools_are_refused),
        SERVED(large_tools_are_refused),
        SERVED(tools_need_a_format),
        SERVED(names_are_shown_in_whole_characters),
    };
    return cmocka_run_group_tests(tests, open_chat, close_chat);
}
