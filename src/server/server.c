#include "base/error.h"
#include "server/answer.h"
#include "server/moves.h"
#include "server/routes.h"
#include "server/view.h"

#include <event2/event.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void cot_server_options_init(cot_server_options *options)
{
    *options = (cot_server_options){.size = sizeof *options,
                                    .max_queue = 256,
                                    .request_bytes = (size_t)1 << 30,
                                    .shutdown_ms = 30000,
                                    .answer_timeout_ms = 3600000};
    cot_access_options_init(&options->access);
}

/* ---- answers that every part makes ---- */

void cot_server_log(const cot_server *s, cot_log_level level, const char *format, ...)
{
    const cot_access_options *o = &s->access.options;
    char line[1024];
    va_list values;
    if (!o->log || level > o->log_level) return;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    o->log(o->log_context, line);
}

static void reply(cot_server *s, cot_http_exchange *exchange, int status, bool is_final,
                  const char *request_id, const char *type, const char *body, size_t bytes)
{
    // clients try again after that; a sequence is over in seconds
    const char *retry = status != 429 && status != 503 ? NULL : s->ending.heard ? "30" : "1";
    if (status >= 400) s->metrics.refused++;
    cot_access_reply(&s->access.options, exchange,
                     &(cot_access_head){status, request_id, type, retry, is_final}, body, bytes);
}

void cot_server_reply(cot_server *s, cot_http_exchange *exchange, int status, const char *request_id,
                      const char *type, const char *body, size_t bytes)
{
    reply(s, exchange, status, false, request_id, type, body, bytes);
}

static void reply_json(cot_server *s, cot_http_exchange *exchange, int status, bool is_final, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (text)
        reply(s, exchange, status, is_final, NULL, "application/json", text, strlen(text));
    else
        reply(s, exchange, 503, false, NULL, NULL, "", 0);
    free(text);
}

void cot_server_reply_json(cot_server *s, cot_http_exchange *exchange, int status, json_t *json)
{
    reply_json(s, exchange, status, false, json);
}

void cot_server_refuse(cot_server *s, cot_http_exchange *exchange, const cot_api_error *error)
{
    reply_json(s, exchange, error->http_status, error->is_final, cot_api_error_json(error));
}

/* ---- the end ---- */

/* Nothing has been under way for a second. What answers took is free by then, but allocators keep it, in pieces between
 * others': a server at rest would hold now more, now less of what it once needed. */
static void hear_rest(evutil_socket_t descriptor, short what, void *context)
{
    const cot_server *s = context;
    (void)descriptor;
    (void)what;
    if (!s->answers) malloc_trim(0);
}

void cot_server_check_rest(cot_server *s)
{
    if (s->answers || s->ending.is_over) return;
    event_add(s->on_rest, &(struct timeval){.tv_sec = 1});
    cot_backend_state state;
    if (!s->ending.heard || s->fails) return;
    s->backend->table->state(s->backend, &state);
    if (!state.failed)
        cot_http_server_stop_accepting(s->http); // else /health is answered until the process ends
    cot_access_ending_finish(&s->ending, s->http);
}

static void check_rest(void *context)
{
    cot_server_check_rest(context);
}

static void cut(void *context)
{
    cot_answer_abort_all(context);
}

static void notice_failure(void *owner)
{
    cot_server *s = owner;
    cot_backend_state state;
    s->fails = true;
    if (s->ending.heard) return;
    s->backend->table->state(s->backend, &state);
    cot_server_log(s, COT_LOG_ERROR, "the engine failed: %s", state.error.message);
    cot_server_on_snapshot(s, NULL, 0);
    cot_server_on_view(s, NULL);
    cot_server_on_moves(s, 0, &state.error);
    cot_server_on_cycle(s, NULL, &state.error);
    cot_access_ending_begin(&s->ending);
}

static void notice_ends(void *owner)
{
    cot_server *s = owner;
    s->fails = false;
    cot_server_check_rest(s);
}

/* Answers are looked after as long as there are any. */
static void hear_watch(evutil_socket_t descriptor, short what, void *context)
{
    cot_server *s = context;
    (void)descriptor;
    (void)what;
    cot_answer_watch(s);
    if (s->answers) cot_server_begin_watch(s);
}

