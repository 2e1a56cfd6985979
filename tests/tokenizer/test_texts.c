/* Random and long texts: what is encoded decodes to itself, by any thread, in time that is not quadratic. */
#include "coterie/tokenizer.h"

#include "base/rng.h"
#include "base/buffer.h"
#include "tokenizer/normalize.h"
#include "tokenizer/utf8.h"
#include "harness/seed.h"
#include "harness/tokenizer/tokenizer_json.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TINY COT_SOURCE "/models/tiny" // byte-level, NFC

static cot_tokenizer *open_tiny(void)
{
    cot_tokenizer *tokenizer;
    cot_error error;
    if (cot_tokenizer_open(&tokenizer, TINY, &error)) fail_msg("%s", error.message);
    return tokenizer;
}

static int32_t random_character(uint64_t stream, uint64_t position)
{
    static const int32_t ends[] = {0x80, 0x80, 0x80, 0x250, 0x370, 0x3000, 0x10000, 0x110000};
    uint64_t bits = cot_random_bits(test_seed(), stream, position);
    int32_t c = (int32_t)((bits >> 8) % (uint64_t)ends[bits % 8]);
    return c >= 0xd800 && c < 0xe000 ? 0x301 : c;
}

static void append_random(cot_buffer *text, uint64_t stream, size_t characters)
{
    for (size_t i = 0; i < characters; i++) {
        char utf8[4];
        assert_true(cot_buffer_append(text, utf8, cot_utf8_write(utf8, random_character(stream, i))));
    }
}

/* Encodes and decodes `text`, NFC already; returns the ids, to be freed. */
static int32_t *check_round_trip(const cot_tokenizer *tokenizer, const char *text, size_t bytes,
                                 size_t *count)
{
    int32_t *ids;
    char *decoded;
    size_t n;
    cot_error error;
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, count, text, bytes, true, &error), COT_OK);
    assert_int_equal(cot_tokenizer_decode(tokenizer, &decoded, &n, ids, *count, false, &error), COT_OK);
    assert_int_equal(n, bytes);
    assert_memory_equal(decoded, text, bytes);
    free(decoded);
    return ids;
}

static void test_round_trips(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer = open_tiny();
    for (uint64_t stream = 0; stream < 300; stream++) {
        cot_buffer text = {0};
        cot_error error;
        size_t count;
        append_random(&text, stream, stream % 60);
        assert_true(cot_buffer_append(&text, "", 0));
        assert_int_equal(cot_nfc(&text, &error), COT_OK);
        free(check_round_trip(tokenizer, text.data, text.bytes, &count));
        cot_buffer_free(&text);
    }
    cot_tokenizer_close(tokenizer);
}

/* Ids of any kind decode to text; pieces of it are whole characters. */
static void test_random_ids(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer = open_tiny();
    cot_detokenizer *detokenizer;
    cot_error error;
    size_t size = cot_tokenizer_size(tokenizer), bytes, n;
    assert_int_equal(cot_detokenizer_open(&detokenizer, tokenizer, true, &error), COT_OK);
    for (uint64_t stream = 0; stream < 300; stream++) {
        int32_t ids[50];
        char *text;
        const char *piece;
        size_t count = stream % 50, at = 0;
        // The first 300 ids hold all the single bytes: half of the tokens are those.
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = cot_random_bits(test_seed(), 1000 + stream, i);
            ids[i] = (int32_t)((bits >> 1) % (bits & 1 ? size : 300));
        }
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, count, true, &error), COT_OK);
        assert_int_equal(cot_utf8_check(text, bytes), bytes);
        for (size_t i = 0; i <= count; i++) {
            cot_status status = i < count ? cot_detokenizer_push(detokenizer, ids[i], &piece, &n, &error)
                                          : cot_detokenizer_finish(detokenizer, &piece, &n, &error);
            assert_int_equal(status, COT_OK);
            assert_true(at + n <= bytes);
            assert_memory_equal(piece, text + at, n);
            assert_int_equal(cot_utf8_check(piece, n), n);
            at += n;
        }
        assert_int_equal(at, bytes);
        free(text);
    }
    cot_detokenizer_close(detokenizer);
    cot_tokenizer_close(tokenizer);
}

