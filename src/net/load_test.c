/* The load test's loop: requests go out, events come in and are timed. */
#include "net/load_test.h"
#include "base/clock.h"
#include "base/error.h"
#include "net/http_client.h"
#include "net/sse.h"
#include "net/tls.h"
#include "net/wake.h"
#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_ANSWER = 1 << 20 };

typedef struct test {
    const cot_load_test_options *options;
    cot_load_test_report *report;
    cot_load_test_plan plan;
    struct event_base *base;
    cot_http_client **clients; // [client_count] of each server
    size_t client_count;
    struct event *clock; // of the open loop: the next request is due
    bool open;
    size_t most, next, running; // at once; to be sent; without an answer
    int64_t began_ns, ended_ns;
    cot_load_test_list ttft, tpot, itl, e2e;
    cot_load_test_workers workers;
    bool out_of_memory;
    struct cot_tls *tls; // NULL: no URL asks for it
} test;

/* One request under way. */
typedef struct asked {
    test *test;
    size_t index;
    int status;
    cot_sse sse;
    int64_t sent_ns, first_ns, last_ns;
    int64_t events, input_tokens, output_tokens, cached_tokens; // tokens: -1 without a usage
    double *itl;                                                // of its events but the first
    size_t itl_room;
    bool done, finished;
    char worker[128];   // whom the answer's head names, or its URL of several; "": nobody
    char failure[128];  // "" so far
    char refusal[2048]; // what a server says that does not stream
    size_t refusal_bytes;
} asked;

static void go_on(test *t);

static void fail_request(asked *a, const char *what)
{
    if (!*a->failure) snprintf(a->failure, sizeof a->failure, "%.127s", what);
}

static int64_t integer_of(const json_t *object, const char *name, int64_t missing)
{
    const json_t *const value = json_object_get(object, name);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

/* A token's event, or one that holds a part of it back. */
static void count_event(asked *a, int64_t now)
{
    if (a->events++) {
        const size_t i = (size_t)a->events - 2;
        if (i == a->itl_room) {
            const size_t room = a->itl_room ? 2 * a->itl_room : 64;
            double *const grown = realloc(a->itl, room * sizeof *grown);
            if (!grown) {
                fail_request(a, "out of memory");
                return;
            }
            a->itl = grown;
            a->itl_room = room;
        }
        a->itl[i] = (double)(now - a->last_ns) / 1e6;
    } else {
        a->first_ns = now;
    }
    a->last_ns = now;
}

static bool on_event(void *context, const char *type, const char *data, size_t bytes)
{
    (void)type;
    asked *const a = context;
    const int64_t now = cot_now_ns();
    if (!strcmp(data, "[DONE]")) {
        a->done = true;
        return true;
    }
    json_t *const event = json_loadb(data, bytes, JSON_ALLOW_NUL, NULL); // a token may be NUL
    if (!json_is_object(event)) {
        fail_request(a, "an event that is no JSON");
        json_decref(event);
        return false;
    }
    const json_t *const error = json_object_get(event, "error"),
                        *const choices = json_object_get(event, "choices"),
                        *const usage = json_object_get(event, "usage");
    if (json_is_object(error)) {
        const char *const message = json_string_value(json_object_get(error, "message"));
        char what[128];
        snprintf(what, sizeof what, "in the stream: %s", message ? message : "an error");
        fail_request(a, what);
    }
    if (json_array_size(choices)) {
        count_event(a, now);
        if (json_is_string(json_object_get(json_array_get(choices, 0), "finish_reason"))) a->finished = true;
    }
    if (json_is_object(usage)) {
        a->input_tokens = integer_of(usage, "prompt_tokens", a->input_tokens);
        a->output_tokens = integer_of(usage, "completion_tokens", a->output_tokens);
        a->cached_tokens =
            integer_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", a->cached_tokens);
    }
    json_decref(event);
    return true;
}

static void on_head(void *context, cot_http_call *call, int status)
{
    asked *const a = context;
    const char *const worker = cot_http_call_header(call, "X-Worker");
    a->status = status;
    if (worker) snprintf(a->worker, sizeof a->worker, "%s", worker);
}

static void on_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    (void)call;
    asked *const a = context;
    if (a->status != 200) {
        const size_t room = sizeof a->refusal - a->refusal_bytes, n = count < room ? count : room;
        memcpy(a->refusal + a->refusal_bytes, bytes, n);
        a->refusal_bytes += n;
        return;
    }
    if (!cot_sse_feed(&a->sse, bytes, count)) fail_request(a, "an event that is too long");
}

