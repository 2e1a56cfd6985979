#include "tokenizer/listed.h"

#include "base/error.h"
#include "base/json_load.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_vocab_load_listed(cot_vocab *vocab, const cot_vocab_token *tokens, size_t count,
                                 cot_error *error)
{
    cot_status status = cot_vocab_open(vocab, count, error);
    for (size_t id = 0; id < count && status == COT_OK; id++) {
        const cot_vocab_token s = tokens[id];
        if (cot_utf8_check(s.text, s.bytes) < s.bytes)
            return cot_fail(error, COT_MALFORMED, "token %zu is not UTF-8", id);
        const int32_t same = cot_vocab_find(vocab, s.text, s.bytes);
        if (same >= 0)
            return cot_fail(error, COT_MALFORMED, "tokens %d and %zu are both '%.*s'", same, id,
                            (int)(s.bytes < 64 ? s.bytes : 64), s.text);
        status = cot_vocab_put(vocab, (int64_t)id, s.text, s.bytes, false, error);
    }
    vocab->model_tokens = vocab->size;
    return status;
}

/* How many merges there are; with a bpe they are put. */
static size_t put_cuts(cot_bpe *bpe, const cot_vocab *vocab, const uint32_t *ranks)
{
    size_t count = 0;
    for (size_t id = 0; id < vocab->size; id++) {
        const cot_vocab_entry *entry = &vocab->entries[id];
        if (ranks[id] == UINT32_MAX) continue;
        const char *text = vocab->strings.data + entry->offset;
        for (size_t at = 0; at < entry->bytes;) {
            at += cot_utf8_length(text[at]);
            if (at >= entry->bytes) break;
            const int32_t left = cot_vocab_find(vocab, text, at),
                          right = left < 0 ? -1 : cot_vocab_find(vocab, text + at, entry->bytes - at);
            if (right < 0) continue;
            count++;
            if (bpe) cot_bpe_put(bpe, left, right, ranks[id], (int32_t)id);
        }
    }
    return count;
}

cot_status cot_bpe_load_cuts(cot_bpe *bpe, const cot_vocab *vocab, const uint32_t *ranks, cot_error *error)
{
    const cot_status status = cot_bpe_open(bpe, put_cuts(NULL, vocab, ranks), error);
    if (status == COT_OK) put_cuts(bpe, vocab, ranks);
    return status;
}

static bool is_added(int type)
{
    return type == COT_TOKEN_CONTROL || type == COT_TOKEN_UNKNOWN || type == COT_TOKEN_USER;
}

json_t *cot_added_listed(const cot_vocab_token *tokens, size_t count)
{
    json_t *list = json_array();
    for (size_t id = 0; id < count; id++)
        if (is_added(tokens[id].type))
            json_array_append_new(list, json_pack("{s:I, s:s%, s:b, s:b}", "id", (json_int_t)id, "content",
                                                  tokens[id].text, tokens[id].bytes, "special",
                                                  tokens[id].type != COT_TOKEN_USER, "normalized", 0));
    return list;
}

/* Decoding, which makes bytes of characters, sees those of their bytes. */
cot_status cot_vocab_spell_added(cot_vocab *vocab, const cot_vocab_token *tokens, size_t count,
                                 cot_error *error)
{
    cot_buffer spelt = {0};
    cot_status status = COT_OK;
    for (size_t id = 0; id < count && status == COT_OK; id++) {
        if (!is_added(tokens[id].type)) continue;
        const cot_vocab_entry entry = vocab->entries[id];
        bool good = true;
        spelt.bytes = 0;
        for (size_t i = 0; i < entry.bytes; i++) {
            char character[4];
            const uint8_t byte = (uint8_t)vocab->strings.data[entry.offset + i];
            good &= cot_buffer_append(&spelt, character, cot_utf8_write(character, cot_byte_character(byte)));
        }
        status = good ? cot_vocab_put_decoded(vocab, (int32_t)id, spelt.data, spelt.bytes, error)
                      : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    cot_buffer_free(&spelt);
    return status;
}

json_t *cot_template_listed(int64_t begin, int64_t end)
{
    json_t *single = json_array(), *tokens = json_object();
    if (begin >= 0) {
        json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", "begin"));
        json_object_set_new(tokens, "begin", json_pack("{s:[I]}", "ids", (json_int_t)begin));
    }
    json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
    if (end >= 0) {
        json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", "end"));
        json_object_set_new(tokens, "end", json_pack("{s:[I]}", "ids", (json_int_t)end));
    }
    return json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single, "special_tokens",
                     tokens);
}

