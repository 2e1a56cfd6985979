/* The worker that is an engine of this process.
 *
 *   loop's thread:    submit, cancel --orders--> engine's thread: order, order, step, order, step ...
 *                     on_event  <--------records, a step at a time---------
 *
 * The engine's thread works as its rank 0. It sleeps when nothing is left to do. What happens in a step is written down in
 * records that the loop takes over as a whole. */
#include "worker/engine_backend.h"

#include "coterie/constraint.h"

#include "base/clock.h"
#include "base/error.h"
#include "worker/engine_documents.h"
#include "worker/fingerprint.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- what the engine tells, on its thread ---- */

/* The last record of a job, told in this step, if it was a token's: the end of the sequence goes with it. */
static cot_record *last_token_of(cot_worker_engine *b, const cot_job *job)
{
    for (size_t i = b->step.count; i > 0; i--) {
        cot_record *record = &b->step.list[i - 1];
        if (record->job == job) return record->event.kind == COT_JOB_TOKEN ? record : NULL;
    }
    return NULL;
}

/* Memory ran out for what is to be told: the job ends, and says so. */
static void fail_for_memory(cot_job *job)
{
    cot_fail(&job->error, COT_OUT_OF_MEMORY, "out of memory for the answer");
}

static void on_admit(void *context, uint64_t request, int64_t cached_tokens)
{
    cot_job *job = context;
    cot_worker_engine *b = job->backend;
    (void)request;
    cot_record *record = cot_records_add(&b->step, job, COT_JOB_ADMITTED);
    if (!record)
        fail_for_memory(job);
    else
        record->event.cached_tokens = cached_tokens;
    b->prompt_tokens += job->request.prompt_tokens - job->request.output_tokens;
}

static void add_text(cot_worker_engine *b, cot_record *record, const char *text, size_t bytes)
{
    if (!cot_records_add_text(&b->step, record, text, bytes)) fail_for_memory(record->job);
}

static void on_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    cot_job *job = context;
    cot_worker_engine *b = job->backend;
    (void)request;
    cot_record *record = cot_records_add(&b->step, job, COT_JOB_TOKEN);
    if (!record || !cot_records_set_sampled(&b->step, record, sampled)) fail_for_memory(job);
    const char *text;
    size_t bytes;
    bool stopped = false;
    if (!record || job->error.status != COT_OK || (sampled->ends && !job->show_ending)) return;
    if (cot_text_stream_push(job->text, sampled->token, &text, &bytes, &stopped, &job->error) == COT_OK)
        add_text(b, record, text, bytes);
}

/* Goes on unless a stop string has come, or something went wrong. */
static bool on_token(void *context, uint64_t request, int32_t token)
{
    const cot_job *job = context;
    (void)request;
    (void)token;
    return job->error.status == COT_OK && cot_text_stream_stopped_by(job->text) < 0;
}

static void on_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    cot_job *job = context;
    cot_worker_engine *b = job->backend;
    (void)request;
    if (position + 1 >= job->request.prompt_tokens || job->error.status != COT_OK) return;
    const cot_request *r = &job->request;
    cot_logprob top[COT_MAX_LOGPROB_TOKENS];
    cot_sampled sampled = {0};
    const int32_t next = job->request.prompt[position + 1];
    const size_t told = r->logprob_count ? r->logprob_count : (size_t)r->logprobs;
    cot_logprobs_of(logits, b->info.vocab, next, r->logprob_count ? r->logprob_tokens : NULL, told, &sampled,
                    top);
    cot_record *record = cot_records_add(&b->step, job, COT_JOB_PROMPT_TOKEN);
    if (!record || !cot_records_set_sampled(&b->step, record, &sampled)) fail_for_memory(job);
}

/* An end must be told: where memory is short it is waited for. */
static cot_record *add_surely(cot_worker_engine *b, cot_job *job)
{
    cot_record *record;
    while (!(record = cot_records_add(&b->step, job, COT_JOB_OVER))) usleep(10000);
    return record;
}

