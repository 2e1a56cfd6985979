/* Answers that are written against their parser: imitated markers, tags within values, calls that break off; and random ones. */
#include "harness/dialect/heard.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* In texts "{<x>}" is x as an added token: "\1" and "\2" stand around it. */
#define T(name) "\1" name "\2"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"note\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {"
    "\"text\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, \"on\": {\"type\": \"boolean\"}, "
    "\"any\": {}, "
    "\"list\": {\"type\": \"array\"}, \"kind\": {\"$ref\": \"#/$defs/Kind\"}, "
    "\"maybe\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}, {\"type\": \"null\"}]}}, "
    "\"$defs\": {\"Kind\": {\"enum\": [\"1\", \"2\"]}, \"Loop\": {\"$ref\": \"#/$defs/Loop\"}}}}}]";

typedef struct row {
    const char *family, *text, *content, *calls; // calls: name(arguments), one after the other
    bool cut;
} row;

#define DEEP "{\"a\": {\"b\": [{\"c\": \"}]}\\\"}\"}]}}"

/* Answers of vocabularies in which no marker is a token. */
static const row texts[] = {
    // cut in the end of a call
    {"minimax-m2",
     "<minimax:tool_call><invoke name=\"note\"><parameter name=\"n\">1</parameter></invoke>\n</minimax:tool",
     "", "note({\"n\": 1})", true},
    {"hermes", "<tool_call>{\"name\": \"note\", \"arguments\": {\"n\": 1}}\n</tool_call", "",
     "note({\"n\": 1})", true},
    {"hermes", "<tool_call>{\"name\": \"note\", \"arguments\": {\"n\": 1}}\n</tool_call", "</tool_call",
     "note({\"n\": 1})", false},
    {"minimax-m2", "<minimax:tool_call><invoke name=\"note\"><parameter name=\"text\">a </minimax:tool", "",
     "note({\"text\": \"a </minimax:tool)", true},
};

