/* The worker that computes nothing. All that it does it does in turns, on its owner's loop:
 *
 *   submit, cancel --> turn: ends what is cancelled, admits, tells what is due --> sleeps until the next is due
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/integers.h"
#include "worker/mock_worker.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

static cot_mock_worker *of(cot_backend *backend)
{
    return (cot_mock_worker *)backend;
}

/* ---- turns ---- */

static void count_homes(cot_mock_worker *b)
{
    const int64_t pages = b->state.load.kv_pages / b->info.homes;
    for (int home = 0; home < b->info.homes; home++) b->homes[home] = (cot_home_load){.free_pages = pages};
    for (const cot_mock_job *m = b->running; m; m = m->next) {
        b->homes[m->home].running++;
        b->homes[m->home].free_pages -= cot_smaller(cot_mock_pages(m), b->homes[m->home].free_pages);
    }
    for (const cot_mock_job *m = b->waiting; m;
         m = m->next) { // one that is not placed yet counts for the first
        cot_home_load *home = &b->homes[m->job->home == COT_HOME_ANY ? 0 : m->job->home];
        home->waiting++;
        home->waiting_prompt_tokens += m->job->request.prompt_tokens;
    }
}

/* Counts, and reports, what the turn told as a step. */
static void end_step(cot_mock_worker *b)
{
    cot_backend_report *s = &b->step;
    if (!s->sequences) return;
    const bool prefill = s->prompt_tokens;
    const int64_t ns =
        cot_mock_ns(prefill ? b->mock->ttft_ms + b->mock->ttft_ms_per_token * (double)s->prompt_tokens
                            : b->mock->tpot_ms);
    *(prefill ? &b->metrics.prefill_tokens : &b->metrics.decode_tokens) += s->tokens;
    *(prefill ? &b->metrics.prefill_ns : &b->metrics.decode_ns) += ns;
    b->state.load.steps_of[cot_smaller(cot_log2_up(s->tokens), COT_STEP_CLASSES - 1)]++;
    b->state.load.step_tokens += (uint64_t)s->tokens;
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

static void set_timer(cot_mock_worker *b, int64_t now_ns)
{
    int64_t due_ns = INT64_MAX;
    for (const cot_mock_job *m = b->running; m; m = m->next)
        if (m->due_ns < due_ns) due_ns = m->due_ns;
    if (due_ns == INT64_MAX) return;
    const int64_t us = due_ns > now_ns ? (due_ns - now_ns) / 1000 + 1 : 0;
    event_add(b->turn, &(struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000});
}

static size_t list_sequences(const cot_mock_worker *b, cot_engine_sequence *out, size_t room)
{
    size_t count = 0;
    const cot_mock_job *const lists[] = {b->running, b->waiting};
    for (int waits = 0; waits < 2; waits++)
        for (const cot_mock_job *m = lists[waits]; m; m = m->next, count++) {
            if (count >= room) continue;
            const int64_t tokens = m->job->request.prompt_tokens + m->told_count;
            out[count] = (cot_engine_sequence){.id = m->job->number,
                                               .home = m->home < 0 ? 0 : m->home,
                                               .waiting = waits,
                                               .prompt_tokens = m->job->request.prompt_tokens,
                                               .tokens = tokens,
                                               .fed = m->told_count ? tokens - 1 : 0,
                                               .pages = waits ? 0 : cot_mock_pages(m)};
        }
    return count;
}

static void tell_view(cot_mock_worker *b)
{
    cot_backend_view view;
    if (!b->views || b->state.failed) return;
    b->views = false;
    view.sequences = list_sequences(b, view.sequence, COT_VIEW_SEQUENCES);
    b->owner.on_view(b->owner.context, &view);
}

static void turn(evutil_socket_t descriptor, short what, void *context)
{
    cot_mock_worker *b = context;
    (void)descriptor, (void)what;
    if (b->dead) return;
    cot_mock_end_lost(b);
    cot_mock_end_cancelled(b);
    if (cot_mock_dies(b)) return;
    cot_mock_admit(b);
    cot_mock_tell_due(b, cot_now_ns());
    end_step(b);
    if (b->kv) cot_kv_events_flush(b->kv);
    if (b->dead || b->state.failed) return;
    tell_view(b);
    if (b->state.load.running < b->mock->sequences && b->waiting) cot_mock_admit(b);
    set_timer(b, cot_now_ns());
}

static void take_turn(cot_mock_worker *b)
{
    event_active(b->turn, EV_TIMEOUT, 0);
}

/* ---- the table ---- */

static void submit(cot_backend *backend, cot_job *const *jobs, size_t count)
{
    cot_mock_worker *b = of(backend);
    cot_mock_add(b, jobs, count);
    take_turn(b);
}

static void cancel(cot_backend *backend, cot_job *job)
{
    job->is_cancelled = true;
    take_turn(of(backend));
}

static const cot_backend_info *describe(const cot_backend *backend)
{
    return &((const cot_mock_worker *)backend)->info;
}

static void state(cot_backend *backend, cot_backend_state *out)
{
    cot_mock_worker *b = of(backend);
    cot_engine_load *load = &b->state.load;
    load->cached_blocks = 0;
    load->evicted_blocks = 0;
    for (int home = 0; home < b->info.homes; home++) {
        load->cached_blocks += (int64_t)b->cache[home].count;
        load->evicted_blocks += b->cache[home].evicted;
    }
    load->kv_pages_free = load->kv_pages;
    for (const cot_mock_job *m = b->running; m; m = m->next) load->kv_pages_free -= cot_mock_pages(m);
    if (load->kv_pages_free < 0) load->kv_pages_free = 0;
    *out = b->state;
    out->lives = !b->state.failed;
    out->publishes_cache = b->kv;
    if (b->kv) cot_kv_events_count(b->kv, &out->cache_batches, &out->cache_losses);
}

static const cot_backend_metrics *metrics(cot_backend *backend)
{
    const cot_mock_worker *b = of(backend);
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
    const cot_mock_worker *b = of(backend);
    return json_pack("{s:i, s:I, s:I, s:I, s:I}", "worker", b->index, "requests", (json_int_t)b->requests,
                     "tokens", (json_int_t)b->tokens, "refused", (json_int_t)b->refused, "stalled",
                     (json_int_t)b->stalled);
}

/* ---- from opening to closing ---- */

static cot_status list_cache(void *context, const cot_cache_events *events)
{
    const cot_mock_worker *b = context;
    for (int home = 0; home < b->info.homes; home++) cot_mock_cache_list(&b->cache[home], events);
    return COT_OK;
}

static void wake(void *context)
{
    take_turn(context);
}

static cot_status publish_all(cot_mock_worker *b, const cot_backend_start *s, cot_error *error)
{
    cot_status status = COT_OK;
    if (*s->popularity.address)
        return cot_fail(error, COT_INVALID_ARGUMENT, "--popularity-endpoint: a mock has no experts");
    if (*s->reports.address)
        status = cot_step_reports_open(&b->reports, &s->reports, b->info.ranks, s->base, error);
    if (status != COT_OK || !s->kv.enabled) return status;
    const cot_kv_events_owner owner = {.context = b,
                                       .homes = b->info.homes,
                                       .block_tokens = b->info.block_tokens,
                                       .list = list_cache,
                                       .wake = wake,
                                       .follower = s->owner.context,
                                       .on_snapshot = s->owner.on_snapshot};
    status = cot_kv_events_open(&b->kv, &s->kv, &owner, s->base, error);
    for (int home = 0; home < b->info.homes && status == COT_OK; home++)
        b->cache[home].events = cot_kv_events_watcher(b->kv);
    return status;
}

static cot_status start(cot_backend *backend, const cot_backend_start *s, cot_error *error)
{
    cot_mock_worker *b = of(backend);
    b->owner = s->owner;
    b->loop = s->base;
    b->turn = event_new(s->base, -1, 0, turn, b);
    if (!b->turn) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
    return publish_all(b, s, error);
}

static void close_backend(cot_backend *backend)
{
    cot_mock_worker *b = of(backend);
    cot_mock_end(b, NULL);
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
    return m->homes * ((tokens + COT_MOCK_PAGE_TOKENS - 1) / COT_MOCK_PAGE_TOKENS);
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
    cot_mock_worker *b = calloc(1, sizeof *b);
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
                                 .sequences = mock->sequences,
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
