/* Which path does what: the gateway's own are few, those of the API are some worker's. */
#include "access/api_json.h"
#include "base/error.h"
#include "gateway/gateway_state.h"
#include "gateway/page/page.h"
#include "worker/endpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reply_error(cot_gateway *g, cot_http_exchange *exchange, int status, const char *code,
                        const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_gateway_refuse(g, exchange, &error);
}

/* ---- the gateway's own ---- */

static void show_health(cot_gateway *g, cot_http_exchange *exchange)
{
    bool any = false;
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        any |= w->listed && w->state == COT_GATEWAY_UP;
    if (g->ending.heard)
        reply_error(g, exchange, 503, "shutting_down", "the router is shutting down");
    else if (!any)
        reply_error(g, exchange, 503, "no_worker", "no worker can be reached");
    else
        cot_access_reply(&g->access.options, exchange, &(cot_access_head){.status = 200}, "", 0);
}

static void show_metrics(cot_gateway *g, cot_http_exchange *exchange)
{
    cot_prometheus out = {0};
    cot_gateway_write_figures(g, &out);
    const cot_access_head head = {.status = out.failed ? 503 : 200, .type = COT_PROMETHEUS_TYPE};
    cot_access_reply(&g->access.options, exchange, &head, out.failed ? "" : out.text.data,
                     out.failed ? 0 : out.text.bytes);
    cot_prometheus_free(&out);
}

static void show_workers(cot_gateway *g, cot_http_exchange *exchange)
{
    json_t *list = json_array();
    for (const cot_gateway_worker *w = g->workers; w && list; w = w->next) {
        if (!w->listed || !json_array_append_new(list, cot_gateway_worker_json(w))) continue;
        json_decref(list); // rather none than a list without one
        list = NULL;
    }
    cot_gateway_reply_json(g, exchange, 200,
                           json_pack("{s:s, s:I, s:o}", "policy", cot_route_policy_names[g->options.policy],
                                     "block_size", (json_int_t)g->block_tokens, "workers", list));
}

static void show_decisions(cot_gateway *g, cot_http_exchange *exchange)
{
    json_t *list = cot_decisions_json(&g->decisions);
    cot_gateway_reply_json(
        g, exchange, 200,
        list ? json_pack("{s:s, s:o}", "policy", cot_route_policy_names[g->options.policy], "decisions", list)
             : NULL);
}

static void show_experts(cot_gateway *g, cot_http_exchange *exchange)
{
    cot_gateway_reply_json(g, exchange, 200, cot_gateway_heat_json(g));
}

static void show_page(cot_gateway *g, cot_http_exchange *exchange)
{
    (void)g;
    cot_access_reply_page(exchange, cot_gateway_page, cot_gateway_page_bytes);
}

/* A worker that a request names. */
static void add_worker(cot_gateway *g, cot_http_exchange *exchange)
{
    size_t bytes;
    const char *body = cot_http_body(exchange, &bytes);
    cot_api_error refusal = {0};
    cot_fleet_entry entry;
    cot_error error;
    json_t *json = cot_api_read_json(body, bytes, 1 << 20, &refusal);
    if (json && json_object_get(json, "key_file")) // a file of this machine is nothing to send to a stranger
        cot_api_fail(&refusal, 400, "unsupported_parameter", "key_file",
                     "'key_file' is taken from the file of workers alone");
    else if (json && cot_fleet_read_entry(&entry, json, "the worker", &error) != COT_OK)
        cot_api_fail_of(&refusal, 400, NULL, &error);
    else if (json && cot_gateway_find_worker(g, entry.name)) {
        cot_api_fail(&refusal, 409, "exists", "name", "there is a worker '%s' already", entry.name);
        cot_fleet_entry_free(&entry);
    } else if (json && cot_gateway_add_worker(g, &entry, false, &error) != COT_OK)
        cot_api_fail_of(&refusal, 400, NULL, &error);
    json_decref(json);
    if (refusal.http_status)
        cot_gateway_refuse(g, exchange, &refusal);
    else
        show_workers(g, exchange);
}

static const char workers_prefix[] = "/workers/";

/* POST /workers/NAME/drain, and /undrain. */
static void change_worker(cot_gateway *g, cot_http_exchange *exchange)
{
    const char *name = cot_http_path(exchange) + sizeof workers_prefix - 1, *verb = strrchr(name, '/');
    char own[256];
    snprintf(own, sizeof own, "%.*s", verb ? (int)(verb - name) : 0, name);
    cot_gateway_worker *w = cot_gateway_find_worker(g, own);
    if (!w || (strcmp(verb, "/drain") != 0 && strcmp(verb, "/undrain") != 0)) {
        reply_error(g, exchange, 404, "not_found",
                    "there is no such worker; POST /workers/NAME/drain and /workers/NAME/undrain are taken");
        return;
    }
    cot_gateway_drain_worker(w, !strcmp(verb, "/drain"));
    cot_gateway_reply_json(g, exchange, 200, cot_gateway_worker_json(w));
}