/* ---- byte-level BPE ---- */

json_t *cot_tokenizer_tell_bytes(const cot_vocab_token *tokens, size_t count, const char *pre, int64_t begin,
                                 int64_t end)
{
    return json_pack("{s:o, s:o, s:o, s:{s:s}}", "added_tokens", cot_added_listed(tokens, count),
                     "post_processor", cot_template_listed(begin, end), "pre_tokenizer",
                     cot_pretokenizer_named(pre), "decoder", "type", "ByteLevel");
}

cot_status cot_tokenizer_load_bytes(cot_tokenizer *t, const cot_vocab_token *tokens, size_t count,
                                    const char *pre, int64_t begin, int64_t end, cot_error *error)
{
    json_t *root = cot_tokenizer_tell_bytes(tokens, count, pre, begin, end);
    const cot_status status =
        root ? cot_tokenizer_load_parts(t, root, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    json_decref(root);
    return status == COT_OK ? cot_vocab_spell_added(&t->vocab, tokens, count, error) : status;
}

/* ---- SentencePiece's BPE ---- */

struct scored {
    double score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    const double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return x > y ? -1 : x < y;
}

/* The place of each token's score, the highest first; of tokens that no merge makes UINT32_MAX. */
static cot_status rank_scores(uint32_t *ranks, const cot_vocab_token *tokens, size_t count,
                              bool of_text_alone, cot_error *error)
{
    struct scored *sorted = malloc(count * sizeof *sorted);
    uint32_t rank = 0;
    if (!sorted) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < count; id++) {
        sorted[id] = (struct scored){tokens[id].score, (uint32_t)id};
        if (isfinite(tokens[id].score)) continue;
        free(sorted);
        return cot_fail(error, COT_MALFORMED, "the score of token %zu is no number", id);
    }
    qsort(sorted, count, sizeof *sorted, by_score);
    for (size_t i = 0; i < count; i++) {
        const int type = tokens[sorted[i].id].type;
        const bool of_text = type == COT_TOKEN_NORMAL || type == COT_TOKEN_USER;
        rank += i && sorted[i].score != sorted[i - 1].score;
        ranks[sorted[i].id] = of_text || !of_text_alone ? rank : UINT32_MAX;
    }
    free(sorted);
    return COT_OK;
}

static json_t *spaces_to_marks(bool prefix)
{
    json_t *list = json_array();
    if (prefix) json_array_append_new(list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", "\u2581"));
    json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ",
                                          "content", "\u2581"));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list);
}

static json_t *marks_to_spaces(bool prefix)
{
    json_t *list = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                             "\u2581", "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

json_t *cot_tokenizer_tell_pieces(const cot_vocab_token *tokens, size_t count,
                                  const cot_tokenizer_pieces *pieces)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "added_tokens", cot_added_listed(tokens, count),
                     "post_processor", cot_template_listed(pieces->begin, pieces->end), "decoder",
                     marks_to_spaces(pieces->prefix), "normalizer", spaces_to_marks(pieces->prefix));
}

cot_status cot_tokenizer_load_pieces(cot_tokenizer *t, const cot_vocab_token *tokens, size_t count,
                                     const cot_tokenizer_pieces *pieces, cot_error *error)
{
    uint32_t *ranks = malloc(count * sizeof *ranks);
    cot_status status = ranks ? rank_scores(ranks, tokens, count, pieces->of_text_alone, error)
                              : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_OK) status = cot_vocab_load_listed(&t->vocab, tokens, count, error);
    if (status == COT_OK) status = cot_bpe_load_cuts(&t->bpe, &t->vocab, ranks, error);
    free(ranks);
    if (status != COT_OK) return status;
    t->bpe.unknown_id = (int32_t)pieces->unknown;
    t->bpe.byte_fallback = t->bpe.fuse_unknown = true;
    status = cot_bpe_finish(&t->bpe, &t->vocab, error);
    if (status != COT_OK) return status;
    json_t *root = cot_tokenizer_tell_pieces(tokens, count, pieces);
    status =
        root ? cot_tokenizer_load_parts(t, root, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    json_decref(root);
    return status;
}

/* ---- folders ---- */

bool cot_vocab_list_put(cot_vocab_list *list, cot_vocab_token token)
{
    void *tokens = list->tokens;
    if (!cot_grow(&tokens, &list->capacity, list->count + 1, sizeof token)) return false;
    list->tokens = tokens;
    list->tokens[list->count++] = token;
    return true;
}

