/* Marks of what in a chat's text is the template's own: control tokens that a message spells are text, whatever a template or a tokenizer's
 * normaliser does with it. */
#include "harness/cmocka.h"
#include "harness/seed.h"
#include "harness/tokenizer/tokenizer_json.h"

#include "tokenizer/chat.h"
#include "tokenizer/parts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"

static uint64_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* A message of pieces of control tokens and of other text. */
static void random_text(char *out)
{
    static const char *const pieces[] = {"<s>", "</s>", "<", "s>", "/s>", "a", "b ", "ab", "1",  "<x>",
                                         "x>",  "\n",   "é", "<s", "▁",   "s", ">",  "//", "  ", "<<s>>"};
    *out = 0;
    for (uint32_t n = draw(12); n; n--) strcat(out, pieces[draw(sizeof pieces / sizeof *pieces)]);
}

static char *conversation_of(const char *role, const char *text)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", role, "content", text);
    char *out = json_dumps(messages, 0);
    json_decref(messages);
    return out;
}

// clang-format off
/* Every way that a tokenizer looks for added tokens: as they come, in normalised text, with white space around. */
static const char *const tokenizers[] = {
    "{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true}, {'id': 30, 'content': '</s>', 'special': true},"
    " {'id': 31, 'content': '<x>', 'special': false, 'normalized': false}]}",
    "{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true, 'normalized': true},"
    " {'id': 30, 'content': '</s>', 'special': true, 'normalized': true},"
    " {'id': 31, 'content': '<x>', 'special': false, 'normalized': true}], 'normalizer': {'type': 'Sequence',"
    " 'normalizers': [{'type': 'NFC'}, {'type': 'Prepend', 'prepend': '▁'},"
    " {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}]}}",
    "{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true, 'lstrip': true, 'rstrip': true},"
    " {'id': 30, 'content': '</s>', 'special': true, 'rstrip': true},"
    " {'id': 31, 'content': '<x>', 'special': false, 'lstrip': true}]}",
    "{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true}, {'id': 30, 'content': '</s>', 'special': true},"
    " {'id': 31, 'content': '<x>', 'normalized': true}], 'normalizer': {'type': 'Replace',"
    " 'pattern': {'Regex': '/+'}, 'content': '/'}}",
};
// clang-format on

static size_t count_of(const int32_t *ids, size_t count, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) n += ids[i] == id;
    return n;
}

/* Through whatever a template does with a message, ids of control tokens are those of the template: as many of each as
 * an empty message gives. Where the message spells none, the ids are those of the whole text. */
static void test_provenance(void **state)
{
    (void)state;
    static const char *const templates[] = {
        TURNS,
        "<s>{{ messages[0].content }}</s>",
        "{% set x = '<s' + messages[0].content + '>' %}{{ x }}</s>",
        "<s>{{ messages[0].content | trim | upper | lower }}<{{ messages[0].content }}s></s>",
        "<s>{{ messages | tojson }}</s>{{ messages }}",
        "<s>{{ messages[0].content.split('s') | join('s') }}</s>{{ messages[0].content.replace('<s>', "
        "'<x>')[1:] }}",
        "<s>{% for c in messages[0].content %}{{ c }}{% endfor %}{{ messages[0].content[::-1][::-1] }}</s>",
        "<s>{{ messages[0].content | replace('a', '<') | indent(2) }}{{ messages[0].content | e }}</s>",
        "<s>{{ messages[0].content ~ messages[0].content }}<{{ messages[0].content[1:] }}>{{ "
        "messages[0].role }}</s>",
        "<s>{{ strftime_now(messages[0].content) }}</s>",
    };
    seed = test_seed();
    int same = 0;
    for (int round = 0; round < 2000; round++) {
        cot_tokenizer *tokenizer;
        cot_chat_template *chat;
        cot_chat_text text, empty;
        int32_t *ids, *empty_ids, *plain;
        size_t count, empty_count, plain_count;
        char message[256];
        const char *template = templates[draw(sizeof templates / sizeof *templates)];
        const cot_chat_options options = {.size = sizeof options};
        random_text(message);
        char *conversation = conversation_of("user", message), *nothing = conversation_of("user", "");
        assert_int_equal(tokenizer_json_open(&tokenizer, tokenizers[draw(4)], NULL), COT_OK);
        assert_int_equal(cot_chat_template_parse(&chat, template, strlen(template), "t", NULL), COT_OK);
        assert_int_equal(cot_chat_render(chat, &text, conversation, strlen(conversation), &options, NULL),
                         COT_OK);
        assert_int_equal(cot_chat_render(chat, &empty, nothing, strlen(nothing), &options, NULL), COT_OK);
        for (size_t i = 0; i < text.bytes; i++) assert_true(text.own[i] <= 1);
        assert_int_equal(cot_chat_encode(tokenizer, &ids, &count, &text, NULL), COT_OK);
        assert_int_equal(cot_chat_encode(tokenizer, &empty_ids, &empty_count, &empty, NULL), COT_OK);
        assert_int_equal(
            cot_tokenizer_encode(tokenizer, &plain, &plain_count, text.text, text.bytes, false, NULL),
            COT_OK);
        for (int32_t id = 29; id <= 31; id++) {
            // "<" + "s>" around an empty message spell a token of the template; around another they do not.
            bool split = strstr(template, "<{{") || strstr(template, "'<s'");
            size_t got = count_of(ids, count, id), own = count_of(empty_ids, empty_count, id);
            if (got > own || (got < own && !split))
                fail_msg("%zu of id %d, not %zu: '%s' through '%s'", got, id, own, message, template);
            if (got < count_of(plain, plain_count, id))
                id = 32;
            else if (id == 31) {
                assert_int_equal(count, plain_count);
                assert_memory_equal(ids, plain, count * sizeof *ids);
                same++;
            }
        }
        free(ids);
        free(empty_ids);
        free(plain);
        free(conversation);
        free(nothing);
        cot_chat_text_free(&text);
        cot_chat_text_free(&empty);
        cot_chat_template_close(chat);
        cot_tokenizer_close(tokenizer);
    }
    print_message("%d of 2000 as the whole text\n", same);
    assert_true(same > 100);
}

