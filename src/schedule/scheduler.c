#include "schedule/scheduler.h"

#include "base/error.h"
#include "base/integers.h"
#include "schedule/compose.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int64_t cot_scheduler_step_maps(int64_t step_tokens, int64_t sequences, int64_t context, int64_t block)
{
    const int64_t rows = sequences < step_tokens ? sequences : step_tokens;
    return 2 * step_tokens + (block ? rows * cot_page_count(context) : 0);
}

int64_t cot_scheduler_step_states(int64_t step_tokens, int64_t sequences, int64_t snapshots)
{
    const int64_t rows = sequences < step_tokens ? sequences : step_tokens;
    return snapshots ? 5 * rows + step_tokens / COT_SNAPSHOT_TOKENS : 0;
}

cot_status cot_scheduler_open(cot_scheduler *s, const cot_scheduler_limits *limits, cot_error *error)
{
    size_t rows = (size_t)limits->sequences, tokens = (size_t)limits->step_tokens;
    *s = (cot_scheduler){.limits = *limits, .waiting_end = &s->waiting};
    cot_status status = cot_page_pool_open(&s->pool, limits->pages, limits->homes, error);
    if (status == COT_OK) status = cot_prefix_open(&s->prefix, &s->pool, limits->block, error);
    if (status == COT_OK) status = cot_prefix_open_snapshots(&s->prefix, limits->snapshots, error);
    if (status != COT_OK) return status;
    s->free_rows = calloc(rows, sizeof *s->free_rows);
    s->active = calloc(rows, sizeof *s->active);
    s->by_row = calloc(rows, sizeof *s->by_row);
    s->ids = calloc(tokens, sizeof *s->ids);
    s->spans = calloc(tokens, sizeof *s->spans);
    s->maps = calloc((size_t)limits->step_maps, sizeof *s->maps);
    s->states = calloc((size_t)limits->step_states + 1, sizeof *s->states);
    s->missing = calloc((size_t)limits->foresight.cells + 1, sizeof *s->missing);
    s->left = calloc((size_t)limits->foresight.cells + 1, sizeof *s->left);
    s->share = calloc((size_t)limits->foresight.cells + 1, sizeof *s->share);
    s->missing_is_old = true;
    if (!s->free_rows || !s->active || !s->by_row || !s->ids || !s->spans || !s->maps || !s->states ||
        !s->missing || !s->left || !s->share)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the scheduler's tables");
    while (s->free_row_count < limits->sequences) {
        s->free_rows[s->free_row_count] = (int32_t)(limits->sequences - 1 - s->free_row_count);
        s->free_row_count++;
    }
    return COT_OK;
}

size_t cot_scheduler_bytes(const cot_scheduler_limits *l)
{
    const cot_page_pool *pool = NULL;
    const size_t page =
        sizeof *pool->next + sizeof *pool->home + sizeof *pool->references + sizeof *pool->idle;
    return (size_t)l->pages * page + cot_prefix_bytes(l->pages, l->block) +
           (size_t)l->sequences * (sizeof(int32_t) + 2 * sizeof(void *)) +
           (size_t)l->step_tokens * (sizeof(int32_t) + sizeof(cot_span)) +
           (size_t)l->step_maps * sizeof(cot_page_map) + cot_prefix_snapshot_bytes(l->snapshots) +
           (size_t)(l->step_states + 1) * sizeof(cot_state_copy) +
           (size_t)(l->foresight.cells + 1) * (2 * sizeof(float) + 1);
}

static void free_request(cot_request_state *r)
{
    cot_prefix_salt_release(r->salt);
    free(r);
}

static void free_all(cot_request_state *first)
{
    while (first) {
        cot_request_state *next = first->next;
        free_request(first);
        first = next;
    }
}

/* ---- pages and blocks of a sequence ---- */

static cot_prefix_root root_of(const cot_scheduler *s, const cot_request_state *r)
{
    const cot_prefix_salt *salt = r->salt;
    return (cot_prefix_root){r->home % s->limits.homes, salt ? salt->data : NULL, salt ? salt->bytes : 0,
                             r->salt};
}

static void let_go_of_blocks(cot_scheduler *s, cot_request_state *r)
{
    cot_prefix_let_go(&s->prefix, r->node);
    r->node = r->passing = -1;
    r->blocks = 0;
}

