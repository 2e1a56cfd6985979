/* What targets can reuse whose layers keep texts in several ways, against sets of blocks that are looked through from every end; and groups that
 * come late or are told of otherwise. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "coterie/request.h"
#include "route/feed.h"
#include "route/groups.h"

#include <msgpack.h>
#include <string.h>

enum { TEXTS = 3, BLOCKS = 10, GROUPS = 5, SIZE = 2 };

static uint64_t draws;
static uint64_t drawn(uint64_t below)
{
    return cot_random_bits(test_seed(), 50, draws++) % below;
}

static uint64_t keys[TEXTS][BLOCKS];

static int id_of(int text, int block)
{
    return 1000 * text + SIZE * block;
}

static void make_keys(void)
{
    for (int t = 0; t < TEXTS; t++)
        for (int i = 0; i < BLOCKS; i++) {
            const uint64_t own = cot_cache_local_hash((const int32_t[]){id_of(t, i), id_of(t, i) + 1}, SIZE);
            keys[t][i] = i ? cot_cache_sequence_hash(keys[t][i - 1], own) : own;
        }
}

/* An event of one block. */
typedef struct told {
    bool removed, is_public; // is_public: names are public hashes
    int text, block, group, ids, window, size, renamed;
    const char *kind; // NULL: it is not said
} told;

static uint64_t name_of(const told *e, int block)
{
    return e->is_public ? keys[e->text][block] : (uint64_t)(1 + e->text * BLOCKS + block + 1000 * e->renamed);
}

static void pack_text(msgpack_packer *to, const char *text)
{
    msgpack_pack_str_with_body(to, text, strlen(text));
}

static cot_status tell(cot_route_feed *feed, uint64_t number, const told *events, size_t count)
{
    msgpack_sbuffer bytes;
    msgpack_packer to;
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 2), msgpack_pack_double(&to, 1), msgpack_pack_array(&to, count);
    for (const told *e = events; e < events + count; e++) {
        msgpack_pack_array(&to, e->removed ? 4 : 12);
        pack_text(&to, e->removed ? "BlockRemoved" : "BlockStored");
        msgpack_pack_array(&to, 1), msgpack_pack_uint64(&to, name_of(e, e->block));
        if (e->removed) {
            msgpack_pack_nil(&to), msgpack_pack_int(&to, e->group);
            continue;
        }
        if (e->block)
            msgpack_pack_uint64(&to, name_of(e, e->block - 1));
        else
            msgpack_pack_nil(&to);
        msgpack_pack_array(&to, (size_t)e->ids);
        for (int i = 0; i < e->ids; i++) msgpack_pack_int(&to, id_of(e->text, e->block) + i);
        msgpack_pack_int(&to, e->size);
        for (int i = 0; i < 4; i++) msgpack_pack_nil(&to);
        msgpack_pack_int(&to, e->group);
        if (e->kind)
            pack_text(&to, e->kind);
        else
            msgpack_pack_nil(&to);
        msgpack_pack_int(&to, e->window);
    }
    const cot_status status = cot_route_feed_live(feed, number, bytes.data, bytes.size, 0, NULL);
    msgpack_sbuffer_destroy(&bytes);
    return status;
}

static cot_route_feed *open_feed(cot_route_index **index)
{
    cot_route_feed *feed;
    assert_int_equal(cot_route_index_open(index, 1, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&feed, *index, 0, SIZE, false, NULL), COT_OK);
    return feed;
}

static uint32_t reusable(cot_route_index *index, const cot_route_feed *feed, int text, size_t blocks)
{
    uint32_t depth;
    cot_route_index_match(index, &depth, keys[text], blocks);
    return cot_route_feed_reusable(feed, keys[text], depth);
}

/* ---- any history ---- */

