/* What is no tokenizer, what is not implemented, and what is no text or token: one clear line each. */
#include "harness/tokenizer/tokenizer_json.h"

#include <setjmp.h>
#include <unistd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// clang-format off
#define DEEP(n) "{'type': 'Sequence', 'decoders': [" n "]}"

static const struct { const char *changes; cot_status status; const char *says; } refused[] = {
    {"{'version': '2.0'}", COT_UNSUPPORTED, "version '2.0' is not supported, 1.0 alone"},
    {"{'truncation': {'max_length': 4}}", COT_UNSUPPORTED, "'truncation' is not supported"},
    {"{'padding': {}}", COT_UNSUPPORTED, "'padding' is not supported"},
    {"{'model': {'type': 'WordPiece'}}", COT_UNSUPPORTED, "model type 'WordPiece' is not supported, BPE alone"},
    {"{'model': {'type': 'Unigram'}}", COT_UNSUPPORTED, "model type 'Unigram' is not supported, BPE alone"},
    {"{'model': {'dropout': 0.1}}", COT_UNSUPPORTED, "'dropout' of the model is not supported"},
    {"{'model': {'continuing_subword_prefix': '##'}}", COT_UNSUPPORTED, "'continuing_subword_prefix' of the model, '##'"},
    {"{'model': {'end_of_word_suffix': '</w>'}}", COT_UNSUPPORTED, "'end_of_word_suffix' of the model, '</w>'"},
    {"{'model': {'fuse_unk': 1}}", COT_MALFORMED, "'fuse_unk' of the model is neither true nor false"},
    {"{'model': {'vocab': []}}", COT_MALFORMED, "the model has no 'vocab' object"},
    {"{'model': {'vocab': {}, 'merges': []}}", COT_MALFORMED, "its vocabulary is empty"},
    {"{'model': {'vocab': {'a': 0, 'b': 0}}}", COT_MALFORMED, "both have id 0"},
    {"{'model': {'vocab': {'a': -1}}}", COT_MALFORMED, "token 'a' has id -1, not in [0, 4194304)"},
    {"{'model': {'vocab': {'a': 4194304}}}", COT_MALFORMED, "token 'a' has id 4194304, not in [0, 4194304)"},
    {"{'model': {'vocab': {'a': 1.5}}}", COT_MALFORMED, "the id of token 'a' is not an integer"},
    {"{'model': {'merges': {}}}", COT_MALFORMED, "the model has no 'merges' list"},
    {"{'model': {'merges': [['a', 'x']]}}", COT_MALFORMED, "merge 0 names 'x', which is not in the vocabulary"},
    {"{'model': {'merges': ['a b', 'x a']}}", COT_MALFORMED, "merge 1 names 'x', which is not in the vocabulary"},
    {"{'model': {'merges': [['ab', 'a']]}}", COT_MALFORMED, "merge 0 names 'aba', which is not in the vocabulary"},
    {"{'model': {'merges': ['ab']}}", COT_MALFORMED, "merge 0 is neither [\"a\", \"b\"] nor \"a b\""},
    {"{'model': {'merges': [['a']]}}", COT_MALFORMED, "merge 0 is neither"},
    {"{'model': {'merges': ['a b a']}}", COT_MALFORMED, "merge 0 is neither"},
    {"{'added_tokens': {}}", COT_MALFORMED, "'added_tokens' is not a list"},
    {"{'added_tokens': [{'content': 'x'}]}", COT_MALFORMED, "the id of added token 'x' is not an integer"},
    {"{'added_tokens': [{'id': 29}]}", COT_MALFORMED, "the added token has no 'content'"},
    {"{'added_tokens': [{'id': 31, 'content': 'x'}]}", COT_MALFORMED, "added token 'x' has id 31, but the next one is 29"},
    {"{'added_tokens': [{'id': 29, 'content': 'a'}]}", COT_MALFORMED, "added token 'a' has id 29, but in the vocabulary 1"},
    {"{'added_tokens': [{'id': 29, 'content': 'x'}, {'id': 30, 'content': 'y'}, {'id': 29, 'content': 'z'}]}",
     COT_MALFORMED, "added token 'z' has id 29, but the next one is 31"},
    {"{'normalizer': {'type': 'BertNormalizer'}}", COT_UNSUPPORTED, "normalizer type 'BertNormalizer' is not supported"},
    {"{'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'Lowercase'}]}}", COT_UNSUPPORTED, "normalizer type 'Lowercase'"},
    {"{'normalizer': {'prepend': 'x'}}", COT_MALFORMED, "the normalizer has no 'type'"},
    {"{'normalizer': {'type': 'Replace', 'pattern': {}, 'content': ''}}", COT_MALFORMED, "neither a String nor a Regex"},
    {"{'normalizer': {'type': 'Replace', 'pattern': {'String': 'a'}}}", COT_MALFORMED, "the normalizer has no 'content'"},
    {"{'pre_tokenizer': {'type': 'Whitespace'}}", COT_UNSUPPORTED, "pre-tokenizer type 'Whitespace' is not supported"},
    {"{'pre_tokenizer': []}", COT_MALFORMED, "the pre-tokenizer is not an object"},
    {"{'pre_tokenizer': {'type': 'Split', 'pattern': {'Regex': '('}, 'behavior': 'Isolated'}}", COT_MALFORMED, "a regular expression is wrong"},
    {"{'pre_tokenizer': {'type': 'Split', 'pattern': {'Regex': 'a'}, 'behavior': 'Odd'}}", COT_UNSUPPORTED, "behavior 'Odd'"},
    {"{'pre_tokenizer': {'type': 'Metaspace', 'replacement': 'ab'}}", COT_MALFORMED, "not one character"},
    {"{'pre_tokenizer': {'type': 'Metaspace', 'replacement': '_', 'prepend_scheme': 'odd'}}", COT_UNSUPPORTED, "prepend_scheme 'odd'"},
    {"{'normalizer': {'type': 'Prepend', 'prepend': 'a'}, 'pre_tokenizer': {'type': 'Metaspace', 'replacement': '_',"
     " 'prepend_scheme': 'first'}}", COT_UNSUPPORTED, "not supported behind what moves the text's start"},
    {"{'post_processor': {'type': 'BertProcessing'}}", COT_UNSUPPORTED, "post-processor type 'BertProcessing' is not supported"},
    {"{'post_processor': {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}, {'Sequence': {'id': 'A'}}]}}",
     COT_MALFORMED, "the template has no ids for special token 'x'"},
    {"{'post_processor': {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}, {'Sequence': {'id': 'A'}}],"
     " 'special_tokens': {'x': {'ids': [99]}}}}", COT_MALFORMED, "the template's id 99 of 'x' is not in the vocabulary"},
    {"{'post_processor': {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'B'}}]}}", COT_UNSUPPORTED, "sequence 'B'"},
    {"{'post_processor': {'type': 'TemplateProcessing', 'single': []}}", COT_UNSUPPORTED, "a template without the text"},
    {"{'decoder': {'type': 'CTC'}}", COT_UNSUPPORTED, "decoder type 'CTC' is not supported"},
    {"{'decoder': {'type': 'Strip', 'content': 'a', 'start': -1, 'stop': 0}}", COT_MALFORMED, "a Strip needs"},
    {"{'decoder': {'type': 'Sequence'}}", COT_MALFORMED, "'decoders' of the decoder is not a list"},
    {"{'decoder': " DEEP(DEEP(DEEP(DEEP(DEEP(DEEP(DEEP(DEEP(DEEP("")))))))))"}", COT_UNSUPPORTED, "nest deeper than 8"},
};
// clang-format on

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cot_tokenizer *tokenizer = (cot_tokenizer *)1;
        cot_error error = {0};
        cot_status status = tokenizer_json_open(&tokenizer, refused[i].changes, &error);
        if (status != refused[i].status || error.status != status || !strstr(error.message, refused[i].says))
            fail_msg("%s ends with %d: %s", refused[i].changes, status, error.message);
        assert_null(tokenizer);
        assert_memory_equal(error.message, "cannot read 'test.json': ", 25);
        assert_int_equal(tokenizer_json_open(&tokenizer, refused[i].changes, NULL), status);
    }
}

