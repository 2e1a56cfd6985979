/* Answers with calls of strict tools: what the grammar of a family lets come is what its parser reads and the tool's schema takes; by rows
 * of our own, and by answers in shared/golden/agents. Skipped without the library (tools/get-llguidance). */
#include "harness/cmocka.h"
#include "harness/dialect/heard.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include "constrain/constraint.h"
#include "coterie/worker.h"
#include "dialect/dialect.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES COT_SHARED "/golden/agents/tools.jsonl"

enum {
    NO_BYTES = 0xf8 /* that and more no UTF-8 has */,
    EOS = 256,
    FIRST_MARKER = 270,
    MARKERS = 16,
    VOCAB = FIRST_MARKER + MARKERS,
    SKIPPED = 77
};

/* A vocabulary of bytes, behind which a family's markers are tokens. */
typedef struct vocabulary {
    const char *markers[MARKERS];
    int32_t count;
} vocabulary;

static cot_tokenizer *tokenizer;
static cot_constraint_compiler *compiler;

static int open_all(void **state)
{
    static const int32_t eos = EOS;
    (void)state;
    cot_error error;
    if (cot_mock_tokenizer_open(&tokenizer, &error) != COT_OK) return -1;
    if (cot_constraint_compiler_open(&compiler, tokenizer, VOCAB, &eos, 1, &error) != COT_OK) {
        print_message("SKIPPED: %s\n", error.message);
        exit(SKIPPED);
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    cot_constraint_compiler_close(compiler);
    cot_tokenizer_close(tokenizer);
    return 0;
}

static int32_t token_of(void *context, const char *marker)
{
    const vocabulary *v = context;
    for (int32_t i = 0; i < v->count; i++)
        if (strcmp(v->markers[i], marker) == 0) return FIRST_MARKER + i;
    return -1;
}

static cot_constraint *compile(const char *family, const json_t *list, const json_t *format, vocabulary *v,
                               cot_error *error)
{
    cot_buffer grammar = {0};
    cot_constraint *c = NULL;
    *error = (cot_error){0};
    if (cot_dialect_grammar(&grammar, cot_dialect_named(family), list, format, token_of, v, error) ==
            COT_OK &&
        cot_constraint_compile(&c, compiler, COT_CONSTRAINT_LARK, grammar.data, grammar.bytes, error) !=
            COT_OK)
        print_message("%s\n", grammar.data);
    cot_buffer_free(&grammar);
    return c;
}

/* How much of a text may come, in bytes: markers are tokens, but those that begin at `plain`. All of it, and an end: its bytes and one more. */
static size_t accepted(const cot_constraint *constraint, const vocabulary *v, const char *text,
                       const json_t *plain)
{
    cot_constraint *c;
    const uint32_t *mask;
    size_t at = 0, i;
    const size_t bytes = strlen(text);
    assert_int_equal(cot_constraint_copy(&c, constraint, NULL), COT_OK);
    while (at < bytes) {
        int32_t token = (unsigned char)text[at], marker = -1;
        json_t *offset;
        bool is_plain = false;
        json_array_foreach(plain, i, offset) is_plain |= (size_t)json_integer_value(offset) == at;
        for (int32_t m = 0; m < v->count && !is_plain; m++)
            if (strncmp(text + at, v->markers[m], strlen(v->markers[m])) == 0) marker = m;
        if (marker >= 0) token = FIRST_MARKER + marker;
        const bool may = cot_constraint_mask(c, &mask, NULL) == COT_OK && mask[token / 32] >> token % 32 & 1;
        assert_int_equal(cot_constraint_commit(c, token, NULL) == COT_OK, may);
        if (!may) break;
        at += marker >= 0 ? strlen(v->markers[marker]) : 1;
    }
    if (at == bytes && cot_constraint_may_end(c)) at++;
    cot_constraint_close(c);
    return at;
}

/* ---- rows ---- */

static const char tide[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"tide\", \"strict\": true, \"parameters\": "
    "{\"type\": \"object\", "
    "\"properties\": {\"port\": {\"allOf\": [{\"$ref\": \"#/$defs/Port\"}]}, \"day\": {\"type\": "
    "\"integer\", \"minimum\": "
    "1, \"maximum\": 31}, "
    "\"note\": {\"anyOf\": [{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 4}, {\"type\": "
    "\"null\"}]}}, "
    "\"required\": [\"port\"], \"additionalProperties\": false, \"$defs\": {\"Port\": {\"enum\": [\"Brest\", "
    "\"Ys\"]}}}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"free\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"z\": {\"type\": \"null\"}}, \"required\": [\"z\"]}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"bare\", \"strict\": true, \"parameters\": null}}]";

/* Answers that are no call, where they have a format. */
static const char person[] = "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", "
                             "\"maxLength\": 8}, \"n\": {\"$ref\": "
                             "\"#/$defs/N\"}}, \"required\": [\"name\"], \"additionalProperties\": false, "
                             "\"$defs\": {\"N\": {\"type\": \"integer\", "
                             "\"minimum\": 0, \"maximum\": 99}}}";

enum { ROW_TEXTS = 8 };

/* Texts; of a wrong one the byte behind \1 is the first that may not come. */
typedef struct row {
    const char *family, *right[ROW_TEXTS], *wrong[ROW_TEXTS];
} row;

#define CODER "<tool_call>\n<function=tide>\n<parameter=port>\nYs\n</parameter>\n"
#define MINIMAX "<minimax:tool_call>\n<invoke name=\"tide\">\n<parameter name=\"port\">Ys</parameter>\n"
#define PORT "<tool_call>tide\n<arg_key>port</arg_key>\n<arg_value>"
#define DEEPSEEK "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
#define KIMI "<|tool_calls_section_begin|><|tool_call_begin|>functions."
#define CHANNEL "<|channel|>commentary to=functions."

static const row rows[] = {
    {"hermes",
     {"Text, {\"name\": \"none\"}",
      "Now <tool_call>\n{\"name\": \"tide\", \"arguments\": {\"port\": \"Ys\"}}\n</tool_call>",
      "<tool_call>{\"name\": \"free\", \"arguments\": {\"x\": [1]}}</tool_call> and "
      "<tool_call>{\"name\":\"tide\","
      "\"arguments\":{\"port\":\"Brest\",\"day\":31,\"note\":null}}</tool_call>.",
      "<tool_call>{\"name\": \"bare\", \"arguments\": {}}</tool_call>"},
     {"<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"port\": \"\1Rome\"",
      "<tool_call>{\"name\": \"\1other\"",
      "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Ys\", \"day\": 3\1"
      "2",
      "<tool_call>{\"name\": \"tide\", \"arguments\": {\1}"}},
    {"qwen3-coder",
     {"text", CODER "</function>\n</tool_call>",
      "a" CODER
      "<parameter=day>\n7\n</parameter>\n<parameter=note>\n\n</p\n</parameter>\n</function>\n</tool_call>b",
      CODER "<parameter=note>\nnull\n</parameter>\n</function>\n<function=free>\n</function>\n</tool_call>",
      "<tool_call>\n<function=free>\n<parameter=q>\n1\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=tide>\n<parameter=port>\nYs\1q", "<tool_call>\n<function=tide>\n<\1/function>",
      "<tool_call>\n<function=\1x", CODER "<parameter=note>\nabcd\1e",
      CODER "<parameter=day>\n3\1"
            "2"}},
    {"minimax-m2",
     {MINIMAX "</invoke>\n<invoke name=\"free\">\n</invoke>\n</minimax:tool_call>"},
     {MINIMAX "<parameter name=\"day\">3\1"
              "2",
      "<minimax:tool_call>\n<invoke name=\"tide\1"
      "2"}},
    {"glm-4.5",
     {PORT "Ys</arg_value>\n<arg_key>note</arg_key>\n<arg_value>a b</arg_value>\n</tool_call>",
      "<tool_call>free\n</tool_call>"},
     {"<tool_call>tide\n<arg_key>\1day", PORT "B\1u", PORT "Ys</arg_value>\n<arg_key>\1port"}},
    {"deepseek-v3",
     {DEEPSEEK
      "function<｜tool▁sep｜>tide\n```json\n{\"port\": \"Ys\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
     {DEEPSEEK "function<｜tool▁sep｜>tide\n```json\n{\"port\": \"Y\1z"}},
    {"deepseek-v3.1",
     {DEEPSEEK "tide<｜tool▁sep｜>{\"port\": "
               "\"Ys\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>free<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
               "<｜tool▁calls▁end｜>"},
     {DEEPSEEK "tide<｜tool▁sep｜>{\"port\": \"Y\1z", DEEPSEEK "\1other"}},
    {"kimi-k2",
     {KIMI "tide:0<|tool_call_argument_begin|>{\"port\": \"Ys\"}<|tool_call_end|><|tool_calls_section_end|>"},
     {KIMI "tide:0<|tool_call_argument_begin|>{\"\1d"}},
    {"mistral",
     {"[TOOL_CALLS][{\"name\": \"tide\", \"arguments\": {\"port\": \"Ys\"}}, {\"name\": \"free\", "
      "\"arguments\": {}}]"},
     {"[TOOL_CALLS][{\"name\": \"tide\", \"arguments\": {\"port\": \1"
      "5"}},
    {"mistral-args",
     {"x[TOOL_CALLS]tide[ARGS]{\"port\": \"Ys\"}[TOOL_CALLS]free[CALL_ID]abcdefghi[ARGS]{}"},
     {"[TOOL_CALLS]tide[ARGS]{\"port\": \"\1X"}},
    {"llama3-json",
     {"{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}",
      "text {\"name\": \"tide\", \"parameters\": 7", "{\"name\": \"Bob\", \"x\": 1}",
      "{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}; {\"name\": \"free\", \"parameters\": {}}",
      "<|python_tag|>{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}"},
     {"{\"name\": \"tide\", \"parameters\": {\"port\": \"\1X",
      "<|python_tag|>{\"name\": \"tide\", \"parameters\": {\"port\": \"\1X"}},
    {"llama4-pythonic",
     {"[tide(port=\"Ys\", day=4)]", "[1] is a footnote", "[free(), tide(port=\"Ys\", note=null)]",
      "<|python_start|>[free(x='a)', y=[1, {'z': True}]), tide(port=\"Brest\")]<|python_end|>"},
     {"[tide(port=\"\1X", "[tide(\1d",
      "[tide(port=\"Ys\", day=3\1"
      "2"}},
    {"gpt-oss",
     {"<|channel|>analysis<|message|>Why to=functions.tide<|end|><|start|>assistant" CHANNEL
      "tide <|constrain|>json<|message|>{\"port\": \"Ys\"}<|call|>",
      "<|channel|>final<|message|>yes<|return|>", CHANNEL "free <|constrain|>json<|message|>{\"q\": 1}"},
     {CHANNEL "tide <|constrain|>json<|message|>{\"port\": \"\1X"}},
};

/* Markers of a family, as tokens or, where the parser reads them as text too, none. */
static vocabulary markers_of(const char *family, bool as_tokens)
{
    const cot_dialect *d = cot_dialect_named(family);
    const bool is_glm = strcmp(family, "glm-4.5") == 0;
    const char *const all[] = {d->section,
                               d->section_end,
                               d->call,
                               d->call_end,
                               d->separator,
                               d->id,
                               is_glm ? d->key : NULL,
                               is_glm ? d->key_end : NULL,
                               d->value,
                               is_glm ? d->value_end : NULL},
                      *const harmony[] = {"<|channel|>", "<|start|>", "<|message|>", "<|constrain|>",
                                          "<|end|>",     "<|call|>",  "<|return|>"};
    vocabulary v = {0};
    for (size_t i = 0; as_tokens && i < sizeof all / sizeof *all; i++)
        if (all[i]) v.markers[v.count++] = all[i];
    for (size_t i = 0; d->form == COT_DIALECT_HARMONY && i < sizeof harmony / sizeof *harmony; i++)
        v.markers[v.count++] = harmony[i];
    return v;
}

#define BOB "{\"name\": \"Bob\", \"n\": 12}"
#define FINAL "<|channel|>final<|message|>"
#define ANALYSIS "<|channel|>analysis<|message|>So {} to=functions.tide<|end|><|start|>assistant"

static const row formatted[] = {
    {"hermes",
     {BOB, "\n\n" BOB "\n",
      "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"port\": \"Ys\"}}\n</tool_call>",
      "\n<tool_call>{\"name\": \"free\", \"arguments\": {\"x\": "
      "[1]}}</tool_call>\n<tool_call>{\"name\":\"tide\","
      "\"arguments\":{\"port\":\"Brest\",\"day\":31,\"note\":null}}</tool_call>"},
     {"\1Text", BOB "\1<tool_call>", "<tool_call>{\"name\": \"free\", \"arguments\": {}}</tool_call>\1{",
      "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"\1Rome",
      "{\"name\": \1"
      "5",
      "<tool_call>{\"name\": \"\1Bob"}},
    {"qwen3-coder",
     {BOB, CODER "</function>\n</tool_call>",
      CODER "</function>\n</tool_call>\n<tool_call>\n<function=free>\n<parameter=q>\n1\n</parameter>\n"
            "</function>\n</tool_call>"},
     {"\1a", CODER "</function>\n</tool_call>\1b", "<tool_call>\n<function=tide>\n<\1/function>"}},
    {"minimax-m2",
     {BOB, MINIMAX "</invoke>\n<invoke name=\"free\">\n</invoke>\n</minimax:tool_call>"},
     {"{\"\1x", MINIMAX "</invoke>\n</minimax:tool_call>\1x"}},
    {"glm-4.5",
     {BOB, PORT "Ys</arg_value>\n</tool_call><tool_call>free\n</tool_call>"},
     {"<tool_call>\1x", "{\"\1tide"}},
    {"deepseek-v3",
     {BOB, DEEPSEEK
      "function<｜tool▁sep｜>tide\n```json\n{\"port\": \"Ys\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
     {"\1x", DEEPSEEK "function<｜tool▁sep｜>tide\n```json\n{\"port\": \"Y\1z"}},
    {"deepseek-v3.1",
     {BOB, DEEPSEEK "tide<｜tool▁sep｜>{\"port\": \"Ys\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
     {DEEPSEEK "\1other", BOB "\1,"}},
    {"kimi-k2",
     {BOB,
      KIMI "tide:0<|tool_call_argument_begin|>{\"port\": \"Ys\"}<|tool_call_end|><|tool_calls_section_end|>"},
     {KIMI "\1x", "\1x"}},
    {"mistral",
     {BOB, "[TOOL_CALLS][{\"name\": \"tide\", \"arguments\": {\"port\": \"Ys\"}}, {\"name\": \"free\", "
           "\"arguments\": {}}]"},
     {"[TOOL_CALLS][{\"name\": \"\1Bob", "\1x"}},
    {"mistral-args",
     {BOB, "[TOOL_CALLS]tide[ARGS]{\"port\": \"Ys\"}[TOOL_CALLS]free[ARGS]{}"},
     {"\1x", "[TOOL_CALLS]tide[ARGS]{\"port\": \"\1X"}},
    {"llama3-json",
     {BOB, "{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}", "{\"name\": \"tide\", \"n\": 1}",
      "{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}; {\"name\": \"free\", \"parameters\": {}}",
      "<|python_tag|>{\"name\": \"tide\", \"parameters\": {\"port\": \"Ys\"}}", "{ \"name\": \"free\" }"},
     {"{\"name\": \"tide\", \"parameters\": {\"port\": \"\1X", "{\"name\": \"Bob\", \"\1p",
      "{\"name\": \"free\", \"n\": \1{", "\1x"}},
    {"llama4-pythonic",
     {BOB, "[tide(port=\"Ys\", day=4)]", "[free(), tide(port=\"Ys\", note=null)]",
      "<|python_start|>[free(x='a)', y=[1, {'z': True}]), tide(port=\"Brest\")]<|python_end|>"},
     {"[tide(port=\"\1X",
      "[\1"
      "1",
      "\1x"}},
    {"gpt-oss",
     {FINAL BOB "<|return|>", ANALYSIS FINAL BOB,
      ANALYSIS CHANNEL "tide <|constrain|>json<|message|>{\"port\": \"Ys\"}<|call|>",
      "<|channel|>final <|constrain|>json<|message|>" BOB,
      " to=functions.tide<|channel|>commentary json<|message|>{\"port\": \"Ys\"}<|call|>",
      ANALYSIS " to=functions.free<|channel|>commentary json<|message|>{\"q\": 1}<|call|>"},
     {FINAL "\1x", "\1{", "<|channel|>commentaryto\1=free", "\1abc", "<|channel|>commentary\1<|message|>",
      CHANNEL "tide <|constrain|>json<|message|>{\"port\": \"\1X",
      "<|channel|>analysis<|message|>a\1<|message|>"}},
};

static void check_rows(const row *all, size_t count, const json_t *format)
{
    json_t *list = json_loads(tide, 0, NULL);
    assert_non_null(list);
    int wrong = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        const row *r = &all[i / 2];
        vocabulary v = markers_of(r->family, i % 2);
        cot_error error;
        cot_constraint *c = compile(r->family, list, format, &v, &error);
        if (!c) fail_msg("%s: %s", r->family, error.message);
        for (size_t k = 0; k < ROW_TEXTS && r->right[k]; k++) {
            const size_t n = accepted(c, &v, r->right[k], NULL);
            if (n == strlen(r->right[k]) + 1) continue;
            print_message("%s, %s: %.*s [refused] %s\n", r->family, i % 2 ? "tokens" : "text", (int)n,
                          r->right[k], r->right[k] + n);
            wrong++;
        }
        for (size_t k = 0; k < ROW_TEXTS && r->wrong[k]; k++) {
            char text[512];
            const size_t at = strcspn(r->wrong[k], "\1");
            snprintf(text, sizeof text, "%.*s%s", (int)at, r->wrong[k], r->wrong[k] + at + 1);
            const size_t n = accepted(c, &v, text, NULL);
            if (n == at) continue;
            print_message("%s, %s: %.*s [taken so far] %s\n", r->family, i % 2 ? "tokens" : "text", (int)n,
                          text, n < strlen(text) ? text + n : "");
            wrong++;
        }
        cot_constraint_close(c);
    }
    json_decref(list);
    assert_int_equal(wrong, 0);
}

static void calls_keep_to_schemas_and_text_is_free(void **state)
{
    (void)state;
    check_rows(rows, sizeof rows / sizeof *rows, NULL);
}

static void answers_have_the_format_or_are_calls(void **state)
{
    (void)state;
    json_t *format = json_loads(person, 0, NULL);
    check_rows(formatted, sizeof formatted / sizeof *formatted, format);
    json_decref(format);
}

/* ---- random answers ---- */

/* The arguments meet what `tide` says of them, in so many words. */
static bool is_tide(const json_t *arguments)
{
    const json_t *port = json_object_get(arguments, "port"), *day = json_object_get(arguments, "day"),
                 *note = json_object_get(arguments, "note");
    const json_int_t number = json_integer_value(day);
    size_t characters = 0;
    for (size_t i = 0; i < json_string_length(note); i++)
        characters += ((unsigned char)json_string_value(note)[i] & 0xc0) != 0x80;
    return json_is_string(port) &&
           (strcmp(json_string_value(port), "Brest") == 0 || strcmp(json_string_value(port), "Ys") == 0) &&
           (!day || (json_is_integer(day) && number >= 1 && number <= 31)) &&
           (!note || json_is_null(note) || (json_is_string(note) && characters >= 1 && characters <= 4)) &&
           json_object_size(arguments) == 1U + (day != NULL) + (note != NULL);
}

static bool is_marker(void *context, const char *marker)
{
    return token_of(context, marker) >= 0;
}

static void put_token(cot_buffer *text, const vocabulary *v, int32_t token)
{
    const char byte = (char)token;
    const bool is_marker = token >= FIRST_MARKER;
    assert_true(is_marker ? cot_buffer_append(text, "\xff", 1) &&
                                cot_buffer_text(text, v->markers[token - FIRST_MARKER]) &&
                                cot_buffer_append(text, "\xfd", 1)
                          : cot_buffer_append(text, &byte, 1));
}

/* Goes on with tokens drawn from masks until the text may end, behind `begin`. False: it did not come so far. */
static bool walk(struct draw *draw, const cot_constraint *constraint, const vocabulary *v, const char *begin,
                 cot_buffer *text)
{
    cot_constraint *c;
    const uint32_t *mask;
    const size_t bytes = strcspn(begin, "\1");
    bool ends = false;
    assert_int_equal(cot_constraint_copy(&c, constraint, NULL), COT_OK);
    for (size_t at = 0, tokens = 0; tokens < 600 && !ends; tokens++) {
        int32_t token = -1, may[VOCAB], count = 0;
        if (at < bytes) {
            token = (unsigned char)begin[at];
            for (int32_t m = 0; m < v->count; m++)
                if (strncmp(begin + at, v->markers[m], strlen(v->markers[m])) == 0) token = FIRST_MARKER + m;
            at += token < FIRST_MARKER ? 1 : strlen(v->markers[token - FIRST_MARKER]);
        } else {
            assert_int_equal(cot_constraint_mask(c, &mask, NULL), COT_OK);
            for (int32_t t = 0; t < FIRST_MARKER + v->count; t++)
                if (mask[t / 32] >> t % 32 & 1 && (t < NO_BYTES || t >= FIRST_MARKER)) may[count++] = t;
            ends = cot_constraint_may_end(c);
            if (!ends) token = may[draw_below(draw, count)];
        }
        if (ends) break;
        assert_int_equal(cot_constraint_commit(c, token, NULL), COT_OK);
        put_token(text, v, token);
    }
    cot_constraint_close(c);
    return ends;
}

/* The content meets what `person` says, in so many words. */
static bool is_person(const char *content)
{
    json_t *json = json_loads(content, JSON_ALLOW_NUL, NULL);
    const json_t *name = json_object_get(json, "name"), *n = json_object_get(json, "n");
    const bool good =
        json_is_string(name) &&
        (!n || (json_is_integer(n) && json_integer_value(n) >= 0 && json_integer_value(n) <= 99)) &&
        json_object_size(json) == 1U + (n != NULL);
    json_decref(json);
    return good;
}

/* `format` NULL: text and calls of the tools; else either a person or calls. */
static void check_walks(const row *all, size_t count, const json_t *format)
{
    json_t *list = json_loads(tide, 0, NULL);
    struct draw draw = {.seed = test_seed()};
    size_t read = 0, ended = 0, persons = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        const row *r = &all[i / 2];
        vocabulary v = markers_of(r->family, i % 2);
        cot_error error;
        cot_constraint *c = compile(r->family, list, format, &v, &error);
        assert_non_null(c);
        for (size_t k = 0; k < 12; k++) {
            const char *begin = r->wrong[k % ROW_TEXTS] ? r->wrong[k % ROW_TEXTS] : r->wrong[0];
            cot_buffer text = {0};
            if (walk(&draw, c, &v, begin, &text)) {
                const cot_dialect *d = cot_dialect_named(r->family);
                const cot_dialect_options options = {.calls = d,
                                                     .reasoning = d,
                                                     .is_held = format,
                                                     .tools = list,
                                                     .is_token = is_marker,
                                                     .context = &v};
                heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, false);
                const bool is_content = format && !h.count;
                bool good = is_content ? is_person(h.content.data) : h.count > 0;
                good = good && (!format || is_content || !h.content.bytes ||
                                strspn(h.content.data, " \t\r\n") == h.content.bytes);
                persons += is_content;
                for (size_t n = 0; n < h.count; n++) {
                    const bool is_strict = strcmp(h.calls[n].name.data, "tide") == 0;
                    json_t *arguments = json_loads(h.calls[n].arguments.data, JSON_ALLOW_NUL,
                                                   NULL); // some have numbers beyond it
                    good = good && (is_strict ? is_tide(arguments) : h.calls[n].arguments.data[0] == '{');
                    read += is_strict;
                    json_decref(arguments);
                }
                // a loose tool's tags are anything
                good |= d->form == COT_DIALECT_MARKUP && memmem(text.data, text.bytes, "free", 4);
                if (!good) {
                    print_message("%s, %s: %s\n", r->family, i % 2 ? "tokens" : "text", text.data);
                    heard_print(&h);
                }
                assert_true(good);
                heard_free(&h);
                ended++;
            }
            cot_buffer_free(&text);
        }
        cot_constraint_close(c);
    }
    json_decref(list);
    print_message("%zu answers ended, %zu in the format, with %zu calls of the strict tool\n", ended, persons,
                  read);
    assert_true(read > 30);
    assert_true(!format || persons > 10);
}

static void whatever_comes_is_read_as_calls_of_the_schema(void **state)
{
    (void)state;
    check_walks(rows, sizeof rows / sizeof *rows, NULL);
}

static void whatever_comes_has_the_format_or_is_read_as_calls(void **state)
{
    (void)state;
    json_t *format = json_loads(person, 0, NULL);
    check_walks(formatted, sizeof formatted / sizeof *formatted, format);
    json_decref(format);
}

/* ---- formats ---- */

/* Texts of formats in tags, which are regular expressions of our own: RFC 4122 has readers take capitals, and months have their last days. */
static void texts_in_tags_keep_to_formats(void **state)
{
    static const struct {
        const char *format, *text;
        bool fits;
    } texts[] = {
        {"uuid", "123e4567-e89b-12d3-a456-426614174000", true},
        {"uuid", "123E4567-E89B-12D3-a456-42661417400F", true},
        {"uuid", "123e4567-e89b-12d3-a456-42661417400g", false},
        {"uuid", "123e4567e89b12d3a456426614174000", false},
        {"date", "2023-01-31", true},
        {"date", "2023-04-30", true},
        {"date", "2023-04-31", false},
        {"date", "2023-02-29", false},
        {"date", "2024-02-29", true},
        {"date", "1900-02-29", false},
        {"date", "2000-02-29", true},
        {"date", "2023-00-10", false},
        {"date", "2023-12-00", false},
        {"date-time", "2023-12-31T23:59:59Z", true},
        {"date-time", "2023-06-31T23:59:59Z", false},
        {"email", "Jo.Do-e@Example-1.co.uk", true},
        {"email", "jo..doe@example.org", false},
        {"email", "jo@example", false},
    };
    (void)state;
    vocabulary none = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[256];
        cot_error error;
        json_t *list =
            json_pack("[{s:s, s:{s:s, s:b, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function",
                      "function", "name", "f", "strict", 1, "parameters", "type", "object", "properties", "t",
                      "type", "string", "format", texts[i].format, "required", "t");
        assert_non_null(list);
        cot_constraint *c = compile("qwen3-coder", list, NULL, &none, &error);
        if (!c) fail_msg("%s: %s", texts[i].format, error.message);
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=t>\n%s\n</parameter>\n</function>\n</tool_call>",
                 texts[i].text);
        const bool fits = accepted(c, &none, text, NULL) == strlen(text) + 1;
        if (fits != texts[i].fits) print_message("%s: %s\n", texts[i].format, texts[i].text);
        assert_true(fits == texts[i].fits);
        cot_constraint_close(c);
        json_decref(list);
    }
}