/* It is fed what its last `blocks` blocks, up to `node`, hold: whole pages are shared, of the next there will be a copy.
 * A page's last block names one that holds the others as well. */
static void begin_with(cot_scheduler *s, cot_request_state *r, int32_t node, int64_t blocks)
{
    const int64_t block = s->limits.block, hit = blocks * block;
    cot_prefix_hold(&s->prefix, node);
    if (node >= 0 && s->limits.snapshots) r->resumes = cot_prefix_hold_snapshot(&s->prefix, node);
    r->node = node;
    r->blocks = r->found = blocks;
    r->fed = hit;
    r->pages_held = r->shared = hit / COT_KV_PAGE;
    r->copied = hit % COT_KV_PAGE;
    if (r->copied) r->copied_from = s->prefix.node[node].page;
    for (int64_t page = r->shared; blocks > 0; blocks--, node = s->prefix.node[node].parent)
        if (blocks * block % COT_KV_PAGE == 0) {
            r->pages[--page] = s->prefix.node[node].page;
            cot_page_pool_share(&s->pool, r->pages[page]);
        }
}

/* It has nothing in the cache any more. */
static void leave_cache(cot_scheduler *s, cot_request_state *r)
{
    cot_scheduler_weigh_blocks(s, r);
    let_go_of_blocks(s, r);
    if (r->resumes >= 0) cot_prefix_let_go_of_snapshot(&s->prefix, r->resumes);
    r->resumes = -1;
    for (int64_t p = 0; p < r->pages_held; p++) cot_page_pool_release(&s->pool, r->pages[p]);
    r->sat_out = r->fed = r->pages_held = r->maps_told = r->shared = r->copied = 0;
    r->alone = false;
}

static int64_t pages_to_take(const cot_request_state *r, int64_t tokens)
{
    const int64_t pages = cot_page_count(tokens) - r->pages_held;
    return pages > 0 ? pages : 0;
}

static int64_t pages_to_be_had(const cot_scheduler *s)
{
    return s->pool.free_pages + s->pool.idle_pages;
}

static int32_t take_page(cot_scheduler *s, const cot_request_state *r)
{
    while (!s->pool.free_pages) cot_prefix_evict(&s->prefix);
    return cot_page_pool_take(&s->pool, r->home % s->limits.homes);
}

/* ---- coming and going ---- */

void cot_scheduler_close(cot_scheduler *s)
{
    for (int64_t i = 0; i < s->active_count; i++) {
        leave_cache(s, s->active[i]);
        free_request(s->active[i]);
    }
    free_all(s->waiting);
    free_all(s->ended);
    cot_prefix_close(&s->prefix);
    cot_page_pool_close(&s->pool);
    void *owned[] = {s->free_rows, s->active, s->by_row,  s->ids,  s->spans,
                     s->maps,      s->states, s->missing, s->left, s->share};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    *s = (cot_scheduler){0};
}

static bool is_before_text(const cot_request_state *r)
{
    return r->fed < r->prompt_tokens && r->known == r->prompt_tokens;
}

/* Cells of what is expected of a request that waits; 0 where nobody asks. */
static int64_t cells_of_request(const cot_scheduler *s)
{
    return s->limits.foresight.admits ? s->limits.foresight.cells : 0;
}

/* Where what is expected of it stands, which is so where somebody asks. */
static uint8_t *share_of(const cot_request_state *r)
{
    return (uint8_t *)(r->pages + cot_page_count(r->limit));
}

/* Looks whether something is known of its experts. */
static void foretell(const cot_scheduler *s, cot_request_state *r)
{
    const cot_scheduler_foresight *f = &s->limits.foresight;
    const cot_request text = {.prompt = r->tokens,
                              .prompt_tokens = r->prompt_tokens,
                              .cache_salt = r->salt ? r->salt->data : NULL,
                              .cache_salt_bytes = r->salt ? r->salt->bytes : 0};
    if (f->expect(f->context, share_of(r), &text)) r->share = share_of(r);
}

