#include "server/view.h"

#include "server/moves.h"

/* ---- what is shown ---- */

static json_t *numbers(const uint64_t *values, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

/* What every expert of a layer has, replica by replica: ranks, or slots. */
static json_t *of_replicas(const cot_backend_placement *p, int32_t layer, const int32_t *what)
{
    const int32_t *begin = p->begin + (int64_t)layer * (p->experts + 1);
    json_t *list = json_array();
    what += p->first[layer];
    for (int32_t e = 0; e < p->experts; e++) {
        json_t *each = json_array();
        for (int32_t i = begin[e]; i < begin[e + 1]; i++) json_array_append_new(each, json_integer(what[i]));
        json_array_append_new(list, each);
    }
    return list;
}

static json_t *last_moves(const cot_server *s)
{
    cot_backend_moves last, all;
    if (!s->backend->table->moves) return json_null();
    s->backend->table->moves(s->backend, &last, &all);
    return last.id ? cot_server_moves_json(&last) : json_null();
}

static json_t *rebalancing(const cot_server *s)
{
    cot_backend_rebalancing r;
    const bool known = s->backend->table->rebalancing && s->backend->table->rebalancing(s->backend, &r);
    return known ? cot_server_rebalancing_json(&r) : json_null();
}

static json_t *experts(const cot_server *s, const cot_backend_view *view, const cot_backend_metrics *m)
{
    (void)view;
    cot_backend_placement p;
    if (s->backend->table->placement(s->backend, &p, NULL) != COT_OK) return NULL;
    json_t *layers = json_array(), *ranks = json_array(), *slots = json_array(), *calls = json_array();
    for (int32_t l = 0; l < p.layers; l++) {
        json_array_append_new(layers, json_integer(p.layer[l]));
        json_array_append_new(ranks, of_replicas(&p, l, p.rank));
        json_array_append_new(slots, of_replicas(&p, l, p.slot));
        json_array_append_new(calls, numbers(m->calls + (int64_t)l * p.experts, p.experts));
    }
    json_t *shown = json_pack("{s:o,s:I,s:I,s:i,s:i,s:i,s:o,s:o,s:o,s:I,s:o,s:o}", "layers", layers,
                              "experts", (json_int_t)p.experts, "top_k", (json_int_t)p.top_k, "ranks",
                              s->info->ranks, "slots", (int)p.slots, "own_slots", (int)p.own_slots,
                              "ranks_of_experts", ranks, "slots_of_experts", slots, "calls", calls, "epoch",
                              (json_int_t)p.epoch, "moves", last_moves(s), "rebalancing", rebalancing(s));
    cot_backend_placement_free(&p);
    return shown;
}

static json_t *sequences(const cot_backend_view *view)
{
    json_t *list = json_array();
    for (size_t i = 0; i < view->sequences && i < COT_VIEW_SEQUENCES; i++) {
        const cot_engine_sequence *q = &view->sequence[i];
        json_array_append_new(
            list, json_pack("{s:I,s:i,s:b,s:I,s:I,s:I,s:I,s:I,s:I}", "id", (json_int_t)q->id, "home", q->home,
                            "waiting", q->waiting, "prompt_tokens", (json_int_t)q->prompt_tokens, "tokens",
                            (json_int_t)q->tokens, "fed", (json_int_t)q->fed, "pages", (json_int_t)q->pages,
                            "shared_pages", (json_int_t)q->shared_pages, "shared_with",
                            (json_int_t)q->shared_with));
    }
    return list;
}

/* Bytes sent from rank to rank so far, by what for. */
static json_t *traffic(const cot_backend_metrics *m)
{
    json_t *phases = json_object();
    for (int p = 0; p < m->phases; p++)
        json_object_set_new(phases, m->phase[p], json_integer((json_int_t)m->bytes[p]));
    return phases;
}

static json_t *live(const cot_server *s, const cot_backend_view *view, const cot_backend_metrics *m)
{
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    return json_pack("{s:I,s:o,s:{s:I,s:I,s:I},s:o,s:f,s:f,s:I,s:I,s:I}", "sequence_count",
                     (json_int_t)view->sequences, "sequences", sequences(view), "kv", "pages",
                     (json_int_t)state.load.kv_pages, "free", (json_int_t)state.load.kv_pages_free,
                     "cached_blocks", (json_int_t)state.load.cached_blocks, "bytes", traffic(m), "lar",
                     m->lar, "remote_ranks", m->remote_ranks, "steps", (json_int_t)m->steps, "prefill_tokens",
                     (json_int_t)m->prefill_tokens, "decode_tokens", (json_int_t)m->decode_tokens);
}

/* ---- who waits for it ---- */

static void refuse(cot_server *s, cot_http_exchange *exchange)
{
    cot_api_error error;
    cot_api_fail(&error, 503, "unavailable", NULL, "the engine cannot be looked at now");
    cot_server_refuse(s, exchange, &error);
}

static void wait_for_view(cot_server *s, cot_server_waiting_kind kind, cot_http_exchange *exchange)
{
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    if (state.failed || !cot_server_wait(s, kind, exchange))
        refuse(s, exchange);
    else
        s->backend->table->ask_view(s->backend);
}

void cot_server_show_experts(cot_server *s, cot_http_exchange *exchange)
{
    wait_for_view(s, COT_WAITING_EXPERTS, exchange);
}

void cot_server_show_live(cot_server *s, cot_http_exchange *exchange)
{
    wait_for_view(s, COT_WAITING_LIVE, exchange);
}

static void answer_all(cot_server *s, cot_server_waiting_kind kind, const cot_backend_view *view,
                       const cot_backend_metrics *metrics,
                       json_t *(*show)(const cot_server *, const cot_backend_view *,
                                       const cot_backend_metrics *))
{
    for (cot_http_exchange *exchange; (exchange = cot_server_take_waiting(s, kind));)
        if (view)
            cot_server_reply_json(s, exchange, 200, show(s, view, metrics));
        else
            refuse(s, exchange);
}

void cot_server_on_view(void *server, const cot_backend_view *view)
{
    cot_server *s = server;
    const cot_backend_metrics *metrics = view ? s->backend->table->metrics(s->backend) : NULL;
    if (!metrics) view = NULL; // nothing could be gathered yet
    answer_all(s, COT_WAITING_EXPERTS, view, metrics, experts);
    answer_all(s, COT_WAITING_LIVE, view, metrics, live);
}
