/* Text streams: whole characters, and nothing that is or may become a stop string. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "base/buffer.h"
#include "coterie/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cot_tokenizer *tokenizer;

static int open_tokenizer(void **state)
{
    (void)state;
    return cot_tokenizer_open(&tokenizer, TINY, NULL) != COT_OK;
}

static int close_tokenizer(void **state)
{
    (void)state;
    cot_tokenizer_close(tokenizer);
    return 0;
}

static bool whole_characters(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        unsigned char c = (unsigned char)text[i];
        size_t more = c < 0x80 ? 0 : c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 9;
        if (more == 9 || i + more >= bytes) return false;
        for (size_t k = 1; k <= more; k++)
            if (((unsigned char)text[i + k] & 0xc0) != 0x80) return false;
        i += 1 + more;
    }
    return true;
}

struct shown {
    char text[4096];
    size_t bytes;
    bool stopped;
    size_t tokens; // pushed
    int stopped_by;
};

/* Pushes tokens until they end or a stop string has come. */
static struct shown show_with(const int32_t *ids, size_t count, const cot_text_options *options)
{
    struct shown out = {0};
    cot_text_stream *stream;
    assert_int_equal(cot_text_stream_open(&stream, tokenizer, options, NULL), COT_OK);
    assert_int_equal(cot_text_stream_stopped_by(stream), -1);
    const char *piece;
    size_t bytes;
    for (; out.tokens < count && !out.stopped; out.tokens++) {
        assert_int_equal(cot_text_stream_push(stream, ids[out.tokens], &piece, &bytes, &out.stopped, NULL),
                         COT_OK);
        assert_true(whole_characters(piece, bytes) && out.bytes + bytes < sizeof out.text);
        memcpy(out.text + out.bytes, piece, bytes);
        out.bytes += bytes;
    }
    if (!out.stopped) {
        assert_int_equal(cot_text_stream_finish(stream, &piece, &bytes, NULL), COT_OK);
        assert_true(whole_characters(piece, bytes) && out.bytes + bytes < sizeof out.text);
        memcpy(out.text + out.bytes, piece, bytes);
        out.bytes += bytes;
    }
    out.stopped_by = cot_text_stream_stopped_by(stream);
    assert_true(!out.stopped || out.stopped_by >= 0);
    cot_text_stream_close(stream);
    return out;
}

static cot_text_options with_stops(const char *const *stops, size_t stop_count)
{
    cot_text_options options;
    cot_text_options_init(&options);
    options.stops = stops;
    options.stop_count = stop_count;
    return options;
}

static struct shown show(const int32_t *ids, size_t count, const char *const *stops, size_t stop_count)
{
    const cot_text_options options = with_stops(stops, stop_count);
    return show_with(ids, count, &options);
}

static int32_t *encode(const char *text, size_t *count)
{
    int32_t *ids;
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, count, text, strlen(text), false, NULL), COT_OK);
    return ids;
}

/* Where the first of the stop strings begins. */
static size_t first_stop(const char *text, size_t bytes, const char *const *stops, size_t stop_count)
{
    for (size_t at = 0; at < bytes; at++)
        for (size_t i = 0; i < stop_count; i++)
            if (strlen(stops[i]) <= bytes - at && !memcmp(text + at, stops[i], strlen(stops[i]))) return at;
    return bytes;
}

/* The fewest tokens whose text holds a stop string are pushed, and what is shown ends where it begins. */
static void expect(const char *text, const char *const *stops, size_t stop_count)
{
    size_t count, pushed = 0, bytes, end;
    int32_t *ids = encode(text, &count);
    char *prefix = NULL;
    do { // ends that are parts of characters decode to U+FFFD, which is in no stop string
        free(prefix);
        assert_int_equal(cot_tokenizer_decode(tokenizer, &prefix, &bytes, ids, pushed, true, NULL), COT_OK);
        end = first_stop(prefix, bytes, stops, stop_count);
    } while (end == bytes && pushed++ < count);
    struct shown out = show(ids, count, stops, stop_count);
    if (out.bytes != end || memcmp(out.text, text, end) != 0)
        fail_msg("'%s' became '%.*s'", text, (int)out.bytes, out.text);
    assert_int_equal(out.stopped, end < bytes);
    assert_int_equal(out.tokens, end < bytes ? pushed : count);
    free(prefix);
    free(ids);
}

