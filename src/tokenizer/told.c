/* A tokenizer in the words of tokenizer.json, with the members that other programs ask for besides those that are read here. */
#include "tokenizer/parts.h"

#include <stdlib.h>

static int by_rank(const void *a, const void *b)
{
    const cot_bpe_merge *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

static json_t *text_of(const cot_vocab *vocab, int64_t id)
{
    const cot_vocab_entry *entry = cot_vocab_entry_of(vocab, id);
    return entry ? json_stringn(vocab->strings.data + entry->offset, entry->bytes) : json_null();
}

static json_t *tell_vocabulary(const cot_vocab *vocab)
{
    json_t *object = json_object();
    bool failed = !object;
    for (size_t id = 0; id < vocab->size && !failed; id++) {
        const cot_vocab_entry *entry = &vocab->entries[id];
        failed = json_object_setn_new(object, vocab->strings.data + entry->offset, entry->bytes,
                                      json_integer((json_int_t)id));
    }
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* Ascending by rank, which is what a place in the list says. */
static json_t *tell_merges(const cot_bpe *bpe, const cot_vocab *vocab)
{
    cot_bpe_merge *merges = malloc((bpe->mask + 1) * sizeof *merges);
    json_t *list = json_array();
    bool failed = !merges || !list;
    size_t count = 0;
    for (size_t i = 0; i <= bpe->mask && !failed; i++)
        if (bpe->merges[i].pair != UINT64_MAX) merges[count++] = bpe->merges[i];
    if (count) qsort(merges, count, sizeof *merges, by_rank);
    for (size_t i = 0; i < count && !failed; i++)
        failed =
            json_array_append_new(list, json_pack("[o,o]", text_of(vocab, (int64_t)(merges[i].pair >> 32)),
                                                  text_of(vocab, (int64_t)(merges[i].pair & UINT32_MAX))));
    free(merges);
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static void fill_added(json_t *list)
{
    static const char *const plain[] = {"single_word", "lstrip", "rstrip"};
    size_t i;
    json_t *token;
    json_array_foreach(list, i, token) for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
        json_object_set_new(token, plain[k], json_false());
}

/* A text, and a pair of texts: one after the other, each with its tokens. */
static void fill_template(json_t *template, const cot_vocab *vocab)
{
    const char *name;
    size_t i;
    json_t *special, *entry, *pair = json_array();
    json_object_foreach(json_object_get(template, "special_tokens"), name, special)
    {
        const json_t *id = json_array_get(json_object_get(special, "ids"), 0);
        json_object_set_new(special, "id", json_string(name));
        json_object_set_new(special, "tokens", json_pack("[o]", text_of(vocab, json_integer_value(id))));
    }
    for (int text = 0; text < 2; text++) json_array_foreach(json_object_get(template, "single"), i, entry)
        {
            json_t *inner = json_object_iter_value(json_object_iter(entry));
            json_object_set_new(inner, "type_id", json_integer(0));
            json_t *copy = json_deep_copy(entry), *copied = json_object_get(copy, "Sequence");
            if (copied && text) json_object_set_new(copied, "id", json_string("B"));
            json_object_set_new(copied ? copied : json_object_get(copy, "SpecialToken"), "type_id",
                                json_integer(text));
            json_array_append_new(pair, copy);
        }
    json_object_set_new(template, "pair", pair);
}

/* Of the byte-level alphabet: what is left out is true. */
static void fill_bytes(json_t *step)
{
    static const char *const fields[] = {"add_prefix_space", "trim_offsets", "use_regex"};
    const char *type = json_string_value(json_object_get(step, "type"));
    for (size_t i = 0; type && !strcmp(type, "ByteLevel") && i < sizeof fields / sizeof *fields; i++)
        if (!json_object_get(step, fields[i])) json_object_set_new(step, fields[i], json_true());
}

json_t *cot_tokenizer_tell(const cot_tokenizer *tokenizer, const json_t *parts)
{
    static const char *const members[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                                          "decoder"};
    const cot_bpe *bpe = &tokenizer->bpe;
    size_t i;
    json_t *root = json_pack("{s:s, s:n, s:n}", "version", "1.0", "truncation", "padding"), *step;
    for (size_t m = 0; m < sizeof members / sizeof *members; m++) {
        json_t *part = json_object_get(parts, members[m]);
        json_object_set_new(root, members[m], part ? json_deep_copy(part) : json_null());
    }
    fill_added(json_object_get(root, "added_tokens"));
    fill_template(json_object_get(root, "post_processor"), &tokenizer->vocab);
    fill_bytes(json_object_get(root, "decoder"));
    json_array_foreach(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), i, step)
        fill_bytes(step);
    json_t *model =
        json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                  text_of(&tokenizer->vocab, bpe->unknown_id), "continuing_subword_prefix",
                  "end_of_word_suffix", "fuse_unk", bpe->fuse_unknown, "byte_fallback", bpe->byte_fallback,
                  "ignore_merges", bpe->ignore_merges, "vocab", tell_vocabulary(&tokenizer->vocab), "merges",
                  tell_merges(bpe, &tokenizer->vocab));
    if (root && model && !json_object_set_new(root, "model", model)) return root;
    json_decref(root);
    return NULL;
}
