/* Events of KV caches, one by one: bytes of each engine's form, and what is told that cannot be, is large, or nobody knows. */
#include "harness/cmocka.h"
#include "harness/memory.h"

#include "coterie/request.h"
#include "route/events.h"
#include "route/feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void pack_text(msgpack_packer *to, const char *text)
{
    msgpack_pack_str_with_body(to, text, strlen(text));
}

/* ---- bytes of files ---- */

static char *read_file(const char *name, size_t *bytes)
{
    char path[1024], *data = must_allocate(1, 1 << 16);
    snprintf(path, sizeof path, "%s/tests/data/kv_events/%s.msgpack", COT_SOURCE, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *bytes = fread(data, 1, 1 << 16, file);
    fclose(file);
    return data;
}

/* A text of two blocks, ids 100 to 115 and 200 to 215, also with salt "tenant" and LoRA "adapter"; hashes by another implementation
 * of XXH3. */
static void each_form_is_read(void **state)
{
    (void)state;
    static const uint64_t text[] = {UINT64_C(10823191264391160519), UINT64_C(1851371281798816444)},
                          salted[] = {UINT64_C(3321295388274556673), UINT64_C(8886870779792965687)};
    static const struct {
        const char *name;
        const uint64_t *text;
        uint32_t depth;
    } files[] = {{"vllm_map_int", text, 1},     {"vllm_map_bytes", text, 2},  {"vllm_array_int", text, 1},
                 {"vllm_array_bytes", text, 2}, {"sglang_array", text, 2},    {"sglang_cleared", text, 0},
                 {"sglang_map", text, 2},       {"sglang_map_salt", text, 0}, {"sglang_map_salt", salted, 2}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        char *data = read_file(files[i].name, &bytes);
        cot_route_index *index;
        cot_route_feed *feed;
        uint32_t depth;
        assert_int_equal(cot_route_index_open(&index, 1, NULL), COT_OK);
        assert_int_equal(cot_route_feed_open(&feed, index, 0, 16, false, NULL), COT_OK);
        assert_int_equal(cot_route_feed_live(feed, 0, data, bytes, 0, NULL), COT_OK);
        cot_route_index_match(index, &depth, files[i].text, 2);
        assert_int_equal(depth, files[i].depth);
        // Any part of it, and it with a byte behind it, is none.
        for (size_t cut = 0; cut < bytes; cut++) {
            char *part = must_allocate(cut + 1, 1);
            cot_route_batch none;
            memcpy(part, data, cut);
            assert_int_equal(cot_route_batch_read(&none, part, cut, SIZE_MAX, NULL), COT_MALFORMED);
            free(part);
        }
        cot_route_batch none;
        data[bytes] = 0;
        assert_int_equal(cot_route_batch_read(&none, data, bytes + 1, SIZE_MAX, NULL), COT_MALFORMED);
        cot_route_feed_close(feed);
        cot_route_index_close(index);
        free(data);
    }
}

/* ---- events that lie ---- */

/* One event, as vLLM's arrays spell it, of blocks of two ids. */
typedef struct told {
    uint64_t hashes[2], parent; // parent 0: none
    int count, ids[4], id_count, size;
    const char *lora, *extra; // of the first block, beside the LoRA
    const char *medium;
    int group; // of layers
} told;

static cot_status tell(cot_route_feed *feed, uint64_t number, const told *e, cot_error *error)
{
    msgpack_sbuffer bytes;
    msgpack_packer to;
    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&to, &bytes, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 2), msgpack_pack_double(&to, 1), msgpack_pack_array(&to, 1);
    msgpack_pack_array(&to, 10), pack_text(&to, "BlockStored"), msgpack_pack_array(&to, (size_t)e->count);
    for (int i = 0; i < e->count; i++) msgpack_pack_uint64(&to, e->hashes[i]);
    if (e->parent)
        msgpack_pack_uint64(&to, e->parent);
    else
        msgpack_pack_nil(&to);
    msgpack_pack_array(&to, (size_t)e->id_count);
    for (int i = 0; i < e->id_count; i++) msgpack_pack_int(&to, e->ids[i]);
    msgpack_pack_int(&to, e->size), msgpack_pack_nil(&to), pack_text(&to, e->medium ? e->medium : "GPU");
    if (e->lora)
        pack_text(&to, e->lora);
    else
        msgpack_pack_nil(&to);
    msgpack_pack_array(&to, (size_t)e->count);
    for (int i = 0; i < e->count; i++) {
        const char *extra = i ? NULL : e->extra;
        msgpack_pack_array(&to, !!e->lora + (size_t) !!extra);
        if (e->lora) pack_text(&to, e->lora);
        if (extra) pack_text(&to, extra);
    }
    msgpack_pack_int(&to, e->group);
    const cot_status status = cot_route_feed_live(feed, number, bytes.data, bytes.size, 0, error);
    msgpack_sbuffer_destroy(&bytes);
    return status;
}

