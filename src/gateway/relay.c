/* One request, from its body to the last byte of its answer:
 *
 *     ids (of the body, of a tokenizer here, or of a worker's /tokenize) -> keys of blocks -> the best target -> its answer
 *          refused: the next best, two at most, then 429
 *          died before anything of the answer was sent: another one is asked
 *          died or stalled in the midst of a stream: one of equal fingerprint goes on from the ids that were delivered */
#include "access/api_json.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "gateway/body.h"
#include "gateway/delivery.h"
#include "gateway/gateway_state.h"
#include "gateway/prompt.h"
#include "gateway/request.h"
#include "net/sse.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    MOST_REFUSALS = 3, // workers that are asked
    MOST_DEATHS = 3,   // of workers, one after the other, of which nothing came
    MOST_TRIED = 16,
    MOST_VALUES_BYTES = 256 << 20, // that a body's values may take
    MOST_ANSWER_BYTES = 64 << 20,  // of an answer that is no stream
    RETRY_MS = 100                 // until somebody is looked for again to go on with a stream
};
static const int64_t TOKENISE_NS = 5000000000; // after which a request goes without its ids

struct cot_relay {
    cot_gateway *gateway;
    cot_http_exchange *exchange; // NULL: the client has left, or has its answer
    cot_relay *before, *behind;
    /* What was asked. */
    char *method, *target, *body; // target: path and query
    size_t body_bytes;
    bool generates; // a completion or a chat
    json_t *json;   // its body, until ids are there
    cot_relay_request request;
    uint64_t seed;  // for a request without one
    uint64_t *keys; // [blocks]
    size_t blocks;
    uint64_t tokens; // of the prompt, or as many as its bytes make presume
    int64_t began_ns;
    cot_ask tokenize;
    cot_gateway_worker *tokenizes; // who is asked that; NULL: nobody
    /* Who answers. */
    cot_gateway_worker *worker; // NULL: nobody is asked now
    cot_http_call *call;
    size_t of_target;
    uint64_t booked, cached;
    int64_t sent_ns, first_ns, last_ns;          // asked; first and last bytes came; 0: none yet
    int64_t part_ns;                             // a part of an event waits for its rest; 0: none does
    const cot_gateway_worker *tried[MOST_TRIED]; // who is not asked again
    size_t tried_count, refusals, deaths;
    long retry_after; // the smallest that was said; 0: nobody refused
    bool all_down;    // nobody that refused was just busy
    /* The answer. */
    int status;
    bool is_events;
    char type[128], request_id[160], should_retry[16];
    cot_buffer answer; // that is no stream; of another engine's stream, an event that is not whole
    cot_sse sse;
    cot_delivery delivery;
    cot_buffer event;
    cot_delivery_kind verdict; // of the last event
    bool begun;                // something was sent to the client
    bool ended;                // the stream's own end was seen
    char *fingerprint;         // of who began it
    uint64_t tokens_before;    // delivered when its last worker took it on
    int64_t until_ns;          // that somebody is looked for to go on with it; 0: it goes on
    struct event *timer;
};

static void ask_next(cot_relay *r);

/* ---- the end ---- */

static void unbook(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    cot_gateway_worker *w = r->worker;
    if (r->booked) cot_route_ended(g->book, r->booked, r->first_ns ? r->delivery.tokens : 0, cot_now_ns());
    r->booked = 0;
    if (!w) return;
    w->relays--;
    if (g->target[r->of_target].worker == w && g->target[r->of_target].running)
        g->target[r->of_target].running--;
    r->worker = NULL;
}

/* Ids are no longer waited for. */
static void drop_tokenize(cot_relay *r)
{
    cot_ask_cancel(&r->tokenize);
    if (r->tokenizes) r->tokenizes->relays--;
    r->tokenizes = NULL;
}

/* Nobody is asked any more. */
static void drop_call(cot_relay *r)
{
    if (r->call) cot_http_call_cancel(r->call);
    r->call = NULL;
    unbook(r);
}

static void release(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    drop_call(r);
    drop_tokenize(r);
    *(r->before ? &r->before->behind : &g->relays) = r->behind;
    if (r->behind) r->behind->before = r->before;
    if (r->timer) event_free(r->timer);
    free(r->method);
    free(r->target);
    free(r->body);
    json_decref(r->json);
    free(r->keys);
    free(r->fingerprint);
    cot_buffer_free(&r->answer);
    cot_buffer_free(&r->event);
    cot_sse_free(&r->sse);
    cot_delivery_free(&r->delivery);
    free(r);
    cot_gateway_check_rest(g);
}

