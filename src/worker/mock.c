/* The worker that computes nothing. All that it does it does in turns, on its owner's loop:
 *
 *   submit, cancel --> turn: ends what is cancelled, admits, tells what is due --> sleeps until the next is due
 */
#include "worker/mock.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/integers.h"
#include "base/rng.h"
#include "worker/kv_events.h"
#include "worker/step_reports.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PAGE_TOKENS = 64 };

/* A sequence. */
typedef struct mock_job {
    cot_job *job;
    int home;
    const struct mock_job *leader; // waits for its first token; NULL: does not wait
    struct mock_job *next;         // of those that wait, or run
    uint64_t key;                  // of its tokens
    int32_t *told;                 // [told_count] tokens, with those that the prompt's end has
    int64_t told_count, stored;    // stored: tokens of prompt and text whose blocks were looked after
    int64_t cached_tokens;
    int64_t due_ns; // its next token
    /* Its faults. */
    bool refuses, twice;
    int64_t late_ns, stall_after; // stall_after -1: never
} mock_job;

typedef struct mock_backend {
    cot_backend base;
    const cot_mock *mock;
    int index;
    cot_backend_info info;
    cot_backend_owner owner;
    struct event_base *loop;
    struct event *turn; // NULL: not started
    cot_kv_events *kv;  // NULL: nobody follows the cache
    cot_step_reports *reports;
    bool views, dead, failure_told;
    mock_job *waiting, **last_waiting, *running;
    cot_mock_cache *cache; // [homes]
    cot_backend_rank *ranks;
    cot_home_load *homes;
    cot_backend_state state;
    cot_backend_metrics metrics;
    int64_t requests, tokens, refused, stalled; // since the start
    cot_backend_report step;                    // what this turn told
} mock_backend;

static mock_backend *of(cot_backend *backend)
{
    return (mock_backend *)backend;
}

static int64_t ns_of(double ms)
{
    return (int64_t)(ms * 1e6);
}

/* ---- what is told ---- */

static void tell(const mock_backend *b, const mock_job *m, cot_job_event *event)
{
    event->at_ns = cot_now_ns();
    if (!event->text) event->text = "";
    if (!event->last) event->stopped_by = -1;
    b->owner.on_event(b->owner.context, m->job->number, event);
}

/* Tells the last event and forgets the job, which is in neither list any more. */
static void tell_last(mock_backend *b, mock_job *m, cot_job_event *event)
{
    const uint64_t number = m->job->number;
    event->last = true;
    m->job->is_over = true;
    for (mock_job *w = b->waiting; w; w = w->next)
        if (w->leader == m) w->leader = NULL;
    tell(b, m, event);
    event->kind = COT_JOB_OVER;
    event->text = "";
    event->bytes = 0;
    if (m->twice) b->owner.on_event(b->owner.context, number, event);
    free(m->told);
    free(m);
}

static void tell_over(mock_backend *b, mock_job *m, cot_finish finish, const cot_error *error, bool busy)
{
    cot_job_event event = {
        .kind = COT_JOB_OVER, .finish = finish, .stopped_by = -1, .error = error, .busy = busy};
    tell_last(b, m, &event);
}

/* ---- tokens ---- */

/* What the tokens of a text are drawn by: what it began with, and the request's seed where it is not greedy. */
static uint64_t key_of(const mock_backend *b, const cot_request *r)
{
    const size_t prompt = (size_t)(r->prompt_tokens - r->output_tokens);
    const uint64_t text = XXH3_64bits(r->prompt, prompt * sizeof *r->prompt),
                   key = cot_random_bits((uint64_t)b->mock->seed, text, 0);
    return r->sampling.temperature > 0 ? cot_random_bits(key, r->sampling.seed, r->sampling.stream) : key;
}

static int32_t token_at(const mock_backend *b, const mock_job *m, int64_t place)
{
    const cot_request *r = &m->job->request;
    const int64_t ends_at = b->mock->tokens;
    if (ends_at && place >= ends_at && place >= r->sampling.min_tokens && !r->sampling.ignore_eos)
        return b->mock->eos;
    return b->mock->words[cot_random_bits(m->key, 1, (uint64_t)place) % b->mock->word_count];
}

static bool stops_at(const cot_request *r, int32_t token, int64_t place)
{
    for (size_t i = 0; i < r->sampling.stop_count && place >= r->sampling.min_tokens; i++)
        if (r->sampling.stop_tokens[i] == token) return true;
    return false;
}

