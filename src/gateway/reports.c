#include "gateway/reports.h"

#include "route/events.h"
#include "route/calls.h"

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

/* A counter of all ranks; 0: not all of them tell. */
static double count_ranks(const msgpack_object *report, const char *name)
{
    const msgpack_object *ranks = member(report, "ranks");
    double all = 0, one;
    for (uint32_t i = 0; ranks && ranks->type == MSGPACK_OBJECT_ARRAY && i < ranks->via.array.size; i++) {
        if (!read_number(&one, &ranks->via.array.ptr[i], name)) return 0;
        all += one;
    }
    return all;
}

bool cot_gateway_read_step(cot_route_work *work, uint64_t *epoch, const void *bytes, size_t count)
{
    msgpack_unpacked memory;
    size_t at = 0;
    double tokens = 0, moved = 0;
    if (!cot_route_is_whole(bytes, count)) return false;
    msgpack_unpacked_init(&memory);
    *work = (cot_route_work){.steps = 1};
    const bool good = msgpack_unpack_next(&memory, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS &&
                      read_number(&tokens, &memory.data, "tokens") &&
                      read_number(&work->prompt_tokens, &memory.data, "prompt_tokens") &&
                      read_number(&work->ns, &memory.data, "observed_ns") && tokens >= work->prompt_tokens;
    work->requests = tokens - work->prompt_tokens; // each of the others decodes one
    if (good) work->experts = count_ranks(&memory.data, "distinct_experts");
    if (good) work->sends = count_ranks(&memory.data, "sends");
    *epoch = good && read_number(&moved, &memory.data, "epoch") ? (uint64_t)fmin(moved, 1e18) : 0;
    msgpack_unpacked_destroy(&memory);
    return good;
}

static bool read_calls(cot_route_calls *calls, const msgpack_object *bytes, size_t cells)
{
    return bytes->type == MSGPACK_OBJECT_BIN &&
           cot_route_calls_read(calls, bytes->via.bin.ptr, bytes->via.bin.size, cells);
}

/* [home, epoch, block, prompt, answer] */
static cot_gateway_told read_request(cot_route_calls *calls, uint64_t *block, const msgpack_object *request,
                                     size_t cells)
{
    const msgpack_object *part = request->via.array.ptr;
    cot_route_calls answer;
    if (request->type != MSGPACK_OBJECT_ARRAY || request->via.array.size < 5 ||
        (part[2].type != MSGPACK_OBJECT_POSITIVE_INTEGER && part[2].type != MSGPACK_OBJECT_NIL) ||
        !read_calls(calls, &part[3], cells) || !read_calls(&answer, &part[4], cells))
        return COT_GATEWAY_TOLD_WRONG;
    if (!calls->count)
        *calls = answer;
    else if (answer.count)
        cot_route_calls_join(calls, 1, &answer);
    if (part[2].type == MSGPACK_OBJECT_NIL || !calls->count) return COT_GATEWAY_TOLD_OTHER;
    *block = part[2].via.u64;
    return COT_GATEWAY_TOLD_REQUEST;
}

/* [home, tokens, counts] */
static cot_gateway_told read_home(cot_gateway_home *home, const msgpack_object *told)
{
    const msgpack_object *part = told->via.array.ptr;
    if (told->type != MSGPACK_OBJECT_ARRAY || told->via.array.size < 3 ||
        part[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER || part[1].type != MSGPACK_OBJECT_FLOAT64 ||
        part[2].type != MSGPACK_OBJECT_BIN)
        return COT_GATEWAY_TOLD_WRONG;
    *home = (cot_gateway_home){part[0].via.u64, part[1].via.f64, part[2].via.bin.ptr, part[2].via.bin.size};
    return COT_GATEWAY_TOLD_HOME;
}

cot_gateway_told cot_gateway_read_popularity(cot_route_calls *calls, uint64_t *block, cot_gateway_home *home,
                                             const void *bytes, size_t count, size_t cells)
{
    msgpack_unpacked memory;
    size_t at = 0;
    cot_gateway_told told = COT_GATEWAY_TOLD_WRONG;
    if (!cot_route_is_whole(bytes, count)) return told;
    msgpack_unpacked_init(&memory);
    if (msgpack_unpack_next(&memory, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS &&
        memory.data.type == MSGPACK_OBJECT_MAP) {
        const msgpack_object *request = member(&memory.data, "request");
        const msgpack_object *counts = member(&memory.data, "home");
        told = request  ? read_request(calls, block, request, cells)
               : counts ? read_home(home, counts)
                        : COT_GATEWAY_TOLD_OTHER;
    }
    msgpack_unpacked_destroy(&memory);
    return told;
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