/* ---- where requests go ---- */

static const struct route {
    const char *path, *method; // a path that ends in a slash stands for all that begin with it, but for "/"
    void (*run)(cot_gateway *gateway, cot_http_exchange *exchange);
} routes[] = {
    {"/health", "GET", show_health},         {"/metrics", "GET", show_metrics},
    {"/workers", "GET", show_workers},       {"/workers", "POST", add_worker},
    {workers_prefix, "POST", change_worker}, {"/decisions", "GET", show_decisions},
    {"/experts", "GET", show_experts},       {"/", "GET", show_page},
};

static bool is_at(const struct route *route, const char *path)
{
    const size_t n = strlen(route->path);
    return n > 1 && route->path[n - 1] == '/' ? !strncmp(path, route->path, n) : !strcmp(path, route->path);
}

/* The gateway's own route; NULL: none has this path, or, where *taken, none this method. */
static const struct route *find_route(const cot_http_exchange *exchange, bool *is_own)
{
    const char *path = cot_http_path(exchange), *method = cot_http_method(exchange);
    if (!strcmp(method, "HEAD")) method = "GET";
    *is_own = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!is_at(&routes[i], path)) continue;
        *is_own = true;
        if (!strcmp(routes[i].method, method)) return &routes[i];
    }
    return NULL;
}

/* Whether workers are asked for this. Their other paths are for who runs them: some tell what is in others' prompts, and clients would
 * get it by the router's key. */
static bool is_of_workers(const char *path)
{
    static const char *const others[] = {"/tokenize", "/detokenize", "/version"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(path, others[i])) return true;
    return !strncmp(path, "/v1/", 4);
}

/* Whether who asks may change the list of workers: with a key for that; where no keys are asked for at all, from this machine. */
static bool may_administer(const cot_gateway *g, const cot_http_exchange *exchange)
{
    const cot_access_options *o = &g->access.options;
    if (g->options.admin_keys && *g->options.admin_keys)
        return cot_access_has_key(g->options.admin_keys, exchange);
    return !(o->api_keys && *o->api_keys) && cot_endpoint_is_loopback(o->host) &&
           cot_http_peer_is_loopback(exchange);
}

static void check(void *context, cot_http_exchange *exchange)
{
    cot_gateway *g = context;
    const cot_access_options *o = &g->access.options;
    cot_api_error error = {0};
    bool is_own;
    const struct route *route = find_route(exchange, &is_own);
    const bool posts = !strcmp(cot_http_method(exchange), "POST"), changes = is_own && posts;
    const bool administers = changes && may_administer(g, exchange);
    cot_http_set_user(exchange, NULL);
    // a key for changes lets its bearer in; nobody else's key does
    if (!(administers && g->options.admin_keys) && !cot_access_check(o, exchange, &error)) {
        cot_gateway_refuse(g, exchange, &error);
        return;
    }
    if (cot_access_answer_preflight(o, exchange)) return;
    if (is_own && !route)
        cot_api_fail(&error, 405, "method_not_allowed", NULL, "'%s' does not take %s",
                     cot_http_path(exchange), cot_http_method(exchange));
    else if (changes && !administers)
        cot_api_fail(&error, 403, "permission_denied", NULL,
                     "workers are changed with a key of --admin-key-file alone");
    else if (!is_own && !is_of_workers(cot_http_path(exchange)))
        cot_api_fail(&error, 404, "not_found", NULL,
                     "nothing is at '%s'; there are /v1/completions, /v1/chat/completions, /v1/models",
                     cot_http_path(exchange));
    else if (posts && !cot_access_is_json(cot_http_header(exchange, "Content-Type")) &&
             (is_own || (!(o->api_keys && *o->api_keys) && cot_http_body_length(exchange) != 0)))
        // without keys, a page on the web could post what is no JSON without asking first
        cot_api_fail(&error, 415, "unsupported_media_type", "Content-Type",
                     "the content type must be application/json (curl -H 'Content-Type: application/json')");
    else if (!is_own && g->ending.heard)
        cot_api_fail(&error, 503, "shutting_down", NULL, "the router is shutting down");
    if (error.http_status) cot_gateway_refuse(g, exchange, &error);
}

static void handle(void *context, cot_http_exchange *exchange)
{
    bool is_own;
    const struct route *route = find_route(exchange, &is_own);
    if (route)
        route->run(context, exchange);
    else
        cot_relay_start(context, exchange);
}

static void gone(void *context, cot_http_exchange *exchange)
{
    cot_relay *relay = cot_http_user(exchange);
    (void)context;
    if (relay) cot_relay_gone(relay);
}

static void over(void *context, const cot_http_exchange *exchange, const cot_http_outcome *outcome)
{
    cot_access_note_over(&((cot_gateway *)context)->access, exchange, outcome);
}

const cot_http_handler cot_gateway_routes = {
    check, handle, gone, over, cot_access_error_body, "application/json"};
