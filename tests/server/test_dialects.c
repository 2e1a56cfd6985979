/* Families that are found by what templates write: for each of real models' templates the right one, or none. */
#include "server/dialects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define AGENTS COT_SHARED "/golden/agents/templates.jsonl"

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "none";
}

/* What a reasoning parser of the list is here: by its first marker. */
static const char *marker_of(const char *parser)
{
    static const struct {
        const char *parser, *marker;
    } markers[] = {
        {"think", "<think>"}, {"mistral", "[THINK]"}, {"seed", "<seed:think>"}, {"harmony", "harmony"}};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (strcmp(markers[i].parser, parser) == 0) return markers[i].marker;
    return "none";
}

static const char *name_of(const cot_dialect *reasoning)
{
    return !reasoning ? "none" : reasoning->reasoning ? reasoning->reasoning : "harmony";
}

static void test_templates_have_their_family_or_none(void **state)
{
    (void)state;
    FILE *file = fopen(AGENTS, "rb");
    if (!file) {
        print_message("SKIPPED: %s is not there\n", AGENTS);
        skip();
    }
    char *line = NULL;
    size_t room = 0, count = 0, found = 0, reasoning = 0, wrong = 0;
    while (getline(&line, &room, file) > 0) {
        json_t *item = json_loads(line, 0, NULL);
        assert_non_null(item);
        char path[512];
        snprintf(path, sizeof path, "%s/golden/chat/%s", COT_SHARED, text_of(item, "template"));
        cot_chat_template *chat;
        assert_int_equal(cot_chat_template_open(&chat, COT_SOURCE "/models/tiny", path, NULL), COT_OK);
        const cot_served_dialects d = cot_served_dialects_find(chat);
        const char *wanted = text_of(item, "tool_parser"),
                   *wanted_reasoning = marker_of(text_of(item, "reasoning_parser"));
        const bool right = !d.calls || strcmp(d.calls->name, wanted) == 0,
                   right_reasoning = !d.reasoning || strcmp(name_of(d.reasoning), wanted_reasoning) == 0;
        if (!right || !right_reasoning || (!d.calls && cot_dialect_named(wanted)) ||
            (!d.reasoning && strcmp(wanted_reasoning, "none") != 0))
            print_message("%s: calls %s, not %s; reasoning %s, not %s\n", text_of(item, "template"),
                          d.calls ? d.calls->name : "none", wanted, name_of(d.reasoning), wanted_reasoning);
        wrong += (size_t)!right + !right_reasoning;
        found += d.calls && right;
        reasoning += d.reasoning && right_reasoning;
        count++;
        cot_chat_template_close(chat);
        json_decref(item);
    }
    free(line);
    fclose(file);
    print_message("%zu templates, %zu families of calls found, %zu of reasoning, %zu wrong\n", count, found,
                  reasoning, wrong);
    assert_int_equal(wrong, 0);
    assert_true(count > 30);
    assert_true(found >= 17);
    assert_true(reasoning >= 9);
}

/* A prompt that ends in the begin of reasoning that the template wrote, but for white space, opens it. */
static void test_prompts_that_open_reasoning(void **state)
{
    (void)state;
    static const struct {
        const char *text, *own; // own: 1 where a byte is the template's
        bool opens;
    } rows[] = {{"<think>", "1111111", true},
                {"x<think>", "01111111", true},
                {"x<think>\n", "011111111", true},
                {"x<think> \t\r\n", "011111111111", true},
                {"\nx<think>\n", "1011111110", true},
                {"x<think>a", "011111111", false},
                {" x<think>a", "1011111111", false},
                {"think>", "111111", false},
                {"x<think>", "00111111", false},
                {"x<think>\n", "011111101", false},
                {" \n", "11", false},
                {"", "", false}};
    static const cot_dialect reasoning = {.reasoning = "<think>"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t own[32];
        const size_t bytes = strlen(rows[i].text);
        assert_int_equal(strlen(rows[i].own), bytes);
        for (size_t b = 0; b < bytes; b++) own[b] = rows[i].own[b] == '1';
        const cot_chat_text text = {(char *)(uintptr_t)rows[i].text, bytes, own};
        if (cot_served_dialects_opens(&reasoning, &text) != rows[i].opens) fail_msg("'%s'", rows[i].text);
        assert_false(cot_served_dialects_opens(NULL, &text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates_have_their_family_or_none),
        cmocka_unit_test(test_prompts_that_open_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
