/* GET /kv_events/snapshot: clients wait until the backend has taken one. */
#include "server/server_state.h"

static void refuse_one(cot_server *s, cot_http_exchange *exchange, int status, const char *code,
                       const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_server_refuse(s, exchange, &error);
}

void cot_server_on_snapshot(void *server, const void *bytes, size_t count)
{
    cot_server *s = server;
    for (cot_http_exchange *exchange; (exchange = cot_server_take_waiting(s, COT_WAITING_SNAPSHOT));)
        if (bytes)
            cot_server_reply(s, exchange, 200, NULL, "application/msgpack", bytes, count);
        else
            refuse_one(s, exchange, 503, "unavailable", "no snapshot of the KV cache is to be had now");
}

void cot_server_send_snapshot(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    const bool keyed = s->access.options.api_keys && *s->access.options.api_keys;
    if (!state.publishes_cache)
        refuse_one(s, exchange, 404, "not_found",
                   "events of the KV cache are not published: --kv-events-config");
    else if (!keyed && !cot_endpoint_is_loopback(s->access.options.host) && !s->options.kv_events_no_auth)
        refuse_one(s, exchange, 403, "needs_a_key",
                   "a snapshot tells what is in prompts: the server needs a key, or --kv-events-no-auth");
    else if (state.failed || !cot_server_wait(s, COT_WAITING_SNAPSHOT, exchange))
        refuse_one(s, exchange, 503, "unavailable", "no snapshot of the KV cache is to be had now");
    else
        s->backend->table->ask_snapshot(s->backend);
}
