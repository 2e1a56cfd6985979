#include "tokenizer/added.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

#include <inttypes.h>

static cot_status fail_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

/* Hugging Face tokenizers numbers the added tokens itself, in their order, whatever ids the file gives; where
 * the two disagree the file is in doubt. */
static cot_status put_in_vocab(cot_vocab *vocab, cot_text content, int64_t id, size_t *added, bool special,
                               cot_error *error)
{
    cot_status status = COT_OK;
    int64_t expected = cot_vocab_find(vocab, content.data, content.bytes);
    bool is_new = expected < 0;
    if (is_new) expected = (int64_t)(vocab->model_tokens + *added);
    if (id != expected)
        return cot_fail(error, COT_MALFORMED, "added token '%s' has id %" PRId64 ", but %s %" PRId64,
                        content.data, id, is_new ? "the next one is" : "in the vocabulary", expected);
    if (is_new) {
        status = cot_vocab_put(vocab, id, content.data, content.bytes, true, error);
        ++*added;
    }
    if (status == COT_OK && special) vocab->entries[id].special = true;
    return status;
}

static cot_status normalize(cot_text *text, const cot_normalizer *normalizer, cot_error *error)
{
    cot_regex_scratch scratch = {0};
    cot_buffer buffer = {0}, spare = {0};
    cot_status status = COT_OK;
    if (!cot_buffer_append(&buffer, text->data, text->bytes)) status = fail_memory(error);
    if (status == COT_OK) status = cot_normalizer_run(normalizer, &scratch, &buffer, NULL, &spare, error);
    cot_regex_scratch_free(&scratch);
    cot_buffer_free(&spare);
    if (status == COT_OK)
        *text = (cot_text){buffer.data, buffer.bytes};
    else
        cot_buffer_free(&buffer);
    return status;
}

/* Nothing but white space, or the character that stands for it in SentencePiece's vocabularies. */
static bool is_blank(cot_text text)
{
    for (size_t at = 0; at < text.bytes;) {
        int32_t c = cot_utf8_next(text.data, &at);
        if (!cot_is_space(c) && c != 0x2581) return false;
    }
    return true;
}

/* A token that is looked for in normalised text is decoded to its normalised string too. */
static cot_status add(cot_added_set *set, cot_added_token token, cot_vocab *vocab,
                      const cot_normalizer *normalizer, cot_error *error)
{
    cot_status status = COT_OK;
    if (normalizer)
        status = normalize(&token.text, normalizer, error);
    else if (!(token.text = cot_text_copy(token.text)).data)
        status = fail_memory(error);
    if (status == COT_OK && normalizer && normalizer->count)
        status = cot_vocab_put_decoded(vocab, token.id, token.text.data, token.text.bytes, error);
    void *tokens = set->tokens;
    if (status == COT_OK && !cot_grow(&tokens, &set->capacity, set->count + 1, sizeof *set->tokens))
        status = fail_memory(error);
    set->tokens = tokens;
    if (status != COT_OK || !token.text.bytes) { // what is normalised to nothing is never found
        free((char *)(uintptr_t)token.text.data);
        return status;
    }
    token.blank = is_blank(token.text);
    vocab->entries[token.id].listed = !token.blank;
    set->tokens[set->count++] = token;
    set->leads[(unsigned char)token.text.data[0]] = true;
    return COT_OK;
}

static int by_text(const void *left, const void *right)
{
    const cot_added_token *a = left, *b = right;
    size_t common = a->text.bytes < b->text.bytes ? a->text.bytes : b->text.bytes;
    int order = memcmp(a->text.data, b->text.data, common);
    if (!order) order = (a->text.bytes > b->text.bytes) - (a->text.bytes < b->text.bytes);
    return order ? order : (a->id > b->id) - (a->id < b->id);
}

