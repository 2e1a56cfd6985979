/* Folders without a tokenizer.json: SentencePiece's tokenizer.model and tiktoken.model, by ids that the libraries themselves gave of a real
 * vocabulary, and by those of a GGUF of the same vocabulary; and what is wrong with such files, in a line. */
#include "harness/cmocka.h"
#include "harness/scratch.h"

#include "base/buffer.h"
#include "base/gguf.h"
#include "coterie/tokenizer.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *new_folder(scratch_pad *pad, const char *name)
{
    const char *folder = in_scratch(pad, name);
    assert_int_equal(mkdir(folder, 0700), 0);
    return folder;
}

static void write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    write_file(folder, name, text, strlen(text));
}

static cot_tokenizer *opened(const char *path)
{
    cot_tokenizer *tokenizer;
    cot_error error;
    if (cot_tokenizer_open(&tokenizer, path, &error) != COT_OK) fail_msg("%s", error.message);
    return tokenizer;
}

static void expect_ids(cot_tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *wanted,
                       size_t count)
{
    int32_t *ids;
    size_t found;
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &found, text, bytes, false, NULL), COT_OK);
    if (found != count || (count && memcmp(ids, wanted, count * sizeof *ids) != 0))
        fail_msg("'%.*s': %zu ids, expected %zu", (int)bytes, text, found, count);
    free(ids);
}

/* What sentencepiece 0.2.0 makes of texts by a published model. */
static void a_published_model(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *text;
        size_t count;
        int32_t ids[8];
    } cases[] = {{"Hello, world!", 4, {22557, 28725, 1526, 28808}},
                 {"  two  spaces\n\ttab", 7, {259, 989, 28705, 10599, 13, 12, 4252}},
                 {"Gr\u00fc\u00dfe \u4e2d\u6587 \U0001f642",
                  8,
                  {1778, 28837, 9526, 28705, 28991, 29019, 28705, 29340}},
                 {"x\u2581y 12345", 8, {1318, 337, 28705, 28740, 28750, 28770, 28781, 28782}}};
    FILE *file = fopen(COT_SHARED "/data/tokenizers/mistral/tokenizer.model.v1", "rb");
    if (!file) {
        printf("SKIPPED: there is no '%s'\n", COT_SHARED "/data/tokenizers/mistral");
        skip();
        return;
    }
    char *data = malloc(1 << 20);
    const size_t bytes = fread(data, 1, 1 << 20, file);
    fclose(file);
    const char *folder = new_folder(pad, "published");
    write_file(folder, "tokenizer.model", data, bytes);
    free(data);
    cot_tokenizer *t = opened(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_ids(t, cases[i].text, strlen(cases[i].text), cases[i].ids, cases[i].count);
    assert_int_equal(cot_tokenizer_added_before(t), 1);
    cot_tokenizer_close(t);
    write_text(folder, "tokenizer_config.json", "{\"add_bos_token\": false}");
    t = opened(folder);
    assert_int_equal(cot_tokenizer_added_before(t), 0);
    cot_tokenizer_close(t);
}

/* ---- vocabularies of GGUF files, written as these files ---- */

static void put_varint(cot_buffer *out, uint64_t value)
{
    for (; value > 127; value >>= 7) assert_true(cot_buffer_append(out, &(char){(char)(value | 128)}, 1));
    assert_true(cot_buffer_append(out, &(char){(char)value}, 1));
}

static void put_bytes(cot_buffer *out, int field, const void *data, size_t bytes)
{
    put_varint(out, (uint64_t)field << 3 | 2);
    put_varint(out, bytes);
    assert_true(cot_buffer_append(out, data, bytes));
}

static void put_number(cot_buffer *out, int field, uint64_t value)
{
    put_varint(out, (uint64_t)field << 3);
    put_varint(out, value);
}

static void put_piece(cot_buffer *out, const char *text, size_t bytes, float score, int type)
{
    cot_buffer piece = {0};
    put_bytes(&piece, 1, text, bytes);
    put_varint(&piece, 2 << 3 | 5);
    assert_true(cot_buffer_append(&piece, &score, 4));
    if (type != 1) put_number(&piece, 3, (uint64_t)type);
    put_bytes(out, 1, piece.data, piece.bytes);
    cot_buffer_free(&piece);
}