void cot_relay_gone(cot_relay *r)
{
    r->exchange = NULL;
    release(r);
}

/* An error ends it: as a reply where nothing has been sent yet, else as the stream's last event. */
static void fail(cot_relay *r, const cot_api_error *error, const char *retry_after)
{
    cot_gateway *g = r->gateway;
    json_t *json = cot_api_error_json(error);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    g->figures.refused++;
    if (r->begun) {
        g->figures.broken_streams++;
        if (text) cot_http_stream_event(r->exchange, text, strlen(text));
        cot_http_close_after(r->exchange);
        cot_http_stream_end(r->exchange);
    } else {
        const cot_access_head head = {error->http_status, NULL, "application/json", retry_after,
                                      error->is_final};
        cot_access_reply(&g->access.options, r->exchange, &head, text ? text : "", text ? strlen(text) : 0);
    }
    free(text);
    r->exchange = NULL;
    release(r);
}

static void fail_with(cot_relay *r, int status, const char *code, const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    fail(r, &error, status == 503 ? "1" : NULL);
}

void cot_relay_abort_all(cot_gateway *g)
{
    for (cot_relay *r = g->relays, *next; r; r = next) {
        next = r->behind;
        fail_with(r, 503, "shutting_down", "the router is shutting down");
    }
}

/* ---- what the client is sent ---- */

static size_t answer_fields(const cot_relay *r, cot_http_field fields[COT_ACCESS_FIELDS])
{
    size_t n = cot_access_fields(&r->gateway->access.options, r->exchange, fields,
                                 *r->request_id ? r->request_id : NULL);
    fields[n++] = (cot_http_field){"X-Worker", r->worker->entry.name};
    if (*r->should_retry) fields[n++] = (cot_http_field){"X-Should-Retry", r->should_retry};
    if (r->is_events) fields[n++] = (cot_http_field){"Cache-Control", "no-cache"};
    return n;
}

static void begin_stream(cot_relay *r)
{
    cot_http_field fields[COT_ACCESS_FIELDS];
    if (r->begun) return;
    const size_t n = answer_fields(r, fields);
    cot_http_stream_begin(r->exchange, 200, r->type, fields, n);
    r->begun = true;
}

static void end_stream(cot_relay *r)
{
    begin_stream(r);
    cot_http_stream_end(r->exchange);
    r->exchange = NULL;
    release(r);
}

static void reply_whole(cot_relay *r)
{
    cot_http_field fields[COT_ACCESS_FIELDS];
    const size_t n = answer_fields(r, fields);
    if (r->status >= 400) r->gateway->figures.refused++;
    cot_http_reply(r->exchange, r->status, *r->type ? r->type : NULL, fields, n,
                   r->answer.data ? r->answer.data : "", r->answer.bytes);
    r->exchange = NULL;
    release(r);
}

/* ---- what becomes of who answers ---- */

static void exclude(cot_relay *r, const cot_gateway_worker *w)
{
    if (r->tried_count < MOST_TRIED) r->tried[r->tried_count++] = w;
}

/* Whether another can go on where the stream is. */
static bool can_resume(const cot_relay *r)
{
    return r->delivery.choices && r->fingerprint && !r->request.echo;
}

/* Who answered does so no longer: another one is looked for. `message`: what the client is told if nobody can. */
static void recover(cot_relay *r, const char *message)
{
    const cot_gateway_worker *w = r->worker;
    r->tried_count = 0;
    exclude(r, w);
    if (r->begun && !can_resume(r)) {
        drop_call(r);
        fail_with(r, 502, "worker_failed", message);
        return;
    }
    // a request that ends whoever takes it must not end them all
    r->deaths = r->begun && r->delivery.tokens > r->tokens_before ? 0 : r->deaths + 1;
    if ((!r->begun && !r->generates) || r->deaths >= MOST_DEATHS) {
        drop_call(r);
        fail_with(r, 502, "worker_failed", message);
        return;
    }
    if (r->begun) {
        r->worker->resumed_from++;
        r->until_ns = cot_now_ns() + r->gateway->options.stall_ms * 1000000;
        r->delivery.resumed = true;
    }
    drop_call(r); // before anybody else is asked
    cot_sse_free(&r->sse);
    r->answer.bytes = 0;
    ask_next(r);
}

