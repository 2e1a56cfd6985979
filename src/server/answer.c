#include "server/answer.h"

#include "base/clock.h"
#include "server/choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Where an answer is: its body is prepared, its sequences run, or it only waits for cancelled ones to end. */
struct cot_answer {
    cot_server *server;
    cot_http_exchange *exchange; // NULL: the client has left, or has its answer
    cot_preparation preparation;
    cot_api_request *request; // the preparation's
    cot_wire_head head;
    char id[64], request_id[132];
    bool preparing, streaming;
    bool is_lost;                      // in the server's other list
    cot_choice *choices;               // [choice_count]
    size_t choice_count, choices_left; // left: whose jobs are with the backend
    size_t choices_untold;             // of which the end has not been sent
    size_t reserved_bytes;
    int64_t began_ns;
    cot_answer *before, *behind; // in the server's list
};

/* ---- coming and going ---- */

static uint64_t random_bits(void)
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = (uint64_t)cot_now_ns();
    return bits;
}

static void link_answer(cot_answer *a, cot_answer **list)
{
    a->before = NULL;
    a->behind = *list;
    if (a->behind) a->behind->before = a;
    *list = a;
}

static void unlink_answer(cot_answer *a)
{
    cot_server *s = a->server;
    *(a->before ? &a->before->behind : a->is_lost ? &s->lost : &s->answers) = a->behind;
    if (a->behind) a->behind->before = a->before;
}

/* What the backend may still tell of it is of nobody's. */
static void forget_job(cot_server *s, cot_choice *c)
{
    if (c->job.number) cot_jobs_remove(&s->jobs, &c->job);
    c->job.number = 0;
}

static void release(cot_answer *a)
{
    cot_server *s = a->server;
    unlink_answer(a);
    s->reserved_bytes -= a->reserved_bytes;
    for (size_t i = 0; i < a->choice_count; i++) {
        forget_job(s, &a->choices[i]);
        cot_choice_close(&a->choices[i]);
    }
    free(a->choices);
    cot_api_request_clear(a->request);
    free(a->preparation.body);
    free(a->preparation.text);
    free(a);
    cot_server_check_rest(s);
}

/* Frees the answer when nobody has anything to do with it any more. */
static void release_if_done(cot_answer *a)
{
    if (!a->exchange && !a->preparing && !a->choices_left) release(a);
}

/* Ends what is still done for it. */
static void cancel_work(cot_answer *a)
{
    cot_server *s = a->server;
    if (a->preparing && cot_preparer_cancel(s->preparer, &a->preparation)) {
        a->preparing = false;
        s->preparing--;
    }
    for (size_t i = 0; i < a->choice_count; i++) {
        cot_choice *c = &a->choices[i];
        if (c->is_over || c->cancelled_ns) continue;
        c->cancelled_ns = cot_now_ns();
        s->backend->table->cancel(s->backend, &c->job);
    }
}

void cot_answer_gone(cot_answer *a)
{
    a->exchange = NULL;
    cancel_work(a);
    release_if_done(a);
}

/* An error ends the answer: as a reply where nothing has been sent yet, else as the stream's last event. */
static void fail(cot_answer *a, const cot_api_error *error)
{
    cot_http_exchange *exchange = a->exchange;
    a->exchange = NULL;
    cancel_work(a);
    if (exchange && !a->streaming) cot_server_refuse(a->server, exchange, error);
    if (exchange && a->streaming) {
        json_t *json = cot_api_error_json(error);
        char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
        if (text) cot_http_stream_event(exchange, text, strlen(text));
        cot_http_close_after(exchange);
        cot_http_stream_end(exchange);
        free(text);
        json_decref(json);
    }
}

void cot_answer_abort_all(cot_server *s)
{
    cot_api_error error;
    cot_api_fail(&error, 503, "shutting_down", NULL, "the server is shutting down");
    for (cot_answer *a = s->answers, *next; a; a = next) {
        next = a->behind;
        if (!a->exchange) continue;
        fail(a, &error);
        release_if_done(a);
    }
}

/* ---- what is sent ---- */

