/* Chat templates without golden files: what no message can do, what a template cannot take, content in parts, and where
 * Jinja is easily got wrong. Expected texts are Jinja 3.1's and transformers'. */
#include "base/rng.h"
#include "harness/seed.h"
#include "harness/tokenizer/asked.h"
#include "tokenizer/chat.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TURNS "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"

/* The outcome of a template on a conversation: its text, or the error's line. */
static char *outcome(const char *template, const char *conversation, const char *variables)
{
    cot_chat_template *chat;
    cot_chat_text text = {0};
    cot_error error = {0};
    const cot_chat_options options = {.size = sizeof options, .chat_template_kwargs = variables};
    cot_status status = cot_chat_template_parse(&chat, template, strlen(template), "t", &error);
    if (status == COT_OK) {
        status = cot_chat_render(chat, &text, conversation, strlen(conversation), &options, &error);
        cot_chat_template_close(chat);
    }
    if (status != COT_OK) assert_null(text.text);
    char *out = status == COT_OK ? strdup(text.text) : strdup(error.message);
    cot_chat_text_free(&text);
    return out;
}

typedef struct row {
    const char *template, *expected;
} row;

#define HI "[{\"role\": \"user\", \"content\": \"hi\"}]"

// clang-format off
static const row rows[] = {
    {"{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}", "user: hi"},
    {"{{ 'a' + 1 ~ 2 }} {{ -7 % 3 }} {{ -7 // 2 }} {{ 2 ** 3 ** 2 }} {{ 1 < 2 < 2 }}", "a12 2 -4 64 False"},
    {"{{ 7 / 2 }} {{ 1e16 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100.0 }} {{ 5e-324 }} {{ 1.5e300 }}",
     "3.5 1e+16 0.30000000000000004 1e-05 100.0 5e-324 1.5e+300"},
    {"{{ ['it\\'s', none, true, 1.0, (1,), {'k': []}] }}", "[\"it's\", None, True, 1.0, (1,), {'k': []}]"},
    {"{{ {}['items'] }}", "<function items>"},
    {"{{ messages | tojson }}", "[{\"role\": \"user\", \"content\": \"hi\"}]"},
    {"{{ {'b': 1, 'a': [1, {}]} | tojson(indent=1, sort_keys=true) }}", "{\n \"a\": [\n  1,\n  {}\n ],\n \"b\": 1\n}"},
    {"  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"},
    {"a {{- ' b ' -}} c{#- d -#} e", "a b ce"},
    {"{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "231"},
    {"{% set ns = namespace(n=0) %}{% for i in 'abc' %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}", "6"},
    // A filter of a loop sees what the body did meanwhile, one item ahead where the body asked for it.
    {"{% set ns = namespace(on=true) %}{% for i in [1, 2, 3] if ns.on %}{{ i }}{% if i == 2 %}{% set ns.on = false %}"
     "{% endif %}{% endfor %}", "12"},
    {"{% set ns = namespace(on=true) %}{% for i in [1, 2, 3] if ns.on %}{{ i }}{{ loop.last }}{% if i == 1 %}"
     "{% set ns.on = false %}{% endif %}{% endfor %}", "1False2True"},
    {"{% for i in [1, 2, 3, 4] if i % 2 %}{{ loop.length }}{{ loop.revindex0 }}{% endfor %}", "2120"},
    {"{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
     "1(2(3))"},
    {"{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, k=4) }}",
     "11(){}12(3,){'k': 4}"},
    {"{% macro f() %}[{{ caller(1) }}]{% endmacro %}{% call(x) f() %}{{ x }}{% endcall %}", "[1]"},
    {"{{ missing }}{{ missing is defined }}{{ missing | default('d') }}{{ (1 if false) is defined }}", "FalsedFalse"},
    {"{{ missing.x }}", "the chat template fails on line 1: 'missing' is undefined"},
    {"\n{{ 'a' + 1 }}", "the chat template fails on line 2: can only concatenate str (not \"int\") to str"},
    {"{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
     "the chat template fails on line 1: access to attribute '__class__' of 'str' object is unsafe."},
    {"{{ [].append(1) }}", "the chat template fails on line 1: access to attribute 'append' of 'list' object is unsafe."},
    {"{{ raise_exception('no ' ~ messages[0].role) }}", "the chat template refuses: no user"},
    {"{{ 9223372036854775807 + 1 }}", "the chat template fails on line 1: an integer beyond 64 bits"},
    {"{{ 9223372036854775808 }}",
     "cannot read the chat template 't': line 1: 9223372036854775808 is no integer of 64 bits"},
    {"a\n{% if x %}", "cannot read the chat template 't': line 2: unexpected end of template, 'endif' is missing"},
    {"{{ x | nothing }}", "cannot read the chat template 't': line 1: no filter named 'nothing'"},
    {"{% if false %}{{ x | nothing }}{% endif %}ok", "ok"},
    {"{% break %}", "cannot read the chat template 't': line 1: 'break' or 'continue' outside of a loop"},
    {"{{ range(100001) }}", "the chat template fails on line 1: a range of more than 100000 items"},
    {"{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807) | list | length }}", "2"},
    {"{{ 'äöü'[1:][::-1] }}{{ 'abc'[-2:] }}{{ [1, 2, 3][::-2] }}{{ 'abc'[5:] }}", "üöbc[3, 1]"},
    {"{{ 'abc'[::-9223372036854775807] }}{{ 'abc'[1:9223372036854775807:9223372036854775807] }}", "cb"},
    {"{{ 'ß'.upper() }}{{ 'ΑΣ Σ'.lower() }}{{ 'ǆx ﬁ'.title() }}{{ 'it\\'s a-b' | title }}", "SSας σǅx FiIt's A-B"},
    {"{{ ' \xc2\xa0\xe3\x80\x80 x\xe2\x80\x8b\x1f' | trim }}|", "x\xe2\x80\x8b|"},
    {"{{ ' a  b c '.split(none, 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a\r\nb\x0b'.splitlines() }}",
     "['a', 'b c ']['a,b', 'c']['a', 'b']"},
    {"{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A'] | sort }}{{ {'b': 1, 'A': 2} | dictsort }}",
     "[3, 2, 1]['A', 'b'][('A', 2), ('b', 1)]"},
    {"{{ [[{}], [1, 2]] | map('map', 'string') | map('join', '-') | list }}", "['{}', '1-2']"},
    {"{{ ('<' | safe) + '<' }}{{ '<' + ('<' | safe) ~ '<' }}", "<&lt;<<<"},
    {"{{ 'a' 'b' \"c\" ~ 'd' }}{% set x = 'a' 'b' 'c' %}{{ x ~ 'e' }}{{ x ~ 'f' }}{{ x }}", "abcdabceabcfabc"},
    {"{% set a = 'x' ~ 'y' ~ 'z' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }} {{ b }} {{ c }}", "xyz xyz1 xyz2"},
    {"{{ 1 == 1.0 }}{{ 9007199254740993 == 9007199254740992.0 }}{{ {1: 'a', true: 'b', 1.0: 'c'} }}", "TrueFalse{1: 'c'}"},
    {"{{ none | selectattr('x') | list }}{{ 0 | map('upper') | list }}{{ missing | reject('odd') | list }}", "[][][]"},
    {"{{ false | map('no filter') | list }}{{ none | rejectattr | list }}{{ '' | select | list }}", "[][][]"},
    {"{{ 1 | map('upper') | list }}", "the chat template fails on line 1: 'int' object is not iterable"},
    {"{{ k }}{{ bos_token is defined }}", "vFalse"},
};
// clang-format on

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *got = outcome(rows[i].template, HI, "{\"k\": \"v\"}");
        if (strcmp(got, rows[i].expected) != 0)
            fail_msg("'%s' gives '%s', not '%s'", rows[i].template, got, rows[i].expected);
        free(got);
    }
}