static const row rows[] = {
    // nested braces, quotes and braces within strings
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": " DEEP "}" T("</tool_call>"), "",
     "note(" DEEP ")", false},
    // a marker within a string is data, as a token or not
    {"hermes",
     T("<tool_call>") "{\"name\": \"note\", \"arguments\": {\"text\": \"</tool_call>" T(
         "</tool_call>") "\"}}" T("</tool_call>") "x",
     "x", "note({\"text\": \"</tool_call></tool_call>\"})", false},
    // imitated markers are text, also around a real call
    {"hermes",
     "<tool_call>{\"name\": \"note\"}</tool_call> " T("<tool_call>") "{\"name\": \"note\"}" T("</tool_call>"),
     "<tool_call>{\"name\": \"note\"}</tool_call>", "note({})", false},
    // "arguments" within the arguments, and before the name
    {"hermes",
     T("<tool_call>") "{\"arguments\": {\"name\": \"x\", \"arguments\": {}}, \"name\": \"note\"}" T(
         "</tool_call>"),
     "", "note({\"name\": \"x\", \"arguments\": {}})", false},
    // a name that is no string, empty, or without an end
    {"hermes", T("<tool_call>") "{\"name\": 7, \"arguments\": {}}" T("</tool_call>"),
     "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>", "", false},
    {"hermes", T("<tool_call>") "{\"name\": \"\", \"arguments\": {}}" T("</tool_call>"),
     "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>", "", false},
    {"hermes", T("<tool_call>") "{\"name\": \" \", \"arguments\": {}}" T("</tool_call>"),
     "<tool_call>{\"name\": \" \", \"arguments\": {}}</tool_call>", "", false},
    {"hermes", T("<tool_call>") "{\"name\": \"note\\u0000b\", \"arguments\": {}}" T("</tool_call>"),
     "<tool_call>{\"name\": \"note\\u0000b\", \"arguments\": {}}</tool_call>", "", false},
    {"mistral", T("[TOOL_CALLS]") "[{\"name\": \"a b\", \"arguments\": {}}]",
     "[TOOL_CALLS][{\"name\": \"a b\", \"arguments\": {}}]", "", false},
    // cut: in the arguments, behind the name, in an escape
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": {\"text\": \"a\\", "",
     "note({\"text\": \"a\\)", true},
    {"hermes", T("<tool_call>") "{\"name\": \"note\", ", "", "note()", true},
    {"hermes", "a" T("<tool_call>") "{\"name\": \"no", "a", "", true},
    {"hermes", "a" T("<tool_call>") "{\"name\": \"no", "a<tool_call>{\"name\": \"no", "", false},
    {"qwen3-coder", T("<tool_call>") "\n<function=no", "", "", true},
    {"qwen3-coder", T("<tool_call>") "<function=note><parameter=n>1</parameter>\n<pa", "", "note({\"n\": 1})",
     true},
    {"kimi-k2", T("<|tool_calls_section_begin|>"), "", "", true},
    {"llama3-json", "{\"name\": \"no", "{\"name\": \"no", "", true},
    // arguments within a string: an object, nothing, or something else; and cut
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": \" {\\\"n\\\": 1}\"}" T("</tool_call>"),
     "", "note( {\"n\": 1})", false},
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": \"\"}" T("</tool_call>"), "", "note({})",
     false},
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": \"a\"}" T("</tool_call>"),
     "<tool_call>{\"name\": \"note\", \"arguments\": \"a\"}</tool_call>", "", false},
    {"hermes", T("<tool_call>") "{\"arguments\": \"[1]\", \"name\": \"note\"}" T("</tool_call>"),
     "<tool_call>{\"arguments\": \"[1]\", \"name\": \"note\"}</tool_call>", "", false},
    {"hermes", T("<tool_call>") "{\"name\": \"note\", \"arguments\": \"{\\\"n", "", "note()", true},
    // the name has escapes
    {"hermes", T("<tool_call>") "{\"name\": \"n\\u006fte\", \"arguments\": {}}" T("</tool_call>"), "",
     "note({})", false},
    // a value's own end tag in its text, which no tag of the call follows
    {"qwen3-coder",
     T("<tool_call>") "\n<function=note>\n<parameter=text>\na </parameter> b\n</parameter>\n</function> "
                      "c\n</parameter>\n</function>\n" T("</tool_call>"),
     "c\n</parameter>\n</function>\n", "note({\"text\": \"a </parameter> b\"})", false},
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=text>\n<parameter=n>1</parameter></x>\n</parameter></"
                      "function>" T("</tool_call>"),
     "", "note({\"text\": \"<parameter=n>1</parameter></x>\"})", false},
    // types
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=n>\n 7 "
                      "\n</parameter><parameter=on>TRUE</parameter><parameter=any>7</parameter>"
                      "<parameter=list>[1, "
                      "\"a\"]</parameter><parameter=kind>1</parameter><parameter=maybe>[1]</parameter>"
                      "<parameter=other>null</parameter></function>" T("</tool_call>"),
     "",
     "note({\"n\": 7, \"on\": true, \"any\": \"7\", \"list\": [1, \"a\"], \"kind\": \"1\", \"maybe\": "
     "\"[1]\", \"other\": \"null\"})",
     false},
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=n>9007199254740993000000</parameter><parameter=maybe>null</"
                      "parameter></function>" T("</tool_call>"),
     "", "note({\"n\": 9007199254740993000000, \"maybe\": null})", false},
    // what JSON has to escape
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=text>\n\"\\\t\x01é\n</parameter></function>" T(
         "</tool_call>"),
     "", "note({\"text\": \"\\\"\\\\\\t\\u0001é\"})", false},
    // a value's end tag is missing: another argument begins, the function ends, the call does, the text does
    {"qwen3-coder",
     T("<tool_call>") "\n<function=note>\n<parameter=text>\nab\n<parameter=n>\n1\n</parameter>\n</"
                      "function>\n" T("</tool_call>"),
     "", "note({\"text\": \"ab\", \"n\": 1})", false},
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=n>1<parameter=text>ab<parameter=on>true</function>" T(
         "</tool_call>") "x",
     "x", "note({\"n\": 1, \"text\": \"ab\", \"on\": true})", false},
    {"qwen3-coder",
     T("<tool_call>") "\n<function=note>\n<parameter=text>\nab\n</function>\n" T("</tool_call>") "x", "x",
     "note({\"text\": \"ab\"})", false},
    {"qwen3-coder", T("<tool_call>") "<function=note><parameter=text>\nab\n" T("</tool_call>") "x", "x",
     "note({\"text\": \"ab\"})", false},
    {"qwen3-coder", T("<tool_call>") "<function=note><parameter=text>\nab\n</function>\n", "",
     "note({\"text\": \"ab\"})", false},
    {"minimax-m2",
     T("<minimax:tool_call>") "<invoke name=\"note\"><parameter name=\"text\">ab<parameter name=\"n\">1"
                              "</parameter></invoke>" T("</minimax:tool_call>"),
     "", "note({\"text\": \"ab\", \"n\": 1})", false},
    {"glm-4.5",
     T("<tool_call>") "note\n" T("<arg_key>") "text" T("</arg_key>") "\n" T("<arg_value>") "ab" T(
         "<arg_key>") "n" T("</arg_key>") T("<arg_value>") "1" T("</arg_value>") T("</tool_call>"),
     "", "note({\"text\": \"ab\", \"n\": 1})", false},
    // blanks around names are no part of them
    {"glm-4.5",
     T("<tool_call>") " note \n" T("<arg_key>") " n\t\n" T("</arg_key>")
         T("<arg_value>") "1" T("</arg_value>") T("</tool_call>"),
     "", "note({\"n\": 1})", false},
    {"qwen3-coder",
     T("<tool_call>") "<function=note ><parameter= n >1</parameter></function>" T("</tool_call>"), "",
     "note({\"n\": 1})", false},
    {"deepseek-v3.1",
     T("<｜tool▁calls▁begin｜>") T("<｜tool▁call▁begin｜>") "note \t" T("<｜tool▁sep｜>") "{\"n\": 1}" T(
         "<｜tool▁call▁end｜>") T("<｜tool▁calls▁end｜>"),
     "", "note({\"n\": 1})", false},
    {"deepseek-v3.1",
     T("<｜tool▁calls▁begin｜>") T("<｜tool▁call▁begin｜>") " \tnote " T("<｜tool▁sep｜>") "{\"n\": 1}" T(
         "<｜tool▁call▁end｜>") T("<｜tool▁calls▁end｜>"),
     "", "note({\"n\": 1})", false},
    // the name of no argument, or of the value's own, or with an end tag for each, begins none
    {"qwen3-coder",
     T("<tool_call>") "<function=note><parameter=text>\n<parameter=x>\n<parameter=text>\n<parameter=n>1</"
                      "parameter> \n"
                      "</parameter></function>" T("</tool_call>"),
     "", "note({\"text\": \"<parameter=x>\\n<parameter=text>\\n<parameter=n>1</parameter> \"})", false},
    {"qwen3-coder", T("<tool_call>") "<function=note><parameter=text>\nab\n", "", "note({\"text\": \"ab\\n)",
     true},
    // without the vocabulary's tokens a value goes on at an end tag that no tag follows
    {"glm-4.5",
     T("<tool_call>") "note\n" T("<arg_key>") "text" T("</arg_key>") "\n" T("<arg_value>") "</arg_value> x" T(
         "</arg_value>") T("</tool_call>"),
     "", "note({\"text\": \"</arg_value> x\"})", false},
    {"minimax-m2",
     T("<minimax:tool_call>") "<invoke name=\"note\"><parameter "
                              "name=\"text\"></invoke></parameter></invoke>" T("</minimax:tool_call>"),
     "", "note({\"text\": \"</invoke>\"})", false},
    // a fence, a marker and braces in a string; a bracket that has no partner
    {"deepseek-v3",
     T("<｜tool▁calls▁begin｜>") T("<｜tool▁call▁begin｜>") "function" T(
         "<｜tool▁sep｜>") "note\n```json\n{\"text\": \"```\\n}\"}\n```" T("<｜tool▁call▁end｜>")
         T("<｜tool▁calls▁end｜>") "bye",
     "bye", "note({\"text\": \"```\\n}\"})", false},
    {"kimi-k2",
     T("<|tool_calls_section_begin|>") T("<|tool_call_begin|>") "functions.note:0" T(
         "<|tool_call_argument_begin|>") "{\"n\": 1" T("<|tool_call_end|>")
         T("<|tool_call_begin|>") "functions.note:1" T("<|tool_call_argument_begin|>") "{}" T(
             "<|tool_call_end|>") T("<|tool_calls_section_end|>"),
     "", "note({\"n\": 1)note({})", false},
    {"kimi-k2", T("<|tool_calls_section_begin|>") "no call" T("<|tool_calls_section_end|>"),
     "<|tool_calls_section_begin|>no call<|tool_calls_section_end|>", "", false},
    // the model of a bare call is an answer in JSON that it is not
    {"llama3-json", "{\"name\": \"note\", \"price\": 3}", "{\"name\": \"note\", \"price\": 3}", "", false},
    {"llama3-json", "{\"name\": \"other\", \"parameters\": {}}", "{\"name\": \"other\", \"parameters\": {}}",
     "", false},
    {"llama3-json", "{\"name\": \"note\", \"parameters\": {}}; and more", "; and more", "note({})", false},
    {"llama4-pythonic", "[note(text='a)]\\'(', list=[1, (2, 'x')], any={'k': None})]", "",
     "note({\"text\": \"a)]'(\", \"list\": [1, [2, \"x\"]], \"any\": {\"k\": null}})", false},
    {"llama4-pythonic", "[note(n=1), note(n=f(2))]", "[note(n=1), note(n=f(2))]", "", false},
    {"llama4-pythonic", "[note(n=1), note(text='a\\x41\\n", "", "note({\"n\": 1})note({\"text\": \"aA\\n)",
     true},
    {"mistral", T("[TOOL_CALLS]") "[{\"name\": \"note\", \"arguments\": {}}, 7]", ", 7]", "note({})", false},
    {"mistral-args", "[TOOL_CALLS]note[ARGS]{}", "[TOOL_CALLS]note[ARGS]{}", "", false},
    {"gpt-oss",
     T("<|channel|>") "analysis" T("<|message|>") "a" T("<|end|>")
         T("<|start|>") "assistant" T("<|channel|>") "commentary to=functions.note " T(
             "<|constrain|>") "json" T("<|message|>") "{\"text\": \"<|end|>\"}",
     "", "note({\"text\": \"<|end|>\"})", false},
};