void cot_vocab_list_free(cot_vocab_list *list)
{
    free(list->tokens);
    free(list->names);
    *list = (cot_vocab_list){0};
}

cot_status cot_tokenizer_read_json(json_t **out, const char *folder, const char *name, cot_error *error)
{
    enum { LARGEST = 1 << 28 };
    char *path = cot_path_join(folder, name), *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    *out = NULL;
    cot_status status = path ? cot_file_read(&text, &bytes, path, LARGEST, error)
                             : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_NOT_FOUND) {
        *out = json_object();
        status = COT_OK;
    } else if (status == COT_OK) {
        *out = cot_json_load(text, bytes, JSON_ALLOW_NUL, &why);
        if (!json_is_object(*out)) status = cot_fail(error, COT_MALFORMED, "'%s' is not a JSON object", path);
    }
    free(text);
    free(path);
    return status;
}

/* An added token takes its place. */
static cot_status put_added(cot_vocab_list *list, int64_t id, const char *text, size_t bytes, bool special,
                            cot_error *error)
{
    const cot_vocab_token empty = {.type = COT_TOKEN_UNKNOWN};
    if (id < 0 || id >= COT_VOCAB_MOST_IDS)
        return cot_fail(error, COT_MALFORMED, "added token '%.60s' has id %" PRId64, text, id);
    while ((int64_t)list->count <= id)
        if (!cot_vocab_list_put(list, empty)) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_vocab_token *token = &list->tokens[id];
    if (token->text && (token->bytes != bytes || memcmp(token->text, text, bytes) != 0))
        return cot_fail(error, COT_MALFORMED, "id %" PRId64 " is '%.*s', and the added token '%.60s'", id,
                        (int)(token->bytes < 60 ? token->bytes : 60), token->text, text);
    if (!token->text || token->type == COT_TOKEN_NORMAL)
        *token = (cot_vocab_token){token->text ? token->text : text, bytes, token->score,
                                   special ? COT_TOKEN_CONTROL : COT_TOKEN_USER};
    return COT_OK;
}

static cot_status name_rest(cot_vocab_list *list, const char *reserved, cot_error *error)
{
    enum { NAME = 48 };
    size_t nameless = 0, named = 0;
    for (size_t id = 0; id < list->count; id++) nameless += !list->tokens[id].text;
    if (!nameless) return COT_OK;
    if (!reserved)
        return cot_fail(error, COT_MALFORMED, "%zu ids below an added token's are of no token", nameless);
    if (!(list->names = malloc(nameless * NAME))) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < list->count; id++) {
        if (list->tokens[id].text) continue;
        char *name = list->names + NAME * named++;
        const int bytes = snprintf(name, NAME, "%s%zu%s", reserved, id, "|>");
        list->tokens[id] = (cot_vocab_token){name, (size_t)bytes, 0, COT_TOKEN_CONTROL};
    }
    return COT_OK;
}

cot_status cot_vocab_list_told(cot_vocab_list *list, json_t **told, const char *folder, const char *reserved,
                               cot_error *error)
{
    const char *key;
    json_t *entry;
    cot_status status = cot_tokenizer_read_json(told, folder, "tokenizer_config.json", error);
    json_object_foreach(json_object_get(*told, "added_tokens_decoder"), key, entry)
    {
        const json_t *content = json_object_get(entry, "content");
        if (status == COT_OK && !json_is_string(content))
            status = cot_fail(error, COT_MALFORMED, "added_tokens_decoder: '%.40s' has no content", key);
        if (status == COT_OK)
            status = put_added(list, strtoll(key, NULL, 10), json_string_value(content),
                               json_string_length(content), json_is_true(json_object_get(entry, "special")),
                               error);
    }
    return status == COT_OK ? name_rest(list, reserved, error) : status;
}

cot_status cot_tokenizer_open_listed(cot_tokenizer **out, const char *folder, const char *name,
                                     cot_tokenizer_loader *load, cot_error *error)
{
    char *path = cot_path_join(folder, name);
    cot_error why = {.message = "out of memory"};
    cot_file_map map;
    *out = NULL;
    if (!path) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) {
        free(path);
        return status;
    }
    cot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    status = tokenizer ? load(tokenizer, &map, folder, &why) : COT_OUT_OF_MEMORY;
    cot_file_map_close(&map);
    if (status == COT_OK)
        *out = tokenizer;
    else {
        cot_tokenizer_close(tokenizer);
        cot_fail(error, status, "cannot read '%s': %s", path, why.message);
    }
    free(path);
    return status;
}
