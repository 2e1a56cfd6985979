/* The index of blocks against a plain model: for each target a list of what it holds, and which text a block ends. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/route.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 60, TARGETS = 9, NO_BLOCK = -1 };

/* A world of blocks, each behind an earlier one or at a text's beginning. */
typedef struct world {
    uint64_t seed, key[BLOCKS];
    int parent[BLOCKS];
    bool held[TARGETS][BLOCKS];
    size_t targets;
    cot_route_index *index;
} world;

static size_t below(world *w, size_t n)
{
    return (size_t)(draw(&w->seed) % n);
}

static world open_world(uint64_t *seed)
{
    world w = {.seed = draw(seed)};
    w.targets = 1 + below(&w, TARGETS);
    for (int b = 0; b < BLOCKS; b++) {
        w.key[b] = below(&w, 40) ? draw(&w.seed) : (uint64_t)b; // few are as small as marks of a table
        // Chains mostly, some branches, few beginnings.
        w.parent[b] = !b || !below(&w, 12) ? NO_BLOCK : below(&w, 4) ? b - 1 : (int)below(&w, (size_t)b);
    }
    assert_int_equal(cot_route_index_open(&w.index, w.targets, NULL), COT_OK);
    return w;
}

/* The blocks of the text that ends with block b. How many. */
static size_t text_of(const world *w, int b, uint64_t *keys, int *blocks)
{
    size_t n = 0;
    for (int at = b; at != NO_BLOCK; at = w->parent[at]) n++;
    size_t i = n;
    for (int at = b; at != NO_BLOCK; at = w->parent[at]) {
        blocks[--i] = at;
        keys[i] = w->key[at];
    }
    return n;
}

static void check_text(const world *w, int b, bool longer)
{
    uint64_t keys[BLOCKS + 2];
    int blocks[BLOCKS];
    uint32_t depth[TARGETS];
    const size_t n = text_of(w, b, keys, blocks);
    keys[n] = 77, keys[n + 1] = 78; // never held
    cot_route_index_match(w->index, depth, keys, n + (longer ? 2 : 0));
    for (size_t t = 0; t < w->targets; t++) {
        size_t truth = 0;
        while (truth < n && w->held[t][blocks[truth]]) truth++;
        assert_int_equal(depth[t], truth);
    }
}

static void check_all(world *w)
{
    uint64_t pairs = 0;
    for (int b = 0; b < BLOCKS; b++) {
        check_text(w, b, b % 2);
        for (size_t t = 0; t < w->targets; t++) {
            assert_int_equal(cot_route_index_holds(w->index, t, w->key[b]), w->held[t][b]);
            pairs += w->held[t][b];
        }
    }
    cot_route_index_figures figures;
    cot_route_index_measure(w->index, &figures);
    assert_true(figures.pairs >= pairs); // and those before blocks that are held
    if (!pairs) assert_int_equal(figures.pairs, 0);
    if (!pairs) assert_int_equal(figures.blocks, 0);
}

/* Part of a text is told as stored: from a parent that is held or not. */
static void store(world *w)
{
    uint64_t keys[BLOCKS];
    int blocks[BLOCKS];
    const size_t t = below(w, w->targets), n = text_of(w, (int)below(w, BLOCKS), keys, blocks),
                 from = below(w, 3) ? 0 : below(w, n), count = below(w, n - from + 1);
    cot_route_stored stored = {0};
    assert_int_equal(
        cot_route_index_store(w->index, t, from ? &keys[from - 1] : NULL, keys + from, count, &stored),
        COT_OK);
    if (from && !w->held[t][blocks[from - 1]]) {
        assert_int_equal(stored.unknown_parent, count);
        assert_int_equal(stored.stored + stored.again, 0);
        return;
    }
    size_t again = 0;
    for (size_t i = from; i < from + count; i++) {
        again += w->held[t][blocks[i]];
        w->held[t][blocks[i]] = true;
    }
    assert_int_equal(stored.again, again);
    assert_int_equal(stored.stored, count - again);
    assert_int_equal(stored.unknown_parent + stored.collided, 0);
}