static bool every_token(void *context, const char *marker)
{
    (void)context;
    // tags of the formats that no vocabulary has
    return marker[0] != '<' ||
           !(strstr(marker, "function") || strstr(marker, "parameter") || strstr(marker, "invoke")) ||
           strchr(marker, '|');
}

static cot_buffer tokens_marked(const char *text)
{
    cot_buffer out = {0};
    cot_buffer_append(&out, text, strlen(text));
    for (size_t i = 0; i < out.bytes; i++) {
        if (text[i] == 1 && text[i + 1] != '\xc3') out.data[i] = '\xff';
        if (text[i] == 2) out.data[i] = '\xfd';
    }
    return out;
}

static cot_dialect_options options_for(const cot_dialect *dialect, const json_t *list)
{
    return (cot_dialect_options){
        .calls = dialect, .reasoning = dialect, .tools = list, .is_token = every_token};
}

static void check_rows(const row *table, size_t count, bool has_tokens)
{
    json_t *list = json_loads(tools, 0, NULL);
    assert_non_null(list);
    for (size_t i = 0; i < count; i++) {
        const row *r = &table[i];
        cot_dialect_options options = options_for(cot_dialect_named(r->family), list);
        if (!has_tokens) options.is_token = NULL;
        cot_buffer text = tokens_marked(r->text), calls = {0};
        heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, r->cut);
        cot_buffer_append(&calls, "", 0);
        for (size_t k = 0; k < h.count; k++) {
            cot_buffer_text(&calls, h.calls[k].name.data);
            cot_buffer_text(&calls, "(");
            cot_buffer_text(&calls, h.calls[k].arguments.data);
            cot_buffer_text(&calls, ")");
        }
        if (strcmp(h.content.data, r->content) != 0 || strcmp(calls.data, r->calls) != 0) {
            print_message("row %zu, %s: %s\n", i, r->family, r->text);
            heard_print(&h);
        }
        assert_string_equal(h.content.data, r->content);
        assert_string_equal(calls.data, r->calls);
        cot_buffer_free(&calls);
        cot_buffer_free(&text);
        heard_free(&h);
    }
    json_decref(list);
}