cot_request_state *cot_scheduler_submit(cot_scheduler *s, const cot_request *request, int64_t limit,
                                        int32_t home, size_t beside)
{
    const size_t aligned = (beside + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *),
                 numbers = (size_t)(limit + cot_page_count(limit));
    cot_request_state *r = malloc(sizeof *r + aligned + numbers * sizeof(int32_t) +
                                  (size_t)cells_of_request(s)); // the lists stand behind
    if (!r) return NULL;
    *r = (cot_request_state){.beside = r + 1,
                             .forced = request->forced,
                             .all_logits = request->all_logits,
                             .home = home,
                             .row = -1,
                             .recorded = request->recorded,
                             .prompt_tokens = request->prompt_tokens,
                             .text_begin = request->prompt_tokens - request->output_tokens,
                             .limit = limit,
                             .known = request->prompt_tokens,
                             .node = -1,
                             .resumes = -1,
                             .passing = -1,
                             .tokens = (int32_t *)(void *)((uint8_t *)(r + 1) + aligned)};
    bool failed;
    r->salt = cot_prefix_salt_new(request->cache_salt, request->cache_salt_bytes, &failed);
    if (failed) {
        free(r);
        return NULL;
    }
    r->id = ++s->last_id;
    r->pages = r->tokens + limit;
    const cot_request_state *first = request->after ? cot_scheduler_find(s, request->after) : NULL;
    if (first && is_before_text(first)) r->after = request->after;
    memcpy(r->tokens, request->prompt, (size_t)request->prompt_tokens * sizeof *r->tokens);
    if (request->forced && request->forced_tokens)
        memcpy(r->tokens + r->prompt_tokens, request->forced,
               (size_t)request->forced_tokens * sizeof *r->tokens);
    if (cells_of_request(s)) foretell(s, r);
    *s->waiting_end = r;
    s->waiting_end = &r->next;
    s->waiting_count++;
    return r;
}

/* Takes `r` out of the queue, wherever it stands. */
static void leave_queue(cot_scheduler *s, cot_request_state *r)
{
    cot_request_state **at = &s->waiting;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    if (!*at) s->waiting_end = at;
    r->next = NULL;
    s->waiting_count--;
}

/* Whether there are pages for all that it knows, beside what others will need for what they know. Blocks that it begins
 * with stay, and so do all pages that they name. */
static bool fits(cot_scheduler *s, const cot_request_state *r, int32_t node, int64_t blocks)
{
    int64_t room = pages_to_be_had(s) - cot_prefix_idle_pages(&s->prefix, node);
    for (int64_t i = 0; i < s->active_count; i++) room -= pages_to_take(s->active[i], s->active[i]->known);
    return cot_page_count(r->known) - blocks * s->limits.block / COT_KV_PAGE <= room;
}

uint8_t *cot_scheduler_retell(cot_scheduler *s, cot_request_state *r)
{
    if (!cells_of_request(s)) return NULL;
    s->missing_is_old = true;
    r->share = share_of(r);
    return share_of(r);
}

/* What those that are active are not expected to call. */
static void find_missing(cot_scheduler *s)
{
    if (!s->missing_is_old) return;
    cot_overlap_clear(s->missing, s->limits.foresight.cells);
    for (int64_t i = 0; i < s->active_count; i++) {
        if (!s->active[i]->share) foretell(s, s->active[i]); // by what was fed since it came
        if (s->active[i]->share) cot_overlap_take(s->missing, s->active[i]->share, s->limits.foresight.cells);
    }
    s->missing_is_old = false;
}

/* Those that could be admitted, the oldest first: one, or where there is foresight up to a window of them. Returns how many. */
static int64_t list_oldest(const cot_scheduler *s, cot_request_state *oldest[COT_OVERLAP_WINDOW])
{
    const int64_t most = cells_of_request(s) ? COT_OVERLAP_WINDOW : 1;
    int64_t n = 0;
    for (cot_request_state *r = s->waiting; r && n < most; r = r->next)
        if (!r->after) oldest[n++] = r;
    return n;
}

static int64_t choose(cot_scheduler *s, cot_request_state *const *oldest, int64_t n)
{
    cot_overlap_waiting waiting[COT_OVERLAP_WINDOW];
    if (n < 2) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (!oldest[i]->share) foretell(s, oldest[i]);
        waiting[i] = (cot_overlap_waiting){oldest[i]->share, oldest[i]->overtaken, oldest[i]->admissions > 0};
    }
    find_missing(s);
    return cot_overlap_admit(waiting, n, s->missing, s->limits.foresight.cells);
}

