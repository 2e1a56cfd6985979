/* Tokenizers of every kind that MoE checkpoints ship: what Hugging Face tokenizers makes of strings and of
 * random ids. */
#include "coterie/tokenizer.h"

#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define FOLDER COT_SHARED "/golden/tokenizers"
#define OLMO COT_SHARED "/data/tokenizers/olmo/allenai_gpt-neox-olmo-dolma-v1_5.json"

static void assert_ids(const json_t *expected, const int32_t *ids, size_t count, const char *what, int line)
{
    bool same = json_array_size(expected) == count;
    for (size_t i = 0; same && i < count; i++)
        same = json_integer_value(json_array_get(expected, i)) == ids[i];
    if (same) return;
    print_error("line %d: %s differ, %zu of %zu:", line, what, count, json_array_size(expected));
    for (size_t i = 0; i < count; i++) print_error(" %d", ids[i]);
    print_error("\n");
    fail();
}

static void assert_text(const json_t *expected, const char *text, size_t bytes, const char *what, int line)
{
    if (json_string_length(expected) == bytes && !memcmp(json_string_value(expected), text, bytes)) return;
    print_error("line %d: %s is '%s', not '%s'\n", line, what, text, json_string_value(expected));
    fail();
}

static void check_encoding(const cot_tokenizer *tokenizer, const json_t *vector, const char *key,
                           bool special, int line)
{
    const json_t *text = json_object_get(vector, "text");
    int32_t *ids;
    size_t count;
    cot_error error;
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, json_string_value(text),
                                          json_string_length(text), special, &error),
                     COT_OK);
    assert_ids(json_object_get(vector, key), ids, count, key, line);
    free(ids);
}

/* Decodes at once, and in pieces that each are whole characters. */
static void check_decoding(const cot_tokenizer *tokenizer, cot_detokenizer *detokenizer, const json_t *list,
                           const json_t *expected, const char *key, bool skip, int line)
{
    size_t count = json_array_size(list), bytes, streamed = 0, n;
    int32_t *ids = malloc(count * sizeof *ids + 1);
    char *text, *joined = calloc(1, json_string_length(expected) + 1);
    const char *piece;
    cot_error error;
    assert_true(ids && joined);
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    assert_int_equal(cot_tokenizer_decode(tokenizer, &text, &bytes, ids, count, skip, &error), COT_OK);
    assert_text(expected, text, bytes, key, line);
    for (size_t i = 0; i <= count; i++) {
        cot_status status = i < count ? cot_detokenizer_push(detokenizer, ids[i], &piece, &n, &error)
                                      : cot_detokenizer_finish(detokenizer, &piece, &n, &error);
        assert_int_equal(status, COT_OK);
        assert_true(streamed + n <= json_string_length(expected));
        assert_int_equal(piece[n], 0);
        json_t *whole = json_stringn(piece, n); // NULL for what is not UTF-8
        assert_non_null(whole);
        json_decref(whole);
        memcpy(joined + streamed, piece, n);
        streamed += n;
    }
    assert_text(expected, joined, streamed, "what is streamed", line);
    free(text);
    free(ids);
    free(joined);
}

static void check_vectors(const char *tokenizer_path, const char *vectors_path, int at_least)
{
    cot_tokenizer *tokenizer;
    cot_detokenizer *all, *skipping;
    cot_error error = {0};
    if (cot_tokenizer_open(&tokenizer, tokenizer_path, &error)) fail_msg("%s", error.message);
    assert_int_equal(cot_detokenizer_open(&all, tokenizer, false, &error), COT_OK);
    assert_int_equal(cot_detokenizer_open(&skipping, tokenizer, true, &error), COT_OK);
    FILE *file = fopen(vectors_path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t capacity = 0;
    int line = 0;
    for (ssize_t bytes; (bytes = getline(&text, &capacity, file)) > 0;) {
        json_t *vector = json_loadb(text, (size_t)bytes, JSON_ALLOW_NUL, NULL);
        assert_non_null(vector);
        line++;
        const json_t *ids = json_object_get(vector, "ids");
        check_decoding(tokenizer, all, ids, json_object_get(vector, "decoded"), "decoded", false, line);
        if (json_object_get(vector, "text")) {
            check_encoding(tokenizer, vector, "ids", false, line);
            check_encoding(tokenizer, vector, "ids_special", true, line);
            check_decoding(tokenizer, skipping, json_object_get(vector, "ids_special"),
                           json_object_get(vector, "decoded_skip"), "decoded_skip", true, line);
        }
        json_decref(vector);
    }
    assert_true(line >= at_least);
    free(text);
    fclose(file);
    cot_detokenizer_close(all);
    cot_detokenizer_close(skipping);
    cot_tokenizer_close(tokenizer);
}

static void test_vectors(void **state)
{
    (void)state;
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    int families = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char tokenizer[512], vectors[512];
        if (entry->d_name[0] == '.' || strchr(entry->d_name, '.')) continue;
        snprintf(vectors, sizeof vectors, "%s/%.200s/vectors.jsonl", FOLDER, entry->d_name);
        snprintf(tokenizer, sizeof tokenizer, "%s/%.200s", FOLDER, entry->d_name);
        print_message("%s\n", entry->d_name);
        check_vectors(strcmp(entry->d_name, "olmo") ? tokenizer : OLMO, vectors, 200);
        families++;
    }
    closedir(folder);
    assert_true(families >= 8);
}

int main(void)
{
    if (access(FOLDER, R_OK)) {
        printf("SKIPPED: no %s\n", FOLDER);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