/* The same, where what the worker sends cannot be right: that is a failure of its, so that one which does so again and again is
 * not asked for long, however many tokens come before. */
static void leave_broken(cot_relay *r, const char *message)
{
    cot_gateway_worker_failed(r->worker, cot_now_ns());
    recover(r, message);
}

/* It would rather not, now. */
static void refused(cot_relay *r, const char *retry_after)
{
    const long seconds = retry_after ? strtol(retry_after, NULL, 10) : 1, said = seconds < 1 ? 1 : seconds;
    r->worker->refusals++;
    if (!r->retry_after || said < r->retry_after) r->retry_after = said;
    if (r->status == 429) r->all_down = false;
    exclude(r, r->worker);
    r->refusals++;
    drop_call(r);
    ask_next(r);
}

/* ---- what a worker answers ---- */

static void first_came(cot_relay *r)
{
    cot_gateway_target *t = &r->gateway->target[r->of_target];
    const int64_t now_ns = cot_now_ns(), turn_ns = t->turned_ns > r->sent_ns ? t->turned_ns : r->sent_ns;
    if (r->first_ns) return;
    r->first_ns = now_ns;
    if (r->begun) { // it goes on with another's stream
        r->worker->resumed_to++;
        r->gateway->figures.resumptions++;
    }
    if (r->booked) cot_route_began(r->gateway->book, r->booked, now_ns);
    if (t->worker != r->worker) return;
    cot_route_succeeded(r->gateway->book, r->of_target);
    if (!r->worker->reports && r->generates && r->request.stream)
        cot_route_learn_prompt(r->gateway->book, r->worker->learner, r->tokens - r->cached,
                               (double)(now_ns - turn_ns));
    t->turned_ns = now_ns;
}

static void more_came(cot_relay *r)
{
    const int64_t now_ns = cot_now_ns();
    const cot_gateway_target *t = &r->gateway->target[r->of_target];
    const bool had = r->first_ns && r->last_ns;
    r->part_ns = 0;
    if (had && t->worker == r->worker && !r->worker->reports && r->generates)
        cot_route_learn_step(r->gateway->book, r->worker->learner, t->running, (double)(now_ns - r->last_ns));
    first_came(r);
    r->last_ns = now_ns;
}

/* An event of a Coterie worker. */
static bool on_event(void *context, const char *type, const char *data, size_t bytes)
{
    cot_relay *r = context;
    (void)type;
    more_came(r);
    r->verdict = cot_delivery_take(&r->delivery, data, bytes, &r->event);
    if (r->verdict == COT_DELIVERY_DONE) r->ended = true;
    if (r->verdict == COT_DELIVERY_EVENT || r->verdict == COT_DELIVERY_DONE) {
        begin_stream(r);
        cot_http_stream_event(r->exchange, r->event.data, r->event.bytes);
    }
    return r->verdict == COT_DELIVERY_EVENT || r->verdict == COT_DELIVERY_NOTHING;
}

/* Whether whole events of another engine say that its stream is over: a line is "data: [DONE]". */
static bool ends_well(const char *text, size_t count)
{
    static const char done[] = "[DONE]", data[] = "data:";
    const size_t name = sizeof data - 1;
    for (const char *at = text; (at = memmem(at, (size_t)(text + count - at), done, sizeof done - 1)); at++) {
        size_t n = (size_t)(at - text);
        if (n && text[n - 1] == ' ') n--;
        if (n >= name && !memcmp(text + n - name, data, name) && (n == name || text[n - name - 1] == '\n'))
            return true;
    }
    return false;
}

/* Sends whole events of another engine, byte for byte; what is left waits for the rest of its event. */
static bool pass_events(cot_relay *r, const char *bytes, size_t count)
{
    if (count > MOST_ANSWER_BYTES - r->answer.bytes || !cot_buffer_append(&r->answer, bytes, count))
        return false;
    size_t whole = r->answer.bytes;
    const char *text = r->answer.data;
    while (whole &&
           !(text[whole - 1] == '\n' && ((whole > 1 && text[whole - 2] == '\n') ||
                                         (whole > 2 && text[whole - 2] == '\r' && text[whole - 3] == '\n'))))
        whole--;
    if (!whole) return true;
    more_came(r);
    r->ended |= ends_well(text, whole);
    begin_stream(r);
    cot_http_stream_send(r->exchange, text, whole);
    memmove(r->answer.data, text + whole, r->answer.bytes - whole);
    r->answer.bytes -= whole;
    return true;
}

