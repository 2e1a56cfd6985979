#include "base/error.h"
#include "server/access.h"
#include "server/answer.h"
#include "server/engine_backend.h"
#include "server/fingerprint.h"
#include "server/routes.h"

#include <event2/event.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void cot_server_options_init(cot_server_options *options)
{
    *options = (cot_server_options){.size = sizeof *options,
                                    .host = "127.0.0.1",
                                    .port = 8000,
                                    .max_queue = 256,
                                    .max_connections = 1024,
                                    .request_bytes = (size_t)1 << 30,
                                    .shutdown_ms = 30000};
}

/* ---- answers that every part makes ---- */

void cot_server_log(const cot_server *s, const char *format, ...)
{
    char line[1024];
    va_list values;
    if (!s->options.log) return;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    s->options.log(s->options.log_context, line);
}

size_t cot_server_fields(const cot_server *s, const cot_http_exchange *exchange,
                         cot_http_field fields[COT_SERVER_FIELDS], const char *request_id)
{
    size_t n = 0;
    const char *origin = cot_access_origin(&s->options, exchange);
    if (!request_id) request_id = cot_http_header(exchange, "X-Request-Id");
    if (request_id && strlen(request_id) <= 128) fields[n++] = (cot_http_field){"X-Request-Id", request_id};
    if (origin) {
        fields[n++] = (cot_http_field){"Access-Control-Allow-Origin", origin};
        fields[n++] = (cot_http_field){"Vary", "Origin"};
    }
    return n;
}

static void reply(cot_server *s, cot_http_exchange *exchange, int status, bool is_final,
                  const char *request_id, const char *type, const char *body, size_t bytes)
{
    cot_http_field fields[COT_SERVER_FIELDS];
    size_t n = cot_server_fields(s, exchange, fields, request_id);
    // clients try again after that; a sequence is over in seconds
    if (status == 429 || status == 503)
        fields[n++] = (cot_http_field){"Retry-After", s->stops_heard ? "30" : "1"};
    if (status == 401) fields[n++] = (cot_http_field){"WWW-Authenticate", "Bearer"};
    // the openai client takes every 5xx for an accident and comes again, unless it is told this
    if (is_final) fields[n++] = (cot_http_field){"X-Should-Retry", "false"};
    if (status >= 400) s->metrics.refused++;
    cot_http_reply(exchange, status, type, fields, n, body, bytes);
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

/* Ends the loop once the last bytes are taken, or after two seconds. */
static void wait_for_clients(evutil_socket_t descriptor, short what, void *context)
{
    cot_server *s = context;
    (void)descriptor;
    (void)what;
    if (cot_http_server_connections(s->http) && ++s->last_checks < 200) return;
    event_base_loopbreak(s->base);
}

void cot_server_check_drained(cot_server *s)
{
    if (!s->stops_heard || s->answers || s->is_drained) return;
    s->is_drained = true;
    cot_http_server_stop_accepting(s->http);
    event_add(s->on_drained, &(struct timeval){.tv_usec = 10000});
}

static void drain(cot_server *s)
{
    const int64_t ms = s->options.shutdown_ms;
    event_add(s->on_deadline, &(struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000});
    cot_server_check_drained(s);
}

static void hear_stop(void *context, uint64_t calls)
{
    cot_server *s = context;
    const bool first = !s->stops_heard;
    s->stops_heard = first && calls == 1 ? 1 : 2;
    if (first) {
        cot_server_log(s, "shutting down: no new requests; those under way have %lld s",
                       (long long)s->options.shutdown_ms / 1000);
        drain(s);
    }
    if (s->stops_heard > 1) cot_answer_abort_all(s);
}

static void hear_deadline(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    cot_answer_abort_all(context);
}

static void notice_failure(void *owner)
{
    cot_server *s = owner;
    cot_backend_state state;
    if (s->stops_heard) return;
    s->backend->table->state(s->backend, &state);
    cot_server_log(s, "the engine failed: %s", state.error.message);
    s->stops_heard = 1;
    drain(s);
}

void cot_server_stop(cot_server *s)
{
    cot_wake_up(&s->stop);
}

/* ---- opening ---- */

static cot_status copy_list(const char *const **list, cot_error *error)
{
    const char *const *from = *list;
    size_t count = 0;
    *list = NULL;
    while (from && from[count]) count++;
    if (!from) return COT_OK;
    char **copy = calloc(count + 1, sizeof *copy);
    *list = (const char *const *)copy;
    for (size_t i = 0; copy && i < count; i++)
        if (!(copy[i] = strdup(from[i])))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
    return copy ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
}

static void free_list(const char *const *list)
{
    for (const char *const *text = list; text && *text; text++) free((char *)*text);
    free((void *)list);
}

/* Takes copies of what options point to; all lists are owned or NULL afterwards, whatever happens. */
static cot_status copy_options(cot_server *s, const cot_server_options *options, cot_error *error)
{
    s->options = *options;
    cot_server_options *o = &s->options;
    const char *const **lists[] = {&o->served_names, &o->api_keys, &o->allowed_hosts, &o->allowed_origins};
    cot_status status = COT_OK;
    o->host = strdup(o->host);
    if (!o->host) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (status == COT_OK)
            status = copy_list(lists[i], error);
        else
            *lists[i] = NULL;
    }
    return status;
}

