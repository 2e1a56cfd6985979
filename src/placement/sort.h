/* Indices in the order of their keys: a stable radix sort that skips the digits in which no two keys differ. */
#ifndef COT_PLACEMENT_SORT_H
#define COT_PLACEMENT_SORT_H
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_sort_item {
    uint64_t key;
    int32_t index;
} cot_sort_item;

/* Orders `index` [n] by key[i] (>= 0), rising or falling, equal keys by rising i; `scratch` holds 2n items. */
void cot_sort_indices(int32_t *index, const double *key, int32_t n, bool falling, cot_sort_item *scratch);

#endif
