#include "base/clock.h"
#include "base/error.h"
#include "base/integers.h"
#include "gateway/gateway_state.h"
#include "net/tls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t SECOND_NS = 1000000000, SUSPENDED_NS = 3 * SECOND_NS, FORGOTTEN_NS = 30 * SECOND_NS,
                     DESCRIBED_NS = 10 * SECOND_NS; // what it says of itself is asked for again
enum { MOST_BYTES = 1 << 20, MOST_SHOWN_BYTES = 64, MOST_BLOCK_TOKENS = 1 << 16 };

const char *const cot_gateway_state_names[COT_GATEWAY_STATES] = {"new", "up", "suspended", "forgotten",
                                                                 "refused"};

/* ---- which state it is in ---- */

bool cot_gateway_is_usable(const cot_gateway_worker *w)
{
    return w->state == COT_GATEWAY_UP && w->listed && !w->drains;
}

void cot_gateway_set_usable(const cot_gateway_worker *w)
{
    const bool usable = cot_gateway_is_usable(w);
    for (size_t t = w->first_target; t < w->first_target + w->targets; t++)
        cot_route_book_set_usable(w->gateway->book, t, usable);
}

static void set_state(cot_gateway_worker *w, cot_gateway_state state, const char *reason)
{
    const bool is_new = w->state != state;
    w->state = state;
    cot_gateway_set_usable(w);
    if (is_new)
        cot_access_tell(&w->gateway->access, state == COT_GATEWAY_UP ? COT_LOG_INFO : COT_LOG_WARNING,
                        "worker '%s' is %s%s%s", w->entry.name, cot_gateway_state_names[state],
                        *reason ? ": " : "", reason);
}

static void forget(cot_gateway_worker *w)
{
    cot_gateway_unfollow(w);
    free(w->document);
    free(w->model);
    free(w->fingerprint);
    w->document = w->model = w->fingerprint = NULL;
    w->block_tokens = 0;
}

void cot_gateway_worker_failed(cot_gateway_worker *w, int64_t now_ns)
{
    w->failures++;
    for (size_t t = w->first_target; t < w->first_target + w->targets; t++)
        cot_route_failed(w->gateway->book, t, now_ns);
    if (w->state != COT_GATEWAY_UP) return;
    w->described_ns = INT64_MIN; // another may listen there now
    w->again = true;
    set_state(w, COT_GATEWAY_SUSPENDED, "a connection or a stream of it broke");
}

void cot_gateway_drain_worker(cot_gateway_worker *w, bool drains)
{
    w->drains = drains;
    cot_gateway_set_usable(w);
}

/* ---- what it says of itself ---- */

/* The first other worker that has said what it serves. */
static const cot_gateway_worker *first_described(const cot_gateway_worker *but)
{
    for (const cot_gateway_worker *w = but->gateway->workers; w; w = w->next)
        if (w != but && w->listed && w->document && w->state != COT_GATEWAY_REFUSED && w->model) return w;
    return NULL;
}

/* How many bytes of a name are shown: whole characters. */
static int shown(const char *name)
{
    size_t n = strnlen(name, MOST_SHOWN_BYTES);
    while (n && ((unsigned char)name[n] & 0xc0) == 0x80) n--;
    return (int)n;
}

