#include "gateway/peer_message.h"

#include "route/events.h"

#include <msgpack.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t members; // of the list, its name among them
} kinds[] = {{"alive", 5}, {"assigned", 8}, {"began", 2}, {"ended", 3}};

static int append(void *buffer, const char *bytes, size_t count)
{
    return cot_buffer_append(buffer, bytes, count) ? 0 : -1;
}

static int pack_text(msgpack_packer *to, const char *text, size_t bytes)
{
    return msgpack_pack_str_with_body(to, text, bytes);
}

/* 8 bytes each, the lowest first. */
static int pack_numbers(msgpack_packer *to, const uint64_t *number, size_t count)
{
    int failed = msgpack_pack_bin(to, 8 * count);
    for (size_t i = 0; i < count; i++) {
        uint8_t bytes[8];
        for (int k = 0; k < 8; k++) bytes[k] = (uint8_t)(number[i] >> 8 * k);
        failed |= msgpack_pack_bin_body(to, bytes, sizeof bytes);
    }
    return failed;
}

bool cot_peer_message_write(cot_buffer *out, const cot_peer_message *m)
{
    msgpack_packer to;
    msgpack_packer_init(&to, out, append);
    int failed = msgpack_pack_array(&to, kinds[m->kind].members) |
                 pack_text(&to, kinds[m->kind].name, strlen(kinds[m->kind].name)) |
                 msgpack_pack_uint64(&to, m->kind == COT_PEER_ALIVE ? m->router : m->id);
    switch (m->kind) {
    case COT_PEER_ALIVE:
        failed |= msgpack_pack_uint64(&to, m->block_tokens) | pack_text(&to, m->model, m->model_bytes) |
                  pack_numbers(&to, m->under_way, m->count);
        break;
    case COT_PEER_ASSIGNED:
        failed |= pack_text(&to, m->worker, m->worker_bytes) | msgpack_pack_uint64(&to, m->rank) |
                  msgpack_pack_uint64(&to, m->prompt_tokens) | msgpack_pack_uint64(&to, m->cached_tokens) |
                  msgpack_pack_uint64(&to, m->max_tokens) | pack_numbers(&to, m->keys, m->blocks);
        break;
    case COT_PEER_BEGAN:
        break;
    case COT_PEER_ENDED:
        failed |= msgpack_pack_uint64(&to, m->answered);
    }
    return !failed;
}

/* ---- reading ---- */

static bool read_whole(uint64_t *out, const msgpack_object *value)
{
    *out = value->via.u64;
    return value->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
}

static bool read_text(const char **text, size_t *bytes, const msgpack_object *value)
{
    if (value->type != MSGPACK_OBJECT_STR) return false;
    *text = value->via.str.ptr;
    *bytes = value->via.str.size;
    return true;
}

static bool read_numbers(const uint64_t **number, size_t *count, cot_buffer *numbers, size_t most,
                         const msgpack_object *value)
{
    if (value->type != MSGPACK_OBJECT_BIN || value->via.bin.size % 8 || value->via.bin.size / 8 > most)
        return false;
    *count = value->via.bin.size / 8;
    for (size_t i = 0; i < *count; i++) {
        uint64_t one = 0;
        for (int k = 0; k < 8; k++) one |= (uint64_t)(uint8_t)value->via.bin.ptr[8 * i + (size_t)k] << 8 * k;
        if (!cot_buffer_append(numbers, &one, sizeof one)) return false;
    }
    *number = (const uint64_t *)(const void *)numbers->data;
    return true;
}

static bool read_members(cot_peer_message *m, cot_buffer *numbers, const msgpack_object *part)
{
    if (!read_whole(m->kind == COT_PEER_ALIVE ? &m->router : &m->id, &part[1])) return false;
    switch (m->kind) {
    case COT_PEER_ALIVE:
        return read_whole(&m->block_tokens, &part[2]) && read_text(&m->model, &m->model_bytes, &part[3]) &&
               read_numbers(&m->under_way, &m->count, numbers, COT_PEER_MOST_REQUESTS, &part[4]);
    case COT_PEER_ASSIGNED:
        return read_text(&m->worker, &m->worker_bytes, &part[2]) && read_whole(&m->rank, &part[3]) &&
               read_whole(&m->prompt_tokens, &part[4]) && read_whole(&m->cached_tokens, &part[5]) &&
               read_whole(&m->max_tokens, &part[6]) &&
               read_numbers(&m->keys, &m->blocks, numbers, COT_PEER_MOST_KEYS, &part[7]);
    case COT_PEER_BEGAN:
        return true;
    case COT_PEER_ENDED:
        return read_whole(&m->answered, &part[2]);
    }
    return false;
}

static bool read_list(cot_peer_message *m, cot_buffer *numbers, const msgpack_object *list)
{
    const char *name;
    size_t bytes;
    if (list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size < 2 ||
        !read_text(&name, &bytes, list->via.array.ptr))
        return false;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (bytes != strlen(kinds[k].name) || memcmp(name, kinds[k].name, bytes) != 0) continue;
        m->kind = (cot_peer_kind)k;
        return list->via.array.size == kinds[k].members && read_members(m, numbers, list->via.array.ptr);
    }
    return false;
}

bool cot_peer_message_read(cot_peer_message *m, cot_buffer *numbers, const void *bytes, size_t count)
{
    msgpack_unpacked memory;
    size_t at = 0;
    *m = (cot_peer_message){0};
    numbers->bytes = 0;
    if (!cot_route_is_whole(bytes, count)) return false;
    msgpack_unpacked_init(&memory);
    const bool good = msgpack_unpack_next(&memory, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS &&
                      read_list(m, numbers, &memory.data); // texts are the bytes' own
    msgpack_unpacked_destroy(&memory);
    return good;
}