/* Conversations that are none, and what is said of them. */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *conversation, *variables, *expected;
    } refused[] = {
        {"[", NULL, "the conversation is not JSON"},
        {"[]", NULL, "neither a list of messages nor an object with 'messages'"},
        {"{}", NULL, "neither a list of messages"},
        {"[1]", NULL, "messages[0] is not an object with a 'role'"},
        {"[{\"role\": \"user\"}, {\"role\": 1}]", NULL, "messages[1] is not an object with a 'role'"},
        {"[{\"role\": \"user\", \"content\": 1}]", NULL,
         "the content of messages[0] is neither text nor a list"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]", NULL, "a part of type 'image'"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", NULL, "a part that is not"},
        {"{\"messages\": [{\"role\": \"user\"}], \"tool\": []}", NULL, "the conversation has 'tool'"},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": {}}", NULL, "'tools' is not a list"},
        {"{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": []}", NULL, "is not an object"},
        {HI, "{\"messages\": []}", "chat_template_kwargs cannot set 'messages'"},
        {HI, "{", "chat_template_kwargs is not JSON"},
        {HI, "[]", "chat_template_kwargs is not an object"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *got = outcome(TURNS, refused[i].conversation, refused[i].variables);
        if (!strstr(got, refused[i].expected)) fail_msg("'%s', not '%s'", got, refused[i].expected);
        free(got);
    }
    cot_chat_template *chat;
    cot_error error;
    assert_int_equal(cot_chat_template_parse(&chat, "\xff", 1, "t", &error), COT_MALFORMED);
    assert_null(chat);
}

