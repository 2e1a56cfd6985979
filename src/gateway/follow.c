#include "base/clock.h"
#include "base/error.h"
#include "gateway/gateway_state.h"
#include "gateway/reports.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t AGAIN_NS = 2000000000; // a replay that has not come is asked for again
static const int64_t SETTLES_NS = 2000000000;
static const int64_t SNAPSHOT_NS = 1000000000; // from one question for a snapshot to the next
enum { MOST_REPORT_BYTES = 1 << 20, MOST_SNAPSHOT_BYTES = 256 << 20 };
/* A token that is computed costs so much at least, whatever was learnt: of equals the one that holds more of a prompt is taken. */
static const double LEAST_TOKEN_NS = 100;
/* Presumed of a worker until something has been learnt of it: enough to tell what is cached from what is not. */
static const cot_route_costs PRESUMED = {.prompt_ns = 1e6, .token_ns = 2e4, .step_ns = 1e5};

static void tell_error(const cot_gateway_worker *w, const cot_error *error)
{
    cot_access_tell(&w->gateway->access, COT_LOG_WARNING, "worker '%s': %s", w->entry.name, error->message);
}

/* ---- events of KV caches ---- */

static void ask_snapshot(cot_gateway_worker *w)
{
    if (!w->snapshot.call && cot_now_ns() - w->snapshot.since_ns >= SNAPSHOT_NS)
        cot_ask_start(&w->snapshot, w->probing, "/kv_events/snapshot", w->authorization, NULL,
                      MOST_SNAPSHOT_BYTES);
}

/* Asks for what the feed misses. */
static void ask_for_missing(cot_gateway_target *t, int64_t now_ns)
{
    uint64_t from;
    switch (cot_route_feed_asks(t->feed, &from)) {
    case COT_ROUTE_WANTS_NOTHING:
        t->asked_ns = INT64_MIN;
        break;
    case COT_ROUTE_WANTS_REPLAY:
        if (t->asked_ns != INT64_MIN && t->asked_from == from && now_ns - t->asked_ns < AGAIN_NS) break;
        t->asked_from = from;
        t->asked_ns = now_ns;
        if (!cot_subscriber_ask(t->events, from)) cot_route_feed_replay_ended(t->feed);
        break;
    case COT_ROUTE_WANTS_SNAPSHOT:
        ask_snapshot(t->worker);
        break;
    }
}

static void on_batch(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes)
{
    cot_gateway_target *t = context;
    const int64_t now_ns = cot_now_ns();
    cot_error error;
    const cot_status status = replayed
                                  ? cot_route_feed_replayed(t->feed, number, payload, bytes, now_ns, &error)
                                  : cot_route_feed_live(t->feed, number, payload, bytes, now_ns, &error);
    if (status != COT_OK) tell_error(t->worker, &error);
    ask_for_missing(t, now_ns);
}

static void on_replay_end(void *context)
{
    cot_gateway_target *t = context;
    cot_route_feed_replay_ended(t->feed);
    ask_for_missing(t, cot_now_ns());
}

static void take_rank(void *context, int rank, uint64_t batches, const void *batch, size_t bytes)
{
    cot_gateway_worker *w = context;
    cot_error error;
    if (rank < 0 || (size_t)rank >= w->targets) return;
    if (cot_route_feed_snapshot(w->gateway->target[w->first_target + (size_t)rank].feed, batches, batch,
                                bytes, &error) != COT_OK)
        tell_error(w, &error);
}

static void on_snapshot(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    cot_gateway_worker *w = context;
    (void)error;
    if (status == 200 && !cot_gateway_read_snapshot(body, bytes, take_rank, w))
        cot_access_tell(&w->gateway->access, COT_LOG_WARNING,
                        "worker '%s': its snapshot of the KV cache is malformed", w->entry.name);
}

/* ---- reports of steps ---- */

static void on_report(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes)
{
    cot_gateway_worker *w = context;
    cot_route_work work;
    uint64_t epoch;
    (void)replayed, (void)number;
    if (!cot_gateway_read_step(&work, &epoch, payload, bytes)) return;
    w->reported_ns = cot_now_ns();
    work.experts /= w->layers_every; // those that have a cell
    work.sends /= w->layers_every;
    cot_route_learn_work(w->gateway->book, w->learner, &work);
    cot_gateway_follow_placement(w, epoch);
}

