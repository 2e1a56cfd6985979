/* The tokenizer that a GGUF file's metadata describe: its vocabulary and merges as they are, the rest in the words of tokenizer.json,
 * which the same loaders read.
 *
 *     gpt2    byte-level BPE with a list of merges; how words are cut is known by a name, `pre`
 *     llama   SentencePiece's BPE: a pair merges if what it makes is a token, that of the highest score first; what has no token is
 *             bytes, and a space is U+2581 */
#include "base/error.h"
#include "tokenizer/listed.h"

#include <stdio.h>
#include <string.h>

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

json_t *cot_pretokenizer_named(const char *name)
{
    const struct pre *pre = find_pre(name);
    if (!pre) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof pre->patterns / sizeof *pre->patterns && pre->patterns[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                              pre->patterns[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(
        list, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
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

/* Tokens with their scores and types, where it has such; malloc'd. */
static cot_status list_tokens(cot_vocab_token **out, size_t *count, const cot_gguf *file, bool scored,
                              cot_error *error)
{
    const cot_gguf_pair *tokens, *types, *scores = NULL;
    const uint8_t *at = NULL;
    *out = NULL;
    cot_status status = find_list(&tokens, file, "tokens", true, 0, error);
    if (status == COT_OK && (!tokens || !tokens->count))
        status = cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.tokens'");
    if (status == COT_OK) status = find_list(&types, file, "token_type", false, tokens->count, error);
    if (status == COT_OK && scored) status = find_list(&scores, file, "scores", false, tokens->count, error);
    if (status == COT_OK && scored && !scores)
        status = cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.scores'");
    if (status != COT_OK) return status;
    *count = tokens->count;
    if (!(*out = calloc(tokens->count, sizeof **out)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < tokens->count; id++) {
        const cot_gguf_string s = cot_gguf_next_string(tokens, &at);
        const double type = types ? cot_gguf_number(types, id) : COT_TOKEN_NORMAL;
        (*out)[id] = (cot_vocab_token){s.data, s.bytes, scores ? cot_gguf_number(scores, id) : 0,
                                       type >= 0 && type < 256 ? (int)type : COT_TOKEN_NORMAL};
    }
    return COT_OK;
}

/* *told, unless NULL: what is loaded beside vocabulary and merges. */
static cot_status load_tokens(cot_tokenizer *t, const cot_gguf *file, const cot_vocab_token *tokens,
                              size_t count, const char *name, const struct pre *pre, json_t **told,
                              cot_error *error)
{
    int64_t begin, end, unknown = -1;
    cot_status status = find_token(&begin, file, "bos_token_id", count, error);
    if (status == COT_OK) status = find_token(&end, file, "eos_token_id", count, error);
    if (status == COT_OK && !pre) status = find_token(&unknown, file, "unknown_token_id", count, error);
    if (status != COT_OK) return status;
    if (!is_true(file, "add_bos_token", !pre || pre->begins)) begin = -1;
    if (!is_true(file, "add_eos_token", false)) end = -1;
    const cot_tokenizer_pieces pieces = {unknown, begin, end, is_true(file, "add_space_prefix", true), false};
    if (told)
        *told = pre ? cot_tokenizer_tell_bytes(tokens, count, name, begin, end)
                    : cot_tokenizer_tell_pieces(tokens, count, &pieces);
    if (!pre) return cot_tokenizer_load_pieces(t, tokens, count, &pieces, error);
    status = cot_vocab_load_listed(&t->vocab, tokens, count, error);
    if (status == COT_OK) status = load_merges(&t->bpe, &t->vocab, file, error);
    if (status != COT_OK) return status;
    t->bpe.unknown_id = -1;
    t->bpe.ignore_merges = pre->whole_first;
    status = cot_bpe_finish(&t->bpe, &t->vocab, error);
    return status == COT_OK ? cot_tokenizer_load_bytes(t, tokens, count, name, begin, end, error) : status;
}

static cot_status load(cot_tokenizer *t, const cot_gguf *file, json_t **told, cot_error *error)
{
    char model[80], name[80];
    cot_vocab_token *tokens = NULL;
    size_t count = 0;
    const struct pre *pre = NULL;
    cot_status status = find_text(model, sizeof model, file, "model", "", error);
    if (status == COT_OK) status = find_text(name, sizeof name, file, "pre", "default", error);
    if (status != COT_OK) return status;
    const bool pieces = !strcmp(model, "llama");
    if (!*model && find(file, "tokens"))
        return cot_fail(error, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.model'");
    if (*model && !pieces && strcmp(model, "gpt2") != 0)
        return cot_fail(error, COT_UNSUPPORTED,
                        "tokenizer.ggml.model '%.60s' is not supported (gpt2 and llama are)", model);
    if (*model && !pieces && !(pre = find_pre(name)))
        return cot_fail(error, COT_UNSUPPORTED, "how tokenizer.ggml.pre '%.60s' cuts words is not known",
                        name);
    status = list_tokens(&tokens, &count, file, pieces, error);
    if (status == COT_OK) status = load_tokens(t, file, tokens, count, name, pre, told, error);
    free(tokens);
    return status;
}

static cot_status open_told(cot_tokenizer **out, json_t **told, const char *path, cot_error *error)
{
    cot_gguf file;
    cot_error why = {.message = "out of memory"};
    *out = NULL;
    cot_status status = cot_gguf_open(&file, path, error);
    if (status != COT_OK) return status;
    cot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    status = tokenizer ? load(tokenizer, &file, told, &why) : COT_OUT_OF_MEMORY;
    cot_gguf_close(&file);
    if (status == COT_OK) {
        *out = tokenizer;
        return COT_OK;
    }
    cot_tokenizer_close(tokenizer);
    return cot_fail(error, status, "cannot read the tokenizer of '%s': %s", path, why.message);
}

cot_status cot_tokenizer_open_gguf(cot_tokenizer **tokenizer, const char *path, cot_error *error)
{
    return open_told(tokenizer, NULL, path, error);
}

/* Names of members have none when tokenizer.json is read. */
static cot_status refuse_nuls(const cot_vocab *vocab, const char *path, cot_error *error)
{
    for (size_t id = 0; id < vocab->size; id++) {
        const cot_vocab_entry *entry = &vocab->entries[id];
        if (memchr(vocab->strings.data + entry->offset, 0, entry->bytes))
            return cot_fail(error, COT_UNSUPPORTED,
                            "token %zu of '%s' has a NUL in it, which no tokenizer.json holds", id, path);
    }
    return COT_OK;
}

cot_status cot_tokenizer_tell_gguf(json_t **told, const char *path, cot_error *error)
{
    cot_tokenizer *tokenizer;
    json_t *parts = NULL;
    cot_status status = open_told(&tokenizer, &parts, path, error);
    if (status == COT_OK) status = refuse_nuls(&tokenizer->vocab, path, error);
    *told = status == COT_OK ? cot_tokenizer_tell(tokenizer, parts) : NULL;
    json_decref(parts);
    cot_tokenizer_close(tokenizer);
    return status == COT_OK && !*told ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory") : status;
}
