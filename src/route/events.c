#include "route/events.h"

#include "base/buffer.h"
#include "base/error.h"
#include "coterie/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 8 };
static const double MOST_SECONDS =
    1e18; // behind which no clock is that counts whole seconds, or parts of them

/* ---- what is there before memory is taken for it ---- */

/* Bytes behind a first byte that say how long it is, or are its value; *is_long: what they say are bytes that follow. */
static size_t size_bytes(uint8_t type, bool *is_long)
{
    static const uint8_t behind[32] = {
        [4] = 1,   [5] = 2,  [6] = 4,  [7] = 1,  [8] = 2,  [9] = 4,  [10] = 4, [11] = 8, [12] = 1, [13] = 2,
        [14] = 4,  [15] = 8, [16] = 1, [17] = 2, [18] = 4, [19] = 8, [20] = 2, [21] = 3, [22] = 5, [23] = 9,
        [24] = 17, [25] = 1, [26] = 2, [27] = 4, [28] = 2, [29] = 4, [30] = 2, [31] = 4};
    if (type < 0xc0 || type >= 0xe0) return 0;
    const int place = type - 0xc0;
    *is_long = (place >= 4 && place <= 9) || (place >= 25 && place <= 27);
    return behind[place];
}

bool cot_route_is_whole(const void *object, size_t bytes)
{
    const uint8_t *at = object;
    uint64_t open[MOST_DEPTH + 1] = {1};
    int depth = 0;
    while (depth >= 0) {
        if (!open[depth]) {
            depth--;
            continue;
        }
        if (!bytes) return false;
        open[depth]--;
        const uint8_t type = *at;
        bool is_long = false;
        const size_t behind = size_bytes(type, &is_long);
        if (type == 0xc1 || bytes < 1 + behind) return false;
        uint64_t value = 0;
        for (size_t i = 0; i < behind && i < 4; i++) value = value << 8 | at[1 + i];
        at += 1 + behind;
        bytes -= 1 + behind;
        uint64_t follows = 0, inside = 0;
        if (type >= 0xa0 && type < 0xc0) follows = type & 31;
        if (is_long) follows = value + (type >= 0xc7 && type <= 0xc9); // extensions have a type
        if (follows > bytes) return false;
        at += follows;
        bytes -= follows;
        if (type >= 0x80 && type < 0x90) inside = 2 * (uint64_t)(type & 15);
        if (type >= 0x90 && type < 0xa0) inside = type & 15;
        if (type == 0xdc || type == 0xdd) inside = value;
        if (type == 0xde || type == 0xdf) inside = 2 * value;
        if (!inside) continue;
        if (inside > bytes || depth == MOST_DEPTH) return false;
        open[++depth] = inside;
    }
    return !bytes;
}

/* ---- fields ---- */

typedef const msgpack_object object;

static bool is_text(object *o, const char *text)
{
    return o && o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
           !memcmp(o->via.str.ptr, text, o->via.str.size);
}

static bool is_nil(object *o)
{
    return !o || o->type == MSGPACK_OBJECT_NIL;
}

enum { IN_MAPS_ALONE = 1 << 30 };

/* A field of a map by its name or of an array by its place; NULL: it is not there. */
static object *field(object *of, const char *name, uint32_t place)
{
    if (of->type == MSGPACK_OBJECT_ARRAY)
        return place < of->via.array.size ? &of->via.array.ptr[place] : NULL;
    for (uint32_t i = 0; of->type == MSGPACK_OBJECT_MAP && i < of->via.map.size; i++)
        if (is_text(&of->via.map.ptr[i].key, name)) return &of->via.map.ptr[i].val;
    return NULL;
}

static bool read_hash(object *o, uint64_t *hash)
{
    if (!o) return false;
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        *hash = o->via.u64;
    else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *hash = (uint64_t)o->via.i64;
    else if (o->type == MSGPACK_OBJECT_BIN && o->via.bin.size)
        *hash = cot_cache_salt_hash(o->via.bin.ptr, o->via.bin.size);
    else
        return false;
    return true;
}

/* What reads an event: where memory comes from, and what is wrong. */
typedef struct reading {
    msgpack_zone *zone;
    const char *wrong; // NULL: nothing
    bool out_of_memory;
} reading;

static void *take(reading *r, size_t n, size_t bytes)
{
    void *memory = msgpack_zone_malloc(r->zone, (n + 1) * bytes);
    if (!memory) r->out_of_memory = true;
    return memory;
}

static bool wrong(reading *r, const char *what)
{
    r->wrong = what;
    return false;
}

static bool read_hashes(reading *r, object *o, cot_route_event *e)
{
    if (!o || o->type != MSGPACK_OBJECT_ARRAY) return wrong(r, "block_hashes is no list");
    uint64_t *hashes = take(r, o->via.array.size, sizeof *hashes);
    if (!hashes) return false;
    for (uint32_t i = 0; i < o->via.array.size; i++)
        if (!read_hash(&o->via.array.ptr[i], &hashes[i]))
            return wrong(r, "a block hash is neither an integer nor bytes");
    e->hashes = hashes;
    e->count = o->via.array.size;
    return true;
}

