/* Byte-pair encoding of one word (Sennrich, Haddow, Birch 2016): its characters, and then, as long as there
 * is one, the merge of lowest rank, leftmost first. A queue of merges makes it O(n log n) in the word's
 * length. */
#ifndef COT_TOKENIZER_BPE_H
#define COT_TOKENIZER_BPE_H
#include "tokenizer/fields.h"
#include "tokenizer/vocab.h"

typedef struct cot_bpe_merge {
    uint64_t pair; // left id << 32 | right id; UINT64_MAX in empty slots
    uint32_t rank;
    int32_t id; // what the pair becomes
} cot_bpe_merge;

/* The characters that a token begins and ends with; -1 for the empty string. */
typedef struct cot_bpe_edges {
    int32_t first, last;
} cot_bpe_edges;

enum { COT_BPE_SEAM_BITS = 1 << 18 };

typedef struct cot_bpe {
    cot_bpe_merge *merges; // open addressing
    size_t mask;
    cot_bpe_edges *edges; // by id
    /* A set of hashes: the last character of the left token and the first of the right, of each merge. A word
     * may be cut wherever no merge can join what meets there. */
    uint64_t seams[COT_BPE_SEAM_BITS / 64];
    int32_t unknown_id;     // -1 when there is none; -2 when the vocabulary lacks the one that is named
    int32_t byte_ids[256];  // of "<0x00>" to "<0xFF>"; -1 where the vocabulary lacks one
    int32_t short_ids[512]; // of the characters U+0000 to U+01FF: ASCII and the byte-level alphabet
    bool fuse_unknown, byte_fallback, ignore_merges;
} cot_bpe;

/* What a thread needs to encode words; all zero at the start. */
typedef struct cot_bpe_scratch {
    struct cot_bpe_symbol *symbols;
    struct cot_bpe_candidate *queue;
    size_t symbol_capacity, queue_capacity, symbols_used, queued;
    size_t rounds;                     // of work done: now and then it is asked whether to go on
    bool (*is_stopped)(void *context); // true: TIMED_OUT; NULL: never
    void *context;
} cot_bpe_scratch;

/* Loads the file's "model" object into `bpe` and `vocab`, both closed by the caller also on failure. */
cot_status cot_bpe_load(cot_bpe *bpe, cot_vocab *vocab, const json_t *model, cot_error *error);
/* The same piece by piece: room for so many merges, each of which is put (of two of a pair the later one counts; of equal ranks the
 * leftmost in a word goes first), then what follows from them and the vocabulary. Options and unknown_id are the caller's to set. */
cot_status cot_bpe_open(cot_bpe *bpe, size_t merges, cot_error *error);
void cot_bpe_put(cot_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);
cot_status cot_bpe_finish(cot_bpe *bpe, const cot_vocab *vocab, cot_error *error);
void cot_bpe_close(cot_bpe *bpe);

/* Where pairs of characters (last of one token, first of the next) are marked in `seams`. */
size_t cot_bpe_seam(int32_t last, int32_t first);

/* Appends the ids of `word` [bytes], valid UTF-8, to `ids` (an array of int32_t). */
cot_status cot_bpe_encode(const cot_bpe *bpe, const cot_vocab *vocab, cot_bpe_scratch *scratch,
                          cot_buffer *ids, const char *word, size_t bytes, cot_error *error);
void cot_bpe_scratch_free(cot_bpe_scratch *scratch);
/* Whether every character that a word may hold becomes an id of its own at first: none is left out or joined to another
 * that the vocabulary lacks. `alphabet`: words are of the byte-level alphabet. */
bool cot_bpe_covers(const cot_bpe *bpe, bool alphabet);

#endif
