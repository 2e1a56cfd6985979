/* The subscriber: one warp of a rank that looks at the signals, decodes packets
 * as they come, and gathers the rows of each expert in tiles. A tile that is
 * full may run at once, the others when all ranks' last packets are in. */
#ifndef COT_CUDA_SUBSCRIBE_H
#define COT_CUDA_SUBSCRIBE_H
#include "cuda/fused.h"

namespace cot {

/* What it knows beside shared memory; the same in all lanes. */
struct subscription {
    int tiles, released; // in use; told to the scheduler
    int finals, replied; // ranks whose packets are all in; ranks that have
                         // answered, in the order of ranks
    uint32_t flags;      // of all FINALs
    int entries;         // reduced: so far
};

/* Tells the scheduler what has changed. */
template <scope S> COT_DEVICE void tell(const fused_warp<S> &w, const subscription &all)
{
    COT_UNLESS(subscribe_tiles_before_news) __syncwarp();
    const uint64_t news = news_of(all.released, all.finals, all.replied, all.flags);
    if (lane_of_warp() == 0)
        COT_EITHER(subscribe_release, store_release<scope::cta>(&w.shared->news, news),
                   store_relaxed<scope::cta>(&w.shared->news, news));
}

/* No slot has a tile yet. */
template <scope S> COT_DEVICE void begin_slots(const fused_warp<S> &w)
{
    for (int i = lane_of_warp(); i < w.call.slots; i += 32) {
        w.shared->open[i] = -1;
        store_relaxed<scope::cta>(w.rank.slot_count + i, 0u);
    }
}

constexpr uint32_t NO_SLOT = 0xffff;             // of what is no entry of this rank's
constexpr int ENTERED = 4, BATCH = 32 * ENTERED; // entries of a lane, and of the warp, that enter together

/* An entry adds this to its slot's tile; it `opens` or `closes` its row where it is the row's first or last one, of any rank's. */
struct entering {
    int row, received, home, at; // of the region; of all that are received; of whose replies which
    float weight;
    bool opens, closes;
};

/* Own tokens' entries, of which those for this rank's experts are its own. */
template <scope S> struct own_entries {
    const fused_warp<S> &w;
    int total;

    __device__ __forceinline__ uint32_t slot(int i) const
    {
        if (i >= total) return NO_SLOT;
        const int replica = w.rank.replica[i];
        return w.call.replica_rank[replica] == w.net.rank
                   ? static_cast<uint32_t>(w.call.replica_slot[replica])
                   : NO_SLOT;
    }
    __device__ __forceinline__ entering row(int i) const
    {
        const int own = w.net.rank, top_k = w.call.gate.top_k, t = i / top_k, k = i % top_k;
        const cot_fused_layout &l = w.call.layout;
        return {static_cast<int>(own * l.block_rows) + t,
                own * static_cast<int>(l.tokens) + t,
                own,
                i,
                i < total ? w.rank.routed_weights[i] : 0,
                i < total && k == 0,
                i < total && k == top_k - 1};
    }
};

/* Entries of a cell of up to 64 rows, all of which are this rank's. A lane knows the heads of rows `lane` and `lane` + 32, and how many
 * entries there are until their ends. */
template <scope S> struct cell_entries {
    const fused_warp<S> &w;
    const cot_fused_entry *entries;
    int source, cell, number, rows,
        total; // rows `cell` and on of the region are the source's `number`-th and on
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
        const int end = of_row(ends, r), begin = end - static_cast<int>(head & 0xff);
        const cot_fused_entry entry = i < total ? entries[i] : cot_fused_entry{0, 0, 0};
        return {cell + r,
                source * static_cast<int>(w.call.layout.tokens) + number + r,
                source,
                static_cast<int>(head >> 8) + entry.place,
                entry.weight,
                i < total && i == begin,
                i < total && i == end - 1};
    }
};

