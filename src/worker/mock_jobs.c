/* Jobs of the mock: from waiting to running, and what ends them early. */
#include "worker/mock_worker.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

#include <event2/event.h>
#include <stdlib.h>

int64_t cot_mock_pages(const cot_mock_job *m)
{
    return (m->job->request.prompt_tokens + m->told_count + COT_MOCK_PAGE_TOKENS - 1) / COT_MOCK_PAGE_TOKENS;
}

/* Where most of the prompt is kept; among equals where the fewest pages are held, then the first. */
static int choose_home(const cot_mock_worker *b, const cot_request *r)
{
    int best = 0;
    size_t best_blocks = 0;
    int64_t best_pages = 0;
    for (int home = 0; home < b->mock->homes; home++) {
        const size_t blocks = cot_mock_cache_find(&b->cache[home], r, r->prompt_tokens - 1);
        int64_t pages = 0;
        for (const cot_mock_job *m = b->running; m; m = m->next)
            pages += m->home == home ? cot_mock_pages(m) : 0;
        if (home && (blocks < best_blocks || (blocks == best_blocks && pages >= best_pages))) continue;
        best = home;
        best_blocks = blocks;
        best_pages = pages;
    }
    return best;
}

/* The cache is asked, and the first token's time is known. True: nothing may be generated, and the job is gone. */
static bool admit(cot_mock_worker *b, cot_mock_job *m)
{
    const cot_request *r = &m->job->request;
    cot_job_event event = {.kind = COT_JOB_ADMITTED};
    b->state.prompt_tokens += r->prompt_tokens - r->output_tokens;
    if (r->output_tokens >= r->sampling.max_tokens && !r->all_logits) {
        cot_mock_tell_over(b, m, COT_FINISH_LENGTH, NULL, false);
        return true;
    }
    if (m->job->home != COT_HOME_ANY)
        m->home = m->job->home;
    else if (m->home < 0)
        m->home = choose_home(b, r);
    if (!r->all_logits) {
        m->cached_tokens =
            (int64_t)cot_mock_cache_find(&b->cache[m->home], r, r->prompt_tokens - 1) * b->mock->block_tokens;
        b->state.load.queried_tokens += (uint64_t)(r->prompt_tokens - r->output_tokens);
        b->state.load.hit_tokens += (uint64_t)m->cached_tokens;
    }
    const double ttft_ms =
        b->mock->ttft_ms + b->mock->ttft_ms_per_token * (double)(r->prompt_tokens - m->cached_tokens);
    b->stalled += m->stall_after == 0;
    m->due_ns = m->stall_after == 0 ? INT64_MAX : cot_now_ns() + cot_mock_ns(ttft_ms) + m->late_ns;
    m->next = b->running;
    b->running = m;
    b->state.load.running++;
    event.cached_tokens = m->cached_tokens;
    cot_mock_tell(b, m, &event);
    return false;
}

static cot_mock_job *take_waiting(cot_mock_worker *b, cot_mock_job **at)
{
    cot_mock_job *m = *at;
    *at = m->next;
    if (!*at) b->last_waiting = at;
    b->state.load.waiting--;
    return m;
}

void cot_mock_admit(cot_mock_worker *b)
{
    static const cot_error full = {COT_OUT_OF_MEMORY, "the worker takes no more now"};
    for (cot_mock_job **at = &b->waiting; *at;) {
        if ((*at)->refuses)
            cot_mock_tell_over(b, take_waiting(b, at), COT_FINISH_CANCELLED, &full, true);
        else if ((*at)->leader || b->state.load.running >= b->mock->sequences)
            at = &(*at)->next;
        else
            admit(b, take_waiting(b, at));
    }
}

static void take_running(cot_mock_worker *b, cot_mock_job **at)
{
    *at = (*at)->next;
    b->state.load.running--;
}

void cot_mock_end_lost(cot_mock_worker *b)
{
    static const cot_error no_memory = {COT_OUT_OF_MEMORY, "out of memory for a sequence"};
    for (cot_job *job; (job = b->lost);) {
        const cot_job_event event = {.kind = COT_JOB_OVER,
                                     .at_ns = cot_now_ns(),
                                     .text = "",
                                     .last = true,
                                     .finish = COT_FINISH_CANCELLED,
                                     .stopped_by = -1,
                                     .error = job->is_cancelled ? NULL : &no_memory};
        b->lost = job->next;
        job->is_over = true;
        b->owner.on_event(b->owner.context, job->number, &event);
    }
}

void cot_mock_end_cancelled(cot_mock_worker *b)
{
    for (cot_mock_job **at = &b->waiting; *at;)
        if ((*at)->job->is_cancelled)
            cot_mock_tell_over(b, take_waiting(b, at), COT_FINISH_CANCELLED, NULL, false);
        else
            at = &(*at)->next;
    for (cot_mock_job **at = &b->running, *m; (m = *at);)
        if (m->job->is_cancelled) {
            take_running(b, at);
            cot_mock_tell_over(b, m, COT_FINISH_CANCELLED, NULL, false);
        } else
            at = &m->next;
}

