/* Encoding within limits: a text is encoded as it is without them when it has at most so many tokens, and refused as too
 * long when it has more, whatever the tokenizer does to a text; and it ends when it is told to. */
#include "coterie/tokenizer.h"

#include "base/rng.h"
#include "harness/tokenizer/asked.h"
#include "harness/cmocka.h"
#include "harness/seed.h"
#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY COT_SOURCE "/models/tiny" // byte-level, NFC

#define SPLIT(pattern, behavior)                                                                             \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern "\"}, \"behavior\": \"" behavior             \
    "\", \"invert\": false}"

/* Tokenizers of a few words: what cuts, removes and joins. */
static const struct kind {
    const char *pre_tokenizer, *model; // model: fields beside the vocabulary
} kinds[] = {
    {"null", "\"unk_token\": \"?\""},
    {"null", "\"unk_token\": \"?\", \"fuse_unk\": true"},
    {"null", "\"unk_token\": null"}, // what is unknown is left out
    {SPLIT(" ", "Isolated"), "\"unk_token\": \"?\""},
    {SPLIT(" ", "Removed"), "\"unk_token\": \"?\""},
    {SPLIT(" ", "MergedWithPrevious"), "\"unk_token\": \"?\""},
    {SPLIT(" ", "MergedWithNext"), "\"unk_token\": \"?\""},
    {SPLIT("[a ]", "Contiguous"), "\"unk_token\": \"?\""},
    {"{\"type\": \"Sequence\", \"pretokenizers\": [" SPLIT("b", "Isolated") ", " SPLIT(" ", "Removed") "]}",
     "\"unk_token\": \"?\""},
    {"{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"always\", \"split\": "
     "true}",
     "\"unk_token\": \"?\", \"fuse_unk\": true"},
};

static cot_tokenizer *open_kind(const struct kind *kind)
{
    cot_buffer text = {0};
    cot_tokenizer *tokenizer;
    cot_error error;
    const char *parts[] = {
        "{\"added_tokens\": [{\"id\": 11, \"content\": \"<s>\", \"special\": true, "
        "\"normalized\": false, \"lstrip\": true}],"
        " \"pre_tokenizer\": ",
        kind->pre_tokenizer, ", \"model\": {\"type\": \"BPE\", ", kind->model,
        ", \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \" \": 3, \"ab\": 4, \"abab\": 5, "
        "\"\\u2581\": 6, \"aa\": 7, \"  \": 8, \"b \": 9, \" b\": 10},"
        " \"merges\": [\"a b\", \"ab ab\", \"a a\", [\" \", \" \"], [\"b\", \" \"], [\" \", "
        "\"b\"]]}}"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assert_true(cot_buffer_text(&text, parts[i]));
    if (cot_tokenizer_parse(&tokenizer, text.data, text.bytes, "a kind", &error))
        fail_msg("%s", error.message);
    cot_buffer_free(&text);
    return tokenizer;
}

static void append_random(cot_buffer *text, uint64_t stream)
{
    static const char *const units[] = {"a",  "b",   " ",    "ab",   "  ", "x",
                                        "yé", "<s>", "aaaa", " <s>", "日", "\n"};
    const size_t count = cot_random_bits(test_seed(), stream, 0) % 40;
    text->bytes = 0;
    assert_true(cot_buffer_text(text, ""));
    for (size_t i = 1; i <= count; i++) {
        const uint64_t bits = cot_random_bits(test_seed(), stream, i);
        const size_t unit = bits % (sizeof units / sizeof *units);
        for (uint64_t repeat = bits >> 8 & 7; repeat < 8; repeat += 3)
            assert_true(cot_buffer_text(text, units[unit]));
    }
}

static void check_limit(const cot_tokenizer *tokenizer, const cot_buffer *text, size_t most)
{
    int32_t *whole, *ids = (int32_t *)(uintptr_t)16;
    size_t n, count = 77;
    cot_error error = {0};
    const cot_tokenizer_limits limits = {.most_tokens = (int64_t)most};
    assert_int_equal(cot_tokenizer_encode(tokenizer, &whole, &n, text->data, text->bytes, true, &error),
                     COT_OK);
    const cot_status status = cot_tokenizer_encode_within(tokenizer, &ids, &count, text->data, text->bytes,
                                                          NULL, true, &limits, &error);
    if (!most || n <= most) {
        assert_int_equal(status, COT_OK);
        assert_int_equal(count, n);
        if (n) assert_memory_equal(ids, whole, n * sizeof *ids);
    } else {
        assert_int_equal(status, COT_TOO_LONG);
        assert_non_null(strstr(error.message, "more than"));
        assert_null(ids);
        assert_int_equal(count, 0);
    }
    free(ids);
    free(whole);
}

static void check_limits(const cot_tokenizer *tokenizer, uint64_t stream)
{
    cot_buffer text = {0};
    int32_t *ids;
    size_t n;
    for (uint64_t round = 0; round < 200; round++) {
        append_random(&text, stream + round);
        assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &n, text.data, text.bytes, true, NULL),
                         COT_OK);
        free(ids);
        const size_t limits[] = {
            0, 1, n, n + 1, n - 1, n / 2, cot_random_bits(test_seed(), stream + round, 999) % (n + 2)};
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
            if (limits[i] <= n + 1) check_limit(tokenizer, &text, limits[i]);
    }
    cot_buffer_free(&text);
}