/* Gives the entries of a batch, which are counted, rows of their slots' tiles: what the open tile has left, and fresh tiles' behind.
 * A slot's `slot_row` is where the first of them goes in the open tile, or -1, and where it would go were the fresh ones' rows
 * continued backwards. */
template <scope S> COT_DEVICE void sum_batch(const fused_warp<S> &w, subscription &all)
{
    const int lane = lane_of_warp(), slots = w.call.slots, shift = w.call.tile_shift, most = w.tile_rows();
    for (int first = 0; first < slots; first += 32) {
        const int slot = first + lane;
        const int count =
            slot < slots ? static_cast<int>(load_relaxed<scope::cta>(w.rank.slot_count + slot)) : 0;
        if (!__any_sync(ALL_LANES, count)) continue;
        const int32_t open = count ? w.shared->open[slot] : -1;
        const int begun = open >= 0, rows = begun ? open & 127 : 0, until = rows + count,
                  fresh = ((until + most - 1) >> shift) - begun, full = until >> shift;
        int sums = fresh | full << 16; // of this lane and those below
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, sums, static_cast<unsigned>(by));
            if (lane >= by) sums += other;
        }
        const int tile = all.tiles + (sums & 0xffff) - fresh, release = all.released + (sums >> 16) - full;
        if (count) {
            store_relaxed<scope::cta>(w.rank.slot_count + slot, 0u);
            w.rank.slot_row[slot] = begun ? ((open >> 7) << shift) + rows : -1;
            w.rank.slot_row[slots + slot] = (tile << shift) - (begun ? most - rows : 0);
            for (int i = 0; i < fresh; i++) w.rank.tile_slot[tile + i] = slot;
            for (int i = 0; i < full; i++) {
                const int whole = begun && i == 0 ? open >> 7 : tile + i - begun;
                w.rank.tile_rows[whole] = most;
                w.rank.released[release + i] = released_tile(whole, most);
            }
            const int left = until & (most - 1), last = fresh ? tile + fresh - 1 : open >> 7;
            w.shared->open[slot] = left ? last << 7 | left : -1;
        }
        sums = __shfl_sync(ALL_LANES, sums, 31);
        all.tiles += sums & 0xffff;
        all.released += sums >> 16;
    }
}

/* reduced: the entries of a received row are those from `row_entry` on, which its first one tells; its last one tells how many there are.
 * `entry` is how many there are before this lane's. Returns how many rows have any, of those whose last entries lanes have. */
template <scope S> COT_DEVICE int note_rows(const fused_warp<S> &w, const entering &e, int entry, bool mine)
{
    if (e.opens) w.rank.row_entry[e.received] = entry;
    COT_UNLESS(subscribe_first_before_last) __syncwarp();
    int count = 0;
    if (e.closes) {
        count = entry + mine - w.rank.row_entry[e.received];
        w.rank.row_entries[e.received] = w.rank.row_left[e.received] = count;
    }
    return static_cast<int>(__popc(__ballot_sync(ALL_LANES, count > 0)));
}

/* Enters all entries of a source in the tiles of their slots, a batch at a time: each takes a number among those of its slot, the slots
 * are summed up, and each is written where its number says. No tile has an order, since what becomes of a row depends on that
 * row alone; reduced: entries are numbered in theirs. */