void cot_server_begin_watch(cot_server *s)
{
    const int64_t quarter = s->options.answer_timeout_ms / 4 + 1, ms = quarter < 1000 ? quarter : 1000;
    if (event_pending(s->on_watch, EV_TIMEOUT, NULL)) return;
    event_add(s->on_watch, &(struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000});
}

void cot_server_stop(cot_server *s)
{
    cot_access_ending_ask(&s->ending);
}

/* ---- files that are read again ---- */

static void hear_reload(void *context, uint64_t calls)
{
    cot_server *s = context;
    (void)calls;
    cot_access_reload(&s->access);
}

void cot_server_reload(cot_server *s)
{
    cot_wake_up(&s->reload);
}

/* ---- opening ---- */

/* The server's own copy of the names that options point to. */
static cot_status copy_names(cot_server *s, cot_error *error)
{
    return cot_access_list_copy(&s->options.served_names)
               ? COT_OK
               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
}

/* Takes copies of what options point to; all of it is owned or NULL afterwards, whatever happens. */
static cot_status copy_options(cot_server *s, const cot_server_options *options, cot_error *error)
{
    s->options = *options;
    s->options.access = (cot_access_options){0};
    s->options.served_names = NULL;
    const cot_status status = cot_access_open(&s->access, &options->access, error);
    if (status != COT_OK) return status;
    s->options.served_names = options->served_names;
    return copy_names(s, error);
}

static cot_status check_range(const char *name, int64_t value, int64_t least, int64_t most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is not in [%lld, %lld]", name, (long long)value,
                    (long long)least, (long long)most);
}

static cot_status check_options(const cot_server_options *o, int64_t longest, cot_error *error)
{
    cot_status status = check_range("max queue", o->max_queue, 1, 65536, error);
    if (status == COT_OK) status = check_range("shutdown time-out", o->shutdown_ms, 0, INT32_MAX, error);
    if (status == COT_OK) status = check_range("answer time-out", o->answer_timeout_ms, 1, INT32_MAX, error);
    if (status == COT_OK) status = check_range("max model length", o->max_model_len, 0, longest, error);
    return status;
}

/* The first of the tokens that a family needs that a vocabulary lacks; NULL: none. */
static const char *lacked_token(const cot_dialect *d, const cot_tokenizer *tokenizer)
{
    const char *token = NULL;
    for (size_t i = 0; d && (token = cot_dialect_needed_token(d, i)); i++)
        if (cot_tokenizer_added_token(tokenizer, token) < 0) break;
    return token;
}

/* A family that cannot be read is none where it was found, and an error where the operator has named it. */
static cot_status check_tokens(const cot_dialect **d, const char *named, const cot_tokenizer *tokenizer,
                               cot_error *error)
{
    const char *lacked = lacked_token(*d, tokenizer);
    if (!lacked) return COT_OK;
    if (named && strcmp(named, "auto") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the parser '%s' needs the token '%s', which the vocabulary lacks", named, lacked);
    *d = NULL;
    return COT_OK;
}

/* The operator's names go before what was found. */
static cot_status name_dialects(cot_server *s, cot_error *error)
{
    const char *calls = s->options.tool_call_parser, *reasoning = s->options.reasoning_parser;
    cot_served_dialects *d = &s->model.dialects;
    char names[512];
    if (calls && !cot_served_dialects_name(&d->calls, calls, false)) {
        cot_served_dialects_list(names, sizeof names, false);
        return cot_fail(error, COT_INVALID_ARGUMENT, "there is no tool call parser '%s' (auto, none, %s)",
                        calls, names);
    }
    if (reasoning && !cot_served_dialects_name(&d->reasoning, reasoning, true)) {
        cot_served_dialects_list(names, sizeof names, true);
        return cot_fail(error, COT_INVALID_ARGUMENT, "there is no reasoning parser '%s' (auto, none, %s)",
                        reasoning, names);
    }
    cot_status status = check_tokens(&d->calls, calls, s->model.tokenizer, error);
    if (status == COT_OK) status = check_tokens(&d->reasoning, reasoning, s->model.tokenizer, error);
    if (status != COT_OK) return status;
    const cot_dialect *r = d->reasoning && d->reasoning->reasoning ? d->reasoning : NULL;
    d->begin = r ? cot_tokenizer_added_token(s->model.tokenizer, r->reasoning) : -1;
    d->end = r ? cot_tokenizer_added_token(s->model.tokenizer, r->reasoning_end) : -1;
    const char *const openings[] = {d->calls ? d->calls->section : NULL, d->calls ? d->calls->call : NULL};
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        const int32_t token = openings[i] ? cot_tokenizer_added_token(s->model.tokenizer, openings[i]) : -1;
        if (token >= 0) d->openings[d->opening_count++] = token;
    }
    return COT_OK;
}

