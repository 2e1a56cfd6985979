/* Every part of a tokenizer.json by itself, against what Hugging Face tokenizers 0.23 makes of the same. */
#include "harness/tokenizer/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct row {
    const char *changes, *text, *ids;
} row;

// clang-format off
#define SPLIT(kind, pattern, behavior, invert) \
    "{'type': 'Split', 'pattern': {'" kind "': '" pattern "'}, 'behavior': '" behavior "', 'invert': " invert "}"
#define SPLIT_AT_1(behavior, invert) "{'pre_tokenizer': " SPLIT("Regex", "1", behavior, invert) "}"
#define METASPACE(options) "{'pre_tokenizer': {'type': 'Metaspace', 'replacement': '▁', " options "}," \
    " 'added_tokens': [{'id': 29, 'content': '<x>'}]}"
#define SPECIALS "'special_tokens': {'<s>': {'id': '<s>', 'ids': [29], 'tokens': ['<s>']}}"

static const row encodings[] = {
    {"{}", "", ""},
    {"{}", "a", "1"},
    {"{}", "aab", "11 2"}, // "aa" has the lowest rank
    {"{'model': {'merges': ['a b', 'a a']}}", "aab", "1 12"},
    {"{'model': {'merges': [['a', 'a'], ['a', 'b'], ['a', 'a']]}}", "aab", "1 12"}, // the later of two alike counts
    {"{'model': {'merges': ['#version: 0.2', 'a b', 'a a']}}", "aab", "1 12"},
    {SPLIT_AT_1("Isolated", "false"), "aa11ab1b", "11 4 4 12 4 2"},
    {SPLIT_AT_1("Removed", "false"), "aa11ab1b", "11 12 2"},
    {SPLIT_AT_1("Removed", "true"), "aa11ab1b", "4 4 4"},
    {SPLIT_AT_1("MergedWithPrevious", "false"), "aa11ab1b", "11 4 4 12 4 2"},
    {SPLIT_AT_1("MergedWithPrevious", "true"), "aa11ab1b", "11 4 4 12 24"},
    {SPLIT_AT_1("MergedWithNext", "false"), "aa11ab1b", "11 4 4 12 24"},
    {SPLIT_AT_1("MergedWithNext", "true"), "aa11ab1b", "11 4 4 12 4 2"},
    {SPLIT_AT_1("Contiguous", "false"), "aa11ab1b", "11 26 12 4 2"},
    {"{'pre_tokenizer': " SPLIT("String", " ", "Removed", "false") "}", " ab  a ", "12 1"},
    {"{'pre_tokenizer': " SPLIT("String", "", "Isolated", "false") "}", "aabb", "1 1 2 2"},
    {"{'pre_tokenizer': {'type': 'Digits', 'individual_digits': true}}", "a11²1b", "1 4 4 9 4 2"},
    {"{'pre_tokenizer': {'type': 'Digits', 'individual_digits': false}}", "a11²1b", "1 26 9 4 2"},
    {"{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Digits', 'individual_digits': true}, "
     SPLIT("Regex", "a+", "Isolated", "false") "]}}", "aab11a", "11 2 4 4 1"},
    {METASPACE("'prepend_scheme': 'always', 'split': true"), "aa b<x>ab  b", "6 11 6 2 29 6 12 6 6 2"},
    {METASPACE("'prepend_scheme': 'first', 'split': true"), "aa b<x>ab  b", "6 11 6 2 29 12 6 6 2"},
    {METASPACE("'prepend_scheme': 'never', 'split': true"), "aa b<x>ab  b", "11 6 2 29 12 6 6 2"},
    {METASPACE("'add_prefix_space': true"), "aa b<x>ab  b", "6 11 6 2 29 6 12 6 6 2"},
    {METASPACE("'prepend_scheme': 'first', 'split': false"), "▁a b", "6 1 6 2"},
    {"{'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}}", "ab ab", "12 12"},
    {"{'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}}", "ab1ab", "12 4 12"},
    {"{'normalizer': {'type': 'Prepend', 'prepend': '▁'}}", "ab", "6 12"},
    {"{'normalizer': {'type': 'Prepend', 'prepend': '▁'}}", "", ""},
    {"{'normalizer': {'type': 'Replace', 'pattern': {'Regex': 'a+'}, 'content': 'b'}}", "aabaab", "16 16"},
    {"{'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'NFC'}, {'type': 'Replace',"
     " 'pattern': {'String': 'é'}, 'content': '1'}]}}", "ae\u0301b", "14 2"},
    {"{'added_tokens': [{'id': 29, 'content': '<x>', 'lstrip': true, 'rstrip': true}]}", "a  <x> \n b<x>",
     "1 29 2 29"},
    // What an added token stripped is still searched for others.
    {"{'added_tokens': [{'id': 29, 'content': '<x>', 'rstrip': true, 'normalized': false},"
     " {'id': 30, 'content': '   ', 'normalized': false}]}", "a<x>   b", "1 29 30 2"},
    {"{'added_tokens': [{'id': 29, 'content': 'XX', 'single_word': true}]}", "aXX XX XXé _XX XX\u200d XX1 XX-",
     "13 29 3 5 3 8 21 25 29"},
    {"{'added_tokens': [{'id': 29, 'content': 'aab'}, {'id': 30, 'content': 'aaba'}, {'id': 6, 'content': '▁'}]}",
     "aaabab▁aaba", "1 30 2 6 30"},
    {"{'added_tokens': [{'id': 29, 'content': 'NO', 'normalized': true}, {'id': 30, 'content': 'YES',"
     " 'normalized': false}], 'normalizer': {'type': 'Replace', 'pattern': {'String': 'O'}, 'content': '0'}}",
     "NOaN0YES", "29 1 29 30"},
    {"{'model': {'unk_token': '<unk>', 'fuse_unk': false}}", "aЯЯbЯ", "1 0 0 2 0"},
    {"{'model': {'unk_token': '<unk>', 'fuse_unk': true}}", "aЯЯbЯ", "1 0 2 0"},
    {"{'model': {'unk_token': '<unk>', 'byte_fallback': true, 'fuse_unk': true}}", "ЯèЯЯaè", "27 28 0 1 27 28"},
    {"{'model': {'byte_fallback': true}}", "ЯèaЯ", "27 28 1"},
    {"{'model': {'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': [], 'ignore_merges': true}}", "ab", "2"},
    {"{'model': {'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': []}}", "ab", "0 1"},
};

