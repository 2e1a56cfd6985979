#include "server/routes.h"

#include "coterie/version.h"
#include "net/prometheus.h"
#include "server/answer.h"
#include "server/moves.h"
#include "server/view.h"
#include "server/page/page.h"
#include "server/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <string.h>

/* ---- what is answered at once ---- */

static void show_health(cot_server *s, cot_http_exchange *exchange)
{
    cot_api_error error = {0};
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    if (!state.lives)
        cot_api_fail(&error, 503, "engine_failed", NULL, "the engine has failed");
    else if (s->ending.heard)
        cot_api_fail(&error, 503, "shutting_down", NULL, "the server is shutting down");
    if (error.http_status)
        cot_server_refuse(s, exchange, &error);
    else
        cot_server_reply(s, exchange, 200, NULL, NULL, "", 0);
}

static void show_version(cot_server *s, cot_http_exchange *exchange)
{
    const cot_backend_info *info = s->info;
    cot_server_reply_json(s, exchange, 200,
                          json_pack("{s:s,s:s,s:{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i}}", "version",
                                    cot_version(), "fingerprint", s->model.fingerprint, "engine",
                                    "architecture", info->architecture, "precision", info->precision,
                                    "payload", info->payload, "op", info->op, "combine", info->combine,
                                    "attention", info->attention, "isa", info->isa, "ranks", info->ranks,
                                    "threads", info->threads));
}

static json_t *model_json(const cot_server *s, const char *name)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:s,s:n,s:I,s:s}", "id", name, "object", "model", "created",
                     (json_int_t)s->model.created, "owned_by", "coterie", "root", s->model.names[0], "parent",
                     "max_model_len", (json_int_t)s->model.max_model_len, "fingerprint",
                     s->model.fingerprint);
}

static void list_models(cot_server *s, cot_http_exchange *exchange)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->model.name_count; i++)
        json_array_append_new(list, model_json(s, s->model.names[i]));
    cot_server_reply_json(s, exchange, 200, json_pack("{s:s,s:o}", "object", "list", "data", list));
}

static const char models_prefix[] = "/v1/models/";

static void show_model(cot_server *s, cot_http_exchange *exchange)
{
    const char *name = cot_http_path(exchange) + sizeof models_prefix - 1;
    cot_api_error error;
    for (size_t i = 0; i < s->model.name_count; i++)
        if (strcmp(s->model.names[i], name) == 0) {
            cot_server_reply_json(s, exchange, 200, model_json(s, name));
            return;
        }
    cot_api_fail(&error, 404, "model_not_found", "model", "the model '%s' does not exist; here is '%s'", name,
                 s->model.names[0]);
    cot_server_refuse(s, exchange, &error);
}

static void show_metrics(cot_server *s, cot_http_exchange *exchange)
{
    cot_prometheus out = {0};
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    s->metrics.connections = cot_http_server_connections(s->http);
    s->metrics.dropped_connections = cot_http_server_dropped(s->http);
    const cot_backend_metrics *metrics = s->backend->table->metrics(s->backend);
    cot_metrics_write(&out, &s->metrics, s->info, &state, s->model.names[0], s->running_jobs,
                      s->waiting_jobs);
    const cot_backend_table *table = s->backend->table;
    cot_backend_placement placement = {0};
    const bool placed = !table->placement || table->placement(s->backend, &placement, NULL) == COT_OK;
    if (metrics && placed) cot_metrics_write_backend(&out, metrics, &placement, s->model.names[0]);
    if (table->moves && placement.layers) {
        cot_backend_moves last, all;
        const bool under_way = table->moves(s->backend, &last, &all);
        cot_metrics_write_moves(&out, &all, under_way, &placement, s->model.names[0]);
        cot_backend_rebalancing rebalancing;
        if (table->rebalancing && table->rebalancing(s->backend, &rebalancing))
            cot_metrics_write_rebalancing(&out, &rebalancing, s->model.names[0]);
    }
    cot_backend_placement_free(&placement);
    if (out.failed)
        cot_server_reply_json(s, exchange, 200, NULL);
    else
        cot_server_reply(s, exchange, 200, NULL, COT_PROMETHEUS_TYPE, out.text.data, out.text.bytes);
    cot_prometheus_free(&out);
}

