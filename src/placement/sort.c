#include "placement/sort.h"

#include <string.h>

/* Keys that are whole numbers below 2^40 sort as such, with the index in the low bits: half the memory moves. */
enum { INDEX_BITS = 20, KEY_BITS = 40 };

static uint64_t key_of(double x, bool whole, bool falling)
{
    uint64_t bits;
    x += 0.0; // no -0
    if (whole) {
        bits = (uint64_t)x;
        return falling ? ((uint64_t)1 << KEY_BITS) - 1 - bits : bits;
    }
    memcpy(&bits, &x, sizeof bits); // the bits of doubles that are not negative rise as they do
    return falling ? ~bits : bits;
}

static bool all_whole(const double *key, int32_t n)
{
    bool whole = n <= 1 << INDEX_BITS;
    for (int32_t i = 0; i < n; i++) whole = whole && key[i] < 0x1p40 && key[i] == (double)(int64_t)key[i];
    return whole;
}

/* One pass of counting, by the 8 bits from `shift` up. */
#define PASS(type, digit)                                                                                    \
    do {                                                                                                     \
        int32_t start[257] = {0};                                                                            \
        for (int32_t i = 0; i < n; i++) start[((from)[i] digit >> shift & 255) + 1]++;                       \
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];                                              \
        for (int32_t i = 0; i < n; i++) to[start[(from)[i] digit >> shift & 255]++] = from[i];               \
        type *done = to;                                                                                     \
        to = from;                                                                                           \
        from = done;                                                                                         \
    } while (0)

static void sort_whole(int32_t *index, const double *key, int32_t n, bool falling, uint64_t *scratch)
{
    uint64_t *from = scratch, *to = scratch + n, varying = 0;
    for (int32_t i = 0; i < n; i++) {
        from[i] = key_of(key[i], true, falling) << INDEX_BITS | (uint64_t)i;
        varying |= from[i] ^ from[0];
    }
    varying = varying >> INDEX_BITS << INDEX_BITS;
    if (n <= 32) {
        for (int32_t i = 1; i < n; i++) {
            uint64_t x = from[i];
            int32_t k = i;
            for (; k && from[k - 1] > x; k--) from[k] = from[k - 1];
            from[k] = x;
        }
        varying = 0;
    }
    for (int shift = varying ? __builtin_ctzll(varying) : 64; shift < 64; shift += 8)
        if (varying >> shift & 255) PASS(uint64_t, );
    for (int32_t i = 0; i < n; i++) index[i] = (int32_t)(from[i] & ((1 << INDEX_BITS) - 1));
}

void cot_sort_indices(int32_t *index, const double *key, int32_t n, bool falling, cot_sort_item *scratch)
{
    if (all_whole(key, n)) {
        sort_whole(index, key, n, falling, (uint64_t *)scratch);
        return;
    }
    cot_sort_item *from = scratch, *to = scratch + n;
    uint64_t varying = 0;
    for (int32_t i = 0; i < n; i++) {
        from[i] = (cot_sort_item){key_of(key[i], false, falling), i};
        varying |= from[i].key ^ from[0].key;
    }
    for (int shift = varying ? __builtin_ctzll(varying) : 64; shift < 64; shift += 8)
        if (varying >> shift & 255) PASS(cot_sort_item, .key);
    for (int32_t i = 0; i < n; i++) index[i] = from[i].index;
}
