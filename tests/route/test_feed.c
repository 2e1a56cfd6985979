/* Events of KV caches: an index that is fed through a transport that loses, repeats, delays
 * and begins anew, against a plain model that applies the same batches to a list of blocks. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/request.h"
#include "route/events.h"
#include "route/feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 24, TOKENS = 4, LOG = 400, MOST_EVENTS = 3, CHAIN = 3, BUFFER = 8 };

/* How an engine spells its events. */
typedef enum spelling { COTERIE, VLLM_MAPS, VLLM_ARRAYS, VLLM_BYTES, SGLANG, SPELLINGS } spelling;

typedef struct event {
    bool removed;
    int block[CHAIN]; // stored ones follow each other
    int count;
} event;

typedef struct batch {
    event events[MOST_EVENTS];
    int count;
    double seconds;
    bool known; // to the feed, by any way
} batch;

typedef struct world {
    uint64_t seed;
    spelling spelling;
    bool has_snapshot;
    int parent[BLOCKS];
    int32_t ids[BLOCKS][TOKENS];
    uint64_t key[BLOCKS], name[BLOCKS]; // public; the engine's own
    bool cached[BLOCKS];                // what the engine holds
    batch log[LOG];
    int published; // since the engine began
    double seconds;
    int64_t now_ns;
    cot_route_index *index;
    cot_route_feed *feed;
    /* What the feed was given since it last forgot: first what a snapshot said, then batches from `base` on. */
    bool before[BLOCKS];
    int base;
} world;

static size_t below(world *w, size_t n)
{
    return (size_t)(draw(&w->seed) % n);
}

static void begin(world *w, uint64_t *seed)
{
    *w = (world){.seed = draw(seed)};
    w->spelling = (spelling)below(w, SPELLINGS);
    w->has_snapshot = below(w, 2);
    for (int b = 0; b < BLOCKS; b++) {
        w->parent[b] = !b || !below(w, 8) ? -1 : below(w, 3) ? b - 1 : (int)below(w, (size_t)b);
        for (int i = 0; i < TOKENS; i++) w->ids[b][i] = (int32_t)(uint32_t)draw(&w->seed);
        const uint64_t own = cot_cache_local_hash(w->ids[b], TOKENS);
        w->key[b] = w->parent[b] < 0 ? own : cot_cache_sequence_hash(w->key[w->parent[b]], own);
        w->name[b] = w->spelling == COTERIE ? w->key[b] : draw(&w->seed);
    }
    assert_int_equal(cot_route_index_open(&w->index, 2, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&w->feed, w->index, 1, TOKENS, w->has_snapshot, NULL), COT_OK);
}

/* ---- the engine ---- */

/* Stores a chain of blocks whose parents are there, or removes any one. */
static bool draw_event(world *w, event *e)
{
    *e = (event){.removed = below(w, 3) == 0};
    const int from = (int)below(w, BLOCKS);
    if (e->removed) {
        for (int i = 0; i < BLOCKS && !e->count; i++) {
            const int b = (from + i) % BLOCKS;
            if (w->cached[b]) e->block[e->count++] = b;
        }
        if (e->count) w->cached[e->block[0]] = false;
        return e->count;
    }
    for (int b = from; b < BLOCKS && e->count < CHAIN; b++) {
        const bool follows =
            e->count ? w->parent[b] == e->block[e->count - 1] : w->parent[b] < 0 || w->cached[w->parent[b]];
        if (w->cached[b] || !follows) continue;
        w->cached[b] = true;
        e->block[e->count++] = b;
    }
    return e->count;
}

static void publish(world *w)
{
    batch *b = &w->log[w->published++];
    *b = (batch){.seconds = w->seconds += 0.5};
    const int wanted = (int)below(w, MOST_EVENTS + 1);
    while (b->count < wanted && draw_event(w, &b->events[b->count])) b->count++;
}

static void pack_text(msgpack_packer *to, const char *text)
{
    msgpack_pack_str_with_body(to, text, strlen(text));
}