/* False, with w->why, where it does not fit the others. What may differ is told. */
static bool agrees(cot_gateway_worker *w)
{
    cot_gateway *g = w->gateway;
    const cot_gateway_worker *other = first_described(w);
    if (other && w->model && strcmp(other->model, w->model) != 0) {
        cot_fail(&w->why, COT_INVALID_ARGUMENT, "it serves '%.*s', '%s' serves '%.*s'", shown(w->model),
                 w->model, other->entry.name, shown(other->model), other->model);
        return false;
    }
    if (!g->block_tokens && !cot_gateway_begin(g, g->options.block_tokens ? (size_t)g->options.block_tokens
                                                  : w->block_tokens       ? w->block_tokens
                                                                          : 16)) {
        cot_fail(&w->why, COT_INVALID_ARGUMENT, "out of memory for an index");
        return false;
    }
    if (w->block_tokens && w->block_tokens != g->block_tokens) {
        cot_fail(&w->why, COT_INVALID_ARGUMENT, "its blocks have %zu tokens, those of the index %zu",
                 w->block_tokens, g->block_tokens);
        return false;
    }
    if (other && w->fingerprint && other->fingerprint && strcmp(other->fingerprint, w->fingerprint) != 0)
        cot_access_tell(
            &g->access, COT_LOG_WARNING,
            "worker '%s' has the fingerprint %s, '%s' has %s: neither goes on where the other died",
            w->entry.name, w->fingerprint, other->entry.name, other->fingerprint);
    return true;
}

/* False, with w->why: no blocks have that size. */
static bool read_block_size(cot_gateway_worker *w, const json_t *document)
{
    const json_int_t said = json_integer_value(json_object_get(document, "block_size"));
    const bool good = said >= 0 && said <= MOST_BLOCK_TOKENS;
    w->block_tokens = good ? (size_t)said : 0;
    if (!good)
        cot_fail(&w->why, COT_INVALID_ARGUMENT,
                 "its 'block_size' is %" JSON_INTEGER_FORMAT ", it must be in [0, %d]", said,
                 MOST_BLOCK_TOKENS);
    return good;
}

static char *copy_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && *text ? strdup(text) : NULL;
}

/* Takes /worker's document, or /v1/models' where it is no Coterie. */
static void take_document(cot_gateway_worker *w, json_t *document)
{
    json_object_del(document, "epoch"); // which changes while it serves
    json_t *models = json_object_get(document, "data");
    for (size_t i = 0; i < json_array_size(models); i++)
        json_object_del(json_array_get(models, i), "created");
    char *text = json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return;
    if (w->document && !strcmp(w->document, text)) {
        free(text);
        if (w->again && w->state != COT_GATEWAY_REFUSED) cot_gateway_refollow(w);
    } else {
        if (w->document)
            cot_access_tell(&w->gateway->access, COT_LOG_INFO, "worker '%s' is another one now",
                            w->entry.name);
        forget(w);
        w->document = text;
        w->model = w->is_coterie ? copy_text(json_array_get(json_object_get(document, "models"), 0))
                                 : copy_text(json_object_get(json_array_get(models, 0), "id"));
        w->fingerprint = copy_text(json_object_get(document, "fingerprint"));
        w->why = (cot_error){0};
        if (read_block_size(w, document) && agrees(w)) cot_gateway_follow(w, document);
    }
    w->again = false;
    w->described_ns = cot_now_ns();
    set_state(w, *w->why.message ? COT_GATEWAY_REFUSED : COT_GATEWAY_UP, w->why.message);
}

static void ask_what_it_is(cot_gateway_worker *w);

static void on_description(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    cot_gateway_worker *w = context;
    if (status == 404 && w->is_coterie && !w->document) { // another engine
        w->is_coterie = false;
        ask_what_it_is(w);
        return;
    }
    json_t *document = status == 200 ? json_loadb(body, bytes, 0, NULL) : NULL;
    if (json_is_object(document))
        take_document(w, document);
    else {
        cot_fail(&w->why, COT_INVALID_ARGUMENT, "it does not say what it is at %s: %s",
                 w->is_coterie ? "/worker" : "/v1/models",
                 error           ? error->message
                 : status == 401 ? "it wants a key"
                 : status == 200 ? "no JSON"
                                 : "an error");
        if (!w->document && status) set_state(w, COT_GATEWAY_REFUSED, w->why.message);
        w->described_ns = cot_now_ns();
    }
    json_decref(document);
}

static void ask_what_it_is(cot_gateway_worker *w)
{
    if (!w->description.call)
        cot_ask_start(&w->description, w->probing, w->is_coterie ? "/worker" : "/v1/models", w->authorization,
                      NULL, MOST_BYTES);
}