/* Parts become one text unless the template looks into them; which it does is asked of each message. */
static void test_parts(void **state)
{
    (void)state;
    static const char conversation[] =
        "[{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
        "\"text\": "
        "\"b\"}]}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"c\"}]}]";
    static const row parts[] = {
        {"{% for m in messages %}{{ m.content + '.' }}{% endfor %}", "a\nb.c."},
        {"{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %};{% endfor %}",
         "a\nb;c;"},
        {"{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}",
         "[a][b];[c];"},
        {"{{ messages[0].content | map(attribute='text') | join }}{{ messages[1].content }}", "abc"},
        {"{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
         "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}][{\"type\": "
         "\"text\", "
         "\"text\": \"c\"}]"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *got = outcome(parts[i].template, conversation, NULL);
        assert_string_equal(got, parts[i].expected);
        free(got);
    }
}

/* What a template cannot take: steps, memory, depth. One clear line, soon. */
static void test_limits(void **state)
{
    (void)state;
    static const char *const greedy[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor "
        "%}{{ ns.s }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ [1] * 1000000000000 }}",
        "{{ 'abc'.replace('', 'x' * 1000000) * 1000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' | indent(1000000000000) }}",
        "{{ 1 | tojson(indent=1000000000000) }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l "
        "}}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l "
        "| tojson }}",
    };
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        cot_chat_template *chat;
        cot_chat_text text;
        cot_jinja_failure failure = {0};
        cot_error error = {0};
        json_t *messages = json_loads(HI, 0, NULL);
        assert_int_equal(cot_chat_template_parse(&chat, greedy[i], strlen(greedy[i]), "t", &error), COT_OK);
        const cot_chat_request request = {.messages = messages, .limits = {1 << 20, 16 << 20}};
        assert_int_equal(cot_chat_render_request(chat, &text, &request, &failure, &error), COT_MALFORMED);
        if (failure.reason != COT_JINJA_LIMIT) fail_msg("%s: %s", greedy[i], error.message);
        assert_null(text.text);
        cot_chat_template_close(chat);
        json_decref(messages);
    }
    // Nesting of the template itself.
    static const char *const deep[] = {"(", "[", "not ", "-", "1 if ", "{'a':", "a.b(", "a[", "x if x else "};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        size_t unit = strlen(deep[i]), count = 20000;
        char *template = malloc(unit * count + 3);
        memcpy(template, "{{", 2);
        for (size_t k = 0; k < count; k++) memcpy(template + 2 + k * unit, deep[i], unit);
        template[2 + unit * count] = 0;
        char *got = outcome(template, HI, NULL);
        assert_true(strlen(got) > 10 && strlen(got) < 256);
        free(got);
        free(template);
    }
}