static void pack_name(msgpack_packer *to, const world *w, int block)
{
    if (w->spelling == VLLM_BYTES) {
        uint8_t bytes[32];
        memset(bytes, 7, sizeof bytes);
        memcpy(bytes + 5, &w->name[block], 8);
        msgpack_pack_bin_with_body(to, bytes, sizeof bytes);
    } else if (w->spelling == SGLANG) {
        msgpack_pack_int64(to, (int64_t)w->name[block]);
    } else {
        msgpack_pack_uint64(to, w->name[block]);
    }
}

static void pack_names(msgpack_packer *to, const world *w, const event *e)
{
    msgpack_pack_array(to, (size_t)e->count);
    for (int i = 0; i < e->count; i++) pack_name(to, w, e->block[i]);
}

static void pack_event(msgpack_packer *to, const world *w, const event *e)
{
    const bool map = w->spelling == COTERIE || w->spelling == VLLM_MAPS;
    const int parent = w->parent[e->block[0]];
#define KEY(name) (map ? pack_text(to, name) : (void)0)
    if (map)
        msgpack_pack_map(to, e->removed ? 2 : 5);
    else
        msgpack_pack_array(to, e->removed ? 2 : 5);
    KEY("type"), pack_text(to, e->removed ? "BlockRemoved" : "BlockStored");
    KEY("block_hashes"), pack_names(to, w, e);
    if (e->removed) return;
    KEY("parent_block_hash");
    if (parent < 0)
        msgpack_pack_nil(to);
    else
        pack_name(to, w, parent);
    KEY("token_ids"), msgpack_pack_array(to, (size_t)e->count * TOKENS);
    for (int i = 0; i < e->count; i++)
        for (int t = 0; t < TOKENS; t++) msgpack_pack_uint32(to, (uint32_t)w->ids[e->block[i]][t]);
    KEY("block_size"), msgpack_pack_int(to, TOKENS);
#undef KEY
}

static void pack_batch(msgpack_sbuffer *bytes, const world *w, const batch *b)
{
    msgpack_packer to;
    msgpack_packer_init(&to, bytes, msgpack_sbuffer_write);
    if (w->spelling == VLLM_MAPS) {
        msgpack_pack_map(&to, 2);
        pack_text(&to, "ts"), msgpack_pack_double(&to, b->seconds), pack_text(&to, "events");
    } else {
        msgpack_pack_array(&to, 2);
        msgpack_pack_double(&to, b->seconds);
    }
    msgpack_pack_array(&to, (size_t)b->count);
    for (int i = 0; i < b->count; i++) pack_event(&to, w, &b->events[i]);
}

/* ---- the model ---- */

static void apply(const world *w, bool *held, const batch *b)
{
    for (int i = 0; i < b->count; i++) {
        const event *e = &b->events[i];
        const int parent = w->parent[e->block[0]];
        if (e->removed)
            held[e->block[0]] = false;
        else if (parent < 0 || held[parent])
            for (int k = 0; k < e->count; k++) held[e->block[k]] = true;
    }
}

static void check(const world *w)
{
    bool held[BLOCKS];
    uint64_t next;
    cot_route_feed_asks(w->feed, &next);
    memcpy(held, w->before, sizeof held);
    for (int n = w->base; n < (int)next; n++) apply(w, held, &w->log[n]);
    for (int b = 0; b < BLOCKS; b++) {
        uint64_t text[BLOCKS];
        int chain[BLOCKS], n = 0;
        for (int at = b; at >= 0; at = w->parent[at]) chain[n++] = at;
        uint32_t depth[2], truth = 0;
        for (int i = 0; i < n; i++) text[i] = w->key[chain[n - 1 - i]];
        while ((int)truth < n && held[chain[n - 1 - (int)truth]]) truth++;
        cot_route_index_match(w->index, depth, text, (size_t)n);
        assert_int_equal(depth[1], truth);
        assert_int_equal(depth[0], 0);
        assert_int_equal(cot_route_index_holds(w->index, 1, w->key[b]), held[b]);
    }
}