static void copy_field(char *to, size_t bytes, const cot_http_call *call, const char *name)
{
    const char *value = cot_http_call_header(call, name);
    snprintf(to, bytes, "%s", value ? value : "");
}

static void on_head(void *context, cot_http_call *call, int status)
{
    cot_relay *r = context;
    r->status = status;
    if (r->begun ? status != 200 : status == 429 || status == 503) {
        refused(r, cot_http_call_header(call, "Retry-After"));
        return;
    }
    r->until_ns = 0;
    copy_field(r->type, sizeof r->type, call, "Content-Type");
    copy_field(r->should_retry, sizeof r->should_retry, call, "X-Should-Retry");
    if (!r->begun) copy_field(r->request_id, sizeof r->request_id, call, "X-Request-Id");
    r->is_events = status == 200 && !strncasecmp(r->type, "text/event-stream", 17);
    if (!r->begun) {
        free(r->fingerprint);
        r->fingerprint = r->worker->fingerprint ? strdup(r->worker->fingerprint) : NULL;
    }
}

/* A part of an event that waits for its rest has a time, whatever comes of it. */
static void note_part(cot_relay *r)
{
    const bool waits = r->sse.line.bytes || r->sse.data.bytes || r->answer.bytes;
    if (!waits) r->part_ns = 0;
    if (waits && !r->part_ns) r->part_ns = cot_now_ns();
}

static void on_data(void *context, cot_http_call *call, const char *bytes, size_t count)
{
    cot_relay *r = context;
    (void)call;
    if (!r->is_events) {
        first_came(r);
        if (count <= MOST_ANSWER_BYTES - r->answer.bytes && cot_buffer_append(&r->answer, bytes, count))
            return;
        drop_call(r);
        fail_with(r, 502, "answer_too_long", "the worker's answer is too long for the router");
    } else if (!r->delivery.choices) {
        if (pass_events(r, bytes, count)) {
            note_part(r);
            return;
        }
        drop_call(r);
        fail_with(r, 502, "worker_failed", "the worker sent an event without an end");
    } else if (cot_sse_feed(&r->sse, bytes, count)) {
        note_part(r);
    } else {
        const bool went_on = r->delivery.tokens > r->tokens_before;
        if (r->verdict == COT_DELIVERY_DONE) {
            end_stream(r);
        } else if (r->verdict == COT_DELIVERY_ERROR && !went_on && r->delivery.resumed) {
            // whoever goes on fails at the same place
            drop_call(r);
            begin_stream(r);
            cot_http_stream_event(r->exchange, r->event.data, r->event.bytes);
            cot_http_close_after(r->exchange);
            end_stream(r);
        } else if (r->verdict == COT_DELIVERY_ERROR) {
            recover(r, "the worker failed");
        } else {
            leave_broken(r, "the worker sent no event that can be read");
        }
    }
}

static void on_done(void *context, cot_http_call *call, const cot_error *error)
{
    cot_relay *r = context;
    cot_gateway_worker *w = r->worker;
    (void)call;
    r->call = NULL;
    if (error) cot_gateway_worker_failed(w, cot_now_ns());
    const bool died = w->is_coterie && !r->is_events && r->generates && r->status == 500 && !*r->should_retry;
    if (error || died) {
        recover(r, error ? error->message : "the worker failed");
    } else if (r->is_events && ((r->generates && !r->ended) || r->answer.bytes)) {
        leave_broken(r, "the worker ended its stream early");
    } else if (r->is_events) {
        end_stream(r);
    } else {
        first_came(r);
        reply_whole(r);
    }
}

/* ---- asking a worker ---- */