static cot_status describe_model(cot_server *s, const char *folder, const cot_tokenizer *tokenizer,
                                 const cot_chat_template *chat, cot_error *error)
{
    const cot_backend_info *info = s->info;
    cot_served_model *m = &s->model;
    m->tokenizer = tokenizer;
    m->chat = chat;
    m->dialects = cot_served_dialects_find(chat);
    const cot_status named = name_dialects(s, error);
    if (named != COT_OK) return named;
    m->vocab = info->vocab;
    m->eos = info->eos;
    m->eos_count = info->eos_count;
    m->max_model_len = s->options.max_model_len ? s->options.max_model_len : info->context_tokens;
    m->created = (int64_t)time(NULL);
    cot_served_constraints_open(&s->constraints, tokenizer, info->vocab, info->eos, info->eos_count);
    if (info->constrains) m->constraints = &s->constraints;
    m->request_bytes = s->options.request_bytes;
    if (!folder && !s->options.served_names)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the model is served under no name");
    if (!s->options.served_names) {
        const char *const own[] = {folder, NULL};
        s->options.served_names = own;
        const cot_status status = copy_names(s, error);
        if (status != COT_OK) return status;
    }
    m->names = s->options.served_names;
    while (m->names[m->name_count]) m->name_count++;
    if (!m->name_count) return cot_fail(error, COT_INVALID_ARGUMENT, "the model is served under no name");
    m->fingerprint = info->fingerprint;
    return cot_api_defaults_read(&m->defaults, folder, error);
}

static cot_status start_events(cot_server *s, cot_error *error)
{
    s->base = cot_wake_base_open();
    const bool hears =
        s->base &&
        cot_access_ending_open(&s->ending, &s->access, s->base, s->options.shutdown_ms, check_rest, cut, s) &&
        cot_wake_open(&s->reload, s->base, hear_reload, s);
    if (hears) {
        s->on_rest = event_new(s->base, -1, 0, hear_rest, s);
        s->on_watch = event_new(s->base, -1, 0, hear_watch, s);
    }
    if (!hears || !s->on_rest || !s->on_watch)
        return cot_fail(error, COT_IO, "cannot start the server's loop");
    return COT_OK;
}

/* What is published, and where. */
static cot_status read_endpoints(cot_kv_config *config, cot_endpoint *reports, cot_endpoint *popularity,
                                 const cot_server_options *o, int port, int kv_homes, cot_error *error)
{
    cot_status status = cot_kv_config_read(config, o->kv_events_config, error);
    if (status == COT_OK) status = cot_kv_config_check(config, kv_homes, port, o->kv_events_no_auth, error);
    if (status != COT_OK) return status;
    status = cot_kv_config_read_beside(reports, "--step-reports-endpoint", o->step_reports_endpoint, config,
                                       kv_homes, port, NULL, o->kv_events_no_auth, error);
    if (status != COT_OK) return status;
    return cot_kv_config_read_beside(popularity, "--popularity-endpoint", o->popularity_endpoint, config,
                                     kv_homes, port, reports, o->kv_events_no_auth, error);
}

cot_status cot_server_check(const cot_server_options *options, int kv_homes, cot_error *error)
{
    cot_kv_config config;
    cot_endpoint reports, popularity;
    const cot_status status = cot_access_check_options(&options->access, error);
    if (status != COT_OK) return status;
    return read_endpoints(&config, &reports, &popularity, options, options->access.port, kv_homes, error);
}