/* Adds a request that came whole to the figures. */
static void count_request(asked *a)
{
    test *const t = a->test;
    cot_load_test_report *const r = t->report;
    const cot_load_test_request *const wanted = &t->plan.requests[a->index];
    const int64_t input = a->input_tokens >= 0 ? a->input_tokens : wanted->input_tokens,
                  output = a->output_tokens >= 0 ? a->output_tokens : a->events;
    const double ttft = (double)(a->first_ns - a->sent_ns) / 1e6,
                 e2e = (double)(a->last_ns - a->sent_ns) / 1e6;
    const double tpot = output > 1 ? (double)(a->last_ns - a->first_ns) / 1e6 / (double)(output - 1) : 0;
    r->completed++;
    r->events += a->events;
    r->input_tokens += input;
    r->output_tokens += output;
    r->cached_tokens += a->cached_tokens;
    if (wanted->blocks) {
        const int64_t novel = (int64_t)wanted->novel,
                      computed = (int64_t)wanted->blocks - a->cached_tokens / t->plan.block_tokens;
        r->novel_blocks += novel;
        r->lost_blocks += computed > novel ? computed - novel : 0;
    }
    r->unlike += output != wanted->output_tokens;
    bool fine = cot_load_test_list_add(&t->ttft, ttft) && cot_load_test_list_add(&t->e2e, e2e);
    fine = fine && cot_load_test_count_worker(&t->workers, a->worker, input - a->cached_tokens + output);
    if (output > 1) fine = fine && cot_load_test_list_add(&t->tpot, tpot);
    for (int64_t i = 0; i + 1 < a->events; i++) fine = fine && cot_load_test_list_add(&t->itl, a->itl[i]);
    if (!fine) t->out_of_memory = true;
    const double most_ttft = t->options->slo_ttft_ms, most_tpot = t->options->slo_tpot_ms;
    if ((most_ttft <= 0 || ttft <= most_ttft) && (most_tpot <= 0 || tpot <= most_tpot)) r->good++;
}

static void free_asked(asked *a)
{
    cot_sse_free(&a->sse);
    free(a->itl);
    free(a);
}

static void on_done(void *context, cot_http_call *call, const cot_error *error)
{
    (void)call;
    asked *const a = context;
    test *const t = a->test;
    char what[128];
    const bool rejected = t->open && a->status == 429;
    t->ended_ns = cot_now_ns();
    if (a->status && a->status != 200) {
        snprintf(what, sizeof what, "HTTP %d", a->status);
        fail_request(a, what);
    }
    if (error) fail_request(a, error->message);
    if (!a->events) fail_request(a, "an answer without a token");
    if (!a->done || !a->finished) fail_request(a, "a stream that ended early");
    json_t *const refusal = json_loadb(a->refusal, a->refusal_bytes, 0, NULL);
    const char *const words =
        json_string_value(json_object_get(json_object_get(refusal, "error"), "message"));
    if (rejected)
        cot_load_test_count_rejection(t->report, words ? words : "");
    else if (*a->failure)
        cot_load_test_count_failure(t->report, a->failure, words ? words : "");
    else
        count_request(a);
    json_decref(refusal);
    free_asked(a);
    t->running--;
    if (t->options->progress) {
        const cot_load_test_report *const r = t->report;
        t->options->progress(t->options->context, r->completed + r->rejected + r->failed,
                             (int64_t)t->plan.count);
    }
    go_on(t);
}

static const cot_http_answer answer = {on_head, on_data, on_done};

