/* Blocks that a target is taken to hold since they were routed there, against a plain model: for each block whether it was told, and
 * when it was routed last. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "coterie/request.h"
#include "route/assumed.h"
#include "route/feed.h"

#include <msgpack.h>
#include <string.h>

enum { BLOCKS = 30, TOKENS = 2, NEVER = -1 };
#define SECOND INT64_C(1000000000)

typedef struct world {
    uint64_t seed, key[BLOCKS], number;
    int parent[BLOCKS];
    int32_t ids[BLOCKS][TOKENS];
    bool told[BLOCKS], tells, unsure;
    int64_t since_ns[BLOCKS], now_ns;
    double seconds;
    cot_route_index *index;
    cot_route_feed *feed;
} world;

static size_t below(world *w, size_t n)
{
    return (size_t)(draw(&w->seed) % n);
}

static void begin(world *w, uint64_t *seed)
{
    *w = (world){.seed = draw(seed)};
    for (int b = 0; b < BLOCKS; b++) {
        w->parent[b] = !b || !below(w, 8) ? -1 : below(w, 3) ? b - 1 : (int)below(w, (size_t)b);
        for (int i = 0; i < TOKENS; i++) w->ids[b][i] = (int32_t)below(w, 1 << 30);
        const uint64_t own = cot_cache_local_hash(w->ids[b], TOKENS);
        w->key[b] = w->parent[b] < 0 ? own : cot_cache_sequence_hash(w->key[w->parent[b]], own);
        w->since_ns[b] = NEVER;
    }
    assert_int_equal(cot_route_index_open(&w->index, 2, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&w->feed, w->index, 1, TOKENS, false, NULL), COT_OK);
}

static void forget(world *w)
{
    for (int b = 0; b < BLOCKS; b++) {
        w->told[b] = false;
        w->since_ns[b] = NEVER;
    }
}

static bool held(const world *w, int b)
{
    return w->told[b] || w->since_ns[b] != NEVER;
}

/* The text that ends with a block. */
static size_t text_of(const world *w, int b, int *blocks, uint64_t *keys)
{
    size_t n = 0;
    for (int at = b; at >= 0; at = w->parent[at]) n++;
    size_t i = n;
    for (int at = b; at >= 0; at = w->parent[at]) {
        blocks[--i] = at;
        keys[i] = w->key[at];
    }
    return n;
}

static void route(world *w)
{
    int blocks[BLOCKS];
    uint64_t keys[BLOCKS];
    const size_t n = text_of(w, (int)below(w, BLOCKS), blocks, keys);
    assert_int_equal(cot_route_feed_assume(w->feed, keys, n, w->now_ns), COT_OK);
    for (size_t i = 0; i < n; i++)
        if (!w->told[blocks[i]]) w->since_ns[blocks[i]] = w->now_ns;
}

/* A batch of one event of one block, or of none; what the engine says may stand behind blocks that it never told of. */
static void publish(world *w)
{
    msgpack_sbuffer bytes;
    msgpack_packer to;
    const int b = (int)below(w, BLOCKS), parent = w->parent[b];
    const size_t what = below(w, 40);
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 2), msgpack_pack_double(&to, w->seconds += 1), msgpack_pack_array(&to, 1);
    if (!what) {
        msgpack_pack_array(&to, 1), msgpack_pack_str_with_body(&to, "AllBlocksCleared", 16);
        forget(w);
        w->unsure = false;
    } else if (what < 12) {
        msgpack_pack_array(&to, 2), msgpack_pack_str_with_body(&to, "BlockRemoved", 12);
        msgpack_pack_array(&to, 1), msgpack_pack_uint64(&to, w->key[b]);
        w->told[b] = false;
        w->since_ns[b] = NEVER;
    } else {
        msgpack_pack_array(&to, 5), msgpack_pack_str_with_body(&to, "BlockStored", 11);
        msgpack_pack_array(&to, 1), msgpack_pack_uint64(&to, w->key[b]);
        if (parent < 0)
            msgpack_pack_nil(&to);
        else
            msgpack_pack_uint64(&to, w->key[parent]);
        msgpack_pack_array(&to, TOKENS);
        for (int i = 0; i < TOKENS; i++) msgpack_pack_int(&to, w->ids[b][i]);
        msgpack_pack_int(&to, TOKENS);
        if (parent < 0 || held(w, parent)) {
            w->told[b] = true;
            w->since_ns[b] = NEVER;
        }
    }
    assert_int_equal(cot_route_feed_live(w->feed, w->number++, bytes.data, bytes.size, w->now_ns, NULL),
                     COT_OK);
    msgpack_sbuffer_destroy(&bytes);
}

