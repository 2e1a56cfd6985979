/* Pages of the KV cache that open and close while requests run. */
#include "schedule/scheduler.h"

#include "base/integers.h"

/* Where what was in a page is now. */
static int32_t page_now(const cot_page_pool *pool, int32_t page)
{
    return page < pool->open ? page : pool->next[page];
}

static void follow_blocks(cot_scheduler *s)
{
    for (uint64_t b = 0; s->limits.block && b <= s->prefix.bucket_mask; b++)
        for (int32_t n = s->prefix.bucket[b]; n >= 0; n = s->prefix.node[n].next)
            s->prefix.node[n].page = page_now(&s->pool, s->prefix.node[n].page);
}

static void follow_request(const cot_scheduler *s, cot_request_state *r)
{
    for (int64_t p = 0; p < r->pages_held; p++) r->pages[p] = page_now(&s->pool, r->pages[p]);
    if (r->copied && r->maps_told <= r->shared) r->copied_from = page_now(&s->pool, r->copied_from);
}

int64_t cot_scheduler_resize(cot_scheduler *s, int64_t open, int32_t *moved)
{
    cot_page_pool *pool = &s->pool;
    while (pool->open - pool->free_pages > open && pool->idle_pages) cot_prefix_evict(&s->prefix);
    open = cot_larger(cot_smaller(open, pool->pages), pool->open - pool->free_pages);
    const int64_t moves = cot_page_pool_resize(pool, open, moved);
    if (!moves) return 0;
    follow_blocks(s);
    for (int64_t i = 0; i < s->active_count; i++) follow_request(s, s->active[i]);
    return moves;
}
