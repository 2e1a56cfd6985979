/* Tokenizers out of GGUF metadata: the ids that others made of the same strings, and texts that come back. */
#include "harness/cmocka.h"

#include "coterie/tokenizer.h"
#include "base/rng.h"
#include "harness/engine/golden.h"
#include "harness/gguf.h"
#include "harness/refused.h"
#include "harness/scratch.h"
#include "harness/seed.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define VOCAB COT_SHARED "/golden/gguf/vocab/"

static cot_error error;

static void expect_ids(const char *name, int line, const char *what, const json_t *wanted, const int32_t *ids,
                       size_t count)
{
    bool same = count == json_array_size(wanted);
    for (size_t i = 0; i < count && same; i++) same = ids[i] == json_integer_value(json_array_get(wanted, i));
    if (same) return;
    printf("found   ");
    for (size_t i = 0; i < count; i++) printf(" %d", ids[i]);
    printf("\nexpected");
    for (size_t i = 0; i < json_array_size(wanted); i++)
        printf(" %lld", (long long)json_integer_value(json_array_get(wanted, i)));
    fail_msg("%s, line %d: other %s", name, line, what);
}

static void check_line(const cot_tokenizer *t, const char *name, bool back_too, int line, const json_t *row)
{
    const json_t *text = json_object_get(row, "text"), *hub = json_object_get(row, "ids_hub"),
                 *plain = json_object_get(row, "ids"), *parsed = json_object_get(row, "ids_parsed");
    const char *bytes = json_string_value(text);
    const size_t length = json_string_length(text);
    int32_t *ids;
    size_t count;
    assert_int_equal(cot_tokenizer_encode(t, &ids, &count, bytes, length, false, &error), COT_OK);
    expect_ids(name, line, "ids", hub ? hub : parsed, ids, count);
    char *back;
    size_t back_bytes;
    assert_int_equal(cot_tokenizer_decode(t, &back, &back_bytes, ids, count, false, &error), COT_OK);
    if (back_too && strncmp(name, "llama-spm", 9) != 0 && strcmp(name, "real-llama-spm") != 0) {
        if (back_bytes != length || memcmp(back, bytes, length) != 0) // others put spaces before texts
            fail_msg("%s, line %d: comes back as '%s'", name, line, back);
    }
    free(back), free(ids);
    if (hub) return;
    assert_int_equal(cot_tokenizer_encode(t, &ids, &count, bytes, length, true, &error), COT_OK);
    expect_ids(name, line, "ids with the begin token", json_object_get(row, "ids_added"), ids, count);
    free(ids);
    if (json_equal(plain, parsed) || strstr(bytes, "<think>"))
        return; // a user's token is cut out of any text there
    uint8_t *own = calloc(1, length + 1);
    assert_non_null(own);
    assert_int_equal(cot_tokenizer_encode_within(t, &ids, &count, bytes, length, own, false, NULL, &error),
                     COT_OK);
    expect_ids(name, line, "ids of a text that spells control tokens", plain, ids, count);
    free(ids), free(own);
}

static void check_lines(const cot_tokenizer *t, const char *name, bool back_too)
{
    char path[600], line[1 << 16];
    int lines = 0;
    snprintf(path, sizeof path, VOCAB "%s.jsonl", name);
    FILE *rows = fopen(path, "r");
    assert_non_null(rows);
    while (fgets(line, sizeof line, rows)) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        check_line(t, name, back_too, ++lines, row);
        json_decref(row);
    }
    fclose(rows);
    assert_int_equal(lines, 73);
}

/* The tokenizer of the tokenizer.json that is written of a file. */
static cot_tokenizer *written(const char *model)
{
    cot_tokenizer *t;
    json_t *told;
    if (cot_tokenizer_tell_gguf(&told, model, &error) != COT_OK) fail_msg("%s", error.message);
    char *text = json_dumps(told, 0);
    assert_non_null(text);
    if (cot_tokenizer_parse(&t, text, strlen(text), "written", &error) != COT_OK)
        fail_msg("%s", error.message);
    free(text);
    json_decref(told);
    return t;
}

