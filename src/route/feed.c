#include "route/feed.h"

#include "base/buffer.h"
#include "base/error.h"
#include "coterie/request.h"
#include "route/aliases.h"
#include "route/assumed.h"
#include "route/events.h"
#include "route/groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct waiting {
    uint64_t number;
    double seconds; // when it was published; HUGE_VAL: it cannot be read
    size_t bytes;
    void *data;
} waiting;

struct cot_route_feed {
    cot_route_index *index;
    size_t target, block_tokens;
    bool has_snapshot, had_snapshot; // now; at first, until one came that could not be read
    cot_route_aliases aliases;
    cot_route_groups groups;
    cot_route_aliases names;   // of keys, the other way round, where groups beside the index's are told of
    cot_route_assumed assumed; // of the blocks that the target is said to hold
    uint64_t next;             // the number of the batch that is to be applied next
    double seconds;            // when the last one applied was published
    bool unsure;               // all was forgotten: the target holds more than what comes tells of
    int64_t
        older_since_ns; // since when only batches came that were published before the last one applied; INT64_MIN: none
    cot_route_wants wants;
    int64_t since_ns; // of a gap
    waiting *waiting; // [waiting_count] by number
    size_t waiting_count, waiting_room, waiting_bytes;
    uint64_t *keys, *sequences; // of an event's blocks
    size_t key_room, sequence_room;
    cot_route_feed_figures figures;
};

cot_status cot_route_feed_open(cot_route_feed **feed, cot_route_index *index, size_t target,
                               size_t block_tokens, bool has_snapshot, cot_error *error)
{
    cot_route_feed *f = *feed = calloc(1, sizeof *f);
    if (!f) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a target's KV events");
    f->index = index;
    f->target = target;
    f->block_tokens = block_tokens;
    f->has_snapshot = f->had_snapshot = has_snapshot;
    f->seconds = -HUGE_VAL;
    f->older_since_ns = INT64_MIN;
    return COT_OK;
}

static void drop_waiting(cot_route_feed *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        f->waiting_bytes -= f->waiting[i].bytes;
        free(f->waiting[i].data);
    }
    f->waiting_count -= count;
    memmove(f->waiting, f->waiting + count, f->waiting_count * sizeof *f->waiting);
}

void cot_route_feed_close(cot_route_feed *f)
{
    if (!f) return;
    if (f->waiting) drop_waiting(f, f->waiting_count);
    cot_route_aliases_free(&f->aliases);
    cot_route_aliases_free(&f->names);
    cot_route_groups_clear(&f->groups);
    cot_route_assumed_free(&f->assumed);
    free(f->waiting);
    free(f->keys);
    free(f->sequences);
    free(f);
}

static void forget(cot_route_feed *f)
{
    cot_route_index_clear(f->index, f->target);
    cot_route_aliases_free(&f->aliases);
    cot_route_aliases_free(&f->names);
    cot_route_groups_clear(&f->groups);
    cot_route_assumed_free(&f->assumed);
}

/* ---- events ---- */

/* The sequence hash and key that a name stands for. Names without an alias are public hashes. */
static cot_route_alias resolve(const cot_route_feed *f, uint64_t name)
{
    const cot_route_alias *alias = cot_route_aliases_find(&f->aliases, name);
    return alias ? *alias : (cot_route_alias){name, name, name};
}

static bool make_keys(cot_route_feed *f, const cot_route_event *e, uint64_t parent)
{
    void *keys = f->keys, *sequences = f->sequences;
    const bool room = cot_grow(&keys, &f->key_room, e->told + 1, sizeof *f->keys) &
                      cot_grow(&sequences, &f->sequence_room, e->told + 1, sizeof *f->sequences);
    f->keys = keys;
    f->sequences = sequences;
    if (!room) return false;
    bool first = !e->has_parent && !e->salt_bytes;
    if (e->salt_bytes) parent = cot_cache_salt_hash(e->salt, e->salt_bytes);
    for (size_t i = 0; i < e->told; i++, first = false) {
        const uint64_t own = cot_cache_local_hash(e->ids + i * e->block_tokens, e->block_tokens);
        parent = f->sequences[i] = first ? own : cot_cache_sequence_hash(parent, own);
        f->keys[i] = cot_route_key(parent, e->lora);
    }
    return true;
}