/* kind 2 is BPE. */
static void put_rest(cot_buffer *out, int kind, bool prefix, const char *table)
{
    cot_buffer trainer = {0}, normaliser = {0};
    put_number(&trainer, 3, (uint64_t)kind);
    put_bytes(&normaliser, 2, table, strlen(table));
    put_number(&normaliser, 3, prefix);
    put_number(&normaliser, 4, 0);
    put_bytes(out, 2, trainer.data, trainer.bytes);
    put_bytes(out, 3, normaliser.data, normaliser.bytes);
    cot_buffer_free(&trainer), cot_buffer_free(&normaliser);
}

static void pieces_of(cot_buffer *out, const cot_gguf *file)
{
    const cot_gguf_pair *tokens = cot_gguf_find(file, "tokenizer.ggml.tokens"),
                        *scores = cot_gguf_find(file, "tokenizer.ggml.scores"),
                        *types = cot_gguf_find(file, "tokenizer.ggml.token_type");
    const uint8_t *at = NULL;
    for (size_t id = 0; id < tokens->count; id++) {
        const cot_gguf_string s = cot_gguf_next_string(tokens, &at);
        put_piece(out, s.data, s.bytes, (float)cot_gguf_number(scores, id), (int)cot_gguf_number(types, id));
    }
}

/* The ids that another's code gave of the GGUF's vocabulary. */
static void expect_all(cot_tokenizer *t, const char *path)
{
    char *line = NULL;
    size_t room = 0, lines = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; getline(&line, &room, file) > 0; lines++) {
        json_t *all = json_loads(line, JSON_ALLOW_NUL, NULL), *ids = json_object_get(all, "ids_hub"),
               *text = json_object_get(all, "text");
        int32_t wanted[4096];
        if (!ids) ids = json_object_get(all, "ids_parsed");
        assert_true(json_array_size(ids) <= 4096);
        for (size_t i = 0; i < json_array_size(ids); i++)
            wanted[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        expect_ids(t, json_string_value(text), json_string_length(text), wanted, json_array_size(ids));
        json_decref(all);
    }
    assert_true(lines > 50);
    free(line);
    fclose(file);
}

static void vocabularies_of_gguf(void **state)
{
    scratch_pad *pad = *state;
    static const char *const names[] = {"llama-spm", "llama-spm-no-prefix"};
    for (int i = 0; i < 2; i++) {
        char path[600];
        cot_gguf file;
        cot_buffer out = {0};
        snprintf(path, sizeof path, COT_SHARED "/golden/gguf/vocab/%s.gguf", names[i]);
        if (cot_gguf_open(&file, path, NULL) != COT_OK) {
            printf("SKIPPED: there is no '%s'\n", path);
            skip();
            return;
        }
        const char *folder = new_folder(pad, names[i]);
        pieces_of(&out, &file);
        put_rest(&out, 2, i == 0, "");
        write_file(folder, "tokenizer.model", out.data, out.bytes);
        cot_tokenizer *t = opened(folder);
        snprintf(path, sizeof path, COT_SHARED "/golden/gguf/vocab/%s.jsonl", names[i]);
        expect_all(t, path);
        cot_tokenizer_close(t);
        cot_buffer_free(&out);
        cot_gguf_close(&file);
    }
}

/* ---- tiktoken ---- */

static void base64(cot_buffer *out, const uint8_t *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        const size_t left = bytes - i;
        const uint32_t bits = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                              (left > 2 ? data[i + 2] : 0);
        for (size_t d = 0; d < 4; d++)
            assert_true(cot_buffer_append(out, d <= left ? &digits[bits >> (18 - 6 * d) & 63] : "=", 1));
    }
}

