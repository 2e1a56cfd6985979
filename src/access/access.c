#include "access/access.h"

#include "base/error.h"
#include "net/tls.h"
#include "worker/endpoint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void cot_access_options_init(cot_access_options *options)
{
    *options = (cot_access_options){
        .host = "127.0.0.1", .port = 8000, .max_connections = 4096, .log_level = COT_LOG_INFO};
}

/* ---- opening ---- */

static cot_status open_tls(struct cot_tls **tls, const cot_access_options *o, cot_error *error)
{
    const cot_tls_options options = {o->ssl_certfile, o->ssl_keyfile, o->ssl_ca_certs,
                                     (cot_tls_clients)o->ssl_cert_reqs};
    *tls = NULL;
    if (o->ssl_certfile) return cot_tls_open(tls, &options, error);
    if (!o->ssl_keyfile && !o->ssl_ca_certs && !o->ssl_cert_reqs) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "there is no TLS without a certificate: --ssl-certfile");
}

static cot_status check_range(const char *name, int64_t value, int64_t least, int64_t most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is not in [%lld, %lld]", name, (long long)value,
                    (long long)least, (long long)most);
}

static cot_status check_rules(const cot_access_options *o, cot_error *error)
{
    cot_status status = check_range("port", o->port, 0, 65535, error);
    if (status == COT_OK) status = check_range("max connections", o->max_connections, 1, 65536, error);
    if (status == COT_OK) status = check_range("requirement of certificates", o->ssl_cert_reqs, 0, 2, error);
    if (status != COT_OK) return status;
    for (const char *const *key = o->api_keys; key && *key; key++)
        if (!**key) return cot_fail(error, COT_INVALID_ARGUMENT, "an API key is empty");
    if (cot_endpoint_is_loopback(o->host) || (o->api_keys && *o->api_keys) || o->no_auth) return COT_OK;
    return cot_fail(
        error, COT_INVALID_ARGUMENT,
        "'%s' can be reached from other machines: give an API key, or say --no-auth if everybody may call",
        o->host);
}

cot_status cot_access_check_options(const cot_access_options *o, cot_error *error)
{
    struct cot_tls *tls = NULL;
    cot_status status = check_rules(o, error);
    if (status == COT_OK) status = open_tls(&tls, o, error);
    cot_tls_close(tls);
    return status;
}

bool cot_access_list_copy(const char *const **list)
{
    const char *const *from = *list;
    size_t count = 0;
    *list = NULL;
    while (from && from[count]) count++;
    if (!from) return true;
    char **copy = calloc(count + 1, sizeof *copy);
    *list = (const char *const *)copy;
    for (size_t i = 0; copy && i < count; i++)
        if (!(copy[i] = strdup(from[i]))) return false;
    return copy;
}

void cot_access_list_free(const char *const *list)
{
    for (const char *const *text = list; text && *text; text++) free((char *)*text);
    free((void *)list);
}