/* The most of a text that all groups have what they need of. */
static uint32_t reusable_plainly(const bool held[GROUPS][BLOCKS], const char *const *kind, const int *window,
                                 int groups)
{
    uint32_t best = 0;
    for (int end = 1; end <= BLOCKS; end++) {
        bool good = true;
        for (int g = 0; g < groups; g++) {
            int from = 0; // the first block that is needed
            if (!strcmp(kind[g], "mamba")) from = end - 1;
            while (!strcmp(kind[g], "sliding_window") && SIZE * (from + 1) <= SIZE * end - (window[g] - 1))
                from++;
            for (int i = from; i < end; i++) good &= held[g][i];
        }
        if (good) best = (uint32_t)end;
    }
    return best;
}

static void all_groups_have_what_they_need(void **state)
{
    (void)state;
    static const char *const kinds[] = {"full_attention", "sliding_window", "mamba", "something_new"};
    for (int turn = 0; turn < 60; turn++) {
        const int groups = 1 + (int)drawn(GROUPS), full = (int)drawn((uint64_t)groups);
        const bool is_public = drawn(2);
        bool held[TEXTS][GROUPS][BLOCKS] = {0};
        const char *kind[GROUPS];
        int window[GROUPS];
        cot_route_index *index;
        cot_route_feed *feed = open_feed(&index);
        uint64_t number = 0;
        for (int g = 0; g < groups; g++) {
            kind[g] = g == full ? kinds[0] : kinds[g < full ? 1 + drawn(2) : drawn(4)];
            window[g] = 1 + (int)drawn(12);
        }
        told first[GROUPS]; // all groups tell of the first block at once, in any order
        for (int g = 0; g < groups; g++) {
            const int at = (g + (int)number) % groups;
            first[g] = (told){.is_public = is_public,
                              .group = at,
                              .kind = kind[at],
                              .window = window[at],
                              .ids = SIZE,
                              .size = SIZE};
            held[0][at][0] = true;
        }
        assert_int_equal(tell(feed, number++, first, (size_t)groups), COT_OK);
        for (int step = 0; step < 150; step++) {
            const int t = (int)drawn(TEXTS), g = (int)drawn((uint64_t)groups);
            int i = (int)drawn(BLOCKS), deepest = 0;
            while (deepest < BLOCKS && held[t][full][deepest]) deepest++;
            const bool removes = drawn(4) == 0;
            if (g == full) i = removes ? deepest - 1 : deepest; // others' gaps are another test's
            if (i < 0 || i == BLOCKS || (removes && !held[t][g][i])) continue;
            const told e = {.removed = removes,
                            .is_public = is_public,
                            .text = t,
                            .block = i,
                            .group = g,
                            .kind = kind[g],
                            .window = window[g],
                            .size = SIZE,
                            .ids = g != full && drawn(3) == 0 ? 1 : SIZE};
            assert_int_equal(tell(feed, number++, &e, 1), COT_OK);
            held[t][g][i] = !removes;
            for (int text = 0; text < TEXTS; text++)
                assert_int_equal(reusable(index, feed, text, BLOCKS),
                                 reusable_plainly((const bool(*)[BLOCKS])held[text], kind, window, groups));
        }
        cot_route_feed_restart(feed); // of an engine that has one group
        assert_int_equal(reusable(index, feed, 0, BLOCKS), 0);
        const told alone = {.ids = SIZE, .size = SIZE};
        assert_int_equal(tell(feed, 0, &alone, 1), COT_OK);
        assert_int_equal(reusable(index, feed, 0, BLOCKS), 1);
        cot_route_feed_close(feed);
        cot_route_index_close(index);
    }
}

/* ---- what else may come ---- */

