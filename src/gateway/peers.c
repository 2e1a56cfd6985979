/* Other routers before the same workers: what each sent counts in the books of all. */
#include "base/clock.h"
#include "base/error.h"
#include "base/integers.h"
#include "base/rng.h"
#include "gateway/gateway_state.h"
#include "gateway/peer_message.h"
#include "gateway/relay.h"
#include "net/publisher.h"
#include "worker/endpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const int64_t SILENT_NS = 3000000000;
static const char topic[] = "router";
enum { MOST_MESSAGE_BYTES = 1 << 20, MOST_UNREAD = 10000, KEPT = 1 };
static const uint64_t MOST_TOKENS = 1 << 30; // of a prompt, and of an answer
static const uint64_t MOST_BLOCKS =
    1 << 20; // that a peer tells of in a second: what the index takes in meanwhile

/* A request of the peer's. */
typedef struct sent {
    uint64_t id, number; // there; in the book
    uint64_t max_tokens;
    bool began;
} sent;

struct cot_gateway_peer {
    cot_gateway *gateway;
    cot_gateway_peer *next;
    char *endpoint;
    cot_subscriber *subscriber;
    bool is_heard;     // it is alive, and agrees with this router
    int64_t heard_ns;  // the last message
    uint64_t router;   // as it calls itself
    uint64_t expected; // number of its next message
    uint64_t last_id;
    uint64_t blocks; // of requests that it told of since the last tick
    sent *sent;      // [count] by rising ids
    size_t count, room;
    uint64_t ignored;
    bool has_told; // why something is ignored; until it begins anew
    cot_buffer numbers;
};

/* ---- what is told here ---- */

static void publish(cot_gateway *g, const cot_peer_message *message)
{
    g->peer_message.bytes = 0;
    if (cot_peer_message_write(&g->peer_message, message))
        cot_publisher_send(g->peer_publisher, g->peer_message.data, g->peer_message.bytes);
}

void cot_gateway_tell_assigned(cot_relay *r, const cot_gateway_target *t)
{
    cot_gateway *g = r->gateway;
    if (!g->peer_publisher || !r->booked) return;
    const size_t blocks = r->blocks < COT_PEER_MOST_KEYS ? r->blocks : COT_PEER_MOST_KEYS;
    r->told_id = ++g->told_ids;
    publish(g, &(cot_peer_message){.kind = COT_PEER_ASSIGNED,
                                   .id = r->told_id,
                                   .worker = t->worker->entry.url,
                                   .worker_bytes = strlen(t->worker->entry.url),
                                   .rank = (uint64_t)t->rank,
                                   .prompt_tokens = r->tokens + r->delivery.tokens,
                                   .cached_tokens = r->cached,
                                   .max_tokens = r->request.max_tokens < MOST_TOKENS ? r->request.max_tokens
                                                                                     : MOST_TOKENS,
                                   .keys = r->keys,
                                   .blocks = blocks});
}

void cot_gateway_tell_began(const cot_relay *r)
{
    if (r->told_id) publish(r->gateway, &(cot_peer_message){.kind = COT_PEER_BEGAN, .id = r->told_id});
}

void cot_gateway_tell_ended(cot_relay *r, uint64_t answered)
{
    if (r->told_id)
        publish(r->gateway,
                &(cot_peer_message){.kind = COT_PEER_ENDED, .id = r->told_id, .answered = answered});
    r->told_id = 0;
}

/* The model of the first worker that said one. */
static const char *model_of(const cot_gateway *g)
{
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        if (w->listed && w->model && w->state != COT_GATEWAY_REFUSED) return w->model;
    return "";
}

static void tell_alive(cot_gateway *g)
{
    cot_buffer ids = {0};
    bool good = true;
    for (const cot_relay *r = g->relays; r && good; r = r->behind)
        if (r->told_id) good = cot_buffer_append(&ids, &r->told_id, sizeof r->told_id);
    const char *model = model_of(g);
    if (good)
        publish(g, &(cot_peer_message){.kind = COT_PEER_ALIVE,
                                       .router = g->router_id,
                                       .block_tokens = g->block_tokens,
                                       .model = model,
                                       .model_bytes = strlen(model),
                                       .under_way = (const uint64_t *)(const void *)ids.data,
                                       .count = ids.bytes / sizeof(uint64_t)});
    cot_buffer_free(&ids);
}

