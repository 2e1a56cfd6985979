/* Random and long texts: what is encoded decodes to itself, by any thread, in time that is not quadratic. */
#include "coterie/tokenizer.h"

#include "base/rng.h"
#include "base/buffer.h"
#include "tokenizer/normalize.h"
#include "tokenizer/utf8.h"
#include "harness/seed.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_long_words),  cmocka_unit_test(test_marks),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