static void test_adversarial_answers(void **state)
{
    (void)state;
    check_rows(rows, sizeof rows / sizeof *rows, true);
    check_rows(texts, sizeof texts / sizeof *texts, false);
}

static void test_reasoning_and_calls_take_turns(void **state)
{
    (void)state;
    cot_dialect_options options = options_for(cot_dialect_named("hermes"), NULL);
    cot_buffer text = tokens_marked("\n a <think> b \n" T("</think>") "\n\n c " T(
        "<tool_call>") "{\"name\": \"f\"}" T("</tool_call>") "\n");
    options.is_opened = true;
    heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
    assert_string_equal(h.reasoning.data, "a <think> b");
    assert_string_equal(h.content.data, "c");
    assert_int_equal(h.count, 1);
    heard_free(&h);
    options.calls = NULL; // what is not asked for stays text
    options.reasoning = NULL;
    options.is_opened = false;
    h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
    assert_int_equal(h.count, 0);
    assert_string_equal(h.reasoning.data, "");
    heard_free(&h);
    cot_buffer_free(&text);
}

/* What refers to itself many times over is looked at for so long and no longer: anyOf of nine, sixteen deep, has no end. */
static void test_schemas_of_many_references_end(void **state)
{
    (void)state;
    json_t *schema = json_pack("{s:{s:{s:s}}, s:{s:{s:[]}}}", "properties", "text", "$ref", "#/$defs/Loop",
                               "$defs", "Loop", "anyOf");
    assert_non_null(schema);
    json_t *loop = json_object_get(json_object_get(json_object_get(schema, "$defs"), "Loop"), "anyOf");
    for (int i = 0; i < 9; i++) json_array_append_new(loop, json_pack("{s:s}", "$ref", "#/$defs/Loop"));
    json_t *list = json_pack("[{s:{s:s, s:o}}]", "function", "name", "note", "parameters", schema);
    assert_non_null(list);
    const cot_dialect_options options = options_for(cot_dialect_named("qwen3-coder"), list);
    cot_buffer text = tokens_marked(
        T("<tool_call>") "<function=note><parameter=text>a</parameter></function>" T("</tool_call>"));
    heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
    assert_int_equal(h.count, 1);
    assert_string_equal(h.calls[0].arguments.data, "{\"text\": \"a\"}");
    heard_free(&h);
    cot_buffer_free(&text);
    json_decref(list);
}

