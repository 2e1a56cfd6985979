#include "routing/ids.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

int64_t cot_ids_sort(int32_t *ids, int64_t n)
{
    int64_t kept = 0;
    if (n) qsort(ids, (size_t)n, sizeof *ids, ascending);
    for (int64_t i = 0; i < n; i++)
        if (!i || ids[i] != ids[i - 1]) ids[kept++] = ids[i];
    return kept;
}

int64_t cot_ids_find(const int32_t *ids, int64_t n, int32_t id)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t hash(const char *text, size_t length)
{
    uint64_t h = length;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = 0;
        memcpy(&word, text + i, length - i < 8 ? length - i : 8);
        h = cot_mix64(h ^ word);
    }
    return h;
}

/* The slot that holds the string, or the free one where it belongs. */
static int32_t *place(const cot_string_table *table, const char *text, size_t length)
{
    size_t i = (size_t)hash(text, length) & (table->slots - 1);
    for (; table->slot[i]; i = (i + 1) & (table->slots - 1)) {
        int64_t begin = table->offsets[table->slot[i] - 1], end = table->offsets[table->slot[i]];
        if ((size_t)(end - begin) == length && !memcmp(table->bytes + begin, text, length)) break;
    }
    return &table->slot[i];
}

/* Room for one more string of `length` bytes; slots stay at most half full. */
static bool reserve(cot_string_table *table, size_t length)
{
    size_t n = (size_t)table->n, used = n ? (size_t)table->offsets[n] : 0;
    if (used + length > table->bytes_room || !table->bytes) {
        size_t room = (used + length) * 2 + 4096;
        char *bytes = realloc(table->bytes, room);
        if (!bytes) return false;
        table->bytes = bytes;
        table->bytes_room = room;
    }
    if (n + 2 > table->offsets_room) {
        size_t room = (n + 2) * 2;
        int64_t *offsets = realloc(table->offsets, room * sizeof *offsets);
        if (!offsets) return false;
        table->offsets = offsets;
        table->offsets_room = room;
        offsets[0] = 0;
    }
    if ((n + 1) * 2 <= table->slots) return true;
    size_t slots = table->slots ? table->slots * 2 : 64;
    int32_t *old = table->slot, *slot = calloc(slots, sizeof *slot);
    if (!slot) return false;
    table->slot = slot;
    table->slots = slots;
    for (size_t i = 0; i < n; i++) {
        const char *text = table->bytes + table->offsets[i];
        *place(table, text, (size_t)(table->offsets[i + 1] - table->offsets[i])) = (int32_t)i + 1;
    }
    free(old);
    return true;
}

int32_t cot_string_number(cot_string_table *table, const char *text, size_t length)
{
    if (table->n == INT32_MAX - 1 || !reserve(table, length)) return -1;
    int32_t *slot = place(table, text, length);
    if (!*slot) {
        int64_t begin = table->offsets[table->n];
        memcpy(table->bytes + begin, text, length);
        table->offsets[++table->n] = begin + (int64_t)length;
        *slot = (int32_t)table->n;
    }
    return *slot - 1;
}

void cot_string_table_free(cot_string_table *table)
{
    free(table->offsets);
    free(table->bytes);
    free(table->slot);
    *table = (cot_string_table){0};
}