/* The body as this worker gets it. False when memory runs out. */
static bool write_body(cot_relay *r, cot_buffer *out, const cot_gateway_worker *w)
{
    cot_body_member members[3];
    size_t n = 0;
    char seed[24];
    cot_buffer continued = {0};
    if (!r->generates) return cot_buffer_append(out, r->body, r->body_bytes);
    members[n++] = (cot_body_member){"continue_token_ids", NULL};
    if (r->begun) {
        if (!cot_delivery_write(&r->delivery, &continued)) {
            cot_buffer_free(&continued);
            return false;
        }
        members[0].value = continued.data;
    }
    if (w->is_coterie && !r->request.seeded) {
        snprintf(seed, sizeof seed, "%" PRIu64, r->seed);
        members[n++] = (cot_body_member){"seed", seed};
    }
    if (w->is_coterie && r->request.stream && !r->request.wants_ids)
        members[n++] = (cot_body_member){"return_token_ids", "true"};
    const bool good = cot_body_set(out, r->body, r->body_bytes, members, n);
    cot_buffer_free(&continued);
    return good;
}

/* Fields of the client's that a worker is shown. */
static const char *const passed_on[] = {"Content-Type", "Accept",     "X-Request-Id",
                                        "traceparent",  "tracestate", "User-Agent"};

static bool send_to(cot_relay *r, cot_gateway_worker *w, int rank)
{
    static const cot_http_answer answer = {on_head, on_data, on_done};
    cot_http_field fields[sizeof passed_on / sizeof *passed_on + 2];
    cot_buffer body = {0};
    char home[16];
    size_t n = 0;
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++) {
        const char *value = cot_http_header(r->exchange, passed_on[i]);
        if (value) fields[n++] = (cot_http_field){passed_on[i], value};
    }
    if (w->authorization) fields[n++] = (cot_http_field){"Authorization", w->authorization};
    snprintf(home, sizeof home, "%d", rank);
    if (w->targets > 1) fields[n++] = (cot_http_field){"X-data-parallel-rank", home};
    const bool good =
        write_body(r, &body, w) && cot_http_client_send(w->http, r->method, r->target, fields, n, body.data,
                                                        body.bytes, &answer, r, &r->call, NULL) == COT_OK;
    cot_buffer_free(&body);
    return good;
}

/* Whether this worker is not to be asked. */
static bool is_out(const cot_relay *r, const cot_gateway_worker *w)
{
    for (size_t i = 0; i < r->tried_count; i++)
        if (r->tried[i] == w) return true;
    return r->begun && (!w->is_coterie || !w->fingerprint || strcmp(w->fingerprint, r->fingerprint) != 0);
}

/* The best target that is left. */
static bool choose(cot_relay *r, cot_route_request *request, cot_route_decision *decision, uint32_t *depth)
{
    cot_gateway *g = r->gateway;
    const int64_t now_ns = cot_now_ns();
    if (!g->book) return false;
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        for (size_t t = w->first_target; is_out(r, w) && t < w->first_target + w->targets; t++)
            cot_route_book_set_usable(g->book, t, false);
    if (r->blocks) cot_route_index_match(g->index, depth, r->keys, r->blocks);
    *request =
        (cot_route_request){r->blocks, r->tokens + r->delivery.tokens, r->request.max_tokens, depth, r->keys};
    const bool found = cot_route_choose(g->book, request, now_ns, decision);
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        if (is_out(r, w)) cot_gateway_set_usable(w);
    cot_prometheus_observe(&g->figures.stage[COT_STAGE_DECIDE], (double)(cot_now_ns() - now_ns) / 1e9);
    return found;
}

static void on_timer(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what;
    ask_next(context);
}

/* Nobody is left who could be asked. */
static void none_left(cot_relay *r)
{
    char seconds[16];
    cot_api_error error;
    if (r->begun) {
        if (cot_now_ns() < r->until_ns) { // somebody may have room soon, or come back
            r->tried_count = 0;
            event_add(r->timer, &(struct timeval){.tv_usec = RETRY_MS * 1000});
            return;
        }
        fail_with(r, 502, "worker_failed", "the worker died, and no other could go on with its stream");
        return;
    }
    if (r->retry_after && !r->all_down) {
        snprintf(seconds, sizeof seconds, "%ld", r->retry_after);
        cot_api_fail(&error, 429, "overloaded", NULL, "the workers are busy; try again");
        fail(r, &error, seconds);
        return;
    }
    fail_with(r, 503, "no_worker", "no worker can be reached");
}

