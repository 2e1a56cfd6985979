#include "tokenizer/bpe.h"

#include "base/error.h"
#include "base/rng.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

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

size_t cot_bpe_seam(int32_t last, int32_t first)
{
    return cot_mix64((uint64_t)(uint32_t)last << 32 | (uint32_t)first) % COT_BPE_SEAM_BITS;
}

/* Whether some merge may join what these two symbols become part of. */
static bool may_join(const cot_bpe *bpe, int32_t left, int32_t right)
{
    int32_t last = bpe->edges[left].last, first = bpe->edges[right].first;
    size_t seam = cot_bpe_seam(last, first);
    return last < 0 || first < 0 || (bpe->seams[seam / 64] >> seam % 64 & 1);
}

/* Called for each range and for each merge. */
static bool is_stopped(cot_bpe_scratch *scratch)
{
    enum { OFTEN = 1 << 14 };
    return !(++scratch->rounds % OFTEN) && scratch->is_stopped && scratch->is_stopped(scratch->context);
}

/* The symbols [from, end), which no merge joins to others. False: it was stopped. */
static bool merge_range(const cot_bpe *bpe, cot_bpe_scratch *scratch, uint32_t from, uint32_t end)
{
    struct cot_bpe_symbol *symbols = scratch->symbols;
    scratch->queued = 0;
    for (uint32_t i = from; i < end; i++) {
        symbols[i].previous = i > from ? i - 1 : NOWHERE;
        symbols[i].next = i + 1 < end ? i + 1 : NOWHERE;
        if (i + 1 < end) consider(bpe, scratch, i, i + 1);
    }
    while (scratch->queued) {
        if (is_stopped(scratch)) return false;
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
    return true;
}

/* Cuts the word where it can be, so that the queue stays short: without a pre-tokenizer a word is a whole
 * text. */
static cot_status merge_all(const cot_bpe *bpe, cot_bpe_scratch *scratch, cot_error *error)
{
    uint32_t n = (uint32_t)scratch->symbols_used;
    for (uint32_t from = 0, end; from < n; from = end) {
        end = from + 1;
        while (end < n && may_join(bpe, scratch->symbols[end - 1].id, scratch->symbols[end].id)) end++;
        if (is_stopped(scratch)) return cot_fail(error, COT_TIMED_OUT, "stopped");
        if (end - from < 2) continue;
        void *queue = scratch->queue;
        bool grown =
            cot_grow(&queue, &scratch->queue_capacity, 3 * (size_t)(end - from), sizeof *scratch->queue);
        scratch->queue = queue;
        if (!grown) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
        if (!merge_range(bpe, scratch, from, end)) return cot_fail(error, COT_TIMED_OUT, "stopped");
    }
    return COT_OK;
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
    void *symbols = scratch->symbols;
    bool grown = cot_grow(&symbols, &scratch->symbol_capacity, bytes + 1, sizeof *scratch->symbols);
    scratch->symbols = symbols;
    if (!grown) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status = COT_OK;
    if (whole >= 0) {
        add_symbol(scratch, whole);
    } else {
        status = add_characters(bpe, vocab, scratch, word, bytes, error);
        if (status == COT_OK) status = merge_all(bpe, scratch, error);
    }
    for (size_t i = 0; i < scratch->symbols_used && status == COT_OK; i++) {
        int32_t id = scratch->symbols[i].id;
        if (id >= 0 && !cot_buffer_append(ids, &id, sizeof id))
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    return status;
}

bool cot_bpe_covers(const cot_bpe *bpe, bool alphabet)
{
    bool all_bytes = bpe->byte_fallback, all_characters = alphabet;
    for (int byte = 0; byte < 256; byte++) {
        if (bpe->byte_ids[byte] < 0) all_bytes = false;
        if (bpe->short_ids[cot_byte_character((uint8_t)byte)] < 0) all_characters = false;
    }
    return all_bytes || all_characters || (bpe->unknown_id >= 0 && !bpe->fuse_unknown);
}

void cot_bpe_scratch_free(cot_bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->queue);
    *scratch = (cot_bpe_scratch){0};
}
