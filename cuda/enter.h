/* How rows come into tiles. An entry is one expert of a row: of an own token, or of a row that a packet brought. Entries are taken in
 * units, FUSED_UNIT of own tokens' or a cell of a rank's packets, each by as many warps as there are for it, and all units three times:
 *
 *   counted   an entry takes a number among those of its slot     count_unit     units beside each other
 *   summed    a slot's tiles get as many rows                     subscribe.h    one warp, a lane a slot
 *   written   each entry goes to the row that its number says     enter_unit     units beside each other
 *
 * No tile has an order, since what becomes of a row depends on that row alone. `reduced`: a received row's entries have places of their own in
 * the order of experts, which that row alone gives. */
#ifndef COT_CUDA_ENTER_H
#define COT_CUDA_ENTER_H
#include "cuda/fused.h"

namespace cot {

constexpr uint32_t NO_SLOT = 0xffff; // of what is no entry of this rank's
constexpr int ENTERED = 4;           // entries of a lane that are under way at once

/* What an entry adds to its slot's tile. */
struct entering {
    int row, received, home, at; // of the region; of all that are received; of whose replies which
    float weight;
    int before,
        of_row; // reduced: how many of its row's entries for this rank come before it; how many there are
};

/* A unit of own tokens' entries, of which those for this rank's experts are its own. */
template <scope S> struct own_entries {
    const fused_warp<S> &w;
    int begin, total; // of all own tokens' entries
    int64_t at;       // of the first one's number

    __device__ __forceinline__ bool is_own(int entry) const
    {
        return w.call.replica_rank[w.rank.replica[entry]] == w.net.rank;
    }
    __device__ __forceinline__ uint32_t slot(int i) const
    {
        if (i >= total || !is_own(begin + i)) return NO_SLOT;
        return static_cast<uint32_t>(w.call.replica_slot[w.rank.replica[begin + i]]);
    }
    __device__ __forceinline__ entering row(int i) const
    {
        const int own = w.net.rank, top_k = w.call.gate.top_k, entry = begin + i, t = entry / top_k;
        const cot_fused_layout &l = w.call.layout;
        entering e = {static_cast<int>(own * l.block_rows) + t,
                      own * static_cast<int>(l.tokens) + t,
                      own,
                      entry,
                      i < total ? w.rank.routed_weights[entry] : 0,
                      0,
                      0};
        if (w.call.reduced && i < total)
            for (int other = t * top_k; other < (t + 1) * top_k; other++) {
                const bool mine = is_own(other);
                e.of_row += mine;
                e.before += mine && other < entry;
            }
        return e;
    }
};

/* Entries of a cell of up to 64 rows, all of which are this rank's. A lane knows the heads of rows `lane` and `lane` + 32, and how many
 * entries there are until their ends. */
template <scope S> struct cell_entries {
    const fused_warp<S> &w;
    const cot_fused_entry *entries;
    int source, cell, number, rows,
        total; // rows `cell` and on of the region are the source's `number`-th and on
    int64_t at;
    uint32_t heads[2];
    int ends[2];

    __device__ __forceinline__ uint32_t slot(int i) const { return i < total ? entries[i].slot : NO_SLOT; }
    /* By all lanes. */
    template <typename T> __device__ __forceinline__ T of_row(const T (&all)[2], int row) const
    {
        const T low = __shfl_sync(ALL_LANES, all[0], row % 32),
                high = __shfl_sync(ALL_LANES, all[1], row % 32);
        return row < 32 ? low : high;
    }
    __device__ __forceinline__ entering row(int i) const
    {
        int r = 0; // the first whose end is behind i
        for (int step = 32; step; step /= 2)
            if (of_row(ends, r + step - 1) <= i && r + step < rows) r += step;
        const uint32_t head = of_row(heads, r);
        const int count = static_cast<int>(head & 0xff), begin = of_row(ends, r) - count;
        const cot_fused_entry entry = i < total ? entries[i] : cot_fused_entry{0, 0, 0};
        return {cell + r,     source * static_cast<int>(w.call.layout.tokens) + number + r,
                source,       static_cast<int>(head >> 8) + entry.place,
                entry.weight, i - begin,
                count};
    }
};

/* Cells that hold so many rows of a rank. */
template <scope S> COT_DEVICE int cells_of(const fused_warp<S> &w, int rows)
{
    const int most = static_cast<int>(w.call.layout.cell_tokens);
    return (rows + most - 1) / most;
}

/* Rows that a rank has said it sent; later ones of this call may be among them. */
template <scope S> COT_DEVICE int rows_sent(const fused_warp<S> &w, int source)
{
    return static_cast<int>(cot_fused_signal_rows(look_at<S>(w.net, w.dispatch_signal(source))));
}

/* Where numbers of entries begin of a rank's `row`-th row. */
template <scope S> COT_DEVICE int64_t numbers_of(const fused_warp<S> &w, int source, int row)
{
    return (source * w.call.layout.tokens + row) * w.call.gate.top_k;
}

/* All cells of a rank but its last one are full. */
template <scope S> COT_DEVICE cell_entries<S> entries_of_cell(const fused_warp<S> &w, int source, int cell)
{
    static_assert(COT_FUSED_CELL_TOKENS == 64, "two heads a lane");
    const int lane = lane_of_warp(), most = static_cast<int>(w.call.layout.cell_tokens), number = cell * most,
              left = rows_sent(w, source) - number, rows = left < most ? left : most;
    const int64_t at = cot_fused_cell(&w.call.layout, source, cell);
    const uint32_t *const heads = reinterpret_cast<const uint32_t *>(w.region() + w.row_at(at + rows));
    cell_entries<S> from = {w,
                            reinterpret_cast<const cot_fused_entry *>(heads + rows),
                            source,
                            static_cast<int>(at),
                            number,
                            rows,
                            0,
                            numbers_of(w, source, number),
                            {lane < rows ? heads[lane] : 0, 32 + lane < rows ? heads[32 + lane] : 0},
                            {0, 0}};
    COT_EACH (half, 2) {
        int sum = static_cast<int>(from.heads[half] & 0xff);
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, sum, static_cast<unsigned>(by));
            if (lane >= by) sum += other;
        }
        from.ends[half] = from.total + sum;
        from.total += __shfl_sync(ALL_LANES, sum, 31);
    }
    return from;
}