static void test_limits(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        tokenizer = open_kind(&kinds[k]);
        check_limits(tokenizer, 1000 * k);
        cot_tokenizer_close(tokenizer);
    }
    assert_int_equal(cot_tokenizer_open(&tokenizer, TINY, NULL), COT_OK);
    check_limits(tokenizer, 100000);
    cot_tokenizer_close(tokenizer);
}

/* As many times the unit, at every limit. */
static void check_repeated(const cot_tokenizer *tokenizer, const char *unit)
{
    enum { TIMES = 9 };
    cot_buffer text = {0};
    for (int i = 0; i < TIMES; i++) assert_true(cot_buffer_text(&text, unit));
    for (size_t most = 0; most <= TIMES + 1; most++) check_limit(tokenizer, &text, most);
    cot_buffer_free(&text);
}

/* A word and a space beside it are one token, which are two spans of one piece. */
static void test_pieces_of_two_spans(void **state)
{
    (void)state;
    static const struct kind merged[] = {{SPLIT(" ", "MergedWithPrevious"), "\"unk_token\": \"?\""},
                                         {SPLIT(" ", "MergedWithNext"), "\"unk_token\": \"?\""},
                                         {SPLIT("[b ]", "Contiguous"), "\"unk_token\": \"?\""}};
    for (size_t k = 0; k < sizeof merged / sizeof *merged; k++) {
        cot_tokenizer *tokenizer = open_kind(&merged[k]);
        check_repeated(tokenizer, "b ");
        check_repeated(tokenizer, " b");
        cot_tokenizer_close(tokenizer);
    }
}

/* What follows as many added tokens as are allowed is not left out in silence. */
static void test_behind_added_tokens(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer = open_kind(&kinds[0]);
    check_repeated(tokenizer, "<s>");
    check_repeated(tokenizer, "<s>a");
    cot_buffer text = {0};
    for (size_t added = 0; added < 9; added++) {
        text.bytes = 0;
        for (size_t i = 0; i < added; i++) assert_true(cot_buffer_text(&text, "<s>"));
        assert_true(cot_buffer_text(&text, "b"));
        for (size_t most = 1; most < 11; most++) check_limit(tokenizer, &text, most);
    }
    cot_buffer_free(&text);
    cot_tokenizer_close(tokenizer);
}

/* An unknown character is one token, of more bytes than any of the vocabulary's. */
static void test_unknown_characters(void **state)
{
    (void)state;
    static const char json[] = "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, "
                               "\"a\": 1}, \"merges\": []}}";
    cot_tokenizer *tokenizer;
    cot_error error;
    if (cot_tokenizer_parse(&tokenizer, json, sizeof json - 1, "short entries", &error))
        fail_msg("%s", error.message);
    for (size_t c = 0; c < 4; c++) check_repeated(tokenizer, (const char *const[]){"a", "é", "日", "😀"}[c]);
    cot_tokenizer_close(tokenizer);
}

/* ---- when it is told to ---- */

static cot_status encode(const cot_tokenizer *tokenizer, const cot_buffer *text, int64_t most, asked *a)
{
    const cot_tokenizer_limits limits = {.most_tokens = most, .is_stopped = is_stopped, .context = a};
    int32_t *ids;
    size_t count;
    const cot_status status = cot_tokenizer_encode_within(tokenizer, &ids, &count, text->data, text->bytes,
                                                          NULL, false, &limits, NULL);
    assert_true(status == COT_OK || !ids);
    free(ids);
    return status;
}

/* Texts of megabytes, of one word, of many and of nothing but added tokens: with a limit they cost what the limit does,
 * without one they end at whichever question is answered so. */
static void test_stops(void **state)
{
    (void)state;
    static const char *const units[] = {" ", "a", "7", "hello world ", "<s>"};
    cot_tokenizer *tokenizer;
    assert_int_equal(cot_tokenizer_open(&tokenizer, TINY, NULL), COT_OK);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        cot_buffer text = {0};
        while (text.bytes < 2000000) assert_true(cot_buffer_text(&text, units[u]));
        asked patient = {.patience = UINT64_MAX};
        assert_int_equal(encode(tokenizer, &text, 500, &patient), COT_TOO_LONG);
        assert_true(patient.times < 600);
        patient.times = 0;
        assert_int_equal(encode(tokenizer, &text, 0, &patient), COT_OK);
        assert_true(patient.times > 10);
        const uint64_t at = 1 + cot_random_bits(test_seed(), 7, u) % patient.times;
        asked hasty = {.patience = at};
        assert_int_equal(encode(tokenizer, &text, 0, &hasty), COT_TIMED_OUT);
        assert_int_equal(hasty.times, at); // and nothing was done after that
        cot_buffer_free(&text);
    }
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits), cmocka_unit_test(test_pieces_of_two_spans),
        cmocka_unit_test(test_behind_added_tokens), cmocka_unit_test(test_unknown_characters),
        cmocka_unit_test(test_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