template <scope S, typename From>
COT_DEVICE void enter(const fused_warp<S> &w, subscription &all, int source, const From &from)
{
    const int lane = lane_of_warp();
    uint32_t entered = 0;
    COT_ONE_BY_ONE
    for (int first = lane; first - lane < from.total; first += BATCH) {
        uint32_t slot[ENTERED], number[ENTERED];
        COT_EACH (j, ENTERED) slot[j] = from.slot(first + 32 * j);
        COT_EACH (j, ENTERED)
            number[j] = slot[j] == NO_SLOT ? 0 : add_relaxed<scope::cta>(w.rank.slot_count + slot[j], 1u);
        COT_UNLESS(subscribe_counts_before_sums) __syncwarp();
        sum_batch(w, all);
        COT_UNLESS(subscribe_sums_before_rows) __syncwarp();
        COT_EACH (j, ENTERED) {
            if (first - lane + 32 * j >= from.total) break;
            const bool mine = slot[j] != NO_SLOT;
            const entering e = from.row(first + 32 * j);
            const uint32_t some = __ballot_sync(ALL_LANES, mine);
            const int entry = all.entries + static_cast<int>(__popc(some & ((1u << lane) - 1)));
            if (mine) {
                const int open = w.rank.slot_row[slot[j]],
                          fresh = w.rank.slot_row[static_cast<uint32_t>(w.call.slots) + slot[j]],
                          n = static_cast<int>(number[j]),
                          at = open >= 0 && (open & (w.tile_rows() - 1)) + n < w.tile_rows() ? open + n
                                                                                             : fresh + n;
                w.rank.tile_row[at] = e.row;
                w.rank.tile_weight[at] = e.weight;
                w.rank.tile_home[at] = w.call.reduced ? e.received : e.home;
                w.rank.tile_at[at] = w.call.reduced ? entry : e.at;
            }
            entered += static_cast<uint32_t>(w.call.reduced ? note_rows(w, e, entry, mine)
                                                            : static_cast<int>(__popc(some)));
            all.entries += static_cast<int>(__popc(some));
        }
    }
    if (lane == 0) w.shared->entered[source] += entered;
}

/* A cell of `rows` rows that begins at row `cell` of the region; its first is
 * the source's `number`-th. */