static void events_that_lie(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_route_feed *feed;
    cot_error error;
    uint64_t n = 0;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    uint64_t key[3];
    for (int i = 0; i < 3; i++) {
        key[i] = cot_cache_local_hash(ids + 2 * i, 2);
        if (i) key[i] = cot_cache_sequence_hash(key[i - 1], key[i]);
    }
    assert_int_equal(cot_route_index_open(&index, 1, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&feed, index, 0, 2, false, NULL), COT_OK);
    const cot_route_feed_figures *f = cot_route_feed_measure(feed);
    uint32_t depth;
#define DEPTH(keys, count) (cot_route_index_match(index, &depth, keys, count), depth)
    const told good = {{71, 72}, 0, 2, {1, 2, 3, 4}, 4, 2, NULL, NULL, NULL, 0};
    assert_int_equal(tell(feed, n++, &good, NULL), COT_OK);
    assert_int_equal(DEPTH(key, 3), 2);
    told e = {{73}, 99, 1, {5, 6}, 2, 2, NULL, NULL, NULL, 0}; // a parent that nobody told of
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(f->unknown_parent, 1);
    e = (told){{73}, 72, 1, {5, 6}, 2, 1, NULL, NULL, NULL, 0}; // ids for two blocks of that size
    assert_int_equal(tell(feed, n++, &e, &error), COT_MALFORMED);
    assert_string_equal(error.message,
                        "a batch of KV events: token_ids are not block_size for each block hash");
    assert_int_equal(f->forgotten, 1);
    assert_int_equal(DEPTH(key, 3), 0);
    assert_int_equal(tell(feed, n++, &good, NULL), COT_OK);
    e = (told){{72}, 71, 1, {5, 6}, 2, 2, NULL, NULL, NULL, 0}; // a name for two blocks
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(f->collided, 1);
    e = (told){{73}, 72, 1, {5, 6}, 2, 2, NULL, NULL, "CPU", 0}; // not where it is computed from
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    e = (told){{73}, 72, 1, {5}, 1, 1, NULL, NULL, NULL, 0}; // blocks of another size
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(f->wrong_size, 1);
    e = (told){{73}, 72, 1, {5, 6}, 2, 2, NULL, "an image", NULL, 0}; // whose hash ids do not give
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(f->not_hashed, 1);
    assert_int_equal(DEPTH(key, 3), 2);
    // A salt is the first block's parent; a LoRA stands in the key.
    e = (told){{81}, 0, 1, {1, 2}, 2, 2, "tuned", "salt", NULL, 0};
    const uint64_t salted = cot_route_key(
        cot_cache_sequence_hash(cot_cache_salt_hash("salt", 4), cot_cache_local_hash(ids, 2)), "tuned");
    assert_int_equal(DEPTH(&salted, 1), 0);
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(DEPTH(&salted, 1), 1);
    e = (told){{82}, 81, 1, {3, 4}, 2, 2, "tuned", NULL, NULL, 0};
    assert_int_equal(tell(feed, n++, &e, NULL), COT_OK);
    assert_int_equal(DEPTH(key, 3), 2);
    // Lists that say they have more than any memory; more bytes than are taken; deep nests.
    const uint8_t list[] = {0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0};
    assert_int_equal(cot_route_feed_live(feed, n++, list, sizeof list, 0, &error), COT_MALFORMED);
    assert_string_equal(error.message, "a batch of KV events is no whole msgpack object");
    const size_t many = COT_ROUTE_MOST_BATCH_BYTES + 1;
    uint8_t *large = must_allocate(many, 1);
    assert_int_equal(cot_route_feed_live(feed, n++, large, many, 0, &error), COT_MALFORMED);
    assert_string_equal(error.message, "a batch of KV events of 16777217 bytes: at most 16777216 are taken");
    memset(large, 0x91, 100);
    assert_int_equal(cot_route_feed_live(feed, n++, large, 100, 0, &error), COT_MALFORMED);
    assert_int_equal(f->unread, 4);
    free(large);
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

/* Begins a batch of so many events, which the caller packs. */
static void pack_head(msgpack_sbuffer *bytes, msgpack_packer *to, double seconds, size_t events)
{
    msgpack_sbuffer_init(bytes);
    msgpack_packer_init(to, bytes, msgpack_sbuffer_write);
    msgpack_pack_array(to, 2), msgpack_pack_double(to, seconds), msgpack_pack_array(to, events);
}

static cot_status end_live(cot_route_feed *feed, uint64_t number, msgpack_sbuffer *bytes, cot_error *error)
{
    const cot_status status = cot_route_feed_live(feed, number, bytes->data, bytes->size, 0, error);
    msgpack_sbuffer_destroy(bytes);
    return status;
}

/* A feed of blocks of two ids on an index of its own. */
static cot_route_feed *open_feed(cot_route_index **index, bool has_snapshot)
{
    cot_route_feed *feed;
    assert_int_equal(cot_route_index_open(index, 1, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&feed, *index, 0, 2, has_snapshot, NULL), COT_OK);
    return feed;
}

static uint64_t key_of_first(void)
{
    return cot_cache_local_hash((const int32_t[]){1, 2}, 2);
}

/* Blocks elsewhere are told of in ways of their own: with ids of larger blocks, or with none; and there are events that nobody knows
 * yet. Neither costs the target what it holds. */
static void what_is_passed_over_is_not_looked_into(void **state)
{
    (void)state;
    cot_route_index *index;
    cot_route_feed *feed = open_feed(&index, false);
    const uint64_t key = key_of_first();
    const told good = {{71}, 0, 1, {1, 2}, 2, 2, NULL, NULL, NULL, 0};
    static const told elsewhere[] = {{{72}, 0, 1, {0}, 0, 0, NULL, NULL, "CPU", 0},
                                     {{72}, 0, 1, {1, 2, 3, 4}, 4, 2, NULL, NULL, "GPU", 1},
                                     {{72}, 0, 1, {1, 2}, 2, 2, NULL, NULL, "GPU", 1}};
    uint64_t n = 0;
    assert_int_equal(tell(feed, n++, &good, NULL), COT_OK);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        assert_int_equal(tell(feed, n++, &elsewhere[i], NULL), COT_OK);
    msgpack_sbuffer bytes;
    msgpack_packer to;
    pack_head(&bytes, &to, 1, 4);
    msgpack_pack_array(&to, 3), pack_text(&to, "BlockRemoved"), msgpack_pack_nil(&to), pack_text(&to, "CPU");
    msgpack_pack_array(&to, 4), pack_text(&to, "BlockRemoved"), msgpack_pack_array(&to, 1),
        msgpack_pack_int(&to, 71), pack_text(&to, "GPU"), msgpack_pack_int(&to, 2);
    msgpack_pack_array(&to, 2), pack_text(&to, "BlockTouched"), msgpack_pack_int(&to, 71);
    msgpack_pack_map(&to, 1), pack_text(&to, "type"), pack_text(&to, "BlockTouched");
    assert_int_equal(end_live(feed, n++, &bytes, NULL), COT_OK);
    const cot_route_feed_figures *f = cot_route_feed_measure(feed);
    assert_int_equal(f->unknown_events, 2);
    assert_int_equal(f->stored, 1);
    assert_int_equal(f->batches, n);
    assert_int_equal(f->removed + f->forgotten, 0);
    assert_true(cot_route_index_holds(index, 0, key));
    cot_error error;
    pack_head(&bytes, &to, 1, 1);
    msgpack_pack_map(&to, 0);
    assert_int_equal(end_live(feed, n++, &bytes, &error), COT_MALFORMED);
    assert_string_equal(error.message, "a batch of KV events: an event has no type");
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

/* Empty batches as well as large ones wait behind a gap, in any order, up to a limit of each. */
static void what_waits_is_limited(void **state)
{
    (void)state;
    cot_route_index *index;
    uint64_t from;
    for (int large = 0; large < 2; large++) {
        cot_route_feed *feed = open_feed(&index, true);
        const cot_route_feed_figures *f = cot_route_feed_measure(feed);
        msgpack_sbuffer bytes;
        msgpack_packer to;
        pack_head(&bytes, &to, 1, (size_t)large);
        const size_t name = large ? (1 << 20) - bytes.size - 16 : 0; // of an event that nobody knows
        char *text = must_allocate(name + 1, 1);
        if (large) msgpack_pack_array(&to, 1), msgpack_pack_str_with_body(&to, text, name);
        const uint64_t most = large ? COT_ROUTE_MOST_WAITING_BYTES / bytes.size : COT_ROUTE_MOST_WAITING;
        for (uint64_t n = 3 * most; n > 2 * most; n--) // falling
            assert_int_equal(cot_route_feed_live(feed, n, bytes.data, bytes.size, 0, NULL), COT_OK);
        assert_int_equal(f->forgotten, 0);
        assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_REPLAY);
        assert_int_equal(cot_route_feed_live(feed, 2 * most, bytes.data, bytes.size, 0, NULL), COT_OK);
        assert_int_equal(f->forgotten, 1);
        assert_int_equal(f->batches, most + 1);
        assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_SNAPSHOT);
        assert_int_equal(from, 3 * most + 1);
        msgpack_sbuffer_destroy(&bytes);
        free(text);
        cot_route_feed_close(feed);
        cot_route_index_close(index);
    }
}

