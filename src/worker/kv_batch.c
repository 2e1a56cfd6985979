#include "worker/kv_batch.h"

#include "worker/payload.h"

enum { MOST_BLOCKS = 1024 };

/* One entry a block: what its hash depends on besides ids. As vLLM has it a text's salt is its first block's. */
static int pack_extra_keys(msgpack_packer *to, const cot_kv_batch *b)
{
    int failed = cot_payload_text(to, "extra_keys") | msgpack_pack_array(to, b->blocks);
    for (size_t i = 0; i < b->blocks; i++)
        if (i || !b->salt.bytes)
            failed |= msgpack_pack_nil(to);
        else
            failed |= msgpack_pack_array(to, 1) | msgpack_pack_str_with_body(to, b->salt.data, b->salt.bytes);
    return failed;
}

static int pack_hashes(msgpack_packer *to, const cot_kv_batch *b)
{
    int failed = cot_payload_text(to, "block_hashes") | msgpack_pack_array(to, b->blocks);
    for (size_t i = 0; i < b->blocks; i++) failed |= msgpack_pack_uint64(to, b->hashes[i]);
    return failed;
}

static int pack_medium(msgpack_packer *to)
{
    return cot_payload_text(to, "medium") |
           cot_payload_text(to, "GPU"); // vLLM's word for what is computed from, CPUs' too
}

/* Keys and values are the group that is meant where none is told. */
static int pack_group(msgpack_packer *to, const cot_kv_batch *b)
{
    return b->group == COT_KV_BATCH_STATES
               ? cot_payload_text(to, "group_idx") | msgpack_pack_int(to, (int)b->group)
               : 0;
}

static int pack_stored(msgpack_packer *to, const cot_kv_batch *b)
{
    const bool states = b->group == COT_KV_BATCH_STATES;
    int failed = msgpack_pack_map(to, states ? 11 : 9) | cot_payload_text(to, "type") |
                 cot_payload_text(to, "BlockStored") | pack_hashes(to, b) |
                 cot_payload_text(to, "parent_block_hash");
    failed |= b->is_first ? msgpack_pack_nil(to) : msgpack_pack_uint64(to, b->parent);
    failed |= cot_payload_text(to, "token_ids") | msgpack_pack_array(to, b->id_count);
    for (size_t i = 0; i < b->id_count; i++) failed |= msgpack_pack_int32(to, b->ids[i]);
    failed |= cot_payload_text(to, "block_size") | msgpack_pack_uint64(to, b->block_tokens);
    failed |= cot_payload_text(to, "lora_id") | msgpack_pack_nil(to);
    failed |= pack_medium(to);
    failed |= cot_payload_text(to, "lora_name") | msgpack_pack_nil(to);
    failed |= pack_extra_keys(to, b) | pack_group(to, b);
    if (states) failed |= cot_payload_text(to, "kv_cache_spec_kind") | cot_payload_text(to, "mamba");
    return failed;
}

static int pack_removed(msgpack_packer *to, const cot_kv_batch *b)
{
    return msgpack_pack_map(to, b->group == COT_KV_BATCH_STATES ? 4 : 3) | cot_payload_text(to, "type") |
           cot_payload_text(to, "BlockRemoved") | pack_hashes(to, b) | pack_medium(to) | pack_group(to, b);
}

/* Packs what is open. */
static void end_event(cot_kv_batch *b)
{
    msgpack_packer to = cot_payload_packer(&b->events);
    if (b->open == COT_KV_BATCH_NOTHING) return;
    b->failed |= (b->open == COT_KV_BATCH_STORED ? pack_stored(&to, b) : pack_removed(&to, b)) != 0;
    b->count++;
    b->open = COT_KV_BATCH_NOTHING;
    b->blocks = b->id_count = b->salt.bytes = 0;
}