static cot_wire_usage usage_of(const cot_answer *a)
{
    cot_wire_usage usage = {0};
    for (size_t i = 0; i < a->choice_count; i++) {
        const cot_choice *c = &a->choices[i];
        usage.completion_tokens += c->generated;
        if (i % (size_t)a->request->n) continue; // a prompt counts once
        usage.prompt_tokens += c->prompt_tokens;
        usage.cached_tokens += c->cached_tokens;
    }
    return usage;
}

static void out_of_memory(cot_answer *a)
{
    cot_api_error error;
    cot_api_fail(&error, 503, NULL, NULL, "out of memory");
    fail(a, &error);
}

/* An answer, or an event of one, which may be the first, of a list of choices and usage, which are taken over. A conversation is one
 * prompt, whose ids the first has at its top, where they were asked for. NULL when memory ran out, which has ended the answer. */
static char *write_answer(cot_answer *a, json_t *choices, json_t *usage, bool first)
{
    const cot_choice *c = a->choices;
    json_t *json = choices ? cot_wire_answer(&a->head, choices, usage) : NULL;
    if (!choices) json_decref(usage);
    bool good = json;
    if (good && first && a->head.chat && a->request->return_token_ids)
        good =
            !json_object_set_new(json, "prompt_token_ids", cot_wire_ids(c->tokens, (size_t)c->prompt_tokens));
    char *text = good ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!text) out_of_memory(a);
    return text;
}

/* One event of a stream. False when memory ran out. */
static bool send_event(cot_answer *a, json_t *choices, json_t *usage, bool first)
{
    char *text = write_answer(a, choices, usage, first);
    if (!text) return false;
    cot_http_stream_event(a->exchange, text, strlen(text));
    free(text);
    return true;
}

static void begin_stream(cot_answer *a)
{
    cot_http_field fields[COT_ACCESS_FIELDS];
    size_t n = cot_access_fields(&a->server->access.options, a->exchange, fields, a->request_id);
    fields[n++] = (cot_http_field){"Cache-Control", "no-cache"};
    cot_http_stream_begin(a->exchange, 200, "text/event-stream; charset=utf-8", fields, n);
    a->streaming = true;
}

static void end_stream(cot_answer *a)
{
    if (a->request->include_usage) {
        const cot_wire_usage usage = usage_of(a);
        if (!send_event(a, json_array(), cot_wire_usage_json(&usage), false)) return;
    }
    cot_http_stream_event(a->exchange, "[DONE]", 6);
    cot_http_stream_end(a->exchange);
    a->exchange = NULL;
}

/* Tells a stream what is new of a choice. */
static void stream_choice(cot_answer *a, cot_choice *c)
{
    json_t *usage = NULL, *list = json_array(), *choice = cot_choice_json(c, a->request, &a->head);
    if (json_array_append_new(list, choice)) {
        json_decref(list);
        list = NULL;
    }
    if (a->request->include_usage) {
        const cot_wire_usage counted = usage_of(a);
        usage = a->request->continuous_usage_stats ? cot_wire_usage_json(&counted) : json_null();
    }
    const bool first = !a->streaming;
    if (first) begin_stream(a);
    if (!send_event(a, list, usage, first)) return;
    if (c->is_over && !--a->choices_untold) end_stream(a);
}

static void reply_whole(cot_answer *a)
{
    json_t *list = json_array();
    const cot_wire_usage usage = usage_of(a);
    for (size_t i = 0; i < a->choice_count && list; i++)
        if (json_array_append_new(list, cot_choice_json(&a->choices[i], a->request, &a->head))) {
            json_decref(list);
            list = NULL;
        }
    char *text = write_answer(a, list, cot_wire_usage_json(&usage), true);
    if (!text) return;
    cot_server_reply(a->server, a->exchange, 200, a->request_id, "application/json", text, strlen(text));
    a->exchange = NULL;
    free(text);
}

/* ---- what the backend tells ---- */

/* The longest of a prompt's choices counts when the last of them ends. */
static void count_longest(const cot_answer *a, const cot_choice *last)
{
    int64_t longest = 0;
    for (const cot_choice *c = a->choices; c < a->choices + a->choice_count; c++) {
        if (c->prompt != last->prompt) continue;
        if (!c->is_counted) return;
        if (c->generated > longest) longest = c->generated;
    }
    cot_metrics_longest(&a->server->metrics, longest);
}