/* How many of the first blocks have names that do not stand for other blocks. */
static size_t count_honest(const cot_route_feed *f, const cot_route_event *e)
{
    size_t n = 0;
    while (n < e->told) {
        const cot_route_alias *known = cot_route_aliases_find(&f->aliases, e->hashes[n]);
        if (known ? known->key != f->keys[n]
                  : e->hashes[n] != f->keys[n] && cot_route_index_holds(f->index, f->target, e->hashes[n]))
            break;
        n++;
    }
    return n;
}

/* By which name the engine knows the block of a key. */
static bool name_key(cot_route_feed *f, const cot_route_alias *alias)
{
    const cot_route_alias back = {alias->key, alias->name, alias->name};
    return cot_route_aliases_find(&f->names, back.name) || cot_route_aliases_add(&f->names, back);
}

static cot_status name_blocks(cot_route_feed *f, const cot_route_event *e, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const cot_route_alias alias = {e->hashes[i], f->sequences[i], f->keys[i]};
        if (alias.name == alias.key || cot_route_aliases_find(&f->aliases, alias.name)) continue;
        if (!cot_route_aliases_add(&f->aliases, alias)) return COT_OUT_OF_MEMORY;
        if (f->groups.count && !name_key(f, &alias)) return COT_OUT_OF_MEMORY;
    }
    return COT_OK;
}

/* Those of another size than the index's keys are of are refused and counted, by their group. */
static bool has_right_size(cot_route_feed *f, const cot_route_event *e)
{
    if (e->block_tokens == f->block_tokens) return true;
    f->figures.wrong_size += e->count;
    f->figures.wrong_size_groups |= UINT32_C(1) << e->group;
    return false;
}

/* Blocks of a group beside the index's. */
static cot_status store_beside(cot_route_feed *f, const cot_route_event *e)
{
    if (!has_right_size(f, e)) return COT_OK;
    for (size_t i = 0; !f->groups.count && i < f->aliases.room; i++) // the first of them
        if (f->aliases.taken[i] && !name_key(f, &f->aliases.slot[i])) return COT_OUT_OF_MEMORY;
    f->figures.other_groups += e->count;
    return cot_route_groups_store(&f->groups, e) ? COT_OK : COT_OUT_OF_MEMORY;
}

static cot_status store(cot_route_feed *f, const cot_route_event *e)
{
    if (!has_right_size(f, e)) return COT_OK;
    const cot_route_alias parent = resolve(f, e->parent);
    if (!make_keys(f, e, parent.sequence)) return COT_OUT_OF_MEMORY;
    const size_t honest = count_honest(f, e);
    cot_route_stored stored = {0};
    const cot_status status = cot_route_index_store(f->index, f->target, e->has_parent ? &parent.key : NULL,
                                                    f->keys, honest, &stored);
    f->figures.stored += stored.stored;
    f->figures.unknown_parent += stored.unknown_parent;
    f->figures.collided += stored.collided + (e->told - honest);
    f->figures.not_hashed += e->count - e->told;
    const size_t held = stored.stored + stored.again;
    for (size_t i = 0; i < held; i++) cot_route_assumed_drop(&f->assumed, f->keys[i]);
    return status ? status : name_blocks(f, e, held);
}

static void remove_blocks(cot_route_feed *f, const cot_route_event *e)
{
    for (size_t i = 0; i < e->count; i++) {
        const cot_route_alias alias = resolve(f, e->hashes[i]);
        f->figures.removed += cot_route_index_remove(f->index, f->target, &alias.key, 1);
        const cot_route_alias *back = cot_route_aliases_find(&f->names, alias.key);
        if (back && back->key == e->hashes[i]) cot_route_aliases_remove(&f->names, alias.key);
        if (cot_route_aliases_find(&f->aliases, e->hashes[i]))
            cot_route_aliases_remove(&f->aliases, e->hashes[i]);
    }
}

