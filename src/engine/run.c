/* Requests to their ends: admission, a step's composition, what comes out of it. */
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A request under way. Its KV cache holds `fed` tokens; `tokens` holds those and the ones to feed next. */
struct sequence {
    size_t request;
    const cot_request *r;
    int32_t row;        // of the page tables
    int64_t limit;      // most tokens it may come to: reserved in pages
    int64_t fed, known; // known: tokens in the list, prompt, then generated or (revealed so far) forced
    int32_t *tokens;    // [limit]
    int32_t *pages;     // [pages of limit]
    int64_t pages_mapped;
};

struct run {
    cot_engine *e;
    const cot_events *events;
    struct sequence **active; // in order of admission
    int64_t active_count;
    int32_t *free_rows;
    int64_t free_row_count;
    int64_t reserved_pages;
    /* The step under construction, and which sequence each span is of. */
    cot_step step;
    struct sequence **of_span;
};

static int64_t pages_of(int64_t tokens)
{
    return (tokens + COT_KV_PAGE - 1) / COT_KV_PAGE;
}

/* The most tokens that a request can come to. The last token generated is not fed. */
static int64_t limit_of(const cot_engine *e, const cot_request *r)
{
    int64_t more = r->forced ? r->forced_tokens : r->sampling.max_tokens, context = e->config->max_context;
    return more > context - r->prompt_tokens ? context : r->prompt_tokens + more;
}

/* ---- checks before anything runs ---- */

static cot_status check_tokens(const cot_engine *e, size_t request, const int32_t *tokens, int64_t n,
                               cot_error *error)
{
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= e->config->vocab)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "request %zu: token %lld is %d, the vocabulary has %lld", request, (long long)i,
                            tokens[i], (long long)e->config->vocab);
    return COT_OK;
}

static cot_status check_request(const cot_engine *e, size_t request, const cot_request *r, cot_error *error)
{
    int64_t forced = r->forced ? r->forced_tokens : 0, context = e->config->max_context;
    if (r->prompt_tokens < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "request %zu: the prompt is empty", request);
    if (forced < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "request %zu: %lld forced tokens", request,
                        (long long)forced);
    if (r->prompt_tokens > context || forced > context - r->prompt_tokens)
        return cot_fail(error, COT_TOO_LONG, "request %zu: %llu tokens, the context is %lld", request,
                        (unsigned long long)r->prompt_tokens + (unsigned long long)forced,
                        (long long)context);
    if (pages_of(limit_of(e, r)) > e->runner.pages)
        return cot_fail(error, COT_OUT_OF_MEMORY, "request %zu: up to %lld tokens, the KV cache holds %lld",
                        request, (long long)limit_of(e, r), (long long)(e->runner.pages * COT_KV_PAGE));
    cot_error detail = {0};
    cot_status status = r->forced ? COT_OK : cot_sampling_check(&r->sampling, &detail);
    if (status != COT_OK) return cot_fail(error, status, "request %zu: %s", request, detail.message);
    status = check_tokens(e, request, r->prompt, r->prompt_tokens, error);
    if (status == COT_OK && r->forced) status = check_tokens(e, request, r->forced, r->forced_tokens, error);
    return status;
}

/* ---- admission ---- */

static void finish(struct run *run, struct sequence *s, cot_finish reason)
{
    if (run->events->on_finish) run->events->on_finish(run->events->context, s->request, reason);
    for (int64_t p = 0; p < s->pages_mapped; p++) run->e->free_pages[run->e->free_page_count++] = s->pages[p];
    run->reserved_pages -= pages_of(s->limit);
    run->free_rows[run->free_row_count++] = s->row;
    s->r = NULL; // ended: swept by the next pass over the active ones
}

/* A generated sequence has come to its limit: max_tokens, or the context where that is less. */
static cot_finish why_full(const struct sequence *s)
{
    return s->r->sampling.max_tokens > s->limit - s->r->prompt_tokens ? COT_FINISH_CONTEXT
                                                                      : COT_FINISH_LENGTH;
}

static void free_sequence(struct sequence *s)
{
    if (!s) return;
    free(s->tokens);
    free(s->pages);
    free(s);
}

static void sweep(struct run *run)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < run->active_count; i++) {
        if (run->active[i]->r)
            run->active[kept++] = run->active[i];
        else
            free_sequence(run->active[i]);
    }
    run->active_count = kept;
}

static bool fits(const struct run *run, const cot_request *r)
{
    return run->free_row_count && run->reserved_pages + pages_of(limit_of(run->e, r)) <= run->e->runner.pages;
}