/* Clears that follow one another are one, and events are no larger in memory than they are told. */
static void a_batch_of_little_is_read_as_little(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    msgpack_sbuffer bytes;
    msgpack_packer to;
    cot_route_batch got;
    pack_head(&bytes, &to, 1, 3 * MANY);
    for (int i = 0; i < MANY; i++) {
        msgpack_pack_array(&to, 1), pack_text(&to, "AllBlocksCleared");
        msgpack_pack_array(&to, 1), pack_text(&to, "");
        msgpack_pack_array(&to, 3), pack_text(&to, "BlockRemoved"), msgpack_pack_nil(&to),
            pack_text(&to, "CPU");
    }
    assert_int_equal(cot_route_batch_read(&got, bytes.data, bytes.size, SIZE_MAX, NULL), COT_OK);
    assert_int_equal(got.count, 1);
    assert_int_equal(got.unknown, MANY);
    cot_route_batch_free(&got);
    msgpack_sbuffer_destroy(&bytes);
}

/* One event, of a chain of blocks of two ids each, five bytes an id. */
static void pack_chain(msgpack_packer *to, size_t blocks)
{
    msgpack_pack_array(to, 5), pack_text(to, "BlockStored"), msgpack_pack_array(to, blocks);
    for (size_t i = 0; i < blocks; i++) msgpack_pack_uint64(to, UINT64_C(1) << 60 | i);
    msgpack_pack_nil(to), msgpack_pack_array(to, 2 * blocks);
    for (size_t i = 0; i < 2 * blocks; i++) msgpack_pack_uint32(to, (uint32_t)(70000 + i));
    msgpack_pack_int(to, 2);
}