static cot_status apply(cot_route_feed *f, const cot_route_batch *batch)
{
    if (cot_route_groups_choose(&f->groups, batch)) forget(f);
    for (size_t i = 0; i < batch->count; i++) {
        const cot_route_event *e = &batch->events[i];
        if (e->kind == COT_ROUTE_CLEARED) {
            forget(f);
            f->unsure = false;
        }
        const bool is_base = e->group == f->groups.base;
        if (e->kind == COT_ROUTE_REMOVED && is_base) remove_blocks(f, e);
        if (e->kind == COT_ROUTE_REMOVED && !is_base) cot_route_groups_remove(&f->groups, e);
        const cot_status status = e->kind != COT_ROUTE_STORED ? COT_OK
                                  : is_base                   ? store(f, e)
                                                              : store_beside(f, e);
        if (status) return status;
    }
    f->seconds = batch->seconds;
    f->figures.batches++;
    f->figures.unknown_events += batch->unknown;
    return COT_OK;
}

/* ---- order ---- */

static cot_status lose(cot_route_feed *f, cot_status status, cot_error *error)
{
    forget(f);
    f->unsure = true;
    f->figures.forgotten++;
    return status == COT_OUT_OF_MEMORY ? cot_fail(error, status, "out of memory for a target's blocks")
                                       : status;
}

/* A batch whose turn it is, as it was read (`read`: whether it could be). */
static cot_status apply_next(cot_route_feed *f, const cot_route_batch *batch, cot_status read,
                             cot_error *error)
{
    f->next++;
    if (read) {
        f->figures.unread++;
        return lose(f, read, error);
    }
    const cot_status status = apply(f, batch);
    return status ? lose(f, status, error) : COT_OK;
}

static cot_status apply_bytes(cot_route_feed *f, const void *bytes, size_t count, size_t most,
                              cot_error *error)
{
    cot_route_batch batch;
    const cot_status read = cot_route_batch_read(&batch, bytes, count, most, error);
    const cot_status status = apply_next(f, &batch, read, error);
    if (!read) cot_route_batch_free(&batch);
    return status;
}

/* What waits and was published before the last one applied is of an engine that is gone since. */
static void drop_outdated(cot_route_feed *f)
{
    size_t left = 0;
    for (size_t i = 0; i < f->waiting_count; i++) {
        if (f->waiting[i].seconds >= f->seconds) {
            f->waiting[left++] = f->waiting[i];
            continue;
        }
        f->figures.passed_over++;
        f->waiting_bytes -= f->waiting[i].bytes;
        free(f->waiting[i].data);
    }
    f->waiting_count = left;
}

/* Applies what waits, as far as nothing is missing. The first error. */
static cot_status catch_up(cot_route_feed *f, cot_error *error)
{
    cot_status first = COT_OK;
    size_t n = 0;
    drop_outdated(f);
    for (; n < f->waiting_count && f->waiting[n].number <= f->next; n++) {
        if (f->waiting[n].number < f->next) continue;
        const cot_status status = apply_bytes(f, f->waiting[n].data, f->waiting[n].bytes,
                                              COT_ROUTE_MOST_BATCH_BYTES, first ? NULL : error);
        if (!first) first = status;
    }
    if (n) drop_waiting(f, n);
    if (!f->waiting_count) f->wants = COT_ROUTE_WANTS_NOTHING;
    return first;
}

/* What is missing does not come: all before it is forgotten, what comes behind it counts. */
static cot_status give_up(cot_route_feed *f, cot_error *error)
{
    lose(f, COT_OK, NULL);
    if (f->waiting_count) f->next = f->waiting[0].number;
    return catch_up(f, error);
}