cot_status cot_access_open(cot_access *access, const cot_access_options *options, cot_error *error)
{
    *access = (cot_access){.options = *options};
    cot_access_options *o = &access->options;
    const bool good = ((o->host = strdup(options->host)) != NULL) & cot_access_list_copy(&o->api_keys) &
                      cot_access_list_copy(&o->allowed_hosts) & cot_access_list_copy(&o->allowed_origins);
    cot_status status =
        good ? check_rules(options, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a server");
    if (status == COT_OK) status = open_tls(&access->tls, options, error);
    if (status == COT_OK && options->access_log)
        status = cot_access_log_open(&access->access_log, options->access_log, error);
    o->access_log = o->ssl_certfile = o->ssl_keyfile = o->ssl_ca_certs = NULL; // the caller's
    return status;
}

void cot_access_close(cot_access *access)
{
    cot_access_log_close(access->access_log);
    cot_tls_close(access->tls);
    cot_access_list_free(access->options.api_keys);
    cot_access_list_free(access->options.allowed_hosts);
    cot_access_list_free(access->options.allowed_origins);
    free((char *)access->options.host);
    *access = (cot_access){0};
}

void cot_access_reload(cot_access *access)
{
    cot_error error;
    if (access->tls && cot_tls_reload(access->tls, &error) != COT_OK)
        cot_access_tell(access, COT_LOG_ERROR, "the certificate stays as it was: %s", error.message);
    else if (access->tls)
        cot_access_tell(access, COT_LOG_INFO, "the certificate was read again");
    if (access->access_log && cot_access_log_reopen(access->access_log, &error) != COT_OK)
        cot_access_tell(access, COT_LOG_ERROR, "the access log stays as it was: %s", error.message);
}

cot_http_server_options cot_access_http_options(const cot_access *access)
{
    return (cot_http_server_options){.tls = access->tls,
                                     .host = access->options.host,
                                     .port = (uint16_t)access->options.port,
                                     .max_connections = (size_t)access->options.max_connections};
}

void cot_access_tell(const cot_access *access, cot_log_level level, const char *format, ...)
{
    const cot_access_options *o = &access->options;
    char line[1024];
    va_list values;
    if (!o->log || level > o->log_level) return;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    o->log(o->log_context, line);
}

/* ---- who may call ---- */

/* In a time that depends on the length of what was sent alone. */
static bool is_same(const char *sent, const char *key)
{
    const size_t n = strlen(sent), m = strlen(key);
    volatile unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char)(sent[i] ^ key[m ? i % m : 0]);
    return !differs;
}

bool cot_access_has_key(const char *const *keys, const cot_http_exchange *exchange)
{
    const char *field = cot_http_header(exchange, "Authorization");
    if (!field)
        field = cot_http_header(exchange, "X-Api-Key");
    else if (strncasecmp(field, "Bearer ", 7) == 0)
        field += 7;
    else
        return false;
    if (!field) return false;
    while (*field == ' ') field++;
    bool found = false;
    for (const char *const *key = keys; key && *key; key++) found |= is_same(field, *key);
    return found;
}

/* The name of "name:port", "[::1]:port". */
static size_t name_length(const char *host)
{
    if (*host == '[') {
        const char *end = strchr(host, ']');
        return end ? (size_t)(end - host) + 1 : strlen(host);
    }
    return strcspn(host, ":");
}

static bool is_named(const char *host, const char *name)
{
    return strlen(name) == name_length(host) && strncasecmp(host, name, strlen(name)) == 0;
}

/* A page on the web can have its own name resolve to this machine; its browser then sends that name. */
static bool is_allowed_host(const cot_access_options *o, const cot_http_exchange *exchange)
{
    const char *host = cot_http_host(exchange);
    static const char *const own[] = {"localhost", "127.0.0.1", "[::1]", NULL};
    if (!*host || is_named(host, o->host)) return true;
    for (const char *const *name = own; *name; name++)
        if (is_named(host, *name)) return true;
    for (const char *const *name = o->allowed_hosts; name && *name; name++)
        if (is_named(host, *name) || strcmp(*name, "*") == 0) return true;
    return false;
}

const char *cot_access_origin(const cot_access_options *o, const cot_http_exchange *exchange)
{
    const char *origin = cot_http_header(exchange, "Origin");
    if (!origin) return NULL;
    for (const char *const *allowed = o->allowed_origins; allowed && *allowed; allowed++)
        if (strcasecmp(*allowed, origin) == 0 || strcmp(*allowed, "*") == 0) return origin;
    return NULL;
}

bool cot_access_check(const cot_access_options *o, const cot_http_exchange *exchange, cot_api_error *error)
{
    const char *const path = cot_http_path(exchange);
    const bool keys = o->api_keys && *o->api_keys, for_all = !strcmp(path, "/health") || !strcmp(path, "/");
    if (!keys && cot_endpoint_is_loopback(o->host) && !is_allowed_host(o, exchange))
        return cot_api_fail(
            error, 403, "host_not_allowed", "Host",
            "the host '%s' is not served here: --allowed-hosts names further ones, or a proxy hands on "
            "the client's (nginx: proxy_set_header Host $http_host)",
            cot_http_host(exchange));
    if (keys && !for_all &&
        !(strcmp(cot_http_method(exchange), "OPTIONS") == 0 && cot_access_origin(o, exchange)) &&
        !cot_access_has_key(o->api_keys, exchange))
        return cot_api_fail(error, 401, "invalid_api_key", NULL,
                            "a valid API key is needed: Authorization: Bearer KEY");
    return true;
}

