/* Events of a KV cache in vLLM's wire form, gathered into a batch: a msgpack array [time in seconds, events, data-parallel
 * rank] whose events are maps, told apart by "type", with the fields of vLLM's BlockStored and BlockRemoved.
 *
 * That form is vLLM 0.24's (vllm/distributed/kv_events.py since its pull request 42892; before, events were arrays). Blocks of
 * which each follows the one before are one BlockStored, as vLLM has it. Where layers have a state in place of keys, blocks of which
 * the state is kept are told a second time, in a group of layers of the kind that vLLM calls "mamba". A batch that stores blocks, and the state
 * of none, tells that group of no blocks: who reads it knows that there is nothing to go on from. */
#ifndef COT_WORKER_KV_BATCH_H
#define COT_WORKER_KV_BATCH_H
#include "base/buffer.h"
#include "coterie/request.h"

/* What of a block is there: its number is that of the group of layers. */
typedef enum cot_kv_batch_group { COT_KV_BATCH_KEYS, COT_KV_BATCH_STATES } cot_kv_batch_group;

/* All zero is empty. What it holds grows and is kept for the next batch. When memory runs out `failed` stays true until the
 * batch is taken. */
typedef struct cot_kv_batch {
    cot_buffer events; // packed
    size_t count;      // of those
    bool failed;
    /* Blocks that came last, not packed yet: all came, one behind the other, or all went. */
    enum { COT_KV_BATCH_NOTHING, COT_KV_BATCH_STORED, COT_KV_BATCH_REMOVED } open;
    cot_kv_batch_group group; // of those
    /* Of the batch: it stores blocks that need a state; it tells of blocks whose state is kept. */
    bool needs_states, tells_states;
    uint64_t *hashes; // [blocks]
    size_t blocks, hash_room;
    int32_t *ids; // of all of them
    size_t id_count, id_room, block_tokens;
    bool is_first; // the first of them begins a text
    uint64_t parent;
    cot_buffer salt; // of that text
} cot_kv_batch;

void cot_kv_batch_store(cot_kv_batch *batch, cot_kv_batch_group group, const cot_cache_block *block);
void cot_kv_batch_remove(cot_kv_batch *batch, cot_kv_batch_group group, uint64_t hash);
void cot_kv_batch_clear(cot_kv_batch *batch);
bool cot_kv_batch_is_empty(const cot_kv_batch *batch);
size_t cot_kv_batch_bytes(const cot_kv_batch *batch); // of what is gathered, about
/* Appends the batch to `payload`, and begins a new one. False when memory ran out for any of it. */
bool cot_kv_batch_take(cot_kv_batch *batch, double time_s, int rank, cot_buffer *payload);
void cot_kv_batch_free(cot_kv_batch *batch);

#endif
