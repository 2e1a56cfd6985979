/* Ascending sets of token ids, and a table that numbers token strings. */
#ifndef COT_ROUTING_IDS_H
#define COT_ROUTING_IDS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sorts `ids` [n] and drops repeats; returns how many are left at its front. */
int64_t cot_ids_sort(int32_t *ids, int64_t n);
/* Place of `id` in the ascending `ids` [n], which hold it. */
int64_t cot_ids_find(const int32_t *ids, int64_t n, int32_t id);

/* Strings numbered by first appearance. All zero is an empty table. */
typedef struct cot_string_table {
    int64_t n;        // strings
    int64_t *offsets; // [n + 1] into bytes; NULL while n is 0
    char *bytes;
    size_t bytes_room, offsets_room, slots; // slots: a power of two, or 0
    int32_t *slot;                          // [slots] string number + 1, 0 when free
} cot_string_table;

/* The string's number, new or old; -1 when out of memory or beyond INT32_MAX strings. */
int32_t cot_string_number(cot_string_table *table, const char *text, size_t length);
void cot_string_table_free(cot_string_table *table);

#endif
