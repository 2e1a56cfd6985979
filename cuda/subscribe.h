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

/* Adds a row to the tiles of up to 32 slots, one a lane where `mine`; no two
 * lanes have the same slot. reduced: `home` is the received row, and its
 * entries are numbered as they come. */
template <scope S>
COT_DEVICE void add_entries(const fused_warp<S> &w, subscription &all, bool mine, int row, int home,
                            const cot_fused_entry &entry, int at)
{
    const uint32_t below = (1u << lane_of_warp()) - 1;
    if (w.call.reduced) {
        const uint32_t some = __ballot_sync(ALL_LANES, mine);
        at = all.entries + static_cast<int>(__popc(some & below));
        all.entries += static_cast<int>(__popc(some));
    }
    int32_t open = mine ? w.shared->open[entry.slot] : 0;
    const uint32_t fresh = __ballot_sync(ALL_LANES, mine && open < 0);
    if (mine && open < 0) {
        open = (all.tiles + static_cast<int>(__popc(fresh & below))) << 7;
        w.rank.tile_slot[open >> 7] = entry.slot;
    }
    all.tiles += static_cast<int>(__popc(fresh));
    const int rows = (open & 127) + 1;
    const bool full = mine && rows == FUSED_TILE_ROWS;
    if (mine) {
        const int64_t i = static_cast<int64_t>(open >> 7) * FUSED_TILE_ROWS + rows - 1;
        w.rank.tile_row[i] = row;
        w.rank.tile_weight[i] = entry.weight;
        w.rank.tile_home[i] = home;
        w.rank.tile_at[i] = at;
        w.shared->open[entry.slot] = full ? -1 : open + 1;
    }
    const uint32_t done = __ballot_sync(ALL_LANES, full);
    if (full) {
        w.rank.tile_rows[open >> 7] = FUSED_TILE_ROWS;
        w.rank.released[all.released + static_cast<int>(__popc(done & below))] =
            released_tile(open >> 7, FUSED_TILE_ROWS);
    }
    all.released += static_cast<int>(__popc(done));
    COT_UNLESS(subscribe_rows_in_turn)
    __syncwarp(); // another lane may have that slot next
}

/* reduced: the entries from `first` on are those of a received row. */
template <scope S>
COT_DEVICE void note_row(const fused_warp<S> &w, const subscription &all, int received, int first)
{
    if (!w.call.reduced || lane_of_warp() || first == all.entries) return;
    w.rank.row_entry[received] = first;
    w.rank.row_entries[received] = w.rank.row_left[received] = all.entries - first;
}

/* Entries of rows that follow each other: 32 of them, one a lane, whosever they
 * are, and the 32 behind, which are loaded before these are entered. What is no
 * entry of this rank's has slot NO_SLOT. */
struct entry_window {
    cot_fused_entry now, next;
    int begin;
};
constexpr uint16_t NO_SLOT = 0xffff;

template <typename Load> COT_DEVICE entry_window load_entries(Load load)
{
    return {load(lane_of_warp()), load(32 + lane_of_warp()), 0};
}

/* A row that came from rank `source`. */
struct entering {
    int row, received; // of the region; of all that are received
    int source, first; // row of that rank's replies, from which places count
};

/* Enters entries first to end - 1, which are those of one row; returns how many
 * are this rank's. */
template <scope S, typename Load>
COT_DEVICE int enter_row(const fused_warp<S> &w, subscription &all, entry_window &window, int first, int end,
                         const entering &r, Load load)
{
    const int before = all.entries;
    int entered = 0;
    while (first < end) {
        if (first == window.begin + 32) window = {window.next, load(first + 32 + lane_of_warp()), first};
        const int i = window.begin + lane_of_warp();
        const cot_fused_entry entry = window.now;
        const bool mine = i >= first && i < end && entry.slot != NO_SLOT;
        add_entries(w, all, mine, r.row, w.call.reduced ? r.received : r.source, entry,
                    r.first + entry.place);
        entered += static_cast<int>(__popc(__ballot_sync(ALL_LANES, mine)));
        first = window.begin + 32 < end ? window.begin + 32 : end;
    }
    note_row(w, all, r.received, before);
    return entered;
}

/* A cell of `rows` rows that begins at row `cell` of the region; its first is
 * the source's `number`-th. */
template <scope S>
COT_DEVICE void decode_cell(const fused_warp<S> &w, subscription &all, int source, int64_t cell, int number,
                            int rows)
{
    static_assert(COT_FUSED_CELL_TOKENS == 64, "two heads a lane");
    const cot_fused_layout &l = w.call.layout;
    const int lane = lane_of_warp();
    const uint32_t *const heads = reinterpret_cast<const uint32_t *>(w.region() + w.row_at(cell + rows));
    const cot_fused_entry *const entries = reinterpret_cast<const cot_fused_entry *>(heads + rows);
    const uint32_t low = lane < rows ? heads[lane] : 0, high = 32 + lane < rows ? heads[32 + lane] : 0;
    int total = static_cast<int>((low & 0xff) + (high & 0xff)), before = 0;
    for (int by = 16; by; by /= 2) total += __shfl_xor_sync(ALL_LANES, total, by);
    const auto load = [=](int i) { return i < total ? entries[i] : cot_fused_entry{0, NO_SLOT, 0}; };
    entry_window window = load_entries(load);
    for (int r = 0; r < rows; r++) {
        const uint32_t head = __shfl_sync(ALL_LANES, r < 32 ? low : high, r % 32);
        const int end = before + static_cast<int>(head & 0xff);
        enter_row(w, all, window, before, end,
                  {static_cast<int>(cell) + r, source * static_cast<int>(l.tokens) + number + r, source,
                   static_cast<int>(head >> 8)},
                  load);
        before = end;
    }
    if (lane == 0) w.shared->entered[source] += static_cast<uint32_t>(w.call.reduced ? rows : before);
}

/* Own tokens' rows for own experts. */
template <scope S> COT_DEVICE void enter_own(const fused_warp<S> &w, subscription &all)
{
    const int own = w.net.rank, top_k = w.call.gate.top_k, choices = w.tokens * top_k;
    const int64_t block = own * w.call.layout.block_rows;
    const auto load = [&](int i) {
        cot_fused_entry entry = {0, NO_SLOT, static_cast<uint16_t>(i % top_k)};
        if (i >= choices) return entry;
        const int replica = w.rank.replica[i];
        entry.weight = w.rank.routed_weights[i];
        if (w.call.replica_rank[replica] == own)
            entry.slot = static_cast<uint16_t>(w.call.replica_slot[replica]);
        return entry;
    };
    entry_window window = load_entries(load);
    uint32_t entered = 0, rows = 0;
    for (int t = 0; t < w.tokens; t++) {
        const int count = enter_row(
            w, all, window, t * top_k, (t + 1) * top_k,
            {static_cast<int>(block) + t, own * static_cast<int>(w.call.layout.tokens) + t, own, t * top_k},
            load);
        entered += static_cast<uint32_t>(count);
        rows += count > 0;
    }
    if (lane_of_warp() == 0) w.shared->entered[own] = w.call.reduced ? rows : entered;
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
    for (int i = lane_of_warp(); i < w.call.slots; i += 32) s->open[i] = -1;
    for (int i = lane_of_warp(); i < ranks; i += 32) s->seen[i] = s->entered[i] = 0;
    COT_UNLESS(subscribe_lanes_before_looks) __syncwarp();
    while (all.finals < ranks || all.replied < ranks) {
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
