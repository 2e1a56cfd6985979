/* The scheduler's pages and blocks against a plain model: lists that are searched from end to end, blocks known by all
 * that stands before them, the oldest found by its time. And what pages hold, position by position. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "schedule/compose.h"
#include "schedule/scheduler.h"
#include "model/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HISTORIES = 500,
    PAGES = 9,
    ROWS = 4,
    REQUESTS = 24,
    LONGEST = PAGES * COT_KV_PAGE,
    BLOCKS = PAGES * COT_KV_PAGE,
    TEXTS = 3,
    SALTS = 4
};

static const char *const salts[SALTS] = {NULL, "a", "b", "ab"};

/* ---- the model ---- */

struct block {
    int32_t home, salt, tokens, page;
    int32_t ids[LONGEST];
    bool held[REQUESTS];
    uint64_t let_go;
};

struct entry {
    uint64_t id, after;
    int64_t limit, prompt, output, known, fed, told, blocks, pages,
        sat_out; // output: the prompt's end, said before
    int32_t home, salt, tokens[LONGEST], page[PAGES], row;
    enum { WAITS, RUNS, OVER } is;
    bool all_logits, alone, was_fed;
    int admissions;
};

/* What those who watch the cache know of a block. */
struct told {
    uint64_t hash;
    int32_t home, salt, tokens;
    int32_t ids[LONGEST];
};

struct world {
    cot_scheduler s;
    struct told told[BLOCKS], listed[BLOCKS];
    int64_t told_count, listed_count;
    bool watched; // no two blocks of a home have one hash
    struct entry each[REQUESTS];
    size_t count;
    size_t queue[REQUESTS], waiting, runs[REQUESTS], running; // places in `each`
    struct block *block[BLOCKS];
    int64_t blocks, size, all_pages;
    int32_t last_page;
    uint64_t clock, evicted, preempted, queried, hit, waited, seed;
    int32_t text[TEXTS][LONGEST];
    uint64_t held[PAGES][COT_KV_PAGE]; // what real pages hold
    int32_t table[ROWS][PAGES];
};

static struct {
    int64_t hits, preempted, evicted, copies, alone, cancelled, waited, told_before;
} seen;

static bool is_held(const struct block *b)
{
    for (int i = 0; i < REQUESTS; i++)
        if (b->held[i]) return true;
    return false;
}

static struct block *find(struct world *w, const struct entry *e, int64_t tokens)
{
    for (int64_t i = 0; i < w->blocks; i++) {
        struct block *b = w->block[i];
        if (b->home == e->home && b->salt == e->salt && b->tokens == tokens &&
            memcmp(b->ids, e->tokens, (size_t)tokens * sizeof *b->ids) == 0)
            return b;
    }
    return NULL;
}

static bool runs_on(const struct world *w, int32_t page)
{
    for (size_t i = 0; i < w->running; i++)
        for (int64_t p = 0; p < w->each[w->runs[i]].pages; p++)
            if (w->each[w->runs[i]].page[p] == page) return true;
    return false;
}

static bool is_named(const struct world *w, int32_t page, bool held)
{
    for (int64_t i = 0; i < w->blocks; i++)
        if (w->block[i]->page == page && (!held || is_held(w->block[i]))) return true;
    return false;
}

static int64_t idle_pages(const struct world *w)
{
    int64_t count = 0;
    for (int32_t p = 0; p < w->last_page; p++)
        count += is_named(w, p, false) && !is_named(w, p, true) && !runs_on(w, p);
    return count;
}

static int64_t free_pages(const struct world *w)
{
    int64_t used = 0;
    for (int32_t p = 0; p < w->last_page; p++) used += is_named(w, p, false) || runs_on(w, p);
    return w->all_pages - used;
}

static int32_t take_page(struct world *w)
{
    while (!free_pages(w)) {
        int64_t oldest = -1;
        for (int64_t i = 0; i < w->blocks; i++)
            if (!is_held(w->block[i]) && (oldest < 0 || w->block[i]->let_go < w->block[oldest]->let_go))
                oldest = i;
        assert_true(oldest >= 0);
        for (int64_t i = 0; i < w->blocks; i++) // it is a leaf
            assert_false(w->block[i]->tokens > w->block[oldest]->tokens &&
                         w->block[i]->home == w->block[oldest]->home &&
                         w->block[i]->salt == w->block[oldest]->salt &&
                         memcmp(w->block[i]->ids, w->block[oldest]->ids,
                                (size_t)w->block[oldest]->tokens * sizeof(int32_t)) == 0);
        free(w->block[oldest]);
        w->block[oldest] = w->block[--w->blocks];
        w->evicted++;
    }
    return w->last_page++;
}