template <scope S>
COT_DEVICE void decode_cell(const fused_warp<S> &w, subscription &all, int source, int64_t cell, int number,
                            int rows)
{
    static_assert(COT_FUSED_CELL_TOKENS == 64, "two heads a lane");
    const int lane = lane_of_warp();
    const uint32_t *const heads = reinterpret_cast<const uint32_t *>(w.region() + w.row_at(cell + rows));
    cell_entries<S> from = {w,      reinterpret_cast<const cot_fused_entry *>(heads + rows),
                            source, static_cast<int>(cell),
                            number, rows,
                            0,      {lane < rows ? heads[lane] : 0, 32 + lane < rows ? heads[32 + lane] : 0},
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
    enter(w, all, source, from);
}

/* Own tokens' rows for own experts. */
template <scope S> COT_DEVICE void enter_own(const fused_warp<S> &w, subscription &all)
{
    enter(w, all, w.net.rank, own_entries<S>{w, w.tokens * w.call.gate.top_k});
}

/* All packets are in: tiles that are not full may run, too. */
template <scope S> COT_DEVICE void release_open(const fused_warp<S> &w, subscription &all)
{
    const int lane = lane_of_warp();
    for (int first = 0; first < w.call.slots; first += 32) {
        const int slot = first + lane;
        const int32_t open = slot < w.call.slots ? w.shared->open[slot] : -1;
        const uint32_t some = __ballot_sync(ALL_LANES, open >= 0);
        if (open >= 0) {
            w.rank.tile_rows[open >> 7] = open & 127;
            w.rank.released[all.released + static_cast<int>(__popc(some & ((1u << lane) - 1)))] =
                released_tile(open >> 7, open & 127);
        }
        all.released += static_cast<int>(__popc(some));
    }
}

/* A rank's last packet is decoded. */
template <scope S>
COT_DEVICE void note_final(const fused_warp<S> &w, subscription &all, int source, uint32_t flags)
{
    all.flags |= flags;
    if (++all.finals == w.net.ranks) release_open(w, all);
    if (lane_of_warp() == 0) // what it is about is told by the news
        store_relaxed<scope::cta>(&w.shared->owed[source], 1 + w.shared->entered[source]);
}

/* Whether a dispatch signal says more than that so many rows have come. */
COT_DEVICE bool is_news(uint64_t epoch, uint32_t seen, uint64_t signal)
{
    return cot_fused_signal_epoch(signal) == epoch &&
           (cot_fused_signal_rows(signal) > seen || signal & COT_FUSED_FINAL);
}

/* Looks at all signals until one says something new: the rank whose it is and,
 * of a reply, P more; -1: the call has failed. By lane 0. */
template <scope S> COT_DEVICE int look(const fused_warp<S> &w, const subscription &all, uint64_t &signal)
{
    const int ranks = w.net.ranks, own = w.net.rank;
    const uint64_t began = global_timer();
    for (;;) {
        int missing = ranks + all.replied;
        for (int s = ranks - 1; s >= 0; s--) {
            const uint32_t seen = w.shared->seen[s];
            if (seen == ~0u) continue;
            missing = s == own && missing < ranks ? missing : s;
            if (s == own) {
                const uint32_t gated = COT_EITHER(subscribe_gated, load_acquire<scope::cta>(&w.shared->gated),
                                                  load_relaxed<scope::cta>(&w.shared->gated));
                signal = gated;
                if (gated) return s;
                continue;
            }
            const size_t word = w.dispatch_signal(s);
            if (!is_news(w.epoch, seen, look_at<S>(w.net, word))) continue;
            signal = COT_EITHER(subscribe_dispatch_acquire, acquire<S>(w.net, word), look_at<S>(w.net, word));
            return s;
        }
        if (all.replied < ranks) {
            const size_t word = w.reply_signal(all.replied);
            if (look_at<S>(w.net, word) == w.epoch) {
                signal =
                    COT_EITHER(subscribe_reply_acquire, acquire<S>(w.net, word), look_at<S>(w.net, word));
                return ranks + all.replied;
            }
        }
        if (w.failed() || is_too_late<S>(w.net, began, missing % ranks,
                                         missing < ranks ? PHASE_DISPATCH : PHASE_COMBINE, w.epoch))
            return -1;
        back_off();
    }
}

template <scope S> COT_DEVICE void subscribe(const fused_warp<S> &w)
{
    const cot_fused_layout &l = w.call.layout;
    fused_shared *const s = w.shared;
    const int ranks = w.net.ranks;
    subscription all = {};
    begin_slots(w);
    for (int i = lane_of_warp(); i < ranks; i += 32) s->seen[i] = s->entered[i] = 0;
    COT_UNLESS(subscribe_lanes_before_looks) __syncwarp();
    const int replies = w.alone() ? 0 : ranks; // who is alone answers nobody
    while (all.finals < ranks || all.replied < replies) {
        int who = 0;
        uint64_t signal = 0;
        if (lane_of_warp() == 0) who = look(w, all, signal);
        COT_UNLESS(subscribe_lanes_after_signal) __syncwarp();
        who = __shfl_sync(ALL_LANES, who, 0);
        signal = __shfl_sync(ALL_LANES, signal, 0);
        if (who < 0) return;
        if (who >= ranks) {
            all.replied++;
        } else if (who == w.net.rank) {
            if (!(signal & COT_FUSED_BAD)) enter_own(w, all);
            if (lane_of_warp() == 0) s->seen[who] = ~0u;
            note_final(w, all, who, static_cast<uint32_t>(signal));
        } else {
            const int rows = static_cast<int>(cot_fused_signal_rows(signal));
            int seen = static_cast<int>(s->seen[who]);
            for (; seen < rows;
                 seen += static_cast<int>(l.cell_tokens)) { // all cells but the last one are full
                const int left = rows - seen,
                          count = left < l.cell_tokens ? left : static_cast<int>(l.cell_tokens);
                decode_cell(w, all, who, cot_fused_cell(&l, who, seen / l.cell_tokens), seen, count);
            }
            const bool last = signal & COT_FUSED_FINAL;
            COT_UNLESS(subscribe_lanes_before_seen) __syncwarp();
            if (lane_of_warp() == 0) s->seen[who] = last ? ~0u : static_cast<uint32_t>(rows);
            if (last) note_final(w, all, who, static_cast<uint32_t>(cot_fused_signal_flags(signal)));
        }
        tell(w, all);
    }
}

} // namespace cot

#endif