/* With the post-processor. */
static const row specials[] = {
    {"{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true}], 'post_processor':"
     " {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': '<s>'}}, {'Sequence': {'id': 'A'}}], "
     SPECIALS "}}", "ab", "29 12"},
    {"{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true}], 'post_processor': {'type': 'Sequence',"
     " 'processors': [{'type': 'ByteLevel'}, {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A'}},"
     " {'SpecialToken': {'id': '<s>'}}], " SPECIALS "}]}}", "ab", "12 29"},
    {"{}", "ab", "12"},
};

/* `text` is what the ids decode to. */
static const row decodings[] = {
    {"{}", "ab é", "12 5"},
    {"{'decoder': {'type': 'Fuse'}}", "abé", "12 5"},
    {"{'decoder': {'type': 'ByteFallback'}}", "èa\xef\xbf\xbd", "27 28 1 27"},
    {"{'decoder': {'type': 'ByteFallback'}}", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd""a", "27 28 28 1"},
    {"{'model': {'vocab': {'<0xc3>': 0, '<0xA8>': 1, '<0xa8>': 2, 'a': 3}, 'merges': []},"
     " 'decoder': {'type': 'ByteFallback'}}", "èèa", "0 1 0 2 3"}, // digits of either case
    {"{'decoder': {'type': 'ByteLevel'}}", "ab\xef\xbf\xbd", "12 5 9"}, // e9 b2: the start of a character
    {"{'decoder': {'type': 'ByteLevel'}}", "▁a", "6 1"},                           // no byte's character
    {"{'decoder': {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always'}}", "a a", "6 1 6 1"},
    {"{'decoder': {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'never'}}", " a a", "6 1 6 1"},
    {"{'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, {'type': 'Metaspace', 'replacement': '▁',"
     " 'prepend_scheme': 'always'}]}}", "aa", "6 1 6 1"}, // one token
    {"{'decoder': {'type': 'Strip', 'content': 'a', 'start': 1, 'stop': 0}}", "ab ", "11 12 13"},
    {"{'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, {'type': 'Strip', 'content': 'a', 'start': 3,"
     " 'stop': 2}]}}", "baabaa", "11 1 2 11 15 11 1"},
    {"{'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, {'type': 'Replace', 'pattern': {'Regex': 'ab+'},"
     " 'content': '_'}]}}", "a__", "1 1 2 2 12"},
    {"{'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},"
     " {'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}}",
     " aè b", "6 6 1 27 28 6 2"},
    {"{'decoder': {'type': 'Fuse'}}", "", ""},
};
// clang-format on

static size_t parse_ids(const char *text, int32_t *ids)
{
    size_t count = 0;
    char *end;
    for (long id; (id = strtol(text, &end, 10)), end != text; text = end) ids[count++] = (int32_t)id;
    return count;
}

static void check_encodings(const row *rows, size_t count, bool add_special)
{
    for (size_t i = 0; i < count; i++) {
        cot_tokenizer *tokenizer;
        cot_error error = {0};
        int32_t *ids, expected[32];
        size_t n, wanted = parse_ids(rows[i].ids, expected);
        if (tokenizer_json_open(&tokenizer, rows[i].changes, &error))
            fail_msg("row %zu: %s", i, error.message);
        assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &n, rows[i].text, strlen(rows[i].text),
                                              add_special, &error),
                         COT_OK);
        bool same = n == wanted && (!n || !memcmp(ids, expected, n * sizeof *ids));
        for (size_t k = 0; !same && k < n; k++) print_error("%d ", ids[k]);
        if (!same) fail_msg("not '%s': '%s' with %s", rows[i].ids, rows[i].text, rows[i].changes);
        assert_int_equal(n == 0, ids == NULL);
        free(ids);
        cot_tokenizer_close(tokenizer);
    }
}