/* Whether it fits, beginning with the blocks up to *node, which are found. Where nobody will make room, it does without. */
static bool begins(cot_scheduler *s, const cot_request_state *r, int32_t *node, int64_t *blocks)
{
    const cot_prefix_root root = root_of(s, r);
    *node = -1;
    *blocks = 0;
    if (!r->all_logits) // which are told of tokens that are computed
        *node = cot_prefix_resume(&s->prefix, &root, r->tokens, r->known - 1, blocks);
    if (fits(s, r, *node, *blocks)) return true;
    *node = -1;
    *blocks = 0;
    return !s->active_count;
}

/* Finds where the prompt leaves those that begin alike, or where it was preempted: so far there are blocks. */
static void find_fork(cot_scheduler *s, cot_request_state *r)
{
    const cot_prefix_root root = root_of(s, r);
    int64_t blocks;
    if (!s->limits.snapshots || r->all_logits) return;
    cot_prefix_match(&s->prefix, &root, r->tokens, r->prompt_tokens - 1, &blocks);
    r->fork = blocks > r->found ? blocks * s->limits.block : 0;
}

cot_request_state *cot_scheduler_admit(cot_scheduler *s)
{
    cot_request_state *oldest[COT_OVERLAP_WINDOW];
    const int64_t waiting = list_oldest(s, oldest);
    if (!waiting || !s->free_row_count ||
        !cot_compose_admits(s->active, s->active_count, &s->limits, &s->cost))
        return NULL;
    int64_t blocks, next = choose(s, oldest, waiting);
    int32_t node;
    bool fit = begins(s, oldest[next], &node, &blocks);
    if (!fit && next) fit = begins(s, oldest[next = 0], &node, &blocks);
    if (!fit) return NULL;
    for (int64_t i = 0; i < next; i++) oldest[i]->overtaken++;
    cot_request_state *const r = oldest[next];
    if (r->share && !s->missing_is_old) cot_overlap_take(s->missing, r->share, s->limits.foresight.cells);
    leave_queue(s, r);
    r->row = s->free_rows[--s->free_row_count];
    s->active[s->active_count++] = s->by_row[r->row] = r;
    begin_with(s, r, node, blocks);
    find_fork(s, r);
    cot_scheduler_weigh_text(s, r);
    if (r->told < r->fed) r->told = r->fed; // also of one that is preempted before it is fed
    if (!r->admissions++ && !r->all_logits) {
        // of the prompt alone: output that was delivered before, behind it, is looked up too and counted nowhere
        s->queried_tokens += (uint64_t)r->text_begin;
        s->hit_tokens += (uint64_t)(r->fed < r->text_begin ? r->fed : r->text_begin);
    }
    return r;
}

cot_request_state *cot_scheduler_find(const cot_scheduler *s, uint64_t id)
{
    for (int64_t i = 0; i < s->active_count; i++)
        if (s->active[i]->id == id) return s->active[i];
    for (cot_request_state *r = s->waiting; r; r = r->next)
        if (r->id == id) return r;
    return NULL;
}

static void stop(cot_scheduler *s, cot_request_state *r)
{
    leave_cache(s, r);
    s->missing_is_old = true;
    s->free_rows[s->free_row_count++] = r->row;
    int64_t at = 0;
    while (s->active[at] != r) at++;
    s->active_count--;
    memmove(s->active + at, s->active + at + 1, (size_t)(s->active_count - at) * sizeof *s->active);
}

static void preempt(cot_scheduler *s, cot_request_state *r)
{
    stop(s, r);
    r->row = -1;
    r->next = s->waiting;
    if (!s->waiting) s->waiting_end = &r->next;
    s->waiting = r;
    s->waiting_count++;
    s->preemptions++;
}

/* The request has been fed its prompt, or is over: those that waited for that do so no more. */
static void free_followers(cot_scheduler *s, const cot_request_state *request)
{
    for (cot_request_state *r = s->waiting; r; r = r->next)
        if (r->after == request->id) r->after = 0;
}

