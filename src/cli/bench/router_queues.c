#include "cli/bench/router_queues.h"
#include "cli/frame/command.h"

#include "coterie/request.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = 0 };

/* A worker's kept blocks from the one used last to the first that goes. Numbers count from 1; behind those of prompts' blocks stand as
 * many as there are pages, which answers' blocks take in turn. */
typedef struct lru {
    uint32_t *newer, *older; // [numbers + pages + 1]; no newer one and not the newest: it is not kept
    uint32_t *pins;          // requests that use it
    uint32_t newest, oldest;
    int64_t kept;
    uint64_t answered; // blocks of answers so far
} lru;

typedef struct sent {
    uint64_t number; // in the book
    size_t request;
    int64_t first_token_ns, end_ns;
    bool began;
} sent;

typedef struct worker {
    lru lru;
    int64_t free_ns;
    double work_ns;
    sent *sent; // [count] what is not over, in the order of first tokens
    size_t count, room;
} worker;

typedef struct simulation {
    const cli_request_trace *trace;
    const cli_queues_options *options;
    cot_route_index *index;
    cot_route_book *book;
    worker *workers;
    uint64_t *keys;  // of all blocks of the trace
    uint32_t *depth; // [workers]
    bool *seen;      // [numbers]
    double *ttft;    // [count] s
    double found, asked, lost, novel;
} simulation;

/* A number stands for one beginning: a key of it alone will do. */
static uint64_t key_of(uint32_t number)
{
    const int32_t id = (int32_t)number;
    return cot_cache_local_hash(&id, 1);
}

static bool is_kept(const lru *l, uint32_t block)
{
    return l->newest == block || l->newer[block];
}

static void unlink_block(lru *l, uint32_t block)
{
    const uint32_t newer = l->newer[block], older = l->older[block];
    if (newer) l->older[newer] = older;
    if (older) l->newer[older] = newer;
    if (l->newest == block) l->newest = older;
    if (l->oldest == block) l->oldest = newer;
    l->newer[block] = l->older[block] = NONE;
}

static void touch(lru *l, uint32_t block)
{
    if (is_kept(l, block))
        unlink_block(l, block);
    else
        l->kept++;
    l->older[block] = l->newest;
    if (l->newest) l->newer[l->newest] = block;
    l->newest = block;
    if (!l->oldest) l->oldest = block;
}

/* Blocks go until all fit that are kept; those in use stay. */
static void evict(simulation *s, size_t w)
{
    lru *l = &s->workers[w].lru;
    for (uint32_t block = l->oldest, next; block && l->kept > s->options->pages; block = next) {
        next = l->newer[block];
        if (l->pins[block]) continue;
        unlink_block(l, block);
        l->kept--;
        const uint64_t key = key_of(block - 1);
        if (block <= s->trace->numbers) cot_route_index_remove(s->index, w, &key, 1);
    }
}

/* Nobody asks for an answer's blocks again. */
static void keep_answer(simulation *s, size_t w, const cot_load_test_line *r)
{
    lru *l = &s->workers[w].lru;
    int64_t n =
        (r->input_tokens + r->output_tokens) / COT_LOAD_TEST_HASHED - r->input_tokens / COT_LOAD_TEST_HASHED;
    for (; n; n--) {
        touch(l, s->trace->numbers + 1 + (uint32_t)(l->answered++ % (uint64_t)s->options->pages));
        evict(s, w);
    }
}

/* What came by now of what worker w was sent: first tokens and ends. */
static void go_on(simulation *s, size_t w, int64_t now_ns)
{
    worker *at = &s->workers[w];
    size_t left = 0;
    for (size_t i = 0; i < at->count; i++) {
        sent *p = &at->sent[i];
        const cot_load_test_line *r = &s->trace->requests[p->request];
        if (!p->began && p->first_token_ns <= now_ns) {
            cot_route_began(s->book, p->number, p->first_token_ns);
            p->began = true;
        }
        if (p->end_ns > now_ns) {
            at->sent[left++] = *p;
            continue;
        }
        cot_route_ended(s->book, p->number, (uint64_t)r->output_tokens, p->end_ns);
        for (size_t b = 0; s->options->pinned && b < r->blocks; b++)
            at->lru.pins[s->trace->blocks.ids[r->first_block + b] + 1]--;
        if (s->options->generated) keep_answer(s, w, r);
    }
    at->count = left;
}

static bool send(worker *w, sent prompt)
{
    if (w->count == w->room) {
        const size_t room = w->room ? 2 * w->room : 64;
        sent *grown = realloc(w->sent, room * sizeof *grown);
        if (!grown) return false;
        w->sent = grown;
        w->room = room;
    }
    w->sent[w->count++] = prompt;
    return true;
}

static void count_blocks(simulation *s, const cot_load_test_line *r, size_t cached)
{
    for (size_t i = 0; i < r->blocks; i++) {
        bool *seen = &s->seen[s->trace->blocks.ids[r->first_block + i]];
        if (i >= cached) *(*seen ? &s->lost : &s->novel) += 1;
        *seen = true;
    }
}

static bool out_of_memory(void)
{
    cli_complain("out of memory for queues");
    return false;
}