/* A choice has ended. */
static void count_choice(const cot_answer *a, cot_choice *c)
{
    cot_metrics *m = &a->server->metrics;
    const char *reason = cot_choice_finish_reason(c);
    if (c->finish == COT_FINISH_CANCELLED || c->finish == COT_FINISH_OVERFLOW ||
        c->finish == COT_FINISH_CONSTRAINT)
        m->aborted++;
    else if (strcmp(reason, "length") == 0)
        m->ended_by_length++;
    else // by itself, with calls or without
        m->stopped++;
    cot_metrics_time(m, COT_TIME_END_TO_END, cot_now_ns() - c->began_ns);
    cot_metrics_lengths(m, c->prompt_tokens, c->generated);
    if (c->first_ns) {
        cot_metrics_time(m, COT_TIME_DECODE, c->last_ns - c->first_ns);
        cot_metrics_time(m, COT_TIME_INFERENCE, c->last_ns - c->admitted_ns);
    }
    m->calls += c->said.call_count;
    m->unread_calls += cot_said_unread(&c->said);
    c->is_counted = true;
    count_longest(a, c);
    const int64_t tokens = c->generated - c->job.request.output_tokens; // those before were another request's
    if (tokens > 1) cot_metrics_time(m, COT_TIME_PER_OUTPUT_TOKEN, (c->last_ns - c->first_ns) / (tokens - 1));
}

static void count_event(cot_server *s, const cot_choice *c, const cot_job_event *event, int64_t last_ns)
{
    if (event->kind == COT_JOB_ADMITTED) {
        s->waiting_jobs--;
        s->running_jobs++;
        cot_metrics_time(&s->metrics, COT_TIME_QUEUE, c->admitted_ns - c->began_ns);
    }
    if (event->kind == COT_JOB_TOKEN) {
        s->metrics.generation_tokens_total++;
        if (last_ns)
            cot_metrics_time(&s->metrics, COT_TIME_BETWEEN_TOKENS, c->last_ns - last_ns);
        else {
            cot_metrics_time(&s->metrics, COT_TIME_TO_FIRST_TOKEN, c->first_ns - c->began_ns);
            cot_metrics_time(&s->metrics, COT_TIME_PREFILL, c->first_ns - c->admitted_ns);
        }
    }
    if (event->last) {
        if (c->admitted_ns)
            s->running_jobs--;
        else
            s->waiting_jobs--;
    }
}

/* What a failure of the backend is to the client. Values overflow again whenever the same is computed again. */
static void fail_of(cot_answer *a, const cot_choice *c)
{
    cot_api_error error;
    const char *field = a->request->constraint.name; // NULL: the reasoning alone is bounded
    if (c->finish == COT_FINISH_CONSTRAINT)
        cot_api_fail(&error, 400, "invalid_value", field, "%s%s%s%s", field ? "'" : "", field ? field : "",
                     field ? "': " : "", c->error.message);
    else if (c->was_busy)
        cot_api_fail(&error, 429, "overloaded", NULL, "%s", c->error.message);
    else
        cot_api_fail_of(&error, 500, NULL, &c->error);
    error.is_final = c->finish == COT_FINISH_OVERFLOW;
    fail(a, &error);
}

/* The backend breaks its word; the first times are told. */
static void tell_stray(cot_server *s)
{
    const uint64_t times = ++s->strays;
    if (times & (times - 1)) return;
    cot_server_log(s, COT_LOG_WARNING,
                   "the worker told what it must not of a sequence, or told it twice (%" PRIu64 " in all)",
                   times);
}

/* The end of a sequence that was given up. */
static void take_lost(cot_answer *a, cot_choice *c)
{
    c->is_over = true;
    forget_job(a->server, c);
    a->choices_left--;
    release_if_done(a);
}

