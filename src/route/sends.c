#include "route/sends.h"

/* Of one layer: cells from `begin` to `end`. */
static double sends_of_layer(const cot_route_placement *p, const cot_route_calls *calls, uint32_t begin,
                             uint32_t end, size_t home)
{
    double absent[COT_ROUTE_MOST_HOMES], sends = 0;
    uint64_t called = 0;
    for (uint32_t i = begin; i < end; i++) {
        const uint64_t ranks = p->ranks_of[calls->cell[i]];
        if (!ranks || ranks >> home & 1) continue;
        const double share = (double)calls->share[i] / __builtin_popcountll(ranks);
        for (uint64_t left = ranks; left; left &= left - 1) {
            const int rank = __builtin_ctzll(left);
            absent[rank] = (called >> rank & 1 ? absent[rank] : 1) * (1 - share);
            called |= UINT64_C(1) << rank;
        }
    }
    for (uint64_t left = called; left; left &= left - 1) sends += 1 - absent[__builtin_ctzll(left)];
    return sends;
}

void cot_route_sends(double *sends, const cot_route_placement *p, const cot_route_calls *calls)
{
    for (size_t home = 0; home < p->homes; home++) sends[home] = 0;
    for (uint32_t begin = 0, end; begin < calls->count; begin = end) {
        const size_t layer = calls->cell[begin] / p->experts;
        for (end = begin + 1; end < calls->count && calls->cell[end] / p->experts == layer;) end++;
        for (size_t home = 0; home < p->homes; home++)
            sends[home] += sends_of_layer(p, calls, begin, end, home);
    }
}