static void let_go(struct world *w, struct entry *e)
{
    for (; e->blocks; e->blocks--) {
        struct block *b = find(w, e, e->blocks * w->size);
        assert_true(b && b->held[e - w->each]);
        b->held[e - w->each] = false;
        if (!is_held(b)) b->let_go = ++w->clock;
    }
}

static void remove_from(size_t *list, size_t *count, size_t what)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (list[i] != what) list[kept++] = list[i];
    *count = kept;
}

static void stop(struct world *w, struct entry *e)
{
    let_go(w, e);
    remove_from(w->runs, &w->running, (size_t)(e - w->each));
    e->pages = e->fed = e->sat_out = 0;
    e->alone = false;
}

static int64_t lacks(const struct entry *e, int64_t tokens)
{
    const int64_t pages = cot_page_count(tokens) - e->pages;
    return pages > 0 ? pages : 0;
}

/* Whether the first that may run does now. */
static struct entry *model_admit(struct world *w)
{
    size_t at = 0;
    while (at < w->waiting && w->each[w->queue[at]].after) at++;
    if (at == w->waiting || w->running == ROWS) return NULL;
    struct entry *e = &w->each[w->queue[at]];
    int64_t blocks = 0, needed, room;
    while (w->size && !e->all_logits && (blocks + 1) * w->size < e->known &&
           find(w, e, (blocks + 1) * w->size))
        blocks++;
    for (;;) {
        const int64_t shared = blocks * w->size / COT_KV_PAGE;
        for (int64_t b = 1; b <= blocks; b++) find(w, e, b * w->size)->held[e - w->each] = true; // tried
        room = free_pages(w) + idle_pages(w);
        needed = cot_page_count(e->known) - shared;
        for (size_t i = 0; i < w->running; i++)
            needed += lacks(&w->each[w->runs[i]], w->each[w->runs[i]].known);
        if (needed <= room) break;
        for (int64_t b = 1; b <= blocks; b++) find(w, e, b * w->size)->held[e - w->each] = false;
        if (w->running) return NULL;
        blocks = 0;
    }
    e->blocks = blocks;
    e->fed = blocks * w->size;
    e->pages = e->fed / COT_KV_PAGE;
    for (int64_t p = 0; p < e->pages; p++) e->page[p] = find(w, e, (p + 1) * COT_KV_PAGE)->page;
    remove_from(w->queue, &w->waiting, (size_t)(e - w->each));
    w->runs[w->running++] = (size_t)(e - w->each);
    e->is = RUNS;
    seen.told_before += e->told > e->fed;
    e->told = e->told > e->fed ? e->told : e->fed;
    if (!e->admissions++ && !e->all_logits) {
        const int64_t asked = e->prompt - e->output;
        w->queried += (uint64_t)asked;
        w->hit += (uint64_t)(e->fed < asked ? e->fed : asked);
    }
    return e;
}

static struct entry *entry_of(struct world *w, uint64_t id)
{
    for (size_t i = 0; i < w->count; i++)
        if (w->each[i].id == id) return &w->each[i];
    fail_msg("there is no request %llu", (unsigned long long)id);
    return NULL;
}

/* Who goes back before the next step; its pages are taken. */
static void model_plan(struct world *w)
{
    cot_span spans[ROWS];
    cot_request_state *active[ROWS];
    for (;;) {
        for (size_t i = 0; i < w->running; i++) active[i] = cot_scheduler_find(&w->s, w->each[w->runs[i]].id);
        const int32_t count = cot_compose(spans, active, (int64_t)w->running, &w->s.limits, &w->s.cost, NULL);
        int64_t needed = 0;
        for (int32_t i = 0; i < count; i++)
            needed +=
                lacks(entry_of(w, w->s.by_row[spans[i].sequence]->id), spans[i].position + spans[i].tokens);
        if (needed <= free_pages(w) + idle_pages(w)) {
            for (size_t i = 0; i < w->running; i++) w->each[w->runs[i]].sat_out++;
            w->waited += w->running - (size_t)count;
            for (int32_t i = 0; i < count; i++) {
                struct entry *e = entry_of(w, w->s.by_row[spans[i].sequence]->id);
                e->sat_out = 0;
                while (lacks(e, spans[i].position + spans[i].tokens)) {
                    const int32_t page = take_page(w);
                    e->page[e->pages++] = page;
                }
            }
            return;
        }
        struct entry *last = &w->each[w->runs[w->running - 1]];
        if (w->running == 1) {
            assert_false(last->alone);
            let_go(w, last);
            last->alone = true;
            seen.alone++;
            continue;
        }
        stop(w, last);
        last->is = WAITS;
        last->row = -1;
        memmove(w->queue + 1, w->queue, w->waiting++ * sizeof *w->queue);
        w->queue[0] = (size_t)(last - w->each);
        w->preempted++;
    }
}