static void remove_some(world *w)
{
    uint64_t keys[BLOCKS];
    const size_t t = below(w, w->targets), n = 1 + below(w, 6);
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t b = below(w, BLOCKS);
        keys[i] = w->key[b];
        held += w->held[t][b];
        w->held[t][b] = false;
    }
    assert_int_equal(cot_route_index_remove(w->index, t, keys, n), held);
}

/* A block that is told behind another block than before is refused, where somebody holds it. */
static void collide(world *w)
{
    const size_t t = below(w, w->targets);
    const int b = (int)below(w, BLOCKS);
    bool known = false;
    for (size_t other = 0; other < w->targets; other++) known |= w->held[other][b];
    if (!known || w->parent[b] == NO_BLOCK) return;
    cot_route_stored stored = {0};
    assert_int_equal(cot_route_index_store(w->index, t, NULL, &w->key[b], 1, &stored), COT_OK);
    assert_int_equal(stored.collided, 1);
}

static void index_is_true(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int history = 0; history < 10000; history++) {
        world w = open_world(&seed);
        const size_t steps = 5 + below(&w, 40);
        for (size_t i = 0; i < steps; i++) {
            const size_t what = below(&w, 20);
            if (what < 11)
                store(&w);
            else if (what < 18)
                remove_some(&w);
            else if (what < 19)
                collide(&w);
            else {
                const size_t t = below(&w, w.targets);
                cot_route_index_clear(w.index, t);
                memset(w.held[t], 0, sizeof w.held[t]);
            }
            check_text(&w, (int)below(&w, BLOCKS), below(&w, 2));
            if (!below(&w, 16)) check_all(&w);
        }
        check_all(&w);
        for (size_t t = 0; t < w.targets; t++) {
            cot_route_index_clear(w.index, t);
            memset(w.held[t], 0, sizeof w.held[t]);
        }
        check_all(&w);
        cot_route_index_close(w.index);
    }
}

/* Many targets, long texts, many branches: lists of every length, tables that move, more branches than a pair counts. */
static void long_texts_and_many_targets(void **state)
{
    (void)state;
    enum { MANY = 700, LONG = 900 };
    uint64_t seed = test_seed();
    cot_route_index *index;
    assert_int_equal(cot_route_index_open(&index, MANY, NULL), COT_OK);
    uint64_t keys[LONG];
    uint32_t depth[MANY], truth[MANY];
    for (size_t i = 0; i < LONG; i++) keys[i] = draw(&seed);
    cot_route_stored stored = {0};
    for (size_t t = 0; t < MANY; t++) {
        truth[t] = (uint32_t)(draw(&seed) % (t % 3 ? 4 : LONG + 1));
        assert_int_equal(cot_route_index_store(index, t, NULL, keys, truth[t], &stored), COT_OK);
    }
    for (size_t round = 0; round < 40; round++) {
        const size_t n = 1 + draw(&seed) % LONG;
        cot_route_index_match(index, depth, keys, n);
        for (size_t t = 0; t < MANY; t++) assert_int_equal(depth[t], truth[t] < n ? truth[t] : n);
        const size_t t = draw(&seed) % MANY, hole = draw(&seed) % LONG;
        if (hole < truth[t]) {
            assert_int_equal(cot_route_index_remove(index, t, &keys[hole], 1), 1);
            truth[t] = (uint32_t)hole;
        }
    }
    cot_route_index_match(index, depth, keys, 0);
    for (size_t t = 0; t < MANY; t++) assert_int_equal(depth[t], 0);
    // One block with more branches than its pairs count: when it comes back, all below count again.
    enum { BRANCHES = 40000 };
    uint64_t *branch = must_allocate(BRANCHES, sizeof *branch), root = draw(&seed), text[2] = {root, 0};
    assert_int_equal(cot_route_index_store(index, 5, NULL, &root, 1, &stored), COT_OK);
    for (size_t i = 0; i < BRANCHES; i++) {
        branch[i] = draw(&seed);
        assert_int_equal(cot_route_index_store(index, 5, &root, &branch[i], 1, &stored), COT_OK);
    }
    for (int there = 0; there < 2; there++) {
        if (!there) assert_int_equal(cot_route_index_remove(index, 5, &root, 1), 1);
        if (there) assert_int_equal(cot_route_index_store(index, 5, NULL, &root, 1, &stored), COT_OK);
        for (size_t i = 0; i < BRANCHES; i += 997) {
            text[1] = branch[i];
            cot_route_index_match(index, depth, text, 2);
            assert_int_equal(depth[5], there ? 2 : 0);
        }
    }
    // Others hold the same, are cleared of it, and hold it anew: the last branch that goes, from the newest on, takes the root with it.
    for (size_t t = 6; t < 10; t++)
        for (int again = 0; again < 2; again++) {
            if (again) cot_route_index_clear(index, t);
            assert_int_equal(cot_route_index_store(index, t, NULL, &root, 1, &stored), COT_OK);
            for (size_t i = 0; i < BRANCHES; i++)
                assert_int_equal(cot_route_index_store(index, t, &root, &branch[i], 1, &stored), COT_OK);
        }
    cot_route_index_figures before, after;
    cot_route_index_measure(index, &before);
    for (size_t t = 6; t < 10; t++) {
        assert_int_equal(cot_route_index_remove(index, t, &root, 1), 1);
        for (size_t i = BRANCHES; i-- > 0;)
            assert_int_equal(cot_route_index_remove(index, t, &branch[i], 1), 1);
    }
    cot_route_index_measure(index, &after);
    assert_int_equal(before.pairs - after.pairs, 4 * (BRANCHES + 1));
    assert_int_equal(cot_route_index_remove(index, 5, branch, BRANCHES), BRANCHES);
    assert_int_equal(cot_route_index_remove(index, 5, &root, 1), 1);
    for (size_t t = 0; t < MANY; t++) cot_route_index_clear(index, t);
    cot_route_index_figures figures;
    cot_route_index_measure(index, &figures);
    assert_int_equal(figures.blocks, 0);
    assert_int_equal(figures.pairs, 0);
    free(branch);
    cot_route_index_close(index);
}