/* ---- what is heard ---- */

static void tell(const cot_gateway_peer *p, cot_log_level level, const char *what)
{
    cot_access_tell(&p->gateway->access, level, "peer '%s' %s", p->endpoint, what);
}

static void ignore(cot_gateway_peer *p, const char *why)
{
    p->ignored++;
    if (p->has_told) return;
    p->has_told = true;
    tell(p, COT_LOG_WARNING, why);
}

static void end(cot_gateway_peer *p, size_t place, uint64_t answered)
{
    cot_route_ended(p->gateway->book, p->sent[place].number, answered, cot_now_ns());
    memmove(p->sent + place, p->sent + place + 1, (--p->count - place) * sizeof *p->sent);
}

static void forget(cot_gateway_peer *p)
{
    while (p->count) end(p, p->count - 1, 0);
    p->last_id = 0;
    p->is_heard = false;
}

/* The place of a request; p->count: there is none. */
static size_t find(const cot_gateway_peer *p, uint64_t id)
{
    size_t least = 0, most = p->count;
    while (least < most) {
        const size_t middle = least + (most - least) / 2;
        if (p->sent[middle].id < id)
            least = middle + 1;
        else
            most = middle;
    }
    return least < p->count && p->sent[least].id == id ? least : p->count;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Why a peer that says so of itself cannot be listened to; NULL: it can. */
static const char *disagreement(const cot_gateway_peer *p, const cot_peer_message *m)
{
    const cot_gateway *g = p->gateway;
    const char *model = model_of(g);
    if (m->router == g->router_id) return "is this router itself: it is ignored";
    for (const cot_gateway_peer *other = g->peers; other; other = other->next)
        if (other != p && other->is_heard && other->router == m->router)
            return "is a router that is heard at another address: it is ignored";
    if (m->block_tokens && g->block_tokens && m->block_tokens != g->block_tokens)
        return "has blocks of another size: it is ignored";
    if (m->model_bytes && *model &&
        (strlen(model) != m->model_bytes || memcmp(model, m->model, m->model_bytes) != 0))
        return "routes to workers of another model: it is ignored";
    return NULL;
}

/* Of requests whose end was lost it is told so that they are not under way. */
static void take_alive(cot_gateway_peer *p, const cot_peer_message *m)
{
    const char *wrong = disagreement(p, m);
    if (m->router != p->router || (wrong && p->is_heard)) p->has_told = false;
    if (m->router != p->router || wrong) forget(p);
    p->router = m->router;
    if (wrong) {
        ignore(p, wrong);
        return;
    }
    if (!p->is_heard) tell(p, COT_LOG_INFO, "is heard");
    p->is_heard = true;
    uint64_t *const ids = (uint64_t *)(void *)p->numbers.data;
    if (m->count) qsort(ids, m->count, sizeof *ids, by_number);
    for (size_t i = p->count; i-- > 0;)
        if (!m->count || !bsearch(&p->sent[i].id, ids, m->count, sizeof *ids, by_number)) end(p, i, 0);
}

static const cot_gateway_target *target_of(const cot_gateway *g, const cot_peer_message *m)
{
    for (const cot_gateway_worker *w = g->workers; w; w = w->next)
        if (w->listed && strlen(w->entry.url) == m->worker_bytes &&
            !memcmp(w->entry.url, m->worker, m->worker_bytes))
            return m->rank < w->targets ? &g->target[w->first_target + m->rank] : NULL;
    return NULL;
}

static const char *check_assigned(const cot_gateway_peer *p, const cot_peer_message *m)
{
    if (m->id <= p->last_id) return "tells of a request twice: that is ignored";
    if (!m->prompt_tokens || m->prompt_tokens > MOST_TOKENS || m->max_tokens > MOST_TOKENS ||
        m->cached_tokens >= m->prompt_tokens || m->blocks > m->prompt_tokens / p->gateway->block_tokens)
        return "tells of a request that cannot be: that is ignored";
    if (p->count == COT_PEER_MOST_REQUESTS) return "has more requests under way than are counted";
    return target_of(p->gateway, m) ? NULL : "sends to a worker that is not known here: that is ignored";
}

static void take_assigned(cot_gateway_peer *p, const cot_peer_message *m)
{
    cot_gateway *g = p->gateway;
    uint32_t depth[COT_GATEWAY_PLACES] = {0};
    const char *wrong = check_assigned(p, m);
    void *grown = p->sent;
    if (wrong) {
        ignore(p, wrong);
        return;
    }
    p->last_id = m->id;
    if (!cot_grow(&grown, &p->room, p->count + 1, sizeof *p->sent)) return;
    p->sent = grown;
    const cot_gateway_target *t = target_of(g, m);
    const size_t target = (size_t)(t - g->target);
    const uint64_t found = (m->cached_tokens + g->block_tokens - 1) / g->block_tokens;
    depth[target] = (uint32_t)found;
    const cot_route_request request = {.blocks = m->blocks,
                                       .tokens = m->prompt_tokens,
                                       .max_tokens = m->max_tokens,
                                       .depth = depth,
                                       .keys = found <= m->blocks ? m->keys : NULL,
                                       .calls = cot_gateway_calls(g, m->keys, m->blocks),
                                       .of_peer = true};
    cot_route_decision decision;
    const int64_t now_ns = cot_now_ns();
    cot_route_weigh(g->book, &request, target, now_ns, &decision);
    const uint64_t number = cot_route_assigned(g->book, &request, &decision, now_ns);
    if (!number) return;
    p->sent[p->count++] = (sent){.id = m->id, .number = number, .max_tokens = m->max_tokens};
    p->blocks += m->blocks;
    if (p->blocks > MOST_BLOCKS)
        ignore(p, "tells of more blocks than a second has time for: requests count, where their blocks are "
                  "does not");
    else if (m->blocks)
        cot_route_feed_assume(t->feed, m->keys, m->blocks, now_ns);
}

static void take_end(cot_gateway_peer *p, const cot_peer_message *m)
{
    const size_t place = find(p, m->id);
    if (place == p->count) return; // it was not counted
    const bool is_lie = m->answered > p->sent[place].max_tokens * COT_RELAY_MOST_CHOICES;
    if (is_lie) ignore(p, "tells of a longer answer than was asked for: that is ignored");
    end(p, place, is_lie ? 0 : m->answered);
}

static void take_beginning(const cot_gateway_peer *p, const cot_peer_message *m)
{
    const size_t place = find(p, m->id);
    if (place == p->count || p->sent[place].began) return;
    p->sent[place].began = true;
    cot_route_began(p->gateway->book, p->sent[place].number, cot_now_ns());
}

static void on_message(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes)
{
    cot_gateway_peer *p = context;
    cot_peer_message m;
    (void)replayed;
    if (number < p->expected) { // another one publishes there now
        forget(p);
        p->has_told = false;
    }
    p->expected = number + 1;
    if (!cot_peer_message_read(&m, &p->numbers, payload, bytes)) {
        ignore(p, "tells what cannot be read: that is ignored");
        return;
    }
    p->heard_ns = cot_now_ns();
    if (m.kind == COT_PEER_ALIVE) {
        take_alive(p, &m);
        return;
    }
    if (!p->is_heard || !p->gateway->book) return;
    if (m.kind == COT_PEER_ASSIGNED) take_assigned(p, &m);
    if (m.kind == COT_PEER_BEGAN) take_beginning(p, &m);
    if (m.kind == COT_PEER_ENDED) take_end(p, &m);
}

void cot_gateway_excuse_peers(cot_gateway *g, int64_t now_ns, int64_t late_ns)
{
    for (cot_gateway_peer *p = g->peers; p; p = p->next)
        p->heard_ns = cot_smaller(p->heard_ns + late_ns, now_ns);
}

void cot_gateway_tick_peers(cot_gateway *g, int64_t now_ns)
{
    if (g->peer_publisher) tell_alive(g);
    for (cot_gateway_peer *p = g->peers; p; p = p->next) {
        p->blocks = 0;
        if (!p->is_heard || now_ns - p->heard_ns < SILENT_NS) continue;
        forget(p);
        tell(p, COT_LOG_WARNING, "is silent: what it sent counts no more");
    }
}

void cot_gateway_write_peers(const cot_gateway *g, cot_prometheus *out)
{
    static const char up[] = "coterie:router_peer_up", running[] = "coterie:router_peer_requests_running",
                      ignored[] = "coterie:router_peer_ignored_total";
    cot_prometheus_metric(out, up, "gauge", "Whether another router is heard, and agrees with this one");
    for (const cot_gateway_peer *p = g->peers; p; p = p->next)
        cot_prometheus_value(out, up, &(cot_prometheus_label){"peer", p->endpoint}, 1, p->is_heard);
    cot_prometheus_metric(out, running, "gauge", "Requests that another router has under way, as it tells");
    for (const cot_gateway_peer *p = g->peers; p; p = p->next)
        cot_prometheus_value(out, running, &(cot_prometheus_label){"peer", p->endpoint}, 1, (double)p->count);
    cot_prometheus_metric(out, ignored, "counter", "Messages of another router that cannot be right");
    for (const cot_gateway_peer *p = g->peers; p; p = p->next)
        cot_prometheus_value(out, ignored, &(cot_prometheus_label){"peer", p->endpoint}, 1,
                             (double)p->ignored);
}

/* ---- opening ---- */

static cot_status open_publisher(cot_gateway *g, const char *endpoint, cot_error *error)
{
    cot_endpoint own;
    char text[96];
    if (!cot_endpoint_read(&own, endpoint))
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "peer endpoint '%s' is not tcp://ADDRESS:PORT (an address in numbers, localhost, or * for "
            "all of them)",
            endpoint);
    if (!cot_endpoint_is_own(&own) && !g->options.peers_no_auth)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "peer endpoint '%s' can be reached from other machines, and nobody is asked for a key there: "
            "say --peers-no-auth if everybody may read what is published",
            endpoint);
    cot_endpoint_write(text, &own, 0);
    const cot_publisher_options options = {
        .endpoint = text, .topic = topic, .keep = KEPT, .most_unread = MOST_UNREAD};
    return cot_publisher_open(&g->peer_publisher, g->zmq, g->base, &options, error);
}

