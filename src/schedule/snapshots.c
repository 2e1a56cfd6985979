/* Snapshots of states: which node of the prefix cache each is of, and which goes for a new one. */
#include "base/error.h"
#include "schedule/prefix.h"

#include <assert.h>
#include <stdlib.h>

size_t cot_prefix_snapshot_bytes(int64_t count)
{
    return (size_t)count * sizeof(cot_prefix_snapshot);
}

cot_status cot_prefix_open_snapshots(cot_prefix_cache *cache, int64_t count, cot_error *error)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    *s = (cot_prefix_snapshots){.count = count, .free = -1, .oldest = -1, .newest = -1};
    if (!count) return COT_OK;
    s->of = calloc((size_t)count, sizeof *s->of);
    if (!s->of)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of %lld states",
                        (long long)count);
    for (int64_t i = count - 1; i >= 0; i--) {
        s->of[i].node = -1;
        s->of[i].older = s->free;
        s->free = (int32_t)i;
    }
    return COT_OK;
}

static void leave_list(cot_prefix_snapshots *s, int32_t at)
{
    const cot_prefix_snapshot *of = &s->of[at];
    *(of->older >= 0 ? &s->of[of->older].newer : &s->oldest) = of->newer;
    *(of->newer >= 0 ? &s->of[of->newer].older : &s->newest) = of->older;
}

static void join_list(cot_prefix_snapshots *s, int32_t at)
{
    s->of[at].older = s->newest;
    s->of[at].newer = -1;
    *(s->newest >= 0 ? &s->of[s->newest].newer : &s->oldest) = at;
    s->newest = at;
}

void cot_prefix_drop_snapshot(cot_prefix_cache *cache, int32_t at)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    cot_prefix_snapshot *of = &s->of[at];
    if (of->node >= 0) {
        leave_list(s, at);
        cot_prefix_node *node = &cache->node[of->node];
        if (cache->watch.on_state_removed)
            cache->watch.on_state_removed(cache->watch.context, node->home, node->hash);
        node->snapshot = -1;
        of->node = -1;
        s->kept--;
    }
    if (of->holders) return; // who holds it lets it go
    of->older = s->free;
    s->free = at;
}

int32_t cot_prefix_take_snapshot(cot_prefix_cache *cache)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    int32_t at = s->oldest;
    while (s->free < 0 && at >= 0 && s->of[at].holders) at = s->of[at].newer;
    if (s->free < 0 && at >= 0) {
        cot_prefix_drop_snapshot(cache, at);
        s->evicted++;
    }
    if ((at = s->free) >= 0) s->free = s->of[at].older;
    return at;
}

void cot_prefix_keep_snapshot(cot_prefix_cache *cache, int32_t at, int32_t node)
{
    assert(cache->snapshots.of[at].node < 0);
    if (cache->node[node].snapshot >= 0) { // of the same text
        cot_prefix_drop_snapshot(cache, at);
        return;
    }
    cache->node[node].snapshot = at;
    cache->snapshots.of[at].node = node;
    cache->snapshots.kept++;
    join_list(&cache->snapshots, at);
    cot_prefix_tell_state(cache, &cache->watch, node);
}

int32_t cot_prefix_hold_snapshot(cot_prefix_cache *cache, int32_t node)
{
    const int32_t at = cache->node[node].snapshot;
    leave_list(&cache->snapshots, at);
    join_list(&cache->snapshots, at);
    cache->snapshots.of[at].holders++;
    return at;
}

void cot_prefix_let_go_of_snapshot(cot_prefix_cache *cache, int32_t at)
{
    cot_prefix_snapshot *of = &cache->snapshots.of[at];
    assert(of->holders > 0);
    if (!--of->holders && of->node < 0) cot_prefix_drop_snapshot(cache, at);
}

int32_t cot_prefix_resume(const cot_prefix_cache *cache, const cot_prefix_root *root, const int32_t *ids,
                          int64_t tokens, int64_t *blocks)
{
    int32_t node = cot_prefix_match(cache, root, ids, tokens, blocks);
    for (; cache->snapshots.count && node >= 0 && cache->node[node].snapshot < 0; --*blocks)
        node = cache->node[node].parent;
    return node;
}
