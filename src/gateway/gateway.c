#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "gateway/gateway_state.h"
#include "net/publisher.h"
#include "net/tls.h"

#include <event2/event.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_FILE_BYTES = 4 << 20, WATCH_MS = 100, MOST_BATCH_US = 10000 };

void cot_gateway_options_init(cot_gateway_options *options)
{
    *options = (cot_gateway_options){
        .size = sizeof *options, .scales = {1, 1, 1}, .stall_ms = 10000, .shutdown_ms = 30000};
    cot_access_options_init(&options->access);
}

/* ---- answers ---- */

void cot_gateway_reply_json(cot_gateway *g, cot_http_exchange *exchange, int status, json_t *json)
{
    // 13 digits tell the time of a decision, seconds since 1970, to the millisecond
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(13)) : NULL;
    const cot_access_head head = {.status = text ? status : 503, .type = "application/json"};
    json_decref(json);
    if (head.status >= 400) g->figures.refused++;
    cot_access_reply(&g->access.options, exchange, &head, text ? text : "", text ? strlen(text) : 0);
    free(text);
}

void cot_gateway_refuse(cot_gateway *g, cot_http_exchange *exchange, const cot_api_error *error)
{
    json_t *json = cot_api_error_json(error);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    const cot_access_head head = {.status = error->http_status,
                                  .type = "application/json",
                                  .retry_after = error->http_status == 503 ? "1" : NULL};
    json_decref(json);
    g->figures.refused++;
    cot_access_reply(&g->access.options, exchange, &head, text ? text : "", text ? strlen(text) : 0);
    free(text);
}

/* ---- workers ---- */

bool cot_gateway_begin(cot_gateway *g, size_t block_tokens)
{
    if (cot_route_index_open(&g->index, COT_GATEWAY_TARGETS, NULL) != COT_OK ||
        cot_route_book_open(&g->book, COT_GATEWAY_PLACES, block_tokens, g->options.policy, g->options.seed,
                            NULL) != COT_OK) {
        cot_route_index_close(g->index);
        g->index = NULL;
        return false;
    }
    for (size_t t = 0; t < COT_GATEWAY_PLACES; t++) cot_route_book_set_usable(g->book, t, false);
    g->block_tokens = block_tokens;
    cot_route_book_set_scales(g->book, &g->options.scales);
    return true;
}

static cot_status add_url(cot_gateway *g, const char *url, cot_error *error)
{
    cot_fleet_entry entry;
    if (cot_discovery_is(url) && g->discoveries < COT_GATEWAY_NAMES)
        return cot_discovery_open(&g->discovery[g->discoveries++], g, url, error);
    if (cot_discovery_is(url))
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s': at most %d names of DNS are taken", url,
                        COT_GATEWAY_NAMES);
    const cot_status status = cot_fleet_entry_of_url(&entry, url, error);
    if (status != COT_OK) return status;
    if (!cot_gateway_find_worker(g, entry.name)) return cot_gateway_add_worker(g, &entry, false, error);
    const cot_status twice =
        cot_fail(error, COT_INVALID_ARGUMENT, "the worker '%s' is given twice", entry.name);
    cot_fleet_entry_free(&entry);
    return twice;
}

/* What tells that a file has changed. */
static void stamp_of(char stamp[96], const char *path)
{
    struct stat s;
    *stamp = 0;
    if (stat(path, &s) == 0)
        snprintf(stamp, 96, "%lld %lld.%09ld %lld", (long long)s.st_ino, (long long)s.st_mtim.tv_sec,
                 s.st_mtim.tv_nsec, (long long)s.st_size);
}

static const cot_fleet_entry *find_entry(const cot_fleet *fleet, const char *name)
{
    for (size_t i = 0; i < fleet->count; i++)
        if (!strcmp(fleet->entry[i].name, name)) return &fleet->entry[i];
    return NULL;
}

/* Whether names are free that the file does not own. */
static cot_status check_names(const cot_gateway *g, const cot_fleet *fleet, cot_error *error)
{
    for (size_t i = 0; i < fleet->count; i++) {
        const cot_gateway_worker *w = cot_gateway_find_worker(g, fleet->entry[i].name);
        if (w && !w->of_file)
            return cot_fail(error, COT_INVALID_ARGUMENT, "'%s': there is a worker '%s' already",
                            g->options.file, w->entry.name);
    }
    return COT_OK;
}