static void tell_end(cot_worker_engine *b, cot_job *job, cot_finish finish)
{
    cot_record *record = last_token_of(b, job);
    const char *text = "";
    size_t bytes = 0;
    if (!record) record = add_surely(b, job);
    if (job->error.status == COT_OK && cot_text_stream_stopped_by(job->text) < 0 &&
        finish != COT_FINISH_CANCELLED &&
        cot_text_stream_finish(job->text, &text, &bytes, &job->error) == COT_OK)
        add_text(b, record, text, bytes);
    record->event.last = true;
    record->event.finish = finish;
    record->event.stopped_by = cot_text_stream_stopped_by(job->text);
    job->is_over = true;
    b->live_count--;
    *(job->live_before ? &job->live_before->live_behind : &b->live) = job->live_behind;
    if (job->live_behind) job->live_behind->live_before = job->live_before;
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    cot_job *job = context;
    (void)request;
    if (finish == COT_FINISH_OVERFLOW && job->error.status == COT_OK)
        cot_fail(&job->error, COT_INVALID_ARGUMENT,
                 "the logits are not finite: the model's values overflowed");
    const uint32_t *mask;
    if (finish == COT_FINISH_CONSTRAINT && job->error.status == COT_OK &&
        cot_constraint_mask(job->request.constraint, &mask, &job->error) == COT_OK)
        cot_fail(&job->error, COT_INVALID_ARGUMENT,
                 "the constraint cannot be met: nothing but stop tokens may come, and the text may not end");
    tell_end(job->backend, job, finish);
}

/* ---- the engine's thread ---- */

static void start_job(cot_worker_engine *b, cot_job *job)
{
    cot_events events = {.context = job,
                         .on_admit = on_admit,
                         .on_sampled = on_sampled,
                         .on_token = on_token,
                         .on_logits = job->request.all_logits ? on_logits : NULL,
                         .on_finish = on_finish};
    job->request.after = job->leader ? job->leader->id : 0;
    job->live_before = NULL;
    job->live_behind = b->live;
    if (b->live) b->live->live_before = job;
    b->live = job;
    b->live_count++;
    if (b->state.failed)
        job->error = b->state.error;
    else
        cot_engine_submit(b->engine, &job->id, &job->request, job->home, &events, &job->error);
    if (!job->id) tell_end(b, job, COT_FINISH_CANCELLED);
}

static void obey(cot_worker_engine *b, cot_job *submitted, cot_job *cancelled)
{
    for (cot_job *job = submitted, *next; job; job = next) {
        next = job->next;
        start_job(b, job);
    }
    for (cot_job *job = cancelled, *next; job; job = next) {
        next = job->next_cancelled;
        if (!job->is_over) cot_engine_cancel(b->engine, job->id, NULL);
        add_surely(b, job)->ends_cancelling = true;
    }
}

/* A step failed: the engine is of no more use, and everybody is told. */
static void fail_all(cot_worker_engine *b, const cot_error *error)
{
    pthread_mutex_lock(&b->lock);
    b->state.failed = true;
    b->state.error = *error;
    pthread_mutex_unlock(&b->lock);
    while (b->live) {
        if (b->live->error.status == COT_OK) b->live->error = *error;
        tell_end(b, b->live, COT_FINISH_CANCELLED);
    }
}

/* Once that is told: it may take a second, or longer where ranks are on several hosts. */
static void end_ranks(cot_worker_engine *b)
{
    if (!b->state.failed || b->gone) return;
    cot_engine_end_ranks(b->engine);
    pthread_mutex_lock(&b->lock);
    b->gone = true;
    pthread_mutex_unlock(&b->lock);
    cot_wake_up(&b->news);
}

static void swap_records(cot_records *a, cot_records *b)
{
    const cot_records kept = *a;
    *a = *b;
    *b = kept;
}

/* Hands what was written down to the loop, unless it has not yet taken what was handed to it before. */
static void publish(cot_worker_engine *b)
{
    pthread_mutex_lock(&b->lock);
    const bool has_records = b->step.count && !b->records.count;
    const bool news = has_records || (b->state.failed && !b->failure_known);
    b->failure_known = b->state.failed;
    if (has_records) swap_records(&b->records, &b->step);
    cot_engine_get_load(b->engine, &b->state.load);
    b->state.prompt_tokens = b->prompt_tokens;
    pthread_mutex_unlock(&b->lock);
    if (news) cot_wake_up(&b->news);
}