/* Whether two workers are taken to be equally fast. */
static bool is_like(const cot_gateway_worker *a, const cot_gateway_worker *b)
{
    return a->is_coterie == b->is_coterie &&
           (a->fingerprint && b->fingerprint ? !strcmp(a->fingerprint, b->fingerprint)
                                             : a->fingerprint == b->fingerprint);
}

/* The place by which a worker's costs are learnt: that of workers like it, or one that nobody has. */
static size_t find_learner(cot_gateway_worker *w)
{
    cot_gateway *g = w->gateway;
    for (const cot_gateway_worker *other = g->workers; other; other = other->next)
        if (other != w && other->targets && is_like(other, w)) return other->learner;
    const size_t learner = COT_GATEWAY_TARGETS + g->learners++ % COT_GATEWAY_LEARNERS;
    cot_route_book_set_costs(g->book, learner, &PRESUMED);
    return learner;
}

/* All have the costs that were learnt of workers like them. */
static void share_costs(cot_gateway *g)
{
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        cot_route_costs learnt, own;
        if (!w->targets) continue; // there may be no book yet
        cot_route_book_costs(g->book, w->learner, &learnt);
        if (learnt.token_ns < LEAST_TOKEN_NS) learnt.token_ns = LEAST_TOKEN_NS;
        for (size_t t = w->first_target; t < w->first_target + w->targets; t++) {
            cot_route_book_costs(g->book, t, &own);
            learnt.pages = own.pages;
            learnt.slots = own.slots;
            cot_route_book_set_costs(g->book, t, &learnt);
        }
    }
}

void cot_gateway_take_reports(cot_gateway *g)
{
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        if (w->reports) cot_subscriber_take(w->reports);
        if (w->popularity) cot_subscriber_take(w->popularity);
    }
    share_costs(g);
}

/* ---- beginning and end ---- */

/* "tcp://ADDRESS:PORT" of rank 0, `by` ports higher; "*" is the worker's own host. False where it does not fit. */
static bool write_endpoint(char text[256], const char *endpoint, int by, const char *url)
{
    const char *colon = strrchr(endpoint, ':'), *host = url + cot_fleet_scheme(url);
    const size_t n = strcspn(host, *host == '[' ? "]" : ":/") + (*host == '[');
    const int first = colon ? atoi(colon + 1) : 0, port = first + by;
    if (strncmp(endpoint, "tcp://", 6) != 0 || first < 1 || first > 65535 || port > 65535) return false;
    const bool any = !strncmp(endpoint + 6, "*:", 2);
    const int bytes = any ? snprintf(text, 256, "tcp://%.*s:%d", (int)n, host, port)
                          : snprintf(text, 256, "%.*s:%d", (int)(colon - endpoint), endpoint, port);
    return bytes < 256;
}

/* Of the list, or of what the worker says: a list of one for each rank. */
static bool endpoint_of(char text[256], const cot_gateway_worker *w, const char *listed, const json_t *said,
                        int rank)
{
    if (listed) return write_endpoint(text, listed, rank, w->entry.url);
    const char *one = json_string_value(json_array_get(said, (size_t)rank));
    return one && write_endpoint(text, one, 0, w->entry.url);
}

static cot_status follow_target(cot_gateway_target *t, const json_t *document, cot_error *error)
{
    cot_gateway_worker *w = t->worker;
    cot_gateway *g = w->gateway;
    char events[256], replay[256];
    const json_t *kv = json_object_get(document, "kv_events");
    const char *topic = json_string_value(json_object_get(kv, "topic"));
    const bool tells = endpoint_of(events, w, w->entry.kv_events, json_object_get(kv, "endpoints"), t->rank);
    const bool replays =
        endpoint_of(replay, w, w->entry.kv_replay, json_object_get(kv, "replay_endpoints"), t->rank);
    cot_status status = cot_route_feed_open(&t->feed, g->index, (size_t)(t - g->target), g->block_tokens,
                                            w->has_snapshot, error);
    if (status != COT_OK || !tells) return status;
    const cot_subscriber_options options = {.endpoint = events,
                                            .replay_endpoint = replays ? replay : NULL,
                                            .topic = topic ? topic : "",
                                            .max_bytes = (size_t)64 << 20,
                                            .on_message = on_batch,
                                            .on_replay_end = on_replay_end,
                                            .context = t};
    status = cot_subscriber_open(&t->events, g->zmq, g->base, &options, error);
    // whoever has no snapshot tells what it holds from the beginning, if it has kept all of that
    if (status == COT_OK && !w->has_snapshot) cot_subscriber_ask(t->events, 0);
    return status;
}