cot_status cot_added_load(cot_added_set *raw, cot_added_set *normalized, cot_vocab *vocab,
                          const cot_normalizer *normalizer, const json_t *list, cot_error *error)
{
    static const char where[] = "added token";
    size_t added = 0;
    cot_status status = COT_OK;
    if (list && !json_is_null(list) && !json_is_array(list))
        return cot_fail(error, COT_MALFORMED, "'added_tokens' is not a list");
    for (size_t i = 0; i < json_array_size(list) && status == COT_OK; i++) {
        const json_t *item = json_array_get(list, i), *id = json_object_get(item, "id");
        cot_added_token token = {0};
        bool special = false, is_normalized = false;
        status = cot_field_text_needed(&token.text, item, "content", where, error);
        if (status == COT_OK && !json_is_integer(id))
            status = cot_fail(error, COT_MALFORMED, "the id of added token '%s' is not an integer",
                              token.text.data);
        if (status == COT_OK) status = cot_field_bool(&special, item, "special", false, where, error);
        if (status == COT_OK)
            status = cot_field_bool(&is_normalized, item, "normalized", !special, where, error);
        if (status == COT_OK)
            status = cot_field_bool(&token.single_word, item, "single_word", false, where, error);
        if (status == COT_OK) status = cot_field_bool(&token.lstrip, item, "lstrip", false, where, error);
        if (status == COT_OK) status = cot_field_bool(&token.rstrip, item, "rstrip", false, where, error);
        if (status != COT_OK || !token.text.bytes) continue; // an empty one is ignored
        status = put_in_vocab(vocab, token.text, json_integer_value(id), &added, special, error);
        token.id = (int32_t)json_integer_value(id);
        if (status == COT_OK)
            status =
                add(is_normalized ? normalized : raw, token, vocab, is_normalized ? normalizer : NULL, error);
    }
    if (raw->count) qsort(raw->tokens, raw->count, sizeof *raw->tokens, by_text);
    if (normalized->count) qsort(normalized->tokens, normalized->count, sizeof *normalized->tokens, by_text);
    return status;
}

void cot_added_close(cot_added_set *set)
{
    for (size_t i = 0; i < set->count; i++) free((char *)(uintptr_t)set->tokens[i].text.data);
    free(set->tokens);
    *set = (cot_added_set){0};
}

/* The first token of [low, high) whose byte at `depth` is `byte` or more; they agree on all bytes before. */
static size_t lower_bound(const cot_added_set *set, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const cot_text text = set->tokens[middle].text;
        int here = depth < text.bytes ? (unsigned char)text.data[depth] : -1;
        if (here < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that `text` begins with; NULL when there is none. */
static const cot_added_token *longest(const cot_added_set *set, const char *text, size_t bytes,
                                      const uint8_t *own)
{
    const cot_added_token *found = NULL;
    size_t low = 0, high = set->count;
    bool may = true;
    for (size_t depth = 0; depth < bytes; depth++) {
        int byte = (unsigned char)text[depth];
        if (own && !own[depth]) may = false;
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
        if (low == high) break;
        if (set->tokens[low].text.bytes == depth + 1 && (may || set->tokens[low].blank))
            found = set->tokens + low;
    }
    return found;
}

static bool is_whole_word(const char *text, size_t bytes, size_t start, size_t end)
{
    size_t before = start, after = end;
    return !(start && cot_is_word(cot_utf8_previous(text, &before))) &&
           !(end < bytes && cot_is_word(cot_utf8_next(text, &after)));
}

static size_t skip_spaces_back(const char *text, size_t at)
{
    for (size_t before = at; at && cot_is_space(cot_utf8_previous(text, &before));) at = before;
    return at;
}

static size_t skip_spaces(const char *text, size_t bytes, size_t at)
{
    for (size_t after = at; at < bytes && cot_is_space(cot_utf8_next(text, &after));) at = after;
    return at;
}

static bool add_part(cot_parts *parts, size_t start, size_t end, int32_t id)
{
    if (start >= end) return true;
    void *items = parts->items;
    bool grown = cot_grow(&items, &parts->capacity, parts->count + 1, sizeof *parts->items);
    parts->items = items;
    if (grown) parts->items[parts->count++] = (cot_part){start, end, id};
    return grown;
}

bool cot_added_split(const cot_added_set *set, const char *text, size_t bytes, const uint8_t *own,
                     size_t most, cot_parts *parts)
{
    size_t done = 0, found = 0; // up to here the text is in parts; tokens
    bool added = true;
    parts->count = 0;
    for (size_t at = 0, length; at < bytes && set->count && added; at += length) {
        const cot_added_token *token = set->leads[(unsigned char)text[at]]
                                           ? longest(set, text + at, bytes - at, own ? own + at : NULL)
                                           : NULL;
        length = token ? token->text.bytes : 1;
        if (!token || (token->single_word && !is_whole_word(text, bytes, at, at + length))) continue;
        size_t start = token->lstrip ? skip_spaces_back(text, at) : at;
        size_t end = token->rstrip ? skip_spaces(text, bytes, at + length) : at + length;
        if (token->lstrip && start < done) start = done;
        added = add_part(parts, done, start, -1) && add_part(parts, start, end, token->id);
        done = end;
        if (++found > most) return added;
    }
    return added && add_part(parts, done, bytes, -1);
}