static bool read_ids(reading *r, object *list, cot_route_event *e)
{
    if (!list || list->type != MSGPACK_OBJECT_ARRAY) return wrong(r, "token_ids is no list");
    if (list->via.array.size != e->count * e->block_tokens)
        return wrong(r, "token_ids are not block_size for each block hash");
    int32_t *ids = take(r, list->via.array.size, sizeof *ids);
    if (!ids) return false;
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        object *id = &list->via.array.ptr[i];
        if (id->type != MSGPACK_OBJECT_POSITIVE_INTEGER || id->via.u64 > UINT32_MAX)
            return wrong(r, "a token id is not 0 to 4294967295");
        ids[i] = (int32_t)(uint32_t)id->via.u64;
    }
    e->ids = ids;
    return true;
}

/* One entry a block: nil, or what its hash depends on besides ids. Of these the LoRA's name is told beside, and a text's first
 * block may have a salt; from the first block on that has anything else, no hash is known. */
static bool read_extra_keys(reading *r, object *o, cot_route_event *e)
{
    e->told = e->count;
    if (is_nil(o)) return true;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != e->count)
        return wrong(r, "extra_keys are not one entry a block");
    for (uint32_t i = 0; i < o->via.array.size && e->told == e->count; i++) {
        object *keys = &o->via.array.ptr[i];
        if (is_nil(keys)) continue;
        if (keys->type != MSGPACK_OBJECT_ARRAY) return wrong(r, "an entry of extra_keys is no list");
        uint32_t at = keys->via.array.size && e->lora && is_text(keys->via.array.ptr, e->lora);
        if (!i && !e->has_parent && at + 1 == keys->via.array.size &&
            keys->via.array.ptr[at].type == MSGPACK_OBJECT_STR) {
            e->salt = keys->via.array.ptr[at].via.str.ptr;
            e->salt_bytes = keys->via.array.ptr[at++].via.str.size;
        }
        if (at < keys->via.array.size) e->told = i;
    }
    return true;
}