/* Chances that sum to less than one; `top` has room for all that are asked for. */
static cot_sampled sampled_of(const mock_backend *b, const cot_request *r, int32_t token, cot_logprob *top)
{
    cot_sampled sampled = {.token = token};
    if (r->logprobs < 0) return sampled;
    sampled.logprob = -1;
    sampled.rank = 1;
    sampled.top = top;
    for (; sampled.top_count < (size_t)r->logprobs; sampled.top_count++)
        top[sampled.top_count] = (cot_logprob){
            (int32_t)((token + (int64_t)sampled.top_count) % b->mock->vocab), -1 - (float)sampled.top_count};
    return sampled;
}

/* The text of a token, and the rest where it is the last; what is joined lives in `*all`. */
static void add_text(cot_buffer *all, mock_job *m, const cot_job_event *e, bool is_last, cot_error *error)
{
    cot_job *job = m->job;
    const char *text;
    size_t bytes;
    bool stopped = false;
    cot_status status = COT_OK;
    if (!e->sampled.ends || job->show_ending) {
        status = cot_text_stream_push(job->text, e->sampled.token, &text, &bytes, &stopped, error);
        if (status == COT_OK && !cot_buffer_append(all, text, bytes)) status = COT_OUT_OF_MEMORY;
    }
    if (status == COT_OK && is_last && !stopped) {
        status = cot_text_stream_finish(job->text, &text, &bytes, error);
        if (status == COT_OK && !cot_buffer_append(all, text, bytes)) status = COT_OUT_OF_MEMORY;
    }
    if (status == COT_OUT_OF_MEMORY) cot_fail(error, status, "out of memory for the answer");
}

static void tell_prompt(const mock_backend *b, const mock_job *m)
{
    const cot_request *r = &m->job->request;
    cot_logprob top[COT_MAX_LOGPROBS];
    for (int64_t i = 1; i < r->prompt_tokens && r->all_logits; i++) {
        cot_job_event event = {.kind = COT_JOB_PROMPT_TOKEN, .sampled = sampled_of(b, r, r->prompt[i], top)};
        tell(b, m, &event);
    }
}

/* Keeps the blocks that are whole by now. */
static void store(mock_backend *b, mock_job *m, int64_t tokens)
{
    const int64_t block = b->mock->block_tokens;
    if (tokens / block == m->stored / block) return;
    m->stored = tokens;
    cot_mock_cache_store(&b->cache[m->home], &m->job->request, m->told, tokens);
}

/* So many tokens more are as good as fed, behind a position. */
static void count_fed(mock_backend *b, int64_t position, int64_t tokens)
{
    b->step.tokens += tokens;
    b->step.positions += position + tokens;
    b->step.pairs += tokens * position + tokens * (tokens + 1) / 2;
}

/* The next token. True: it was the last, and the job is gone. */
static bool tell_token(mock_backend *b, mock_job *m)
{
    const cot_request *r = &m->job->request;
    const int64_t place = r->output_tokens + m->told_count;
    cot_logprob top[COT_MAX_LOGPROBS];
    cot_error error = {0};
    cot_buffer text = {0};
    cot_job_event e = {.kind = COT_JOB_TOKEN, .stopped_by = -1};
    if (!m->told_count) {
        tell_prompt(b, m);
        store(b, m, r->prompt_tokens);
        b->step.prompt_tokens += r->prompt_tokens - m->cached_tokens;
        count_fed(b, m->cached_tokens, r->prompt_tokens - m->cached_tokens);
    } else
        count_fed(b, r->prompt_tokens + m->told_count - 1, 1);
    b->step.sequences++;
    if (place >= r->sampling.max_tokens) { // the prompt's chances were all that was asked for
        tell_over(b, m, COT_FINISH_LENGTH, NULL, false);
        return true;
    }
    e.sampled = sampled_of(b, r, token_at(b, m, place), top);
    const bool eos = e.sampled.token == b->mock->eos && !r->sampling.ignore_eos,
               stop = stops_at(r, e.sampled.token, place);
    e.sampled.ends = eos || stop;
    const bool full = place + 1 >= r->sampling.max_tokens,
               long_enough = r->prompt_tokens + m->told_count + 1 >= b->mock->context_tokens;
    e.finish = eos ? COT_FINISH_EOS : stop ? COT_FINISH_STOP : full ? COT_FINISH_LENGTH : COT_FINISH_CONTEXT;
    e.last = e.sampled.ends || full || long_enough;
    add_text(&text, m, &e, e.last, &error);
    if (cot_text_stream_stopped_by(m->job->text) >= 0) {
        e.last = true;
        e.finish = COT_FINISH_STOP;
        e.stopped_by = cot_text_stream_stopped_by(m->job->text);
    }
    e.text = text.bytes ? text.data : "";
    e.bytes = text.bytes;
    m->told[m->told_count++] = e.sampled.token;
    b->tokens++;
    const bool over = e.last || error.status != COT_OK;
    store(b, m, r->prompt_tokens + m->told_count - 1); // the newest token is not fed yet
    if (error.status != COT_OK)
        tell_over(b, m, COT_FINISH_CANCELLED, &error, false);
    else if (over)
        tell_last(b, m, &e);
    else
        tell(b, m, &e);
    cot_buffer_free(&text);
    return over;
}

