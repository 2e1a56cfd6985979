/* The tokenizer that a GGUF file's metadata describe: its vocabulary and merges as they are, the rest in the words of tokenizer.json,
 * which the same loaders read.
 *
 *     gpt2    byte-level BPE with a list of merges; how words are cut is known by a name, `pre`
 *     llama   SentencePiece's BPE: a pair merges if what it makes is a token, that of the highest score first; what has no token is
 *             bytes, and a space is U+2581 */
#include "base/error.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4 }; // of token_type

/* ---- how words are cut ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define CASED(upper, lower)                                                                                  \
    WORD upper "*" lower "+" CONTRACTIONS "?|" WORD upper "+" lower "*" CONTRACTIONS "?|\\p{N}{1,3}"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define HAN_AND_OTHERS "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+" // but for spaces
#define NOT_HAN "&&[^\\p{Han}]]"

/* A text is cut by each pattern in turn: a match is a word, and so is what lies between two. */
static const struct pre {
    const char *names; // with a space before and after each
    bool whole_first;  // a word that is a token is that token, whatever merges there are
    bool begins;       // with the begin token where nothing says whether
    const char *patterns[6];
} pres[] = {
    {" gpt-2 olmo phi-2 ", false, false, {GPT2}},
    {" llama-bpe llama3 llama-v3 ", true, true, {CONTRACTIONS "|" WORD "\\p{L}+|\\p{N}{1,3}" SIGNS}},
    {" glm4 chatglm-bpe ", true, false, {CONTRACTIONS "|" WORD "\\p{L}+|\\p{N}{1,3}" SIGNS}},
    {" qwen2 deepseek-r1-qwen ", false, false, {CONTRACTIONS "|" WORD "\\p{L}+|\\p{N}" SIGNS}},
    {" qwen35 ",
     false,
     false,
     {CONTRACTIONS "|" WORD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {" gpt-4o minimax-m2 ",
     false,
     false,
     {CASED("[" UPPER "]", "[" LOWER "]") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {" kimi-k2 ", false, false, {"[\\p{Han}]+|" CASED("[" UPPER NOT_HAN, "[" LOWER NOT_HAN) SIGNS}},
    {" deepseek-v3 ",
     false,
     false,
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
    {" deepseek-llm ",
     false,
     false,
     {"[\\r\\n]", "\\s?[\\p{Lu}\\p{Ll}\\p{Lt}&&[^\U0001d400-\U0001d7ff]]+",
      "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+", "\\s+$", HAN_AND_OTHERS,
      "\\p{N}+"}},
    {" deepseek-coder ", false, false, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_OTHERS, "\\p{N}"}},
    {" default ", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static const struct pre *find_pre(const char *name)
{
    char word[80];
    snprintf(word, sizeof word, " %.70s ", name);
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strstr(pres[i].names, word)) return &pres[i];
    return NULL;
}

/* ---- metadata ---- */

static const cot_gguf_pair *find(const cot_gguf *file, const char *what)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", what);
    return cot_gguf_find(file, key);
}

/* A list with an element for each token, or of any number (tokens 0); NULL where there is none. */
static cot_status find_list(const cot_gguf_pair **list, const cot_gguf *file, const char *what, bool strings,
                            size_t tokens, cot_error *error)
{
    *list = find(file, what);
    if (!*list) return COT_OK;
    const bool right = (*list)->array && ((*list)->type == COT_GGUF_STRING) == strings;
    if (!right)
        return cot_fail(error, COT_MALFORMED, "'tokenizer.ggml.%s' is no list of %s", what,
                        strings ? "strings" : "numbers");
    if (tokens && (*list)->count != tokens)
        return cot_fail(error, COT_MALFORMED, "'tokenizer.ggml.%s' has %zu elements for %zu tokens", what,
                        (*list)->count, tokens);
    return COT_OK;
}

/* *id: -1 where there is no such key. */
static cot_status find_token(int64_t *id, const cot_gguf *file, const char *what, size_t tokens,
                             cot_error *error)
{
    const cot_gguf_pair *pair = find(file, what);
    *id = -1;
    if (!pair) return COT_OK;
    const double number = pair->array ? -1 : cot_gguf_number(pair, 0);
    if (pair->type == COT_GGUF_STRING || !(number >= 0 && number < (double)tokens))
        return cot_fail(error, COT_MALFORMED, "'tokenizer.ggml.%s' is none of its %zu tokens", what, tokens);
    *id = (int64_t)number;
    return COT_OK;
}

static bool is_true(const cot_gguf *file, const char *what, bool absent)
{
    const cot_gguf_pair *pair = find(file, what);
    return pair && !pair->array && pair->type == COT_GGUF_BOOL ? cot_gguf_number(pair, 0) != 0 : absent;
}

static cot_status find_text(char *out, size_t room, const cot_gguf *file, const char *what,
                            const char *absent, cot_error *error)
{
    const cot_gguf_pair *pair = find(file, what);
    const uint8_t *at = NULL;
    snprintf(out, room, "%s", absent);
    if (!pair) return COT_OK;
    if (pair->array || pair->type != COT_GGUF_STRING)
        return cot_fail(error, COT_MALFORMED, "'tokenizer.ggml.%s' is no string", what);
    const cot_gguf_string s = cot_gguf_next_string(pair, &at);
    snprintf(out, room, "%.*s", (int)(s.bytes < room ? s.bytes : room), s.data);
    return COT_OK;
}

/* ---- vocabulary and merges ---- */

static cot_status load_vocab(cot_vocab *vocab, const cot_gguf_pair *tokens, cot_error *error)
{
    const uint8_t *at = NULL;
    cot_status status = cot_vocab_open(vocab, tokens->count, error);
    for (size_t id = 0; id < tokens->count && status == COT_OK; id++) {
        const cot_gguf_string s = cot_gguf_next_string(tokens, &at);
        if (cot_utf8_check(s.data, s.bytes) < s.bytes)
            return cot_fail(error, COT_MALFORMED, "token %zu is not UTF-8", id);
        const int32_t same = cot_vocab_find(vocab, s.data, s.bytes);
        if (same >= 0)
            return cot_fail(error, COT_MALFORMED, "tokens %d and %zu are both '%.*s'", same, id,
                            (int)(s.bytes < 64 ? s.bytes : 64), s.data);
        status = cot_vocab_put(vocab, (int64_t)id, s.data, s.bytes, false, error);
    }
    vocab->model_tokens = vocab->size;
    return status;
}

static cot_status load_merges(cot_bpe *bpe, const cot_vocab *vocab, const cot_gguf *file, cot_error *error)
{
    const cot_gguf_pair *merges;
    const uint8_t *at = NULL;
    cot_status status = find_list(&merges, file, "merges", true, 0, error);
    if (status != COT_OK) return status;
    if (!merges) return cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.merges'");
    status = cot_bpe_open(bpe, merges->count, error);
    cot_buffer joined = {0};
    for (size_t i = 0; i < merges->count && status == COT_OK; i++) {
        const cot_gguf_string s = cot_gguf_next_string(merges, &at);
        const char *space = s.bytes > 1 ? memchr(s.data + 1, ' ', s.bytes - 1) : NULL;
        const size_t first = space ? (size_t)(space - s.data) : 0, second = space ? s.bytes - first - 1 : 0;
        joined.bytes = 0;
        if (!cot_buffer_append(&joined, s.data, first) ||
            !cot_buffer_append(&joined, s.data + s.bytes - second, second)) {
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
            break;
        }
        const int32_t left = space ? cot_vocab_find(vocab, joined.data, first) : -1,
                      right = space ? cot_vocab_find(vocab, joined.data + first, second) : -1,
                      id = space ? cot_vocab_find(vocab, joined.data, joined.bytes) : -1;
        if (left < 0 || right < 0 || id < 0)
            status =
                cot_fail(error, COT_MALFORMED, "merge %zu, '%.*s', is not of two tokens that make a third", i,
                         (int)(s.bytes < 64 ? s.bytes : 64), s.data);
        else
            cot_bpe_put(bpe, left, right, (uint32_t)i, id);
    }
    cot_buffer_free(&joined);
    return status;
}

struct scored {
    double score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    const double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return x > y ? -1 : x < y;
}

/* Whatever two tokens a token can be cut into merge, by the token's rank: how often that is; with `ranks` they are put. */
static size_t put_cuts(cot_bpe *bpe, const cot_vocab *vocab, const uint32_t *ranks)
{
    size_t count = 0;
    for (size_t id = 0; id < vocab->size; id++) {
        const cot_vocab_entry *entry = &vocab->entries[id];
        const char *text = vocab->strings.data + entry->offset;
        for (size_t at = 0; at < entry->bytes;) {
            at += cot_utf8_length(text[at]);
            if (at >= entry->bytes) break;
            const int32_t left = cot_vocab_find(vocab, text, at),
                          right = left < 0 ? -1 : cot_vocab_find(vocab, text + at, entry->bytes - at);
            if (right < 0) continue;
            count++;
            if (ranks) cot_bpe_put(bpe, left, right, ranks[id], (int32_t)id);
        }
    }
    return count;
}

static cot_status load_scores(cot_bpe *bpe, const cot_vocab *vocab, const cot_gguf *file, cot_error *error)
{
    const cot_gguf_pair *scores;
    cot_status status = find_list(&scores, file, "scores", false, vocab->size, error);
    if (status != COT_OK) return status;
    if (!scores) return cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.scores'");
    struct scored *sorted = malloc(vocab->size * sizeof *sorted);
    uint32_t *ranks = malloc(vocab->size * sizeof *ranks), rank = 0;
    if (!sorted || !ranks) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < vocab->size && status == COT_OK; id++) {
        sorted[id] = (struct scored){cot_gguf_number(scores, id), (uint32_t)id};
        if (!isfinite(sorted[id].score))
            status = cot_fail(error, COT_MALFORMED, "the score of token %zu is no number", id);
    }
    if (status == COT_OK) {
        qsort(sorted, vocab->size, sizeof *sorted, by_score);
        for (size_t i = 0; i < vocab->size; i++) {
            rank += i && sorted[i].score != sorted[i - 1].score;
            ranks[sorted[i].id] = rank;
        }
        status = cot_bpe_open(bpe, put_cuts(NULL, vocab, NULL), error);
    }
    if (status == COT_OK) put_cuts(bpe, vocab, ranks);
    free(sorted), free(ranks);
    return status;
}

/* ---- the rest, as tokenizer.json says it ---- */

static json_t *words_of(const struct pre *pre)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof pre->patterns / sizeof *pre->patterns && pre->patterns[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                              pre->patterns[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(
        list, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
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

static bool is_added(double type)
{
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER;
}

/* Control tokens, and those of the user, are cut out of a text before anything else. */
static json_t *added_of(const cot_vocab *vocab, const cot_gguf_pair *types)
{
    json_t *list = json_array();
    for (size_t id = 0; types && id < vocab->size; id++) {
        const double type = cot_gguf_number(types, id);
        if (!is_added(type)) continue;
        const cot_vocab_entry *entry = &vocab->entries[id];
        json_array_append_new(list, json_pack("{s:I, s:s%, s:b, s:b}", "id", (json_int_t)id, "content",
                                              vocab->strings.data + entry->offset, (size_t)entry->bytes,
                                              "special", type != TOKEN_USER, "normalized", 0));
    }
    return list;
}

/* Their strings are text, not the characters of bytes: decoding, which makes bytes of characters, sees those of its bytes. */
static cot_status spell_added(cot_vocab *vocab, const cot_gguf_pair *types, cot_error *error)
{
    cot_buffer spelt = {0};
    cot_status status = COT_OK;
    for (size_t id = 0; types && id < vocab->size && status == COT_OK; id++) {
        if (!is_added(cot_gguf_number(types, id))) continue;
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

static json_t *template_of(int64_t begin, int64_t end)
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

static cot_status load_rest(cot_tokenizer *t, const cot_gguf *file, const struct pre *pre, cot_error *error)
{
    const bool pieces = !pre, prefix = pieces && is_true(file, "add_space_prefix", true);
    const cot_gguf_pair *types;
    int64_t begin, end;
    cot_status status = find_list(&types, file, "token_type", false, t->vocab.size, error);
    if (status == COT_OK) status = find_token(&begin, file, "bos_token_id", t->vocab.size, error);
    if (status == COT_OK) status = find_token(&end, file, "eos_token_id", t->vocab.size, error);
    if (status != COT_OK) return status;
    if (!is_true(file, "add_bos_token", pieces || pre->begins)) begin = -1;
    if (!is_true(file, "add_eos_token", false)) end = -1;
    json_t *root = json_pack("{s:o, s:o, s:o}", "added_tokens", added_of(&t->vocab, types), "post_processor",
                             template_of(begin, end), "decoder",
                             pieces ? marks_to_spaces(prefix) : json_pack("{s:s}", "type", "ByteLevel"));
    if (pieces)
        json_object_set_new(root, "normalizer", spaces_to_marks(prefix));
    else
        json_object_set_new(root, "pre_tokenizer", words_of(pre));
    status =
        root ? cot_tokenizer_load_parts(t, root, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    json_decref(root);
    return status == COT_OK && !pieces ? spell_added(&t->vocab, types, error) : status;
}

static cot_status load(cot_tokenizer *t, const cot_gguf *file, cot_error *error)
{
    const cot_gguf_pair *tokens;
    char model[80], name[80];
    int64_t unknown = -1;
    const struct pre *pre = NULL;
    cot_status status = find_list(&tokens, file, "tokens", true, 0, error);
    if (status == COT_OK) status = find_text(model, sizeof model, file, "model", "", error);
    if (status == COT_OK) status = find_text(name, sizeof name, file, "pre", "default", error);
    if (status != COT_OK) return status;
    const bool pieces = !strcmp(model, "llama");
    if (!tokens || !tokens->count)
        return cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.tokens'");
    if (!*model) return cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.model'");
    if (!pieces && strcmp(model, "gpt2") != 0)
        return cot_fail(error, COT_UNSUPPORTED,
                        "tokenizer.ggml.model '%.60s' is not supported (gpt2 and llama are)", model);
    if (!pieces && !(pre = find_pre(name)))
        return cot_fail(error, COT_UNSUPPORTED, "how tokenizer.ggml.pre '%.60s' cuts words is not known",
                        name);
    status = load_vocab(&t->vocab, tokens, error);
    if (status == COT_OK)
        status = pieces ? load_scores(&t->bpe, &t->vocab, file, error)
                        : load_merges(&t->bpe, &t->vocab, file, error);
    if (status == COT_OK && pieces)
        status = find_token(&unknown, file, "unknown_token_id", t->vocab.size, error);
    if (status != COT_OK) return status;
    t->bpe.unknown_id = (int32_t)unknown;
    t->bpe.byte_fallback = t->bpe.fuse_unknown = pieces;
    t->bpe.ignore_merges = pre && pre->whole_first;
    status = cot_bpe_finish(&t->bpe, &t->vocab, error);
    return status == COT_OK ? load_rest(t, file, pre, error) : status;
}

cot_status cot_tokenizer_open_gguf(cot_tokenizer **out, const char *path, cot_error *error)
{
    cot_gguf file;
    cot_error why = {.message = "out of memory"};
    *out = NULL;
    cot_status status = cot_gguf_open(&file, path, error);
    if (status != COT_OK) return status;
    cot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    status = tokenizer ? load(tokenizer, &file, &why) : COT_OUT_OF_MEMORY;
    cot_gguf_close(&file);
    if (status == COT_OK) {
        *out = tokenizer;
        return COT_OK;
    }
    cot_tokenizer_close(tokenizer);
    return cot_fail(error, status, "cannot read the tokenizer of '%s': %s", path, why.message);
}