/* Roles that templates make tokens of are part of them; no other role is. */
static void test_roles(void **state)
{
    (void)state;
    static const struct {
        const char *role;
        int32_t first;
    } roles[] = {{"user", 29}, {"other", 0}, {"user\\u0000><user", 0}};
    cot_tokenizer *tokenizer;
    assert_int_equal(
        tokenizer_json_open(&tokenizer,
                            "{'model': {'unk_token': '<unk>'}, 'added_tokens': [{'id': 29, 'content': "
                            "'<user>', 'special': true}, {'id': 30, 'content': '<other>', 'special': true}]}",
                            NULL),
        COT_OK);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        cot_chat_template *chat;
        cot_chat_text text;
        int32_t *ids;
        size_t count;
        static const char template[] = "<{{ messages[0].role }}>";
        const cot_chat_options options = {.size = sizeof options};
        char conversation[128];
        snprintf(conversation, sizeof conversation, "[{\"role\": \"%s\", \"content\": \"\"}]", roles[i].role);
        assert_int_equal(cot_chat_template_parse(&chat, template, strlen(template), "t", NULL), COT_OK);
        assert_int_equal(cot_chat_render(chat, &text, conversation, strlen(conversation), &options, NULL),
                         COT_OK);
        assert_int_equal(cot_chat_encode(tokenizer, &ids, &count, &text, NULL), COT_OK);
        assert_int_equal(ids[0], roles[i].first);
        for (size_t k = 1; k < count; k++) assert_int_not_equal(ids[k], 29);
        free(ids);
        cot_chat_text_free(&text);
        cot_chat_template_close(chat);
    }
    cot_tokenizer_close(tokenizer);
}

/* Added tokens that are white space are text, also in a message. */
static void test_blank_tokens(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    int32_t *ids;
    size_t count;
    uint8_t own[5] = {0};
    char text[] = "a   b";
    assert_int_equal(
        tokenizer_json_open(&tokenizer,
                            "{'added_tokens': [{'id': 29, 'content': '   ', 'normalized': true}]}", NULL),
        COT_OK);
    assert_int_equal(cot_chat_encode(tokenizer, &ids, &count, &(cot_chat_text){text, 5, own}, NULL), COT_OK);
    assert_int_equal(count, 3);
    assert_int_equal(ids[1], 29);
    free(ids);
    cot_tokenizer_close(tokenizer);
}

/* Marks through a normaliser: what is made of several bytes has the least of theirs. */
static void test_marks_through_nfc(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error;
    cot_regex_scratch scratch = {0};
    cot_buffer text = {0}, own = {0}, spare = {0};
    assert_int_equal(tokenizer_json_open(&tokenizer, "{'normalizer': {'type': 'NFC'}}", &error), COT_OK);
    assert_true(cot_buffer_append(&text, "xe\xcc\x81y\xc3\xa9", 7) &&
                cot_buffer_append(&own, "\1\1\0\0\1\0\0", 7));
    assert_int_equal(cot_normalizer_run(&tokenizer->normalizer, &scratch, &text, &own, &spare, &error),
                     COT_OK);
    assert_int_equal(own.bytes, text.bytes);
    assert_memory_equal(own.data, "\1\0\0\1\0\0", 6);
    cot_regex_scratch_free(&scratch);
    cot_buffer_free(&text);
    cot_buffer_free(&own);
    cot_buffer_free(&spare);
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_provenance), cmocka_unit_test(test_roles),
                                       cmocka_unit_test(test_blank_tokens),
                                       cmocka_unit_test(test_marks_through_nfc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