/* Words and runs of a million characters: quadratic work would take hours. */
static void test_long_words(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "ab", " ", "\t", "!?", "7", "日本", "a ", "\n ", "x'"};
    cot_tokenizer *tokenizer = open_tiny();
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        cot_buffer text = {0};
        size_t count;
        while (text.bytes < 1000000) assert_true(cot_buffer_text(&text, units[u]));
        assert_true(cot_buffer_text(&text, "x"));
        free(check_round_trip(tokenizer, text.data, text.bytes, &count));
        cot_buffer_free(&text);
    }
    cot_tokenizer_close(tokenizer);
}

/* Combining marks in the wrong order: NFC sorts them, those of one class in their order. */
static void test_marks(void **state)
{
    (void)state;
    enum { PAIRS = 100000 };
    static const int lengths[] = {1, 7, 8, 9, PAIRS};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        cot_buffer text = {0}, expected = {0};
        cot_error error;
        assert_true(cot_buffer_text(&text, "xa") && cot_buffer_text(&expected, "x\xe1\xba\xa1")); // U+1EA1
        for (int i = 0; i < lengths[l]; i++)
            assert_true(cot_buffer_text(&text, i % 2 ? "\u0301\u0323" : "\u0308\u0323"));
        for (int i = 1; i < lengths[l]; i++) assert_true(cot_buffer_text(&expected, "\u0323"));
        for (int i = 0; i < lengths[l]; i++)
            assert_true(cot_buffer_text(&expected, i % 2 ? "\u0301" : "\u0308"));
        assert_int_equal(cot_nfc(&text, &error), COT_OK);
        assert_int_equal(text.bytes, expected.bytes);
        assert_memory_equal(text.data, expected.data, text.bytes);
        cot_buffer_free(&text);
        cot_buffer_free(&expected);
    }
}

typedef struct shared {
    const cot_tokenizer *tokenizer;
    const cot_buffer *text;
    int32_t *ids;
    size_t count;
} shared;

static void *encode_again(void *context)
{
    const shared *s = context;
    for (int i = 0; i < 5; i++) {
        size_t count;
        int32_t *ids = check_round_trip(s->tokenizer, s->text->data, s->text->bytes, &count);
        if (count != s->count || memcmp(ids, s->ids, count * sizeof *ids)) abort();
        free(ids);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    cot_tokenizer *tokenizer = open_tiny();
    cot_buffer text = {0};
    cot_error error;
    pthread_t threads[THREADS];
    append_random(&text, 5000, 3000);
    assert_int_equal(cot_nfc(&text, &error), COT_OK);
    shared s = {.tokenizer = tokenizer, .text = &text};
    s.ids = check_round_trip(tokenizer, text.data, text.bytes, &s.count);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_again, &s), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    free(s.ids);
    cot_buffer_free(&text);
    cot_tokenizer_close(tokenizer);
}

