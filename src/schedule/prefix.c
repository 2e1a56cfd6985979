#include "schedule/prefix.h"

#include "base/error.h"
#include "schedule/step.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- salts ---- */

cot_prefix_salt *cot_prefix_salt_new(const void *data, size_t bytes, bool *failed)
{
    *failed = false;
    if (!bytes) return NULL;
    cot_prefix_salt *salt = bytes < SIZE_MAX - sizeof *salt ? malloc(sizeof *salt + bytes) : NULL;
    *failed = !salt;
    if (!salt) return NULL;
    *salt = (cot_prefix_salt){.references = 1, .bytes = bytes};
    memcpy(salt->data, data, bytes);
    return salt;
}

void cot_prefix_salt_release(cot_prefix_salt *salt)
{
    if (salt && !--salt->references) free(salt);
}

static bool has_salt(const cot_prefix_node *node, const cot_prefix_root *root)
{
    const size_t bytes = node->salt ? node->salt->bytes : 0;
    return bytes == root->salt_bytes && (!bytes || memcmp(node->salt->data, root->salt, bytes) == 0);
}

/* ---- tables ---- */

static uint64_t block_hash(const uint64_t *parent, const int32_t *ids, size_t tokens)
{
    const uint64_t local = cot_cache_local_hash(ids, tokens);
    return parent ? cot_cache_sequence_hash(*parent, local) : local;
}

static int64_t node_count(int64_t pages, int64_t block)
{
    return block ? pages * (COT_KV_PAGE / block) : 0;
}

static size_t bucket_count(int64_t nodes)
{
    size_t buckets = 1;
    while (buckets < (size_t)nodes) buckets *= 2;
    return buckets;
}

size_t cot_prefix_bytes(int64_t pages, int64_t block)
{
    const int64_t nodes = node_count(pages, block);
    return (size_t)nodes * (sizeof(cot_prefix_node) + (size_t)block * sizeof(int32_t)) +
           bucket_count(nodes) * sizeof(int32_t) + (size_t)pages;
}

cot_status cot_prefix_open(cot_prefix_cache *cache, cot_page_pool *pool, int64_t block, cot_error *error)
{
    const int64_t nodes = node_count(pool->pages, block);
    const size_t buckets = bucket_count(nodes);
    *cache = (cot_prefix_cache){.pool = pool,
                                .block = block,
                                .hash = block_hash,
                                .bucket_mask = buckets - 1,
                                .free = -1,
                                .oldest = -1,
                                .newest = -1};
    cache->node = calloc((size_t)nodes + 1, sizeof *cache->node);
    cache->ids = calloc((size_t)(nodes * block) + 1, sizeof *cache->ids);
    cache->bucket = calloc(buckets, sizeof *cache->bucket);
    cache->mark = calloc((size_t)pool->pages + 1, 1);
    if (!cache->node || !cache->ids || !cache->bucket || !cache->mark)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of %lld blocks",
                        (long long)nodes);
    for (size_t b = 0; b < buckets; b++) cache->bucket[b] = -1;
    for (int64_t n = nodes - 1; n >= 0; n--) {
        cache->node[n].older = cache->free;
        cache->free = (int32_t)n;
    }
    return COT_OK;
}

void cot_prefix_close(cot_prefix_cache *cache)
{
    while (cache->nodes) cot_prefix_evict(cache);
    free(cache->node);
    free(cache->ids);
    free(cache->bucket);
    free(cache->mark);
    free(cache->snapshots.of);
    *cache = (cot_prefix_cache){0};
}

/* ---- looking up ---- */

static int32_t *ids_of(const cot_prefix_cache *cache, int32_t node)
{
    return cache->ids + (int64_t)node * cache->block;
}

static uint64_t hash_of(const cot_prefix_cache *cache, const cot_prefix_root *root, int32_t parent,
                        const int32_t *ids)
{
    const size_t tokens = (size_t)cache->block;
    if (parent >= 0) return cache->hash(&cache->node[parent].hash, ids, tokens);
    if (!root->salt_bytes) return cache->hash(NULL, ids, tokens);
    const uint64_t salt = cot_cache_salt_hash(root->salt, root->salt_bytes);
    return cache->hash(&salt, ids, tokens);
}