/* A batch is lost and the engine cannot send it again: all is forgotten, then the next one counts. */
static void lose(world *w)
{
    w->number++;
    forget(w);
    w->unsure = true;
    const uint64_t gaps = cot_route_feed_measure(w->feed)->gaps;
    publish(w);
    assert_int_equal(cot_route_feed_measure(w->feed)->gaps, gaps + 1);
    cot_route_feed_replay_ended(w->feed);
}

static void wait(world *w)
{
    uint64_t from, until;
    static const int64_t some[] = {
        0, 1, SECOND, COT_ROUTE_ASSUMED_TOLD_NS, 30 * SECOND, COT_ROUTE_ASSUMED_NS};
    w->now_ns += some[below(w, sizeof some / sizeof *some)];
    assert_false(cot_route_feed_tick(w->feed, w->now_ns, &from, &until));
    const bool tells = cot_route_feed_measure(w->feed)->batches && !w->unsure;
    for (int b = 0; b < BLOCKS; b++)
        if (w->since_ns[b] != NEVER &&
            w->now_ns - w->since_ns[b] >= (tells ? COT_ROUTE_ASSUMED_TOLD_NS : COT_ROUTE_ASSUMED_NS))
            w->since_ns[b] = NEVER;
}

static void check(const world *w)
{
    for (int b = 0; b < BLOCKS; b++) {
        int blocks[BLOCKS];
        uint64_t keys[BLOCKS];
        uint32_t depth[2], truth = 0;
        const size_t n = text_of(w, b, blocks, keys);
        while (truth < n && held(w, blocks[truth])) truth++;
        cot_route_index_match(w->index, depth, keys, n);
        assert_int_equal(depth[0], 0);
        assert_int_equal(depth[1], truth);
        assert_int_equal(cot_route_index_holds(w->index, 1, w->key[b]), held(w, b));
    }
}

static void what_was_routed_is_assumed(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), expired = 0;
    for (int history = 0; history < 1000; history++) {
        world w;
        begin(&w, &seed);
        const bool silent = !below(&w, 4); // it has no events
        for (size_t i = 0, steps = 10 + below(&w, 50); i < steps; i++) {
            const size_t what = below(&w, 20);
            if (what < 8 || silent)
                route(&w);
            else if (what < 19)
                publish(&w);
            else
                lose(&w);
            if (!below(&w, 3)) wait(&w);
            check(&w);
        }
        expired += cot_route_feed_measure(w.feed)->expired;
        cot_route_feed_close(w.feed);
        cot_route_index_close(w.index);
    }
    assert_true(expired > 1000);
}

/* More than there is room for at first, routed again or told in any order, over the end of the numbers. */
static void many_assumptions(void **state)
{
    (void)state;
    enum { KEYS = 3000 };
    uint64_t seed = ~test_seed(), keys[KEYS],
             key; // a small seed's draws are what the table mixes small keys into
    int64_t since[KEYS];
    cot_route_assumed a = {0};
    a.first = a.end = UINT32_MAX - 1000;
    for (size_t i = 0; i < KEYS; i++) {
        keys[i] = i < 3 ? i : draw(&seed);
        since[i] = NEVER;
    }
    for (int64_t now = 0; now < 40000; now++) {
        const size_t i = draw(&seed) % KEYS;
        if (draw(&seed) % 8) {
            assert_true(cot_route_assumed_add(&a, keys[i], now));
            since[i] = now;
        } else {
            cot_route_assumed_drop(&a, keys[i]);
            since[i] = NEVER;
        }
        if (now % 500) continue;
        const int64_t before = now - (int64_t)(draw(&seed) % 6000);
        size_t expired = 0, due = 0;
        for (size_t k = 0; k < KEYS; k++) due += since[k] != NEVER && since[k] <= before;
        for (; cot_route_assumed_expire(&a, before, &key); expired++)
            assert_false(cot_route_assumed_has(&a, key));
        assert_int_equal(expired, due);
        for (size_t k = 0; k < KEYS; k++) {
            if (since[k] <= before) since[k] = NEVER;
            assert_int_equal(cot_route_assumed_has(&a, keys[k]), since[k] != NEVER);
        }
    }
    cot_route_assumed_free(&a);
    assert_false(cot_route_assumed_expire(&a, INT64_MAX, &key));
    cot_route_assumed_drop(&a, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_routed_is_assumed),
        cmocka_unit_test(many_assumptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
