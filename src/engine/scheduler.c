#include "engine/scheduler.h"

#include "base/error.h"
#include "engine/compose.h"
#include "model/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_scheduler_open(cot_scheduler *s, const cot_scheduler_limits *limits, cot_error *error)
{
    size_t rows = (size_t)limits->sequences, tokens = (size_t)limits->step_tokens;
    *s = (cot_scheduler){.limits = *limits, .waiting_end = &s->waiting};
    cot_status status = cot_page_pool_open(&s->pool, limits->pages, limits->homes, error);
    if (status != COT_OK) return status;
    s->free_rows = calloc(rows, sizeof *s->free_rows);
    s->active = calloc(rows, sizeof *s->active);
    s->by_row = calloc(rows, sizeof *s->by_row);
    s->ids = calloc(tokens, sizeof *s->ids);
    s->spans = calloc(tokens, sizeof *s->spans);
    s->maps = calloc(2 * tokens, sizeof *s->maps);
    if (!s->free_rows || !s->active || !s->by_row || !s->ids || !s->spans || !s->maps)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the scheduler's tables");
    while (s->free_row_count < limits->sequences) {
        s->free_rows[s->free_row_count] = (int32_t)(limits->sequences - 1 - s->free_row_count);
        s->free_row_count++;
    }
    return COT_OK;
}

static void free_all(cot_request_state *first)
{
    while (first) {
        cot_request_state *next = first->next;
        free(first);
        first = next;
    }
}

void cot_scheduler_close(cot_scheduler *s)
{
    for (int64_t i = 0; i < s->active_count; i++) free(s->active[i]);
    free_all(s->waiting);
    free_all(s->ended);
    cot_page_pool_close(&s->pool);
    void *owned[] = {s->free_rows, s->active, s->by_row, s->ids, s->spans, s->maps};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    *s = (cot_scheduler){0};
}

/* ---- coming and going ---- */

/* Copies n numbers of 4 bytes to *end and moves that behind them; returns where they are. */
static void *keep(int32_t **end, const void *numbers, size_t n)
{
    void *at = *end;
    if (n) memcpy(at, numbers, n * sizeof **end);
    *end += n;
    return at;
}

static bool is_before_text(const cot_request_state *r)
{
    return r->fed < r->prompt_tokens && r->known == r->prompt_tokens;
}

cot_request_state *cot_scheduler_submit(cot_scheduler *s, const cot_request *request, int64_t limit,
                                        int32_t home)
{
    const cot_sampling *sampling = &request->sampling;
    const size_t biases = request->forced ? 0 : sampling->bias_count,
                 stops = request->forced ? 0 : sampling->stop_count;
    size_t numbers = (size_t)(limit + cot_kv_pages(limit)) + 2 * biases + stops;
    cot_request_state *r = malloc(sizeof *r + numbers * sizeof(int32_t)); // one block: the lists stand behind
    if (!r) return NULL;
    *r = (cot_request_state){.id = ++s->last_id,
                             .sampling = request->sampling,
                             .forced = request->forced,
                             .all_logits = request->all_logits,
                             .home = home,
                             .row = -1,
                             .logprobs = request->logprobs,
                             .prompt_tokens = request->prompt_tokens,
                             .text_begin = request->prompt_tokens - request->output_tokens,
                             .limit = limit,
                             .known = request->prompt_tokens,
                             .tokens = (int32_t *)(r + 1)};
    r->pages = r->tokens + limit;
    int32_t *end = r->pages + cot_kv_pages(limit);
    r->sampling.bias_tokens = keep(&end, sampling->bias_tokens, biases);
    r->sampling.bias = keep(&end, sampling->bias, biases);
    r->sampling.stop_tokens = keep(&end, sampling->stop_tokens, stops);
    const cot_request_state *first = request->after ? cot_scheduler_find(s, request->after) : NULL;
    if (first && is_before_text(first)) r->after = request->after;
    memcpy(r->tokens, request->prompt, (size_t)request->prompt_tokens * sizeof *r->tokens);
    if (request->forced && request->forced_tokens)
        memcpy(r->tokens + r->prompt_tokens, request->forced,
               (size_t)request->forced_tokens * sizeof *r->tokens);
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

cot_request_state *cot_scheduler_admit(cot_scheduler *s)
{
    cot_request_state *r = s->waiting;
    while (r && r->after) r = r->next;
    if (!r || !s->free_row_count || s->counted_pages + cot_kv_pages(r->limit) > s->limits.pages) return NULL;
    leave_queue(s, r);
    r->row = s->free_rows[--s->free_row_count];
    s->counted_pages += cot_kv_pages(r->limit);
    s->active[s->active_count++] = s->by_row[r->row] = r;
    return r;
}

void cot_scheduler_free_followers(cot_scheduler *s, const cot_request_state *request)
{
    for (cot_request_state *r = s->waiting; r; r = r->next)
        if (r->after == request->id) r->after = 0;
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
    for (int64_t p = 0; p < r->pages_held; p++) cot_page_pool_release(&s->pool, r->pages[p]);
    s->counted_pages -= cot_kv_pages(r->limit);
    s->free_rows[s->free_row_count++] = r->row;
    int64_t at = 0;
    while (s->active[at] != r) at++;
    s->active_count--;
    memmove(s->active + at, s->active + at + 1, (size_t)(s->active_count - at) * sizeof *s->active);
}

void cot_scheduler_release(cot_scheduler *s, cot_request_state *r)
{
    assert(!r->ended);
    if (r->row < 0)
        leave_queue(s, r);
    else
        stop(s, r);
    r->ended = true;
    cot_scheduler_free_followers(s, r);
    r->next = s->ended;
    s->ended = r;
}

void cot_scheduler_sweep(cot_scheduler *s)
{
    free_all(s->ended);
    s->ended = NULL;
}

/* ---- a step ---- */

/* Pages for the span's positions, where the sequence has none yet. */
static void take_pages(cot_scheduler *s, cot_request_state *r, const cot_span *span, int32_t *maps)
{
    for (; r->pages_held < cot_kv_pages(span->position + span->tokens); r->pages_held++) {
        int32_t page = r->pages[r->pages_held] = cot_page_pool_take(&s->pool, r->home % s->limits.homes);
        s->maps[(*maps)++] = (cot_page_map){
            .sequence = r->row, .index = (int32_t)r->pages_held, .page = page, .home = (int16_t)r->home};
    }
}

cot_step cot_scheduler_plan(cot_scheduler *s)
{
    cot_step step = {.ids = s->ids, .span = s->spans, .map = s->maps};
    step.spans = cot_compose(s->spans, s->active, s->active_count, &s->limits);
    for (int32_t i = 0; i < step.spans; i++) {
        const cot_span *span = &s->spans[i];
        cot_request_state *r = s->by_row[span->sequence];
        take_pages(s, r, span, &step.maps);
        memcpy(s->ids + step.tokens, r->tokens + span->position, (size_t)span->tokens * sizeof *s->ids);
        step.tokens += span->tokens;
        step.logits += span->logits;
    }
    return step;
}