/* Where nothing was sent to the client yet, what this worker's stream delivers begins anew. False: memory ran out. */
static bool begin_delivery(cot_relay *r, const cot_gateway_worker *w)
{
    cot_delivery *d = &r->delivery;
    if (r->begun) return true;
    cot_delivery_free(d);
    if (!r->generates || !r->request.stream || !w->is_coterie) return true;
    d->hides_ids = !r->request.wants_ids;
    d->most = r->request.echo ? UINT64_MAX : r->request.max_tokens;
    return cot_delivery_open(d, r->request.choices);
}

static void ask_next(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    uint32_t depth[COT_GATEWAY_PLACES] = {0};
    cot_route_request request;
    cot_route_decision decision;
    if ((!r->begun && r->refusals >= MOST_REFUSALS) || !choose(r, &request, &decision, depth)) {
        none_left(r);
        return;
    }
    cot_gateway_target *t = &g->target[decision.target];
    cot_gateway_worker *w = t->worker;
    r->sent_ns = cot_now_ns();
    r->first_ns = r->last_ns = r->part_ns = 0;
    r->ended = false;
    r->sse = (cot_sse){.on_event = on_event, .context = r};
    if (!begin_delivery(r, w) || !send_to(r, w, t->rank)) {
        fail_with(r, 503, NULL, "out of memory");
        return;
    }
    r->tokens_before = r->delivery.tokens;
    r->worker = w;
    r->of_target = decision.target;
    r->cached = decision.cached;
    r->booked = cot_route_assigned(g->book, &request, &decision, r->sent_ns);
    if (r->blocks) cot_route_feed_assume(t->feed, r->keys, r->blocks, r->sent_ns);
    w->relays++;
    t->running++;
    w->requests++;
    if (!r->begun && r->generates) {
        w->prompt_tokens += r->tokens;
        w->cached_tokens += r->cached;
    }
}

/* ---- ids ---- */

/* Ids are there, or will not be: *ids is taken over. */
static void have_ids(cot_relay *r, int32_t *ids, size_t count)
{
    cot_gateway *g = r->gateway;
    if (count && g->block_tokens)
        r->keys = cot_relay_keys(&r->blocks, ids, count, g->block_tokens, &r->request);
    if (count) r->tokens = count;
    if (!count && r->generates) g->figures.untokenised++;
    free(ids);
    json_decref(r->json); // its values may take far more than the body
    r->json = NULL;
    cot_prometheus_observe(&g->figures.stage[COT_STAGE_TOKENISE], (double)(cot_now_ns() - r->began_ns) / 1e9);
    ask_next(r);
}

static void on_tokens(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    cot_relay *r = context;
    int32_t *ids;
    size_t count;
    (void)error;
    drop_tokenize(r);
    json_t *json = status == 200 ? json_loadb(body, bytes, 0, NULL) : NULL;
    cot_relay_read_list(&ids, &count, json_object_get(json, "tokens"));
    json_decref(json);
    have_ids(r, ids, count);
}

/* Whether the policy looks at what a prompt has in common with others. */
static bool needs_ids(const cot_gateway *g)
{
    return g->options.policy != COT_ROUTE_RANDOM && g->options.policy != COT_ROUTE_ROUND_ROBIN;
}

/* A worker that is up, in turn. */
static cot_gateway_worker *any_worker(cot_gateway *g)
{
    size_t up = 0;
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) up += w->state == COT_GATEWAY_UP;
    size_t skip = up ? g->figures.requests % up : 0;
    for (cot_gateway_worker *w = g->workers; w; w = w->next)
        if (w->state == COT_GATEWAY_UP && !skip--) return w;
    return NULL;
}

static void find_ids(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    int32_t *ids = NULL;
    size_t count = 0;
    cot_relay_read_ids(&ids, &count, r->json);
    if (count || !needs_ids(g) ||
        cot_prompt_encode(g, r->json, r->request.chat, r->body_bytes, &ids, &count)) {
        have_ids(r, ids, count);
        return;
    }
    cot_gateway_worker *w = any_worker(g);
    char *body = w ? cot_relay_tokenize_body(r->json, r->request.chat) : NULL;
    r->tokenize = (cot_ask){.done = on_tokens, .context = r};
    if (body &&
        cot_ask_start(&r->tokenize, w->http, "/tokenize", w->authorization, body, MOST_ANSWER_BYTES)) {
        r->tokenizes = w;
        w->relays++;
    } else
        have_ids(r, NULL, 0);
    free(body);
}

