#include "gateway/reports.h"

#include "route/events.h"

#include <math.h>
#include <msgpack.h>
#include <string.h>

static const msgpack_object *member(const msgpack_object *map, const char *name)
{
    for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const msgpack_object *key = &map->via.map.ptr[i].key;
        if (key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
            !memcmp(key->via.str.ptr, name, key->via.str.size))
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}

/* A number of 0 or more that is finite. */
static bool read_number(double *out, const msgpack_object *map, const char *name)
{
    const msgpack_object *value = member(map, name);
    if (!value) return false;
    if (value->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        *out = (double)value->via.u64;
    else if (value->type == MSGPACK_OBJECT_FLOAT64 || value->type == MSGPACK_OBJECT_FLOAT32)
        *out = value->via.f64;
    else
        return false;
    return isfinite(*out) && *out >= 0;
}

bool cot_gateway_read_step(cot_route_work *work, const void *bytes, size_t count)
{
    msgpack_unpacked memory;
    size_t at = 0;
    double tokens = 0;
    if (!cot_route_is_whole(bytes, count)) return false;
    msgpack_unpacked_init(&memory);
    *work = (cot_route_work){.steps = 1};
    const bool good = msgpack_unpack_next(&memory, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS &&
                      read_number(&tokens, &memory.data, "tokens") &&
                      read_number(&work->prompt_tokens, &memory.data, "prompt_tokens") &&
                      read_number(&work->ns, &memory.data, "observed_ns") && tokens >= work->prompt_tokens;
    work->requests = tokens - work->prompt_tokens; // each of the others decodes one
    msgpack_unpacked_destroy(&memory);
    return good;
}

static bool take_rank(const msgpack_object *entry,
                      void (*take)(void *context, int rank, uint64_t batches, const void *batch,
                                   size_t bytes),
                      void *context)
{
    const msgpack_object *rank = member(entry, "data_parallel_rank"), *seq = member(entry, "seq"),
                         *batch = member(entry, "batch");
    const bool before = seq && seq->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && seq->via.i64 == -1;
    if (!rank || !seq || !batch || rank->type != MSGPACK_OBJECT_POSITIVE_INTEGER || rank->via.u64 > 65535 ||
        (!before && seq->type != MSGPACK_OBJECT_POSITIVE_INTEGER))
        return false;
    msgpack_sbuffer out;
    msgpack_packer packer;
    msgpack_sbuffer_init(&out);
    msgpack_packer_init(&packer, &out, msgpack_sbuffer_write);
    const bool packed = msgpack_pack_object(&packer, *batch) == 0;
    if (packed) take(context, (int)rank->via.u64, before ? 0 : seq->via.u64 + 1, out.data, out.size);
    msgpack_sbuffer_destroy(&out);
    return packed;
}

bool cot_gateway_read_snapshot(const void *bytes, size_t count,
                               void (*take)(void *context, int rank, uint64_t batches, const void *batch,
                                            size_t batch_bytes),
                               void *context)
{
    msgpack_unpacked memory;
    size_t at = 0;
    if (!cot_route_is_whole(bytes, count)) return false;
    msgpack_unpacked_init(&memory);
    bool good = msgpack_unpack_next(&memory, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS;
    const msgpack_object *ranks = good ? member(&memory.data, "ranks") : NULL;
    good = ranks && ranks->type == MSGPACK_OBJECT_ARRAY;
    for (uint32_t i = 0; good && i < ranks->via.array.size; i++)
        good = take_rank(&ranks->via.array.ptr[i], take, context);
    msgpack_unpacked_destroy(&memory);
    return good;
}
