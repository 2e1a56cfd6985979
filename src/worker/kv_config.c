#include "worker/kv_config.h"

#include "base/error.h"

#include <jansson.h>
#include <string.h>

static cot_status mistaken(cot_error *error, const char *name, const char *expected)
{
    return cot_fail(error, COT_INVALID_ARGUMENT, "--kv-events-config: '%s' is not %s", name, expected);
}

/* ---- members ---- */

typedef struct reader {
    cot_kv_config *config;
    bool enable, published, is_published_given;
} reader;

static cot_status read_count(int64_t *out, const json_t *value, const char *name, cot_error *error)
{
    enum { MOST = 1000000 };
    const json_int_t count = json_integer_value(value);
    if (!json_is_integer(value) || count < 1 || count > MOST)
        return mistaken(error, name, "a whole number of 1 to 1000000");
    *out = count;
    return COT_OK;
}

static cot_status read_place(cot_endpoint *out, const json_t *value, const char *name, cot_error *error)
{
    if (json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value) &&
        cot_endpoint_read(out, json_string_value(value)))
        return COT_OK;
    return mistaken(error, name,
                    "\"tcp://ADDRESS:PORT\" (an address in numbers, localhost, or * for all of them)");
}

static cot_status read_topic(char topic[256], const json_t *value, cot_error *error)
{
    if (!json_is_string(value) || json_string_length(value) > 255 ||
        strlen(json_string_value(value)) != json_string_length(value))
        return mistaken(error, "topic", "a text of at most 255 bytes");
    memcpy(topic, json_string_value(value), json_string_length(value) + 1);
    return COT_OK;
}

static cot_status read_publisher(reader *r, const json_t *value, cot_error *error)
{
    const char *name = json_string_value(value);
    if (!name || (strcmp(name, "zmq") != 0 && strcmp(name, "null") != 0))
        return mistaken(error, "publisher", "\"zmq\" or \"null\"");
    r->is_published_given = true;
    r->published = strcmp(name, "zmq") == 0;
    return COT_OK;
}

static cot_status read_member(reader *r, const char *name, const json_t *value, cot_error *error)
{
    cot_kv_config *c = r->config;
    if (json_is_null(value)) return COT_OK; // as if it were not there
    if (strcmp(name, "publisher") == 0) return read_publisher(r, value, error);
    if (strcmp(name, "endpoint") == 0) return read_place(&c->endpoint, value, name, error);
    if (strcmp(name, "replay_endpoint") == 0) return read_place(&c->replay_endpoint, value, name, error);
    if (strcmp(name, "topic") == 0) return read_topic(c->topic, value, error);
    if (strcmp(name, "buffer_steps") == 0) return read_count(&c->buffer_steps, value, name, error);
    if (strcmp(name, "hwm") == 0) return read_count(&c->hwm, value, name, error);
    if (strcmp(name, "max_queue_size") == 0) return read_count(&c->max_queue_size, value, name, error);
    if (strcmp(name, "enable_kv_cache_events") == 0) {
        if (!json_is_boolean(value)) return mistaken(error, name, "true or false");
        r->enable = json_is_true(value);
        return COT_OK;
    }
    return cot_fail(
        error, COT_INVALID_ARGUMENT,
        "--kv-events-config: there is no '%.64s'; there are enable_kv_cache_events, publisher, endpoint, "
        "replay_endpoint, topic, buffer_steps, hwm, max_queue_size",
        name);
}

cot_status cot_kv_config_read(cot_kv_config *c, const char *json, cot_error *error)
{
    *c = (cot_kv_config){
        .endpoint = {"127.0.0.1", 5557}, .buffer_steps = 10000, .hwm = 10000, .max_queue_size = 16384};
    if (!json) return COT_OK;
    json_error_t why;
    json_t *object = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(object)) {
        const cot_status status =
            cot_fail(error, COT_INVALID_ARGUMENT, "--kv-events-config is no JSON object: %s",
                     object ? "it is another value" : why.text);
        json_decref(object);
        return status;
    }
    reader r = {.config = c};
    cot_status status = COT_OK;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        status = read_member(&r, name, value, error);
        if (status != COT_OK) break;
    }
    json_decref(object);
    c->enabled = r.enable && (r.published || !r.is_published_given);
    return status;
}

/* ---- ports ---- */

cot_status cot_kv_config_check(const cot_kv_config *c, int ranks, int http_port, bool no_auth,
                               cot_error *error)
{
    const struct {
        const char *name;
        const cot_endpoint *at;
    } both[] = {{"endpoint", &c->endpoint}, {"replay_endpoint", &c->replay_endpoint}};
    if (!c->enabled) return COT_OK;
    for (size_t i = 0; i < 2; i++) {
        const cot_endpoint *at = both[i].at;
        if (!*at->address) continue;
        if (!cot_endpoint_is_own(at) && !no_auth)
            return cot_fail(
                error, COT_INVALID_ARGUMENT,
                "--kv-events-config: '%s' at %s can be reached from other machines, and events tell what is "
                "in prompts: say --kv-events-no-auth if everybody may read them",
                both[i].name, at->address);
        if (at->port + ranks - 1 > 65535)
            return cot_fail(
                error, COT_INVALID_ARGUMENT,
                "--kv-events-config: '%s' leaves no port for rank %d: ranks take %d and those behind it",
                both[i].name, ranks - 1, at->port);
        if (http_port && cot_ports_overlap(at->port, ranks, http_port, 1))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "--kv-events-config: '%s' takes the server's own port %d (rank r: port %d + r)",
                            both[i].name, http_port, at->port);
    }
    if (*c->replay_endpoint.address &&
        cot_ports_overlap(c->endpoint.port, ranks, c->replay_endpoint.port, ranks))
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "--kv-events-config: 'replay_endpoint' is too near to 'endpoint': %d rank%s take ports %d to %d "
            "and %d to %d",
            ranks, ranks == 1 ? "" : "s", c->endpoint.port, c->endpoint.port + ranks - 1,
            c->replay_endpoint.port, c->replay_endpoint.port + ranks - 1);
    return COT_OK;
}

cot_status cot_kv_config_read_beside(cot_endpoint *e, const char *option, const char *text,
                                     const cot_kv_config *kv, int homes, int http_port,
                                     const cot_endpoint *other, bool no_auth, cot_error *error)
{
    *e = (cot_endpoint){0};
    if (!text) return COT_OK;
    if (!cot_endpoint_read(e, text))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%s is not tcp://ADDRESS:PORT (an address in numbers, localhost, or * "
                        "for all of them)",
                        option);
    if (!cot_endpoint_is_own(e) && !no_auth)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%s: %s can be reached from other machines, and nobody is asked for a "
                        "key there: say --kv-events-no-auth if everybody may read what is published",
                        option, e->address);
    const bool collides =
        e->port == http_port || (other && *other->address && other->port == e->port) ||
        (kv->enabled &&
         (cot_ports_overlap(kv->endpoint.port, homes, e->port, 1) ||
          (*kv->replay_endpoint.address && cot_ports_overlap(kv->replay_endpoint.port, homes, e->port, 1))));
    if (!collides) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s: port %d is the server's own, or one of %s", option,
                    e->port, other ? "--kv-events-config or --step-reports-endpoint" : "--kv-events-config");
}