/* A file cut short anywhere is refused, and so is one with a byte changed or else it is a tokenizer. */
static void test_damaged(void **state)
{
    (void)state;
    char *text = tokenizer_json_text("{'added_tokens': [{'id': 29, 'content': '<s>', 'special': true}]}");
    size_t bytes = strlen(text);
    cot_tokenizer *tokenizer;
    cot_error error;
    for (size_t n = 0; n < bytes; n++) {
        assert_int_equal(cot_tokenizer_parse(&tokenizer, text, n, "short", &error), COT_MALFORMED);
        assert_null(tokenizer);
    }
    assert_memory_equal(error.message, "cannot read 'short': line 1: ", 29);
    for (size_t at = 0; at < bytes; at++) {
        char was = text[at];
        text[at] = (char)(was ^ (1 << at % 8));
        if (!cot_tokenizer_parse(&tokenizer, text, bytes, "changed", &error)) cot_tokenizer_close(tokenizer);
        text[at] = was;
    }
    assert_int_equal(cot_tokenizer_parse(&tokenizer, text, bytes, "whole", &error), COT_OK);
    cot_tokenizer_close(tokenizer);
    free(text);
}

static void test_paths(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer = (cot_tokenizer *)1;
    cot_error error;
    assert_int_equal(cot_tokenizer_open(&tokenizer, COT_SOURCE "/no/such/file", &error), COT_NOT_FOUND);
    assert_null(tokenizer);
    assert_int_equal(cot_tokenizer_open(&tokenizer, COT_SOURCE "/src", &error), COT_NOT_FOUND);
    assert_non_null(strstr(error.message, "/src/tokenizer.json'"));
    assert_int_equal(cot_tokenizer_open(&tokenizer, COT_SOURCE "/LICENSE", &error), COT_MALFORMED);
    cot_tokenizer_close(NULL);
    cot_detokenizer_close(NULL);
}

