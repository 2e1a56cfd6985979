/* One request, from its body to the last byte of its answer:
 *
 *     ids (of the body, of a tokenizer here, or of a worker's /tokenize) -> keys of blocks -> the best target -> its answer
 *          refused: the next best, two at most, then 429
 *          died before anything of the answer was sent: another one is asked
 *          died or stalled in the midst of a stream: one of equal fingerprint goes on from the ids that were delivered */
#include "base/clock.h"
#include "base/rng.h"
#include "gateway/relay.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the end ---- */

static void unbook(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    cot_gateway_worker *w = r->worker;
    const uint64_t answered = r->first_ns ? r->delivery.tokens : 0;
    if (r->booked) cot_route_ended(g->book, r->booked, answered, cot_now_ns());
    r->booked = 0;
    cot_gateway_tell_ended(r, answered);
    if (!w) return;
    w->relays--;
    if (g->target[r->of_target].worker == w && g->target[r->of_target].running)
        g->target[r->of_target].running--;
    r->worker = NULL;
}

void cot_relay_drop_call(cot_relay *r)
{
    if (r->call) cot_http_call_cancel(r->call);
    r->call = NULL;
    unbook(r);
}

void cot_relay_release(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    cot_relay_drop_call(r);
    cot_relay_drop_ids(r);
    cot_relay_leave_others(r);
    *(r->before ? &r->before->behind : &g->relays) = r->behind;
    if (r->behind) r->behind->before = r->before;
    if (r->timer) event_free(r->timer);
    free(r->method);
    free(r->target);
    free(r->body);
    json_decref(r->json);
    free(r->keys);
    free(r->foretold);
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
    cot_relay_release(r);
}

void cot_relay_fail(cot_relay *r, const cot_api_error *error, const char *retry_after)
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
    cot_relay_release(r);
}

void cot_relay_fail_with(cot_relay *r, int status, const char *code, const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_relay_fail(r, &error, status == 503 ? "1" : NULL);
}

void cot_relay_abort_all(cot_gateway *g)
{
    for (cot_relay *r = g->relays, *next; r; r = next) {
        next = r->behind;
        cot_relay_fail_with(r, 503, "shutting_down", "the router is shutting down");
    }
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

static void on_timer(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what;
    cot_relay_ask(context);
}

void cot_relay_start(cot_gateway *g, cot_http_exchange *exchange)
{
    const char *path = cot_http_path(exchange), *method = cot_http_method(exchange);
    const bool chat = !strcmp(path, "/v1/chat/completions");
    cot_relay *r = calloc(1, sizeof *r);
    if (!r) {
        cot_api_error error;
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
        cot_relay_fail_with(r, 503, NULL, "out of memory");
        return;
    }
    if (!r->generates) {
        cot_relay_ask(r);
        return;
    }
    r->seed = cot_random_bits(g->options.seed, (uint64_t)r->began_ns, g->drawn++) >> 12; // fits a double
    cot_relay_find_ids(r, chat);
}

/* ---- what does not come ---- */

/* Whether a stream that had a token has none any more because its worker stands still, or an event that began does not end. */
static bool stalls(const cot_relay *r, int64_t now_ns)
{
    const cot_gateway_worker *w = r->worker;
    const int64_t patience_ns = r->gateway->options.stall_ms * 1000000;
    if (r->part_ns && now_ns - r->part_ns >= patience_ns) return true;
    if (!r->begun || !cot_relay_can_resume(r) || !r->last_ns || now_ns - r->last_ns < patience_ns)
        return false;
    if (w->reports) return w->reported_ns == INT64_MIN || now_ns - w->reported_ns >= patience_ns;
    return w->state != COT_GATEWAY_UP;
}

void cot_relay_watch(cot_gateway *g, int64_t now_ns)
{
    for (cot_relay *r = g->relays, *next; r; r = next) {
        next = r->behind;
        if (r->tokenize.call) {
            cot_relay_watch_ids(r, now_ns);
        } else if (r->worker && stalls(r, now_ns)) {
            cot_access_tell(&g->access, COT_LOG_WARNING, "a stream of worker '%s' has stalled",
                            r->worker->entry.name);
            cot_relay_leave_broken(r, "the worker has stalled");
        }
    }
}

void cot_relay_leave_worker(cot_gateway_worker *w)
{
    for (cot_relay *r = w->gateway->relays, *next; r; r = next) {
        next = r->behind;
        if (r->worker == w) cot_relay_recover(r, "the worker does not answer");
    }
}
