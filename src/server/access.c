#include "server/access.h"

#include "base/error.h"
#include "worker/endpoint.h"

#include <string.h>
#include <strings.h>

cot_status cot_access_check_options(const cot_server_options *o, cot_error *error)
{
    for (const char *const *key = o->api_keys; key && *key; key++)
        if (!**key) return cot_fail(error, COT_INVALID_ARGUMENT, "an API key is empty");
    if (cot_endpoint_is_loopback(o->host) || (o->api_keys && *o->api_keys) || o->no_auth) return COT_OK;
    return cot_fail(
        error, COT_INVALID_ARGUMENT,
        "'%s' can be reached from other machines: give an API key, or say --no-auth if everybody may call",
        o->host);
}

/* In a time that depends on the length of what was sent alone. */
static bool is_same(const char *sent, const char *key)
{
    const size_t n = strlen(sent), m = strlen(key);
    volatile unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char)(sent[i] ^ key[m ? i % m : 0]);
    return !differs;
}

static bool has_key(const cot_server_options *o, const cot_http_exchange *exchange)
{
    const char *field = cot_http_header(exchange, "Authorization");
    if (!field || strncasecmp(field, "Bearer ", 7) != 0) return false;
    field += 7;
    while (*field == ' ') field++;
    bool found = false;
    for (const char *const *key = o->api_keys; *key; key++) found |= is_same(field, *key);
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
static bool is_allowed_host(const cot_server_options *o, const cot_http_exchange *exchange)
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

const char *cot_access_origin(const cot_server_options *o, const cot_http_exchange *exchange)
{
    const char *origin = cot_http_header(exchange, "Origin");
    if (!origin) return NULL;
    for (const char *const *allowed = o->allowed_origins; allowed && *allowed; allowed++)
        if (strcasecmp(*allowed, origin) == 0 || strcmp(*allowed, "*") == 0) return origin;
    return NULL;
}

bool cot_access_check(const cot_server_options *o, const cot_http_exchange *exchange, cot_api_error *error)
{
    const char *const path = cot_http_path(exchange);
    const bool keys = o->api_keys && *o->api_keys, for_all = !strcmp(path, "/health") || !strcmp(path, "/");
    if (!keys && cot_endpoint_is_loopback(o->host) && !is_allowed_host(o, exchange))
        return cot_api_fail(error, 403, "host_not_allowed", "Host",
                            "the host '%s' is not served here: --allowed-hosts names further ones",
                            cot_http_host(exchange));
    if (keys && !for_all &&
        !(strcmp(cot_http_method(exchange), "OPTIONS") == 0 && cot_access_origin(o, exchange)) &&
        !has_key(o, exchange))
        return cot_api_fail(error, 401, "invalid_api_key", NULL,
                            "a valid API key is needed: Authorization: Bearer KEY");
    return true;
}
