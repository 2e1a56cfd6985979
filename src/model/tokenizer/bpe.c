#include "model/tokenizer/bpe.h"

#include "base/error.h"
#include "base/rng.h"
#include "model/tokenizer/utf8.h"

/* A word is a list of symbols linked in order; a merge keeps the left one and marks the right one dead. */
struct cot_bpe_symbol {
    int32_t id; // -1 when dead
    uint32_t previous, next;
};

struct cot_bpe_candidate {
    uint32_t rank, at; // the queue's order: lowest rank first, then leftmost
    int32_t id;
};

#define NOWHERE UINT32_MAX

static const cot_bpe_merge *find_merge(const cot_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    size_t slot = cot_mix64(pair) & bpe->mask;
    for (; bpe->merges[slot].pair != UINT64_MAX; slot = (slot + 1) & bpe->mask)
        if (bpe->merges[slot].pair == pair) return bpe->merges + slot;
    return NULL;
}

static bool before(const struct cot_bpe_candidate *a, const struct cot_bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* The queue is a binary heap. A word of n symbols has n - 1 pairs at first and each merge adds at most two,
 * so 3n slots suffice. */
static void push(cot_bpe_scratch *scratch, struct cot_bpe_candidate candidate)
{
    struct cot_bpe_candidate *heap = scratch->queue;
    size_t at = scratch->queued++;
    for (; at && before(&candidate, heap + (at - 1) / 2); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = candidate;
}

static struct cot_bpe_candidate pop(cot_bpe_scratch *scratch)
{
    struct cot_bpe_candidate *heap = scratch->queue, top = heap[0], last = heap[--scratch->queued];
    size_t n = scratch->queued, at = 0;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap + child + 1, heap + child)) child++;
        if (!before(heap + child, &last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

static void consider(const cot_bpe *bpe, cot_bpe_scratch *scratch, uint32_t left, uint32_t right)
{
    const cot_bpe_merge *merge = find_merge(bpe, scratch->symbols[left].id, scratch->symbols[right].id);
    if (merge) push(scratch, (struct cot_bpe_candidate){merge->rank, left, merge->id});
}

static void merge_all(const cot_bpe *bpe, cot_bpe_scratch *scratch)
{
    struct cot_bpe_symbol *symbols = scratch->symbols;
    uint32_t n = (uint32_t)scratch->symbols_used;
    scratch->queued = 0;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i].previous = i ? i - 1 : NOWHERE;
        symbols[i].next = i + 1 < n ? i + 1 : NOWHERE;
        if (i + 1 < n) consider(bpe, scratch, i, i + 1);
    }
    while (scratch->queued) {
        struct cot_bpe_candidate top = pop(scratch);
        struct cot_bpe_symbol *left = symbols + top.at;
        if (left->id < 0 || left->next == NOWHERE) continue;
        struct cot_bpe_symbol *right = symbols + left->next;
        // A neighbour may have merged since: then the pair is another one and has a candidate of its own.
        const cot_bpe_merge *merge = find_merge(bpe, left->id, right->id);
        if (!merge || merge->id != top.id) continue;
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next != NOWHERE) symbols[left->next].previous = top.at;
        if (left->previous != NOWHERE) consider(bpe, scratch, left->previous, top.at);
        if (left->next != NOWHERE) consider(bpe, scratch, top.at, left->next);
    }
}

static void add_symbol(cot_bpe_scratch *scratch, int32_t id)
{
    scratch->symbols[scratch->symbols_used++].id = id;
}

static bool add_bytes(const cot_bpe *bpe, cot_bpe_scratch *scratch, const char *character, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bpe->byte_ids[(unsigned char)character[i]] < 0) return false;
    for (size_t i = 0; i < length; i++) add_symbol(scratch, bpe->byte_ids[(unsigned char)character[i]]);
    return true;
}

static int32_t find_character(const cot_bpe *bpe, const cot_vocab *vocab, const char *character,
                              size_t length)
{
    const unsigned char *s = (const unsigned char *)character;
    if (length == 1) return bpe->short_ids[s[0]];
    if (length == 2 && s[0] < 0xc8) return bpe->short_ids[(s[0] & 0x1f) << 6 | (s[1] & 0x3f)];
    return cot_vocab_find(vocab, character, length);
}

/* The word's characters as symbols. One that the vocabulary lacks becomes its bytes where there is byte
 * fallback, else the unknown token, else nothing. As in Hugging Face tokenizers an unknown token waits for
 * the next known character, so that bytes of a fallback step in front of it. */
static cot_status add_characters(const cot_bpe *bpe, const cot_vocab *vocab, cot_bpe_scratch *scratch,
                                 const char *word, size_t bytes, cot_error *error)
{
    bool unknown = false;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = cot_utf8_length(word[at]);
        int32_t id = find_character(bpe, vocab, word + at, length);
        if (id >= 0) {
            if (unknown) add_symbol(scratch, bpe->unknown_id);
            unknown = false;
            add_symbol(scratch, id);
            continue;
        }
        if (bpe->byte_fallback && add_bytes(bpe, scratch, word + at, length)) continue;
        if (bpe->unknown_id == -1) continue;
        if (bpe->unknown_id < 0)
            return cot_fail(error, COT_MALFORMED,
                            "the text needs 'unk_token', which is not in the vocabulary");
        if (unknown && !bpe->fuse_unknown) add_symbol(scratch, bpe->unknown_id);
        unknown = true;
    }
    if (unknown) add_symbol(scratch, bpe->unknown_id);
    return COT_OK;
}

cot_status cot_bpe_encode(const cot_bpe *bpe, const cot_vocab *vocab, cot_bpe_scratch *scratch,
                          cot_buffer *ids, const char *word, size_t bytes, cot_error *error)
{
    int32_t whole = bpe->ignore_merges ? cot_vocab_find(vocab, word, bytes) : -1;
    scratch->symbols_used = 0;
    void *symbols = scratch->symbols, *queue = scratch->queue;
    bool grown = cot_grow(&symbols, &scratch->symbol_capacity, bytes + 1, sizeof *scratch->symbols) &&
                 cot_grow(&queue, &scratch->queue_capacity, 3 * bytes + 1, sizeof *scratch->queue);
    scratch->symbols = symbols;
    scratch->queue = queue;
    if (!grown) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status = COT_OK;
    if (whole >= 0) {
        add_symbol(scratch, whole);
    } else {
        status = add_characters(bpe, vocab, scratch, word, bytes, error);
        if (status == COT_OK) merge_all(bpe, scratch);
    }
    for (size_t i = 0; i < scratch->symbols_used && status == COT_OK; i++) {
        int32_t id = scratch->symbols[i].id;
        if (id >= 0 && !cot_buffer_append(ids, &id, sizeof id))
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    return status;
}

void cot_bpe_scratch_free(cot_bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->queue);
    *scratch = (cot_bpe_scratch){0};
}
