#include "schedule/pages.h"

#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void push(cot_page_pool *pool, int32_t page)
{
    cot_page_pool_list *list = &pool->free[pool->home[page]];
    pool->next[page] = list->first;
    list->first = page;
    list->count++;
    pool->free_pages++;
}

cot_status cot_page_pool_open(cot_page_pool *pool, int64_t pages, int homes, cot_error *error)
{
    *pool = (cot_page_pool){.pages = pages, .open = pages, .homes = homes};
    pool->next = calloc((size_t)pages, sizeof *pool->next);
    pool->home = calloc((size_t)pages, sizeof *pool->home);
    pool->references = calloc((size_t)pages, sizeof *pool->references);
    pool->idle = calloc((size_t)pages, sizeof *pool->idle);
    if (!pool->next || !pool->home || !pool->references || !pool->idle)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of %lld pages",
                        (long long)pages);
    for (int64_t p = pages - 1; p >= 0; p--) {
        pool->home[p] = (int16_t)(p * homes / pages);
        push(pool, (int32_t)p);
    }
    return COT_OK;
}

void cot_page_pool_close(cot_page_pool *pool)
{
    free(pool->next);
    free(pool->home);
    free(pool->references);
    free(pool->idle);
    *pool = (cot_page_pool){0};
}

int32_t cot_page_pool_take(cot_page_pool *pool, int home)
{
    assert(pool->free_pages > 0 && home >= 0 && home < pool->homes);
    int from = home;
    for (int h = 0; !pool->free[home].count && h < pool->homes; h++)
        if (pool->free[h].count > pool->free[from].count) from = h;
    const int32_t page = pool->free[from].first;
    pool->free[from].first = pool->next[page];
    pool->free[from].count--;
    pool->free_pages--;
    pool->home[page] = (int16_t)home;
    pool->references[page] = 1;
    return page;
}

/* Counts the page, if all of its references are idle, `by` times more. */
static void count_idle(cot_page_pool *pool, int32_t page, int64_t by)
{
    if (!pool->references[page] || pool->references[page] != pool->idle[page]) return;
    pool->idle_pages += by;
    pool->idle_at[pool->home[page]] += by;
}

/* The page's numbers change; whether all of its references are idle is counted anew. */
static void change(cot_page_pool *pool, int32_t page, int32_t references, int32_t idle)
{
    count_idle(pool, page, -1);
    pool->references[page] += references;
    pool->idle[page] += idle;
    assert(pool->idle[page] >= 0 && pool->idle[page] <= pool->references[page]);
    count_idle(pool, page, 1);
}

void cot_page_pool_share(cot_page_pool *pool, int32_t page)
{
    assert(pool->references[page] > 0);
    change(pool, page, 1, 0);
}

void cot_page_pool_idle(cot_page_pool *pool, int32_t page, int32_t more)
{
    change(pool, page, 0, more);
}

void cot_page_pool_release(cot_page_pool *pool, int32_t page)
{
    assert(pool->references[page] > 0);
    change(pool, page, -1, 0);
    if (!pool->references[page]) push(pool, page);
}

/* What is in a page comes to another, which is free. */
static void move(cot_page_pool *pool, int32_t from, int32_t to)
{
    pool->references[to] = pool->references[from];
    pool->idle[to] = pool->idle[from];
    pool->home[to] = pool->home[from];
    pool->references[from] = pool->idle[from] = 0;
    pool->next[from] = to;
}

int64_t cot_page_pool_resize(cot_page_pool *pool, int64_t open, int32_t *moved)
{
    int64_t moves = 0, to = 0;
    assert(open <= pool->pages && open >= pool->open - pool->free_pages);
    for (int64_t from = open; from < pool->open; from++) {
        if (!pool->references[from]) continue;
        while (pool->references[to]) to++;
        move(pool, (int32_t)from, (int32_t)to);
        moved[2 * moves] = (int32_t)from;
        moved[2 * moves + 1] = (int32_t)to;
        moves++;
    }
    memset(pool->free, 0, sizeof pool->free);
    pool->free_pages = 0;
    pool->open = open;
    for (int64_t p = open - 1; p >= 0; p--)
        if (!pool->references[p]) push(pool, (int32_t)p);
    return moves;
}
