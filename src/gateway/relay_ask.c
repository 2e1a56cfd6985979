#include "base/clock.h"
#include "gateway/body.h"
#include "gateway/relay.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_REFUSALS = 3, // workers that are asked
    MOST_DEATHS = 3,   // of workers, one after the other, of which nothing came
    RETRY_MS = 100     // until somebody is looked for again to go on with a stream
};

/* ---- asking ---- */

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
    const bool good = write_body(r, &body, w) &&
                      cot_http_client_send(w->http, r->method, r->target, fields, n, body.data, body.bytes,
                                           &cot_relay_answer, r, &r->call, NULL) == COT_OK;
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

/* Blocks of its prompt that each target can reuse. */
static void find_reusable(const cot_relay *r, uint32_t *depth)
{
    const cot_gateway *g = r->gateway;
    cot_route_index_match(g->index, depth, r->keys, r->blocks);
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        for (size_t t = w->first_target; t < w->first_target + w->targets; t++)
            if (depth[t]) depth[t] = cot_route_feed_reusable(g->target[t].feed, r->keys, depth[t]);
}

/* What the book is asked; `depth` [COT_GATEWAY_PLACES] is all 0. */
static void describe(cot_relay *r, cot_route_request *request, uint32_t *depth)
{
    cot_gateway *g = r->gateway;
    const cot_route_calls *told = cot_gateway_calls(g, r->keys, r->blocks);
    if (r->blocks) find_reusable(r, depth);
    *request = (cot_route_request){.blocks = r->blocks,
                                   .tokens = r->tokens + r->delivery.tokens,
                                   .max_tokens = r->request.max_tokens,
                                   .depth = depth,
                                   .keys = r->keys,
                                   .calls = told ? told : r->foretold};
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
    describe(r, request, depth);
    const bool found = cot_route_choose(g->book, request, now_ns, decision);
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        if (is_out(r, w)) cot_gateway_set_usable(w);
    cot_prometheus_observe(&g->figures.stage[COT_STAGE_DECIDE], (double)(cot_now_ns() - now_ns) / 1e9);
    return found;
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
        cot_relay_fail_with(r, 502, "worker_failed",
                            "the worker died, and no other could go on with its stream");
        return;
    }
    if (r->retry_after && !r->all_down) {
        snprintf(seconds, sizeof seconds, "%ld", r->retry_after);
        cot_api_fail(&error, 429, "overloaded", NULL, "the workers are busy; try again");
        cot_relay_fail(r, &error, seconds);
        return;
    }
    cot_relay_fail_with(r, 503, "no_worker", "no worker can be reached");
}

/* Sends it where the decision says; the book has it then. */
static void give(cot_relay *r, const cot_route_request *request, const cot_route_decision *decision)
{
    cot_gateway *g = r->gateway;
    cot_gateway_target *t = &g->target[decision->target];
    cot_gateway_worker *w = t->worker;
    r->sent_ns = cot_now_ns();
    if (!cot_relay_expect(r, w) || !send_to(r, w, t->rank)) {
        cot_relay_fail_with(r, 503, NULL, "out of memory");
        return;
    }
    r->tokens_before = r->delivery.tokens;
    r->worker = w;
    r->of_target = decision->target;
    r->cached = decision->cached;
    if (r->generates)
        cot_decisions_keep(g, request, decision,
                           r->begun      ? COT_DECISION_RESUMED
                           : r->deaths   ? COT_DECISION_DIED
                           : r->refusals ? COT_DECISION_REFUSED
                                         : COT_DECISION_FIRST,
                           r->delivery.tokens, r->sent_ns);
    if (!r->booked) r->booked = cot_route_assigned(g->book, request, decision, r->sent_ns);
    cot_gateway_tell_assigned(r, t);
    if (r->blocks) cot_route_feed_assume(t->feed, r->keys, r->blocks, r->sent_ns);
    w->relays++;
    t->running++;
    w->requests++;
    if (!r->begun && r->generates) {
        w->prompt_tokens += r->tokens;
        w->cached_tokens += r->cached;
    }
}