static void free_followers(struct world *w, const struct entry *e)
{
    for (size_t i = 0; i < w->count; i++)
        if (w->each[i].after == e->id) w->each[i].after = 0;
}

static void model_fed(struct world *w, struct entry *e, int64_t tokens)
{
    e->fed += tokens;
    e->told = e->told > e->fed ? e->told : e->fed;
    for (; w->size && !e->alone && (e->blocks + 1) * w->size <= e->fed; e->blocks++) {
        const int64_t length = (e->blocks + 1) * w->size;
        struct block *b = find(w, e, length);
        if (!b) {
            b = w->block[w->blocks++] = calloc(1, sizeof *b);
            assert_non_null(b);
            b->home = e->home;
            b->salt = e->salt;
            b->tokens = (int32_t)length;
            b->page = e->page[(length - 1) / COT_KV_PAGE];
            memcpy(b->ids, e->tokens, (size_t)length * sizeof *b->ids);
        }
        b->held[e - w->each] = true;
    }
    if (e->fed >= e->prompt) {
        e->was_fed = true;
        free_followers(w, e);
    }
}

static void model_end(struct world *w, struct entry *e)
{
    if (e->is == RUNS)
        stop(w, e);
    else
        remove_from(w->queue, &w->waiting, (size_t)(e - w->each));
    e->is = OVER;
    free_followers(w, e);
}

/* ---- both ---- */

static void end_one(struct world *w, struct entry *e)
{
    cot_request_state *r = cot_scheduler_find(&w->s, e->id);
    assert_int_equal(r != NULL, e->is != OVER);
    if (!r) return;
    cot_scheduler_release(&w->s, r);
    model_end(w, e);
}

static void submit_one(struct world *w)
{
    if (w->count == REQUESTS) return;
    struct entry *e = &w->each[w->count];
    const int64_t most = w->all_pages * COT_KV_PAGE;
    const int text = (int)(draw(&w->seed) % TEXTS);
    int64_t limit = 1 + (int64_t)(draw(&w->seed) % (uint64_t)(draw(&w->seed) % 3 ? 150 : most)),
            common = (int64_t)(draw(&w->seed) % (uint64_t)(limit + 1));
    if (limit > most) limit = most;
    *e = (struct entry){
        .limit = limit, .row = -1, .home = (int32_t)(draw(&w->seed) % (uint64_t)w->s.limits.homes)};
    e->prompt = e->known = draw(&w->seed) % 3 ? 1 + (int64_t)(draw(&w->seed) % (uint64_t)limit) : limit;
    e->salt = (int32_t)(draw(&w->seed) % 4 ? 0 : draw(&w->seed) % SALTS);
    e->all_logits = draw(&w->seed) % 12 == 0;
    e->output = draw(&w->seed) % 3 ? 0 : (int64_t)(draw(&w->seed) % (uint64_t)e->prompt);
    if (draw(&w->seed) % 2) common = limit;
    for (int64_t t = 0; t < limit; t++)
        e->tokens[t] = t < common || t >= most ? w->text[text][t] : (int32_t)(draw(&w->seed) % 3);
    if (w->count && draw(&w->seed) % 5 == 0) {
        const struct entry *first = &w->each[draw(&w->seed) % w->count];
        e->after = first->id;
    }
    cot_request request;
    cot_request_init(&request);
    request.prompt = e->tokens;
    request.prompt_tokens = e->prompt;
    request.output_tokens = e->output;
    request.forced = e->tokens + e->prompt;
    request.forced_tokens = limit - e->prompt;
    request.all_logits = e->all_logits;
    request.after = e->after;
    request.cache_salt = salts[e->salt];
    request.cache_salt_bytes = salts[e->salt] ? strlen(salts[e->salt]) : 0;
    if (e->after) {
        const struct entry *first = entry_of(w, e->after);
        if (first->is == OVER || first->was_fed) e->after = 0;
    }
    const size_t beside = draw(&w->seed) % 40;
    cot_request_state *r = cot_scheduler_submit(&w->s, &request, limit, e->home, beside);
    assert_non_null(r);
    memset(r->beside, 0xff, beside); // nothing else stands there
    e->id = r->id;
    w->queue[w->waiting++] = w->count++;
}