/* The fields of a request: its type, and the key where there is one. Returns how many. */
static size_t fields_of(cot_http_field fields[2], char *bearer, size_t room,
                        const cot_load_test_options *options)
{
    fields[0] = (cot_http_field){"Content-Type", "application/json"};
    if (!options->key) return 1;
    snprintf(bearer, room, "Bearer %s", options->key);
    fields[1] = (cot_http_field){"Authorization", bearer};
    return 2;
}

static void send_next(test *t)
{
    const size_t index = t->next++;
    asked *const a = calloc(1, sizeof *a);
    char *const body = a ? cot_load_test_body(&t->plan, index, t->options, t->report->model) : NULL;
    t->report->sent++;
    if (!body) {
        free(a);
        t->out_of_memory = true;
        return;
    }
    *a = (asked){.test = t, .index = index, .input_tokens = -1, .output_tokens = -1};
    a->sse.on_event = on_event;
    a->sse.context = a;
    const size_t server = index % t->client_count;
    if (t->client_count > 1)
        snprintf(a->worker, sizeof a->worker, "%s",
                 server ? t->options->more_urls[server - 1] : t->options->url);
    cot_http_field fields[2];
    char bearer[1024];
    const size_t count = fields_of(fields, bearer, sizeof bearer, t->options);
    a->sent_ns = cot_now_ns();
    if (cot_http_client_send(t->clients[server], "POST", cot_load_test_path(t->options), fields, count, body,
                             strlen(body), &answer, a, NULL, NULL)) {
        t->out_of_memory = true;
        free_asked(a);
    } else {
        t->running++;
    }
    free(body);
}

/* Sends what is due and may be sent; ends the loop when all is over. */
static void go_on(test *t)
{
    while (t->next < t->plan.count && t->running < t->most && !t->out_of_memory) {
        const int64_t due = t->began_ns + t->plan.requests[t->next].at_ns, now = cot_now_ns();
        if (t->open && due > now) {
            const int64_t us = (due - now) / 1000 + 1;
            event_add(t->clock, &(struct timeval){us / 1000000, us % 1000000});
            return;
        }
        send_next(t);
    }
    if (!t->running && (t->next == t->plan.count || t->out_of_memory)) event_base_loopbreak(t->base);
}

static void on_clock(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    go_on(context);
}

/* ---- The model's name ---- */

typedef struct named {
    struct event_base *base;
    char text[MOST_ANSWER];
    size_t count;
    int status;
    cot_error error;
} named;

static void name_head(void *context, cot_http_call *call, int status)
{
    (void)call;
    ((named *)context)->status = status;
}

static void name_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    (void)call;
    named *const n = context;
    if (count > sizeof n->text - n->count) count = sizeof n->text - n->count;
    memcpy(n->text + n->count, bytes, count);
    n->count += count;
}

static void name_done(void *context, cot_http_call *call, const cot_error *error)
{
    (void)call;
    named *const n = context;
    if (error) n->error = *error;
    event_base_loopbreak(n->base);
}

