#include "worker/mock.h"

#include <stdlib.h>
#include <string.h>

bool cot_mock_cache_open(cot_mock_cache *c, int home, size_t room, int64_t block_tokens)
{
    uint64_t buckets = 1;
    while (buckets < 2 * room) buckets *= 2;
    *c = (cot_mock_cache){.home = home,
                          .block_tokens = block_tokens,
                          .room = room,
                          .bucket_mask = buckets - 1,
                          .newest = -1,
                          .oldest = -1};
    c->node = calloc(room + 1, sizeof *c->node);
    c->ids = calloc(room * (size_t)block_tokens + 1, sizeof *c->ids);
    c->bucket = malloc(buckets * sizeof *c->bucket);
    if (c->bucket) memset(c->bucket, -1, buckets * sizeof *c->bucket);
    return c->node && c->ids && c->bucket;
}

void cot_mock_cache_close(cot_mock_cache *c)
{
    for (size_t i = 0; c->node && i < c->count; i++) free(c->node[i].salt);
    free(c->node);
    free(c->ids);
    free(c->bucket);
    *c = (cot_mock_cache){0};
}

/* ---- the order of use, and buckets ---- */

static void unlink_node(cot_mock_cache *c, int32_t at)
{
    struct cot_mock_node *n = &c->node[at];
    *(n->newer >= 0 ? &c->node[n->newer].older : &c->newest) = n->older;
    *(n->older >= 0 ? &c->node[n->older].newer : &c->oldest) = n->newer;
}

/* Puts a node just behind another in the order of use, -1: before all. */
static void link_behind(cot_mock_cache *c, int32_t at, int32_t newer)
{
    struct cot_mock_node *n = &c->node[at];
    n->newer = newer;
    n->older = newer >= 0 ? c->node[newer].older : c->newest;
    *(newer >= 0 ? &c->node[newer].older : &c->newest) = at;
    *(n->older >= 0 ? &c->node[n->older].newer : &c->oldest) = at;
}

static int32_t find(const cot_mock_cache *c, uint64_t hash)
{
    int32_t at = c->bucket[hash & c->bucket_mask];
    while (at >= 0 && c->node[at].hash != hash) at = c->node[at].next;
    return at;
}

/* The node that was used longest ago, empty. */
static int32_t evict(cot_mock_cache *c)
{
    const int32_t at = c->oldest;
    struct cot_mock_node *n = &c->node[at];
    int32_t *link = &c->bucket[n->hash & c->bucket_mask];
    while (*link != at) link = &c->node[*link].next;
    *link = n->next;
    unlink_node(c, at);
    free(n->salt);
    c->evicted++;
    if (c->events.on_removed) c->events.on_removed(c->events.context, c->home, n->hash);
    return at;
}

/* ---- texts ---- */

/* A text's blocks one after the other. */
typedef struct walk {
    const cot_request *text;
    const int32_t *more;
    int64_t block_tokens, at;
    uint64_t parent, hash; // of the last block
    const int32_t *ids;    // of it
    int32_t copy[64];      // where it has ids of both
} walk;

static walk walk_of(const cot_mock_cache *c, const cot_request *text, const int32_t *more)
{
    const uint64_t salt =
        text->cache_salt_bytes ? cot_cache_salt_hash(text->cache_salt, text->cache_salt_bytes) : 0;
    return (walk){.text = text, .more = more, .block_tokens = c->block_tokens, .hash = salt};
}

static void go_on(walk *w)
{
    const int64_t end = w->at + w->block_tokens, prompt = w->text->prompt_tokens;
    const size_t tokens = (size_t)w->block_tokens;
    if (end <= prompt)
        w->ids = w->text->prompt + w->at;
    else {
        for (int64_t i = w->at; i < end; i++)
            w->copy[i - w->at] = i < prompt ? w->text->prompt[i] : w->more[i - prompt];
        w->ids = w->copy;
    }
    const uint64_t local = cot_cache_local_hash(w->ids, tokens);
    const bool begins = !w->at && !w->text->cache_salt_bytes;
    w->parent = w->hash;
    w->hash = begins ? local : cot_cache_sequence_hash(w->parent, local);
    w->at = end;
}

static cot_cache_block block_of(const cot_mock_cache *c, int32_t at)
{
    const struct cot_mock_node *n = &c->node[at];
    return (cot_cache_block){.home = c->home,
                             .is_first = n->is_first,
                             .hash = n->hash,
                             .parent = n->parent,
                             .ids = c->ids + at * c->block_tokens,
                             .tokens = (size_t)c->block_tokens,
                             .salt = n->salt,
                             .salt_bytes = n->salt_bytes};
}

size_t cot_mock_cache_find(const cot_mock_cache *c, const cot_request *text, int64_t tokens)
{
    size_t blocks = 0;
    walk w = walk_of(c, text, NULL);
    while (c->room && w.at + c->block_tokens <= tokens) {
        go_on(&w);
        if (find(c, w.hash) < 0) break;
        blocks++;
    }
    return blocks;
}

/* Adds the walk's last block behind its parent in the order of use. -1: there is no memory for its salt. */
static int32_t add(cot_mock_cache *c, const walk *w, int32_t parent)
{
    const bool is_first = w->at == w->block_tokens;
    const size_t salt_bytes = is_first ? w->text->cache_salt_bytes : 0;
    char *salt = salt_bytes ? malloc(salt_bytes) : NULL;
    if (salt_bytes && !salt) return -1;
    if (salt_bytes) memcpy(salt, w->text->cache_salt, salt_bytes);
    const int32_t at = c->count < c->room ? (int32_t)c->count++ : evict(c);
    int32_t *bucket = &c->bucket[w->hash & c->bucket_mask];
    c->node[at] = (struct cot_mock_node){.hash = w->hash,
                                         .parent = w->parent,
                                         .next = *bucket,
                                         .is_first = is_first,
                                         .salt = salt,
                                         .salt_bytes = salt_bytes};
    *bucket = at;
    memcpy(c->ids + at * c->block_tokens, w->ids, (size_t)c->block_tokens * sizeof *c->ids);
    link_behind(c, at, parent);
    const cot_cache_block block = block_of(c, at);
    if (c->events.on_stored) c->events.on_stored(c->events.context, &block);
    return at;
}

void cot_mock_cache_store(cot_mock_cache *c, const cot_request *text, const int32_t *more, int64_t tokens)
{
    // A text's blocks become the newest, its first before its second: so none ever goes before one that follows it, and none of
    // this text for another.
    const int64_t whole = tokens / (c->block_tokens ? c->block_tokens : 1),
                  most = whole < (int64_t)c->room ? whole : (int64_t)c->room;
    walk w = walk_of(c, text, more);
    int32_t last = -1;
    for (int64_t b = 0; b < most; b++) {
        go_on(&w);
        const int32_t known = find(c, w.hash);
        if (known >= 0) {
            unlink_node(c, known);
            link_behind(c, known, last);
            last = known;
        } else if ((last = add(c, &w, last)) < 0)
            return;
    }
}

void cot_mock_cache_list(const cot_mock_cache *c, const cot_cache_events *events)
{
    for (int32_t at = c->newest; at >= 0; at = c->node[at].older) {
        const cot_cache_block block = block_of(c, at);
        events->on_stored(events->context, &block);
    }
}