void cot_scheduler_release(cot_scheduler *s, cot_request_state *r)
{
    assert(!r->ended);
    const int64_t restarts = r->row < 0 ? r->admissions : r->admissions - 1;
    s->ended_after[cot_smaller(restarts, COT_RESTART_CLASSES - 1)]++;
    s->ended_restarts += (uint64_t)restarts;
    if (r->row < 0)
        leave_queue(s, r);
    else
        stop(s, r);
    r->ended = true;
    free_followers(s, r);
    r->next = s->ended;
    s->ended = r;
}

void cot_scheduler_sweep(cot_scheduler *s)
{
    free_all(s->ended);
    s->ended = NULL;
}

/* ---- a step ---- */

/* Pages for the span's positions, where the sequence has none yet, and those that no plan has told. */
static void take_pages(cot_scheduler *s, cot_request_state *r, const cot_span *span, int32_t *maps)
{
    for (; r->maps_told < cot_page_count(span->position + span->tokens); r->maps_told++) {
        const int64_t index = r->maps_told;
        const bool is_new = index == r->pages_held, copied = index == r->shared && r->copied;
        if (is_new) r->pages[r->pages_held++] = take_page(s, r);
        const int32_t page = r->pages[index];
        assert(*maps < s->limits.step_maps);
        s->maps[(*maps)++] = (cot_page_map){.sequence = r->row,
                                            .index = (int32_t)index,
                                            .page = page,
                                            .from = copied ? r->copied_from : page,
                                            .home = (int16_t)r->home,
                                            .keep = (int16_t)(copied   ? r->copied
                                                              : is_new ? 0
                                                                       : COT_KV_PAGE)};
    }
}

/* ---- snapshots ---- */

/* Whether the states of a sequence are copied behind this block of the span that ends there, and as what. */
static bool is_kept_at(const cot_scheduler *s, const cot_request_state *r, int64_t position, int64_t end,
                       cot_prefix_snapshot_kind *kind)
{
    const int64_t block = s->limits.block;
    *kind = COT_SNAPSHOT_END;
    if (position >= r->prompt_tokens) return position + block > end; // the span's last
    const int64_t last = (r->prompt_tokens - COT_SNAPSHOT_TAIL) / block * block;
    if (position == last) return true;
    *kind = position == r->fork ? COT_SNAPSHOT_FORK : COT_SNAPSHOT_MARK;
    return position < last && (position == r->fork || position % COT_SNAPSHOT_TOKENS == 0);
}

static void copy_state(cot_scheduler *s, const cot_request_state *r, int64_t position, int32_t snapshot,
                       bool from)
{
    assert(s->state_count < s->limits.step_states);
    s->states[s->state_count++] =
        (cot_state_copy){r->row, snapshot, (int32_t)position, (int16_t)r->home, from};
}

static void reverse(cot_state_copy *copies, int32_t count)
{
    for (int32_t i = 0; i < count - 1 - i; i++) {
        const cot_state_copy first = copies[i];
        copies[i] = copies[count - 1 - i];
        copies[count - 1 - i] = first;
    }
}

/* What the span goes on from, and what is kept of it on the way. Places are taken from its end backwards: where there are fewer than it
 * could use, those farthest behind are kept, from which another text has the least to compute. Of its marks the last alone, and where
 * it has no end, takes a protected place. */
static void take_states(cot_scheduler *s, cot_request_state *r, const cot_span *span)
{
    const int64_t block = s->limits.block, end = span->position + span->tokens;
    if (r->resumes >= 0) {
        copy_state(s, r, span->position, r->resumes, true);
        cot_prefix_let_go_of_snapshot(&s->prefix, r->resumes); // it is read before the step writes any
        r->resumes = -1;
    }
    if (!s->limits.snapshots || r->alone) return;
    const int32_t first = s->state_count;
    bool has_any = false;
    for (int64_t p = end / block * block; p > span->position; p -= block) {
        cot_prefix_snapshot_kind kind;
        if (!is_kept_at(s, r, p, end, &kind)) continue;
        const int32_t to = cot_prefix_take_snapshot(&s->prefix, kind != COT_SNAPSHOT_MARK || !has_any);
        has_any = true;
        if (to >= 0) copy_state(s, r, p, to, false);
    }
    reverse(s->states + first, s->state_count - first);
}

/* The prompt's end, of so many blocks, is kept: what the text went on from is an older one. */
static void supersede(cot_scheduler *s, const cot_request_state *r, int64_t blocks)
{
    int32_t node = r->node;
    for (; blocks > r->found; blocks--) node = s->prefix.node[node].parent;
    cot_prefix_supersede_snapshots(&s->prefix, node);
}