static bool is_host_and_port(const char *endpoint)
{
    static const char scheme[] = "tcp://";
    int port;
    if (strncmp(endpoint, scheme, sizeof scheme - 1) != 0) return false;
    const char *host = endpoint + sizeof scheme - 1, *colon = strrchr(host, ':');
    return colon && colon > host && *host != '*' && cot_endpoint_read_port(&port, colon + 1);
}

static cot_status open_peer(cot_gateway *g, const char *endpoint, cot_error *error)
{
    for (const cot_gateway_peer *p = g->peers; p; p = p->next)
        if (!strcmp(p->endpoint, endpoint))
            return cot_fail(error, COT_INVALID_ARGUMENT, "the peer '%s' is given twice", endpoint);
    if (!is_host_and_port(endpoint))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the peer '%s' is not tcp://HOST:PORT, with a port of 1 to 65535", endpoint);
    cot_gateway_peer *p = calloc(1, sizeof *p);
    if (!p) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a peer");
    p->gateway = g;
    p->next = g->peers;
    g->peers = p;
    p->endpoint = strdup(endpoint);
    if (!p->endpoint) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a peer");
    const cot_subscriber_options options = {.endpoint = endpoint,
                                            .topic = topic,
                                            .max_bytes = MOST_MESSAGE_BYTES,
                                            .on_message = on_message,
                                            .context = p};
    return cot_subscriber_open(&p->subscriber, g->zmq, g->base, &options, error);
}

cot_status cot_gateway_open_peers(cot_gateway *g, const cot_gateway_options *options, cot_error *error)
{
    cot_status status = COT_OK;
    if (getrandom(&g->router_id, sizeof g->router_id, 0) != sizeof g->router_id)
        g->router_id = cot_mix64((uint64_t)cot_now_ns());
    for (const char *const *peer = options->peers; peer && *peer && status == COT_OK; peer++)
        status = open_peer(g, *peer, error);
    if (status == COT_OK && options->peers_no_auth && !options->peer_endpoint)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "--peers-no-auth is of --peer-endpoint, which is missing: nothing is published");
    if (status == COT_OK && options->peer_endpoint) status = open_publisher(g, options->peer_endpoint, error);
    return status;
}

void cot_gateway_close_peers(cot_gateway *g)
{
    for (cot_gateway_peer *p; (p = g->peers);) {
        g->peers = p->next;
        cot_subscriber_close(p->subscriber);
        cot_buffer_free(&p->numbers);
        free(p->sent);
        free(p->endpoint);
        free(p);
    }
    cot_publisher_close(g->peer_publisher);
    g->peer_publisher = NULL;
    cot_buffer_free(&g->peer_message);
}