/* ---- golden answers ---- */

/* Answers whose calls meet their schemas, where they are written as templates write them, may come; of the others none may. */
static void golden_calls_come_where_they_meet_their_schemas(void **state)
{
    (void)state;
    FILE *file = fopen(CASES, "rb");
    if (!file) {
        print_message("SKIPPED: %s is not there\n", CASES);
        skip();
    }
    char *line = NULL;
    size_t room = 0, fits = 0, taken = 0, unfit = 0, refused = 0, kept = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        json_t *item = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *tool, *marker;
        const char *family = json_string_value(json_object_get(item, "family")),
                   *text = json_string_value(json_object_get(item, "text"));
        const json_t *calls = json_object_get(json_object_get(item, "expected"), "tool_calls");
        json_t *tools = json_object_get(item, "tools");
        const cot_dialect *d = cot_dialect_named(strcmp(family, "deepseek-r1") == 0 ? "deepseek-v3"
                                                 : strcmp(family, "glm-4.7") == 0   ? "glm-4.5"
                                                                                    : family);
        vocabulary v = {0};
        size_t i;
        const json_t *fit = json_object_get(item, "fits_schema");
        const bool all_fit = json_array_size(calls) && json_is_true(fit),
                   any_unfit = json_array_size(calls) && json_is_false(fit);
        json_array_foreach(json_object_get(item, "markers_as_tokens"), i, marker) v.markers[v.count++] =
            json_string_value(marker);
        json_array_foreach(tools, i, tool)
            json_object_set_new(json_object_get(tool, "function"), "strict", json_true());
        const bool whole = strcmp(json_string_value(json_object_get(item, "ended")), "stop") == 0 &&
                           !json_object_get(item, "also_right") &&
                           json_is_null(json_object_get(item, "opened")) &&
                           strlen(text) == json_string_length(json_object_get(item, "text"));
        if (d && d->form != COT_DIALECT_NONE && json_array_size(tools) && whole && (all_fit || any_unfit)) {
            cot_error error;
            cot_constraint *c = compile(d->name, tools, NULL, &v, &error);
            if (!c) {
                print_message("%s: %s\n", json_string_value(json_object_get(item, "id")), error.message);
                kept++;
            } else {
                const size_t at = accepted(c, &v, text, json_object_get(item, "plain_at"));
                const bool good = at == strlen(text) + 1;
                fits += all_fit;
                taken += all_fit && good;
                unfit += any_unfit;
                refused += any_unfit && !good;
                if (good != all_fit)
                    print_message("%s (%s): %.*s [refused] %s\n",
                                  json_string_value(json_object_get(item, "id")),
                                  json_string_value(json_object_get(item, "kind")), (int)at, text,
                                  good ? "" : text + at);
            }
            cot_constraint_close(c);
        }
        json_decref(item);
    }
    free(line);
    fclose(file);
    print_message(
        "%zu of %zu that fit may come, %zu of %zu that do not are refused; %zu schemas are not taken\n",
        taken, fits, refused, unfit, kept);
    assert_int_equal(refused, unfit);
    assert_true(fits > 300 && taken * 100 >= fits * 75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_keep_to_schemas_and_text_is_free),
                                       cmocka_unit_test(answers_have_the_format_or_are_calls),
                                       cmocka_unit_test(whatever_comes_is_read_as_calls_of_the_schema),
                                       cmocka_unit_test(whatever_comes_has_the_format_or_is_read_as_calls),
                                       cmocka_unit_test(texts_in_tags_keep_to_formats),
                                       cmocka_unit_test(golden_calls_come_where_they_meet_their_schemas)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