static void show_page(cot_server *s, cot_http_exchange *exchange)
{
    (void)s;
    cot_access_reply_page(exchange, cot_served_page, cot_served_page_bytes);
}

static void show_snapshot(cot_server *s, cot_http_exchange *exchange)
{
    cot_server_send_snapshot(s, exchange);
}

/* A document of the backend's own. */
static const cot_backend_route *find_backend_route(const cot_server *s, const char *path)
{
    for (const cot_backend_route *r = s->backend->table->routes; r && r->path; r++)
        if (strcmp(r->path, path) == 0) return r;
    return NULL;
}

static void show_of_backend(cot_server *s, cot_http_exchange *exchange)
{
    cot_server_reply_json(s, exchange, 200, find_backend_route(s, cot_http_path(exchange))->show(s->backend));
}

/* What only some backends can tell. */
static bool has_placement(const cot_backend_table *table)
{
    return table->placement && table->ask_view;
}

static bool has_moves(const cot_backend_table *table)
{
    return table->moves;
}

static bool has_rebalance(const cot_backend_table *table)
{
    return table->moves && table->rebalance;
}

static bool has_placement_text(const cot_backend_table *table)
{
    return table->write_placement;
}

static bool has_popularity(const cot_backend_table *table)
{
    return table->popularity;
}

static bool has_view(const cot_backend_table *table)
{
    return table->ask_view;
}

static bool has_snapshot(const cot_backend_table *table)
{
    return table->ask_snapshot;
}

static void complete(cot_server *s, cot_http_exchange *exchange)
{
    cot_answer_start(s, exchange, COT_API_COMPLETION);
}

static void chat(cot_server *s, cot_http_exchange *exchange)
{
    cot_answer_start(s, exchange, COT_API_CHAT);
}

static void tokenize(cot_server *s, cot_http_exchange *exchange)
{
    cot_answer_start(s, exchange, COT_API_TOKENIZE);
}

static void detokenize(cot_server *s, cot_http_exchange *exchange)
{
    cot_answer_start(s, exchange, COT_API_DETOKENIZE);
}

/* ---- where requests go ---- */

static const struct route {
    const char *path, *method;
    void (*run)(cot_server *server, cot_http_exchange *exchange);
    bool (*is_there)(const cot_backend_table *table); // NULL: always
} routes[] = {
    {"/v1/completions", "POST", complete, NULL},
    {"/v1/chat/completions", "POST", chat, NULL},
    {"/v1/models", "GET", list_models, NULL},
    {"/tokenize", "POST", tokenize, NULL},
    {"/detokenize", "POST", detokenize, NULL},
    {"/tokenizer_info", "GET", cot_server_show_tokenizer, NULL},
    {"/health", "GET", show_health, NULL},
    {"/metrics", "GET", show_metrics, NULL},
    {"/version", "GET", show_version, NULL},
    {"/worker", "GET", cot_server_show_worker, NULL},
    {"/kv_events/snapshot", "GET", show_snapshot, has_snapshot},
    {"/experts", "GET", cot_server_show_experts, has_placement},
    {"/live", "GET", cot_server_show_live, has_view},
    {"/popularity", "GET", cot_server_show_popularity, has_popularity},
    {"/placement", "GET", cot_server_show_placement, has_placement_text},
    {"/placement", "PUT", cot_server_put_placement, has_moves},
    {"/rebalance", "POST", cot_server_post_rebalance, has_rebalance},
    {COT_REBALANCE_PATH, "GET", cot_server_show_rebalance, has_moves},
    {COT_REBALANCE_PATH, "DELETE", cot_server_cancel_rebalance, has_moves},
    {"/", "GET", show_page, NULL},
    {models_prefix, "GET", show_model,
     NULL}, // a path that ends in a slash, / apart, stands for all that begin with it
};

enum { METHODS = 32 }; // bytes of the names of all that a path takes

