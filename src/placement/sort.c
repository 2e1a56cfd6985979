#include "placement/sort.h"

#include <string.h>

/* The bits of doubles that are not negative rise as they do. */
static uint64_t bits_of(double x, bool falling)
{
    uint64_t bits;
    x += 0.0; // no -0
    memcpy(&bits, &x, sizeof bits);
    return falling ? ~bits : bits;
}

static void insertion(cot_sort_item *item, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        cot_sort_item x = item[i];
        int32_t k = i;
        for (; k && item[k - 1].key > x.key; k--) item[k] = item[k - 1];
        item[k] = x;
    }
}

void cot_sort_indices(int32_t *index, const double *key, int32_t n, bool falling, cot_sort_item *scratch)
{
    cot_sort_item *from = scratch, *to = scratch + n;
    uint64_t varying = 0;
    for (int32_t i = 0; i < n; i++) {
        from[i] = (cot_sort_item){bits_of(key[i], falling), i};
        varying |= from[i].key ^ from[0].key;
    }
    if (n <= 24) {
        insertion(from, n);
        varying = 0;
    }
    for (int shift = varying ? __builtin_ctzll(varying) : 64; shift < 64; shift += 8) {
        if (!(varying >> shift & 255)) continue;
        int32_t start[257] = {0};
        for (int32_t i = 0; i < n; i++) start[(from[i].key >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];
        for (int32_t i = 0; i < n; i++) to[start[from[i].key >> shift & 255]++] = from[i];
        cot_sort_item *done = to;
        to = from;
        from = done;
    }
    for (int32_t i = 0; i < n; i++) index[i] = from[i].index;
}