/* All that a target holds may be more than is taken of a batch. A snapshot that cannot be read is not asked for again. */
static void snapshots_may_be_large(void **state)
{
    (void)state;
    enum { BLOCKS_TOLD = 900000 };
    cot_route_index *index;
    cot_route_feed *feed = open_feed(&index, true);
    const cot_route_feed_figures *f = cot_route_feed_measure(feed);
    msgpack_sbuffer bytes;
    msgpack_packer to;
    cot_error error;
    uint64_t from;
    pack_head(&bytes, &to, 1, 1);
    pack_chain(&to, BLOCKS_TOLD);
    assert_true(bytes.size > COT_ROUTE_MOST_BATCH_BYTES);
    assert_int_equal(cot_route_feed_snapshot(feed, 7, bytes.data, bytes.size, &error), COT_OK);
    assert_int_equal(f->stored, BLOCKS_TOLD);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_NOTHING);
    // The same as a batch is refused, and all forgotten; then a snapshot would help, but is none.
    assert_int_equal(end_live(feed, 7, &bytes, &error), COT_MALFORMED);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_SNAPSHOT);
    assert_int_equal(cot_route_feed_snapshot(feed, 8, "", 0, &error), COT_MALFORMED);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_NOTHING);
    assert_int_equal(from, 8);
    pack_head(&bytes, &to, 2, 0);
    assert_int_equal(end_live(feed, 10, &bytes, NULL), COT_OK);
    cot_route_feed_replay_ended(feed);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_NOTHING);
    assert_int_equal(from, 11);
    // After a restart it is asked for again.
    cot_route_feed_restart(feed);
    pack_head(&bytes, &to, 3, 0);
    assert_int_equal(end_live(feed, 2, &bytes, NULL), COT_OK);
    cot_route_feed_replay_ended(feed);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_SNAPSHOT);
    // A good one of two blocks: nothing more is asked for. One from before it changes nothing.
    pack_head(&bytes, &to, 3, 1);
    pack_chain(&to, 2);
    assert_int_equal(cot_route_feed_snapshot(feed, 3, bytes.data, bytes.size, NULL), COT_OK);
    assert_int_equal(cot_route_feed_asks(feed, &from), COT_ROUTE_WANTS_NOTHING);
    assert_int_equal(from, 3);
    msgpack_sbuffer_destroy(&bytes);
    pack_head(&bytes, &to, 2, 0);
    assert_int_equal(cot_route_feed_snapshot(feed, 2, bytes.data, bytes.size, NULL), COT_OK);
    cot_route_index_figures figures;
    cot_route_index_measure(index, &figures);
    assert_int_equal(figures.pairs, 2);
    // One as of now is as good as what is known, and newer.
    assert_int_equal(cot_route_feed_snapshot(feed, 3, bytes.data, bytes.size, NULL), COT_OK);
    cot_route_index_measure(index, &figures);
    assert_int_equal(figures.pairs, 0);
    msgpack_sbuffer_destroy(&bytes);
    cot_route_feed_close(feed);
    cot_route_index_close(index);
}

/* A time that is none is no batch's, of a snapshot neither: no later one would be later. */
static void times_are_times(void **state)
{
    (void)state;
    static const double none[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        cot_route_batch got;
        cot_error error;
        msgpack_sbuffer bytes;
        msgpack_packer to;
        pack_head(&bytes, &to, none[i], 0);
        assert_int_equal(cot_route_batch_read(&got, bytes.data, bytes.size, SIZE_MAX, &error), COT_MALFORMED);
        assert_string_equal(error.message, "a batch of KV events: no time");
        msgpack_sbuffer_destroy(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_form_is_read),
                                       cmocka_unit_test(events_that_lie),
                                       cmocka_unit_test(what_is_passed_over_is_not_looked_into),
                                       cmocka_unit_test(what_waits_is_limited),
                                       cmocka_unit_test(a_batch_of_little_is_read_as_little),
                                       cmocka_unit_test(times_are_times),
                                       cmocka_unit_test(snapshots_may_be_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