static cot_status admit(struct run *run, size_t request, const cot_request *r, cot_error *error)
{
    struct sequence *s = calloc(1, sizeof *s);
    int64_t limit = limit_of(run->e, r);
    if (s) {
        *s = (struct sequence){.request = request, .r = r, .limit = limit, .known = r->prompt_tokens};
        s->tokens = calloc((size_t)limit, sizeof *s->tokens);
        s->pages = calloc((size_t)pages_of(limit), sizeof *s->pages);
    }
    if (!s || !s->tokens || !s->pages) {
        free_sequence(s);
        return cot_fail(error, COT_OUT_OF_MEMORY, "request %zu: out of memory", request);
    }
    memcpy(s->tokens, r->prompt, (size_t)r->prompt_tokens * sizeof *s->tokens);
    s->row = run->free_rows[--run->free_row_count];
    run->reserved_pages += pages_of(limit);
    run->active[run->active_count++] = s;
    if (!r->forced && s->known == limit) // nothing may be generated, and nobody asked for logits
        if (!r->all_logits) finish(run, s, why_full(s));
    return COT_OK;
}

/* ---- a step ---- */

static void add_span(struct run *run, struct sequence *s, int64_t tokens, int64_t logits)
{
    cot_engine *e = run->e;
    int32_t home = (int32_t)(s->request % (size_t)e->info.ranks);
    for (; s->pages_mapped < pages_of(s->fed + tokens); s->pages_mapped++) {
        int32_t page = s->pages[s->pages_mapped] = e->free_pages[--e->free_page_count];
        e->maps[run->step.maps++] = (cot_page_map){s->row, (int32_t)s->pages_mapped, page, home};
    }
    memcpy(e->ids + run->step.tokens, s->tokens + s->fed, (size_t)tokens * sizeof *e->ids);
    run->of_span[run->step.spans] = s;
    e->spans[run->step.spans++] = (cot_span){s->row, home, (int32_t)s->fed, (int32_t)tokens, (int32_t)logits};
    run->step.tokens += (int32_t)tokens;
    run->step.logits += (int32_t)logits;
}

/* Sequences that decode first, a token each, then prompts in order of admission, cut to what is left of the
 * step. */
static void compose(struct run *run)
{
    cot_engine *e = run->e;
    run->step = (cot_step){.ids = e->ids, .span = e->spans, .map = e->maps};
    for (int prompts = 0; prompts < 2; prompts++)
        for (int64_t i = 0; i < run->active_count; i++) {
            struct sequence *s = run->active[i];
            int64_t tokens = s->known - s->fed, room = e->runner.step_tokens - run->step.tokens;
            int64_t rows = e->runner.step_logits - run->step.logits;
            if (prompts != (s->fed < s->r->prompt_tokens) || room < 1 || rows < 1) continue;
            if (tokens > room) tokens = room;
            if (s->r->all_logits && tokens > rows) tokens = rows;
            add_span(run, s, tokens, s->r->all_logits ? tokens : s->fed + tokens == s->known);
        }
}

static bool ends_text(const cot_config *c, int32_t token)
{
    for (size_t i = 0; i < c->eos_count; i++)
        if (c->eos[i] == token) return true;
    return false;
}

/* The sequence has been fed all it knows: what comes next, or is it over? `logits` is the last token's. */
static cot_status advance(struct run *run, struct sequence *s, const float *logits, cot_error *error)
{
    cot_engine *e = run->e;
    if (s->r->forced) {
        int64_t next = s->known - s->r->prompt_tokens;
        if (next < s->r->forced_tokens)
            s->tokens[s->known++] = s->r->forced[next];
        else
            finish(run, s, COT_FINISH_LENGTH);
        return COT_OK;
    }
    if (s->known >= s->limit) {
        finish(run, s, why_full(s));
        return COT_OK;
    }
    int32_t token;
    memcpy(e->penalised, logits, (size_t)e->config->vocab * sizeof *logits);
    cot_error detail = {0};
    cot_status status = cot_sample(&token, e->penalised, e->config->vocab, s->tokens, s->known,
                                   &s->r->sampling, s->known, e->candidates, e->seen, &detail);
    if (status != COT_OK) return cot_fail(error, status, "request %zu: %s", s->request, detail.message);
    if (!s->r->sampling.ignore_eos && ends_text(e->config, token)) {
        finish(run, s, COT_FINISH_EOS);
        return COT_OK;
    }
    s->tokens[s->known++] = token;
    if (run->events->on_token && !run->events->on_token(run->events->context, s->request, token))
        finish(run, s, COT_FINISH_STOP);
    else if (s->known >= s->limit)
        finish(run, s, why_full(s));
    return COT_OK;
}

