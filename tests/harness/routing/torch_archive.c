#include "harness/routing/torch_archive.h"

#include <assert.h>
#include <string.h>

void archive_put(archive *a, const void *data, size_t bytes)
{
    assert(a->used + bytes <= sizeof a->bytes);
    if (bytes) memcpy(a->bytes + a->used, data, bytes);
    a->used += bytes;
}

void archive_number(archive *a, uint64_t n, int bytes)
{
    for (int i = 0; i < bytes; i++, n >>= 8) {
        uint8_t byte = (uint8_t)n;
        archive_put(a, &byte, 1);
    }
}

void archive_add(archive *a, const char *name, const void *data, size_t bytes)
{
    assert(a->members < 16);
    a->member[a->members].name = name;
    a->member[a->members].offset = a->used;
    a->member[a->members++].size = bytes;
    archive_put(a, "PK\3\4", 4);
    archive_number(a, 0, 22);
    archive_number(a, strlen(name), 2);
    archive_number(a, 0, 2);
    archive_put(a, name, strlen(name));
    archive_put(a, data, bytes);
}

void archive_end(archive *a, int wide)
{
    size_t begin = a->used;
    for (size_t i = 0; i < a->members; i++) {
        const char *name = a->member[i].name;
        archive_put(a, "PK\1\2", 4);
        archive_number(a, 0, 16);
        archive_number(a, wide ? 0xffffffff : a->member[i].size, 4);
        archive_number(a, wide ? 0xffffffff : a->member[i].size, 4);
        archive_number(a, strlen(name), 2);
        archive_number(a, wide ? 6 + 28 : 0, 2);
        archive_number(a, 0, 10);
        archive_number(a, wide ? 0xffffffff : a->member[i].offset, 4);
        archive_put(a, name, strlen(name));
        if (!wide) continue;
        archive_number(a, 7, 2); // some other field first
        archive_number(a, 2, 2);
        archive_number(a, 0, 2);
        archive_number(a, 1, 2);
        archive_number(a, 24, 2);
        archive_number(a, a->member[i].size, 8);
        archive_number(a, a->member[i].size, 8);
        archive_number(a, a->member[i].offset, 8);
    }
    size_t end = a->used;
    if (wide) {
        archive_put(a, "PK\6\6", 4);
        archive_number(a, 44, 8);
        archive_number(a, 0, 12);
        archive_number(a, a->members, 8);
        archive_number(a, a->members, 8);
        archive_number(a, end - begin, 8);
        archive_number(a, begin, 8);
        archive_put(a, "PK\6\7", 4);
        archive_number(a, 0, 4);
        archive_number(a, end, 8);
        archive_number(a, 1, 4);
    }
    archive_put(a, "PK\5\6", 4);
    archive_number(a, 0, 4);
    archive_number(a, wide ? 0xffff : a->members, 2);
    archive_number(a, wide ? 0xffff : a->members, 2);
    archive_number(a, wide ? 0xffffffff : end - begin, 4);
    archive_number(a, wide ? 0xffffffff : begin, 4);
    archive_number(a, 0, 2);
}

void archive_pickle(archive *a, const void *pickle, size_t bytes, int wide)
{
    static const int32_t numbers[6] = {0, 1, 2, 3, 4, 5};
    a->used = a->members = 0;
    archive_add(a, "stem/data.pkl", pickle, bytes);
    archive_add(a, "stem/byteorder", "little", 6);
    archive_add(a, "stem/data/0", numbers, sizeof numbers);
    archive_end(a, wide);
}