/* A text has the same hash at every home: homes stand side by side in the table, not in one bucket. */
static int32_t *bucket_of(const cot_prefix_cache *cache, uint64_t hash, int32_t home)
{
    return &cache->bucket[(hash + (uint64_t)home) & cache->bucket_mask];
}

/* A child's home and salt are its parent's. */
static bool is(const cot_prefix_cache *cache, int32_t at, uint64_t hash, const cot_prefix_root *root,
               int32_t parent, const int32_t *ids)
{
    const cot_prefix_node *node = &cache->node[at];
    if (node->hash != hash || node->parent != parent) return false;
    if (parent < 0 && (node->home != root->home || !has_salt(node, root))) return false;
    return memcmp(ids_of(cache, at), ids, (size_t)cache->block * sizeof *ids) == 0;
}

static int32_t find(const cot_prefix_cache *cache, uint64_t hash, const cot_prefix_root *root, int32_t parent,
                    const int32_t *ids)
{
    int32_t node = *bucket_of(cache, hash, root->home);
    while (node >= 0 && !is(cache, node, hash, root, parent, ids)) node = cache->node[node].next;
    return node;
}

int32_t cot_prefix_find(const cot_prefix_cache *cache, const cot_prefix_root *root, int32_t parent,
                        const int32_t *ids)
{
    return find(cache, hash_of(cache, root, parent, ids), root, parent, ids);
}

int32_t cot_prefix_match(const cot_prefix_cache *cache, const cot_prefix_root *root, const int32_t *ids,
                         int64_t tokens, int64_t *blocks)
{
    int32_t last = -1;
    *blocks = 0;
    while (cache->block && (*blocks + 1) * cache->block <= tokens) {
        const int32_t node = cot_prefix_find(cache, root, last, ids + *blocks * cache->block);
        if (node < 0) break;
        last = node;
        ++*blocks;
    }
    return last;
}

int64_t cot_prefix_idle_pages(cot_prefix_cache *cache, int32_t node)
{
    const cot_page_pool *pool = cache->pool;
    int64_t count = 0;
    for (int32_t n = node; n >= 0; n = cache->node[n].parent) {
        const int32_t page = cache->node[n].page;
        count += !cache->mark[page] && pool->references[page] == pool->idle[page];
        cache->mark[page] = 1;
    }
    for (int32_t n = node; n >= 0; n = cache->node[n].parent) cache->mark[cache->node[n].page] = 0;
    return count;
}

/* ---- holding ---- */

static void leave_list(cot_prefix_cache *cache, int32_t at)
{
    const cot_prefix_node *node = &cache->node[at];
    *(node->older >= 0 ? &cache->node[node->older].newer : &cache->oldest) = node->newer;
    *(node->newer >= 0 ? &cache->node[node->newer].older : &cache->newest) = node->older;
    cot_page_pool_idle(cache->pool, node->page, -1);
}

static void join_list(cot_prefix_cache *cache, int32_t at)
{
    cot_prefix_node *node = &cache->node[at];
    node->older = cache->newest;
    node->newer = -1;
    *(cache->newest >= 0 ? &cache->node[cache->newest].newer : &cache->oldest) = at;
    cache->newest = at;
    cot_page_pool_idle(cache->pool, node->page, 1);
}

static void hold_one(cot_prefix_cache *cache, int32_t at)
{
    if (!cache->node[at].holders++) leave_list(cache, at);
}

void cot_prefix_hold(cot_prefix_cache *cache, int32_t node)
{
    for (; node >= 0; node = cache->node[node].parent) hold_one(cache, node);
}

void cot_prefix_let_go(cot_prefix_cache *cache, int32_t node)
{
    for (; node >= 0; node = cache->node[node].parent) {
        assert(cache->node[node].holders > 0);
        if (!--cache->node[node].holders) join_list(cache, node);
    }
}

/* ---- telling ---- */