static cot_status wait_for_others(cot_route_feed *f, uint64_t number, double seconds, const void *bytes,
                                  size_t count, int64_t now_ns, cot_error *error)
{
    size_t at = f->waiting_count;
    while (at && f->waiting[at - 1].number >= number) at--;
    if (at < f->waiting_count && f->waiting[at].number == number) {
        f->figures.passed_over++;
        return COT_OK;
    }
    void *grown = f->waiting, *data = malloc(count + 1);
    if (!data || !cot_grow(&grown, &f->waiting_room, f->waiting_count + 1, sizeof *f->waiting)) {
        free(data);
        if (f->waiting_count) drop_waiting(f, f->waiting_count);
        f->next = number + 1; // this one is lost, too
        f->wants = COT_ROUTE_WANTS_NOTHING;
        return lose(f, COT_OUT_OF_MEMORY, error);
    }
    f->waiting = grown;
    if (count) memcpy(data, bytes, count);
    memmove(f->waiting + at + 1, f->waiting + at, (f->waiting_count - at) * sizeof *f->waiting);
    f->waiting[at] = (waiting){number, seconds, count, data};
    f->waiting_count++;
    f->waiting_bytes += count;
    if (f->wants == COT_ROUTE_WANTS_NOTHING) {
        f->wants = COT_ROUTE_WANTS_REPLAY;
        f->since_ns = now_ns;
        f->figures.gaps++;
    }
    const bool full =
        f->waiting_bytes > COT_ROUTE_MOST_WAITING_BYTES || f->waiting_count > COT_ROUTE_MOST_WAITING;
    return full ? give_up(f, error) : COT_OK;
}

void cot_route_feed_restart(cot_route_feed *f)
{
    forget(f);
    f->groups = (cot_route_groups){0};
    if (f->waiting_count) drop_waiting(f, f->waiting_count);
    f->has_snapshot = f->had_snapshot;
    f->next = 0;
    f->wants = COT_ROUTE_WANTS_NOTHING;
    f->unsure = false;
    f->figures.restarts++;
}

/* Whether a batch that was published before the last one applied is another engine's, gone since. When only such ones come
 * for a while the engine's clock was set back. */
static bool is_outdated(cot_route_feed *f, const cot_route_batch *batch, int64_t now_ns)
{
    if (batch->seconds >= f->seconds) {
        f->older_since_ns = INT64_MIN;
        return false;
    }
    if (f->older_since_ns == INT64_MIN) f->older_since_ns = now_ns;
    if (now_ns - f->older_since_ns < COT_ROUTE_GAP_NS) return true;
    lose(f, COT_OK, NULL);
    f->seconds = batch->seconds;
    return false;
}

static cot_status take(cot_route_feed *f, uint64_t number, const void *bytes, size_t count,
                       const cot_route_batch *batch, cot_status read, int64_t now_ns, cot_error *error)
{
    if (number < f->next && !read && batch->seconds > f->seconds) cot_route_feed_restart(f);
    if (number < f->next || (!read && is_outdated(f, batch, now_ns))) {
        f->figures.passed_over++;
        return COT_OK;
    }
    if (number > f->next)
        return wait_for_others(f, number, read ? HUGE_VAL : batch->seconds, bytes, count, now_ns, error);
    const cot_status status = apply_next(f, batch, read, error), later = catch_up(f, status ? NULL : error);
    return status ? status : later;
}

cot_status cot_route_feed_live(cot_route_feed *f, uint64_t number, const void *bytes, size_t count,
                               int64_t now_ns, cot_error *error)
{
    cot_route_batch batch;
    const cot_status read = cot_route_batch_read(&batch, bytes, count, COT_ROUTE_MOST_BATCH_BYTES, error);
    const cot_status status = take(f, number, bytes, count, &batch, read, now_ns, error);
    if (!read) cot_route_batch_free(&batch);
    return status;
}

cot_status cot_route_feed_replayed(cot_route_feed *f, uint64_t number, const void *bytes, size_t count,
                                   int64_t now_ns, cot_error *error)
{
    if (number >= f->next) return cot_route_feed_live(f, number, bytes, count, now_ns, error);
    f->figures.passed_over++;
    return COT_OK;
}