static void test_encodings(void **state)
{
    (void)state;
    check_encodings(encodings, sizeof encodings / sizeof *encodings, false);
}

static void test_specials(void **state)
{
    (void)state;
    check_encodings(specials, sizeof specials / sizeof *specials, true);
}

static void test_decodings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof decodings / sizeof *decodings; i++) {
        cot_tokenizer *tokenizer;
        cot_detokenizer *detokenizer;
        cot_error error = {0};
        int32_t ids[32];
        size_t n = parse_ids(decodings[i].ids, ids), bytes;
        char *text, joined[64] = "";
        const char *piece;
        if (tokenizer_json_open(&tokenizer, decodings[i].changes, &error))
            fail_msg("row %zu: %s", i, error.message);
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, n, false, &error), COT_OK);
        assert_string_equal(text, decodings[i].text);
        assert_int_equal(bytes, strlen(decodings[i].text));
        assert_int_equal(cot_detokenizer_open(&detokenizer, tokenizer, false, &error), COT_OK);
        for (int round = 0; round < 2; round++) { // the second time as just opened
            joined[0] = 0;
            for (size_t k = 0; k < n; k++) {
                assert_int_equal(cot_detokenizer_push(detokenizer, ids[k], &piece, &bytes, &error), COT_OK);
                strcat(joined, piece);
            }
            assert_int_equal(cot_detokenizer_finish(detokenizer, &piece, &bytes, &error), COT_OK);
            strcat(joined, piece);
            assert_string_equal(joined, decodings[i].text);
        }
        cot_detokenizer_close(detokenizer);
        free(text);
        cot_tokenizer_close(tokenizer);
    }
}

static void test_skip_special(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error;
    char *text;
    size_t bytes;
    const int32_t ids[] = {1, 29, 30, 2};
    assert_int_equal(
        tokenizer_json_open(&tokenizer,
                            "{'decoder': {'type': 'Fuse'}, 'added_tokens': [{'id': 29, 'content': '<s>',"
                            " 'special': true}, {'id': 30, 'content': '<t>', 'special': false}]}",
                            &error),
        COT_OK);
    assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, 4, true, &error), COT_OK);
    assert_string_equal(text, "a<t>b");
    free(text);
    assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, 4, false, &error), COT_OK);
    assert_string_equal(text, "a<s><t>b");
    free(text);
    assert_int_equal(cot_tokenizer_size(tokenizer), 31);
    assert_string_equal(cot_tokenizer_token(tokenizer, 29), "<s>");
    assert_string_equal(cot_tokenizer_token(tokenizer, 12), "ab");
    assert_null(cot_tokenizer_token(tokenizer, 31));
    assert_null(cot_tokenizer_token(tokenizer, -1));
    cot_tokenizer_close(tokenizer);
}

/* An id that the vocabulary leaves out has no string and decodes to nothing. */
static void test_gap(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error;
    char *text;
    size_t bytes;
    assert_int_equal(tokenizer_json_open(
                         &tokenizer,
                         "{'decoder': {'type': 'Fuse'}, 'model': {'vocab': {'a': 0, 'b': 5}, 'merges': []}}",
                         &error),
                     COT_OK);
    assert_int_equal(cot_tokenizer_size(tokenizer), 6);
    assert_null(cot_tokenizer_token(tokenizer, 3));
    assert_int_equal(
        cot_tokenizer_decode(tokenizer, &text, &bytes, (const int32_t[]){0, 3, 5}, 3, false, &error), COT_OK);
    assert_string_equal(text, "ab");
    free(text);
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encodings), cmocka_unit_test(test_specials),
        cmocka_unit_test(test_decodings), cmocka_unit_test(test_skip_special),
        cmocka_unit_test(test_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