static void stop_strings(void **state)
{
    (void)state;
    static const char *const end[] = {"####"}, *const overlapping[] = {"abab", "abac"},
                             *const nested[] = {"needle in", "needle"},
                             *const many[] = {"\n\n", "Answer:", "中文"}, *const whole[] = {"Hello"},
                             *const one[] = {"z"};
    expect("He has 12 eggs\n#### 12 and more", end, 1);
    expect("one # two ## three ### four #", end, 1);
    expect("################", end, 1);
    expect("xxabaabacabab", overlapping, 2);
    expect("abaabaabaab", overlapping, 2);
    expect("a needle in a haystack", nested, 2);
    expect("a need, a needl, all needles", nested, 2);
    expect("Question\nWhat?\nAnswer: 3\n\n", many, 3);
    expect("Wir sprechen Deutsch, 中国, 中文。", many, 3);
    expect("Hello", whole, 1);
    expect("Hell", whole, 1);
    expect("lazy", one, 1);
    expect("", one, 1);
    expect("nothing stops this", NULL, 0);
}

static void drawn_texts_and_stops(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 3000; round++) {
        char text[64], stop[3][5];
        const char *stops[3] = {stop[0], stop[1], stop[2]};
        size_t length = draw(&seed) % 40, stop_count = 1 + draw(&seed) % 3;
        for (size_t i = 0; i < length; i++) text[i] = "ab "[draw(&seed) % 3];
        text[length] = 0;
        for (size_t i = 0; i < 3; i++) {
            size_t n = 1 + draw(&seed) % 4;
            for (size_t k = 0; k < n; k++) stop[i][k] = "ab "[draw(&seed) % 3];
            stop[i][n] = 0;
        }
        expect(text, stops, stop_count);
    }
}

static void characters_are_never_split(void **state)
{
    (void)state;
    static const char *const stops[] = {
        "\xf0\x9f\x98\x80\xf0\x9f\x98\x81"}; // two faces; one alone is no stop
    expect("Grüße, señor, ça va? 你好，世界 \xf0\x9f\x98\x80 \xf0\x9f\x8e\x89!", stops, 1);
    expect("\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x81 no more", stops, 1);
    uint64_t seed = test_seed();
    size_t size = cot_tokenizer_size(tokenizer);
    for (int round = 0; round < 300; round++) { // any tokens: bytes that are no characters become U+FFFD
        int32_t ids[30];
        size_t count = draw(&seed) % 31, bytes;
        for (size_t i = 0; i < count; i++)
            ids[i] = (int32_t)(draw(&seed) % (draw(&seed) % 2 ? size : 300)); // the first are single bytes
        struct shown out = show(ids, count, NULL, 0);
        char *text;
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, count, true, NULL), COT_OK);
        assert_int_equal(out.bytes, bytes);
        assert_memory_equal(out.text, text, bytes);
        free(text);
    }
}

