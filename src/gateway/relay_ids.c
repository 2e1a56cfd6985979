#include "access/api_json.h"
#include "base/clock.h"
#include "gateway/prompt.h"
#include "gateway/relay.h"

#include <stdlib.h>

enum { MOST_VALUES_BYTES = 256 << 20 };        // that a body's values may take
static const int64_t TOKENISE_NS = 5000000000; // after which a request goes without its ids

void cot_relay_drop_ids(cot_relay *r)
{
    cot_ask_cancel(&r->tokenize);
    if (r->tokenizes) r->tokenizes->relays--;
    r->tokenizes = NULL;
}

/* Ids are there, or will not be: *ids is taken over. */
static void have_ids(cot_relay *r, int32_t *ids, size_t count)
{
    cot_gateway *g = r->gateway;
    if (count && g->block_tokens)
        r->keys = cot_relay_keys(&r->blocks, ids, count, g->block_tokens, &r->request);
    if (count) r->tokens = count;
    if (count && g->book && !cot_gateway_calls(g, r->keys, r->blocks))
        r->foretold = cot_gateway_foretell(g, ids, count);
    if (!count && r->generates) g->figures.untokenised++;
    free(ids);
    json_decref(r->json); // its values may take far more than the body
    r->json = NULL;
    cot_prometheus_observe(&g->figures.stage[COT_STAGE_TOKENISE], (double)(cot_now_ns() - r->began_ns) / 1e9);
    if (!cot_relay_wait_for_others(r)) cot_relay_ask(r);
}

static void on_tokens(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    cot_relay *r = context;
    int32_t *ids;
    size_t count;
    (void)error;
    cot_relay_drop_ids(r);
    json_t *json = status == 200 ? json_loadb(body, bytes, 0, NULL) : NULL;
    cot_relay_read_list(&ids, &count, json_object_get(json, "tokens"));
    json_decref(json);
    have_ids(r, ids, count);
}

/* Whether the policy looks at what a prompt has in common with others. */
static bool needs_ids(const cot_gateway *g)
{
    return g->options.policy != COT_ROUTE_RANDOM && g->options.policy != COT_ROUTE_ROUND_ROBIN;
}

/* A worker that is up, in turn. */
static cot_gateway_worker *any_worker(cot_gateway *g)
{
    size_t up = 0;
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) up += w->state == COT_GATEWAY_UP;
    size_t skip = up ? g->figures.requests % up : 0;
    for (cot_gateway_worker *w = g->workers; w; w = w->next)
        if (w->state == COT_GATEWAY_UP && !skip--) return w;
    return NULL;
}

/* The body as JSON, of which the request is read. False: it is none, and the relay has ended. */
static bool read_values(cot_relay *r, bool chat)
{
    cot_api_error error = {0};
    r->json = cot_api_read_json(r->body ? r->body : "", r->body_bytes, MOST_VALUES_BYTES, &error);
    if (!r->json) {
        cot_relay_fail(r, &error, NULL);
        return false;
    }
    cot_relay_read(&r->request, r->json, chat);
    return true;
}

void cot_relay_find_ids(cot_relay *r, bool chat)
{
    cot_gateway *g = r->gateway;
    int32_t *ids = NULL;
    size_t count = 0;
    if (!chat && r->body && cot_relay_skim(&r->request, &ids, &count, r->body, r->body_bytes)) {
        have_ids(r, ids, count);
        return;
    }
    if (!read_values(r, chat)) return;
    cot_relay_read_ids(&ids, &count, r->json);
    if (count || !needs_ids(g) ||
        cot_prompt_encode(g, r->json, r->request.chat, r->body_bytes, &ids, &count)) {
        have_ids(r, ids, count);
        return;
    }
    cot_gateway_worker *w = any_worker(g);
    char *body = w ? cot_relay_tokenize_body(r->json, r->request.chat) : NULL;
    r->tokenize = (cot_ask){.done = on_tokens, .context = r};
    if (body && cot_ask_start(&r->tokenize, w->http, "/tokenize", w->authorization, body,
                              COT_RELAY_MOST_ANSWER_BYTES)) {
        r->tokenizes = w;
        w->relays++;
    } else
        have_ids(r, NULL, 0);
    free(body);
}

void cot_relay_watch_ids(cot_relay *r, int64_t now_ns)
{
    if (now_ns - r->tokenize.since_ns < TOKENISE_NS) return;
    cot_relay_drop_ids(r);
    have_ids(r, NULL, 0);
}