/* A header that is cut where it is too long calls no tool: its name may be cut too, within a character. */
static void test_long_headers_call_nothing(void **state)
{
    (void)state;
    json_t *list = json_loads(tools, 0, NULL);
    const cot_dialect_options options = options_for(cot_dialect_named("gpt-oss"), list);
    for (size_t spaces = 1900; spaces < 2300; spaces += 1 + spaces % 3) {
        cot_buffer text = {0};
        cot_buffer_text(&text, "\xff<|channel|>\xfd"
                               "commentary");
        for (size_t i = 0; i < spaces; i++) cot_buffer_text(&text, " ");
        cot_buffer_text(&text, "to=functions.n\xf0\x9f\x98\x80te\xff<|message|>\xfd{}");
        heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
        assert_true(h.count == 1 ? spaces < 2048 : spaces > 2000);
        if (h.count) assert_string_equal(h.calls[0].name.data, "n\xf0\x9f\x98\x80te");
        if (!h.count) assert_string_equal(h.content.data, "{}");
        heard_free(&h);
        cot_buffer_free(&text);
    }
    json_decref(list);
}

/* Where all of the answer has to be something its reasoning comes first, and markers within what follows are its text. */
static void test_held_answers(void **state)
{
    static const struct {
        const char *text, *reasoning, *content, *calls;
    } held[] = {
        {"{\"a\": \"" T("<think>") " b" T("</think>") "\"}", "", "{\"a\": \"<think> b</think>\"}", ""},
        {T("<think>") "why" T("</think>") "{\"a\": \"" T("<think>")
             T("<tool_call>") "{}" T("</tool_call>") "\"}",
         "why", "{\"a\": \"<think><tool_call>{}</tool_call>\"}", ""},
        {T("<think>") "why" T("</think>") T("<think>") "x", "why", "<think>x", ""},
        {" " T("<think>") "x", "", " <think>x", ""},
        {"x " T("<tool_call>") "{\"name\": \"note\", \"arguments\": {}}" T("</tool_call>"), "",
         "x <tool_call>{\"name\": \"note\", \"arguments\": {}}</tool_call>", ""},
        {T("<think>") "why" T("</think>") "\n" T("<tool_call>") "{\"name\": \"note\", \"arguments\": {}}" T("</tool_call>") "\n" T(
             "<tool_call>") "{\"name\": \"note\", \"arguments\": {\"text\": \"" T("<think>") "\"}}" T("</"
                                                                                                      "tool_"
                                                                                                      "call"
                                                                                                      ">"),
         "why", "", "note({}) note({\"text\": \"<think>\"})"},
    };
    (void)state;
    json_t *list = json_loads(tools, 0, NULL);
    cot_dialect_options options = options_for(cot_dialect_named("hermes"), list);
    options.reasoning = cot_dialect_named("think");
    options.is_held = true;
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        cot_buffer text = tokens_marked(held[i].text), calls = {0};
        size_t every[512], count = 0;
        while (count < text.bytes) every[count] = count + 1, count++;
        for (int cut = 0; cut < 2; cut++) {
            heard h =
                heard_parse(&options, text.data, text.bytes, cut ? every : NULL, cut ? count - 1 : 0, false);
            assert_string_equal(h.reasoning.data, held[i].reasoning);
            assert_string_equal(h.content.data, held[i].content);
            calls.bytes = 0;
            cot_buffer_text(&calls, "");
            for (size_t k = 0; k < h.count; k++) {
                cot_buffer_text(&calls, k ? " " : "");
                cot_buffer_text(&calls, h.calls[k].name.data);
                cot_buffer_text(&calls, "(");
                cot_buffer_text(&calls, h.calls[k].arguments.data);
                cot_buffer_text(&calls, ")");
            }
            assert_string_equal(calls.data, held[i].calls);
            heard_free(&h);
        }
        cot_buffer_free(&calls);
        cot_buffer_free(&text);
    }
    json_decref(list);
}

