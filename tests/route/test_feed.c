/* Events of KV caches: bytes of each engine's form, and an index that is fed through a transport that loses, repeats, delays
 * and begins anew, against a plain model that applies the same batches to a list of blocks. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/request.h"
#include "route/events.h"
#include "route/feed.h"

#include <math.h>
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_is_read),
        cmocka_unit_test(events_that_lie),
        cmocka_unit_test(what_is_passed_over_is_not_looked_into),
        cmocka_unit_test(what_waits_is_limited),
        cmocka_unit_test(a_batch_of_little_is_read_as_little),
        cmocka_unit_test(times_are_times),
        cmocka_unit_test(snapshots_may_be_large),
        cmocka_unit_test(a_clock_that_goes_back),
        cmocka_unit_test(any_history_leaves_the_truth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