/* After a call in which the feed may have forgotten all: then it went on from the first batch that it knew. */
static void follow(world *w, uint64_t forgotten, uint64_t restarts, uint64_t next)
{
    const cot_route_feed_figures *f = cot_route_feed_measure(w->feed);
    assert_int_equal(f->unread + f->wrong_size + f->collided + f->not_hashed, 0);
    if (f->restarts > restarts) {
        memset(w->before, 0, sizeof w->before);
        w->base = 0;
    }
    if (f->forgotten > forgotten) {
        memset(w->before, 0, sizeof w->before);
        w->base = (int)next;
        while (w->base < w->published && !w->log[w->base].known) w->base++;
    }
}

static void deliver(world *w, const batch *b, int number, bool replayed)
{
    uint64_t next;
    cot_route_feed_asks(w->feed, &next);
    const uint64_t forgotten = cot_route_feed_measure(w->feed)->forgotten,
                   restarts = cot_route_feed_measure(w->feed)->restarts;
    msgpack_sbuffer bytes;
    msgpack_sbuffer_init(&bytes);
    pack_batch(&bytes, w, b);
    const cot_status status = (replayed ? cot_route_feed_replayed : cot_route_feed_live)(
        w->feed, (uint64_t)number, bytes.data, bytes.size, w->now_ns, NULL);
    assert_int_equal(status, COT_OK);
    msgpack_sbuffer_destroy(&bytes);
    follow(w, forgotten, restarts, next);
}

static void snapshot(world *w)
{
    batch all = {.seconds = w->seconds};
    msgpack_sbuffer bytes;
    msgpack_packer to;
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    bool told[BLOCKS] = {0};
    int count = 0;
    for (int pass = 0; pass < 2; pass++) { // a parent that went hides what is behind it
        for (int b = 0; b < BLOCKS; b++) {
            told[b] = w->cached[b] && (w->parent[b] < 0 || told[w->parent[b]]);
            count += told[b] && !pass;
            if (!pass || !told[b]) continue;
            const event e = {.block = {b}, .count = 1};
            pack_event(&to, w, &e);
        }
        if (pass) break;
        msgpack_pack_array(&to, 2), msgpack_pack_double(&to, all.seconds),
            msgpack_pack_array(&to, (size_t)count);
    }
    uint64_t next;
    cot_route_feed_asks(w->feed, &next);
    assert_int_equal(cot_route_feed_snapshot(w->feed, (uint64_t)w->published, bytes.data, bytes.size, NULL),
                     COT_OK);
    if ((int)next <= w->published) {
        memcpy(w->before, told, sizeof told);
        w->base = w->published;
    }
    msgpack_sbuffer_destroy(&bytes);
}

static void restart(world *w)
{
    memset(w->cached, 0, sizeof w->cached);
    w->published = 0;
    w->seconds += 1;
}

/* What the feed asks for comes, as far as the engine still has it and the transport is kind. */
static void answer(world *w)
{
    uint64_t from;
    const cot_route_wants wants = cot_route_feed_asks(w->feed, &from);
    if (wants == COT_ROUTE_WANTS_SNAPSHOT) snapshot(w);
    if (wants != COT_ROUTE_WANTS_REPLAY) return;
    int first = (int)from;
    if (first < w->published - BUFFER) first = w->published - BUFFER;
    for (int n = first; n < w->published; n++) {
        if (!below(w, 12)) continue;
        w->log[n].known = true;
        deliver(w, &w->log[n], n, true);
    }
    uint64_t next;
    cot_route_feed_asks(w->feed, &next);
    const uint64_t forgotten = cot_route_feed_measure(w->feed)->forgotten;
    const bool is_open = cot_route_feed_asks(w->feed, &next) == COT_ROUTE_WANTS_REPLAY;
    if (below(w, 2)) {
        cot_route_feed_replay_ended(w->feed);
        uint64_t at;
        if (is_open && w->has_snapshot)
            assert_int_equal(cot_route_feed_asks(w->feed, &at), COT_ROUTE_WANTS_SNAPSHOT);
    }
    follow(w, forgotten, cot_route_feed_measure(w->feed)->restarts, next);
}