/* Lists that grow and shrink again and again take no more memory than the first time. */
static void memory_stays(void **state)
{
    (void)state;
    enum { MANY = 700, NODES = 5, ROUNDS = 400 };
    uint64_t seed = test_seed(), keys[NODES];
    cot_route_index *index;
    cot_route_index_figures first = {0}, last = {0};
    cot_route_stored stored = {0};
    for (size_t i = 0; i < NODES; i++) keys[i] = draw(&seed);
    assert_int_equal(cot_route_index_open(&index, MANY, NULL), COT_OK);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t t = 0; t < MANY; t++)
            assert_int_equal(cot_route_index_store(index, t, NULL, keys, NODES, &stored), COT_OK);
        for (size_t t = 0; t < MANY; t++)
            assert_int_equal(cot_route_index_remove(index, t, keys, NODES), NODES);
        cot_route_index_measure(index, round ? &last : &first);
    }
    assert_int_equal(last.bytes, first.bytes);
    assert_true(first.bytes <
                4 << 20); // a segment of nodes and one of words are there, of thousands that may be
    cot_route_index_close(index);
}

static void refusals_and_keys(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_error error;
    assert_int_equal(cot_route_index_open(&index, 0, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "an index of 0 targets: 1 to 65535 are possible");
    assert_int_equal(cot_route_index_open(&index, 65536, &error), COT_INVALID_ARGUMENT);
    assert_int_equal(cot_route_index_open(&index, 65535, &error), COT_OK);
    const uint64_t key = 3;
    cot_route_stored stored = {0};
    assert_int_equal(cot_route_index_store(index, 65534, NULL, &key, 1, &stored), COT_OK);
    uint32_t *depth = must_allocate(65535, sizeof *depth);
    cot_route_index_match(index, depth, &key, 1);
    assert_int_equal(depth[65534], 1);
    free(depth);
    cot_route_index_close(index);
    cot_route_index_close(NULL);
    assert_int_equal(cot_route_key(9, NULL), 9);
    assert_int_equal(cot_route_key(9, ""), 9);
    assert_true(cot_route_key(9, "a") != 9 && cot_route_key(9, "a") != cot_route_key(9, "b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_is_true),
        cmocka_unit_test(long_texts_and_many_targets),
        cmocka_unit_test(memory_stays),
        cmocka_unit_test(refusals_and_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