/* A token begins with the character that its first byte is of. Tiny's tokens have a character for each of their bytes. */
static void test_starts(void **state)
{
    (void)state;
    cot_tokenizer *tokenizer = open_tiny();
    cot_buffer text = {0};
    cot_detokenizer *detokenizer;
    int32_t *ids;
    char *whole;
    const char *piece;
    size_t count, bytes, n, at = 0, told = 0, inner = 0;
    append_random(&text, 77, 3000);
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, text.data, text.bytes, false, NULL),
                     COT_OK);
    assert_int_equal(cot_tokenizer_decode(tokenizer, &whole, &bytes, ids, count, false, NULL), COT_OK);
    assert_int_equal(cot_detokenizer_open(&detokenizer, tokenizer, false, NULL), COT_OK);
    for (size_t i = 0; i < count; i++) {
        size_t start = 0; // characters that begin before or at byte `at`, but one
        for (size_t b = 1; b <= at; b++) start += (whole[b] & 0xc0) != 0x80;
        assert_int_equal(cot_detokenizer_push(detokenizer, ids[i], &piece, &n, NULL), COT_OK);
        if (at < bytes) assert_int_equal(told + cot_detokenizer_start(detokenizer), start);
        inner += at < bytes && (whole[at] & 0xc0) == 0x80;
        for (size_t b = 0; b < n; b++) told += (piece[b] & 0xc0) != 0x80;
        for (const char *c = cot_tokenizer_token(tokenizer, ids[i]); *c; c++) at += (*c & 0xc0) != 0x80;
    }
    assert_int_equal(at, bytes);
    assert_true(inner > 100);
    cot_detokenizer_finish(detokenizer, &piece, &n, NULL);
    static const int32_t broken[] = {1019, 1019, 88}; // half of a character twice, each a U+FFFD, and x
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(cot_detokenizer_push(detokenizer, broken[i], &piece, &n, NULL), COT_OK);
        assert_int_equal(cot_detokenizer_start(detokenizer), i > 0);
        assert_int_equal(n, i == 0 ? 0 : i == 1 ? 3 : 4);
    }
    cot_detokenizer_close(detokenizer);
    free(whole);
    free(ids);
    cot_buffer_free(&text);
    cot_tokenizer_close(tokenizer);
}

/* Runs of byte tokens are handed out when they end: what is behind one begins behind it. */
static void test_starts_in_runs(void **state)
{
    (void)state;
    enum { A = 1, E6, X97, A5, SPACE_A, X41, END };
    static const struct {
        int32_t ids[10];
        size_t starts[10];
    } runs[] = {
        {{A, E6, X97, A5, A, A}, {0, 1, 1, 1, 2, 3}},
        {{E6, X97, A5, E6, X97, A5, SPACE_A}, {0, 0, 0, 1, 1, 1, 2}},
        {{X41, X41, E6, X97, A5, X41, A}, {0, 1, 2, 2, 2, 3, 4}},
        {{E6, X97, A, A}, {0, 0, 2, 3}},                // no UTF-8: a U+FFFD each
        {{SPACE_A, E6, X97, A5, END}, {0, 1, 1, 1, 2}}, // the space that begins a text is gone
        {{END, A, END, A, A}, {0, 0, 1, 1, 2}},
    };
    cot_tokenizer *tokenizer;
    cot_error error;
    if (tokenizer_json_open(&tokenizer,
                            "{'model': {'vocab': {'<unk>': 0, 'a': 1, '<0xE6>': 2, '<0x97>': 3, '<0xA5>': 4, "
                            "'_a': 5, '<0x41>': 6},"
                            " 'merges': [], 'byte_fallback': true}, 'added_tokens': [{'id': 7, 'content': "
                            "'</s>', 'special': true}],"
                            " 'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': "
                            "{'String': '_'}, 'content': ' '},"
                            " {'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', "
                            "'start': 1, 'stop': 0}]}}",
                            &error))
        fail_msg("%s", error.message);
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        cot_detokenizer *detokenizer;
        size_t told = 0, n;
        const char *piece;
        assert_int_equal(cot_detokenizer_open(&detokenizer, tokenizer, true, NULL), COT_OK);
        for (size_t i = 0; i < 10 && runs[r].ids[i]; i++) {
            assert_int_equal(cot_detokenizer_push(detokenizer, runs[r].ids[i], &piece, &n, NULL), COT_OK);
            const size_t start = told + cot_detokenizer_start(detokenizer);
            if (start != runs[r].starts[i]) fail_msg("run %zu: token %zu begins at %zu", r, i, start);
            for (size_t b = 0; b < n; b++) told += (piece[b] & 0xc0) != 0x80;
        }
        cot_detokenizer_close(detokenizer);
    }
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),    cmocka_unit_test(test_starts),
        cmocka_unit_test(test_starts_in_runs), cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_long_words),     cmocka_unit_test(test_marks),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