/* ---- the beginning ---- */

/* Path and query, as a request line has them. */
static char *write_target(const cot_http_exchange *exchange)
{
    static const char plain[] = "/-._~!$&'()*+,;=:@";
    const char *path = cot_http_path(exchange), *query = cot_http_query(exchange);
    cot_buffer out = {0};
    bool good = true;
    for (const char *c = path; *c && good; c++) {
        const bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                              (*c >= '0' && *c <= '9') || strchr(plain, *c);
        char code[4];
        snprintf(code, sizeof code, "%%%02X", (unsigned char)*c);
        good = is_plain ? cot_buffer_append(&out, c, 1) : cot_buffer_text(&out, code);
    }
    if (*query) good = good && cot_buffer_text(&out, "?") && cot_buffer_text(&out, query);
    if (good) return out.data;
    cot_buffer_free(&out);
    return NULL;
}

void cot_relay_start(cot_gateway *g, cot_http_exchange *exchange)
{
    const char *path = cot_http_path(exchange), *method = cot_http_method(exchange);
    const bool chat = !strcmp(path, "/v1/chat/completions");
    cot_api_error error = {0};
    cot_relay *r = calloc(1, sizeof *r);
    if (!r) {
        cot_api_fail(&error, 503, NULL, NULL, "out of memory");
        cot_gateway_refuse(g, exchange, &error);
        return;
    }
    g->figures.requests++;
    r->gateway = g;
    r->exchange = exchange;
    r->behind = g->relays;
    if (r->behind) r->behind->before = r;
    g->relays = r;
    cot_http_set_user(exchange, r);
    r->began_ns = cot_now_ns();
    r->all_down = true;
    r->method = strdup(method);
    r->target = write_target(exchange);
    r->body = cot_http_take_body(exchange, &r->body_bytes);
    r->timer = evtimer_new(g->base, on_timer, r);
    r->tokens = r->body_bytes / 4 + 1;
    r->request.choices = 1;
    r->generates = !strcmp(method, "POST") && (chat || !strcmp(path, "/v1/completions"));
    if (!r->method || !r->target || !r->timer) {
        fail_with(r, 503, NULL, "out of memory");
        return;
    }
    if (!r->generates) {
        ask_next(r);
        return;
    }
    r->json = cot_api_read_json(r->body ? r->body : "", r->body_bytes, MOST_VALUES_BYTES, &error);
    if (!r->json) {
        fail(r, &error, NULL);
        return;
    }
    cot_relay_read(&r->request, r->json, chat);
    r->seed = cot_random_bits(g->options.seed, (uint64_t)r->began_ns, g->drawn++) >> 12; // fits a double
    find_ids(r);
}

/* ---- what does not come ---- */

/* Whether a stream that had a token has none any more because its worker stands still, or an event that began does not end. */
static bool stalls(const cot_relay *r, int64_t now_ns)
{
    const cot_gateway_worker *w = r->worker;
    const int64_t patience_ns = r->gateway->options.stall_ms * 1000000;
    if (r->part_ns && now_ns - r->part_ns >= patience_ns) return true;
    if (!r->begun || !can_resume(r) || !r->last_ns || now_ns - r->last_ns < patience_ns) return false;
    if (w->reports) return w->reported_ns == INT64_MIN || now_ns - w->reported_ns >= patience_ns;
    return w->state != COT_GATEWAY_UP;
}

void cot_relay_watch(cot_gateway *g, int64_t now_ns)
{
    for (cot_relay *r = g->relays, *next; r; r = next) {
        next = r->behind;
        if (r->tokenize.call && now_ns - r->tokenize.since_ns >= TOKENISE_NS) {
            drop_tokenize(r);
            have_ids(r, NULL, 0);
        } else if (r->worker && stalls(r, now_ns)) {
            cot_access_tell(&g->access, COT_LOG_WARNING, "a stream of worker '%s' has stalled",
                            r->worker->entry.name);
            leave_broken(r, "the worker has stalled");
        }
    }
}

void cot_relay_leave_worker(cot_gateway_worker *w)
{
    for (cot_relay *r = w->gateway->relays, *next; r; r = next) {
        next = r->behind;
        if (r->worker == w) recover(r, "the worker does not answer");
    }
}