/* What experts are worth of late, for who asks and who follows. */
static cot_status gather_popularity(cot_worker_engine *b, cot_error *error)
{
    cot_backend_popularity now;
    const cot_status status = cot_worker_popularity_of(&now, b->engine, error);
    if (status != COT_OK) return status;
    const size_t cells = (size_t)now.layers * (size_t)now.experts;
    for (int home = 0; b->topic && home < now.homes; home++)
        cot_popularity_topic_put_home(b->topic, home, now.tokens[home], now.counts + (size_t)home * cells);
    pthread_mutex_lock(&b->lock);
    const cot_backend_popularity old = b->popularity;
    b->popularity = now;
    pthread_mutex_unlock(&b->lock);
    cot_backend_popularity_free(&(cot_backend_popularity){.tokens = old.tokens, .counts = old.counts});
    return COT_OK;
}

/* The counters of all ranks, where there were steps since they were last gathered, and never before. */
static cot_status gather(cot_worker_engine *b, cot_error *error)
{
    cot_stats stats;
    cot_backend_metrics metrics, old;
    cot_engine_load load;
    cot_engine_get_load(b->engine, &load);
    if (b->gathered_ns && load.steps == b->gathered_steps) return COT_OK;
    const cot_status status = cot_engine_stats(b->engine, &stats, error);
    if (status != COT_OK) return status;
    b->gathered_ns = cot_now_ns();
    b->gathered_steps = stats.steps;
    if (!cot_worker_metrics_of(&metrics, &stats))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the counters");
    pthread_mutex_lock(&b->lock);
    old = b->metrics;
    b->metrics = metrics;
    pthread_mutex_unlock(&b->lock);
    cot_worker_metrics_clear(&old);
    return gather_popularity(b, error);
}

/* The same, once a second at most while there are steps, and once more after the last one; before the first one there is nothing
 * to tell. */
static cot_status gather_now_and_then(cot_worker_engine *b, cot_error *error)
{
    const int64_t second = 1000000000;
    if (!b->state.load.steps || cot_now_ns() - b->gathered_ns < second) return COT_OK;
    const cot_status status = gather(b, error);
    return status == COT_OUT_OF_MEMORY ? COT_OK : status; // another time
}

static bool has_nothing_to_do(const cot_worker_engine *b)
{
    const cot_worker_moves *m = &b->moves;
    const bool moves = (m->asked && !m->answered) || m->cancelled || (m->go_on && m->advanced);
    return !moves && !b->live && !b->submitted.first && !b->cancelled.first && !b->ends && !b->flushes &&
           (!b->views || b->view_ready || b->state.failed) && (!b->step.count || b->records.count);
}

/* Takes what is ordered; waits for it where there is nothing else to do, though not for more than a second: ranks may die
 * meanwhile; and not for more than a moment where moves go on as soon as they may. False: it is over. */