void cot_route_feed_replay_ended(cot_route_feed *f)
{
    if (f->wants != COT_ROUTE_WANTS_REPLAY) return;
    if (f->has_snapshot)
        f->wants = COT_ROUTE_WANTS_SNAPSHOT;
    else
        give_up(f, NULL);
}

cot_status cot_route_feed_snapshot(cot_route_feed *f, uint64_t batches, const void *bytes, size_t count,
                                   cot_error *error)
{
    if (batches < f->next) { // older than what was applied
        f->figures.passed_over++;
        return COT_OK;
    }
    forget(f);
    cot_status status = apply_bytes(f, bytes, count, COT_ROUTE_MOST_SNAPSHOT_BYTES, error);
    f->next = batches;
    f->unsure = status;
    if (status == COT_MALFORMED) f->has_snapshot = false; // the next one would be alike
    const cot_status later = catch_up(f, status ? NULL : error);
    return status ? status : later;
}

/* ---- what can be reused ---- */

typedef struct named {
    const cot_route_feed *feed;
    const uint64_t *keys;
} named;

static uint64_t name_of(const void *context, size_t i, bool *assumed)
{
    const named *of = context;
    const cot_route_alias *name = cot_route_aliases_find(&of->feed->names, of->keys[i]);
    *assumed = cot_route_assumed_has(&of->feed->assumed, of->keys[i]);
    return name ? name->key : of->keys[i];
}

uint32_t cot_route_feed_reusable(const cot_route_feed *f, const uint64_t *keys, uint32_t depth)
{
    return f->groups.count ? cot_route_groups_match(&f->groups, depth, name_of, &(named){f, keys}) : depth;
}

/* ---- what was routed there ---- */

cot_status cot_route_feed_assume(cot_route_feed *f, const uint64_t *keys, size_t count, int64_t now_ns)
{
    size_t known = 0; // and told
    while (known < count && cot_route_index_holds(f->index, f->target, keys[known]) &&
           !cot_route_assumed_has(&f->assumed, keys[known]))
        known++;
    for (size_t i = known; i < count; i++) {
        cot_route_stored stored = {0};
        if (cot_route_index_store(f->index, f->target, i ? &keys[i - 1] : NULL, &keys[i], 1, &stored))
            return COT_OUT_OF_MEMORY;
        if (stored.collided) break;
        if (stored.again && !cot_route_assumed_has(&f->assumed, keys[i])) continue;
        if (cot_route_assumed_add(&f->assumed, keys[i], now_ns)) continue;
        if (stored.stored) cot_route_index_remove(f->index, f->target, &keys[i], 1);
        return COT_OUT_OF_MEMORY;
    }
    return COT_OK;
}

static void expire(cot_route_feed *f, int64_t now_ns)
{
    const bool tells = f->figures.batches && !f->unsure;
    uint64_t key;
    while (cot_route_assumed_expire(
        &f->assumed, now_ns - (tells ? COT_ROUTE_ASSUMED_TOLD_NS : COT_ROUTE_ASSUMED_NS), &key))
        f->figures.expired += cot_route_index_remove(f->index, f->target, &key, 1);
}

bool cot_route_feed_tick(cot_route_feed *f, int64_t now_ns, uint64_t *from, uint64_t *until)
{
    expire(f, now_ns);
    if (f->wants == COT_ROUTE_WANTS_NOTHING || now_ns - f->since_ns < COT_ROUTE_GAP_NS) return false;
    *from = f->next;
    *until = f->waiting[0].number;
    f->since_ns = now_ns; // of the next gap that waits, if there is one
    give_up(f, NULL);
    return true;
}

cot_route_wants cot_route_feed_asks(const cot_route_feed *f, uint64_t *from)
{
    *from = f->next;
    return f->wants || !f->unsure || !f->has_snapshot ? f->wants : COT_ROUTE_WANTS_SNAPSHOT;
}

const cot_route_feed_figures *cot_route_feed_measure(const cot_route_feed *f)
{
    return &f->figures;
}