/* A vocabulary in another form is called by its name, as a folder's and as a file. */
static void test_other_forms(void **state)
{
    (void)state;
    static const char *const forms[][3] = {
        {"tekken.json", "{\"config\": {}, \"vocab\": []}", "Mistral's tekken"},
        {"qwen.tiktoken", "IQ== 0\n", "tiktoken"},
        {"vocab.json", "{\"a\": 0}", "BPE with merges.txt"},
        {"spiece.model", "\n", "SentencePiece"},
    };
    char folder[] = "/tmp/coterie-forms-XXXXXX", path[128], says[256];
    cot_tokenizer *tokenizer;
    cot_error error;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(cot_tokenizer_open(&tokenizer, folder, &error), COT_NOT_FOUND);
    assert_non_null(strstr(error.message, "/tokenizer.json'"));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, forms[i][0]);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(forms[i][1], file);
        fclose(file);
        snprintf(says, sizeof says,
                 "'%s' has %s (%s) and no tokenizer.json, tokenizer.model or tiktoken.model, which are read: "
                 "transformers' ",
                 folder, forms[i][0], forms[i][2]);
        assert_int_equal(cot_tokenizer_open(&tokenizer, folder, &error), COT_NOT_FOUND);
        assert_memory_equal(error.message, says, strlen(says));
        assert_non_null(strstr(error.message, "writes one for most models"));
        snprintf(says, sizeof says,
                 "'%s' is a vocabulary of %s, a tokenizer.json, or a folder with a tokenizer.model or "
                 "tiktoken.model, is read: ",
                 path, forms[i][2]);
        assert_int_equal(cot_tokenizer_open(&tokenizer, path, &error), COT_UNSUPPORTED);
        assert_memory_equal(error.message, says, strlen(says));
        unlink(path);
    }
    static const char *const endings[][2] = {{"cl100k.tiktoken", "of tiktoken,"},
                                             {"own.model", "of SentencePiece or tiktoken,"},
                                             {".tiktoken", NULL},
                                             {"x.tiktoken.old", NULL},
                                             {"tiktoken", NULL}};
    for (size_t i = 0; i < sizeof endings / sizeof *endings;
         i++) { // files alone: of a folder one is not taken
        snprintf(path, sizeof path, "%s/%s", folder, endings[i][0]);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("IQ== 0\n", file);
        fclose(file);
        assert_int_equal(cot_tokenizer_open(&tokenizer, path, &error),
                         endings[i][1] ? COT_UNSUPPORTED : COT_MALFORMED);
        if (endings[i][1]) assert_non_null(strstr(error.message, endings[i][1]));
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("GGUF\3", file);
    fclose(file);
    assert_int_equal(cot_tokenizer_open(&tokenizer, path, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "x.gguf' ends inside its version"));
    unlink(path);
    rmdir(folder);
}

