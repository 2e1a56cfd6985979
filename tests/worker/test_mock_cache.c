/* The mock's cache, over random texts that begin alike, against a list of what it has told: a block comes after the one before it
 * and goes before that, and the text that came last is there as far as there is room. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "worker/mock.h"

#include <string.h>

enum { MOST = 64, TEXTS = 400, LONGEST = 90 };

typedef struct held {
    uint64_t hash, parent;
    bool is_first;
} held;

typedef struct world {
    held list[MOST + 1];
    size_t count, stored, removed, block;
} world;

static size_t index_of(const world *w, uint64_t hash)
{
    size_t i = 0;
    while (i < w->count && w->list[i].hash != hash) i++;
    return i;
}

static void on_stored(void *context, const cot_cache_block *b)
{
    world *w = context;
    const uint64_t local = cot_cache_local_hash(b->ids, b->tokens);
    assert_int_equal(b->home, 3);
    assert_int_equal(b->tokens, w->block);
    assert_int_equal(index_of(w, b->hash), w->count); // it is new
    assert_true(b->hash ==
                (b->is_first && !b->salt_bytes ? local : cot_cache_sequence_hash(b->parent, local)));
    if (b->is_first)
        assert_true(b->parent == (b->salt_bytes ? cot_cache_salt_hash(b->salt, b->salt_bytes) : 0));
    else
        assert_true(index_of(w, b->parent) < w->count);
    assert_true(w->count <= MOST);
    w->list[w->count++] = (held){b->hash, b->parent, b->is_first};
    w->stored++;
}

static void on_removed(void *context, int home, uint64_t hash)
{
    world *w = context;
    const size_t at = index_of(w, hash);
    assert_int_equal(home, 3);
    assert_true(at < w->count);
    w->list[at] = w->list[--w->count];
    for (size_t i = 0; i < w->count; i++) assert_true(w->list[i].is_first || w->list[i].parent != hash);
    w->removed++;
}

/* How many blocks of the text are held from its beginning on; more are looked for nowhere than `tokens` have. */
static size_t held_of(const world *w, const cot_request *r, int64_t tokens)
{
    uint64_t hash = 0;
    size_t n = 0;
    for (; (int64_t)((n + 1) * w->block) <= tokens; n++) {
        const uint64_t local = cot_cache_local_hash(r->prompt + n * w->block, w->block);
        if (n || r->cache_salt_bytes)
            hash = cot_cache_sequence_hash(n ? hash : cot_cache_salt_hash(r->cache_salt, r->cache_salt_bytes),
                                           local);
        else
            hash = local;
        if (index_of(w, hash) == w->count) break;
    }
    return n;
}

static void test_histories(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    static const size_t rooms[] = {0, 1, 2, 7, MOST};
    size_t evicted = 0;
    for (size_t way = 0; way < 15; way++) {
        world w = {.block = (size_t)1 << way % 4};
        const size_t room = rooms[way % 5];
        cot_mock_cache c;
        assert_true(cot_mock_cache_open(&c, 3, room, (int64_t)w.block));
        c.events = (cot_cache_events){.context = &w, .on_stored = on_stored, .on_removed = on_removed};
        for (uint64_t t = 0; t < TEXTS; t++) {
            const uint64_t bits = cot_random_bits(seed, way, t);
            int32_t ids[LONGEST];
            for (uint64_t i = 0; i < LONGEST; i++) // texts part where one draws otherwise
                ids[i] = (int32_t)(cot_random_bits(seed, i, i < (bits >> 8) % 40 ? bits % 2 : t) % 50);
            cot_request r = {.prompt = ids,
                             .prompt_tokens = 1 + (int64_t)((bits >> 16) % LONGEST),
                             .cache_salt = "pepper",
                             .cache_salt_bytes = bits >> 32 & 3 ? 0 : 1 + (bits >> 34 & 3)};
            const int64_t tokens = 1 + (int64_t)((bits >> 40) % LONGEST);
            if (r.prompt_tokens > tokens) r.prompt_tokens = tokens;
            cot_request whole = r;
            whole.prompt_tokens = tokens;
            assert_int_equal(cot_mock_cache_find(&c, &whole, tokens), held_of(&w, &whole, tokens));
            cot_mock_cache_store(&c, &r, ids + r.prompt_tokens, tokens);
            const size_t blocks = (size_t)tokens / w.block;
            assert_int_equal(held_of(&w, &whole, tokens), blocks < room ? blocks : room);
            assert_int_equal(c.count, w.count);
            assert_int_equal(c.evicted, w.removed);
        }
        evicted += w.removed;
        world listed = {.block = w.block};
        const cot_cache_events events = {.context = &listed, .on_stored = on_stored};
        cot_mock_cache_list(&c, &events);
        assert_int_equal(listed.count, w.count);
        for (size_t i = 0; i < w.count; i++) assert_true(index_of(&listed, w.list[i].hash) < listed.count);
        cot_mock_cache_close(&c);
    }
    assert_true(evicted > 1000);
}

/* What was used last stays. */
static void test_order_of_use(void **state)
{
    (void)state;
    cot_mock_cache c;
    int32_t ids[4] = {0, 1, 2, 3};
    assert_true(cot_mock_cache_open(&c, 0, 3, 1));
    for (int i = 0; i < 3; i++) {
        const cot_request r = {.prompt = &ids[i], .prompt_tokens = 1};
        cot_mock_cache_store(&c, &r, NULL, 1);
    }
    const cot_request first = {.prompt = &ids[0], .prompt_tokens = 1},
                      second = {.prompt = &ids[1], .prompt_tokens = 1},
                      fourth = {.prompt = &ids[3], .prompt_tokens = 1};
    cot_mock_cache_store(&c, &first, NULL, 1); // used again
    cot_mock_cache_store(&c, &fourth, NULL, 1);
    assert_int_equal(cot_mock_cache_find(&c, &first, 1), 1);
    assert_int_equal(cot_mock_cache_find(&c, &second, 1), 0);
    cot_mock_cache_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_histories), cmocka_unit_test(test_order_of_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