void cot_answer_on_event(void *server, uint64_t job, const cot_job_event *event)
{
    cot_server *s = server;
    cot_choice *c = (cot_choice *)cot_jobs_find(&s->jobs, job);
    cot_answer *a = c ? c->answer : NULL;
    if (!c || (event->kind == COT_JOB_ADMITTED && c->admitted_ns)) {
        tell_stray(s);
        return;
    }
    if (a->is_lost) {
        if (event->last) take_lost(a, c);
        return;
    }
    if (c->cancelled_ns && !event->last) return; // it was on its way
    const int64_t last_ns = c->last_ns;
    const bool good = cot_choice_take(c, a->request, &s->model, event);
    c->heard_ns = cot_now_ns();
    count_event(s, c, event, last_ns);
    if (event->last) {
        forget_job(s, c);
        a->choices_left--;
        count_choice(a, c);
    }
    if (a->exchange) {
        const bool news = event->kind == COT_JOB_TOKEN || event->last;
        if (!good)
            out_of_memory(a);
        else if (event->last && c->error.status != COT_OK)
            fail_of(a, c);
        else if (a->request->stream && news)
            stream_choice(a, c);
        else if (!a->request->stream && event->last && !--a->choices_untold)
            reply_whole(a);
    }
    release_if_done(a);
}

/* ---- what the backend does not tell ---- */

/* It has not ended what it was told to end long ago: the server goes on as if it had. Memory stays until it does. */
static void lose(cot_answer *a)
{
    cot_server *s = a->server;
    for (size_t i = 0; i < a->choice_count; i++)
        if (!a->choices[i].is_over) --*(a->choices[i].admitted_ns ? &s->running_jobs : &s->waiting_jobs);
    cot_server_log(s, COT_LOG_WARNING,
                   "the worker has not ended a request that was cancelled: it is given up");
    s->reserved_bytes -= a->reserved_bytes;
    a->reserved_bytes = 0;
    unlink_answer(a);
    a->is_lost = true;
    link_answer(a, &s->lost);
    cot_server_check_rest(s);
}

/* When the backend last told anything of the request. */
static int64_t last_heard_ns(const cot_answer *a)
{
    int64_t last_ns = 0;
    for (size_t i = 0; i < a->choice_count; i++)
        if (a->choices[i].heard_ns > last_ns) last_ns = a->choices[i].heard_ns;
    return last_ns;
}

/* Whether a sequence is not over though it was cancelled so long ago. */
static bool outlives(const cot_answer *a, int64_t now_ns, int64_t ns)
{
    for (size_t i = 0; i < a->choice_count; i++) {
        const cot_choice *c = &a->choices[i];
        if (!c->is_over && c->cancelled_ns && now_ns - c->cancelled_ns >= ns) return true;
    }
    return false;
}

void cot_answer_watch(cot_server *s)
{
    const int64_t now_ns = cot_now_ns(), silence_ns = s->options.answer_timeout_ms * 1000000,
                  most_ns = (int64_t)60000000000, patience_ns = silence_ns < most_ns ? silence_ns : most_ns;
    for (cot_answer *a = s->answers, *next; a; a = next) {
        next = a->behind;
        if (!a->choices_left) continue;
        if (a->exchange && now_ns - last_heard_ns(a) >= silence_ns) {
            cot_api_error error;
            cot_api_fail(&error, 504, "timeout", NULL, "nothing came of the request for %g s",
                         (double)silence_ns / 1e9);
            cot_server_log(s, COT_LOG_WARNING,
                           "the worker told nothing of a request for %g s: it is cancelled",
                           (double)silence_ns / 1e9);
            fail(a, &error);
            release_if_done(a);
        } else if (!a->exchange && outlives(a, now_ns, patience_ns))
            lose(a);
    }
}

void cot_answer_free_all(cot_server *s)
{
    while (s->answers || s->lost) release(s->answers ? s->answers : s->lost);
}

/* ---- from body to jobs ---- */

/* Whether "," NAME "," has not been logged before; from now on it has. Where there is no room left, nothing is new. */
static bool is_new(cot_server *s, const char *name, size_t bytes)
{
    char *known = s->reported_unknown;
    const size_t used = strlen(known);
    for (const char *at = known; *at; at += strcspn(at, ",") + 1)
        if (strcspn(at, ",") == bytes && memcmp(at, name, bytes) == 0) return false;
    if (used + bytes + 2 > sizeof s->reported_unknown) return false;
    memcpy(known + used, name, bytes);
    memcpy(known + used + bytes, ",", 2);
    return true;
}

