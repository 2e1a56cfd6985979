/* tiktoken.model: a line for each token, its bytes in base 64 and its rank, which is its id. A pair merges into whatever token its bytes are, that of
 * the lowest rank first. How words are cut is in a model's own code: known for those of one list of types. */
#include "tokenizer/listed.h"

#include "base/error.h"
#include "base/file.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

/* config.json's model_type, GGUF's name of how words are cut, and what ids between added tokens are called before their number and "|>". */
static const struct kind {
    const char *model_type, *pre, *reserved;
} kinds[] = {{"kimi_k2", "kimi-k2", "<|reserved_token_"}};

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* A token's bytes as characters of the byte-level alphabet, appended; false where the digits are none, or out of memory. */
static bool decode(cot_buffer *out, const char *digits, size_t count)
{
    uint32_t bits = 0;
    int held = 0;
    while (count && digits[count - 1] == '=') count--;
    for (size_t i = 0; i < count; i++) {
        char character[4];
        const int digit = digit_of(digits[i]);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        if ((held += 6) < 8) continue;
        held -= 8;
        const uint8_t byte = (uint8_t)(bits >> held);
        if (!cot_buffer_append(out, character, cot_utf8_write(character, cot_byte_character(byte))))
            return false;
    }
    return count > 0;
}

/* Tokens in order of their ranks, whose texts follow one another in `texts`. */
static cot_status read_tokens(cot_vocab_list *list, cot_buffer *texts, const char *text, cot_error *error)
{
    size_t line = 0;
    for (const char *at = text; *at; line++) {
        const size_t bytes = strcspn(at, "\n"), digits = strcspn(at, " \n"), begin = texts->bytes;
        char *end;
        if (!bytes) { // an empty line
            at++;
            continue;
        }
        const unsigned long long rank = digits < bytes ? strtoull(at + digits, &end, 10) : UINT64_MAX;
        if (digits == bytes || end != at + bytes || rank != list->count || !decode(texts, at, digits) ||
            !cot_vocab_list_put(list,
                                (cot_vocab_token){.bytes = texts->bytes - begin, .type = COT_TOKEN_NORMAL}))
            return cot_fail(error, COT_MALFORMED,
                            "line %zu is no token in base 64 with its rank, of %zu before it", line + 1,
                            list->count);
        at += bytes + (at[bytes] == '\n');
    }
    const char *from = texts->data; // which no longer moves
    for (size_t id = 0; id < list->count; id++) {
        list->tokens[id].text = from;
        from += list->tokens[id].bytes;
    }
    return list->count ? COT_OK : cot_fail(error, COT_MALFORMED, "it has no tokens");
}

static cot_status find_kind(const struct kind **kind, const char *folder, cot_error *error)
{
    json_t *config = NULL;
    const cot_status status = cot_tokenizer_read_json(&config, folder, "config.json", error);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    *kind = NULL;
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type, kinds[i].model_type)) *kind = &kinds[i];
    const cot_status found =
        status != COT_OK ? status
        : *kind          ? COT_OK
                         : cot_fail(error, COT_UNSUPPORTED,
                                    "how tiktoken's words are cut for model_type '%.40s' is not known (%s is)",
                           type ? type : "", kinds[0].model_type);
    json_decref(config);
    return found;
}

static cot_status load_bpe(cot_tokenizer *t, const cot_vocab_list *list, size_t ranked, cot_error *error)
{
    uint32_t *ranks = malloc(list->count * sizeof *ranks);
    if (!ranks) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < list->count; id++) ranks[id] = id < ranked ? (uint32_t)id : UINT32_MAX;
    cot_status status = cot_vocab_load_listed(&t->vocab, list->tokens, list->count, error);
    if (status == COT_OK) status = cot_bpe_load_cuts(&t->bpe, &t->vocab, ranks, error);
    free(ranks);
    t->bpe.unknown_id = -1;
    t->bpe.ignore_merges = true; // a word that is a token is looked up first
    return status == COT_OK ? cot_bpe_finish(&t->bpe, &t->vocab, error) : status;
}

static cot_status load(cot_tokenizer *t, const cot_file_map *map, const char *folder, cot_error *error)
{
    cot_vocab_list list = {0};
    cot_buffer texts = {0};
    const struct kind *kind;
    json_t *told = NULL;
    char *text = malloc(map->bytes + 1);
    if (!text) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (map->bytes) memcpy(text, map->data, map->bytes);
    text[map->bytes] = 0;
    cot_status status = find_kind(&kind, folder, error);
    if (status == COT_OK) status = read_tokens(&list, &texts, text, error);
    const size_t ranked = list.count;
    if (status == COT_OK) status = cot_vocab_list_told(&list, &told, folder, kind->reserved, error);
    if (status == COT_OK) status = load_bpe(t, &list, ranked, error);
    if (status == COT_OK)
        status = cot_tokenizer_load_bytes(t, list.tokens, list.count, kind->pre, -1, -1, error);
    cot_vocab_list_free(&list);
    cot_buffer_free(&texts);
    json_decref(told);
    free(text);
    return status;
}

cot_status cot_tokenizer_open_tiktoken(cot_tokenizer **out, const char *folder, cot_error *error)
{
    return cot_tokenizer_open_listed(out, folder, "tiktoken.model", load, error);
}
