#include "base/clock.h"
#include "gateway/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_EVENT_BYTES = 16 << 20 };

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
    cot_relay_release(r);
}

static void reply_whole(cot_relay *r)
{
    cot_http_field fields[COT_ACCESS_FIELDS];
    const size_t n = answer_fields(r, fields);
    if (r->status >= 400) r->gateway->figures.refused++;
    cot_http_reply(r->exchange, r->status, *r->type ? r->type : NULL, fields, n,
                   r->answer.data ? r->answer.data : "", r->answer.bytes);
    r->exchange = NULL;
    cot_relay_release(r);
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
    cot_gateway_tell_began(r);
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
    const size_t searched = r->answer.bytes; // no event ends there
    if (count > MOST_EVENT_BYTES - searched || !cot_buffer_append(&r->answer, bytes, count)) return false;
    size_t whole = r->answer.bytes;
    const char *text = r->answer.data;
    while (whole > searched &&
           !(text[whole - 1] == '\n' && ((whole > 1 && text[whole - 2] == '\n') ||
                                         (whole > 2 && text[whole - 2] == '\r' && text[whole - 3] == '\n'))))
        whole--;
    if (whole == searched) return true;
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
        cot_relay_refused(r, cot_http_call_header(call, "Retry-After"));
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
    if (!r->is_events) {
        first_came(r);
        if (count <= COT_RELAY_MOST_ANSWER_BYTES - r->answer.bytes &&
            cot_buffer_append(&r->answer, bytes, count))
            return;
        cot_relay_drop_call(r);
        cot_relay_fail_with(r, 502, "answer_too_long", "the worker's answer is too long for the router");
    } else if (!r->delivery.choices) {
        if (pass_events(r, bytes, count)) {
            note_part(r);
            return;
        }
        cot_relay_leave_broken(r, "the worker sent an event without an end");
    } else if (cot_sse_feed(&r->sse, bytes, count)) {
        note_part(r);
    } else {
        const bool went_on = r->delivery.tokens > r->tokens_before;
        if (r->verdict == COT_DELIVERY_DONE) {
            cot_http_call_leave(call);
            r->call = NULL;
            end_stream(r);
        } else if (r->verdict == COT_DELIVERY_ERROR && !went_on && r->delivery.resumed) {
            // whoever goes on fails at the same place
            cot_relay_drop_call(r);
            begin_stream(r);
            cot_http_stream_event(r->exchange, r->event.data, r->event.bytes);
            cot_http_close_after(r->exchange);
            end_stream(r);
        } else if (r->verdict == COT_DELIVERY_ERROR) {
            cot_relay_recover(r, "the worker failed");
        } else {
            cot_relay_leave_broken(r, "the worker sent no event that can be read");
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
        cot_relay_recover(r, error ? error->message : "the worker failed");
    } else if (r->is_events && ((r->generates && !r->ended) || r->answer.bytes)) {
        cot_relay_leave_broken(r, "the worker ended its stream early");
    } else if (r->is_events) {
        end_stream(r);
    } else {
        first_came(r);
        reply_whole(r);
    }
}

const cot_http_answer cot_relay_answer = {on_head, on_data, on_done};

bool cot_relay_expect(cot_relay *r, const cot_gateway_worker *w)
{
    cot_delivery *d = &r->delivery;
    r->first_ns = r->last_ns = r->part_ns = 0;
    r->ended = false;
    r->sse = (cot_sse){.on_event = on_event, .context = r};
    if (r->begun) return true;
    // nothing was sent to the client yet: what this worker's stream delivers begins anew
    cot_delivery_free(d);
    if (!r->generates || !r->request.stream || !w->is_coterie) return true;
    d->hides_ids = !r->request.wants_ids;
    d->most = r->request.echo ? UINT64_MAX : r->request.max_tokens;
    return cot_delivery_open(d, r->request.choices);
}