/* A token of the byte-level alphabet as a line. */
static void put_rank(cot_buffer *out, const char *token, size_t id)
{
    uint8_t bytes[256];
    size_t count = 0;
    char line[32];
    for (size_t i = 0; token[i]; count++) {
        const size_t length = (size_t)cot_utf8_length(token[i]);
        int byte = 0;
        for (char character[4]; byte < 256; byte++)
            if (cot_utf8_write(character, cot_byte_character((uint8_t)byte)) == length &&
                !memcmp(character, token + i, length))
                break;
        assert_true(byte < 256 && count < sizeof bytes);
        bytes[count] = (uint8_t)byte;
        i += length;
    }
    base64(out, bytes, count);
    snprintf(line, sizeof line, " %zu\n", id);
    assert_true(cot_buffer_text(out, line));
}

/* What tiktoken 0.12 makes of texts by the ranks of GPT-2's tokens and Kimi-K2's pattern. */
static void published_ranks(void **state)
{
    enum { RANKS = 50256 };
    static const struct {
        const char *text;
        size_t count;
        int32_t ids[40];
    } cases[] = {{"supercalifragilisticexpialidocious qwertyuiopasdfghjklzxcvbnm Pneumonoultramicroscopic",
                  34,
                  {16668, 9948, 361,  22562, 346, 396,   501, 42372, 498,   312,  32346, 10662,
                   15448, 774,  9019, 404,   292, 7568,  456, 73,    41582, 89,   25306, 85,
                   9374,  76,   350,  25668, 261, 25955, 859, 2500,  1416,  16603}},
                 {"The kettle boils at 1000 degrees.", 9, {464, 40231, 40169, 379, 220, 3064, 15, 7370, 13}},
                 {"Don't STOP, Gr\u00fc\u00dfe \u4e2d\u6587\u5b57 \U0001f642",
                  15,
                  {3987, 470, 44934, 11, 1902, 9116, 39683, 68, 220, 40792, 23877, 229, 27764, 245, 32485}},
                 {"  two  spaces\r\n\ttab\n", 9, {220, 734, 220, 9029, 201, 198, 197, 8658, 198}},
                 {"[BOS]iPhoneXS's 12345", 9, {50256, 72, 6132, 55, 50, 338, 220, 10163, 2231}}};
    json_t *tokens = json_load_file(COT_SHARED "/data/tokenizers/gpt2/encoder.json", 0, NULL), *id;
    if (!tokens) {
        printf("SKIPPED: there is no '%s'\n", COT_SHARED "/data/tokenizers/gpt2");
        skip();
        return;
    }
    const char *token, **of = calloc(RANKS, sizeof *of);
    cot_buffer out = {0};
    json_object_foreach(tokens, token, id) if (json_integer_value(id) < RANKS) of[json_integer_value(id)] =
        token;
    for (size_t i = 0; i < RANKS; i++) put_rank(&out, of[i], i);
    const char *folder = new_folder(*state, "tiktoken");
    write_file(folder, "tiktoken.model", out.data, out.bytes);
    write_text(folder, "config.json", "{\"model_type\": \"kimi_k2\"}");
    write_text(folder, "tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"50256\": {\"content\": \"[BOS]\", \"special\": true}}}");
    cot_tokenizer *t = opened(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        size_t bytes;
        expect_ids(t, cases[i].text, strlen(cases[i].text), cases[i].ids, cases[i].count);
        assert_int_equal(cot_tokenizer_decode(t, &text, &bytes, cases[i].ids, cases[i].count, false, NULL),
                         COT_OK);
        assert_string_equal(text, cases[i].text);
        free(text);
    }
    cot_tokenizer_close(t);
    cot_buffer_free(&out);
    free(of);
    json_decref(tokens);
}

/* ---- what is wrong ---- */

static void expect_refused(const char *folder, cot_status status, const char *says)
{
    cot_tokenizer *tokenizer;
    cot_error error = {0};
    const cot_status found = cot_tokenizer_open(&tokenizer, folder, &error);
    if (found != status || !strstr(error.message, says)) fail_msg("%d: %s", (int)found, error.message);
    assert_null(tokenizer);
}

