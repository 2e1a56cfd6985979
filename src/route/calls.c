#include "route/calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 3, FULL = 127 };
/* A signature does not tell of how many tokens it is: nearly all call the cell that counts most (0.86 of gpt-oss-20b's, in the mean), and
 * none is called for sure. */
static const float LARGEST_SHARE = 0.95f;

static int by_cell(const void *a, const void *b)
{
    return (int)(*(const uint32_t *)a >> 8) - (int)(*(const uint32_t *)b >> 8);
}

bool cot_route_calls_read(cot_route_calls *calls, const void *signature, size_t bytes, size_t cells)
{
    const uint8_t *at = signature;
    uint32_t read[COT_ROUTE_MOST_CALLS]; // cell << 8 | count
    const size_t count = bytes / CELL_BYTES;
    calls->count = 0;
    if (bytes % CELL_BYTES || count > COT_ROUTE_MOST_CALLS) return false;
    for (size_t i = 0; i < count; i++, at += CELL_BYTES) {
        const uint32_t cell = (uint32_t)at[0] | (uint32_t)at[1] << 8;
        const bool rises = i && at[2] > (read[i - 1] & 0xff);
        if (cell >= cells || !at[2] || at[2] > FULL || rises) return false;
        read[i] = cell << 8 | at[2];
    }
    if (!count) return true;
    const float most = (float)(read[0] & 0xff);
    qsort(read, count, sizeof *read, by_cell);
    for (size_t i = 0; i < count; i++) {
        if (i && read[i] >> 8 == read[i - 1] >> 8) return false;
        calls->cell[i] = (uint16_t)(read[i] >> 8);
        calls->share[i] = LARGEST_SHARE * (float)(read[i] & 0xff) / most;
    }
    calls->count = (uint32_t)count;
    return true;
}

/* ---- the largest ---- */

/* The k-th largest of `n` values, k from 0; they change their places. */
static float select_largest(float *value, size_t n, size_t k)
{
    size_t first = 0, last = n - 1;
    while (first < last) {
        const float pivot = value[(first + last) / 2];
        size_t i = first, j = last;
        while (i <= j) {
            while (value[i] > pivot) i++;
            while (value[j] < pivot) j--;
            if (i > j) break;
            const float other = value[i];
            value[i++] = value[j];
            value[j] = other;
            if (!j--) break;
        }
        if (k <= j && j < n)
            last = j;
        else if (k >= i)
            first = i;
        else
            break;
    }
    return value[k];
}

/* Of n cells, by rising numbers, those with the largest shares. */
static void keep_largest(cot_route_calls *calls, const uint16_t *cell, const float *share, size_t n)
{
    float moved[COT_ROUTE_MOST_CELLS], least = 0;
    size_t beside = n; // how many of just that share are kept
    if (n > COT_ROUTE_MOST_CALLS) {
        memcpy(moved, share, n * sizeof *moved);
        least = select_largest(moved, n, COT_ROUTE_MOST_CALLS - 1);
        beside = COT_ROUTE_MOST_CALLS;
        for (size_t i = 0; i < n; i++) beside -= share[i] > least;
    }
    calls->count = 0;
    for (size_t i = 0; i < n; i++) {
        if (share[i] < least || (share[i] == least && !beside)) continue;
        beside -= share[i] == least;
        calls->cell[calls->count] = cell[i];
        calls->share[calls->count++] = share[i];
    }
}

void cot_route_calls_join(cot_route_calls *mean, uint32_t texts, const cot_route_calls *one)
{
    const float weight = 1.0f / (float)(texts + 1);
    uint16_t cell[2 * COT_ROUTE_MOST_CALLS];
    float share[2 * COT_ROUTE_MOST_CALLS];
    size_t n = 0;
    for (uint32_t i = 0, k = 0; i < mean->count || k < one->count; n++) {
        const bool old = k == one->count || (i < mean->count && mean->cell[i] <= one->cell[k]),
                   new = i == mean->count || (k < one->count && one->cell[k] <= mean->cell[i]);
        cell[n] = old ? mean->cell[i] : one->cell[k];
        share[n] = (old ? (1 - weight) * mean->share[i] : 0) + (new ? weight * one->share[k] : 0);
        i += old;
        k += new;
    }
    keep_largest(mean, cell, share, n);
}

void cot_route_calls_of(cot_route_calls *calls, const float *share, size_t cells)
{
    uint16_t cell[COT_ROUTE_MOST_CELLS];
    float there[COT_ROUTE_MOST_CELLS];
    size_t n = 0;
    for (size_t c = 0; c < cells; c++) {
        if (!(share[c] > 0)) continue;
        cell[n] = (uint16_t)c;
        there[n++] = fminf(share[c], LARGEST_SHARE);
    }
    keep_largest(calls, cell, there, n);
}