/* ---- whether it is there ---- */

static void on_health(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    cot_gateway_worker *w = context;
    const int64_t now_ns = cot_now_ns();
    (void)body, (void)bytes;
    if (status == 200 || status == 404) { // an engine that has no /health answers, too
        w->heard_ns = now_ns;
        const bool due = w->described_ns == INT64_MIN || now_ns - w->described_ns >= DESCRIBED_NS;
        if (w->state == COT_GATEWAY_SUSPENDED && !due) set_state(w, COT_GATEWAY_UP, "");
        if (due || w->state != COT_GATEWAY_UP) ask_what_it_is(w);
    } else { // it says that it ends, or nobody listens there
        w->described_ns = INT64_MIN;
        w->again = true;
        if (w->state == COT_GATEWAY_UP)
            set_state(w, COT_GATEWAY_SUSPENDED, error ? error->message : "its /health is not well");
        else if (w->state == COT_GATEWAY_NEW && error && !w->missed)
            cot_access_tell(&w->gateway->access, COT_LOG_WARNING, "worker '%s' is not there yet: %s",
                            w->entry.name, error->message);
        w->missed = true;
    }
}

static void tick_worker(cot_gateway_worker *w, int64_t now_ns)
{
    const int64_t silent_ns = now_ns - w->heard_ns;
    if (w->health.call && now_ns - w->health.since_ns >= SUSPENDED_NS) cot_ask_cancel(&w->health);
    if (w->description.call && now_ns - w->description.since_ns >= DESCRIBED_NS)
        cot_ask_cancel(&w->description);
    if (!w->health.call) cot_ask_start(&w->health, w->probing, "/health", w->authorization, NULL, MOST_BYTES);
    if (silent_ns >= SUSPENDED_NS && w->state == COT_GATEWAY_UP)
        set_state(w, COT_GATEWAY_SUSPENDED, "it does not answer");
    if (silent_ns >= FORGOTTEN_NS && w->document) {
        forget(w);
        cot_relay_leave_worker(w);
    }
    if (silent_ns >= FORGOTTEN_NS && w->state != COT_GATEWAY_FORGOTTEN) {
        w->described_ns = INT64_MIN;
        w->is_coterie = !w->entry.foreign;
        set_state(w, COT_GATEWAY_FORGOTTEN, "it has not answered for 30 s");
    }
    cot_gateway_tick_follow(w, now_ns);
}

/* ---- coming and going ---- */

cot_gateway_worker *cot_gateway_find_worker(const cot_gateway *g, const char *name)
{
    for (cot_gateway_worker *w = g->workers; w; w = w->next)
        if (w->listed && !strcmp(w->entry.name, name)) return w;
    return NULL;
}

static void free_worker(cot_gateway_worker *w)
{
    cot_ask_cancel(&w->health);
    cot_ask_cancel(&w->description);
    cot_ask_cancel(&w->snapshot);
    cot_ask_cancel(&w->placement);
    forget(w);
    cot_http_client_close(w->http);
    cot_http_client_close(w->probing);
    cot_fleet_entry_free(&w->entry);
    free(w->authorization);
    free(w);
}

cot_status cot_gateway_add_worker(cot_gateway *g, cot_fleet_entry *entry, bool of_file, cot_error *error)
{
    cot_gateway_worker *w = calloc(1, sizeof *w), **end = &g->workers;
    if (!w) {
        cot_fleet_entry_free(entry);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
    }
    w->gateway = g;
    w->entry = *entry;
    *entry = (cot_fleet_entry){0};
    w->of_file = of_file;
    w->listed = true;
    w->is_coterie = !w->entry.foreign;
    w->heard_ns = cot_now_ns(); // its time begins
    w->described_ns = w->reported_ns = INT64_MIN;
    w->placement_epoch = UINT64_MAX;
    w->health = (cot_ask){.done = on_health, .context = w};
    w->description = (cot_ask){.done = on_description, .context = w};
    const char *key = w->entry.key ? w->entry.key : g->options.worker_key;
    w->authorization = cot_ask_authorization(key);
    cot_status status = !key || w->authorization ? COT_OK : COT_OUT_OF_MEMORY;
    if (status == COT_OK && !g->tls && cot_fleet_scheme(w->entry.url) == strlen("https://"))
        status = cot_tls_open_client(&g->tls, g->options.worker_ca_certs, error);
    const cot_http_client_options connect = {.connect_ms = 2000, .tls = g->tls};
    if (status == COT_OK) status = cot_http_client_open(&w->http, g->base, w->entry.url, &connect, error);
    if (status == COT_OK) status = cot_http_client_open(&w->probing, g->base, w->entry.url, &connect, error);
    if (status != COT_OK) {
        free_worker(w);
        return status;
    }
    while (*end) end = &(*end)->next;
    *end = w;
    tick_worker(w, cot_now_ns());
    return COT_OK;
}

