/* The pages of the KV cache as numbers: which are free, and how many references each of the others has, of sequences
 * and of blocks that are kept for later (prefix.h). What a page holds is on the ranks (model/kv.h); a page that several
 * sequences hold is full, and nobody writes to it. */
#ifndef COT_SCHEDULE_PAGES_H
#define COT_SCHEDULE_PAGES_H
#include "coterie/status.h"
#include <stdint.h>

enum { COT_PAGE_POOL_HOMES = 64 }; // at most

/* A list; the pages of one home lie together at first, and what it frees it gets again. */
typedef struct cot_page_pool_list {
    int32_t first;
    int64_t count;
} cot_page_pool_list;

typedef struct cot_page_pool {
    int64_t pages, open;                  // pages from `open` on are closed: neither free nor anybody's
    int64_t free_pages, idle_pages;       // a page is idle when all of its references are
    int homes;                            // ranks that have pages of their own; 1: all hold every page
    int64_t idle_at[COT_PAGE_POOL_HOMES]; // [homes] of the idle pages
    cot_page_pool_list free[COT_PAGE_POOL_HOMES]; // [homes]
    int32_t *next;                                // [pages] the one behind in its list
    int16_t *home;                                // [pages] who has it, or had it last
    int32_t *references, *idle; // [pages]; idle: how many of the references could be given up
} cot_page_pool;

/* A pool whose pages are all free. Errors: OUT_OF_MEMORY. Close either way. */
cot_status cot_page_pool_open(cot_page_pool *pool, int64_t pages, int homes, cot_error *error);
void cot_page_pool_close(cot_page_pool *pool);

/* A free page, now with one reference: one that this home had last, else of the home that has most. There must be one. */
int32_t cot_page_pool_take(cot_page_pool *pool, int home);
/* One more reference to a page that is not free. */
void cot_page_pool_share(cot_page_pool *pool, int32_t page);
/* Changes by `change` how many of the page's references are idle: could be given up. */
void cot_page_pool_idle(cot_page_pool *pool, int32_t page, int32_t change);
/* One reference less, not an idle one. With the last one gone the page is free. */
void cot_page_pool_release(cot_page_pool *pool, int32_t page);

/* So many pages are open from now on, at most `pages` and no fewer than are taken. What is in pages that close comes to free ones:
 * moved has the pairs (from, to), ascending by from, and next[from] is to until the page opens again. Returns how many there
 * are. */
int64_t cot_page_pool_resize(cot_page_pool *pool, int64_t open, int32_t *moved);

#endif