/* What a position of a text holds: a number of all up to it, of its home and salt. */
static uint64_t content(const struct entry *e, int64_t position)
{
    uint64_t x = 1 + (uint64_t)e->home * 8 + (uint64_t)e->salt;
    for (int64_t t = 0; t <= position; t++) x = (x ^ (uint64_t)e->tokens[t]) * 0x9e3779b97f4a7c15u + 1;
    return x | 1;
}

static void apply_map(struct world *w, const cot_page_map *map)
{
    assert_in_range(map->page, 0, w->all_pages - 1);
    assert_in_range(map->keep, 0, COT_KV_PAGE);
    if (map->keep && map->from != map->page) {
        memcpy(w->held[map->page], w->held[map->from], sizeof w->held[0]);
        seen.copies++;
    }
    for (int p = map->keep; p < COT_KV_PAGE; p++) w->held[map->page][p] = 0;
    w->table[map->sequence][map->index] = map->page;
}

static void run_span(struct world *w, struct entry *e, const cot_span *span, const int32_t *ids)
{
    assert_int_equal(span->position, e->fed);
    assert_memory_equal(ids, e->tokens + e->fed, (size_t)span->tokens * sizeof *ids);
    const int64_t end = span->position + span->tokens, all = cot_page_positions(cot_page_count(end));
    for (int64_t p = 0; p < all; p++) {
        uint64_t *at = &w->held[w->table[span->sequence][p / COT_KV_PAGE]][p % COT_KV_PAGE];
        if (p < span->position ? *at != content(e, p) : *at != 0)
            fail_msg("position %lld is not what it should be, of %d at %d", (long long)p, span->tokens,
                     span->position);
        if (p >= span->position && p < end) *at = content(e, p);
    }
}

/* What is told of homes: their requests, and of pages that nobody needs those that they had last. */
static void check_homes(const struct world *w)
{
    cot_home_load homes[COT_PAGE_POOL_HOMES], wanted[COT_PAGE_POOL_HOMES] = {0};
    cot_scheduler_get_homes(&w->s, homes);
    for (size_t i = 0; i < w->count; i++) {
        const struct entry *e = &w->each[i];
        wanted[e->home].running += e->is == RUNS;
        wanted[e->home].waiting += e->is == WAITS;
        wanted[e->home].waiting_prompt_tokens += e->is == WAITS ? e->prompt : 0;
    }
    int64_t free_of_all = free_pages(w) + idle_pages(w);
    const cot_page_pool *pool = &w->s.pool;
    for (int64_t p = 0; p < pool->pages; p++)
        wanted[pool->home[p]].free_pages += pool->references[p] == pool->idle[p];
    for (int h = 0; h < w->s.limits.homes; h++) {
        assert_int_equal(homes[h].running, wanted[h].running);
        assert_int_equal(homes[h].waiting, wanted[h].waiting);
        assert_int_equal(homes[h].waiting_prompt_tokens, wanted[h].waiting_prompt_tokens);
        assert_int_equal(homes[h].free_pages, wanted[h].free_pages);
        free_of_all -= homes[h].free_pages;
    }
    assert_int_equal(free_of_all, 0);
}

static void check_world(struct world *w)
{
    check_homes(w);
    assert_int_equal(w->s.pool.free_pages, free_pages(w));
    assert_int_equal(w->s.pool.idle_pages, idle_pages(w));
    assert_int_equal(w->s.prefix.nodes, w->blocks);
    assert_int_equal(w->s.prefix.evicted, w->evicted);
    assert_int_equal(w->s.preemptions, w->preempted);
    assert_int_equal(w->s.queried_tokens, w->queried);
    assert_int_equal(w->s.hit_tokens, w->hit);
    assert_int_equal(w->s.waited_steps, w->waited);
    assert_int_equal(w->s.active_count, w->running);
    assert_int_equal(w->s.waiting_count, w->waiting);
    assert_int_equal(w->s.free_row_count, ROWS - w->running);
    for (size_t i = 0; i < w->running; i++) {
        const struct entry *e = &w->each[w->runs[i]];
        const cot_request_state *r = w->s.active[i];
        assert_int_equal(r->id, e->id);
        assert_int_equal(r->fed, e->fed);
        assert_int_equal(r->told, e->told);
        assert_int_equal(r->sat_out, e->sat_out);
        assert_int_equal(r->blocks, e->blocks);
        assert_int_equal(r->pages_held, e->pages);
    }
    const cot_request_state *r = w->s.waiting;
    for (size_t i = 0; i < w->waiting; i++, r = r->next) assert_int_equal(r->id, w->each[w->queue[i]].id);
    assert_null(r);
}