static cot_status check_range(const char *name, int64_t value, int64_t least, int64_t most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is not in [%lld, %lld]", name, (long long)value,
                    (long long)least, (long long)most);
}

static cot_status check_options(const cot_server_options *o, int64_t longest, cot_error *error)
{
    cot_status status = check_range("port", o->port, 0, 65535, error);
    if (status == COT_OK) status = check_range("max queue", o->max_queue, 1, 65536, error);
    if (status == COT_OK) status = check_range("max connections", o->max_connections, 1, 65536, error);
    if (status == COT_OK) status = check_range("shutdown time-out", o->shutdown_ms, 0, INT32_MAX, error);
    if (status == COT_OK) status = check_range("max model length", o->max_model_len, 0, longest, error);
    return status == COT_OK ? cot_access_check_options(o, error) : status;
}

static cot_status describe_model(cot_server *s, const char *folder, const cot_tokenizer *tokenizer,
                                 const cot_chat_template *chat, cot_error *error)
{
    const cot_engine_info *info = cot_engine_describe(s->engine);
    cot_served_model *m = &s->model;
    m->tokenizer = tokenizer;
    m->chat = chat;
    m->vocab = info->vocab;
    m->eos = info->eos;
    m->eos_count = info->eos_count;
    m->max_model_len = s->options.max_model_len ? s->options.max_model_len : s->backend->context_tokens;
    m->created = (int64_t)time(NULL);
    m->request_bytes = s->options.request_bytes;
    if (!s->options.served_names) {
        const char *const own[] = {folder, NULL};
        s->options.served_names = own;
        const cot_status status = copy_list(&s->options.served_names, error);
        if (status != COT_OK) return status;
    }
    m->names = s->options.served_names;
    while (m->names[m->name_count]) m->name_count++;
    if (!m->name_count) return cot_fail(error, COT_INVALID_ARGUMENT, "the model is served under no name");
    const cot_status status = cot_api_defaults_read(&m->defaults, folder, error);
    return status == COT_OK ? cot_fingerprint(m->fingerprint, folder, s->engine, error) : status;
}

static cot_status start_events(cot_server *s, cot_error *error)
{
    s->base = event_base_new();
    const bool hears = s->base && cot_wake_open(&s->stop, s->base, hear_stop, s);
    if (hears) {
        s->on_deadline = event_new(s->base, -1, 0, hear_deadline, s);
        s->on_drained = event_new(s->base, -1, EV_PERSIST, wait_for_clients, s);
    }
    if (!hears || !s->on_deadline || !s->on_drained)
        return cot_fail(error, COT_IO, "cannot start the server's loop");
    return COT_OK;
}

static cot_status listen_on(cot_server *s, cot_error *error)
{
    const cot_http_server_options options = {.host = s->options.host,
                                             .port = (uint16_t)s->options.port,
                                             .max_connections = (size_t)s->options.max_connections};
    return cot_http_server_open(&s->http, s->base, &options, &cot_routes, s, error);
}

cot_status cot_server_open(cot_server **server, const char *folder, cot_engine *engine,
                           const cot_tokenizer *tokenizer, const cot_chat_template *chat,
                           const cot_server_options *options, cot_error *error)
{
    *server = NULL;
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "server options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    cot_server *s = calloc(1, sizeof *s);
    if (!s) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
    s->engine = engine;
    s->stop.fd = -1;
    cot_status status = copy_options(s, options, error);
    if (status == COT_OK) status = start_events(s, error);
    if (status == COT_OK) status = cot_engine_backend_open(&s->backend, engine, s->base, error);
    if (status == COT_OK) {
        s->backend->on_failure = notice_failure;
        s->backend->owner = s;
    }
    if (status == COT_OK) status = check_options(&s->options, s->backend->context_tokens, error);
    if (status == COT_OK) status = describe_model(s, folder, tokenizer, chat, error);
    if (status == COT_OK) status = cot_preparer_open(&s->preparer, &s->model, s->base, error);
    if (status == COT_OK) status = listen_on(s, error);
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
    s->stops_heard = 2;
    s->is_drained = true;                                 // nothing is left to end
    cot_http_server_close(s->http);                       // cancels what runs
    cot_preparer_close(s->preparer);                      // tells what is prepared
    if (s->backend) s->backend->table->close(s->backend); // tells what has run: every answer ends
    if (s->on_deadline) event_free(s->on_deadline);
    if (s->on_drained) event_free(s->on_drained);
    cot_wake_close(&s->stop);
    if (s->base) event_base_free(s->base);
    const char *const *lists[] = {s->options.served_names, s->options.api_keys, s->options.allowed_hosts,
                                  s->options.allowed_origins};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free_list(lists[i]);
    free((char *)s->options.host);
    free(s);
}
