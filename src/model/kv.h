/* The KV cache of one rank: pages of 64 positions, each holding every layer's keys and values of the rank's
 * KV heads in the packed form that products read (kernels/pack.h), so that attention is two products and a
 * softmax.
 *
 *   page -> layer -> KV head -> keys:   B [key_width][64 positions]    2 panels of 32 positions
 *                               values: B [64 positions][value_width]  a panel for every 32 columns
 *
 * Which page holds which positions of which sequence is the scheduler's business (the step plan says); a rank
 * only keeps the table. Positions never written are zero, so that a masked position adds exactly nothing. */
#ifndef COT_MODEL_KV_H
#define COT_MODEL_KV_H
#include "base/arena.h"
#include "base/dtype.h"
#include "schedule/step.h"
#include <stdbool.h>

typedef struct cot_kv {
    cot_dtype type;
    int64_t layers, heads, key_width, value_width; // heads: this rank's KV heads; 0 on a rank without
    int64_t pages, sequences, pages_a_sequence;    // pages_a_sequence: the context, in pages
    size_t key_bytes, head_bytes, page_bytes;      // of one head's keys; of its keys and values; of a page
    uint8_t *memory;                               // [pages][page_bytes]
    bool *held;                                    // [pages] whether memory was touched for it
    int32_t *table;                                // [sequences][pages_a_sequence]
    float *zeros;                                  // [the greater width]
} cot_kv;

/* Fills the derived sizes of `kv` and takes its memory from the arena (which may measure). */
void cot_kv_lay_out(cot_kv *kv, cot_arena *arena);
/* Gives `page` to the sequence's positions from 64 * index on. The first `keep` of them are as page `from` has them, which
 * may be `page` itself; the others are cleared. */
void cot_kv_map(cot_kv *kv, int64_t sequence, int64_t index, int32_t page, int32_t from, int64_t keep);
/* Another rank has `page` now: what it took here goes back to the system. */
void cot_kv_give_up(cot_kv *kv, int32_t page);
/* Pages lie in the system's small pages from now on, so that what none of them holds takes nothing. Before any is held. */
void cot_kv_use_small_pages(const cot_kv *kv);
/* Between two steps: what is in pages comes to others, by so many pairs (from, to) that ascend by from, with all froms behind all tos. Then pages from
 * `open` on have nothing, and what they took goes back to the system. */
void cot_kv_resize(cot_kv *kv, const int32_t *moved, int64_t moves, int64_t open);

static inline uint8_t *cot_kv_keys(const cot_kv *kv, int64_t sequence, int64_t index, int64_t layer,
                                   int64_t head)
{
    size_t page = (size_t)kv->table[sequence * kv->pages_a_sequence + index];
    return kv->memory + page * kv->page_bytes + (size_t)(layer * kv->heads + head) * kv->head_bytes;
}
static inline uint8_t *cot_kv_values(const cot_kv *kv, int64_t sequence, int64_t index, int64_t layer,
                                     int64_t head)
{
    return cot_kv_keys(kv, sequence, index, layer, head) + kv->key_bytes;
}
/* Stores one position's key [key_width] and value [value_width] of one head. */
void cot_kv_store(cot_kv *kv, int64_t sequence, int64_t position, int64_t layer, int64_t head,
                  const float *key, const float *value);

#endif