static bool is_at(const cot_server *s, const struct route *route, const char *path)
{
    const size_t n = strlen(route->path);
    const bool whole = n == 1 || route->path[n - 1] != '/';
    if (strncmp(path, route->path, n) != 0) return false;
    if (whole && path[n] && (n == 1 || strcmp(path + n, "/") != 0))
        return false; // a slash more does not matter
    return !route->is_there || route->is_there(s->backend->table);
}

static bool has_method(const struct route *route, const char *method)
{
    return strcmp(method, route->method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

/* NULL: nothing takes the method there; `others` [room] are the methods that are taken, "" where nothing is at the path. */
static const struct route *find_route(const cot_server *s, const char *path, const char *method, char *others,
                                      size_t room)
{
    static const struct route of_backend = {NULL, "GET", show_of_backend, NULL};
    const bool own = find_backend_route(s, path);
    size_t used = 0;
    *others = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes + own; i++) {
        const struct route *route = i < sizeof routes / sizeof *routes ? &routes[i] : &of_backend;
        if (route->path && !is_at(s, route, path)) continue;
        if (has_method(route, method)) return route;
        used += (size_t)snprintf(others + used, room - used, "%s%s", used ? " and " : "", route->method);
    }
    return NULL;
}

static bool is_coded(const char *encoding)
{
    return encoding && *encoding && strcasecmp(encoding, "identity") != 0;
}

/* Refuses what can be refused before a body is read. */
static void check(void *context, cot_http_exchange *exchange)
{
    cot_server *s = context;
    cot_api_error error = {0};
    const char *path = cot_http_path(exchange), *method = cot_http_method(exchange);
    char others[METHODS];
    const struct route *route = find_route(s, path, method, others, sizeof others);
    const bool puts = strcmp(method, "PUT") == 0;
    cot_http_set_user(exchange, NULL);
    if (!cot_access_check(&s->access.options, exchange, &error)) {
        cot_server_refuse(s, exchange, &error);
        return;
    }
    if (cot_access_answer_preflight(&s->access.options, exchange)) return;
    if (!route && !*others)
        cot_api_fail(&error, 404, "not_found", NULL,
                     "nothing is at '%s'; there are /v1/completions, /v1/chat/completions, /v1/models", path);
    else if (!route)
        cot_api_fail(&error, 405, "method_not_allowed", NULL, "'%s' takes %s", path, others);
    else if (strcmp(method, "POST") == 0 && !cot_access_is_json(cot_http_header(exchange, "Content-Type")))
        cot_api_fail(&error, 415, "unsupported_media_type", "Content-Type",
                     "the content type must be application/json (curl -H 'Content-Type: application/json')");
    else if (strcmp(method, "POST") == 0 && is_coded(cot_http_header(exchange, "Content-Encoding")))
        cot_api_fail(&error, 415, "unsupported_media_type", "Content-Encoding",
                     "the body is coded ('%.32s'), which is not supported: send it as it is",
                     cot_http_header(exchange, "Content-Encoding"));
    else if (puts && cot_http_body_length(exchange) > COT_PLACEMENT_BYTES)
        cot_api_fail(&error, 413, "request_too_large", NULL, "a placement of more than 8 MiB");
    else if ((puts || strcmp(method, "POST") == 0) && s->ending.heard)
        cot_api_fail(&error, 503, "shutting_down", NULL, "the server is shutting down");
    if (error.http_status) cot_server_refuse(s, exchange, &error);
}

static void handle(void *context, cot_http_exchange *exchange)
{
    char others[METHODS];
    find_route(context, cot_http_path(exchange), cot_http_method(exchange), others, sizeof others)
        ->run(context, exchange);
}

static void gone(void *context, cot_http_exchange *exchange)
{
    cot_answer *answer = cot_http_user(exchange);
    cot_server_forget_waiting(context, exchange);
    if (answer) cot_answer_gone(answer);
}

static void over(void *context, const cot_http_exchange *exchange, const cot_http_outcome *outcome)
{
    const cot_server *s = context;
    cot_access_note_over(&s->access, exchange, outcome);
}

const cot_http_handler cot_routes = {check, handle, gone, over, cot_access_error_body, "application/json"};