/* A template that works is asked every few thousand steps whether it may go on, whatever it does, and ends at whichever
 * question is answered so. */
static void test_stops(void **state)
{
    (void)state;
    static const char *const busy[] = {
        "{% for i in range(90000) %}{% endfor %}done",
        "{% for i in range(400) %}{% for j in range(400) %}{{ i * j }}{% endfor %}{% endfor %}done",
        "{% set ns = namespace(s='x') %}{% for i in range(22) %}{% set ns.s = ns.s + ns.s %}{% endfor %}done",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(14) }}done",
    };
    for (size_t i = 0; i < sizeof busy / sizeof *busy; i++) {
        cot_chat_template *chat;
        cot_chat_text text = {0};
        cot_error error = {0};
        asked a = {.patience = UINT64_MAX};
        const cot_chat_options options = {.size = sizeof options, .is_stopped = is_stopped, .context = &a};
        assert_int_equal(cot_chat_template_parse(&chat, busy[i], strlen(busy[i]), "t", &error), COT_OK);
        assert_int_equal(cot_chat_render(chat, &text, HI, strlen(HI), &options, &error), COT_OK);
        assert_string_equal(text.text + text.bytes - 4, "done");
        cot_chat_text_free(&text);
        const uint64_t questions = a.times;
        if (questions < 4) fail_msg("template %zu: asked %" PRIu64 " times", i, questions);
        const uint64_t stops[] = {1, 2, questions, 1 + cot_random_bits(test_seed(), i, 0) % questions};
        for (size_t k = 0; k < sizeof stops / sizeof *stops; k++) {
            a = (asked){.patience = stops[k]};
            text = (cot_chat_text){(char *)16, 16, (uint8_t *)16};
            assert_int_equal(cot_chat_render(chat, &text, HI, strlen(HI), &options, &error), COT_TIMED_OUT);
            assert_string_equal(error.message, "stopped");
            assert_null(text.text);
            assert_true(a.times == stops[k]); // nothing went on after it
        }
        cot_chat_template_close(chat);
    }
}

/* Nesting of the conversation is no fault of the template. */
static void test_deep_conversation(void **state)
{
    (void)state;
    static const int depths[] = {1000, 1600, 2000};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        char brackets[2][2001] = {{0}}, conversation[4200];
        memset(brackets[0], '[', (size_t)depths[i]);
        memset(brackets[1], ']', (size_t)depths[i]);
        snprintf(conversation, sizeof conversation,
                 "[{\"role\": \"user\", \"content\": \"hi\", \"x\": %s%s}]", brackets[0], brackets[1]);
        char *got = outcome("{{ messages[0].content }}", conversation, NULL);
        assert_string_equal(got, depths[i] < 1500 ? "hi" : "the conversation nests deeper than 1500");
        free(got);
    }
}

/* A string that is appended to again and again is not copied each time. */
static void test_growth(void **state)
{
    (void)state;
    char *got = outcome(
        "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = ns.s ~ 'abcdefgh' ~ i %}"
        "{% endfor %}{{ ns.s | length }}",
        HI, NULL);
    assert_string_equal(got, "1288890");
    free(got);
}

static void test_continue(void **state)
{
    (void)state;
    static const struct {
        const char *template, *content, *expected;
    } continued[] = {
        {TURNS, "\"so \"", "<s>user\nso "},
        {"<s>{{ messages[0].content | trim }}</s>", "\"so \"", "<s>so"},
        {TURNS, "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]",
         "<s>user\na\nb"},
        {"nothing", "\"so\"",
         "the last message, which is to be continued, is not in what the chat template makes"},
        {TURNS, "null", "the last message has no text to continue"},
    };
    for (size_t i = 0; i < sizeof continued / sizeof *continued; i++) {
        cot_chat_template *chat;
        cot_chat_text text;
        cot_error error = {0};
        char conversation[256];
        cot_chat_options options = {.size = sizeof options, .continue_final_message = true};
        snprintf(conversation, sizeof conversation, "[{\"role\": \"user\", \"content\": %s}]",
                 continued[i].content);
        assert_int_equal(
            cot_chat_template_parse(&chat, continued[i].template, strlen(continued[i].template), "t", &error),
            COT_OK);
        cot_status status =
            cot_chat_render(chat, &text, conversation, strlen(conversation), &options, &error);
        assert_string_equal(status == COT_OK ? text.text : error.message, continued[i].expected);
        cot_chat_text_free(&text);
        options.add_generation_prompt = true;
        assert_int_equal(cot_chat_render(chat, &text, conversation, strlen(conversation), &options, &error),
                         COT_INVALID_ARGUMENT);
        cot_chat_template_close(chat);
    }
}