static bool read_lora(reading *r, object *name, object *number, cot_route_event *e)
{
    char *text;
    if (!is_nil(name)) {
        if (name->type != MSGPACK_OBJECT_STR || memchr(name->via.str.ptr, 0, name->via.str.size))
            return wrong(r, "lora_name is no text");
        if (!(text = take(r, name->via.str.size, 1))) return false;
        memcpy(text, name->via.str.ptr, name->via.str.size);
        text[name->via.str.size] = 0;
        e->lora = text;
    } else if (!is_nil(number)) { // older engines tell a number alone
        if (number->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong(r, "lora_id is no number");
        if (!(text = take(r, 32, 1))) return false;
        snprintf(text, 32, "lora_id %llu", (unsigned long long)number->via.u64);
        e->lora = text;
    }
    return true;
}

/* SGLang tells the salt of a text with each of its events; the hashes of later blocks have it of the first. */
static bool read_salt(reading *r, object *o, cot_route_event *e)
{
    if (is_nil(o)) return true;
    if (o->type != MSGPACK_OBJECT_STR) return wrong(r, "cache_salt is no text");
    if (e->has_parent || !o->via.str.size) return true;
    e->salt = o->via.str.ptr;
    e->salt_bytes = o->via.str.size;
    return true;
}

/* Where the blocks are: nil and "GPU" are what is computed from, unless it is another host's. */
static bool is_elsewhere(object *o, uint32_t medium_place, uint64_t group)
{
    object *medium = field(o, "medium", medium_place);
    return group >= COT_ROUTE_MOST_GROUPS || is_text(field(o, "locality", IN_MAPS_ALONE), "REMOTE") ||
           !(is_nil(medium) || is_text(medium, "GPU"));
}

/* Groups of layers but the first are told by their number. */
static uint64_t read_group(object *o, uint32_t place)
{
    object *group = field(o, "group_idx", place);
    return group && group->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? group->via.u64 : 0;
}

/* What the group's layers keep. Of kinds that are not known all of a text is taken to be needed. */
static void read_layers(object *o, cot_route_event *e)
{
    object *kind = field(o, "kv_cache_spec_kind", 10), *window = field(o, "kv_cache_spec_sliding_window", 11);
    const bool has_window = window && window->type == MSGPACK_OBJECT_POSITIVE_INTEGER && window->via.u64;
    if (has_window && (is_text(kind, "sliding_window") || is_text(kind, "sliding_window_mla"))) {
        e->layers = COT_ROUTE_WINDOW;
        e->window = window->via.u64;
    }
    if (is_text(kind, "mamba")) e->layers = COT_ROUTE_STATE;
}

static bool read_size(reading *r, object *size, cot_route_event *e)
{
    if (!size || size->type != MSGPACK_OBJECT_POSITIVE_INTEGER || !size->via.u64 ||
        size->via.u64 > COT_ROUTE_MOST_BLOCK_TOKENS)
        return wrong(r, "block_size is not 1 to 65536");
    e->block_tokens = (size_t)size->via.u64;
    return true;
}

static bool read_stored(reading *r, object *o, cot_route_event *e)
{
    object *parent = field(o, "parent_block_hash", 2);
    e->kind = COT_ROUTE_STORED;
    read_layers(o, e);
    if (!read_hashes(r, field(o, "block_hashes", 1), e) || !read_size(r, field(o, "block_size", 4), e))
        return false;
    e->has_parent = !is_nil(parent);
    if (e->has_parent && !read_hash(parent, &e->parent))
        return wrong(r, "parent_block_hash is neither an integer nor bytes");
    return read_ids(r, field(o, "token_ids", 3), e) &&
           read_lora(r, field(o, "lora_name", 7), field(o, "lora_id", 5), e) &&
           read_salt(r, field(o, "cache_salt", IN_MAPS_ALONE), e) &&
           read_extra_keys(r, field(o, "extra_keys", 8), e);
}

/* Reads an event behind the others of its batch. One that is passed over is not looked into: blocks elsewhere may be told of without
 * ids, or with another number of them. */
static bool read_event(reading *r, object *o, cot_route_batch *batch, size_t *room)
{
    object *type = field(o, "type", 0);
    const bool cleared = is_text(type, "AllBlocksCleared"), removed = is_text(type, "BlockRemoved"),
               stored = is_text(type, "BlockStored");
    if (!type || type->type != MSGPACK_OBJECT_STR) return wrong(r, "an event has no type");
    if (!cleared && !removed && !stored) {
        batch->unknown++;
        return true;
    }
    const uint64_t group = stored ? read_group(o, 9) : removed ? read_group(o, 3) : 0;
    if ((removed && is_elsewhere(o, 2, group)) || (stored && is_elsewhere(o, 6, group))) return true;
    if (cleared && batch->count && batch->events[batch->count - 1].kind == COT_ROUTE_CLEARED) return true;
    void *grown = batch->events;
    if (!cot_grow(&grown, room, batch->count + 1, sizeof *batch->events)) {
        r->out_of_memory = true;
        return false;
    }
    batch->events = grown;
    cot_route_event *e = &batch->events[batch->count++];
    *e = (cot_route_event){.kind = cleared ? COT_ROUTE_CLEARED : COT_ROUTE_REMOVED, .group = group};
    if (cleared) return true;
    if (removed ? read_hashes(r, field(o, "block_hashes", 1), e) : read_stored(r, o, e)) return true;
    if ((!group && e->layers == COT_ROUTE_FULL) || r->out_of_memory) return false;
    r->wrong = NULL;
    e->ids = NULL; // which may be of more blocks than are kept: their names are enough
    e->told = 0;
    batch->count -= !e->count || !e->block_tokens;
    return true;
}

static bool read_seconds(object *o, double *seconds)
{
    if (!o) return false;
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        *seconds = (double)o->via.u64;
    else if (o->type == MSGPACK_OBJECT_FLOAT64 || o->type == MSGPACK_OBJECT_FLOAT32)
        *seconds = o->via.f64;
    else
        return false;
    return fabs(*seconds) <= MOST_SECONDS; // no NaN is
}

static bool read_batch(reading *r, object *o, cot_route_batch *batch)
{
    object *events = field(o, "events", 1);
    size_t room = 0;
    if (!read_seconds(field(o, "ts", 0), &batch->seconds)) return wrong(r, "no time");
    if (!events || events->type != MSGPACK_OBJECT_ARRAY) return wrong(r, "no list of events");
    for (uint32_t i = 0; i < events->via.array.size; i++)
        if (!read_event(r, &events->via.array.ptr[i], batch, &room)) return false;
    return true;
}

cot_status cot_route_batch_read(cot_route_batch *batch, const void *bytes, size_t count, size_t most,
                                cot_error *error)
{
    if (count > most)
        return cot_fail(error, COT_MALFORMED, "a batch of KV events of %zu bytes: at most %zu are taken",
                        count, most);
    if (!cot_route_is_whole(bytes, count))
        return cot_fail(error, COT_MALFORMED, "a batch of KV events is no whole msgpack object");
    *batch = (cot_route_batch){0};
    msgpack_unpacked_init(&batch->memory);
    size_t at = 0;
    const msgpack_unpack_return unpacked = msgpack_unpack_next(&batch->memory, bytes, count, &at);
    reading r = {.zone = batch->memory.zone, .out_of_memory = unpacked == MSGPACK_UNPACK_NOMEM_ERROR};
    if (unpacked == MSGPACK_UNPACK_SUCCESS && !r.zone) r.zone = batch->memory.zone = msgpack_zone_new(64);
    if (unpacked != MSGPACK_UNPACK_SUCCESS || !r.zone)
        r.wrong = "no msgpack";
    else if (read_batch(&r, &batch->memory.data, batch))
        return COT_OK;
    cot_route_batch_free(batch);
    return r.out_of_memory ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a batch of KV events")
                           : cot_fail(error, COT_MALFORMED, "a batch of KV events: %s", r.wrong);
}

void cot_route_batch_free(cot_route_batch *batch)
{
    free(batch->events);
    msgpack_unpacked_destroy(&batch->memory);
    *batch = (cot_route_batch){0};
}