/* What a server's clients may ask for: which stop string it was, its text included, special tokens, no stop too early. */
static void options_of_stops(void **state)
{
    (void)state;
    size_t count;
    int32_t *ids = encode("one two three two four", &count);
    const char *const stops[] = {"four", "wo t", "two thr"};
    cot_text_options options = with_stops(stops, 3);
    struct shown out = show_with(ids, count, &options);
    assert_int_equal(out.stopped_by, 2); // it begins first
    assert_int_equal(out.bytes, strlen("one "));
    options.include_stop = true;
    out = show_with(ids, count, &options);
    assert_int_equal(out.stopped_by, 2);
    assert_int_equal(out.bytes, strlen("one two thr"));
    assert_memory_equal(out.text, "one two thr", out.bytes);

    const char *const two[] = {"two"};
    options = with_stops(two, 1);
    size_t first = 0; // tokens up to the first "two": those are not searched, the second one is
    for (char text[64] = ""; !strstr(text, "two"); first++) {
        char *piece;
        size_t bytes;
        assert_int_equal(cot_tokenizer_decode(tokenizer, &piece, &bytes, ids, first + 1, true, NULL), COT_OK);
        snprintf(text, sizeof text, "%s", piece);
        free(piece);
    }
    options.stop_after_tokens = (int64_t)first;
    out = show_with(ids, count, &options);
    assert_true(out.stopped);
    assert_int_equal(out.bytes, strlen("one two three "));
    options.stop_after_tokens = (int64_t)count;
    out = show_with(ids, count, &options);
    assert_int_equal(out.stopped_by, -1);
    assert_int_equal(out.bytes, strlen("one two three two four"));
    free(ids);

    const int32_t special[] = {0}; // <|endoftext|>
    options = with_stops(NULL, 0);
    assert_int_equal(show_with(special, 1, &options).bytes, 0);
    options.keep_special_tokens = true;
    out = show_with(special, 1, &options);
    assert_int_equal(out.bytes, strlen(cot_tokenizer_token(tokenizer, 0)));
}

/* Of stop strings that begin at one place the first of the list is what stopped, whichever is longest: here one token brings all. */
static void the_first_of_the_list_stops(void **state)
{
    (void)state;
    size_t count, i = 0;
    int32_t *ids = encode("one two three two four", &count);
    const char *token = "";
    for (; i < count && strlen(token) < 4; i++) token = cot_tokenizer_token(tokenizer, ids[i]);
    assert_true(strlen(token) >= 4);
    char *text, stop[3][8] = {{0}};
    size_t bytes;
    assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, &ids[i - 1], 1, true, NULL), COT_OK);
    assert_true(bytes >= 4 && text[0] != text[1]);
    for (size_t n = 0; n < 3; n++) memcpy(stop[n], text + 1, n + 1);
    for (size_t first = 0; first < 3; first++) {
        const char *const stops[] = {stop[first], stop[(first + 1) % 3], stop[(first + 2) % 3]};
        cot_text_options options = with_stops(stops, 3);
        options.include_stop = true;
        const struct shown out = show_with(&ids[i - 1], 1, &options);
        assert_int_equal(out.stopped_by, 0);
        assert_int_equal(out.bytes, 2 + first);
    }
    free(text);
    free(ids);
}

/* What a text ends with, where that is a part of a character, is searched for stop strings as any text is: not before its time. */
static void the_end_is_searched_in_its_time(void **state)
{
    (void)state;
    static const char *const stops[] = {"\xef\xbf\xbd"}; // U+FFFD
    int tried = 0;
    for (int32_t id = 0; id < 300; id++) {
        char *text;
        size_t bytes;
        assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, &id, 1, true, NULL), COT_OK);
        const bool broken = bytes == 3 && !memcmp(text, stops[0], 3);
        free(text);
        if (!broken) continue;
        cot_text_options options = with_stops(stops, 1);
        assert_int_equal(show_with(&id, 1, &options).stopped_by, 0);
        assert_int_equal(show_with(&id, 1, &options).bytes, 0);
        options.stop_after_tokens = 2;
        assert_int_equal(show_with(&id, 1, &options).stopped_by, -1);
        assert_int_equal(show_with(&id, 1, &options).bytes, 3);
        tried++;
    }
    assert_true(tried > 50); // bytes that begin characters, and those that only continue them
}

