/* GET /kv_events/snapshot: clients wait until the engine's thread has come round. */
#include "server/access.h"
#include "server/server_state.h"

static void refuse_one(cot_server *s, cot_http_exchange *exchange, int status, const char *code,
                       const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_server_refuse(s, exchange, &error);
}

static void attend(void *context)
{
    cot_server *s = context;
    s->backend->table->attend(s->backend);
}

static void answer_all(cot_server *s, const void *bytes, size_t count)
{
    for (cot_http_exchange *exchange; (exchange = cot_server_take_waiting(s, COT_WAITING_SNAPSHOT));)
        if (bytes)
            cot_server_reply(s, exchange, 200, NULL, "application/msgpack", bytes, count);
        else
            refuse_one(s, exchange, 503, "unavailable", "no snapshot of the KV cache is to be had now");
}

static void on_snapshot(void *context, const void *bytes, size_t count)
{
    answer_all(context, bytes, count);
}

cot_kv_events_owner cot_server_kv_events_owner(cot_server *s)
{
    return (cot_kv_events_owner){s, attend, on_snapshot};
}

void cot_server_send_snapshot(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    const bool keyed = s->options.api_keys && *s->options.api_keys;
    if (!s->kv)
        refuse_one(s, exchange, 404, "not_found",
                   "events of the KV cache are not published: --kv-events-config");
    else if (!keyed && !cot_access_is_loopback(s->options.host) && !s->options.kv_events_no_auth)
        refuse_one(s, exchange, 403, "needs_a_key",
                   "a snapshot tells what is in prompts: the server needs a key, or --kv-events-no-auth");
    else if (state.failed || !cot_server_wait(s, COT_WAITING_SNAPSHOT, exchange))
        refuse_one(s, exchange, 503, "unavailable", "no snapshot of the KV cache is to be had now");
    else
        cot_kv_events_ask(s->kv);
}

void cot_server_fail_snapshots(cot_server *s)
{
    answer_all(s, NULL, 0);
}