#define CALL(function) "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" function "]}]"
#define FUNCTION(arguments) "{\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}"
#define SHOW "{% for m in messages %}{% for c in m.tool_calls %}"
#define SHOWN "{% endfor %}{% endfor %}"

static char *openai_outcome(const char *template, const char *conversation)
{
    cot_chat_template *chat;
    cot_chat_text text = {0};
    cot_error error = {0};
    const cot_chat_options options = {.size = sizeof options, .openai = true};
    assert_int_equal(cot_chat_template_parse(&chat, template, strlen(template), "t", &error), COT_OK);
    const cot_status status =
        cot_chat_render(chat, &text, conversation, strlen(conversation), &options, &error);
    char *out = strdup(status == COT_OK ? text.text : error.message);
    cot_chat_text_free(&text);
    cot_chat_template_close(chat);
    return out;
}

/* Arguments come as JSON text and reach a template in the form that it wants, which it was asked when it was read. */
static void test_openai(void **state)
{
    (void)state;
    static const char json[] = SHOW "{{ c.function.arguments | tojson }}" SHOWN,
                      items[] = SHOW
                      "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}" SHOWN,
                      text[] = SHOW "{{ '<' + c.function.arguments + '>' }}" SHOWN,
                      printed[] = SHOW "<{{ c.function.arguments }}>" SHOWN,
                      either[] =
                          SHOW "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
                               "{{ c.function.arguments | tojson }}{% endif %}" SHOWN,
                      refuses[] = SHOW
                      "{% if c.function.arguments is mapping %}{{ raise_exception('text!') }}{% endif %}"
                      "{{ c.function.arguments }}" SHOWN,
                      // one that takes no conversation but the last that it is asked with
        late[] = "{% if messages[-1].role == 'tool' or 'content' in messages[-1] %}"
                 "{{ raise_exception('no') }}{% endif %}" SHOW "{{ '<' + c.function.arguments + '>' }}" SHOWN,
                      // one that shows calls beside no content alone
        silent[] = "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
                   "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% else %}{{ m.content + ';' }}"
                   "{% endif %}{% endfor %}",
                      flat[] = SHOW "{{ c.name }}{{ c.arguments | tojson }}" SHOWN,
                      none[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    static const struct {
        const char *template, *conversation, *expected;
    } rows_of_calls[] = {
        {json, CALL(FUNCTION("\"{\\\"a\\\":1.50,\\n\\\"b\\\":[\\\"\\u00e9\\\"]}\"")),
         "{\"a\": 1.5, \"b\": [\"é\"]}"},
        {json, CALL(FUNCTION("{\"a\": 1}")), "{\"a\": 1}"},
        {items,
         CALL(FUNCTION("\"{\\\"a\\\": 1, \\\"b\\\": \\\"x\\\"}\"") ", " FUNCTION("\"{\\\"c\\\":null}\"")),
         "a=1;b=x;c=None;"},
        {text, CALL(FUNCTION("\"{\\\"a\\\":1}\"")), "<{\"a\":1}>"},
        {text, CALL(FUNCTION("{\"a\": [0.1, true]}")), "<{\"a\": [0.1, true]}>"},
        {printed, CALL(FUNCTION("\"{\\\"a\\\":1}\"")), "<{\"a\":1}>"},
        {refuses, CALL(FUNCTION("\"{\\\"a\\\":1}\"")), "{\"a\":1}"},
        {either, CALL(FUNCTION("\"{\\\"a\\\":1}\"")), "{\"a\": 1}"},
        {late, "[{\"role\": \"assistant\", \"tool_calls\": [" FUNCTION("\"{\\\"a\\\":1}\"") "]}]",
         "<{\"a\":1}>"},
        {silent,
         "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [" FUNCTION(
             "\"{\\\"a\\\":1}\"") "]}]",
         "<{\"a\":1}>"},
        {flat, CALL("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\"}"), "f{\"a\": 1}"},
        // no arguments at all, in each of the ways that clients have
        {json,
         CALL(FUNCTION("\"\"") ", " FUNCTION("\" \\n\"") ", " FUNCTION("null") ", " FUNCTION(
             "\"null\"") ", " FUNCTION("\"{}\"") ", {\"function\": {\"name\": \"f\"}}"),
         "{}{}{}{}{}{}"},
        {text, CALL(FUNCTION("\"\"") ", " FUNCTION("null") ", {\"function\": {\"name\": \"f\"}}"),
         "<><{}><{}>"},
        // what is no object is what the model said
        {json, CALL(FUNCTION("\"{\\\"a\\\": 1\"") ", " FUNCTION("\"[1]\"") ", " FUNCTION("\"nan\"")),
         "\"{\\\"a\\\": 1\"\"[1]\"\"nan\""},
        {json, CALL(FUNCTION("\"{\\\"a\\\": 99999999999999999999}\"")),
         "\"{\\\"a\\\": 99999999999999999999}\""},
        {either,
         CALL(FUNCTION("\"{\\\"a\\\": 1e400}\"") ", " FUNCTION("\"{\\\"a\\\": 99999999999999999999}\"")),
         "{\"a\": 1e400}{\"a\": 99999999999999999999}"},
        // an empty list of calls is none
        {"{% for m in messages %}{{ m.tool_calls is defined }}{{ m.content }}{% endfor %}",
         "[{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": []}, {\"role\": \"assistant\", "
         "\"content\": \"c\", \"tool_calls\": [{}]}]",
         "FalseaTruec"},
        {none,
         "[{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": [1, \"x\", {}, {\"function\": 2}]},"
         " {\"role\": \"user\", \"content\": \"b\", \"tool_calls\": {}}]",
         "ab"},
    };
    for (size_t i = 0; i < sizeof rows_of_calls / sizeof *rows_of_calls; i++) {
        char *got = openai_outcome(rows_of_calls[i].template, rows_of_calls[i].conversation);
        if (strcmp(got, rows_of_calls[i].expected) != 0) fail_msg("row %zu: '%s'", i, got);
        free(got);
    }
    char *got = outcome(json, CALL(FUNCTION("\"{}\"")), NULL); // as transformers has it
    assert_string_equal(got, "\"{}\"");
    free(got);
    got = outcome("{{ messages[0].tool_calls }}", CALL(""), NULL);
    assert_string_equal(got, "[]");
    free(got);
}

/* Arguments that would take more memory than a rendering may, all calls' together, are refused before they are read. */
static void test_openai_limits(void **state)
{
    (void)state;
    enum { LISTS = 1 << 16 };
    static char text[3 * LISTS + 16] = "{\"a\":[";
    cot_chat_template *chat;
    cot_error error = {0};
    for (int i = 0; i < LISTS; i++) strcpy(text + 6 + 3 * i, "[],");
    strcpy(text + 5 + 3 * LISTS, "]}");
    json_t *messages = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(messages, json_pack("{s:s,s:[{s:{s:s,s:s}}]}", "role", "assistant",
                                                  "tool_calls", "function", "name", "f", "arguments", text));
    assert_int_equal(cot_chat_template_parse(&chat, "x", 1, "t", &error), COT_OK);
    static const struct {
        size_t mebibytes;
        const char *refused;
    } limits[] = {{16, "the arguments of messages[0]'s tool calls take too much memory"},
                  {32, "the arguments of messages[1]'s tool calls take too much memory"},
                  {128, NULL}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        cot_chat_text out;
        const cot_chat_request request = {
            .messages = messages, .openai = true, .limits = {1 << 20, limits[i].mebibytes << 20}};
        assert_int_equal(cot_chat_render_request(chat, &out, &request, NULL, &error),
                         limits[i].refused ? COT_MALFORMED : COT_OK);
        if (limits[i].refused) assert_non_null(strstr(error.message, limits[i].refused));
        cot_chat_text_free(&out);
    }
    cot_chat_template_close(chat);
    json_decref(messages);
}

/* What is null is left out, and given as none to a template that fails so; of two failures the first is told. */
static void test_nulls(void **state)
{
    (void)state;
    static const struct {
        const char *template, *conversation, *expected;
    } nulls[] = {
        {"{{ messages[0].content is defined }}", "[{\"role\": \"user\", \"content\": null}]", "False"},
        {"{{ messages[0].content + '' if messages[0].content is not none }}",
         "[{\"role\": \"user\", \"content\": null}]", ""},
        {"{{ messages[0].content + '' if messages[0]['content'] is not none }}", "[{\"role\": \"user\"}]",
         ""},
        {"{% if messages[0].content is undefined %}{{ raise_exception('none?') }}{% endif %}{{ "
         "messages[0].name }}",
         "[{\"role\": \"user\", \"name\": null}]", ""}, // no other null comes with the content's
        {"{{ messages[0].content + '' if messages[0].content is not none }}{{ messages[0].x is defined }}",
         "[{\"role\": \"user\", \"content\": null, \"x\": null}]", "False"},
        {"{% if messages[0].thinking is none %}{{ messages[0].reasoning_content }}{% endif %}{{ "
         "messages[0].x.y }}",
         "[{\"role\": \"user\", \"thinking\": null, \"reasoning\": \"r\", \"x\": {\"y\": 1}}]", "1"},
        {"{{ messages[0].content + 'x' }}", "[{\"role\": \"user\", \"content\": null}]", "x"},
        {"{{ messages[0].content + 'x' }}{{ missing.x }}", "[{\"role\": \"user\"}]",
         "the chat template fails on line 1: 'dict object' has no attribute 'content'"},
        {"{% if messages[0].content is string %}{{ raise_exception('empty') }}{% endif %}{{ "
         "messages[0].content + '' "
         "if messages[0].content is not none }}",
         "[{\"role\": \"user\", \"content\": null}]", ""},
        {"{{ messages[0].content + 'x' }}{{ missing.x }}", HI,
         "the chat template fails on line 1: 'missing' is undefined"},
        // parts are joined in the second attempt as in the first
        {"{% if messages[1].content is undefined %}{{ missing.x }}{% endif %}{{ messages[0].content + '.' }}",
         "[{\"role\": \"user\", \"content\": [\"a\", \"b\"]}, {\"role\": \"assistant\"}]", "a\nb."},
    };
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) {
        char *got = outcome(nulls[i].template, nulls[i].conversation, NULL);
        if (strcmp(got, nulls[i].expected) != 0) fail_msg("row %zu: '%s'", i, got);
        free(got);
    }
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* What a model's folder says, by turns: nothing, a config, a list of templates, a file beside it. */
static void test_folder(void **state)
{
    (void)state;
    char folder[] = "/tmp/coterie-chat-XXXXXX", path[512];
    cot_chat_template *chat;
    cot_chat_text text;
    cot_error error = {0};
    static const char tools[] = "{\"messages\": " HI ", \"tools\": [{}]}";
    static const struct {
        const char *name, *text, *plain, *with_tools;
    } steps[] = {
        {"tokenizer_config.json",
         "{\"chat_template\": \"{{ bos_token }}{{ eos_token }}\", \"bos_token\": \"<s>\", "
         "\"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null, \"add_bos_token\": true, "
         "\"model_max_length\": 1000000000000000019884624838656}",
         "<s></s>", "<s></s>"},
        {"special_tokens_map.json",
         "{\"bos_token\": \"no\", \"n\": 99999999999999999999, \"unk_token\": \"u\"}", "<s></s>", "<s></s>"},
        {"tokenizer_config.json",
         "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d{{ unk_token }}\"}, {\"name\": "
         "\"tool_use\", \"template\": \"t\"}, {\"name\": \"rag\", \"template\": \"{{\"}]}",
         "du", "t"},
        {"tokenizer_config.json",
         "{\"chat_template\": {\"tool_use\": \"ot\", \"default\": \"od\", \"rag\": \"{{\"}}", "od", "ot"},
        {"chat_template.jinja", "file", "file", "file"},
        {"additional_chat_templates/rag.jinja", "{{", "file", "file"},
        {"additional_chat_templates/tool_use.jinja", "tools", "file", "tools"},
        {"additional_chat_templates/default.jinja", "other", "other", "tools"},
    };
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(cot_chat_template_open(&chat, folder, NULL, &error), COT_NOT_FOUND);
    assert_non_null(strstr(error.message, "--chat-template FILE"));
    assert_null(chat);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const cot_chat_options options = {.size = sizeof options};
        write_text(folder, steps[i].name, steps[i].text);
        if (cot_chat_template_open(&chat, folder, NULL, &error)) fail_msg("%s", error.message);
        assert_int_equal(cot_chat_render(chat, &text, HI, strlen(HI), &options, &error), COT_OK);
        assert_string_equal(text.text, steps[i].plain);
        for (size_t k = 0; k < text.bytes; k++) assert_int_equal(text.own[k], 1);
        cot_chat_text_free(&text);
        assert_int_equal(cot_chat_render(chat, &text, tools, strlen(tools), &options, &error), COT_OK);
        assert_string_equal(text.text, steps[i].with_tools);
        cot_chat_text_free(&text);
        cot_chat_template_close(chat);
    }
    // A broken template for tools is told where tools are given.
    write_text(folder, "additional_chat_templates/tool_use.jinja", "{{");
    const cot_chat_options broken = {.size = sizeof broken};
    assert_int_equal(cot_chat_template_open(&chat, folder, NULL, &error), COT_OK);
    assert_int_equal(cot_chat_render(chat, &text, HI, strlen(HI), &broken, &error), COT_OK);
    assert_string_equal(text.text, "other");
    cot_chat_text_free(&text);
    assert_int_equal(cot_chat_render(chat, &text, tools, strlen(tools), &broken, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tool_use.jinja': line 1"));
    cot_chat_template_close(chat);
    write_text(folder, "additional_chat_templates/tool_use.jinja", "tools");
    // A template for tools alone.
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/additional_chat_templates/default.jinja", folder);
    unlink(path);
    const cot_chat_options options = {.size = sizeof options};
    assert_int_equal(cot_chat_template_open(&chat, folder, NULL, &error), COT_OK);
    assert_int_equal(cot_chat_render(chat, &text, HI, strlen(HI), &options, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "for conversations with tools alone"));
    assert_int_equal(cot_chat_render(chat, &text, tools, strlen(tools), &options, &error), COT_OK);
    assert_string_equal(text.text, "tools");
    cot_chat_text_free(&text);
    cot_chat_template_close(chat);
    write_text(folder, "additional_chat_templates/tool_use.jinja", "{{");
    assert_int_equal(cot_chat_template_open(&chat, folder, NULL, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "tool_use.jinja': line 1"));

    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    write_text(folder, "tokenizer_config.json", "[]");
    assert_int_equal(cot_chat_template_open(&chat, folder, NULL, &error), COT_MALFORMED);
    assert_int_equal(cot_chat_template_open(&chat, folder, "/nowhere", &error), COT_MALFORMED);
    unlink(path);
    assert_int_equal(cot_chat_template_open(&chat, folder, "/nowhere", &error), COT_NOT_FOUND);
    assert_int_equal(cot_chat_template_open(&chat, "/nowhere", NULL, &error), COT_NOT_FOUND);
    assert_non_null(strstr(error.message, "cannot open '/nowhere'"));
    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stops),         cmocka_unit_test(test_deep_conversation),
        cmocka_unit_test(test_growth),

        cmocka_unit_test(test_continue),      cmocka_unit_test(test_folder),
        cmocka_unit_test(test_openai),        cmocka_unit_test(test_nulls),
        cmocka_unit_test(test_openai_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