/* Workers that are as they were stay; others go, or come. The list is emptied. */
static cot_status apply(cot_gateway *g, cot_fleet *fleet, cot_error *error)
{
    cot_status first = COT_OK;
    for (cot_gateway_worker *w = g->workers; w; w = w->next) {
        const cot_fleet_entry *e = w->of_file && w->listed ? find_entry(fleet, w->entry.name) : NULL;
        if (w->of_file && w->listed && (!e || !cot_fleet_entry_equals(e, &w->entry)))
            cot_gateway_remove_worker(w);
    }
    for (size_t i = 0; i < fleet->count; i++) {
        if (cot_gateway_find_worker(g, fleet->entry[i].name)) continue;
        const cot_status status = cot_gateway_add_worker(g, &fleet->entry[i], true, first ? NULL : error);
        if (first == COT_OK) first = status;
    }
    return first;
}

static cot_status read_file(cot_gateway *g, cot_error *error)
{
    char *text;
    size_t bytes;
    cot_fleet fleet;
    stamp_of(g->file_stamp, g->options.file);
    cot_status status = cot_file_read(&text, &bytes, g->options.file, MOST_FILE_BYTES, error);
    if (status != COT_OK) return status;
    status = cot_fleet_read(&fleet, text, bytes, g->options.file, error);
    free(text);
    if (status != COT_OK) return status;
    status = check_names(g, &fleet, error);
    if (status == COT_OK) status = apply(g, &fleet, error);
    cot_fleet_free(&fleet);
    return status;
}

static void look_at_file(cot_gateway *g)
{
    char stamp[96];
    cot_error error;
    if (!g->options.file) return;
    stamp_of(stamp, g->options.file);
    if (!strcmp(stamp, g->file_stamp)) return;
    if (read_file(g, &error) == COT_OK)
        cot_access_tell(&g->access, COT_LOG_INFO, "'%s' was read again: %zu workers", g->options.file,
                        cot_gateway_workers(g));
    else
        cot_access_tell(&g->access, COT_LOG_ERROR, "workers stay as they were: %s", error.message);
}

size_t cot_gateway_workers(const cot_gateway *g)
{
    size_t count = 0;
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) count += w->listed;
    return count;
}

/* ---- time ---- */

static void on_second(evutil_socket_t descriptor, short what, void *context)
{
    cot_gateway *g = context;
    (void)descriptor, (void)what;
    const int64_t now_ns = cot_now_ns(), second_ns = 1000000000;
    const int64_t late_ns = g->ticked_ns ? now_ns - g->ticked_ns - second_ns : 0;
    g->ticked_ns = now_ns;
    if (late_ns > 0) { // the gateway stood still itself, and could hear nobody
        cot_gateway_excuse_workers(g, now_ns, late_ns);
        cot_gateway_excuse_peers(g, now_ns, late_ns);
    }
    look_at_file(g);
    cot_gateway_tick_workers(g, cot_now_ns());
    cot_gateway_tick_experts(g);
    cot_gateway_tick_peers(g, cot_now_ns());
}

static void on_watch(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what;
    cot_gateway_take_reports(context);
    cot_relay_watch(context, cot_now_ns());
}

/* ---- the end ---- */

void cot_gateway_check_rest(cot_gateway *g)
{
    if (!g->ending.heard || g->relays || g->ending.is_over) return;
    cot_http_server_stop_accepting(g->http);
    cot_access_ending_finish(&g->ending, g->http);
}

static void check_rest(void *context)
{
    cot_gateway_check_rest(context);
}

static void cut(void *context)
{
    cot_relay_abort_all(context);
}

static void hear_reload(void *context, uint64_t calls)
{
    (void)calls;
    cot_gateway *g = context;
    cot_access_reload(&g->access);
    for (size_t i = 0; i < g->discoveries; i++) cot_discovery_ask(g->discovery[i]);
}

void cot_gateway_stop(cot_gateway *g)
{
    cot_access_ending_ask(&g->ending);
}

void cot_gateway_reload(cot_gateway *g)
{
    cot_wake_up(&g->reload);
}

/* ---- opening ---- */

static bool copy_text(const char **text)
{
    return !*text || (*text = strdup(*text)) != NULL;
}

static cot_status copy_options(cot_gateway *g, const cot_gateway_options *options, cot_error *error)
{
    cot_gateway_options *o = &g->options;
    *o = *options;
    o->access = (cot_access_options){0};
    o->urls = o->peers = NULL; // workers and peers have them
    o->peer_endpoint = NULL;
    const bool good = copy_text(&o->file) & copy_text(&o->worker_key) & cot_access_list_copy(&o->admin_keys) &
                      copy_text(&o->worker_ca_certs) & copy_text(&o->signature_tables);
    if (!good) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gateway");
    const cot_route_scales *s = &o->scales;
    if (!(s->kv >= 0 && s->experts >= 0 && s->load >= 0 && s->kv + s->experts + s->load < HUGE_VAL))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a scale of the router's terms is below 0, or no number");
    if (o->batch_us < 0 || o->batch_us > MOST_BATCH_US || o->stall_ms < 1 || o->shutdown_ms < 0 ||
        o->policy >= COT_ROUTE_POLICIES || o->block_tokens < 0 || o->block_tokens > 65536)
        return cot_fail(error, COT_INVALID_ARGUMENT, "an option of a gateway is out of its range");
    return cot_access_open(&g->access, &options->access, error);
}

