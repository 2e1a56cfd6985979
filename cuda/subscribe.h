/* The subscriber: one warp of a rank that looks at the signals, hears what has come of all ranks at once, and has its entries come into tiles
 * (enter.h): by itself where they are one unit, else by tasks, which all processors take. A tile that is
 * full may run at once, the others when all ranks' last packets are in. */
#ifndef COT_CUDA_SUBSCRIBE_H
#define COT_CUDA_SUBSCRIBE_H
#include "cuda/enter.h"
#include "cuda/queue.h"

namespace cot {

/* What it knows beside shared memory; the same in all lanes. */
struct subscription {
    int tiles, released; // in use; told to the scheduler
    int finals, replied; // ranks whose packets are all in; ranks that have
                         // answered, in the order of ranks
    uint32_t flags;      // of all FINALs
};

/* What has come of ranks `lane` and `lane` + 32: units `first` and on, which are to enter; the flags of the last of them. */
struct arrivals {
    int first[2], units[2];
    uint32_t last, flags; // last: a bit for each half
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

/* No slot has a tile that fills. */
template <scope S> COT_DEVICE void begin_open(const fused_warp<S> &w)
{
    for (int i = lane_of_warp(); i < w.call.slots; i += 32) w.shared->open[i] = -1;
}

/* Gives all entries that are counted rows of their slots' tiles: what the open tile has left, and fresh tiles' behind.
 * A slot's `slot_row` is where the first of them goes in the open tile, or -1, and where it would go were the fresh ones' rows
 * continued backwards. By one warp, a lane a slot. */
template <scope S> COT_DEVICE void sum_entries(const fused_warp<S> &w, subscription &all)
{
    const int lane = lane_of_warp(), slots = w.call.slots, shift = w.call.tile_shift, most = w.tile_rows();
    for (int first = 0; first < slots; first += 32) {
        const int slot = first + lane;
        const int count =
            slot < slots ? static_cast<int>(load_relaxed<scope::gpu>(w.rank.slot_count + slot)) : 0;
        if (!__any_sync(ALL_LANES, count)) continue;
        const int32_t open = count ? w.shared->open[slot] : -1;
        const int begun = open >= 0, rows = begun ? open & 127 : 0, until = rows + count,
                  fresh = ((until + most - 1) >> shift) - begun, full = until >> shift;
        uint64_t sums = static_cast<uint64_t>(fresh) | static_cast<uint64_t>(full)
                                                           << 32; // of this lane and those below
        for (int by = 1; by < 32; by *= 2) {
            const uint64_t other = __shfl_up_sync(ALL_LANES, sums, static_cast<unsigned>(by));
            if (lane >= by) sums += other;
        }
        const int tile = all.tiles + static_cast<int>(sums & 0xffffffffu) - fresh,
                  release = all.released + static_cast<int>(sums >> 32) - full;
        if (count) {
            store_relaxed<scope::gpu>(w.rank.slot_count + slot, 0u);
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
        all.tiles += static_cast<int>(sums & 0xffffffffu);
        all.released += static_cast<int>(sums >> 32);
    }
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

/* Whether a dispatch signal says more than that so many rows have come. */
COT_DEVICE bool is_news(uint64_t epoch, uint32_t seen, uint64_t signal)
{
    return cot_fused_signal_epoch(signal) == epoch &&
           (cot_fused_signal_rows(signal) > seen || signal & COT_FUSED_FINAL);
}

/* Looks at all signals until one says something new; false: the call has failed. By lane 0. */
template <scope S>
COT_DEVICE bool wait_for_signals(const fused_warp<S> &w, const subscription &all, int replies)
{
    const int ranks = w.net.ranks, own = w.net.rank;
    const uint64_t began = global_timer();
    for (;;) {
        int missing = ranks + all.replied;
        for (int s = ranks - 1; s >= 0; s--) {
            const uint32_t seen = w.shared->seen[s];
            if (seen == ~0u) continue;
            missing = s == own && missing < ranks ? missing : s;
            if (s == own ? load_relaxed<scope::cta>(&w.shared->gated) != 0
                         : is_news(w.epoch, seen, look_at<S>(w.net, w.dispatch_signal(s))))
                return true;
        }
        if (all.replied < replies && look_at<S>(w.net, w.reply_signal(all.replied)) == w.epoch) return true;
        if (w.failed() || is_too_late<S>(w.net, began, missing % ranks,
                                         missing < ranks ? PHASE_DISPATCH : PHASE_COMBINE, w.epoch))
            return false;
        back_off();
    }
}

/* What has come of a rank, which is this lane's, since it was heard of last: 0, or its signal; of the own rank its flags. */
template <scope S> COT_DEVICE uint64_t hear_rank(const fused_warp<S> &w, int source)
{
    const uint32_t seen = source < w.net.ranks ? w.shared->seen[source] : ~0u;
    if (seen == ~0u) return 0;
    if (source == w.net.rank)
        return COT_EITHER(subscribe_gated, load_acquire<scope::cta>(&w.shared->gated),
                          load_relaxed<scope::cta>(&w.shared->gated));
    const size_t word = w.dispatch_signal(source);
    const uint64_t signal =
        COT_EITHER(subscribe_dispatch_acquire, acquire<S>(w.net, word), look_at<S>(w.net, word));
    return is_news(w.epoch, seen, signal) ? signal : 0;
}

/* What has come of all ranks, each lane's; and of all the answers that come next. */
template <scope S> COT_DEVICE arrivals hear(const fused_warp<S> &w, subscription &all, int replies)
{
    const int lane = lane_of_warp();
    arrivals in = {};
    uint64_t signal[2];
    COT_EACH (half, 2) signal[half] = hear_rank(w, lane + 32 * half);
    int answered = 0;
    if (lane == 0)
        while (all.replied + answered < replies) {
            const size_t word = w.reply_signal(all.replied + answered);
            if (COT_EITHER(subscribe_reply_acquire, acquire<S>(w.net, word), look_at<S>(w.net, word)) !=
                w.epoch)
                break;
            answered++;
        }
    COT_UNLESS(subscribe_lanes_after_signal) __syncwarp();
    all.replied += __shfl_sync(ALL_LANES, answered, 0);
    COT_EACH (half, 2) {
        const int source = lane + 32 * half;
        if (!signal[half]) continue;
        const bool own = source == w.net.rank, bad = signal[half] & COT_FUSED_BAD;
        const int rows = own ? 0 : static_cast<int>(cot_fused_signal_rows(signal[half]));
        uint32_t *const seen = w.shared->seen + source;
        in.first[half] = cells_of(w, static_cast<int>(*seen)); // all that was heard of are full
        in.units[half] = !own  ? cells_of(w, rows) - in.first[half]
                         : bad ? 0
                               : fused_own_units(static_cast<uint32_t>(w.tokens), w.call.gate.top_k);
        const bool last = signal[half] & COT_FUSED_FINAL;
        in.last |= static_cast<uint32_t>(last) << half;
        if (last) in.flags |= static_cast<uint32_t>(cot_fused_signal_flags(signal[half]));
        *seen = last ? ~0u : static_cast<uint32_t>(rows);
    }
    return in;
}

/* Has all units that have come counted, or written, by tasks, and waits for them; false: the call has failed. What they did is known to lane 0
 * alone, until the warp meets. Processors wait for nothing with
 * a task in hand, so all are done if any processor is left. */
template <scope S>
COT_DEVICE bool run_units(const fused_warp<S> &w, const arrivals &in, int units, bool written)
{
    uint32_t *const left = &w.rank.state->units_left;
    const int lane = lane_of_warp(), most = fused_units_most(w.call.layout);
    if (lane == 0) store_relaxed<scope::gpu>(left, static_cast<uint32_t>(units));
    uint32_t at = begin_tasks(w, units);
    COT_EACH (half, 2)
        for (uint32_t some = __ballot_sync(ALL_LANES, in.units[half] > 0); some; some &= some - 1) {
            const int from = static_cast<int>(__popc((some & (0u - some)) - 1)),
                      first = __shfl_sync(ALL_LANES, in.first[half], from),
                      count = __shfl_sync(ALL_LANES, in.units[half], from);
            put_tasks(w, at, task::enter, 2 * ((from + 32 * half) * most + first) + written, count, 2);
            at += static_cast<uint32_t>(count);
        }
    bool done = true;
    if (lane == 0)
        while (load_relaxed<scope::gpu>(left)) {
            done = COT_EITHER(subscribe_watch, !w.failed(), true);
            if (!done) break;
            back_off();
        }
    if (lane == 0 && done)
        COT_EITHER(subscribe_units_acquire, load_acquire<scope::gpu>(left), load_relaxed<scope::gpu>(left));
    return __shfl_sync(ALL_LANES, static_cast<int>(done), 0) != 0;
}

/* Has all that has come enter tiles; false: the call has failed. */
template <scope S>
COT_DEVICE bool enter_arrivals(const fused_warp<S> &w, subscription &all, const arrivals &in)
{
    int units = in.units[0] + in.units[1], source = in.units[0] ? lane_of_warp() : lane_of_warp() + 32,
        first = in.units[0] ? in.first[0] : in.first[1];
    const uint32_t some = __ballot_sync(ALL_LANES, units > 0);
    if (!some) return true;
    const int from = static_cast<int>(__popc((some & (0u - some)) - 1));
    source = __shfl_sync(ALL_LANES, source, from);
    first = __shfl_sync(ALL_LANES, first, from);
    for (int by = 16; by; by /= 2) units += __shfl_xor_sync(ALL_LANES, units, by);
    const bool one = units == 1;
    if (one)
        count_unit(w, source, first, 0, 1);
    else if (!run_units(w, in, units, false))
        return false;
    COT_UNLESS(subscribe_counts_before_sums) __syncwarp();
    sum_entries(w, all);
    COT_UNLESS(subscribe_sums_before_rows) __syncwarp();
    if (one)
        enter_unit(w, source, first, 0, 1);
    else
        return run_units(w, in, units, true);
    return true;
}

/* What had come is in tiles; of ranks whose last packets were among it all is. */
template <scope S> COT_DEVICE void note_finals(const fused_warp<S> &w, subscription &all, const arrivals &in)
{
    uint32_t flags = in.flags;
    int finals = 0;
    for (int by = 16; by; by /= 2) flags |= __shfl_xor_sync(ALL_LANES, flags, by);
    all.flags |= flags;
    COT_EACH (half, 2) {
        const int source = lane_of_warp() + 32 * half;
        const bool last = in.last >> half & 1;
        finals += static_cast<int>(__popc(__ballot_sync(ALL_LANES, last)));
        if (last) // what it is about is told by the news
            store_relaxed<scope::cta>(&w.shared->owed[source],
                                      1 + load_relaxed<scope::gpu>(w.rank.entered + source));
    }
    all.finals += finals;
    if (finals && all.finals == w.net.ranks) release_open(w, all);
}

template <scope S> COT_DEVICE void subscribe(const fused_warp<S> &w)
{
    const int ranks = w.net.ranks;
    subscription all = {};
    begin_open(w);
    begin_counts(w, lane_of_warp(), 32);
    for (int i = lane_of_warp(); i < ranks; i += 32) w.shared->seen[i] = 0;
    COT_UNLESS(subscribe_lanes_before_looks) __syncwarp();
    const int replies = w.alone() ? 0 : ranks; // who is alone answers nobody
    while (all.finals < ranks || all.replied < replies) {
        bool there = true;
        if (lane_of_warp() == 0) there = wait_for_signals(w, all, replies);
        if (!__shfl_sync(ALL_LANES, static_cast<int>(there), 0)) return;
        const arrivals in = hear(w, all, replies);
        if (!enter_arrivals(w, all, in)) return;
        note_finals(w, all, in);
        tell(w, all);
    }
}

} // namespace cot

#endif