static void small_model(cot_buffer *out, int kind, const char *table)
{
    put_piece(out, "<unk>", 5, 0, 2);
    put_piece(out, "<s>", 3, 0, 3);
    put_piece(out, "</s>", 4, 0, 3);
    put_piece(out, "a", 1, -2, 1);
    put_piece(out, "aa", 2, -1, 1);
    put_rest(out, kind, true, table);
}

static void models_that_are_wrong(void **state)
{
    const char *folder = new_folder(*state, "models");
    cot_buffer out = {0};
    small_model(&out, 2, "");
    for (size_t cut = 0; cut < out.bytes; cut++) { // wherever it ends
        cot_tokenizer *t;
        write_file(folder, "tokenizer.model", out.data, cut);
        if (cot_tokenizer_open(&t, folder, NULL) == COT_OK) cot_tokenizer_close(t);
    }
    write_file(folder, "tokenizer.model", out.data, out.bytes);
    cot_tokenizer *t = opened(folder);
    expect_ids(t, "aaa", 3, (int32_t[]){0, 4, 3}, 3); // a mark that has no piece, then the merge
    cot_tokenizer_close(t);
    write_text(folder, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"3\": {\"content\": \"b\"}}}");
    expect_refused(folder, COT_MALFORMED, "id 3 is 'a', and the added token 'b'");
    write_text(folder, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"9\": {\"content\": \"b\"}}}");
    expect_refused(folder, COT_MALFORMED, "4 ids below an added token's are of no token");
    write_text(folder, "tokenizer_config.json", "{}");
    out.bytes = 0;
    small_model(&out, 1, "");
    write_file(folder, "tokenizer.model", out.data, out.bytes);
    expect_refused(folder, COT_UNSUPPORTED, "SentencePiece's unigram model is not supported, its BPE alone");
    out.bytes = 0;
    small_model(&out, 2, "table");
    write_file(folder, "tokenizer.model", out.data, out.bytes);
    expect_refused(folder, COT_UNSUPPORTED, "supported where it is 'identity' alone");
    out.bytes = 0;
    for (int i = 0; i < 2; i++) put_bytes(&out, 1, "\x08\x05", 2); // pieces whose text is a number
    put_rest(&out, 2, true, "");
    write_file(folder, "tokenizer.model", out.data, out.bytes);
    expect_refused(folder, COT_MALFORMED, "tokens 0 and 1 are both ''");
    write_text(folder, "tokenizer.model", "");
    expect_refused(folder, COT_MALFORMED, "it is no model of SentencePiece, or is cut off");
    cot_buffer_free(&out);
}

static void ranks_that_are_wrong(void **state)
{
    const char *folder = new_folder(*state, "ranks");
    static const char *const wrong[] = {"IQ== 0\nIg== 2\n", "IQ== 0\nIg==\n", "I?== 0\n", "IQ== 0\nIg== 1x\n",
                                        " 0\n"};
    write_text(folder, "config.json", "{\"model_type\": \"kimi_k2\"}");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text(folder, "tiktoken.model", wrong[i]);
        expect_refused(folder, COT_MALFORMED, "is no token in base 64 with its rank");
    }
    write_text(folder, "tiktoken.model", "");
    expect_refused(folder, COT_MALFORMED, "it has no tokens");
    write_text(folder, "tiktoken.model", "IQ== 0\nIg== 1\nISI= 2\n");
    write_text(folder, "tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"5\": {\"content\": \"[EOS]\", \"special\": true}}}");
    cot_tokenizer *t = opened(folder);
    assert_int_equal(cot_tokenizer_size(t), 6);
    assert_string_equal(cot_tokenizer_token(t, 4), "<|reserved_token_4|>");
    expect_ids(t, "!\"!", 3, (int32_t[]){2, 0}, 2);
    cot_tokenizer_close(t);
    write_text(folder, "config.json", "{\"model_type\": \"other\"}");
    expect_refused(folder, COT_UNSUPPORTED,
                   "how tiktoken's words are cut for model_type 'other' is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_model), cmocka_unit_test(vocabularies_of_gguf),
        cmocka_unit_test(published_ranks), cmocka_unit_test(models_that_are_wrong),
        cmocka_unit_test(ranks_that_are_wrong)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
