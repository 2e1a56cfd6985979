/* What a gateway follows of its workers: where it listens for each rank, what it asks for when events are missing, whose snapshot
 * is whose, and which workers share what was learnt. The workers are sockets of the test, the loop is turned by hand. */
#include "harness/cmocka.h"

#include "base/clock.h"
#include "coterie/request.h"
#include "gateway/gateway_state.h"
#include "net/publisher.h"

#include <event2/event.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { RANKS = 2, BLOCK = 4, MOST_ASKED = 64, WORKERS = 40 };

/* A worker's side: a socket a rank that events come from, one that is asked for replays. */
typedef struct publisher {
    void *live, *replay;
    int port, replay_port;
    uint64_t asked[MOST_ASKED]; // from which batch on replays were asked for
    int count;
    uint8_t whom[256]; // asked last
    int whom_bytes;
} publisher;

typedef struct world {
    cot_gateway *g;
    void *zmq;
    cot_gateway_worker worker[WORKERS];
    char line[1024]; // told last
} world;

static void on_line(void *context, const char *line)
{
    world *w = context;
    snprintf(w->line, sizeof w->line, "%s", line);
}

static void begin(world *w)
{
    *w = (world){.g = calloc(1, sizeof *w->g), .zmq = cot_publisher_context_open()};
    assert_non_null(w->g);
    assert_non_null(w->zmq);
    w->g->base = event_base_new();
    w->g->zmq = w->zmq;
    w->g->access.options.log = on_line;
    w->g->access.options.log_context = w;
    w->g->access.options.log_level = COT_LOG_INFO;
    w->g->options.scales = (cot_route_scales){1, 1, 1};
    assert_true(cot_gateway_begin(w->g, BLOCK));
}

/* A worker behind `url`, whose /health and snapshots nobody answers. */
static cot_gateway_worker *add(world *w, int i, const char *url, const char *fingerprint)
{
    static char name[] = "w";
    cot_gateway_worker *one = &w->worker[i], **end = &w->g->workers;
    *one = (cot_gateway_worker){.gateway = w->g, .listed = true, .reported_ns = INT64_MIN};
    one->entry.name = name;
    one->entry.url = (char *)url;
    one->fingerprint = (char *)fingerprint;
    one->is_coterie = fingerprint != NULL;
    assert_int_equal(cot_http_client_open(&one->probing, w->g->base, "http://127.0.0.1:1",
                                          &(cot_http_client_options){0}, NULL),
                     COT_OK);
    while (*end) end = &(*end)->next;
    *end = one;
    return one;
}

static void end(world *w)
{
    for (cot_gateway_worker *one = w->g->workers; one; one = one->next) {
        cot_gateway_unfollow(one);
        cot_http_client_close(one->probing);
    }
    cot_route_index_close(w->g->index);
    cot_route_book_close(w->g->book);
    event_base_free(w->g->base);
    cot_publisher_context_close(w->zmq);
    free(w->g);
}

/* ---- a worker's sockets ---- */

static int bound_port(void *socket)
{
    char endpoint[128];
    size_t bytes = sizeof endpoint;
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes), 0);
    return atoi(strrchr(endpoint, ':') + 1);
}

static void *listener(void *zmq, int type, const char *host, int port)
{
    char endpoint[128];
    int none = 0, six = 1;
    void *socket = zmq_socket(zmq, type);
    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none,
                   sizeof none); // without end: what is published twice takes no other's place
    zmq_setsockopt(socket, ZMQ_IPV6, &six, sizeof six);
    snprintf(endpoint, sizeof endpoint, port ? "tcp://%s:%d" : "tcp://%s:*", host, port);
    if (zmq_bind(socket, endpoint) == 0) return socket;
    zmq_close(socket);
    return NULL;
}

