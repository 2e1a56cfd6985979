#include "predict/assign.h"

#include "coterie/trace.h"

#include <stdlib.h>

void cot_spread_unknown(int16_t *rank, int64_t n, double *load, double *credit, int32_t ranks)
{
    for (int64_t i = 0; i < n; i++) {
        if (rank[i] >= 0) {
            load[rank[i]]++;
            continue;
        }
        double shares = 0;
        int16_t chosen = 0;
        for (int32_t d = 0; d < ranks; d++) shares += 1 / (load[d] + 1);
        for (int16_t d = 0; d < ranks; d++) {
            credit[d] += 1 / ((load[d] + 1) * shares);
            if (credit[d] > credit[chosen]) chosen = d;
        }
        credit[chosen]--;
        rank[i] = chosen;
    }
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void cot_assign_evenly(int16_t *out, uint64_t *order, const int16_t *rank, const uint16_t *confidence,
                       const float *score, int64_t n, int32_t ranks)
{
    const int64_t share = n / ranks;
    int64_t extra = n % ranks, load[COT_TRACE_MAX_RANKS] = {0};
    for (int64_t i = 0; i < n; i++)
        order[i] =
            (rank[i] < 0 ? (uint64_t)1 << 63 : (uint64_t)(UINT16_MAX - confidence[i]) << 32) | (uint64_t)i;
    qsort(order, (size_t)n, sizeof *order, ascending);
    for (int64_t at = 0; at < n; at++) {
        const int64_t i = (int64_t)(order[at] & UINT32_MAX);
        int32_t best = -1;
        for (int32_t d = 0; d < ranks; d++) {
            if (load[d] >= share + (extra > 0)) continue; // no room
            if (d == rank[i]) {
                best = d;
                break;
            }
            if (best < 0 ||
                (rank[i] < 0 ? load[d] < load[best] : score[i * ranks + d] > score[i * ranks + best]))
                best = d;
        }
        extra -= load[best]++ == share;
        out[i] = (int16_t)best;
    }
}