/* ---- admitting ---- */

static int64_t pages_of(const mock_job *m)
{
    return (m->job->request.prompt_tokens + m->told_count + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* Where most of the prompt is kept; among equals where the fewest pages are held, then the first. */
static int choose_home(const mock_backend *b, const cot_request *r)
{
    int best = 0;
    size_t best_blocks = 0;
    int64_t best_pages = 0;
    for (int home = 0; home < b->mock->homes; home++) {
        const size_t blocks = cot_mock_cache_find(&b->cache[home], r, r->prompt_tokens - 1);
        int64_t pages = 0;
        for (const mock_job *m = b->running; m; m = m->next) pages += m->home == home ? pages_of(m) : 0;
        if (home && (blocks < best_blocks || (blocks == best_blocks && pages >= best_pages))) continue;
        best = home;
        best_blocks = blocks;
        best_pages = pages;
    }
    return best;
}

/* The cache is asked, and the first token's time is known. True: nothing may be generated, and the job is gone. */
static bool admit(mock_backend *b, mock_job *m)
{
    const cot_request *r = &m->job->request;
    cot_job_event event = {.kind = COT_JOB_ADMITTED};
    b->state.prompt_tokens += r->prompt_tokens - r->output_tokens;
    if (r->output_tokens >= r->sampling.max_tokens && !r->all_logits) {
        tell_over(b, m, COT_FINISH_LENGTH, NULL, false);
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
    m->due_ns = m->stall_after == 0 ? INT64_MAX : cot_now_ns() + ns_of(ttft_ms) + m->late_ns;
    m->next = b->running;
    b->running = m;
    b->state.load.running++;
    event.cached_tokens = m->cached_tokens;
    tell(b, m, &event);
    return false;
}

static mock_job *take_waiting(mock_backend *b, mock_job **at)
{
    mock_job *m = *at;
    *at = m->next;
    if (!*at) b->last_waiting = at;
    b->state.load.waiting--;
    return m;
}

static void admit_all(mock_backend *b)
{
    static const cot_error full = {COT_OUT_OF_MEMORY, "the worker takes no more now"};
    for (mock_job **at = &b->waiting; *at;) {
        if ((*at)->refuses) {
            b->refused++;
            tell_over(b, take_waiting(b, at), COT_FINISH_CANCELLED, &full, true);
        } else if ((*at)->leader || b->state.load.running >= b->mock->sequences)
            at = &(*at)->next;
        else
            admit(b, take_waiting(b, at));
    }
}

/* ---- turns ---- */

static void take_running(mock_backend *b, mock_job **at)
{
    *at = (*at)->next;
    b->state.load.running--;
}

static void end_cancelled(mock_backend *b)
{
    for (mock_job **at = &b->waiting; *at;)
        if ((*at)->job->is_cancelled)
            tell_over(b, take_waiting(b, at), COT_FINISH_CANCELLED, NULL, false);
        else
            at = &(*at)->next;
    for (mock_job **at = &b->running, *m; (m = *at);)
        if (m->job->is_cancelled) {
            take_running(b, at);
            tell_over(b, m, COT_FINISH_CANCELLED, NULL, false);
        } else
            at = &m->next;
}

static void end_all(mock_backend *b, const cot_error *error)
{
    for (mock_job *m; (m = b->running);) {
        take_running(b, &b->running);
        tell_over(b, m, COT_FINISH_CANCELLED, error, false);
    }
    while (b->waiting) tell_over(b, take_waiting(b, &b->waiting), COT_FINISH_CANCELLED, error, false);
}

/* Whether the worker is at its end, which is told. */
static bool dies(mock_backend *b)
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
    end_all(b, &b->state.error);
    if (!b->failure_told) {
        b->failure_told = true;
        b->owner.on_failure(b->owner.context);
        b->owner.on_gone(b->owner.context);
    }
    return true;
}

/* Tells the tokens that are due. Callbacks may submit and cancel; running jobs come and go here alone. */
static void tell_due(mock_backend *b, int64_t now_ns)
{
    for (mock_job **at = &b->running, *m; (m = *at);) {
        mock_job *const next = m->next;
        if (m->due_ns > now_ns || m->job->is_cancelled) {
            at = &m->next;
            continue;
        }
        const bool first = !m->told_count;
        *at = next; // out of the list, in case it is the last
        if (tell_token(b, m)) {
            b->state.load.running--;
        } else {
            *at = m;
            at = &m->next;
            m->due_ns += ns_of(b->mock->tpot_ms);
            if (m->told_count == m->stall_after) {
                m->due_ns = INT64_MAX;
                b->stalled++;
            }
            if (first)
                for (mock_job *w = b->waiting; w; w = w->next)
                    if (w->leader == m) w->leader = NULL;
        }
        if (dies(b)) return;
    }
}

static void count_homes(mock_backend *b)
{
    const int64_t pages = b->state.load.kv_pages / b->info.homes;
    for (int home = 0; home < b->info.homes; home++) b->homes[home] = (cot_home_load){.free_pages = pages};
    for (const mock_job *m = b->running; m; m = m->next) {
        b->homes[m->home].running++;
        b->homes[m->home].free_pages -= cot_smaller(pages_of(m), b->homes[m->home].free_pages);
    }
    for (const mock_job *m = b->waiting; m; m = m->next) { // one that is not placed yet counts for the first
        cot_home_load *home = &b->homes[m->job->home == COT_HOME_ANY ? 0 : m->job->home];
        home->waiting++;
        home->waiting_prompt_tokens += m->job->request.prompt_tokens;
    }
}

/* Counts, and reports, what the turn told as a step. */
static void end_step(mock_backend *b)
{
    cot_backend_report *s = &b->step;
    if (!s->sequences) return;
    const bool prefill = s->prompt_tokens;
    const int64_t ns = ns_of(prefill ? b->mock->ttft_ms : b->mock->tpot_ms);
    *(prefill ? &b->metrics.prefill_tokens : &b->metrics.decode_tokens) += s->tokens;
    *(prefill ? &b->metrics.prefill_ns : &b->metrics.decode_ns) += ns;
    s->step = b->state.load.steps = ++b->metrics.steps;
    s->predicted_ns = s->observed_ns = (double)ns;
    s->ranks = b->info.ranks;
    s->rank = b->ranks;
    s->homes = b->info.homes;
    s->home = b->homes;
    count_homes(b);
    if (b->reports) cot_step_reports_put(b->reports, s);
    *s = (cot_backend_report){0};
}

static void set_timer(mock_backend *b, int64_t now_ns)
{
    int64_t due_ns = INT64_MAX;
    for (const mock_job *m = b->running; m; m = m->next)
        if (m->due_ns < due_ns) due_ns = m->due_ns;
    if (due_ns == INT64_MAX) return;
    const int64_t us = due_ns > now_ns ? (due_ns - now_ns) / 1000 + 1 : 0;
    event_add(b->turn, &(struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000});
}

static size_t list_sequences(const mock_backend *b, cot_engine_sequence *out, size_t room)
{
    size_t count = 0;
    const mock_job *const lists[] = {b->running, b->waiting};
    for (int waits = 0; waits < 2; waits++)
        for (const mock_job *m = lists[waits]; m; m = m->next, count++) {
            if (count >= room) continue;
            const int64_t tokens = m->job->request.prompt_tokens + m->told_count;
            out[count] = (cot_engine_sequence){.id = m->job->number,
                                               .home = m->home < 0 ? 0 : m->home,
                                               .waiting = waits,
                                               .prompt_tokens = m->job->request.prompt_tokens,
                                               .tokens = tokens,
                                               .fed = m->told_count ? tokens - 1 : 0,
                                               .pages = waits ? 0 : pages_of(m)};
        }
    return count;
}

static void tell_view(mock_backend *b)
{
    cot_backend_view view;
    if (!b->views || b->state.failed) return;
    b->views = false;
    view.sequences = list_sequences(b, view.sequence, COT_VIEW_SEQUENCES);
    b->owner.on_view(b->owner.context, &view);
}

static void turn(evutil_socket_t descriptor, short what, void *context)
{
    mock_backend *b = context;
    (void)descriptor, (void)what;
    if (b->dead) return;
    end_cancelled(b);
    if (dies(b)) return;
    admit_all(b);
    tell_due(b, cot_now_ns());
    end_step(b);
    if (b->kv) cot_kv_events_flush(b->kv);
    if (b->dead || b->state.failed) return;
    tell_view(b);
    if (b->state.load.running < b->mock->sequences && b->waiting) admit_all(b);
    set_timer(b, cot_now_ns());
}

static void take_turn(mock_backend *b)
{
    event_active(b->turn, EV_TIMEOUT, 0);
}

/* ---- the table ---- */

/* The faults that hit this request. */
static void draw_faults(const mock_backend *b, mock_job *m)
{
    m->stall_after = -1;
    for (size_t f = 0; f < b->mock->fault_count; f++) {
        const cot_mock_fault *fault = &b->mock->faults[f];
        if ((fault->worker >= 0 && fault->worker != b->index) || b->requests % fault->every) continue;
        if (fault->kind == COT_MOCK_STALL) m->stall_after = fault->after_tokens;
        if (fault->kind == COT_MOCK_LATE) m->late_ns += ns_of(fault->ms);
        m->refuses |= fault->kind == COT_MOCK_REFUSE;
        m->twice |= fault->kind == COT_MOCK_TWICE;
    }
}

static const mock_job *find_waiting(const mock_backend *b, const cot_job *job)
{
    const mock_job *m = b->waiting;
    while (m && m->job != job) m = m->next;
    return m;
}

static void submit(cot_backend *backend, cot_job *const *jobs, size_t count)
{
    mock_backend *b = of(backend);
    for (size_t i = 0; i < count; i++) {
        const cot_request *r = &jobs[i]->request;
        const int64_t more = r->sampling.max_tokens - r->output_tokens,
                      room = b->mock->context_tokens - r->prompt_tokens;
        mock_job *m = calloc(1, sizeof *m);
        if (m) m->told = calloc((size_t)(more < room ? (more > 0 ? more : 0) : room) + 1, sizeof *m->told);
        if (!m || !m->told) { // the owner hears nothing of it, and has a limit for that
            free(m);
            continue;
        }
        m->job = jobs[i];
        m->home = -1;
        m->key = key_of(b, r);
        m->leader = jobs[i]->leader ? find_waiting(b, jobs[i]->leader) : NULL;
        b->requests++;
        draw_faults(b, m);
        *b->last_waiting = m;
        b->last_waiting = &m->next;
        b->state.load.waiting++;
    }
    take_turn(b);
}

static void cancel(cot_backend *backend, cot_job *job)
{
    job->is_cancelled = true;
    take_turn(of(backend));
}

static const cot_backend_info *describe(const cot_backend *backend)
{
    return &((const mock_backend *)backend)->info;
}

static void state(cot_backend *backend, cot_backend_state *out)
{
    mock_backend *b = of(backend);
    cot_engine_load *load = &b->state.load;
    load->cached_blocks = 0;
    load->evicted_blocks = 0;
    for (int home = 0; home < b->info.homes; home++) {
        load->cached_blocks += (int64_t)b->cache[home].count;
        load->evicted_blocks += b->cache[home].evicted;
    }
    load->kv_pages_free = load->kv_pages;
    for (const mock_job *m = b->running; m; m = m->next) load->kv_pages_free -= pages_of(m);
    if (load->kv_pages_free < 0) load->kv_pages_free = 0;
    *out = b->state;
    out->lives = !b->state.failed;
    out->publishes_cache = b->kv;
    if (b->kv) cot_kv_events_count(b->kv, &out->cache_batches, &out->cache_losses);
}

static const cot_backend_metrics *metrics(cot_backend *backend)
{
    const mock_backend *b = of(backend);
    return b->metrics.steps ? &b->metrics : NULL;
}

static void ask_view(cot_backend *backend)
{
    of(backend)->views = true;
    take_turn(of(backend));
}

static void ask_snapshot(cot_backend *backend)
{
    cot_kv_events_ask(of(backend)->kv);
}

static json_t *show(cot_backend *backend)
{
    const mock_backend *b = of(backend);
    return json_pack("{s:i, s:I, s:I, s:I, s:I}", "worker", b->index, "requests", (json_int_t)b->requests,
                     "tokens", (json_int_t)b->tokens, "refused", (json_int_t)b->refused, "stalled",
                     (json_int_t)b->stalled);
}

/* ---- from opening to closing ---- */

static cot_status list_cache(void *context, const cot_cache_events *events)
{
    const mock_backend *b = context;
    for (int home = 0; home < b->info.homes; home++) cot_mock_cache_list(&b->cache[home], events);
    return COT_OK;
}

static void wake(void *context)
{
    take_turn(context);
}

static void tell_snapshot(void *context, const void *bytes, size_t count)
{
    const mock_backend *b = context;
    b->owner.on_snapshot(b->owner.context, bytes, count);
}

static cot_status publish_all(mock_backend *b, const cot_backend_start *s, cot_error *error)
{
    cot_status status = COT_OK;
    if (*s->reports.address)
        status = cot_step_reports_open(&b->reports, &s->reports, b->info.ranks, s->base, error);
    if (status != COT_OK || !s->kv.enabled) return status;
    const cot_kv_events_owner owner = {.context = b,
                                       .homes = b->info.homes,
                                       .block_tokens = b->info.block_tokens,
                                       .list = list_cache,
                                       .wake = wake,
                                       .on_snapshot = tell_snapshot};
    status = cot_kv_events_open(&b->kv, &s->kv, &owner, s->base, error);
    for (int home = 0; home < b->info.homes && status == COT_OK; home++)
        b->cache[home].events = cot_kv_events_watcher(b->kv);
    return status;
}

static cot_status start(cot_backend *backend, const cot_backend_start *s, cot_error *error)
{
    mock_backend *b = of(backend);
    b->owner = s->owner;
    b->loop = s->base;
    b->turn = event_new(s->base, -1, 0, turn, b);
    if (!b->turn) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
    return publish_all(b, s, error);
}

static void close_backend(cot_backend *backend)
{
    mock_backend *b = of(backend);
    end_all(b, NULL);
    if (b->turn) event_free(b->turn);
    cot_kv_events_close(b->kv);
    cot_step_reports_close(b->reports);
    for (int home = 0; home < b->info.homes && b->cache; home++) cot_mock_cache_close(&b->cache[home]);
    free(b->cache);
    free(b->ranks);
    free(b->homes);
    free(b);
}

/* Pages that the caches would take, or, without one, sequences of the longest context. */
static int64_t pages_in_all(const cot_mock *m)
{
    const int64_t tokens = m->blocks ? m->blocks * m->block_tokens : m->sequences * m->context_tokens;
    return m->homes * ((tokens + PAGE_TOKENS - 1) / PAGE_TOKENS);
}

cot_status cot_worker_of_mock(cot_backend **backend, const cot_mock *mock, int index, cot_error *error)
{
    static const cot_backend_route routes[] = {{"/mock", show}, {0}};
    static const cot_backend_table table = {.describe = describe,
                                            .start = start,
                                            .submit = submit,
                                            .cancel = cancel,
                                            .state = state,
                                            .metrics = metrics,
                                            .ask_view = ask_view,
                                            .ask_snapshot = ask_snapshot,
                                            .close = close_backend,
                                            .routes = routes};
    mock_backend *b = calloc(1, sizeof *b);
    const size_t homes = (size_t)mock->homes;
    *backend = NULL;
    if (!b) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
    b->base.table = &table;
    b->mock = mock;
    b->index = index;
    b->last_waiting = &b->waiting;
    b->info = (cot_backend_info){.architecture = "mock",
                                 .precision = "none",
                                 .payload = "none",
                                 .op = "none",
                                 .combine = "none",
                                 .attention = "dp",
                                 .isa = "none",
                                 .ranks = (int)homes,
                                 .threads = 1,
                                 .homes = (int)homes,
                                 .block_tokens = mock->blocks ? mock->block_tokens : 0,
                                 .vocab = mock->vocab,
                                 .context_tokens = mock->context_tokens,
                                 .eos = &mock->eos,
                                 .eos_count = 1};
    memcpy(b->info.fingerprint, mock->fingerprint, sizeof b->info.fingerprint);
    b->state.load.kv_pages = pages_in_all(mock);
    b->ranks = calloc(homes, sizeof *b->ranks);
    b->homes = calloc(homes, sizeof *b->homes);
    b->metrics.ranks = (int)homes;
    b->metrics.rank = b->ranks;
    b->cache = calloc(homes, sizeof *b->cache);
    bool good = b->ranks && b->homes && b->cache;
    for (int home = 0; good && home < b->info.homes; home++)
        good = cot_mock_cache_open(&b->cache[home], home, (size_t)mock->blocks, mock->block_tokens);
    if (good)
        *backend = &b->base;
    else
        close_backend(&b->base);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
}