/* Every field once, whatever others it comes with. A name is the client's: a terminal must not obey it. */
static void log_unknown(cot_server *s, const char *unknown)
{
    static const char between[] = ", ";
    for (size_t n; *unknown; unknown += n + strspn(unknown + n, between)) {
        n = strcspn(unknown, between);
        if (!n || !is_new(s, unknown, n)) continue;
        char name[sizeof((cot_api_request *)0)->unknown];
        for (size_t i = 0; i < n; i++) {
            const unsigned char c = (unsigned char)unknown[i];
            name[i] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
        }
        cot_server_log(s, COT_LOG_INFO, "requests have a field that is ignored: %.*s", (int)n, name);
    }
}

static bool check_load(cot_answer *a, cot_api_error *error)
{
    cot_server *s = a->server;
    const size_t choices = cot_api_choices(a->request);
    size_t bytes = 0;
    for (size_t i = 0; i < a->request->prompt_count; i++)
        bytes += (size_t)a->request->n * cot_choice_bytes(a->request, i);
    if (s->ending.heard)
        return cot_api_fail(error, 503, "shutting_down", NULL, "the server is shutting down");
    if (bytes > s->options.request_bytes)
        return cot_api_fail(error, 400, "request_too_large", NULL,
                            "the request may need %zu bytes of memory, the server has %zu for requests",
                            bytes, s->options.request_bytes);
    if (s->reserved_bytes + bytes > s->options.request_bytes)
        return cot_api_fail(error, 429, "overloaded", NULL,
                            "too much memory is taken by other requests; try again");
    if (choices > (size_t)s->options.max_queue)
        return cot_api_fail(error, 400, "request_too_large", NULL,
                            "the request has %zu choices, the queue holds %" PRId64, choices,
                            s->options.max_queue);
    if (s->waiting_jobs + choices > (size_t)s->options.max_queue)
        return cot_api_fail(error, 429, "queue_full", NULL, "%zu sequences wait already; try again",
                            s->waiting_jobs);
    a->reserved_bytes = bytes;
    s->reserved_bytes += bytes;
    return true;
}

/* The rank that the client wants it on. */
static bool read_home(int *home, const cot_answer *a, cot_api_error *error)
{
    const char *field = cot_http_header(a->exchange, "X-data-parallel-rank");
    char *end;
    *home = COT_HOME_ANY;
    if (!field) return true;
    const long rank = strtol(field, &end, 10);
    const int ranks = a->server->info->ranks;
    if (end == field || *end || rank < 0 || rank >= ranks)
        return cot_api_fail(error, 400, "invalid_value", "X-data-parallel-rank",
                            "X-data-parallel-rank is '%s', it must be in [0, %d]", field, ranks - 1);
    *home = (int)rank;
    return true;
}

static bool open_choices(cot_answer *a, cot_api_error *error)
{
    const cot_api_request *r = a->request;
    const uint64_t seed = r->seeded ? r->sampling.seed : random_bits();
    const size_t count = cot_api_choices(r);
    int home;
    if (!read_home(&home, a, error)) return false;
    a->choices = calloc(count, sizeof *a->choices);
    if (!a->choices) return cot_api_fail(error, 503, NULL, NULL, "out of memory");
    for (size_t i = 0; i < count; i++) {
        cot_choice *c = &a->choices[a->choice_count++];
        if (!cot_choice_open(c, r, &a->server->model, i, seed, error)) return false;
        c->began_ns = a->began_ns;
        c->answer = a;
        c->job.home = home;
        if (!c->is_over && !cot_jobs_add(&a->server->jobs, &c->job))
            return cot_api_fail(error, 503, NULL, NULL, "out of memory");
        if (i % (size_t)r->n && !a->choices[i - i % (size_t)r->n].is_over)
            c->job.leader = &a->choices[i - i % (size_t)r->n].job;
    }
    return true;
}

