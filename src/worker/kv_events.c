#include "worker/kv_events.h"

#include "base/error.h"
#include "net/publisher.h"
#include "net/wake.h"
#include "worker/kv_batch.h"
#include "worker/payload.h"
#include "worker/ring.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SALT_BYTES = 1024,      // of a salt that are told
    BATCH_BYTES = 256 << 10 // from which on a batch is sent, whatever is still to come
};

/* What goes through the ring; of a STORED one ids and salt stand behind it, of WHOLE and ANEW a pointer to a buffer of
 * STORED ones, which the reader frees. */
typedef struct entry {
    enum { STORED, REMOVED, WHOLE, ANEW } kind;
    int32_t home;
    uint64_t hash, parent;
    uint32_t tokens, salt_bytes;
    bool is_first, needs_state;
    cot_kv_batch_group group; // of STORED and REMOVED ones
} entry;

enum {
    MOST_TOKENS = 64,
    ENTRY_BYTES = sizeof(entry) + MOST_TOKENS * sizeof(int32_t) + SALT_BYTES,
    SPARE = 2 * (sizeof(entry) + sizeof(void *) + 8) // for a snapshot, whatever came before
};

struct cot_kv_events {
    cot_kv_events_owner owner;
    void *context;                // of the publishers
    int homes;                    // 1 to 64
    cot_publisher *publisher[64]; // [homes]
    cot_ring ring;
    cot_wake news;       // there is something in the ring
    atomic_bool wanted;  // a snapshot
    atomic_bool is_lost; // events are missing, until the whole cache has gone the same way
    bool has_news;       // of the cache's thread: something was put since it was last told
    /* The loop's thread alone. */
    cot_kv_batch batch[64]; // [homes]
    cot_buffer payload;
    bool asked; // a snapshot is under way
    uint64_t batches, losses;
    _Alignas(8) uint8_t entry[ENTRY_BYTES]; // the one that is read
};

/* ---- the cache's thread ---- */

/* The bytes of a salt that are told: of a long one the first, up to the end of a character. */
static size_t told_bytes(const char *salt, size_t bytes)
{
    if (bytes <= SALT_BYTES) return bytes;
    for (bytes = SALT_BYTES; bytes && ((unsigned char)salt[bytes] & 0xc0) == 0x80; bytes--) {}
    return bytes;
}

static entry stored_entry(cot_kv_batch_group group, const cot_cache_block *block)
{
    return (entry){.kind = STORED,
                   .group = group,
                   .needs_state = block->needs_state,
                   .home = block->home,
                   .hash = block->hash,
                   .parent = block->parent,
                   .tokens = (uint32_t)block->tokens,
                   .salt_bytes = (uint32_t)told_bytes(block->salt, block->salt_bytes),
                   .is_first = block->is_first};
}

/* Where there is no room, or something is missing already, it is lost. */
static void put(cot_kv_events *kv, const cot_ring_part *parts, size_t count)
{
    if (atomic_load(&kv->is_lost)) return;
    if (cot_ring_put(&kv->ring, parts, count, SPARE))
        kv->has_news = true;
    else
        atomic_store(&kv->is_lost, true);
}

static void put_stored(cot_kv_events *kv, cot_kv_batch_group group, const cot_cache_block *block)
{
    const entry head = stored_entry(group, block);
    const cot_ring_part parts[] = {{&head, sizeof head},
                                   {block->ids, block->tokens * sizeof *block->ids},
                                   {block->salt, head.salt_bytes}};
    put(kv, parts, 3);
}

static void put_removed(cot_kv_events *kv, cot_kv_batch_group group, int home, uint64_t hash)
{
    const entry head = {.kind = REMOVED, .group = group, .home = home, .hash = hash};
    put(kv, &(cot_ring_part){&head, sizeof head}, 1);
}

static void on_stored(void *context, const cot_cache_block *block)
{
    put_stored(context, COT_KV_BATCH_KEYS, block);
}

static void on_removed(void *context, int home, uint64_t hash)
{
    put_removed(context, COT_KV_BATCH_KEYS, home, hash);
}

static void on_state_stored(void *context, const cot_cache_block *block)
{
    put_stored(context, COT_KV_BATCH_STATES, block);
}

static void on_state_removed(void *context, int home, uint64_t hash)
{
    put_removed(context, COT_KV_BATCH_STATES, home, hash);
}

typedef struct listing {
    cot_buffer *to;
    bool failed;
} listing;

static void list_one(listing *l, cot_kv_batch_group group, const cot_cache_block *block)
{
    const entry head = stored_entry(group, block);
    l->failed |= !cot_buffer_append(l->to, &head, sizeof head) ||
                 !cot_buffer_append(l->to, block->ids, block->tokens * sizeof *block->ids) ||
                 !cot_buffer_append(l->to, block->salt, head.salt_bytes);
}

static void list_block(void *context, const cot_cache_block *block)
{
    list_one(context, COT_KV_BATCH_KEYS, block);
}

static void list_state(void *context, const cot_cache_block *block)
{
    list_one(context, COT_KV_BATCH_STATES, block);
}