/* Calls act(entries) with those of a rank's i-th unit, by whole warps. */
template <scope S, typename Act> COT_DEVICE void with_unit(const fused_warp<S> &w, int source, int i, Act act)
{
    if (source != w.net.rank) {
        act(entries_of_cell(w, source, i));
        return;
    }
    const int begin = i * FUSED_UNIT, left = w.tokens * w.call.gate.top_k - begin;
    act(own_entries<S>{w, begin, left < FUSED_UNIT ? left : FUSED_UNIT, numbers_of(w, source, 0) + begin});
}

template <scope S, typename From>
COT_DEVICE void count_entries(const fused_warp<S> &w, int source, const From &from, int warp, int warps)
{
    const int lane = lane_of_warp(), step = 32 * warps;
    uint32_t owed = 0; // replies: of entries, or of rows that have any
    COT_ONE_BY_ONE
    for (int first = 32 * warp; first < from.total; first += step * ENTERED) {
        uint32_t slot[ENTERED];
        COT_EACH (j, ENTERED) slot[j] = from.slot(first + step * j + lane);
        COT_EACH (j, ENTERED)
            if (slot[j] != NO_SLOT)
                w.rank.entry_number[from.at + first + step * j + lane] =
                    static_cast<int32_t>(add_relaxed<scope::gpu>(w.rank.slot_count + slot[j], 1u));
        COT_EACH (j, ENTERED) {
            if (first + step * j >= from.total) break;
            bool owes = slot[j] != NO_SLOT;
            if (w.call.reduced) owes = from.row(first + step * j + lane).before == 0 && owes;
            owed += static_cast<uint32_t>(__popc(__ballot_sync(ALL_LANES, owes)));
        }
    }
    if (lane == 0 && owed) add_relaxed<scope::gpu>(w.rank.entered + source, owed);
}

template <scope S, typename From>
COT_DEVICE void enter_entries(const fused_warp<S> &w, const From &from, int warp, int warps)
{
    const int lane = lane_of_warp(), step = 32 * warps;
    COT_ONE_BY_ONE
    for (int first = 32 * warp; first < from.total; first += step * ENTERED) {
        uint32_t slot[ENTERED];
        int number[ENTERED];
        COT_EACH (j, ENTERED) slot[j] = from.slot(first + step * j + lane);
        COT_EACH (j, ENTERED)
            number[j] = slot[j] == NO_SLOT ? 0 : w.rank.entry_number[from.at + first + step * j + lane];
        COT_EACH (j, ENTERED) {
            if (first + step * j >= from.total) break;
            const entering e = from.row(first + step * j + lane);
            if (slot[j] == NO_SLOT) continue;
            const int open = w.rank.slot_row[slot[j]],
                      fresh = w.rank.slot_row[static_cast<uint32_t>(w.call.slots) + slot[j]], n = number[j],
                      at = open >= 0 && (open & (w.tile_rows() - 1)) + n < w.tile_rows() ? open + n
                                                                                         : fresh + n;
            w.rank.tile_row[at] = e.row;
            w.rank.tile_weight[at] = e.weight;
            w.rank.tile_home[at] = w.call.reduced ? e.received : e.home;
            w.rank.tile_at[at] = w.call.reduced ? e.received * w.entries_a_row() + e.before : e.at;
            if (w.call.reduced && e.before == 0)
                w.rank.row_entries[e.received] = w.rank.row_left[e.received] = e.of_row;
        }
    }
}

/* A unit's entries take numbers, and what is owed to its rank is added up; by the `warp`-th of so many whole warps, which take nothing from each
 * other. Cells must have come. */
template <scope S> COT_DEVICE void count_unit(const fused_warp<S> &w, int source, int i, int warp, int warps)
{
    with_unit(w, source, i, [&](const auto &from) { count_entries(w, source, from, warp, warps); });
}

/* They are written, once all that were counted with them are summed; likewise. */
template <scope S> COT_DEVICE void enter_unit(const fused_warp<S> &w, int source, int i, int warp, int warps)
{
    with_unit(w, source, i, [&](const auto &from) { enter_entries(w, from, warp, warps); });
}

/* Nothing is counted yet; by so many threads. */
template <scope S> COT_DEVICE void begin_counts(const fused_warp<S> &w, int thread, int threads)
{
    for (int i = thread; i < w.call.slots; i += threads) store_relaxed<scope::gpu>(w.rank.slot_count + i, 0u);
    for (int i = thread; i < w.net.ranks; i += threads) store_relaxed<scope::gpu>(w.rank.entered + i, 0u);
}

} // namespace cot

#endif