static void history(uint64_t *seed, uint64_t *gaps, uint64_t *lost, uint64_t *restarts)
{
    world *w = must_allocate(1, sizeof *w);
    begin(w, seed);
    batch late = {0};
    int late_number = -1;
    bool anew = false; // the feed has not heard of the engine since it began anew
    const int steps = 10 + (int)below(w, 60);
    for (int step = 0; step < steps; step++) {
        w->now_ns += 1000000000;
        if (!anew && !below(w, 30)) {
            restart(w);
            anew = true;
        }
        publish(w);
        const int n = w->published - 1;
        const size_t fate = below(w, 20);
        if (fate < 14 || anew) {
            w->log[n].known = true;
            deliver(w, &w->log[n], n, false);
            anew = false;
            if (fate == 0) deliver(w, &w->log[n], n, false); // twice
        } else if (fate < 16) {
            late = w->log[n];
            late_number = n;
        }
        if (late_number >= 0 && !below(w, 3)) { // an older engine's, too
            if (late_number < w->published && w->log[late_number].seconds == late.seconds)
                w->log[late_number].known = true;
            deliver(w, &late, late_number, false);
            late_number = -1;
        }
        check(w);
        if (below(w, 3)) answer(w);
        check(w);
        uint64_t from, until, next;
        cot_route_feed_asks(w->feed, &next);
        const uint64_t forgotten = cot_route_feed_measure(w->feed)->forgotten;
        if (cot_route_feed_tick(w->feed, w->now_ns, &from, &until)) assert_true(from == next && until > from);
        follow(w, forgotten, cot_route_feed_measure(w->feed)->restarts, next);
        check(w);
    }
    const cot_route_feed_figures *f = cot_route_feed_measure(w->feed);
    *gaps += f->gaps;
    *lost += f->forgotten;
    *restarts += f->restarts;
    cot_route_feed_close(w->feed);
    cot_route_index_close(w->index);
    free(w);
}

static void any_history_leaves_the_truth(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), gaps = 0, lost = 0, restarts = 0;
    for (int i = 0; i < 10000; i++) history(&seed, &gaps, &lost, &restarts);
    print_message("%llu gaps, %llu of them lost, %llu restarts\n", (unsigned long long)gaps,
                  (unsigned long long)lost, (unsigned long long)restarts);
    assert_true(gaps > 1000 && lost > 100 && restarts > 100);
}

/* An engine's clock that was set back: its batches are taken for a gone one's for 10 s, then believed. */
static void a_clock_that_goes_back(void **state)
{
    (void)state;
    world *w = must_allocate(1, sizeof *w);
    uint64_t seed = test_seed(), from;
    begin(w, &seed);
    publish(w);
    deliver(w, &w->log[0], 0, false);
    w->seconds -= 3600;
    for (int n = 1; n < 30; n++) {
        w->now_ns += 1000000000;
        publish(w);
        msgpack_sbuffer bytes;
        msgpack_sbuffer_init(&bytes);
        pack_batch(&bytes, w, &w->log[n]);
        assert_int_equal(cot_route_feed_live(w->feed, (uint64_t)n, bytes.data, bytes.size, w->now_ns, NULL),
                         COT_OK);
        msgpack_sbuffer_destroy(&bytes);
        cot_route_feed_asks(w->feed, &from);
        assert_int_equal(from, 1);
        if (n <= 10) assert_int_equal(cot_route_feed_measure(w->feed)->gaps, 0);
    }
    assert_int_equal(cot_route_feed_measure(w->feed)->gaps, 1);
    uint64_t until;
    w->now_ns += COT_ROUTE_GAP_NS;
    assert_true(cot_route_feed_tick(w->feed, w->now_ns, &from, &until));
    assert_int_equal(until, 11);
    cot_route_feed_asks(w->feed, &from);
    assert_int_equal(from, 30);
    cot_route_feed_close(w->feed);
    cot_route_index_close(w->index);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_history_leaves_the_truth),
                                       cmocka_unit_test(a_clock_that_goes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