void cot_relay_ask(cot_relay *r)
{
    uint32_t depth[COT_GATEWAY_PLACES] = {0};
    cot_route_request request;
    cot_route_decision decision;
    if ((!r->begun && r->refusals >= MOST_REFUSALS) || !choose(r, &request, &decision, depth))
        none_left(r);
    else
        give(r, &request, &decision);
}

void cot_relay_ask_together(cot_gateway *g, cot_relay **relays, size_t count)
{
    cot_route_request request[COT_ROUTE_MOST_TOGETHER];
    cot_route_decision decision[COT_ROUTE_MOST_TOGETHER];
    uint64_t number[COT_ROUTE_MOST_TOGETHER];
    const int64_t now_ns = cot_now_ns();
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (relays[i]) relays[n++] = relays[i];
    for (size_t i = n; i < count; i++) relays[i] = NULL;
    uint32_t *depth = n ? calloc(n * COT_GATEWAY_PLACES, sizeof *depth) : NULL;
    for (size_t i = 0; i < n && !depth; i++)
        if (relays[i]) cot_relay_ask(relays[i]);
    if (!depth) return;
    for (size_t i = 0; i < n; i++) describe(relays[i], &request[i], depth + i * COT_GATEWAY_PLACES);
    cot_route_choose_together(g->book, request, depth, decision, number, n, now_ns);
    for (size_t i = 0; i < n; i++) {
        relays[i]->booked = number[i];
        cot_prometheus_observe(&g->figures.stage[COT_STAGE_DECIDE],
                               (double)(cot_now_ns() - now_ns) / 1e9 / (double)n);
    }
    for (size_t i = 0; i < n; i++)
        if (relays[i] && decision[i].target == COT_ROUTE_NOBODY)
            none_left(relays[i]);
        else if (relays[i])
            give(relays[i], &request[i], &decision[i]);
    free(depth);
}

/* ---- what becomes of who answers ---- */

static void exclude(cot_relay *r, const cot_gateway_worker *w)
{
    if (r->tried_count < COT_RELAY_MOST_TRIED) r->tried[r->tried_count++] = w;
}

bool cot_relay_can_resume(const cot_relay *r)
{
    return r->delivery.choices && r->fingerprint && !r->request.echo;
}

void cot_relay_recover(cot_relay *r, const char *message)
{
    const cot_gateway_worker *w = r->worker;
    r->tried_count = 0;
    exclude(r, w);
    if (r->begun && !cot_relay_can_resume(r)) {
        cot_relay_drop_call(r);
        cot_relay_fail_with(r, 502, "worker_failed", message);
        return;
    }
    // a request that ends whoever takes it must not end them all
    r->deaths = r->begun && r->delivery.tokens > r->tokens_before ? 0 : r->deaths + 1;
    if ((!r->begun && !r->generates) || r->deaths >= MOST_DEATHS) {
        cot_relay_drop_call(r);
        cot_relay_fail_with(r, 502, "worker_failed", message);
        return;
    }
    if (r->begun) {
        r->worker->resumed_from++;
        r->until_ns = cot_now_ns() + r->gateway->options.stall_ms * 1000000;
        r->delivery.resumed = true;
    }
    cot_relay_drop_call(r); // before anybody else is asked
    cot_sse_free(&r->sse);
    r->answer.bytes = 0;
    cot_relay_ask(r);
}

void cot_relay_leave_broken(cot_relay *r, const char *message)
{
    cot_gateway_worker_failed(r->worker, cot_now_ns());
    cot_relay_recover(r, message);
}

void cot_relay_refused(cot_relay *r, const char *retry_after)
{
    const long seconds = retry_after ? strtol(retry_after, NULL, 10) : 1, said = seconds < 1 ? 1 : seconds;
    r->worker->refusals++;
    if (!r->retry_after || said < r->retry_after) r->retry_after = said;
    if (r->status == 429) r->all_down = false;
    exclude(r, r->worker);
    r->refusals++;
    cot_relay_drop_call(r);
    cot_relay_ask(r);
}