static void expect_same_ids(const cot_tokenizer *a, const cot_tokenizer *b, const char *text, size_t bytes)
{
    int32_t *ids[2];
    size_t count[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(cot_tokenizer_encode(i ? b : a, &ids[i], &count[i], text, bytes, true, &error),
                         COT_OK);
    if (count[0] != count[1] || memcmp(ids[0], ids[1], count[0] * sizeof **ids) != 0)
        fail_msg("'%.*s' has other ids", (int)bytes, text);
    free(ids[0]), free(ids[1]);
}

/* tokenizer.json cannot say of an added token that its letters, though of the byte-level alphabet, are no bytes. */
static bool is_spelt(const cot_tokenizer *t, int32_t id)
{
    const char *text = cot_tokenizer_token(t, id);
    bool ascii = true;
    for (const char *c = text; *c; c++) ascii &= (uint8_t)*c < 128;
    return !ascii && cot_tokenizer_added_token(t, text) == id;
}

/* All that either says of each id, what each token's own string becomes, and strings of drawn tokens. */
static void expect_same(const cot_tokenizer *a, const cot_tokenizer *b)
{
    uint64_t draws = 1;
    const size_t size = cot_tokenizer_size(a);
    assert_int_equal(size, cot_tokenizer_size(b));
    for (int32_t id = 0; id < (int32_t)size; id++) {
        char *text[2];
        size_t bytes[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(cot_tokenizer_decode(i ? b : a, &text[i], &bytes[i], &id, 1, false, &error),
                             COT_OK);
        if (!is_spelt(a, id) && (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0))
            fail_msg("id %d is '%s', and '%s'", id, text[0], text[1]);
        assert_string_equal(cot_tokenizer_token(a, id), cot_tokenizer_token(b, id));
        if (cot_utf8_check(text[0], bytes[0]) == bytes[0]) expect_same_ids(a, b, text[0], bytes[0]);
        free(text[0]), free(text[1]);
    }
    for (int i = 0; i < 300; i++) {
        int32_t ids[12];
        char *text;
        size_t bytes;
        for (int k = 0; k < 12; k++) ids[k] = (int32_t)(cot_mix64(++draws) % size);
        assert_int_equal(cot_tokenizer_decode(a, &text, &bytes, ids, 12, false, &error), COT_OK);
        if (cot_utf8_check(text, bytes) == bytes) expect_same_ids(a, b, text, bytes);
        free(text);
    }
}

static void check_vocabulary(const char *name, const char *model)
{
    cot_tokenizer *t, *w;
    if (cot_tokenizer_open(&t, model, &error) != COT_OK) fail_msg("%s", error.message);
    check_lines(t, name, true);
    w = written(model);
    check_lines(w, name, false);
    expect_same(t, w);
    cot_tokenizer_close(t);
    cot_tokenizer_close(w);
}

static void golden_vocabularies(void **state)
{
    (void)state;
    static const char *const names[] = {
        "qwen2",      "llama-bpe", "gpt-4o", "glm4", "deepseek-v3", "deepseek-llm", "qwen35",
        "minimax-m2", "kimi-k2",   "gpt-2",  "olmo", "default",     "llama-spm",    "llama-spm-no-prefix"};
    static const char *const real[] = {"gpt-2", "deepseek-coder", "llama-spm"};
    char model[600], name[80];
    if (!folder_exists(COT_SHARED "/golden/gguf")) {
        printf("SKIPPED: there is no '%s'\n", VOCAB);
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(model, sizeof model, VOCAB "%s.gguf", names[i]);
        check_vocabulary(names[i], model);
    }
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        snprintf(model, sizeof model, COT_SHARED "/data/tokenizers/vectors/ggml-vocab-%s.gguf", real[i]);
        snprintf(name, sizeof name, "real-%s", real[i]);
        check_vocabulary(name, model);
    }
}

/* Two tokens, the second of which has a NUL. */
static void nuls(void **state)
{
    scratch_pad *pad = *state;
    gguf_file f = {0};
    cot_tokenizer *t;
    json_t *told;
    size_t bytes;
    gguf_string(&f, "tokenizer.ggml.model", "llama");
    gguf_array(&f, "tokenizer.ggml.tokens", COT_GGUF_STRING, 2);
    gguf_text(&f.pairs, "a");
    gguf_number(&f.pairs, 3, 8);
    assert_true(cot_buffer_append(&f.pairs, "a\0b", 3));
    gguf_array(&f, "tokenizer.ggml.scores", COT_GGUF_F32, 2);
    for (int i = 0; i < 2; i++) gguf_number(&f.pairs, 0, 4);
    uint8_t *data = gguf_bytes(&f, &bytes);
    put_file(pad, "nul.gguf", data, bytes);
    assert_int_equal(cot_tokenizer_open(&t, in_scratch(pad, "nul.gguf"), &error), COT_OK);
    cot_tokenizer_close(t);
    assert_refused(cot_tokenizer_tell_gguf(&told, in_scratch(pad, "nul.gguf"), &error), &error,
                   "has a NUL in it, which no tokenizer.json holds");
    assert_null(told);
    free(data);
    gguf_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_vocabularies), cmocka_unit_test(nuls)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