void cot_gateway_remove_worker(cot_gateway_worker *w)
{
    w->listed = false;
    cot_gateway_set_usable(w);
}

void cot_gateway_free_workers(cot_gateway *g)
{
    for (cot_gateway_worker *w; (w = g->workers);) {
        g->workers = w->next;
        free_worker(w);
    }
}

void cot_gateway_excuse_workers(cot_gateway *g, int64_t now_ns, int64_t late_ns)
{
    for (cot_gateway_worker *w = g->workers; w; w = w->next)
        w->heard_ns = cot_smaller(w->heard_ns + late_ns, now_ns);
}

void cot_gateway_tick_workers(cot_gateway *g, int64_t now_ns)
{
    for (cot_gateway_worker **at = &g->workers, *w; (w = *at);) {
        if (w->listed || w->relays) {
            tick_worker(w, now_ns);
            at = &w->next;
        } else {
            *at = w->next;
            free_worker(w);
        }
    }
}

json_t *cot_gateway_worker_json(const cot_gateway_worker *w)
{
    const cot_gateway *g = w->gateway;
    json_t *targets = json_array();
    for (size_t t = w->first_target; t < w->first_target + w->targets; t++) {
        cot_route_costs costs;
        cot_route_book_costs(g->book, t, &costs);
        const cot_route_feed_figures *f = cot_route_feed_measure(g->target[t].feed);
        json_array_append_new(
            targets,
            json_pack("{s:i, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "rank",
                      g->target[t].rank, "running", (json_int_t)g->target[t].running, "breaker_open",
                      cot_route_is_open(g->book, t, cot_now_ns()), "prompt_ns", costs.prompt_ns, "token_ns",
                      costs.token_ns, "step_ns", costs.step_ns, "pages", costs.pages, "slots", costs.slots,
                      "batches", (json_int_t)f->batches, "stored", (json_int_t)f->stored, "removed",
                      (json_int_t)f->removed, "wrong_size", (json_int_t)f->wrong_size, "gaps",
                      (json_int_t)f->gaps, "forgotten", (json_int_t)f->forgotten));
    }
    return json_pack(
        "{s:s, s:s, s:s, s:s*, s:b, s:b, s:s?, s:s?, s:b, s:o?, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
        "name", w->entry.name, "url", w->entry.url, "state", cot_gateway_state_names[w->state], "why",
        *w->why.message ? w->why.message : NULL, "draining", w->drains, "coterie",
        w->document && w->is_coterie, "model", w->model, "fingerprint", w->fingerprint, "step_reports",
        w->reports != NULL, "placement_epoch",
        w->is_placed ? json_integer((json_int_t)w->placement_epoch) : NULL, "requests",
        (json_int_t)w->requests, "refusals", (json_int_t)w->refusals, "failures", (json_int_t)w->failures,
        "resumed_from", (json_int_t)w->resumed_from, "resumed_to", (json_int_t)w->resumed_to, "prompt_tokens",
        (json_int_t)w->prompt_tokens, "cached_tokens", (json_int_t)w->cached_tokens, "running",
        (json_int_t)w->relays, "targets", targets);
}
