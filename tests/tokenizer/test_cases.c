/* Inputs from public reports, as files: what should come of each. */
#include "coterie/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define CASES COT_SHARED "/cases"
#define TEMPLATES COT_SHARED "/golden/chat"

/* A pattern with class intersections; ids are those of Hugging Face tokenizers 0.23. */
static void test_intersections(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[60];
    } texts[] = {
        {"Hello 世界, don't! 漢字かな交じり文 Привет 123456",
         {42,  356, 625, 223, 163, 119, 247, 166, 246, 237, 14,  381, 364, 9,   86,  3,    223, 165,
          123, 98,  164, 258, 248, 312, 267, 106, 163, 121, 100, 267, 249, 545, 235, 1174, 223, 143,
          256, 144, 225, 143, 119, 143, 113, 143, 116, 144, 227, 223, 421, 21,  22,  638}},
        {"你好，WORLD's ABCdef\n\n 한국어",
         {163, 124, 257, 164, 101, 124, 311,  237, 57,  1025, 46,  38,  330,
          467, 36,  37,  596, 72,  299, 1071, 169, 116, 258,  171, 247, 115}},
    };
    cot_tokenizer *tokenizer;
    cot_error error;
    if (cot_tokenizer_open(&tokenizer, CASES "/tokenizers/t-kimi.json", &error))
        fail_msg("%s", error.message);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *ids;
        size_t count, wanted = 0;
        while (wanted < 60 && texts[i].ids[wanted]) wanted++;
        assert_int_equal(
            cot_tokenizer_encode(tokenizer, &ids, &count, texts[i].text, strlen(texts[i].text), false, NULL),
            COT_OK);
        assert_int_equal(count, wanted);
        assert_memory_equal(ids, texts[i].ids, count * sizeof *ids);
        free(ids);
    }
    cot_tokenizer_close(tokenizer);
}

static char *read_all(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("no %s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* Renders a file's conversation; NULL where the template fails on it. The caller frees it. */
static char *rendered(const char *model, const char *template, const char *conversation, bool openai)
{
    cot_chat_template *chat;
    cot_chat_text text;
    cot_error error;
    const cot_chat_options options = {.size = sizeof options, .openai = openai};
    const char *json = read_all(conversation);
    if (cot_chat_template_open(&chat, model, template, &error)) fail_msg("%s", error.message);
    cot_chat_render(chat, &text, json, strlen(json), &options, &error);
    cot_chat_template_close(chat);
    free(text.own);
    return text.text;
}

/* Templates with names, in files and in an object: that for tools is taken where there are some. */
static void test_named_templates(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {CASES "/chat/ct-addl", CASES "/chat/with_tools.json", "A<user>Weather in Wien?"},
        {CASES "/chat/ct-addl", CASES "/chat/without_tools.json", "J<user>Weather in Wien?"},
        {CASES "/chat/ct-dict", CASES "/chat/with_tools.json", "U<user>Weather in Wien?"},
        {CASES "/chat/ct-dict", CASES "/chat/without_tools.json", "D<user>Weather in Wien?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = rendered(rows[i][0], NULL, rows[i][1], false);
        assert_string_equal(text, rows[i][2]);
        free(text);
    }
}

/* A tool call beside content that is null, or not there, is rendered by every template that knows tool calls. */
static void test_null_content(void **state)
{
    (void)state;
    static const char *const names[] = {
        "deepseek-r1", "deepseek-v3.1", "deepseek-v3", "gigachat3",       "glm-4.5",
        "gpt-oss",     "kimi-k2",       "lfm2.5",      "llama3.1",        "llama4",
        "minicpm3",    "ministral-3",   "qwen2.5",     "nemotron-3-nano", "qwen3-coder",
        "qwen3.6",     "qwen3",         "seed-oss",    "solar-open",      "qwen3-instruct-2507"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, TEMPLATES "/%s.jinja", names[i]);
        for (int openai = 1; openai >= 0; openai--) {
            char *null = rendered(COT_SOURCE "/models/tiny", path, CASES "/chat/null_content.json", openai),
                 *none = rendered(COT_SOURCE "/models/tiny", path, CASES "/chat/no_content.json", openai);
            if (openai && (!null || !strstr(null, "get_weather") || !strstr(null, "Wien")))
                fail_msg("%s", names[i]);
            if (null && none)
                assert_string_equal(null, none);
            else
                assert_true(!null && !none);
            free(null);
            free(none);
        }
    }
}

int main(void)
{
    if (access(CASES, R_OK) || access(TEMPLATES, R_OK)) {
        printf("SKIPPED: no " CASES " or " TEMPLATES "\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_intersections),
                                       cmocka_unit_test(test_named_templates),
                                       cmocka_unit_test(test_null_content)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