static void groups_may_come_late(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_route_feed *feed = open_feed(&index);
    const told window = {.kind = "sliding_window", .window = 3, .ids = SIZE, .size = SIZE};
    assert_int_equal(tell(feed, 0, &window, 1), COT_OK); // alone, its blocks are those that there are
    assert_int_equal(reusable(index, feed, 0, BLOCKS), 1);
    const told full = {.kind = "full_attention", .group = 1, .text = 1, .ids = SIZE, .size = SIZE};
    assert_int_equal(tell(feed, 1, &full, 1), COT_OK); // the index is of that group now
    assert_int_equal(reusable(index, feed, 0, BLOCKS), 0);
    assert_int_equal(reusable(index, feed, 1, BLOCKS), 1); // of the other group nothing is told any more
    told beside = window;
    beside.text = 2;
    assert_int_equal(tell(feed, 2, &beside, 1), COT_OK);
    assert_int_equal(reusable(index, feed, 1, BLOCKS), 0);
    assert_int_equal(cot_route_feed_measure(feed)->other_groups, 1);
    // what was routed there is taken to be held in all of them
    assert_int_equal(cot_route_feed_assume(feed, keys[1], 3, 0), COT_OK);
    beside.text = 1;
    assert_int_equal(tell(feed, 3, &beside, 1), COT_OK);
    assert_int_equal(reusable(index, feed, 1, BLOCKS), 3);
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

/* A block that comes again under another name is found by that. */
static void names_may_change(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_route_feed *feed = open_feed(&index);
    for (int renamed = 0; renamed < 2; renamed++) {
        told both[2] = {{.ids = SIZE, .size = SIZE, .renamed = renamed},
                        {.group = 1, .kind = "mamba", .ids = SIZE, .size = SIZE, .renamed = renamed}};
        assert_int_equal(tell(feed, 2 * (uint64_t)renamed, both, 2), COT_OK);
        assert_int_equal(reusable(index, feed, 0, BLOCKS), 1);
        both[0].removed = both[1].removed = true;
        assert_int_equal(tell(feed, 2 * (uint64_t)renamed + 1, both, 2), COT_OK);
        assert_int_equal(reusable(index, feed, 0, BLOCKS), 0);
    }
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

static void groups_may_be_odd(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_route_feed *feed = open_feed(&index);
    const told odd[] = {
        {.ids = SIZE, .size = SIZE},
        {.group = 1, .ids = 4 * SIZE, .size = 4 * SIZE},                   // blocks of another size
        {.group = 2, .ids = SIZE, .size = 0},                              // of no size
        {.group = COT_ROUTE_MOST_GROUPS, .ids = SIZE, .size = SIZE},       // one of too many
        {.group = 3, .kind = "sliding_window", .ids = SIZE, .size = SIZE}, // without a window all is needed
    };
    assert_int_equal(tell(feed, 0, odd, 4), COT_OK);
    assert_int_equal(reusable(index, feed, 0, BLOCKS), 1);
    assert_int_equal(cot_route_feed_measure(feed)->wrong_size, 1);
    assert_int_equal(cot_route_feed_measure(feed)->wrong_size_groups, 1 << 1);
    assert_int_equal(tell(feed, 1, &odd[4], 1), COT_OK);
    assert_int_equal(reusable(index, feed, 0, BLOCKS), 1);
    const told gone = {.removed = true, .group = 3};
    assert_int_equal(tell(feed, 2, &gone, 1), COT_OK);
    assert_int_equal(reusable(index, feed, 0, BLOCKS), 0);
    const told wrong = {
        .block = 1, .ids = 1, .size = SIZE}; // in the first group ids are what keys are made of
    assert_int_equal(tell(feed, 3, &wrong, 1), COT_MALFORMED);
    const told large[] = {{.ids = 4 * SIZE, .size = 4 * SIZE},
                          {.group = 15, .ids = SIZE / 2, .size = SIZE / 2}};
    assert_int_equal(tell(feed, 4, large, 2), COT_OK); // the index's own group, too
    assert_int_equal(cot_route_feed_measure(feed)->wrong_size, 3);
    assert_int_equal(cot_route_feed_measure(feed)->wrong_size_groups, 1 << 0 | 1 << 1 | 1 << 15);
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_groups_have_what_they_need),
        cmocka_unit_test(groups_may_come_late),
        cmocka_unit_test(names_may_change),
        cmocka_unit_test(groups_may_be_odd),
    };
    make_keys();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