static bool take_orders(cot_worker_engine *b, cot_job **submitted, cot_job **cancelled)
{
    enum { SECOND = 1000000000, MOMENT = 1000000 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += b->moves.go_on ? MOMENT : SECOND;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
    pthread_mutex_lock(&b->lock);
    for (int late = 0; has_nothing_to_do(b) && !late;)
        late = b->state.failed ? pthread_cond_wait(&b->changed, &b->lock)
                               : pthread_cond_timedwait(&b->changed, &b->lock, &until);
    *submitted = b->submitted.first;
    *cancelled = b->cancelled.first;
    b->submitted = b->cancelled = (order_list){0};
    b->flushes = false;
    const bool goes_on = !b->ends;
    pthread_mutex_unlock(&b->lock);
    return goes_on;
}

/* Where a view is asked for. */
static void take_view(cot_worker_engine *b)
{
    pthread_mutex_lock(&b->lock);
    const bool asked = b->views && !b->view_ready;
    if (asked) b->views = false;
    pthread_mutex_unlock(&b->lock);
    if (!asked) return;
    const bool failed = gather(b, NULL) != COT_OK;
    b->view.sequences = cot_engine_sequences(b->engine, b->view.sequence, COT_VIEW_SEQUENCES);
    pthread_mutex_lock(&b->lock);
    b->view_ready = true;
    b->view_failed = failed; // had a rank died, the next step will find out
    pthread_mutex_unlock(&b->lock);
    cot_wake_up(&b->news);
}

static void *run(void *argument)
{
    cot_worker_engine *b = argument;
    cot_job *submitted, *cancelled;
    cot_error error;
    size_t left;
    while (take_orders(b, &submitted, &cancelled)) {
        obey(b, submitted, cancelled);
        cot_worker_order_moves(b);
        if (!b->state.failed && cot_engine_step(b->engine, &left, &error) != COT_OK) fail_all(b, &error);
        cot_worker_follow_moves(b);
        if (!b->state.failed && gather_now_and_then(b, &error) != COT_OK) fail_all(b, &error);
        if (!b->state.failed) take_view(b);
        publish(b);
        if (b->kv && !b->state.failed) cot_kv_events_flush(b->kv);
        end_ranks(b);
    }
    obey(b, submitted, cancelled);
    while (b->live) cot_engine_cancel(b->engine, b->live->id, NULL);
    return NULL;
}

/* ---- the loop's thread ---- */

/* Tells the jobs' owners. Of a job that was cancelled nothing but the answer to that is told. */
static void tell(const cot_worker_engine *b, cot_records *records)
{
    for (size_t i = 0; i < records->count; i++) {
        const cot_job *job = records->list[i].job;
        const bool answer = records->list[i].ends_cancelling;
        if (job->is_cancelled != answer) continue;
        cot_job_event event = cot_records_event(records, i);
        if (answer)
            event = (cot_job_event){.kind = COT_JOB_OVER,
                                    .at_ns = event.at_ns,
                                    .text = "",
                                    .last = true,
                                    .finish = COT_FINISH_CANCELLED,
                                    .stopped_by = -1};
        b->owner.on_event(b->owner.context, job->number, &event);
    }
    cot_records_clear(records);
}

/* Tells the view, if there is one, and lets the next be taken. */
static void tell_view(cot_worker_engine *b)
{
    pthread_mutex_lock(&b->lock);
    const bool ready = b->view_ready;
    pthread_mutex_unlock(&b->lock);
    if (!ready) return;
    b->owner.on_view(b->owner.context, b->view_failed ? NULL : &b->view);
    pthread_mutex_lock(&b->lock);
    b->view_ready = false;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void take_records(void *context, uint64_t times)
{
    cot_worker_engine *b = context;
    (void)times;
    tell_view(b);
    cot_worker_tell_moves(b);
    pthread_mutex_lock(&b->lock);
    swap_records(&b->records, &b->reading);
    pthread_cond_signal(&b->changed); // there may be more
    const bool fails = b->state.failed && !b->failure_told, goes = b->gone && !b->gone_told;
    pthread_mutex_unlock(&b->lock);
    tell(b, &b->reading);
    b->failure_told |= fails;
    b->gone_told |= goes;
    if (fails) b->owner.on_failure(b->owner.context);
    if (goes) b->owner.on_gone(b->owner.context);
}

static void submit(cot_backend *backend, cot_job *const *jobs, size_t count)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < count; i++) {
        jobs[i]->backend = b;
        jobs[i]->next = NULL;
        *(b->submitted.last ? &b->submitted.last->next : &b->submitted.first) = jobs[i];
        b->submitted.last = jobs[i];
    }
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void cancel(cot_backend *backend, cot_job *job)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    job->is_cancelled = true;
    job->next_cancelled = NULL;
    pthread_mutex_lock(&b->lock);
    *(b->cancelled.last ? &b->cancelled.last->next_cancelled : &b->cancelled.first) = job;
    b->cancelled.last = job;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static const cot_backend_info *describe(const cot_backend *backend)
{
    return &((const cot_worker_engine *)backend)->info;
}

static void state(cot_backend *backend, cot_backend_state *out)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    *out = b->state;
    out->lives = !b->state.failed && cot_engine_lives(b->engine);
    pthread_mutex_unlock(&b->lock);
    out->publishes_cache = b->kv;
    if (b->kv) cot_kv_events_count(b->kv, &out->cache_batches, &out->cache_losses);
}