void cot_mock_end(cot_mock_worker *b, const cot_error *error)
{
    for (cot_mock_job *m; (m = b->running);) {
        take_running(b, &b->running);
        cot_mock_tell_over(b, m, COT_FINISH_CANCELLED, error, false);
    }
    while (b->waiting)
        cot_mock_tell_over(b, take_waiting(b, &b->waiting), COT_FINISH_CANCELLED, error, false);
    cot_mock_end_lost(b);
}

bool cot_mock_dies(cot_mock_worker *b)
{
    for (size_t f = 0; f < b->mock->fault_count && !b->state.failed; f++) {
        const cot_mock_fault *fault = &b->mock->faults[f];
        const bool fatal = fault->kind == COT_MOCK_DIE || fault->kind == COT_MOCK_FAIL;
        if (!fatal || (fault->worker >= 0 && fault->worker != b->index) || b->tokens < fault->after_tokens)
            continue;
        b->state.failed = true;
        cot_fail(&b->state.error, COT_PEER_FAILED, "the mock has told %lld tokens, and was to fail then",
                 (long long)b->tokens);
        b->dead = fault->kind == COT_MOCK_DIE;
        if (b->dead) event_base_loopbreak(b->loop); // whoever closes the server cuts its connections
    }
    if (!b->state.failed || b->dead) return b->dead;
    cot_mock_end(b, &b->state.error);
    if (!b->failure_told) {
        b->failure_told = true;
        b->owner.on_failure(b->owner.context);
        b->owner.on_gone(b->owner.context);
    }
    return true;
}

void cot_mock_tell_due(cot_mock_worker *b, int64_t now_ns)
{
    for (cot_mock_job **at = &b->running, *m; (m = *at);) {
        cot_mock_job *const next = m->next;
        if (m->due_ns > now_ns || m->job->is_cancelled) {
            at = &m->next;
            continue;
        }
        const bool first = !m->told_count;
        *at = next; // out of the list, in case it is the last
        if (cot_mock_tell_token(b, m)) {
            b->state.load.running--;
        } else {
            *at = m;
            at = &m->next;
            m->due_ns += cot_mock_ns(b->mock->tpot_ms);
            if (m->told_count == m->stall_after) {
                m->due_ns = INT64_MAX;
                b->stalled++;
            }
            if (first)
                for (cot_mock_job *w = b->waiting; w; w = w->next)
                    if (w->leader == m) w->leader = NULL;
        }
        if (cot_mock_dies(b)) return;
    }
}

static bool hits(const cot_mock_worker *b, const cot_mock_fault *fault)
{
    return (fault->worker < 0 || fault->worker == b->index) && b->requests % fault->every == 0;
}

/* Whether a fault of this kind hits the request that came last. */
static bool is_hit(const cot_mock_worker *b, cot_mock_fault_kind kind)
{
    bool found = false;
    for (size_t f = 0; f < b->mock->fault_count; f++)
        found |= b->mock->faults[f].kind == kind && hits(b, &b->mock->faults[f]);
    return found;
}

/* The faults that hit a job of the request that came last. */
static void draw_faults(const cot_mock_worker *b, cot_mock_job *m)
{
    m->stall_after = -1;
    for (size_t f = 0; f < b->mock->fault_count; f++) {
        const cot_mock_fault *fault = &b->mock->faults[f];
        if (!hits(b, fault)) continue;
        if (fault->kind == COT_MOCK_STALL) m->stall_after = fault->after_tokens;
        if (fault->kind == COT_MOCK_LATE) m->late_ns += cot_mock_ns(fault->ms);
        m->refuses |= fault->kind == COT_MOCK_REFUSE;
        m->twice |= fault->kind == COT_MOCK_TWICE;
    }
}

static const cot_mock_job *find_waiting(const cot_mock_worker *b, const cot_job *job)
{
    const cot_mock_job *m = b->waiting;
    while (m && m->job != job) m = m->next;
    return m;
}

static void add(cot_mock_worker *b, cot_job *job)
{
    const cot_request *r = &job->request;
    const int64_t more = r->sampling.max_tokens - r->output_tokens,
                  room = b->mock->context_tokens - r->prompt_tokens;
    cot_mock_job *m = calloc(1, sizeof *m);
    if (m) m->told = calloc((size_t)(more < room ? (more > 0 ? more : 0) : room) + 1, sizeof *m->told);
    if (!m || !m->told) {
        free(m);
        job->next = b->lost;
        b->lost = job;
        return;
    }
    m->job = job;
    m->home = -1;
    m->key = cot_mock_key(b, r);
    m->leader = job->leader ? find_waiting(b, job->leader) : NULL;
    draw_faults(b, m);
    *b->last_waiting = m;
    b->last_waiting = &m->next;
    b->state.load.waiting++;
}

void cot_mock_add(cot_mock_worker *b, cot_job *const *jobs, size_t count)
{
    b->requests++;
    b->refused += is_hit(b, COT_MOCK_REFUSE);
    for (size_t i = 0; i < count; i++) add(b, jobs[i]);
}