static void add_hash(cot_kv_batch *b, uint64_t hash)
{
    void *grown = b->hashes;
    if (!cot_grow(&grown, &b->hash_room, b->blocks + 1, sizeof *b->hashes)) {
        b->failed = true;
        return;
    }
    b->hashes = grown;
    b->hashes[b->blocks++] = hash;
}

static void add_ids(cot_kv_batch *b, const cot_cache_block *block)
{
    void *grown = b->ids;
    if (!cot_grow(&grown, &b->id_room, b->id_count + block->tokens, sizeof *b->ids)) {
        b->failed = true;
        return;
    }
    b->ids = grown;
    memcpy(b->ids + b->id_count, block->ids, block->tokens * sizeof *b->ids);
    b->id_count += block->tokens;
}

/* Blocks of a group from one behind `parent` on, or from a text's first. */
static void begin_stored(cot_kv_batch *b, cot_kv_batch_group group, const cot_cache_block *block)
{
    end_event(b);
    b->open = COT_KV_BATCH_STORED;
    b->group = group;
    b->is_first = block->is_first;
    b->parent = block->parent;
    b->block_tokens = block->tokens;
    if (block->salt_bytes) b->failed |= !cot_buffer_append(&b->salt, block->salt, block->salt_bytes);
    *(group == COT_KV_BATCH_STATES ? &b->tells_states : &b->needs_states) |= block->needs_state;
}

void cot_kv_batch_store(cot_kv_batch *b, cot_kv_batch_group group, const cot_cache_block *block)
{
    const bool follows = b->open == COT_KV_BATCH_STORED && b->group == group && !block->is_first &&
                         b->blocks && b->blocks < MOST_BLOCKS && b->hashes[b->blocks - 1] == block->parent;
    if (!follows) begin_stored(b, group, block);
    add_hash(b, block->hash);
    add_ids(b, block);
}

void cot_kv_batch_remove(cot_kv_batch *b, cot_kv_batch_group group, uint64_t hash)
{
    if (b->open != COT_KV_BATCH_REMOVED || b->group != group || b->blocks >= MOST_BLOCKS) end_event(b);
    b->open = COT_KV_BATCH_REMOVED;
    b->group = group;
    add_hash(b, hash);
}

void cot_kv_batch_clear(cot_kv_batch *b)
{
    end_event(b);
    msgpack_packer to = cot_payload_packer(&b->events);
    b->failed |= (msgpack_pack_map(&to, 1) | cot_payload_text(&to, "type") |
                  cot_payload_text(&to, "AllBlocksCleared")) != 0;
    b->count++;
}

bool cot_kv_batch_is_empty(const cot_kv_batch *b)
{
    return !b->count && b->open == COT_KV_BATCH_NOTHING;
}

size_t cot_kv_batch_bytes(const cot_kv_batch *b)
{
    return b->events.bytes + b->blocks * sizeof *b->hashes + b->id_count * sizeof *b->ids;
}

bool cot_kv_batch_take(cot_kv_batch *b, double time_s, int rank, cot_buffer *payload)
{
    if (b->needs_states && !b->tells_states)
        begin_stored(b, COT_KV_BATCH_STATES, &(cot_cache_block){.is_first = true, .tokens = b->block_tokens});
    end_event(b);
    msgpack_packer to = cot_payload_packer(payload);
    bool failed = b->failed;
    failed |= msgpack_pack_array(&to, 3) || msgpack_pack_double(&to, time_s) ||
              msgpack_pack_array(&to, b->count) ||
              !cot_buffer_append(payload, b->events.data, b->events.bytes) || msgpack_pack_int(&to, rank);
    b->events.bytes = b->count = 0;
    b->failed = b->needs_states = b->tells_states = false;
    return !failed;
}

void cot_kv_batch_free(cot_kv_batch *b)
{
    cot_buffer_free(&b->events);
    cot_buffer_free(&b->salt);
    free(b->hashes);
    free(b->ids);
    *b = (cot_kv_batch){0};
}