/* The request's next block, r->node, is whole: what was copied behind it is its. */
static void keep_state(cot_scheduler *s, cot_request_state *r, int64_t position)
{
    for (int32_t i = 0; i < s->state_count; i++) {
        cot_state_copy *copy = &s->states[i];
        if (copy->sequence != r->row || copy->position != position || copy->from || copy->snapshot < 0)
            continue;
        const bool is_first = s->prefix.node[r->node].snapshot < 0;
        cot_prefix_snapshot_kind kind;
        is_kept_at(s, r, position, position, &kind);
        cot_prefix_keep_snapshot(&s->prefix, copy->snapshot, r->node, kind);
        copy->snapshot = -1;
        if (position < r->prompt_tokens && kind == COT_SNAPSHOT_END)
            supersede(s, r, position / s->limits.block);
        if (position < r->prompt_tokens) return;
        const cot_prefix_node *passed = r->passing >= 0 ? &s->prefix.node[r->passing] : NULL;
        if (passed && passed->holders == 1 && passed->snapshot >= 0)
            cot_prefix_drop_snapshot(&s->prefix, passed->snapshot);
        r->passing = is_first ? r->node : -1;
    }
}

/* Those of the last plan whose requests ended in its step are nobody's. */
static void drop_states(cot_scheduler *s)
{
    for (int32_t i = 0; i < s->state_count; i++)
        if (!s->states[i].from && s->states[i].snapshot >= 0)
            cot_prefix_drop_snapshot(&s->prefix, s->states[i].snapshot);
    s->state_count = 0;
}

/* Spans for which there are pages. */
static int32_t compose(cot_scheduler *s)
{
    for (;;) {
        const int32_t spans =
            cot_compose(s->spans, s->active, s->active_count, &s->limits, &s->cost, s->left);
        int64_t pages = 0;
        for (int32_t i = 0; i < spans; i++)
            pages +=
                pages_to_take(s->by_row[s->spans[i].sequence], s->spans[i].position + s->spans[i].tokens);
        if (pages <= pages_to_be_had(s)) return spans;
        cot_request_state *last = s->active[s->active_count - 1];
        if (s->active_count > 1) {
            preempt(s, last);
            continue;
        }
        assert(!last->alone); // what one sequence may come to fits into the pages
        let_go_of_blocks(s, last);
        last->alone = true;
    }
}

cot_step cot_scheduler_plan(cot_scheduler *s)
{
    cot_step step = {.ids = s->ids, .span = s->spans, .map = s->maps, .state = s->states};
    drop_states(s);
    cot_scheduler_weigh_step(s);
    step.spans = compose(s);
    for (int64_t i = 0; i < s->active_count; i++) s->active[i]->sat_out++;
    s->waited_steps += (uint64_t)s->active_count; // those with a part are taken off below
    for (int32_t i = 0; i < step.spans; i++) {
        const cot_span *span = &s->spans[i];
        cot_request_state *r = s->by_row[span->sequence];
        take_pages(s, r, span, &step.maps);
        take_states(s, r, span);
        r->sat_out = 0;
        s->waited_steps--;
        memcpy(s->ids + step.tokens, r->tokens + span->position, (size_t)span->tokens * sizeof *s->ids);
        step.tokens += span->tokens;
        step.logits += span->logits;
    }
    step.states = s->state_count;
    return step;
}

void cot_scheduler_fed(cot_scheduler *s, cot_request_state *r, int64_t tokens)
{
    const int64_t block = s->limits.block;
    const cot_prefix_root root = root_of(s, r);
    const bool was_before_text = r->fed < r->prompt_tokens;
    r->fed += tokens;
    if (r->told < r->fed) r->told = r->fed;
    for (; block && !r->alone && (r->blocks + 1) * block <= r->fed; r->blocks++) {
        r->node = cot_prefix_extend(&s->prefix, &root, r->node, r->tokens + r->blocks * block,
                                    r->pages[r->blocks * block / COT_KV_PAGE]);
        keep_state(s, r, (r->blocks + 1) * block);
    }
    if (was_before_text && r->fed >= r->prompt_tokens) free_followers(s, r);
}