static void refusals(void **state)
{
    (void)state;
    static const char *const stops[] = {"fine", ""};
    cot_text_stream *stream;
    cot_error error = {0};
    cot_text_options options = with_stops(stops, 2);
    assert_int_equal(cot_text_stream_open(&stream, tokenizer, &options, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "empty"));
    assert_null(stream);
    cot_text_stream_close(NULL);
    options.stop_count = 1;
    options.size--;
    assert_int_equal(cot_text_stream_open(&stream, tokenizer, &options, &error), COT_INVALID_ARGUMENT);
    options.size++;
    assert_int_equal(cot_text_stream_open(&stream, tokenizer, &options, NULL), COT_OK);
    const char *piece;
    size_t bytes;
    bool stopped;
    assert_int_equal(cot_text_stream_push(stream, -1, &piece, &bytes, &stopped, &error),
                     COT_INVALID_ARGUMENT);
    // a model's vocabulary may be padded beyond its tokenizer's
    assert_int_equal(cot_text_stream_push(stream, (int32_t)cot_tokenizer_size(tokenizer), &piece, &bytes,
                                          &stopped, &error),
                     COT_OK);
    assert_int_equal(bytes, 0);
    assert_false(stopped);
    cot_text_stream_close(stream);
}

static void added_tokens_are_marked(void **state)
{
    (void)state;
    cot_text_options options;
    cot_text_options_init(&options);
    size_t count, spelled;
    int32_t *ids = encode("a<|endoftext|>b", &count), *text = encode("<|endo", &spelled);
    int32_t all[32];
    memcpy(all, ids, count * sizeof *ids);
    memcpy(all + count, text, spelled * sizeof *text);
    struct shown shown = show_with(all, count + spelled, &options);
    assert_string_equal(shown.text, "ab<|endo");
    options.mark_added_tokens = true; // what spells the token is not marked
    cot_text_stream *stream;
    cot_buffer marked = {0};
    const char *piece;
    size_t bytes;
    bool stopped;
    assert_int_equal(cot_text_stream_open(&stream, tokenizer, &options, NULL), COT_OK);
    for (size_t i = 0; i < count + spelled; i++) {
        assert_int_equal(cot_text_stream_push(stream, all[i], &piece, &bytes, &stopped, NULL), COT_OK);
        assert_true(cot_buffer_append(&marked, piece, bytes));
    }
    assert_int_equal(cot_text_stream_finish(stream, &piece, &bytes, NULL), COT_OK);
    assert_true(cot_buffer_append(&marked, piece, bytes));
    assert_string_equal(marked.data, "a\xff<|endoftext|>\xfd"
                                     "b<|endo");
    cot_text_stream_close(stream);
    cot_buffer_free(&marked);
    assert_int_equal(cot_tokenizer_added_token(tokenizer, "<|endoftext|>"), 0);
    assert_int_equal(cot_tokenizer_added_token(tokenizer, "<|endoftext|"), -1);
    assert_int_equal(cot_tokenizer_added_token(tokenizer, "the"), -1);
    free(ids);
    free(text);
}

/* Model tiny's tokenizer with tokens of its own behind it: half of them special. */
static cot_tokenizer *open_added(const char *const *names, size_t count)
{
    json_t *json = json_load_file(TINY "/tokenizer.json", 0, NULL),
           *list = json_object_get(json, "added_tokens");
    assert_non_null(list);
    const size_t first = cot_tokenizer_size(tokenizer);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b}", "id", (json_int_t)(first + i),
                                              "content", names[i], "special", (int)(i % 2), "normalized", 0));
    char *text = json_dumps(json, 0);
    cot_tokenizer *added;
    cot_error error;
    if (cot_tokenizer_parse(&added, text, strlen(text), "it", &error) != COT_OK)
        fail_msg("%s", error.message);
    free(text);
    json_decref(json);
    return added;
}

/* What a client reads of a text with marks. */
static void strip(struct shown *out, bool keeps_special)
{
    size_t to = 0;
    bool hidden = false;
    for (size_t i = 0; i < out->bytes; i++) {
        const unsigned char c = (unsigned char)out->text[i];
        if (c >= 0xfd)
            hidden = c == 0xff && !keeps_special;
        else if (!hidden)
            out->text[to++] = out->text[i];
    }
    out->bytes = to;
}