static void test_not_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } texts[] = {
        {"ab\xff", "the text is not UTF-8: byte 0xff at offset 2"},
        {"\x80", "byte 0x80 at offset 0"},              // continues nothing
        {"a\xc0\x80", "byte 0xc0 at offset 1"},         // overlong
        {"a\xe0\x80\x80", "byte 0xe0 at offset 1"},     // overlong
        {"\xed\xa0\x80", "byte 0xed at offset 0"},      // a surrogate
        {"é\xf4\x90\x80\x80", "byte 0xf4 at offset 2"}, // beyond U+10FFFF
        {"ab\xe2\x82", "byte 0xe2 at offset 2"},        // cut short
    };
    cot_tokenizer *tokenizer;
    cot_error error;
    int32_t *ids = (int32_t *)1;
    size_t count;
    assert_int_equal(tokenizer_json_open(&tokenizer, "{}", &error), COT_OK);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(
            cot_tokenizer_encode(tokenizer, &ids, &count, texts[i].text, strlen(texts[i].text), true, &error),
            COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, texts[i].says));
        assert_null(ids);
    }
    cot_tokenizer_close(tokenizer);
}

static void test_no_token(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, 29, INT32_MAX, INT32_MIN};
    cot_tokenizer *tokenizer;
    cot_detokenizer *detokenizer;
    cot_error error;
    char *text = (char *)1, expected[64];
    const char *piece;
    size_t bytes;
    assert_int_equal(tokenizer_json_open(&tokenizer, "{'decoder': {'type': 'Fuse'}}", &error), COT_OK);
    assert_int_equal(cot_detokenizer_open(&detokenizer, tokenizer, false, &error), COT_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int32_t ids[] = {1, bad[i]};
        snprintf(expected, sizeof expected, "token id %d is not in [0, 29)", bad[i]);
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, 2, true, &error),
                         COT_INVALID_ARGUMENT);
        assert_string_equal(error.message, expected);
        assert_null(text);
        assert_int_equal(cot_detokenizer_push(detokenizer, bad[i], &piece, &bytes, &error),
                         COT_INVALID_ARGUMENT);
        assert_string_equal(error.message, expected);
        assert_int_equal(bytes, 0);
        assert_int_equal(cot_detokenizer_push(detokenizer, 12, &piece, &bytes, &error), COT_OK); // it goes on
        assert_string_equal(piece, "ab");
    }
    cot_detokenizer_close(detokenizer);
    cot_tokenizer_close(tokenizer);
}

/* The unknown token is needed only by texts that have something unknown. */
static void test_no_unknown(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error;
    int32_t *ids;
    size_t count;
    assert_int_equal(tokenizer_json_open(&tokenizer, "{'model': {'unk_token': '[UNK]'}}", &error), COT_OK);
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, "ab", 2, true, &error), COT_OK);
    free(ids);
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, "ax", 2, true, &error), COT_MALFORMED);
    assert_string_equal(error.message, "the text needs 'unk_token', which is not in the vocabulary");
    cot_tokenizer_close(tokenizer);
}

/* An integer beyond 64 bits matters where it is asked for. */
static void test_large_integers(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    cot_error error = {0};
    static const char *const members[] = {"{\"other\": 1000000000000000019884624838656, ",
                                          "{\"truncation\": 1000000000000000019884624838656, "};
    char *base = tokenizer_json_text("{'truncation': null}"), *text = malloc(strlen(base) + 64);
    for (int used = 0; used < 2; used++) { // of two values under a name the last counts: the base's goes
        if (used) memset(strstr(base, "truncation"), 'x', 5);
        strcat(strcpy(text, members[used]), base + 1);
        assert_int_equal(cot_tokenizer_parse(&tokenizer, text, strlen(text), "t", &error),
                         used ? COT_UNSUPPORTED : COT_OK);
        cot_tokenizer_close(tokenizer);
    }
    assert_non_null(strstr(error.message, "'truncation' is not supported"));
    free(base);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_integers), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_other_forms),    cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_no_token),       cmocka_unit_test(test_no_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
