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
    *s = (cot_prefix_snapshots){.count = count, .free = -1, .probation = {-1, -1}, .protected = {-1, -1}};
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

static cot_prefix_snapshot_list *list_of(cot_prefix_snapshots *s, int32_t at)
{
    return s->of[at].is_protected ? &s->protected : &s->probation;
}

static void leave_list(cot_prefix_snapshots *s, int32_t at)
{
    const cot_prefix_snapshot *of = &s->of[at];
    cot_prefix_snapshot_list *list = list_of(s, at);
    *(of->older >= 0 ? &s->of[of->older].newer : &list->oldest) = of->newer;
    *(of->newer >= 0 ? &s->of[of->newer].older : &list->newest) = of->older;
}

static void join_list(cot_prefix_snapshots *s, int32_t at, bool is_protected)
{
    s->of[at].is_protected = is_protected;
    cot_prefix_snapshot_list *list = list_of(s, at);
    s->of[at].older = list->newest;
    s->of[at].newer = -1;
    *(list->newest >= 0 ? &s->of[list->newest].newer : &list->oldest) = at;
    list->newest = at;
}

static void move_to_list(cot_prefix_snapshots *s, int32_t at, bool is_protected)
{
    leave_list(s, at);
    join_list(s, at, is_protected);
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

/* Of those from `at` on that which nobody will read; -1: there is none. */
static int32_t first_idle(const cot_prefix_snapshots *s, int32_t at)
{
    while (at >= 0 && s->of[at].holders) at = s->of[at].newer;
    return at;
}

int32_t cot_prefix_take_snapshot(cot_prefix_cache *cache, bool may_be_protected)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    if (s->free < 0) {
        int32_t out = first_idle(s, s->probation.oldest);
        if (out < 0 && may_be_protected) out = first_idle(s, s->protected.oldest);
        if (out < 0) return -1;
        cot_prefix_drop_snapshot(cache, out);
        s->evicted++;
    }
    const int32_t at = s->free;
    s->free = s->of[at].older;
    return at;
}

void cot_prefix_keep_snapshot(cot_prefix_cache *cache, int32_t at, int32_t node,
                              cot_prefix_snapshot_kind kind)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    assert(s->of[at].node < 0);
    const int32_t other = cache->node[node].snapshot; // of the same text
    if (other >= 0) {
        cot_prefix_drop_snapshot(cache, at);
        if (kind != COT_SNAPSHOT_MARK) move_to_list(s, other, true);
        return;
    }
    cache->node[node].snapshot = at;
    s->of[at].node = node;
    s->of[at].texts = kind != COT_SNAPSHOT_END;
    s->kept++;
    join_list(s, at, kind != COT_SNAPSHOT_MARK);
    cot_prefix_tell_state(cache, &cache->watch, node);
}

void cot_prefix_supersede_snapshots(cot_prefix_cache *cache, int32_t node)
{
    cot_prefix_snapshots *s = &cache->snapshots;
    for (; node >= 0; node = cache->node[node].parent) {
        const int32_t at = cache->node[node].snapshot;
        if (at >= 0 && s->of[at].is_protected && s->of[at].texts < 2) move_to_list(s, at, false);
    }
}

int32_t cot_prefix_hold_snapshot(cot_prefix_cache *cache, int32_t node)
{
    const int32_t at = cache->node[node].snapshot;
    cot_prefix_snapshot *of = &cache->snapshots.of[at];
    move_to_list(&cache->snapshots, at, true);
    if (of->texts < 2) of->texts++;
    of->holders++;
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