static void submit(cot_answer *a)
{
    cot_server *s = a->server;
    cot_job *jobs[COT_API_MAX_CHOICES];
    a->choices_untold = a->choice_count;
    for (size_t i = 0; i < a->choice_count; i++)
        if (!a->choices[i].is_over) {
            a->choices[i].heard_ns = cot_now_ns();
            jobs[a->choices_left++] = &a->choices[i].job;
        }
    s->waiting_jobs += a->choices_left;
    const size_t count = a->choices_left;
    if (count) s->backend->table->submit(s->backend, jobs, count);
    for (size_t i = 0; i < a->choice_count; i++) {
        if (!a->choices[i].is_over) continue;
        s->metrics.unsubmitted_prompt_tokens += (uint64_t)a->choices[i].prompt_tokens;
        count_choice(a, &a->choices[i]);
    }
    for (size_t i = 0; i < a->choice_count && a->exchange; i++) { // those that were complete before
        if (!a->choices[i].is_over) continue;
        if (a->request->stream)
            stream_choice(a, &a->choices[i]);
        else if (!--a->choices_untold)
            reply_whole(a);
    }
    release_if_done(a);
}

static void prepared(cot_preparation *preparation)
{
    cot_answer *a = preparation->owner;
    cot_server *s = a->server;
    cot_api_error *error = &preparation->error;
    a->preparing = false;
    s->preparing--;
    s->reserved_bytes -= a->reserved_bytes; // of the body, which is gone
    a->reserved_bytes = 0;
    log_unknown(s, a->request->unknown);
    if (!a->exchange) {
        release(a);
        return;
    }
    if (error->http_status) {
        fail(a, error);
    } else if (preparation->text) {
        cot_server_reply(s, a->exchange, 200, NULL, "application/json", preparation->text,
                         preparation->text_bytes);
        a->exchange = NULL;
    } else if (!check_load(a, error) || !open_choices(a, error)) {
        for (size_t i = 0; i < a->choice_count; i++) a->choices[i].is_over = true; // none has been submitted
        fail(a, error);
    } else {
        a->head.stream = a->request->stream;
        submit(a);
        return;
    }
    release_if_done(a);
}

void cot_answer_start(cot_server *s, cot_http_exchange *exchange, cot_api_kind kind)
{
    cot_api_error error = {0};
    cot_answer *a = calloc(1, sizeof *a);
    const size_t most = s->options.request_bytes;
    size_t bytes;
    cot_http_body(exchange, &bytes);
    if (!a)
        cot_api_fail(&error, 503, NULL, NULL, "out of memory");
    else if (s->preparing >= (size_t)s->options.max_queue)
        cot_api_fail(&error, 429, "queue_full", NULL, "%zu requests are being read already; try again",
                     s->preparing);
    else if (bytes > most)
        cot_api_fail(&error, 413, "request_too_large", NULL,
                     "the body has %zu bytes, the server has %zu for requests", bytes, most);
    else if (bytes > most - s->reserved_bytes)
        cot_api_fail(&error, 503, "overloaded", NULL,
                     "too much memory is taken by other requests; try again");
    if (error.http_status) {
        free(a);
        cot_server_refuse(s, exchange, &error);
        return;
    }
    const char *wished = cot_http_header(exchange, "X-Request-Id");
    a->server = s;
    a->exchange = exchange;
    a->request = &a->preparation.request;
    a->began_ns = cot_now_ns();
    snprintf(a->id, sizeof a->id, "%s-%016" PRIx64 "%016" PRIx64, kind == COT_API_CHAT ? "chatcmpl" : "cmpl",
             random_bits(), random_bits());
    snprintf(a->request_id, sizeof a->request_id, "%s", wished && strlen(wished) <= 128 ? wished : a->id);
    a->head = (cot_wire_head){
        .model = &s->model, .chat = kind == COT_API_CHAT, .id = a->id, .created = (int64_t)time(NULL)};
    link_answer(a, &s->answers);
    cot_server_begin_watch(s);
    cot_http_set_user(exchange, a);
    a->preparation.kind = kind;
    a->preparation.body = cot_http_take_body(exchange, &a->preparation.bytes);
    a->preparation.done = prepared;
    a->preparation.owner = a;
    a->reserved_bytes = bytes;
    s->reserved_bytes += bytes;
    a->preparing = true;
    s->preparing++;
    cot_preparer_start(s->preparer, &a->preparation);
}