static const cot_backend_metrics *metrics(cot_backend *backend)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    if (b->metrics.ranks) {
        cot_worker_metrics_clear(&b->shown);
        b->shown = b->metrics;
        b->metrics = (cot_backend_metrics){0};
    }
    pthread_mutex_unlock(&b->lock);
    return b->shown.ranks ? &b->shown : NULL;
}

static cot_status placement(cot_backend *backend, cot_backend_placement *out, cot_error *error)
{
    return cot_worker_placement_of(out, ((cot_worker_engine *)backend)->engine, error);
}

static cot_status popularity(cot_backend *backend, cot_backend_popularity *out, cot_error *error)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    const cot_status status = cot_backend_popularity_copy(out, &b->popularity, error);
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* Wakes the engine's thread for it. */
static void order(cot_worker_engine *b, bool *what)
{
    pthread_mutex_lock(&b->lock);
    *what = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static bool rebalancing(cot_backend *backend, cot_backend_rebalancing *out)
{
    return cot_worker_rebalancing_of(out, ((cot_worker_engine *)backend)->engine);
}

static cot_status write_placement(cot_backend *backend, char **text, size_t *bytes, cot_error *error)
{
    return cot_worker_placement_text(text, bytes, ((cot_worker_engine *)backend)->engine, error);
}

static void ask_view(cot_backend *backend)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    order(b, &b->views);
}

static void ask_snapshot(cot_backend *backend)
{
    cot_kv_events_ask(((cot_worker_engine *)backend)->kv);
}

/* ---- what is published ---- */

static cot_status list_cache(void *context, const cot_cache_events *events)
{
    return cot_engine_list_cache(((cot_worker_engine *)context)->engine, events, NULL);
}

static void wake_for_cache(void *context)
{
    cot_worker_engine *b = context;
    order(b, &b->flushes);
}

static void on_step(void *context, const cot_step_report *report)
{
    cot_worker_engine *b = context;
    const cot_backend_report told = cot_worker_report_of(report, b->reported);
    cot_step_reports_put(b->reports, &told);
}

static void on_profile(void *context, const cot_profile_told *profile)
{
    cot_worker_engine *b = context;
    cot_popularity_topic_put_request(b->topic, profile);
}

/* Blocks come and go: who follows the KV cache is told of both, who follows what is called of signatures that go with blocks. */
static void on_stored(void *context, const cot_cache_block *block)
{
    const cot_worker_engine *b = context;
    if (b->cache.on_stored) b->cache.on_stored(b->cache.context, block);
}

static void on_removed(void *context, int home, uint64_t hash)
{
    const cot_worker_engine *b = context;
    if (b->cache.on_removed) b->cache.on_removed(b->cache.context, home, hash);
    if (b->topic) cot_popularity_topic_put_evicted(b->topic, home, hash);
}

static void on_state_stored(void *context, const cot_cache_block *block)
{
    const cot_worker_engine *b = context;
    if (b->cache.on_state_stored) b->cache.on_state_stored(b->cache.context, block);
}

static void on_state_removed(void *context, int home, uint64_t hash)
{
    const cot_worker_engine *b = context;
    if (b->cache.on_state_removed) b->cache.on_state_removed(b->cache.context, home, hash);
}

