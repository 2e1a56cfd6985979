#include "coterie/route.h"

#include <stdlib.h>

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