/* Neighbouring ports for all ranks. False: the host has no such address. */
static bool listen_on(publisher p[RANKS], void *zmq, const char *host)
{
    for (int tries = 0; tries < 1000; tries++) {
        void *sockets[2 * RANKS] = {listener(zmq, ZMQ_PUB, host, 0), listener(zmq, ZMQ_ROUTER, host, 0)};
        if (!sockets[0] || !sockets[1]) return false;
        const int port = bound_port(sockets[0]), replay_port = bound_port(sockets[1]);
        bool good = true;
        for (int r = 1; r < RANKS; r++) {
            sockets[2 * r] = listener(zmq, ZMQ_PUB, host, port + r);
            sockets[2 * r + 1] = listener(zmq, ZMQ_ROUTER, host, replay_port + r);
            good = good && sockets[2 * r] && sockets[2 * r + 1];
        }
        for (int r = 0; r < RANKS; r++)
            p[r] = (publisher){.live = sockets[2 * r],
                               .replay = sockets[2 * r + 1],
                               .port = port + r,
                               .replay_port = replay_port + r};
        if (good) return true;
        for (int s = 0; s < 2 * RANKS; s++)
            if (sockets[s]) zmq_close(sockets[s]);
    }
    fail_msg("no neighbouring ports");
    return false;
}

static void hang_up(publisher p[RANKS])
{
    for (int r = 0; r < RANKS; r++) {
        zmq_close(p[r].live);
        zmq_close(p[r].replay);
    }
}

static void number_frame(uint8_t frame[8], uint64_t number)
{
    for (int i = 0; i < 8; i++) frame[i] = (uint8_t)(number >> (56 - 8 * i));
}

static uint64_t key_of(int block)
{
    const int32_t ids[BLOCK] = {block, 1, 2, 3};
    return cot_cache_local_hash(ids, BLOCK);
}

static void pack_text(msgpack_packer *to, const char *text)
{
    msgpack_pack_str(to, strlen(text));
    msgpack_pack_str_body(to, text, strlen(text));
}

/* A batch that stores one block, which begins a text, in vLLM's form. */
static void pack_stored(msgpack_packer *to, int block)
{
    msgpack_pack_array(to, 2);
    msgpack_pack_double(to, 1);
    msgpack_pack_array(to, 1);
    msgpack_pack_array(to, 5);
    pack_text(to, "BlockStored");
    msgpack_pack_array(to, 1), msgpack_pack_uint64(to, key_of(block));
    msgpack_pack_nil(to);
    msgpack_pack_array(to, BLOCK);
    msgpack_pack_int(to, block);
    for (int i = 1; i < BLOCK; i++) msgpack_pack_int(to, i);
    msgpack_pack_int(to, BLOCK);
}

/* A batch that stores a block goes to all who listen, or, out of what was kept, to who asked last. */
static void tell(const publisher *p, uint64_t number, int block, bool again)
{
    void *const socket = again ? p->replay : p->live;
    uint8_t digits[8];
    msgpack_sbuffer bytes;
    msgpack_packer to;
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    pack_stored(&to, block);
    number_frame(digits, number);
    if (again) {
        assert_true(p->whom_bytes > 0);
        zmq_send(socket, p->whom, (size_t)p->whom_bytes, ZMQ_SNDMORE);
    }
    zmq_send(socket, again ? "" : "kv", again ? 0 : 2, ZMQ_SNDMORE);
    zmq_send(socket, digits, 8, ZMQ_SNDMORE);
    assert_int_equal(zmq_send(socket, bytes.data, bytes.size, 0), bytes.size);
    msgpack_sbuffer_destroy(&bytes);
}

/* Whoever asked last hears that there is no more. */
static void end_replay(const publisher *p)
{
    uint8_t digits[8];
    number_frame(digits, UINT64_MAX);
    assert_true(p->whom_bytes > 0);
    zmq_send(p->replay, p->whom, (size_t)p->whom_bytes, ZMQ_SNDMORE);
    zmq_send(p->replay, "", 0, ZMQ_SNDMORE);
    zmq_send(p->replay, digits, 8, ZMQ_SNDMORE);
    assert_int_equal(zmq_send(p->replay, "", 0, 0), 0);
}

/* Turns the loop once, and notes what replays are asked for. */
static void turn(world *w, publisher p[RANKS])
{
    event_base_loop(w->g->base, EVLOOP_NONBLOCK);
    for (int r = 0; r < RANKS; r++) {
        uint8_t empty[8], from[8];
        const int bytes = zmq_recv(p[r].replay, p[r].whom, sizeof p[r].whom, ZMQ_DONTWAIT);
        if (bytes < 0) continue;
        p[r].whom_bytes = bytes;
        assert_int_equal(zmq_recv(p[r].replay, empty, sizeof empty, 0), 0);
        assert_int_equal(zmq_recv(p[r].replay, from, sizeof from, 0), 8);
        assert_true(p[r].count < MOST_ASKED);
        p[r].asked[p[r].count] = 0;
        for (int i = 0; i < 8; i++) p[r].asked[p[r].count] = p[r].asked[p[r].count] << 8 | from[i];
        p[r].count++;
    }
}