static cot_status follow_steps(cot_gateway_worker *w, const json_t *document, cot_error *error)
{
    char endpoint[256];
    const char *said =
        json_string_value(json_object_get(json_object_get(document, "step_reports"), "endpoint"));
    const char *from = w->entry.step_reports ? w->entry.step_reports : said;
    if (!from || !write_endpoint(endpoint, from, 0, w->entry.url)) return COT_OK;
    const cot_subscriber_options options = {.endpoint = endpoint,
                                            .topic = "steps",
                                            .max_bytes = MOST_REPORT_BYTES,
                                            .on_message = on_report,
                                            .context = w};
    // a report a step is too often to wake the loop for
    return cot_subscriber_open(&w->reports, w->gateway->zmq, NULL, &options, error);
}

static cot_status follow_experts(cot_gateway_worker *w, const json_t *document, cot_error *error)
{
    char endpoint[256];
    const char *said =
        json_string_value(json_object_get(json_object_get(document, "popularity"), "endpoint"));
    const char *from = w->entry.popularity ? w->entry.popularity : said;
    cot_gateway_check_tables(w, document);
    w->layers_every = cot_gateway_layers_every(w->gateway);
    if (!from || !write_endpoint(endpoint, from, 0, w->entry.url)) return COT_OK;
    return cot_gateway_follow_experts(w, document, endpoint, error);
}

/* The first of so many targets in a row that are free; COT_GATEWAY_TARGETS: there are none. */
static size_t find_free(const cot_gateway *g, size_t count)
{
    size_t run = 0;
    for (size_t t = 0; t < COT_GATEWAY_TARGETS; t++) {
        run = g->target[t].worker ? 0 : run + 1;
        if (run == count) return t + 1 - count;
    }
    return COT_GATEWAY_TARGETS;
}

static int ranks_of(const cot_gateway_worker *w, const json_t *document)
{
    const json_int_t said = json_integer_value(json_object_get(document, "kv_homes"));
    if (w->entry.ranks) return w->entry.ranks;
    return said >= 1 && said <= COT_FLEET_MOST_RANKS ? (int)said : 1;
}

void cot_gateway_follow(cot_gateway_worker *w, const json_t *document)
{
    cot_gateway *g = w->gateway;
    const int ranks = ranks_of(w, document);
    const size_t first = find_free(g, (size_t)ranks);
    const double pages = json_number_value(json_object_get(document, "kv_pages")) *
                         json_number_value(json_object_get(document, "page_tokens"));
    const double slots = json_number_value(json_object_get(document, "max_num_seqs"));
    cot_error error = {0};
    if (first == COT_GATEWAY_TARGETS) {
        cot_fail(&w->why, COT_INVALID_ARGUMENT,
                 "there is no room for its %d ranks: at most %d targets may be", ranks, COT_GATEWAY_TARGETS);
        return;
    }
    w->has_snapshot = json_object_get(json_object_get(document, "kv_events"), "snapshot") != NULL &&
                      json_is_object(json_object_get(document, "kv_events"));
    w->snapshot.done = on_snapshot;
    w->snapshot.context = w;
    w->first_target = first;
    w->learner = find_learner(w);
    cot_status status = COT_OK;
    for (int rank = 0; rank < ranks && status == COT_OK; rank++) {
        cot_gateway_target *t = &g->target[first + (size_t)rank];
        cot_route_costs costs = PRESUMED;
        *t = (cot_gateway_target){.worker = w, .rank = rank, .asked_ns = INT64_MIN, .turned_ns = INT64_MIN};
        w->targets++;
        costs.pages = pages / (double)g->block_tokens;
        costs.slots = slots / ranks; // homes that run as many each are the fastest
        cot_route_book_set_costs(g->book, first + (size_t)rank, &costs);
        cot_route_renewed(g->book, first + (size_t)rank);
        cot_route_book_set_worker(g->book, first + (size_t)rank, first);
        status = follow_target(t, document, &error);
    }
    if (status == COT_OK) status = follow_steps(w, document, &error);
    if (status == COT_OK) status = follow_experts(w, document, &error);
    w->settles_ns = cot_now_ns() + SETTLES_NS;
    if (status == COT_OK && w->has_snapshot) ask_snapshot(w);
    if (status == COT_OK) return;
    cot_fail(&w->why, COT_INVALID_ARGUMENT, "%s", error.message);
    cot_gateway_unfollow(w);
}