/* What is watched is so from the engine's first step on. */
static cot_status publish_all(cot_worker_engine *b, const cot_backend_start *s, cot_error *error)
{
    cot_status status = COT_OK;
    if (*s->reports.address) {
        status = cot_step_reports_open(&b->reports, &s->reports, b->info.ranks, s->base, error);
        if (status == COT_OK) cot_engine_watch_steps(b->engine, &(cot_step_events){b, on_step});
    }
    if (status == COT_OK && *s->popularity.address) {
        cot_engine_popularity_info info;
        cot_engine_describe_popularity(&info, b->engine);
        status = cot_popularity_topic_open(&b->topic, &s->popularity, &info, s->base, error);
        if (status == COT_OK) cot_engine_watch_profiles(b->engine, &(cot_profile_events){b, on_profile});
    }
    if (b->topic || s->kv.enabled)
        cot_engine_watch_cache(b->engine, &(cot_cache_events){.context = b,
                                                              .on_stored = on_stored,
                                                              .on_removed = on_removed,
                                                              .on_state_stored = on_state_stored,
                                                              .on_state_removed = on_state_removed});
    if (status != COT_OK || !s->kv.enabled) return status;
    const cot_kv_events_owner owner = {.context = b,
                                       .homes = b->info.homes,
                                       .block_tokens = b->info.block_tokens,
                                       .list = list_cache,
                                       .wake = wake_for_cache,
                                       .follower = s->owner.context,
                                       .on_snapshot = s->owner.on_snapshot};
    status = cot_kv_events_open(&b->kv, &s->kv, &owner, s->base, error);
    if (status == COT_OK) b->cache = cot_kv_events_watcher(b->kv);
    return status;
}

/* ---- from opening to closing ---- */

static cot_status start(cot_backend *backend, const cot_backend_start *s, cot_error *error)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    b->owner = s->owner;
    cot_status status = publish_all(b, s, error);
    if (status == COT_OK) status = cot_worker_popularity_of(&b->popularity, b->engine, error);
    if (status != COT_OK) return status;
    b->runs = cot_wake_open(&b->news, s->base, take_records, b) && cot_thread_start(&b->thread, run, b);
    return b->runs ? COT_OK : cot_fail(error, COT_IO, "cannot start the engine's thread");
}

static void close_backend(cot_backend *backend)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    if (b->runs) {
        order(b, &b->ends);
        pthread_join(b->thread, NULL);
        tell(b, &b->records);
        tell(b, &b->step);
    }
    cot_engine_watch_cache(b->engine, NULL);
    cot_engine_watch_steps(b->engine, NULL);
    cot_engine_watch_profiles(b->engine, NULL);
    cot_wake_close(&b->news);
    cot_kv_events_close(b->kv);
    cot_step_reports_close(b->reports);
    cot_popularity_topic_close(b->topic);
    cot_backend_popularity_free(&b->popularity);
    cot_records_free(&b->records);
    cot_records_free(&b->step);
    cot_records_free(&b->reading);
    cot_worker_metrics_clear(&b->metrics);
    cot_worker_metrics_clear(&b->shown);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    cot_expert_map_free(&b->moves.to);
    json_decref(b->moves.told);
    free(b->reported);
    free(b);
}

cot_status cot_worker_of_engine(cot_backend **backend, cot_engine *engine, const char *folder,
                                cot_error *error)
{
    static const cot_backend_table table = {.describe = describe,
                                            .start = start,
                                            .submit = submit,
                                            .cancel = cancel,
                                            .state = state,
                                            .metrics = metrics,
                                            .placement = placement,
                                            .move = cot_worker_move_experts,
                                            .rebalance = cot_worker_rebalance,
                                            .rebalancing = rebalancing,
                                            .moves = cot_worker_moves_told,
                                            .find_moves = cot_worker_find_moves,
                                            .cancel_moves = cot_worker_cancel_moves,
                                            .write_placement = write_placement,
                                            .popularity = popularity,
                                            .ask_view = ask_view,
                                            .ask_snapshot = ask_snapshot,
                                            .close = close_backend};
    cot_worker_engine *b = calloc(1, sizeof *b);
    *backend = NULL;
    if (b) b->reported = calloc((size_t)cot_engine_describe(engine)->ranks, sizeof *b->reported);
    if (!b || !b->reported) {
        free(b);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
    }
    b->base.table = &table;
    b->info = cot_worker_info_of(engine);
    b->engine = engine;
    b->news.fd = -1;
    cot_engine_get_load(engine, &b->state.load);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    const cot_status status = cot_fingerprint(b->info.fingerprint, folder, engine, error);
    if (status == COT_OK)
        *backend = &b->base;
    else
        close_backend(&b->base);
    return status;
}

void cot_worker_close(cot_backend *backend)
{
    if (backend) backend->table->close(backend);
}
