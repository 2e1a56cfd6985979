#include "server/view.h"

#include "coterie/layout.h"

/* ---- what is shown ---- */

static json_t *numbers(const uint64_t *values, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

/* The ranks of every expert of a layer. */
static json_t *ranks_of(const cot_expert_layout *layout, int32_t layer)
{
    const cot_expert_replicas r = cot_expert_layout_layer(layout, layer);
    json_t *list = json_array();
    for (int32_t e = 0; e < layout->n_experts; e++) {
        json_t *ranks = json_array();
        for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
            json_array_append_new(ranks, json_integer(r.rank[i]));
        json_array_append_new(list, ranks);
    }
    return list;
}

static json_t *experts(const cot_server *s, const cot_backend_view *view)
{
    (void)view;
    const cot_engine_info *info = cot_engine_describe(s->engine);
    cot_expert_layout layout;
    if (cot_engine_layout(s->engine, &layout, NULL, NULL) != COT_OK) return NULL;
    json_t *layers = json_array(), *ranks = json_array(), *calls = json_array();
    for (int32_t l = 0; l < info->moe_layers; l++) {
        json_array_append_new(layers, json_integer(info->moe_layer[l]));
        json_array_append_new(ranks, ranks_of(&layout, l));
        json_array_append_new(calls, numbers(s->stats.calls + l * info->experts, info->experts));
    }
    cot_expert_layout_free(&layout);
    return json_pack("{s:o,s:I,s:I,s:i,s:o,s:o}", "layers", layers, "experts", (json_int_t)info->experts,
                     "top_k", (json_int_t)info->top_k, "ranks", info->ranks, "ranks_of_experts", ranks,
                     "calls", calls);
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
static json_t *traffic(const cot_stats *stats)
{
    json_t *phases = json_object();
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        uint64_t bytes = 0;
        for (int pair = 0; pair < stats->ranks * stats->ranks; pair++) bytes += stats->bytes[p][pair];
        json_object_set_new(phases, cot_engine_phases()[p], json_integer((json_int_t)bytes));
    }
    return phases;
}

static json_t *live(const cot_server *s, const cot_backend_view *view)
{
    const cot_stats *t = &s->stats;
    cot_backend_state state;
    s->backend->table->state(s->backend, &state);
    return json_pack("{s:I,s:o,s:{s:I,s:I,s:I},s:o,s:f,s:f,s:I,s:I,s:I}", "sequence_count",
                     (json_int_t)view->sequences, "sequences", sequences(view), "kv", "pages",
                     (json_int_t)state.load.kv_pages, "free", (json_int_t)state.load.kv_pages_free,
                     "cached_blocks", (json_int_t)state.load.cached_blocks, "bytes", traffic(t), "lar",
                     t->lar, "remote_ranks", t->remote_ranks, "steps", (json_int_t)t->steps, "prefill_tokens",
                     (json_int_t)t->prefill_tokens, "decode_tokens", (json_int_t)t->decode_tokens);
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
        s->backend->table->look(s->backend);
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
                       json_t *(*show)(const cot_server *, const cot_backend_view *))
{
    for (cot_http_exchange *exchange; (exchange = cot_server_take_waiting(s, kind));)
        if (view)
            cot_server_reply_json(s, exchange, 200, show(s, view));
        else
            refuse(s, exchange);
}

void cot_server_on_view(void *server, const cot_backend_view *view)
{
    cot_server *s = server;
    if (view) s->backend->table->take_stats(s->backend, &s->stats);
    if (!s->stats.ranks) view = NULL; // nothing could be gathered yet
    answer_all(s, COT_WAITING_EXPERTS, view, experts);
    answer_all(s, COT_WAITING_LIVE, view, live);
}