static cot_status understand_name(const named *n, const cot_load_test_options *o,
                                  cot_load_test_report *report, cot_error *error)
{
    if (n->error.status) return cot_fail(error, n->error.status, "%s", n->error.message);
    if (n->status != 200) {
        return cot_fail(error, COT_IO, "'%s': the list of models is refused (HTTP %d%s)", o->url, n->status,
                        n->status == 401 ? ": a key is needed" : "");
    }
    json_t *const list = json_loadb(n->text, n->count, 0, NULL);
    const char *const id =
        json_string_value(json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
    const bool good = id && *id && strlen(id) < sizeof report->model;
    if (good) strcpy(report->model, id);
    json_decref(list);
    return good ? COT_OK : cot_fail(error, COT_MALFORMED, "'%s': /v1/models names no model", o->url);
}

static cot_status find_model(test *t, cot_error *error)
{
    if (t->options->model) {
        if (strlen(t->options->model) >= sizeof t->report->model) {
            return cot_fail(error, COT_INVALID_ARGUMENT, "the model's name is too long");
        }
        strcpy(t->report->model, t->options->model);
        return COT_OK;
    }
    static const cot_http_answer naming = {name_head, name_data, name_done};
    named *const n = calloc(1, sizeof *n);
    if (!n) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the list of models");
    n->base = t->base;
    cot_http_field fields[2];
    char bearer[1024];
    const size_t count = fields_of(fields, bearer, sizeof bearer, t->options);
    cot_status status = cot_http_client_send(*t->clients, "GET", "/v1/models", fields, count, NULL, 0,
                                             &naming, n, NULL, error);
    if (!status) event_base_dispatch(t->base);
    if (!status) status = understand_name(n, t->options, t->report, error);
    free(n);
    return status;
}

/* Where a URL of several asks for TLS, one set of certificates for all. */
static cot_status open_tls(test *t, cot_error *error)
{
    const cot_load_test_options *const o = t->options;
    for (size_t i = 0; i <= o->more_url_count; i++)
        if (!strncasecmp(i ? o->more_urls[i - 1] : o->url, "https://", 8))
            return cot_tls_open_client(&t->tls, o->ca_certs, error);
    return COT_OK;
}

static cot_status run(test *t, cot_error *error)
{
    const cot_load_test_options *const o = t->options;
    cot_status status = open_tls(t, error);
    if (status) return status;
    const cot_http_client_options client = {.answer_ms = o->timeout_ms ? o->timeout_ms : 600000,
                                            .silence_ms = o->timeout_ms ? o->timeout_ms : 600000,
                                            .max_idle = 4096,
                                            .tls = t->tls};
    t->clients = calloc(o->more_url_count + 1, sizeof *t->clients);
    if (!t->clients) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a load test");
    for (size_t i = 0; i <= o->more_url_count && !status; i++) {
        char *root = cot_http_api_root(i ? o->more_urls[i - 1] : o->url);
        status = root ? cot_http_client_open(&t->clients[i], t->base, root, &client, error)
                      : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a load test");
        t->client_count += !status;
        free(root);
    }
    if (!status) status = find_model(t, error);
    if (status) return status;
    t->clock = evtimer_new(t->base, on_clock, t);
    if (!t->clock) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a load test");
    t->open = o->rate > 0 || o->trace;
    t->most = o->concurrency ? (size_t)o->concurrency : t->open ? SIZE_MAX : 1;
    t->began_ns = t->ended_ns = cot_now_ns();
    event_add(t->clock, &(struct timeval){0, 0});
    event_base_dispatch(t->base);
    if (t->out_of_memory) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a load test");
    cot_load_test_report *const r = t->report;
    r->ttft = cot_load_test_list_times(&t->ttft);
    r->tpot = cot_load_test_list_times(&t->tpot);
    r->itl = cot_load_test_list_times(&t->itl);
    r->e2e = cot_load_test_list_times(&t->e2e);
    r->busiest_over_mean = cot_load_test_busiest(&t->workers);
    r->workers = r->busiest_over_mean > 0 ? (int64_t)t->workers.count : 0;
    r->seconds = (double)(t->ended_ns - t->began_ns) / 1e9;
    const double seconds = r->seconds > 0 ? r->seconds : 1e-9;
    r->requests_per_second = (double)r->completed / seconds;
    r->output_tokens_per_second = (double)r->output_tokens / seconds;
    r->tokens_per_second = (double)(r->input_tokens + r->output_tokens) / seconds;
    r->goodput = (double)r->good / seconds;
    return COT_OK;
}

cot_status cot_load_test_run(const cot_load_test_options *options, cot_load_test_report *report,
                             cot_error *error)
{
    *report = (cot_load_test_report){0};
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a load test's options of another version");
    test t = {.options = options, .report = report};
    cot_status status = cot_load_test_plan_make(&t.plan, options, error);
    if (status) return status;
    t.base = cot_wake_base_open();
    status = t.base ? run(&t, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a load test");
    for (size_t i = 0; i < t.client_count; i++) cot_http_client_close(t.clients[i]);
    free(t.clients);
    cot_tls_close(t.tls);
    if (t.clock) event_free(t.clock);
    if (t.base) event_base_free(t.base);
    cot_load_test_plan_free(&t.plan);
    free(t.ttft.ms);
    free(t.tpot.ms);
    free(t.itl.ms);
    free(t.e2e.ms);
    free(t.workers.worker);
    return status;
}