static void test_forced_arguments(void **state)
{
    (void)state;
    cot_dialect_options options = options_for(&cot_dialect_forced, NULL);
    options.reasoning = cot_dialect_named("think");
    options.forced_name = "note";
    cot_buffer text = tokens_marked(T("<think>") "why" T("</think>") "\n{\"n\": 1} ");
    heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
    assert_string_equal(h.reasoning.data, "why");
    assert_string_equal(h.content.data, "");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.calls[0].name.data, "note");
    assert_string_equal(h.calls[0].arguments.data, "{\"n\": 1}");
    heard_free(&h);
    cot_buffer_free(&text);
    options = options_for(&cot_dialect_list, NULL);
    text = tokens_marked(
        "[{\"name\": \"a\", \"parameters\": {\"x\": [1]}}, {\"name\": \"b\", \"parameters\": {}}]");
    h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
    assert_int_equal(h.count, 2);
    assert_string_equal(h.calls[0].arguments.data, "{\"x\": [1]}");
    assert_string_equal(h.content.data, "");
    heard_free(&h);
    for (size_t bytes = 0; bytes < text.bytes; bytes++) { // cut anywhere nothing of it is content
        h = heard_parse(&options, text.data, bytes, NULL, 0, true);
        assert_string_equal(h.content.data, "");
        heard_free(&h);
    }
    cot_buffer_free(&text);
}

/* Pieces of all formats, in any order. */
static const char *const pieces[] = {
    "note",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ":",
    ",",
    ";",
    " ",
    "\n",
    "(",
    ")",
    "'",
    "=",
    "7",
    "true",
    "a",
    "é",
    "<",
    ">",
    "```json",
    "```",
    "{\"name\": \"note\", \"arguments\": {\"text\": \"x",
    "\"}}",
    "\"name\": ",
    "\"parameters\": ",
    "<function=note>",
    "<parameter=text>",
    "<parameter=n>",
    "</parameter>",
    "</function>",
    "<invoke name=\"note\">",
    "<parameter name=\"text\">",
    "</invoke>",
    "functions.note:0",
    "function",
    " to=functions.note ",
    "commentary",
    "analysis",
    "final",
    "assistant",
    "[note(text='",
    "n=1",
    "<tool_call>",
    "</tool_call>",
    "<think>",
};