/* All that is there, as one entry: a NULL for its buffer where memory ran out. */
static bool put_all(cot_kv_events *kv, int kind)
{
    cot_buffer *all = calloc(1, sizeof *all);
    listing l = {all, !all};
    const cot_cache_events events = {.context = &l, .on_stored = list_block, .on_state_stored = list_state};
    if (all) l.failed |= kv->owner.list(kv->owner.context, &events) != COT_OK || l.failed;
    if (l.failed && all) {
        cot_buffer_free(all);
        free(all);
        all = NULL;
    }
    const entry head = {.kind = kind};
    const cot_ring_part parts[] = {{&head, sizeof head}, {&all, sizeof(void *)}};
    if (kind == WHOLE || all) {
        if (cot_ring_put(&kv->ring, parts, 2, 0)) return kv->has_news = true;
    }
    if (all) cot_buffer_free(all);
    free(all);
    return false;
}

void cot_kv_events_flush(cot_kv_events *kv)
{
    if (atomic_load(&kv->is_lost) && cot_ring_is_empty(&kv->ring) && put_all(kv, ANEW))
        atomic_store(&kv->is_lost, false);
    // while events are missing, a snapshot would not be what its number says
    if (!atomic_load(&kv->is_lost) && atomic_exchange(&kv->wanted, false)) put_all(kv, WHOLE);
    if (kv->has_news) cot_wake_up(&kv->news);
    kv->has_news = false;
}

cot_cache_events cot_kv_events_watcher(cot_kv_events *kv)
{
    return (cot_cache_events){.context = kv,
                              .on_stored = on_stored,
                              .on_removed = on_removed,
                              .on_state_stored = on_state_stored,
                              .on_state_removed = on_state_removed};
}

/* ---- the loop's thread ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void send_batch(cot_kv_events *kv, int home)
{
    if (cot_kv_batch_is_empty(&kv->batch[home])) return;
    kv->payload.bytes = 0;
    if (cot_kv_batch_take(&kv->batch[home], seconds_now(), home, &kv->payload)) {
        cot_publisher_send(kv->publisher[home], kv->payload.data, kv->payload.bytes);
        kv->batches++;
    } else
        atomic_store(&kv->is_lost, true); // memory ran out
}

static void send_batches(cot_kv_events *kv)
{
    for (int home = 0; home < kv->homes; home++) send_batch(kv, home);
}

/* The block of an entry, which stands at `bytes`; *count are its bytes. */
static cot_cache_block block_of(const uint8_t *bytes, entry *head, size_t *count)
{
    memcpy(head, bytes, sizeof *head);
    const uint8_t *ids = bytes + sizeof *head, *salt = ids + head->tokens * sizeof(int32_t);
    *count = sizeof *head + head->tokens * sizeof(int32_t) + head->salt_bytes;
    return (cot_cache_block){.home = head->home,
                             .is_first = head->is_first,
                             .needs_state = head->needs_state,
                             .hash = head->hash,
                             .parent = head->parent,
                             .ids = (const int32_t *)(const void *)ids,
                             .tokens = head->tokens,
                             .salt = salt,
                             .salt_bytes = head->salt_bytes};
}

/* Adds all blocks of a buffer to the batches of their ranks. */
static void store_all(cot_kv_events *kv, cot_kv_batch *batches, const cot_buffer *all, bool sends)
{
    entry head;
    size_t count;
    for (size_t at = 0; at < all->bytes; at += count) {
        // behind a salt an entry stands anywhere: its numbers are copied to where they may stand
        const size_t left = all->bytes - at;
        memcpy(kv->entry, all->data + at, left < ENTRY_BYTES ? left : ENTRY_BYTES);
        const cot_cache_block block = block_of(kv->entry, &head, &count);
        cot_kv_batch_store(&batches[head.home], head.group, &block);
        if (sends && cot_kv_batch_bytes(&batches[head.home]) > BATCH_BYTES) send_batch(kv, head.home);
    }
}

static void tell_snapshot(cot_kv_events *kv, const cot_buffer *all)
{
    cot_kv_batch *batches = calloc(sizeof kv->batch / sizeof *kv->batch, sizeof *batches);
    bool failed = !batches || !all;
    kv->asked = false;
    kv->payload.bytes = 0;
    msgpack_packer to = cot_payload_packer(&kv->payload);
    if (!failed) store_all(kv, batches, all, false);
    failed = failed || msgpack_pack_map(&to, 1) || cot_payload_text(&to, "ranks") ||
             msgpack_pack_array(&to, (size_t)kv->homes);
    for (int home = 0; home < kv->homes && !failed; home++)
        failed = msgpack_pack_map(&to, 3) || cot_payload_text(&to, "data_parallel_rank") ||
                 msgpack_pack_int(&to, home) || cot_payload_text(&to, "seq") ||
                 msgpack_pack_int64(&to, cot_publisher_last(kv->publisher[home])) ||
                 cot_payload_text(&to, "batch") ||
                 !cot_kv_batch_take(&batches[home], seconds_now(), home, &kv->payload);
    for (int home = 0; home < kv->homes && batches; home++) cot_kv_batch_free(&batches[home]);
    free(batches);
    kv->owner.on_snapshot(kv->owner.follower, failed ? NULL : kv->payload.data, kv->payload.bytes);
    if (kv->payload.capacity > 16 * BATCH_BYTES) cot_buffer_free(&kv->payload);
}