static cot_status start_events(cot_gateway *g, cot_error *error)
{
    g->base = cot_wake_base_open();
    g->zmq = cot_publisher_context_open();
    const bool hears =
        g->base && g->zmq &&
        cot_access_ending_open(&g->ending, &g->access, g->base, g->options.shutdown_ms, check_rest, cut, g) &&
        cot_wake_open(&g->reload, g->base, hear_reload, g);
    if (hears) {
        g->on_second = event_new(g->base, -1, EV_PERSIST, on_second, g);
        g->on_watch = event_new(g->base, -1, EV_PERSIST, on_watch, g);
    }
    if (!hears || !g->on_second || !g->on_watch)
        return cot_fail(error, COT_IO, "cannot start the gateway's loop");
    event_add(g->on_second, &(struct timeval){.tv_sec = 1});
    event_add(g->on_watch, &(struct timeval){.tv_usec = WATCH_MS * 1000});
    return COT_OK;
}

static cot_status open_figures(cot_gateway_figures *f, cot_error *error)
{
    static const double bounds[] = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3};
    enum { BUCKETS = sizeof bounds / sizeof *bounds };
    for (size_t i = 0; i < COT_STAGES; i++) {
        f->stage[i] = (cot_prometheus_histogram){bounds, calloc(BUCKETS + 1, sizeof(uint64_t)), BUCKETS, 0};
        if (!f->stage[i].counts) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gateway");
    }
    return COT_OK;
}

cot_status cot_gateway_open(cot_gateway **gateway, const cot_gateway_options *options, cot_error *error)
{
    *gateway = NULL;
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "gateway options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    cot_gateway *g = calloc(1, sizeof *g);
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gateway");
    g->reload.fd = -1;
    cot_status status = copy_options(g, options, error);
    if (status == COT_OK) status = open_figures(&g->figures, error);
    if (status == COT_OK) status = cot_gateway_open_tables(g, error);
    if (status == COT_OK) status = start_events(g, error);
    for (const char *const *url = options->urls; url && *url && status == COT_OK; url++)
        status = add_url(g, *url, error);
    if (status == COT_OK && g->options.file) status = read_file(g, error);
    if (status == COT_OK) status = cot_gateway_open_peers(g, options, error);
    if (status == COT_OK) {
        const cot_http_server_options http = cot_access_http_options(&g->access);
        status = cot_http_server_open(&g->http, g->base, &http, &cot_gateway_routes, g, error);
    }
    if (status == COT_OK)
        *gateway = g;
    else
        cot_gateway_close(g);
    return status;
}

int cot_gateway_port(const cot_gateway *g)
{
    return cot_http_server_port(g->http);
}

cot_status cot_gateway_run(cot_gateway *g, cot_error *error)
{
    return event_base_dispatch(g->base) < 0 ? cot_fail(error, COT_IO, "the gateway's loop failed") : COT_OK;
}

void cot_gateway_close(cot_gateway *g)
{
    if (!g) return;
    g->ending.is_over = true;       // nothing is left to end
    cot_http_server_close(g->http); // every relay is gone
    for (size_t i = 0; i < g->discoveries; i++) cot_discovery_close(g->discovery[i]);
    cot_gateway_close_peers(g);
    cot_gateway_free_workers(g);
    cot_tls_close(g->tls);
    cot_route_signatures_close(g->signatures);
    cot_gateway_close_tables(g);
    free(g->model_hash);
    cot_route_book_close(g->book);
    cot_route_index_close(g->index);
    struct event *const events[] = {g->on_second, g->on_watch, g->on_window};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) event_free(events[i]);
    cot_access_ending_close(&g->ending);
    cot_wake_close(&g->reload);
    cot_publisher_context_close(g->zmq);
    cot_access_close(&g->access);
    if (g->base) event_base_free(g->base);
    for (size_t i = 0; i < COT_STAGES; i++) free(g->figures.stage[i].counts);
    cot_access_list_free(g->options.admin_keys);
    free((char *)g->options.file);
    free((char *)g->options.worker_key);
    free((char *)g->options.worker_ca_certs);
    free((char *)g->options.signature_tables);
    free(g);
}