static void tell_routing(struct run *run, const uint16_t *experts, const float *weights)
{
    cot_engine *e = run->e;
    int64_t k = e->config->gate.top_k, token = 0;
    for (int32_t i = 0; i < run->step.spans; i++)
        for (int32_t t = 0; t < run->step.span[i].tokens; t++, token++) {
            for (int64_t l = 0; l < e->config->moe_layers; l++) {
                int64_t from = (l * e->runner.step_tokens + token) * k;
                memcpy(e->token_experts + l * k, experts + from, (size_t)k * sizeof *experts);
                memcpy(e->token_weights + l * k, weights + from, (size_t)k * sizeof *weights);
            }
            run->events->on_routing(run->events->context, run->of_span[i]->request,
                                    run->step.span[i].position + t, run->step.ids[token], e->token_experts,
                                    e->token_weights);
        }
}

/* Hands out the logits of a span. Those that a caller judges a model by must be numbers. */
static cot_status tell_logits(struct run *run, const struct sequence *s, const cot_span *span,
                              const float *logits, cot_error *error)
{
    int64_t vocab = run->e->config->vocab;
    for (int32_t t = 0; t < span->logits; t++, logits += vocab) {
        int64_t position = span->position + span->tokens - span->logits + t;
        for (int64_t v = 0; v < vocab; v++)
            if (!isfinite(logits[v]))
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "request %zu: the logits after token %lld are not finite: the model's values "
                                "overflowed",
                                s->request, (long long)position);
        run->events->on_logits(run->events->context, s->request, position, logits);
    }
    return COT_OK;
}

static cot_status take_results(struct run *run, const float *logits, cot_error *error)
{
    cot_status status = COT_OK;
    for (int32_t i = 0; i < run->step.spans && status == COT_OK; i++) {
        const cot_span *span = &run->step.span[i];
        struct sequence *s = run->of_span[i];
        if (s->r->all_logits && run->events->on_logits) status = tell_logits(run, s, span, logits, error);
        s->fed += span->tokens;
        logits += (int64_t)span->logits * run->e->config->vocab;
        if (status == COT_OK && s->fed == s->known)
            status = advance(run, s, logits - run->e->config->vocab, error);
    }
    return status;
}

static cot_status step(struct run *run, cot_error *error)
{
    cot_engine *e = run->e;
    const float *logits, *weights;
    const uint16_t *experts;
    compose(run);
    bool prefill = false;
    for (int32_t i = 0; i < run->step.spans; i++)
        prefill |= run->of_span[i]->fed < run->of_span[i]->r->prompt_tokens;
    int64_t began_ns = cot_now_ns();
    cot_status status = cot_group_step(e->group, &run->step, &logits, &experts, &weights, error);
    if (status != COT_OK) return status;
    e->last_step_ns = cot_now_ns() - began_ns;
    e->steps++;
    *(prefill ? &e->prefill_ns : &e->decode_ns) += e->last_step_ns;
    *(prefill ? &e->prefill_tokens : &e->decode_tokens) += run->step.tokens;
    if (experts)
        *(prefill ? &e->prefill_read_bytes : &e->decode_read_bytes) +=
            cot_engine_read_bytes(e, &run->step, experts);
    if (experts && run->events->on_routing) tell_routing(run, experts, weights);
    return take_results(run, logits, error);
}

static void end(struct run *run)
{
    for (int64_t i = 0; i < run->active_count; i++) free_sequence(run->active[i]);
    free(run->active);
    free(run->free_rows);
    free(run->of_span);
}

cot_status cot_engine_run(cot_engine *e, const cot_request *requests, size_t count, const cot_events *events,
                          cot_error *error)
{
    if (e->failed)
        return cot_fail(error, COT_PEER_FAILED, "an earlier step failed: the engine must be closed");
    for (size_t i = 0; i < count; i++) {
        cot_status status = check_request(e, i, &requests[i], error);
        if (status != COT_OK) return status;
    }
    struct run run = {.e = e, .events = events};
    size_t rows = (size_t)e->runner.sequences;
    run.active = calloc(rows, sizeof *run.active);
    run.free_rows = calloc(rows, sizeof *run.free_rows);
    run.of_span = calloc(rows, sizeof *run.of_span);
    cot_status status = COT_OK;
    if (!run.active || !run.free_rows || !run.of_span)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < rows && status == COT_OK; i++)
        run.free_rows[run.free_row_count++] = (int32_t)(rows - 1 - i);
    size_t next = 0;
    while (status == COT_OK && (next < count || run.active_count)) {
        while (status == COT_OK && next < count && fits(&run, &requests[next])) {
            status = admit(&run, next, &requests[next], error);
            next++;
            sweep(&run);
        }
        if (status == COT_OK && run.active_count) {
            status = step(&run, error);
            if (status != COT_OK) e->failed = true;
        }
        sweep(&run);
    }
    end(&run);
    return status;
}