static bool arrive(simulation *s, size_t request)
{
    const cot_load_test_line *r = &s->trace->requests[request];
    const uint64_t *keys = s->keys + r->first_block;
    const uint32_t *blocks = s->trace->blocks.ids + r->first_block;
    for (size_t w = 0; w < s->options->workers; w++) go_on(s, w, r->at_ns);
    cot_route_index_match(s->index, s->depth, keys, r->blocks);
    const cot_route_request asked = {r->blocks, (uint64_t)r->input_tokens, (uint64_t)r->output_tokens,
                                     s->depth, keys};
    cot_route_decision d;
    if (!cot_route_choose(s->book, &asked, r->at_ns, &d)) return out_of_memory();
    const uint64_t number = cot_route_assigned(s->book, &asked, &d, r->at_ns);
    worker *w = &s->workers[d.target];
    const double work_ns = 1e9 * ((double)r->input_tokens - (double)d.cached) / s->options->tokens_per_second;
    const int64_t begin = w->free_ns > r->at_ns ? w->free_ns : r->at_ns;
    w->free_ns = begin + (int64_t)work_ns;
    w->work_ns += work_ns;
    const int64_t end_ns = w->free_ns + (int64_t)((double)r->output_tokens * s->options->token_ns);
    if (!number || !send(w, (sent){number, request, w->free_ns, end_ns, false})) return out_of_memory();
    s->ttft[request] = (double)(w->free_ns - r->at_ns) / 1e9;
    s->found += (double)d.cached;
    s->asked += (double)r->input_tokens;
    count_blocks(s, r, s->depth[d.target]);
    cot_route_stored stored = {0};
    if (cot_route_index_store(s->index, d.target, NULL, keys, r->blocks, &stored)) return out_of_memory();
    if (stored.collided) {
        cli_complain("request %zu: a hash id stands behind another one than before", request + 1);
        return false;
    }
    for (size_t i = r->blocks; i-- > 0;) { // the last goes first
        touch(&w->lru, blocks[i] + 1);
        w->lru.pins[blocks[i] + 1] += s->options->pinned;
    }
    evict(s, d.target);
    return true;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between the two nearest values. */
static double percentile(const double *sorted, size_t n, double part)
{
    const double at = part * (double)(n - 1);
    const size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (sorted[high] - sorted[low]) * (at - (double)low);
}

static void sum_up(simulation *s, cli_queues_result *result)
{
    const size_t n = s->trace->count;
    double sum = 0, work = 0, most = 0;
    for (size_t i = 0; i < n; i++) sum += s->ttft[i];
    for (size_t w = 0; w < s->options->workers; w++) {
        work += s->workers[w].work_ns;
        if (s->workers[w].work_ns > most) most = s->workers[w].work_ns;
    }
    qsort(s->ttft, n, sizeof *s->ttft, by_size);
    *result = (cli_queues_result){.hit = s->found / s->asked,
                                  .ttft_mean = sum / (double)n,
                                  .ttft_p50 = percentile(s->ttft, n, 0.5),
                                  .ttft_p90 = percentile(s->ttft, n, 0.9),
                                  .ttft_p99 = percentile(s->ttft, n, 0.99),
                                  .busiest = most * (double)s->options->workers / work,
                                  .regret = s->lost / (s->lost + s->novel)};
}

static bool open_workers(simulation *s, cot_route_policy policy)
{
    const size_t workers = s->options->workers,
                 numbers = (size_t)s->trace->numbers + (size_t)s->options->pages + 1;
    cot_error error;
    if (cot_route_index_open(&s->index, workers, &error) ||
        cot_route_book_open(&s->book, workers, COT_LOAD_TEST_HASHED, policy, s->options->seed, &error)) {
        cli_complain_of(&error);
        return false;
    }
    s->workers = calloc(workers, sizeof *s->workers);
    s->depth = calloc(workers, sizeof *s->depth);
    s->seen = calloc((size_t)s->trace->numbers + 1, sizeof *s->seen);
    s->ttft = calloc(s->trace->count, sizeof *s->ttft);
    s->keys = calloc(s->trace->blocks.count + 1, sizeof *s->keys);
    if (!s->workers || !s->depth || !s->seen || !s->ttft || !s->keys) return out_of_memory();
    for (size_t i = 0; i < s->trace->blocks.count; i++) s->keys[i] = key_of(s->trace->blocks.ids[i]);
    for (size_t w = 0; w < workers; w++) {
        lru *l = &s->workers[w].lru;
        l->newer = calloc(numbers, sizeof *l->newer);
        l->older = calloc(numbers, sizeof *l->older);
        l->pins = calloc(numbers, sizeof *l->pins);
        if (!l->newer || !l->older || !l->pins) return out_of_memory();
        const cot_route_costs costs = {.token_ns = 1e9 / s->options->tokens_per_second};
        cot_route_book_set_costs(s->book, w, &costs);
    }
    return true;
}

bool cli_router_queues(cli_queues_result *result, const cli_request_trace *trace, cot_route_policy policy,
                       const cli_queues_options *options)
{
    simulation s = {.trace = trace, .options = options};
    bool good = open_workers(&s, policy);
    for (size_t i = 0; good && i < trace->count; i++) good = arrive(&s, i);
    if (good) sum_up(&s, result);
    for (size_t w = 0; s.workers && w < options->workers; w++) {
        free(s.workers[w].lru.newer);
        free(s.workers[w].lru.older);
        free(s.workers[w].lru.pins);
        free(s.workers[w].sent);
    }
    free(s.workers);
    free(s.depth);
    free(s.seen);
    free(s.ttft);
    free(s.keys);
    cot_route_book_close(s.book);
    cot_route_index_close(s.index);
    return good;
}