static cot_buffer random_text(struct draw *draw, const cot_dialect *d)
{
    const char *const markers[] = {
        d->section,    d->section_end, d->call,   d->call_end, d->reasoning, d->reasoning_end,
        d->separator,  d->id,          d->key,    d->key_end,  d->value,     d->value_end,
        "<|channel|>", "<|message|>",  "<|end|>", "<|start|>", "<other>"};
    cot_buffer text = {0};
    cot_buffer_append(&text, "", 0);
    for (int64_t n = draw_below(draw, 30); n >= 0; n--) {
        const char *marker = markers[draw_below(draw, sizeof markers / sizeof *markers)];
        if (draw_below(draw, 2) && marker) {
            cot_buffer_text(&text, draw_below(draw, 2) ? "\xff" : "\xfe");
            cot_buffer_text(&text, marker);
            cot_buffer_text(&text, "\xfd");
        } else
            cot_buffer_text(&text, pieces[draw_below(draw, sizeof pieces / sizeof *pieces)]);
    }
    return text;
}

static bool drawn_token(void *context, const char *marker)
{
    uint64_t bits = *(uint64_t *)context;
    return bits >> (strlen(marker) * 7 + (size_t)(unsigned char)marker[1]) % 64 & 1;
}

static void test_random_answers_do_not_depend_on_cuts(void **state)
{
    (void)state;
    struct draw draw = {.seed = test_seed()};
    json_t *list = json_loads(tools, 0, NULL);
    for (size_t k = 0; k < 20000; k++) {
        size_t families = 0;
        while (cot_dialects[families].name) families++;
        const int64_t which = draw_below(&draw, (int64_t)families + 1);
        const cot_dialect *d = which < (int64_t)families ? &cot_dialects[which] : &cot_dialect_list;
        uint64_t bits = (uint64_t)draw_below(&draw, INT64_MAX);
        cot_dialect_options options = options_for(d, list);
        if (draw_below(&draw, 2)) {
            options.is_token = drawn_token;
            options.context = &bits;
        }
        options.is_opened = draw_below(&draw, 4) == 0;
        options.shows_special = draw_below(&draw, 2);
        options.is_held = draw_below(&draw, 2);
        cot_buffer text = random_text(&draw, d);
        size_t cuts[64], n = 0;
        for (size_t at = 0; n < 64; n++) {
            at += (size_t)draw_below(&draw, 12);
            if (at > text.bytes) break;
            cuts[n] = at;
        }
        const bool cut = draw_below(&draw, 2);
        heard whole = heard_parse(&options, text.data, text.bytes, NULL, 0, cut),
              streamed = heard_parse(&options, text.data, text.bytes, cuts, n, cut);
        if (!heard_equal(&whole, &streamed)) {
            print_message("%s, cut %d, case %zu: %s\n", d->name, cut, k, text.data);
            heard_print(&whole);
            heard_print(&streamed);
        }
        assert_true(heard_equal(&whole, &streamed));
        heard_free(&whole);
        heard_free(&streamed);
        cot_buffer_free(&text);
    }
    json_decref(list);
}

/* Of gpt-oss what its messages begin and end with; any other family is also read in text. */
static void test_needed_tokens(void **state)
{
    (void)state;
    static const char *const needed[] = {"<|start|>", "<|channel|>", "<|message|>",
                                         "<|end|>",   "<|call|>",    NULL};
    for (const cot_dialect *d = cot_dialects; d->name; d++) {
        const char *const *expected = needed + (strcmp(d->name, "gpt-oss") == 0 ? 0 : 5);
        for (size_t i = 0; i == 0 || expected[i - 1]; i++) {
            const char *found = cot_dialect_needed_token(d, i);
            if (!expected[i]) assert_null(found);
            if (expected[i]) assert_true(found && strcmp(found, expected[i]) == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needed_tokens),
        cmocka_unit_test(test_adversarial_answers),
        cmocka_unit_test(test_reasoning_and_calls_take_turns),
        cmocka_unit_test(test_schemas_of_many_references_end),
        cmocka_unit_test(test_long_headers_call_nothing),
        cmocka_unit_test(test_held_answers),
        cmocka_unit_test(test_forced_arguments),
        cmocka_unit_test(test_random_answers_do_not_depend_on_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
