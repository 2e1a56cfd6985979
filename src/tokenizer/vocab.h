/* The vocabulary: strings by id, and ids by string. */
#ifndef COT_TOKENIZER_VOCAB_H
#define COT_TOKENIZER_VOCAB_H
#include "coterie/status.h"
#include "base/buffer.h"
#include <stdint.h>

enum { COT_VOCAB_MOST_IDS = 1 << 22 }; // ids are indices; the largest vocabularies have 2^18

typedef struct cot_vocab_entry {
    size_t offset, decoded_offset; // of its string, and of what decoders see, in `strings`; NULs follow
    uint32_t bytes, decoded_bytes;
    bool used;    // false for an id that the vocabulary leaves out
    bool added;   // an added token that the model's own vocabulary does not hold: cot_vocab_find passes it by
    bool special; // an added token that decoding may skip
    bool listed;  // an added token of more than white space, whether the model's vocabulary holds it or not
} cot_vocab_entry;

typedef struct cot_vocab {
    cot_buffer strings;
    cot_vocab_entry *entries; // [size], by id
    size_t size, capacity;
    int32_t *slots; // open addressing; ids, -1 in empty ones
    size_t mask;
    size_t model_tokens;
} cot_vocab;

/* Prepares an empty vocabulary for at most `tokens` strings that are not added. */
cot_status cot_vocab_open(cot_vocab *vocab, size_t tokens, cot_error *error);
void cot_vocab_close(cot_vocab *vocab);
/* Errors: MALFORMED (an id that is taken, negative or at or beyond COT_VOCAB_MOST_IDS), OUT_OF_MEMORY. */
cot_status cot_vocab_put(cot_vocab *vocab, int64_t id, const char *text, size_t bytes, bool added,
                         cot_error *error);
/* What decoders see of an id, where that is not its string. Errors: OUT_OF_MEMORY. */
cot_status cot_vocab_put_decoded(cot_vocab *vocab, int32_t id, const char *text, size_t bytes,
                                 cot_error *error);
/* The id of a string of the model's vocabulary; -1 when there is none. */
int32_t cot_vocab_find(const cot_vocab *vocab, const char *text, size_t bytes);

static inline const cot_vocab_entry *cot_vocab_entry_of(const cot_vocab *vocab, int64_t id)
{
    return id >= 0 && (uint64_t)id < vocab->size && vocab->entries[id].used ? vocab->entries + id : NULL;
}

#endif