/* ---- those who watch ---- */

static struct told *find_told(struct told *list, int64_t count, int home, uint64_t hash)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i].home == home && list[i].hash == hash) return &list[i];
    return NULL;
}

/* A block stands behind one that was told before, or begins a text. */
static void learn(struct told *list, int64_t *count, const cot_cache_block *block)
{
    struct told *t = &list[*count];
    assert_null(find_told(list, *count, block->home, block->hash));
    *t = (struct told){.hash = block->hash, .home = block->home};
    if (!block->is_first) {
        const struct told *parent = find_told(list, *count, block->home, block->parent);
        assert_non_null(parent);
        assert_int_equal(block->salt_bytes, 0);
        *t = *parent;
        t->hash = block->hash;
    } else
        while (salts[t->salt] ? strlen(salts[t->salt]) != block->salt_bytes ||
                                    memcmp(salts[t->salt], block->salt, block->salt_bytes) != 0
                              : block->salt_bytes > 0)
            assert_in_range(++t->salt, 0, SALTS - 1);
    memcpy(t->ids + t->tokens, block->ids, block->tokens * sizeof *t->ids);
    t->tokens += (int32_t)block->tokens;
    ++*count;
}

static void on_stored(void *context, const cot_cache_block *block)
{
    struct world *w = context;
    if (w->watched) learn(w->told, &w->told_count, block);
}

static void on_removed(void *context, int home, uint64_t hash)
{
    struct world *w = context;
    struct told *t = find_told(w->told, w->told_count, home, hash);
    if (!w->watched) return;
    assert_non_null(t);
    *t = w->told[--w->told_count];
}

static void on_listed(void *context, const cot_cache_block *block)
{
    struct world *w = context;
    learn(w->listed, &w->listed_count, block);
}

/* Both know the blocks that there are, and no others. */
static void check_told(struct world *w)
{
    const cot_cache_events events = {.context = w, .on_stored = on_listed};
    if (!w->watched) return;
    w->listed_count = 0;
    assert_int_equal(cot_prefix_list(&w->s.prefix, &events, NULL), COT_OK);
    assert_int_equal(w->told_count, w->blocks);
    assert_int_equal(w->listed_count, w->blocks);
    for (int64_t i = 0; i < w->blocks; i++) {
        const struct told *t = &w->told[i], *l = find_told(w->listed, w->listed_count, t->home, t->hash);
        const struct block *b = NULL;
        for (int64_t j = 0; j < w->blocks && !b; j++)
            if (w->block[j]->home == t->home && w->block[j]->salt == t->salt &&
                w->block[j]->tokens == t->tokens &&
                memcmp(w->block[j]->ids, t->ids, (size_t)t->tokens * sizeof *t->ids) == 0)
                b = w->block[j];
        assert_non_null(b);
        assert_non_null(l);
        assert_true(l->home == t->home && l->salt == t->salt && l->tokens == t->tokens);
        assert_memory_equal(l->ids, t->ids, (size_t)t->tokens * sizeof *t->ids);
    }
}

static void step_once(struct world *w)
{
    for (;;) {
        const cot_request_state *r = cot_scheduler_admit(&w->s);
        struct entry *e = model_admit(w);
        assert_int_equal(r ? r->id : 0, e ? e->id : 0);
        if (!r) break;
        assert_int_equal(r->fed, e->fed);
        assert_true(r->fed < r->known);
        seen.hits += r->fed > 0;
        e->row = r->row;
    }
    check_world(w);
    model_plan(w);
    const cot_step step = cot_scheduler_plan(&w->s);
    check_world(w);
    for (int32_t m = 0; m < step.maps; m++) apply_map(w, &step.map[m]);
    const int32_t *ids = step.ids;
    for (int32_t i = 0; i < step.spans; ids += step.span[i++].tokens) {
        cot_request_state *r = w->s.by_row[step.span[i].sequence];
        run_span(w, entry_of(w, r->id), &step.span[i], ids);
    }
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = w->s.by_row[step.span[i].sequence];
        struct entry *e = entry_of(w, r->id);
        if (draw(&w->seed) % 80 == 0) { // as a callback may
            end_one(w, e);
            seen.cancelled++;
            continue;
        }
        cot_scheduler_fed(&w->s, r, step.span[i].tokens);
        model_fed(w, e, step.span[i].tokens);
        if (r->fed < r->known) continue;
        if (r->known == r->limit)
            end_one(w, e);
        else
            e->known = ++r->known;
    }
}

