#include "tokenizer/vocab.h"

#include "base/error.h"
#include "base/rng.h"

#include <inttypes.h>

static uint64_t hash(const char *text, size_t bytes)
{
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        h = cot_mix64(h ^ word);
    }
    word = 0;
    memcpy(&word, text, bytes);
    return cot_mix64(h ^ word);
}

cot_status cot_vocab_open(cot_vocab *vocab, size_t tokens, cot_error *error)
{
    *vocab = (cot_vocab){.mask = 63};
    while (vocab->mask / 2 < tokens) vocab->mask = vocab->mask * 2 + 1;
    vocab->slots = malloc((vocab->mask + 1) * sizeof *vocab->slots);
    if (!vocab->slots) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    memset(vocab->slots, 0xff, (vocab->mask + 1) * sizeof *vocab->slots);
    return COT_OK;
}

void cot_vocab_close(cot_vocab *vocab)
{
    cot_buffer_free(&vocab->strings);
    free(vocab->entries);
    free(vocab->slots);
    *vocab = (cot_vocab){0};
}

/* The slot that holds the string, or the empty one where it belongs. */
static size_t slot_of(const cot_vocab *vocab, const char *text, size_t bytes)
{
    size_t slot = hash(text, bytes) & vocab->mask;
    for (; vocab->slots[slot] >= 0; slot = (slot + 1) & vocab->mask) {
        const cot_vocab_entry *entry = vocab->entries + vocab->slots[slot];
        if (entry->bytes == bytes && !memcmp(vocab->strings.data + entry->offset, text, bytes)) break;
    }
    return slot;
}

cot_status cot_vocab_put(cot_vocab *vocab, int64_t id, const char *text, size_t bytes, bool added,
                         cot_error *error)
{
    if (id < 0 || id >= COT_VOCAB_MOST_IDS)
        return cot_fail(error, COT_MALFORMED, "token '%s' has id %" PRId64 ", not in [0, %d)", text, id,
                        COT_VOCAB_MOST_IDS);
    if (cot_vocab_entry_of(vocab, id))
        return cot_fail(error, COT_MALFORMED, "tokens '%s' and '%s' both have id %" PRId64,
                        vocab->strings.data + vocab->entries[id].offset, text, id);
    void *entries = vocab->entries;
    size_t offset = vocab->strings.bytes;
    bool grown =
        bytes <= UINT32_MAX && cot_grow(&entries, &vocab->capacity, (size_t)id + 1, sizeof *vocab->entries);
    vocab->entries = entries;
    if (!grown || !cot_buffer_append(&vocab->strings, text, bytes) ||
        !cot_buffer_append(&vocab->strings, "", 1))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (; vocab->size <= (size_t)id; vocab->size++) vocab->entries[vocab->size] = (cot_vocab_entry){0};
    vocab->entries[id] =
        (cot_vocab_entry){offset, offset, (uint32_t)bytes, (uint32_t)bytes, .used = true, .added = added};
    if (added) return COT_OK;
    vocab->slots[slot_of(vocab, text, bytes)] = (int32_t)id;
    vocab->model_tokens++;
    return COT_OK;
}

cot_status cot_vocab_put_decoded(cot_vocab *vocab, int32_t id, const char *text, size_t bytes,
                                 cot_error *error)
{
    size_t offset = vocab->strings.bytes;
    if (bytes > UINT32_MAX || !cot_buffer_append(&vocab->strings, text, bytes) ||
        !cot_buffer_append(&vocab->strings, "", 1))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    vocab->entries[id].decoded_offset = offset;
    vocab->entries[id].decoded_bytes = (uint32_t)bytes;
    return COT_OK;
}

int32_t cot_vocab_find(const cot_vocab *vocab, const char *text, size_t bytes)
{
    return vocab->slots[slot_of(vocab, text, bytes)];
}