static void take_all(cot_kv_events *kv, const entry *head)
{
    cot_buffer *all;
    memcpy(&all, kv->entry + sizeof *head, sizeof(void *));
    send_batches(kv); // what was before
    if (head->kind == ANEW) {
        kv->losses++;
        for (int home = 0; home < kv->homes; home++) cot_kv_batch_clear(&kv->batch[home]);
        store_all(kv, kv->batch, all, true);
        send_batches(kv);
    } else
        tell_snapshot(kv, all);
    if (all) cot_buffer_free(all);
    free(all);
}

static void take_news(void *context, uint64_t times)
{
    cot_kv_events *kv = context;
    entry head;
    size_t bytes;
    (void)times;
    while (cot_ring_take(&kv->ring, kv->entry, sizeof kv->entry)) {
        const cot_cache_block block = block_of(kv->entry, &head, &bytes);
        if (head.kind == WHOLE || head.kind == ANEW) {
            take_all(kv, &head);
            continue;
        }
        if (head.kind == STORED)
            cot_kv_batch_store(&kv->batch[head.home], head.group, &block);
        else
            cot_kv_batch_remove(&kv->batch[head.home], head.group, head.hash);
        if (cot_kv_batch_bytes(&kv->batch[head.home]) > BATCH_BYTES) send_batch(kv, head.home);
    }
    send_batches(kv);
    if (atomic_load(&kv->is_lost)) kv->owner.wake(kv->owner.context);
}

void cot_kv_events_ask(cot_kv_events *kv)
{
    if (kv->asked) return;
    kv->asked = true;
    atomic_store(&kv->wanted, true);
    kv->owner.wake(kv->owner.context);
}

void cot_kv_events_count(const cot_kv_events *kv, uint64_t *batches, uint64_t *losses)
{
    *batches = kv->batches;
    *losses = kv->losses;
}

/* ---- opening ---- */

static cot_status open_publishers(cot_kv_events *kv, const cot_kv_config *c, struct event_base *base,
                                  cot_error *error)
{
    cot_status status = COT_OK;
    for (int home = 0; home < kv->homes && status == COT_OK; home++) {
        char endpoint[96], replay[96];
        cot_endpoint_write(endpoint, &c->endpoint, home);
        cot_endpoint_write(replay, &c->replay_endpoint, home);
        const cot_publisher_options options = {.endpoint = endpoint,
                                               .replay_endpoint = *c->replay_endpoint.address ? replay : NULL,
                                               .topic = c->topic,
                                               .keep = c->buffer_steps,
                                               .most_unread = c->hwm};
        status = cot_publisher_open(&kv->publisher[home], kv->context, base, &options, error);
    }
    return status;
}

cot_status cot_kv_events_open(cot_kv_events **out, const cot_kv_config *config,
                              const cot_kv_events_owner *owner, struct event_base *base, cot_error *error)
{
    *out = NULL;
    if (!owner->block_tokens)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "there are no events of the KV cache without a prefix cache");
    cot_kv_events *kv = *out = calloc(1, sizeof *kv);
    if (!kv) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for events of the KV cache");
    kv->owner = *owner;
    kv->homes = owner->homes;
    kv->news.fd = -1;
    kv->context = cot_publisher_context_open();
    const size_t entry_bytes = sizeof(entry) + (size_t)owner->block_tokens * sizeof(int32_t) + 4;
    const bool good =
        cot_ring_open(&kv->ring, SPARE + ENTRY_BYTES + (size_t)config->max_queue_size * entry_bytes) &&
        kv->context && cot_wake_open(&kv->news, base, take_news, kv);
    cot_status status =
        good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for events of the KV cache");
    if (status == COT_OK) status = open_publishers(kv, config, base, error);
    if (status == COT_OK) return COT_OK;
    cot_kv_events_close(kv);
    *out = NULL;
    return status;
}

void cot_kv_events_close(cot_kv_events *kv)
{
    if (!kv) return;
    while (kv->ring.bytes && cot_ring_take(&kv->ring, kv->entry, sizeof kv->entry)) {
        entry head;
        cot_buffer *all = NULL;
        memcpy(&head, kv->entry, sizeof head);
        if (head.kind == WHOLE || head.kind == ANEW) memcpy(&all, kv->entry + sizeof head, sizeof(void *));
        if (all) cot_buffer_free(all);
        free(all);
    }
    cot_wake_close(&kv->news);
    for (int home = 0; home < kv->homes; home++) {
        cot_publisher_close(kv->publisher[home]);
        cot_kv_batch_free(&kv->batch[home]);
    }
    cot_publisher_context_close(kv->context);
    cot_ring_close(&kv->ring);
    cot_buffer_free(&kv->payload);
    free(kv);
}