static uint64_t same(const uint64_t *parent, const int32_t *ids, size_t tokens)
{
    (void)parent;
    (void)ids;
    (void)tokens;
    return 7;
}

static void live_through(struct world *w, int history)
{
    static const int64_t sizes[] = {16, 1, 4, 64, 0, 32, 16, 8};
    w->size = sizes[history % 8];
    w->all_pages = 2 + (int64_t)(draw(&w->seed) % (PAGES - 1));
    cot_scheduler_limits limits = {.homes = 1 + (int)(draw(&w->seed) % 3),
                                   .sequences = ROWS,
                                   .pages = w->all_pages,
                                   .step_tokens = 1 + (int64_t)(draw(&w->seed) % (history % 3 ? 200 : 40)),
                                   .block = w->size};
    limits.step_logits = limits.step_tokens;
    limits.max_wait_steps = (int64_t)(draw(&w->seed) % 4);
    limits.step_maps = cot_scheduler_step_maps(limits.step_tokens, ROWS, PAGES * COT_KV_PAGE, w->size);
    assert_int_equal(cot_scheduler_open(&w->s, &limits, NULL), COT_OK);
    if (history % 5 == 0) w->s.prefix.hash = same; // all collide
    w->watched = history % 5 != 0;
    w->s.prefix.watch = (cot_cache_events){.context = w, .on_stored = on_stored, .on_removed = on_removed};
    memset(w->held, 0xff, sizeof w->held);
    for (int t = 0; t < TEXTS; t++) // they begin alike
        for (int i = 0; i < LONGEST; i++)
            w->text[t][i] = t && i < 70 ? w->text[0][i] : (int32_t)(draw(&w->seed) % 3);
    do {
        const uint64_t choice = draw(&w->seed) % 16;
        if (choice < 5) submit_one(w);
        if (choice == 5 && w->count && draw(&w->seed) % 3 == 0)
            end_one(w, &w->each[draw(&w->seed) % w->count]);
        if (choice > 5) step_once(w);
        if (draw(&w->seed) % 2) cot_scheduler_sweep(&w->s);
        check_world(w);
        if (draw(&w->seed) % 4 == 0) check_told(w);
    } while (w->count < REQUESTS || w->running || w->waiting);
    assert_int_equal(w->s.pool.free_pages + w->s.pool.idle_pages, w->all_pages);
    seen.preempted += (int64_t)w->preempted;
    seen.evicted += (int64_t)w->evicted;
    seen.waited += (int64_t)w->waited;
    check_told(w);
    while (w->s.prefix.nodes) cot_prefix_evict(&w->s.prefix);
    assert_int_equal(w->told_count, 0);
    assert_int_equal(w->s.pool.free_pages, w->all_pages);
    for (int64_t p = 0; p < w->all_pages; p++)
        assert_int_equal(w->s.pool.references[p] | w->s.pool.idle[p], 0);
    cot_scheduler_close(&w->s);
    while (w->blocks) free(w->block[--w->blocks]);
}

static void histories(void **state)
{
    (void)state;
    static struct world w;
    const uint64_t seed = test_seed();
    for (int history = 0; history < HISTORIES; history++) {
        memset(&w, 0, sizeof w);
        w.seed = seed + (uint64_t)history * 1000003;
        live_through(&w, history);
    }
    printf("%lld admitted with a beginning found, %lld copies, %lld preempted, %lld evicted, %lld alone, "
           "%lld cancelled, %lld steps sat out, %lld told before\n",
           (long long)seen.hits, (long long)seen.copies, (long long)seen.preempted, (long long)seen.evicted,
           (long long)seen.alone, (long long)seen.cancelled, (long long)seen.waited,
           (long long)seen.told_before);
    assert_true(seen.hits > HISTORIES && seen.copies > HISTORIES && seen.preempted > HISTORIES / 2 &&
                seen.evicted > HISTORIES && seen.alone > 10 && seen.cancelled > 100 &&
                seen.waited > HISTORIES && seen.told_before > 100);
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(histories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