/* Marks change nothing of where a text stops: after each token as much of it is out as of the text without them. */
static void marks_do_not_move_stops(void **state)
{
    (void)state;
    static const char *const names[] = {"<ab>", "<|a|>", "</ab>", "<|ba|>", "ab<", "b<|"};
    enum { NAMES = sizeof names / sizeof *names };
    cot_tokenizer *added = open_added(names, NAMES);
    const size_t first = cot_tokenizer_size(tokenizer);
    uint64_t seed = test_seed();
    size_t stopped_rounds = 0;
    for (int round = 0; round < 5000; round++) {
        int32_t ids[24];
        const size_t count = draw(&seed) % 25, stop_count = draw(&seed) % 4;
        char stop[3][6];
        const char *stops[3] = {stop[0], stop[1], stop[2]};
        for (size_t i = 0; i < count; i++) {
            const char letter = "ab<>|/"[draw(&seed) % 6];
            ids[i] = draw(&seed) % 2 ? (int32_t)(first + draw(&seed) % NAMES) : letter - '!' + 1;
        }
        for (size_t i = 0; i < 3; i++) {
            const size_t n = 1 + draw(&seed) % 5;
            for (size_t k = 0; k < n; k++) stop[i][k] = "ab<>|/"[draw(&seed) % 6];
            stop[i][n] = 0;
        }
        cot_text_options options = with_stops(stops, stop_count);
        options.include_stop = draw(&seed) % 2;
        options.keep_special_tokens = draw(&seed) % 2;
        options.stop_after_tokens = draw(&seed) % 4 ? 0 : (int64_t)(draw(&seed) % 8);
        struct shown plain = {0}, marked = {0};
        cot_text_stream *of_plain, *of_marked;
        assert_int_equal(cot_text_stream_open(&of_plain, added, &options, NULL), COT_OK);
        options.mark_added_tokens = true;
        assert_int_equal(cot_text_stream_open(&of_marked, added, &options, NULL), COT_OK);
        for (size_t i = 0; i <= count && !plain.stopped; i++) {
            const char *piece, *marked_piece;
            size_t bytes, marked_bytes;
            if (i < count) {
                assert_int_equal(cot_text_stream_push(of_plain, ids[i], &piece, &bytes, &plain.stopped, NULL),
                                 COT_OK);
                assert_int_equal(cot_text_stream_push(of_marked, ids[i], &marked_piece, &marked_bytes,
                                                      &marked.stopped, NULL),
                                 COT_OK);
            } else {
                assert_int_equal(cot_text_stream_finish(of_plain, &piece, &bytes, NULL), COT_OK);
                assert_int_equal(cot_text_stream_finish(of_marked, &marked_piece, &marked_bytes, NULL),
                                 COT_OK);
            }
            memcpy(plain.text + plain.bytes, piece, bytes);
            plain.bytes += bytes;
            memcpy(marked.text + marked.bytes, marked_piece, marked_bytes);
            marked.bytes += marked_bytes;
            struct shown read = marked;
            strip(&read, options.keep_special_tokens);
            assert_int_equal(marked.stopped, plain.stopped);
            assert_int_equal(read.bytes, plain.bytes);
            assert_memory_equal(read.text, plain.text, plain.bytes);
        }
        // a token stands there whole, or cut by the stop string, or not at all
        const char *last = memrchr(marked.text, 0xfd, marked.bytes);
        for (const char *c = marked.text; c < marked.text + marked.bytes; c++)
            if ((unsigned char)*c > 0xfd && (!last || c > last)) assert_true(plain.stopped);
        if (marked.bytes) assert_true((unsigned char)marked.text[marked.bytes - 1] < 0xfe);
        assert_int_equal(cot_text_stream_stopped_by(of_marked), cot_text_stream_stopped_by(of_plain));
        stopped_rounds += plain.stopped;
        cot_text_stream_close(of_plain);
        cot_text_stream_close(of_marked);
    }
    assert_true(stopped_rounds > 500);
    cot_tokenizer_close(added);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(drawn_texts_and_stops),
        cmocka_unit_test(characters_are_never_split),
        cmocka_unit_test(options_of_stops),
        cmocka_unit_test(the_first_of_the_list_stops),
        cmocka_unit_test(the_end_is_searched_in_its_time),
        cmocka_unit_test(refusals),
        cmocka_unit_test(added_tokens_are_marked),
        cmocka_unit_test(marks_do_not_move_stops),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