bool cot_access_is_json(const char *type)
{
    static const char json[] = "application/json";
    const size_t n = sizeof json - 1;
    return type && strncasecmp(type, json, n) == 0 && (!type[n] || type[n] == ';' || type[n] == ' ');
}

bool cot_access_answer_preflight(const cot_access_options *o, cot_http_exchange *exchange)
{
    const char *const origin = cot_access_origin(o, exchange);
    if (strcmp(cot_http_method(exchange), "OPTIONS") != 0 || !origin) return false;
    const char *asked = cot_http_header(exchange, "Access-Control-Request-Headers");
    const cot_http_field fields[] = {
        {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
        {"Access-Control-Allow-Headers", asked ? asked : "content-type, authorization"},
        {"Access-Control-Max-Age", "600"},
        {"Access-Control-Allow-Origin", origin},
        {"Vary", "Origin"}};
    cot_http_reply(exchange, 204, NULL, fields, sizeof fields / sizeof *fields, NULL, 0);
    return true;
}

/* ---- answers ---- */

size_t cot_access_fields(const cot_access_options *o, const cot_http_exchange *exchange,
                         cot_http_field fields[COT_ACCESS_FIELDS], const char *request_id)
{
    size_t n = 0;
    const char *origin = cot_access_origin(o, exchange);
    if (!request_id) request_id = cot_http_header(exchange, "X-Request-Id");
    if (request_id && strlen(request_id) <= 128) fields[n++] = (cot_http_field){"X-Request-Id", request_id};
    if (origin) {
        fields[n++] = (cot_http_field){"Access-Control-Allow-Origin", origin};
        fields[n++] = (cot_http_field){"Vary", "Origin"};
    }
    return n;
}

void cot_access_reply(const cot_access_options *o, cot_http_exchange *exchange, const cot_access_head *head,
                      const void *body, size_t bytes)
{
    cot_http_field fields[COT_ACCESS_FIELDS];
    size_t n = cot_access_fields(o, exchange, fields, head->request_id);
    if (head->retry_after) fields[n++] = (cot_http_field){"Retry-After", head->retry_after};
    if (head->status == 401) fields[n++] = (cot_http_field){"WWW-Authenticate", "Bearer"};
    // the openai client takes every 5xx for an accident and comes again, unless it is told this
    if (head->is_final) fields[n++] = (cot_http_field){"X-Should-Retry", "false"};
    cot_http_reply(exchange, head->status, head->type, fields, n, body, bytes);
}

void cot_access_reply_page(cot_http_exchange *exchange, const char *page, size_t bytes)
{
    static const cot_http_field fields[] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
         "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"}};
    cot_http_reply(exchange, 200, "text/html; charset=utf-8", fields, sizeof fields / sizeof *fields, page,
                   bytes);
}

void cot_access_note_over(const cot_access *access, const cot_http_exchange *exchange,
                          const cot_http_outcome *outcome)
{
    if (access->access_log &&
        !cot_access_log_write(access->access_log, access->options.log_level, exchange, outcome))
        cot_access_tell(access, COT_LOG_ERROR, "the access log cannot be written: %s", strerror(errno));
}

size_t cot_access_error_body(void *context, int status, const char *message, char *out, size_t room)
{
    cot_api_error error;
    (void)context;
    cot_api_fail(&error, status, NULL, NULL, "%s", message);
    json_t *json = cot_api_error_json(&error);
    const size_t bytes = json ? json_dumpb(json, out, room, JSON_COMPACT) : 0;
    json_decref(json);
    return bytes <= room ? bytes : 0;
}