static bool holds(const world *w, const cot_gateway_worker *one, int rank, int block)
{
    return cot_route_index_holds(w->g->index, one->first_target + (size_t)rank, key_of(block));
}

static bool in_vain(const char *what)
{
    fail_msg("in vain: %s", what);
    return false;
}

/* Turns the loop, after what follows, until the condition holds. */
#define UNTIL(CONDITION)                                                                                     \
    for (const int64_t until_ns = cot_now_ns() + 60000000000;                                                \
         !(CONDITION) && (cot_now_ns() < until_ns || in_vain(#CONDITION)); turn(w, p))

/* A subscription takes effect some time after it was made: batches of the same number come until one has arrived. */
static void publish_until_held(world *w, publisher p[RANKS], const cot_gateway_worker *one, int rank,
                               int block)
{
    UNTIL(holds(w, one, rank, block)) tell(&p[rank], 0, block, false);
}

/* ---- where it listens ---- */

static void check_address(const char *host, const char *url, const char *written)
{
    world own, *w = &own;
    publisher p[RANKS];
    char events[64], replay[64];
    begin(w);
    if (!listen_on(p, w->zmq, host)) {
        print_message("SKIPPED: no address %s on this host\n", host);
        end(w);
        return;
    }
    snprintf(events, sizeof events, "tcp://%s:%d", written, p[0].port);
    snprintf(replay, sizeof replay, "tcp://%s:%d", written, p[0].replay_port);
    cot_gateway_worker *one = add(w, 0, url, NULL);
    one->entry.ranks = RANKS;
    one->entry.kv_events = events;
    one->entry.kv_replay = replay;
    cot_gateway_follow(one, NULL);
    assert_string_equal(one->why.message, "");
    UNTIL(p[0].count == 1 && p[1].count == 1) {}
    for (int r = 0; r < RANKS; r++) publish_until_held(w, p, one, r, 10 + r);
    assert_false(holds(w, one, 0, 11) || holds(w, one, 1, 10)); // each rank's are its own
    hang_up(p);
    end(w);
}

static void test_addresses(void **state)
{
    (void)state;
    check_address("127.0.0.1", "http://example.invalid", "127.0.0.1");
    check_address("127.0.0.1", "http://127.0.0.1:1", "*");
    check_address("127.0.0.1", "https://127.0.0.1/prefix", "*");
    check_address("[::1]", "http://[::1]:1", "*");
    check_address("[::1]", "http://example.invalid", "[::1]");
}

/* Ports that no rank can have, and what is no address: nothing is followed there, and all else is as it was. */
static void test_no_addresses(void **state)
{
    static const struct {
        const char *endpoint;
        bool first, second;
    } cases[] = {{"tcp://*:65534", true, true}, {"tcp://*:65535", true, false},
                 {"tcp://*:0", false, false},   {"tcp://*:65536", false, false},
                 {"udp://*:5", false, false},   {"tcp:", false, false},
                 {"tcp://host", false, false},  {"", false, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world own, *w = &own;
        char endpoint[64];
        begin(w);
        cot_gateway_worker *one = add(w, 0, "http://127.0.0.1:1", NULL);
        snprintf(endpoint, sizeof endpoint, "%s", cases[i].endpoint);
        one->entry.ranks = RANKS;
        one->entry.kv_events = endpoint;
        cot_gateway_follow(one, NULL);
        if (one->targets != RANKS) fail_msg("'%s': %s", endpoint, one->why.message);
        if ((w->g->target[0].events != NULL) != cases[i].first ||
            (w->g->target[1].events != NULL) != cases[i].second)
            fail_msg("'%s' is followed otherwise", endpoint);
        end(w);
    }
}

/* ---- what is missing ---- */

/* A batch is missing: it is asked for once, again after a while, and given up where the worker has it no more. */
static void test_replays(void **state)
{
    (void)state;
    world own, *w = &own;
    publisher p[RANKS];
    char events[64], replay[64];
    uint64_t from;
    begin(w);
    assert_true(listen_on(p, w->zmq, "127.0.0.1"));
    snprintf(events, sizeof events, "tcp://*:%d", p[0].port);
    snprintf(replay, sizeof replay, "tcp://*:%d", p[0].replay_port);
    cot_gateway_worker *one = add(w, 0, "http://127.0.0.1:1", NULL);
    one->entry.ranks = RANKS;
    one->entry.kv_events = events;
    one->entry.kv_replay = replay;
    cot_gateway_follow(one, NULL);
    UNTIL(p[0].count == 1 && p[1].count == 1) {}
    assert_int_equal(p[0].asked[0], 0); // all that was before
    publish_until_held(w, p, one, 0, 1);
    for (uint64_t n = 2; n < 6; n++)
        if (n != 3) tell(&p[0], n, (int)n + 1, false);
    UNTIL(p[0].count == 2) {}
    assert_int_equal(p[0].asked[1], 1);
    const cot_gateway_target *t = &w->g->target[one->first_target];
    const int64_t asked_ns = t->asked_ns;
    cot_gateway_tick_follow(one, asked_ns + 1000000000);
    assert_int_equal(t->asked_ns, asked_ns);
    const int64_t later_ns = asked_ns + 3000000000;
    one->settles_ns = INT64_MAX;
    cot_gateway_tick_follow(one, later_ns);
    assert_int_equal(t->asked_ns, later_ns);
    UNTIL(p[0].count == 3) {}
    assert_int_equal(p[0].asked[2], 1);
    assert_true(holds(w, one, 0, 1) && !holds(w, one, 0, 3));
    tell(&p[0], 1, 2, true);
    UNTIL(p[0].count == 4) {} // another one is missing: at once
    assert_int_equal(p[0].asked[3], 3);
    assert_true(holds(w, one, 0, 1) && holds(w, one, 0, 2) && holds(w, one, 0, 3) && !holds(w, one, 0, 5));
    end_replay(&p[0]);
    UNTIL(holds(w, one, 0, 6)) {}
    assert_true(holds(w, one, 0, 5)); // what it held before is not known any more
    for (int block = 1; block < 5; block++) assert_false(holds(w, one, 0, block));
    assert_int_equal(cot_route_feed_asks(t->feed, &from), COT_ROUTE_WANTS_NOTHING);
    assert_int_equal(from, 6);
    cot_gateway_tick_follow(one, later_ns);
    assert_int_equal(t->asked_ns, INT64_MIN);
    assert_int_equal(p[1].count, 1);
    hang_up(p);
    end(w);
}

/* A worker that has snapshots is asked for one where a replay does not bring what is missing. */
static void test_replay_then_snapshot(void **state)
{
    (void)state;
    world own, *w = &own;
    publisher p[RANKS];
    begin(w);
    assert_true(listen_on(p, w->zmq, "127.0.0.1"));
    cot_gateway_worker *one = add(w, 0, "http://127.0.0.1:1", "print");
    json_t *document =
        json_pack("{s:{s:{},s:s,s:[o,o],s:[o,o]},s:i}", "kv_events", "snapshot", "topic", "kv", "endpoints",
                  json_sprintf("tcp://*:%d", p[0].port), json_sprintf("tcp://127.0.0.1:%d", p[1].port),
                  "replay_endpoints", json_sprintf("tcp://*:%d", p[0].replay_port),
                  json_sprintf("tcp://*:%d", p[1].replay_port), "kv_homes", RANKS);
    assert_non_null(document);
    cot_gateway_follow(one, document);
    json_decref(document);
    assert_int_equal(one->targets, RANKS);
    assert_true(one->snapshot.call != NULL); // at once: what it held before
    UNTIL(!one->snapshot.call) {}            // nobody answers
    publish_until_held(w, p, one, 0, 1);
    tell(&p[0], 2, 3, false);
    UNTIL(p[0].count == 1) {}
    assert_int_equal(p[0].asked[0], 1);
    one->snapshot.since_ns = INT64_MIN / 2; // long ago
    end_replay(&p[0]);
    UNTIL(one->snapshot.since_ns > 0) {}
    assert_true(holds(w, one, 0, 1) && !holds(w, one, 0, 3)); // until it comes
    hang_up(p);
    end(w);
}

/* ---- snapshots ---- */

static msgpack_sbuffer snapshot_of(const int *ranks, const int *blocks, size_t count)
{
    msgpack_sbuffer bytes;
    msgpack_packer to;
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    msgpack_pack_map(&to, 1);
    pack_text(&to, "ranks");
    msgpack_pack_array(&to, count);
    for (size_t i = 0; i < count; i++) {
        msgpack_pack_map(&to, 3);
        pack_text(&to, "data_parallel_rank"), msgpack_pack_int(&to, ranks[i]);
        pack_text(&to, "seq"), msgpack_pack_int(&to, 7);
        pack_text(&to, "batch"), pack_stored(&to, blocks[i]);
    }
    return bytes;
}

/* A worker tells of its own ranks: another's are not touched, whatever it says; nor is anything by what is no answer. */
static void test_snapshots(void **state)
{
    (void)state;
    world own, *w = &own;
    begin(w);
    json_t *document = json_pack("{s:{s:{}}}", "kv_events", "snapshot");
    cot_gateway_worker *one = add(w, 0, "http://127.0.0.1:1", "print"),
                       *other = add(w, 1, "http://127.0.0.1:1", "print");
    one->entry.ranks = RANKS;
    cot_gateway_follow(one, document);
    cot_gateway_follow(other, document);
    json_decref(document);
    assert_int_equal(other->first_target, one->first_target + RANKS);
    msgpack_sbuffer whole = snapshot_of((int[]){0, 1, 2, 3}, (int[]){1, 2, 3, 4}, 4);
    const cot_error error = {0};
    one->snapshot.done(one, 500, whole.data, whole.size, NULL);
    one->snapshot.done(one, 0, whole.data, whole.size, &error);
    assert_false(holds(w, one, 0, 1));
    assert_string_equal(w->line, ""); // of what did not come nothing is said: it is asked for again
    one->snapshot.done(one, 200, whole.data, whole.size, NULL);
    assert_true(holds(w, one, 0, 1) && holds(w, one, 1, 2));
    for (int block = 1; block <= 4; block++) assert_false(holds(w, other, 0, block));
    assert_string_equal(w->line, "");
    one->snapshot.done(one, 200, whole.data, whole.size - 1, NULL);
    assert_non_null(strstr(w->line, "worker 'w': its snapshot of the KV cache is malformed"));
    msgpack_sbuffer_destroy(&whole);
    end(w);
}

/* ---- what was learnt ---- */

static cot_route_costs costs_at(const world *w, size_t place)
{
    cot_route_costs costs;
    cot_route_book_costs(w->g->book, place, &costs);
    return costs;
}

/* Workers of one fingerprint have one place to learn by; pages are each one's own. */
static void test_learners(void **state)
{
    (void)state;
    world own, *w = &own;
    begin(w);
    enum { N = 7 };
    static const char *const prints[N] = {"a", "b", "a", NULL, NULL, "b", NULL};
    cot_gateway_worker *one[N];
    for (int i = 0; i < N; i++) {
        one[i] = add(w, i, "http://127.0.0.1:1", prints[i]);
        one[i]->entry.ranks = 1 + i % 2;
        one[i]->is_coterie |= i == N - 1; // the last one is, and says no fingerprint
        json_t *document = json_pack("{s:i,s:i}", "kv_pages", 100 * (i + 1), "page_tokens", 2 * BLOCK);
        cot_gateway_follow(one[i], document);
        json_decref(document);
    }
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            const bool alike =
                prints[i] && prints[j] ? !strcmp(prints[i], prints[j]) : prints[i] == prints[j];
            assert_int_equal(one[i]->learner == one[j]->learner, alike);
        }
    for (int i = 0; i < N; i++) assert_true(one[i]->learner >= COT_GATEWAY_TARGETS);
    cot_route_costs learnt = costs_at(w, one[0]->learner);
    learnt.token_ns = 5; // less than any token takes
    learnt.prompt_ns = 77;
    cot_route_book_set_costs(w->g->book, one[0]->learner, &learnt);
    const cot_route_costs presumed = costs_at(w, one[1]->learner);
    assert_true(presumed.prompt_ns > 77 && presumed.token_ns > 100);
    cot_gateway_take_reports(w->g);
    for (int i = 0; i < N; i++)
        for (size_t t = one[i]->first_target; t < one[i]->first_target + one[i]->targets; t++) {
            const cot_route_costs costs = costs_at(w, t);
            const bool is_first = one[i]->learner == one[0]->learner;
            assert_true(costs.pages == 200.0 * (i + 1));
            assert_true(costs.prompt_ns == (is_first ? 77 : presumed.prompt_ns));
            assert_true(costs.token_ns == (is_first ? 100 : presumed.token_ns));
        }
    // what went has no place that another would learn by, but while one like it is there
    cot_gateway_unfollow(one[0]);
    cot_gateway_unfollow(one[1]);
    cot_gateway_follow(one[1], NULL);
    assert_int_equal(one[1]->learner, one[5]->learner);
    cot_gateway_unfollow(one[2]);
    const size_t before = one[2]->learner;
    cot_gateway_follow(one[2], NULL);
    assert_int_not_equal(one[2]->learner, before);
    assert_true(costs_at(w, one[2]->learner).prompt_ns == presumed.prompt_ns);
    end(w);
}

/* Before any worker has said what it is there is no book. */
static void test_no_book(void **state)
{
    (void)state;
    world own, *w = &own;
    begin(w);
    cot_route_book_close(w->g->book);
    w->g->book = NULL;
    add(w, 0, "http://127.0.0.1:1", "a");
    cot_gateway_take_reports(w->g);
    end(w);
}

/* There are fewer places to learn by than fingerprints may be: the oldest is used again, and none beyond them. */
static void test_many_learners(void **state)
{
    (void)state;
    world own, *w = &own;
    char prints[WORKERS][8];
    begin(w);
    for (int i = 0; i < WORKERS; i++) {
        snprintf(prints[i], sizeof prints[i], "%d", i);
        cot_gateway_worker *one = add(w, i, "http://127.0.0.1:1", prints[i]);
        cot_gateway_follow(one, NULL);
        assert_int_equal(one->learner, COT_GATEWAY_TARGETS + i % COT_GATEWAY_LEARNERS);
    }
    end(w);
}

/* What a gateway that stood still could not hear does not count as a worker's silence, and nothing else is forgiven. */
static void test_excused_silence(void **state)
{
    (void)state;
    static const int64_t heard[] = {0, 700, 800, 950, 1000}, later[] = {200, 900, 1000, 1000, 1000};
    world own, *w = &own;
    begin(w);
    for (int i = 0; i < 5; i++) add(w, i, "http://127.0.0.1:1", "one")->heard_ns = heard[i];
    cot_gateway_excuse_workers(w->g, 1000, 200);
    for (int i = 0; i < 5; i++) assert_int_equal(w->worker[i].heard_ns, later[i]);
    end(w);
}

static void never_told(void *context, int status, const char *body, size_t bytes, const cot_error *error)
{
    (void)context, (void)status, (void)body, (void)bytes, (void)error;
}

/* A worker that is up may be silent for 3 s, and is forgotten after 30. */
static void test_silence(void **state)
{
    (void)state;
    static const struct {
        int64_t silent_ms;
        cot_gateway_state state;
    } rows[] = {{0, COT_GATEWAY_UP},
                {2999, COT_GATEWAY_UP},
                {3000, COT_GATEWAY_SUSPENDED},
                {29999, COT_GATEWAY_SUSPENDED},
                {30000, COT_GATEWAY_FORGOTTEN}};
    world own, *w = &own;
    begin(w);
    cot_gateway_worker *one = add(w, 0, "http://127.0.0.1:1", "one");
    one->health = (cot_ask){.done = never_told};
    one->settles_ns = INT64_MAX;
    one->state = COT_GATEWAY_UP;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_gateway_tick_workers(w->g, one->heard_ns + rows[i].silent_ms * 1000000);
        assert_int_equal(one->state, rows[i].state);
    }
    cot_ask_cancel(&one->health);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),       cmocka_unit_test(test_no_addresses),
        cmocka_unit_test(test_replays),         cmocka_unit_test(test_replay_then_snapshot),
        cmocka_unit_test(test_snapshots),       cmocka_unit_test(test_learners),
        cmocka_unit_test(test_no_book),         cmocka_unit_test(test_many_learners),
        cmocka_unit_test(test_excused_silence), cmocka_unit_test(test_silence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