static cot_status start_worker(cot_server *s, cot_error *error)
{
    cot_backend_start start = {.base = s->base,
                               .owner = {.context = s,
                                         .on_event = cot_answer_on_event,
                                         .on_failure = notice_failure,
                                         .on_gone = notice_ends,
                                         .on_view = cot_server_on_view,
                                         .on_snapshot = cot_server_on_snapshot,
                                         .on_moves = cot_server_on_moves,
                                         .on_cycle = cot_server_on_cycle}};
    cot_status status = read_endpoints(&start.kv, &start.reports, &start.popularity, &s->options,
                                       s->access.options.port, s->info->homes, error);
    if (status != COT_OK) return status;
    s->kv = start.kv;
    s->reports = start.reports;
    s->popularity = start.popularity;
    return s->backend->table->start(s->backend, &start, error);
}

static cot_status listen_on(cot_server *s, cot_error *error)
{
    const cot_http_server_options options = cot_access_http_options(&s->access);
    return cot_http_server_open(&s->http, s->base, &options, &cot_routes, s, error);
}

cot_status cot_server_open(cot_server **server, const char *folder, cot_backend *worker,
                           const cot_tokenizer *tokenizer, const cot_chat_template *chat,
                           const cot_server_options *options, cot_error *error)
{
    cot_server *s = *server = NULL;
    if (options->size == sizeof *options) s = calloc(1, sizeof *s);
    if (!s) {
        worker->table->close(worker);
        if (options->size == sizeof *options)
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
        return cot_fail(error, COT_INVALID_ARGUMENT, "server options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    }
    s->backend = worker;
    s->info = worker->table->describe(worker);
    s->reload.fd = -1;
    cot_status status = copy_options(s, options, error);
    if (status == COT_OK) status = start_events(s, error);
    if (status == COT_OK) status = start_worker(s, error);
    if (status == COT_OK) status = check_options(&s->options, s->info->context_tokens, error);
    if (status == COT_OK) status = describe_model(s, folder, tokenizer, chat, error);
    if (status == COT_OK) status = cot_preparer_open(&s->preparer, &s->model, s->base, error);
    if (status == COT_OK) status = listen_on(s, error);
    s->options.kv_events_config = s->options.step_reports_endpoint = s->options.popularity_endpoint =
        NULL; // the caller's
    s->options.tool_call_parser = s->options.reasoning_parser = NULL;
    if (status == COT_OK)
        *server = s;
    else
        cot_server_close(s);
    return status;
}

int cot_server_port(const cot_server *s)
{
    return cot_http_server_port(s->http);
}

int64_t cot_server_max_model_len(const cot_server *s)
{
    return s->model.max_model_len;
}

cot_status cot_server_run(cot_server *s, cot_error *error)
{
    cot_backend_state state;
    if (event_base_dispatch(s->base) < 0) return cot_fail(error, COT_IO, "the server's loop failed");
    s->backend->table->state(s->backend, &state);
    return state.failed ? cot_fail(error, state.error.status, "%s", state.error.message) : COT_OK;
}

void cot_server_close(cot_server *s)
{
    if (!s) return;
    s->ending.heard = 2;
    s->ending.is_over = true;             // nothing is left to end
    cot_http_server_close(s->http);       // cancels what runs
    cot_preparer_close(s->preparer);      // tells what is prepared
    s->backend->table->close(s->backend); // tells what has run: every answer ends
    cot_answer_free_all(s);               // but those of which it does not
    cot_served_constraints_close(&s->constraints);
    cot_jobs_free(&s->jobs);
    cot_server_free_waiting(s);
    if (s->on_rest) event_free(s->on_rest);
    if (s->on_watch) event_free(s->on_watch);
    cot_access_ending_close(&s->ending);
    cot_wake_close(&s->reload);
    cot_access_close(&s->access);
    if (s->base) event_base_free(s->base);
    cot_access_list_free(s->options.served_names);
    free(s);
}