/* A node of the cache, as it is told. */
static cot_cache_block block_of(const cot_prefix_cache *cache, int32_t at)
{
    const cot_prefix_node *node = &cache->node[at];
    const cot_prefix_salt *salt = node->salt; // of a first one alone
    return (cot_cache_block){.home = node->home,
                             .is_first = node->parent < 0,
                             .hash = node->hash,
                             .parent = node->parent >= 0 ? cache->node[node->parent].hash
                                       : salt            ? cot_cache_salt_hash(salt->data, salt->bytes)
                                                         : 0,
                             .ids = ids_of(cache, at),
                             .tokens = (size_t)cache->block,
                             .salt = salt ? salt->data : NULL,
                             .salt_bytes = salt ? salt->bytes : 0,
                             .needs_state = cache->snapshots.count > 0};
}

static void tell_stored(const cot_prefix_cache *cache, const cot_cache_events *events, int32_t at)
{
    const cot_cache_block block = block_of(cache, at);
    if (events->on_stored) events->on_stored(events->context, &block);
}

void cot_prefix_tell_state(const cot_prefix_cache *cache, const cot_cache_events *events, int32_t at)
{
    const cot_cache_block block = block_of(cache, at);
    if (events->on_state_stored) events->on_state_stored(events->context, &block);
}

/* Tells those of a node's line that were not told yet, from the first on. */
static void list_line(const cot_prefix_cache *cache, const cot_cache_events *events, int32_t at, bool *told,
                      int32_t *line)
{
    int64_t count = 0;
    for (; at >= 0 && !told[at]; at = cache->node[at].parent) {
        told[at] = true;
        line[count++] = at;
    }
    while (count) {
        tell_stored(cache, events, line[--count]);
        if (cache->node[line[count]].snapshot >= 0) cot_prefix_tell_state(cache, events, line[count]);
    }
}

cot_status cot_prefix_list(const cot_prefix_cache *cache, const cot_cache_events *events, cot_error *error)
{
    const int64_t nodes = node_count(cache->pool->pages, cache->block);
    bool *told = calloc((size_t)nodes + 1, sizeof *told);
    int32_t *line = calloc((size_t)nodes + 1, sizeof *line);
    if (told && line)
        for (uint64_t b = 0; b <= cache->bucket_mask; b++)
            for (int32_t at = cache->bucket[b]; at >= 0; at = cache->node[at].next)
                list_line(cache, events, at, told, line);
    const bool failed = !told || !line;
    free(told);
    free(line);
    return failed ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a list of %lld blocks",
                             (long long)nodes)
                  : COT_OK;
}

/* ---- coming and going ---- */

int32_t cot_prefix_extend(cot_prefix_cache *cache, const cot_prefix_root *root, int32_t parent,
                          const int32_t *ids, int32_t page)
{
    const uint64_t hash = hash_of(cache, root, parent, ids);
    int32_t at = find(cache, hash, root, parent, ids);
    if (at >= 0) {
        hold_one(cache, at);
        return at;
    }
    at = cache->free;
    assert(at >= 0); // a page has each of its blocks once
    cache->free = cache->node[at].older;
    cache->nodes++;
    int32_t *bucket = bucket_of(cache, hash, root->home);
    cache->node[at] = (cot_prefix_node){.parent = parent,
                                        .page = page,
                                        .holders = 1,
                                        .next = *bucket,
                                        .home = root->home,
                                        .snapshot = -1,
                                        .hash = hash,
                                        .salt = parent < 0 ? root->owner : NULL};
    *bucket = at;
    if (cache->node[at].salt) cache->node[at].salt->references++;
    memcpy(ids_of(cache, at), ids, (size_t)cache->block * sizeof *ids);
    cot_page_pool_share(cache->pool, page);
    tell_stored(cache, &cache->watch, at);
    return at;
}

void cot_prefix_evict(cot_prefix_cache *cache)
{
    const int32_t at = cache->oldest;
    assert(at >= 0);
    cot_prefix_node *node = &cache->node[at];
    leave_list(cache, at);
    if (node->snapshot >= 0) cot_prefix_drop_snapshot(cache, node->snapshot);
    if (cache->watch.on_removed) cache->watch.on_removed(cache->watch.context, node->home, node->hash);
    int32_t *from = bucket_of(cache, node->hash, node->home);
    while (*from != at) from = &cache->node[*from].next;
    *from = node->next;
    cot_page_pool_release(cache->pool, node->page);
    cot_prefix_salt_release(node->salt);
    node->older = cache->free;
    cache->free = at;
    cache->nodes--;
    cache->evicted++;
}