void cot_gateway_unfollow(cot_gateway_worker *w)
{
    cot_gateway *g = w->gateway;
    cot_ask_cancel(&w->snapshot);
    cot_gateway_forget_placement(w);
    cot_gateway_close_heat(w);
    cot_subscriber_close(w->reports);
    cot_subscriber_close(w->popularity);
    w->reports = w->popularity = NULL;
    w->reported_ns = INT64_MIN;
    for (size_t i = w->first_target; i < w->first_target + w->targets; i++) {
        cot_subscriber_close(g->target[i].events);
        cot_route_feed_close(g->target[i].feed);
        cot_route_index_clear(g->index, i);
        cot_route_book_set_usable(g->book, i, false);
        g->target[i] = (cot_gateway_target){0};
    }
    w->targets = 0;
}

void cot_gateway_refollow(cot_gateway_worker *w)
{
    for (size_t i = w->first_target; i < w->first_target + w->targets; i++) {
        cot_gateway_target *t = &w->gateway->target[i];
        cot_route_feed_restart(t->feed);
        t->asked_ns = INT64_MIN;
        if (t->events && !w->has_snapshot) cot_subscriber_ask(t->events, 0);
    }
    w->settles_ns = cot_now_ns() + SETTLES_NS;
    if (w->has_snapshot) ask_snapshot(w);
}

/* A subscription takes effect some time after it was made, and nobody is told when: what was published until then, and is followed by
 * nothing, is found by a second look. */
static void settle(cot_gateway_worker *w, int64_t now_ns)
{
    if (!w->targets || now_ns < w->settles_ns) return;
    w->settles_ns = INT64_MAX;
    if (w->has_snapshot) ask_snapshot(w);
    for (size_t i = w->first_target; i < w->first_target + w->targets; i++)
        if (w->gateway->target[i].events && !w->has_snapshot)
            cot_subscriber_ask(w->gateway->target[i].events, 0);
}

/* Groups of layers that are not looked at. */
static void name_groups(cot_gateway_target *t)
{
    const cot_gateway_worker *w = t->worker;
    uint32_t new = cot_route_feed_measure(t->feed)->wrong_size_groups & ~t->named_groups;
    for (; new; new &= new - 1)
        cot_access_tell(
            &w->gateway->access, COT_LOG_WARNING,
            "worker '%s', rank %d: group %d of its layers has blocks of another size than %zu tokens: they "
            "are not looked at",
            w->entry.name, t->rank, __builtin_ctz(new), w->gateway->block_tokens);
    t->named_groups = cot_route_feed_measure(t->feed)->wrong_size_groups;
}

void cot_gateway_tick_follow(cot_gateway_worker *w, int64_t now_ns)
{
    cot_gateway *g = w->gateway;
    settle(w, now_ns);
    for (size_t i = w->first_target; i < w->first_target + w->targets; i++) {
        cot_gateway_target *t = &g->target[i];
        uint64_t from, until;
        if (cot_route_feed_tick(t->feed, now_ns, &from, &until)) {
            g->figures.gaps++;
            cot_access_tell(&g->access, COT_LOG_WARNING,
                            "worker '%s', rank %d: events %" PRIu64 " to %" PRIu64
                            " of its KV cache are lost",
                            w->entry.name, t->rank, from, until - 1);
        }
        name_groups(t);
        if (t->events) ask_for_missing(t, now_ns);
    }
}
