/* The scheduler: one warp of a rank that knows what its tiles, packets and homes wait for.
 *
 *   GATE (some tokens' logits of some experts; who ends the last of these tokens routes them) ... all -> SEND (packets for one rank)
 *   tile (rows of one expert) -> UP (some columns) ... all -> DOWN (some columns) ... all of one home -> its reply signal
 *     reduced: ... all of received rows -> REPLY (up to 16 of them) ... all of one home -> its reply signal
 *   reply signals of all ranks -> COMBINE (some tokens) ... all -> end
 *     one rank, exact, few tokens (alone): DOWN -> a token's columns are added with its last expert's (process.h); UPs of all tiles -> end
 *
 * It hears of an end once for all GATEs, for a tile, for a REPLY and for all COMBINEs: parts are counted, and a tile's DOWNs put in
 * the queue, by the processors (queue.h). A tile at work has one of 32 lanes, with room for its activations; lane l of the warp
 * keeps account of it, and of what is owed to ranks l and l + 32. Who publishes a task releases what the scheduler knows, and that
 * is all that led to it. */
#ifndef COT_CUDA_SCHEDULE_H
#define COT_CUDA_SCHEDULE_H
#include "cuda/order.h"
#include "cuda/queue.h"

namespace cot {

/* What a lane alone knows comes first, what is the same in all lanes second. */
struct schedule {
    int tile; // of this lane of tiles: -1 - i: the i-th of the shared expert
    int rows;
    bool busy;
    uint32_t answered[2]; // of ranks `lane` and `lane` + 32
    bool told[2];

    int taken, looked;           // ends that were heard of; how many of them when all lanes looked
    int complete;                // reduced: received rows whose entries are all there
    int tiles_begun, tiles_open; // of released ones; of all at work
    int tiles_ordered;           // of released ones, where their slots order them
    int shared_begun, shared_tiles;
    uint64_t news; // the last that was heard
    bool gated, unsound, combining, combined;
    bool counted; // alone: how many tiles there are
};

COT_DEVICE uint32_t lanes_below()
{
    return (1u << lane_of_warp()) - 1;
}

/* Of released tiles those that have not been ordered, by their slots. */
template <scope S> COT_DEVICE void order_tiles(const fused_warp<S> &w, schedule &s)
{
    const int known = released_of(s.news), first = s.tiles_ordered;
    if (first == known) return;
    order_by_slots(w, w.rank.released + first, known - first, w.rank.ordered + first, w.rank.ordered_counts);
    s.tiles_ordered = known;
    COT_UNLESS(schedule_order_for_all) __syncwarp();
}

/* The i-th tile of experts that begins, and how many rows it has. */
template <typename Engine, scope S> COT_DEVICE int nth_tile(const fused_warp<S> &w, int i, int &rows)
{
    if (Engine::BY_SLOTS) {
        rows = w.rank.tile_rows[w.rank.ordered[i]];
        return w.rank.ordered[i];
    }
    const int released = w.rank.released[i];
    rows = released & 255;
    return released >> 8;
}

/* Gives free lanes the tiles that may run, all at once: experts' first, since others wait for them. */
template <typename Engine, scope S> COT_DEVICE void begin_tiles(const fused_warp<S> &w, schedule &s)
{
    if (Engine::BY_SLOTS) order_tiles(w, s);
    const int routed = released_of(s.news) - s.tiles_begun,
              own = s.gated ? s.shared_tiles - s.shared_begun : 0;
    uint32_t chosen = __ballot_sync(ALL_LANES, !s.busy);
    const int unused = static_cast<int>(__popc(chosen)), experts = routed < unused ? routed : unused,
              shared = own < unused - experts ? own : unused - experts;
    if (experts + shared == 0) return;
    const tile_parts most = parts_of_tiles<Engine>(w.call);
    const int nth = static_cast<int>(__popc(chosen & lanes_below()));
    int ups = 0; // of this lane's new tile
    if (!s.busy && nth < experts + shared) {
        const bool of_expert = nth < experts;
        s.busy = true;
        if (of_expert) {
            s.tile = nth_tile<Engine>(w, s.tiles_begun + nth, s.rows);
        } else {
            s.tile = -1 - (s.shared_begun + nth - experts);
            s.rows = shared_tile_rows(w, -1 - s.tile);
        }
        ups = parts_of<Engine>(up_columns(w.call.networks[!of_expert]), s.rows);
        w.rank.lane_tile[lane_of_warp()] = s.tile;
        store_relaxed<scope::gpu>(
            &w.rank.state->tile_left[lane_of_warp()],
            static_cast<uint32_t>(ups) +
                TILE_DOWN * static_cast<uint32_t>(parts_of<Engine>(w.call.gate.hidden, s.rows)));
    }
    s.tiles_begun += experts;
    s.shared_begun += shared;
    s.tiles_open += experts + shared;
    int all = ups;
    for (int by = 16; by; by /= 2) all += __shfl_xor_sync(ALL_LANES, all, by);
    uint32_t at = begin_tasks(w, all);
    for (int i = 0; i < experts + shared; i++, chosen &= chosen - 1) {
        const int lane = static_cast<int>(__popc((chosen & (0u - chosen)) - 1)),
                  count = __shfl_sync(ALL_LANES, ups, lane);
        put_tasks(w, at, task::up, lane * most.up, count);
        at += static_cast<uint32_t>(count);
    }
}

/* Adds to `mine` how many lanes have ranks `lane` and `lane` + 32 as their `home`; -1: none. */
COT_DEVICE void count_homes(int ranks, int home, uint32_t (&mine)[2])
{
    COT_EACH (half, 2)
        for (int r = 0; r < 32 && r + 32 * half < ranks; r++) {
            const uint32_t count =
                static_cast<uint32_t>(__popc(__ballot_sync(ALL_LANES, home == r + 32 * half)));
            if (lane_of_warp() == r) mine[half] += count;
        }
}

/* So many replies to ranks `lane` and `lane` + 32 are put. */
template <scope S>
COT_DEVICE void count_answers(const fused_warp<S> &w, schedule &s, const uint32_t (&mine)[2])
{
    const int lane = lane_of_warp();
    for (int half = 0; half < 2; half++) {
        s.answered[half] += mine[half];
        if (mine[half])
            count_messages(w.net, lane + 32 * half,
                           mine[half] * static_cast<size_t>(w.call.layout.reply_bytes), mine[half],
                           PHASE_COMBINE);
    }
}

/* exact: a tile's replies are all put, and what it owed to each home is answered. */
template <typename Engine, scope S>
COT_DEVICE void answer_tile(const fused_warp<S> &w, schedule &s, int tile, int rows)
{
    constexpr int LOOKS = Engine::ROWS / 32; // that a warp takes at what each row of a tile has
    const int lane = lane_of_warp();
    const int32_t *const home = w.rank.tile_home + w.first_of(tile);
    int homes[LOOKS];
    uint32_t mine[2] = {0, 0};
    if (w.net.ranks == 1) {
        s.answered[0] += lane == 0 ? static_cast<uint32_t>(rows) : 0u;
        return;
    }
    COT_EACH (i, LOOKS) homes[i] = lane + 32 * i < rows ? home[lane + 32 * i] : -1;
    COT_EACH (i, LOOKS) count_homes(w.net.ranks, homes[i], mine);
    count_answers(w, s, mine);
}

/* reduced: a tile's entries are there; received rows that lacked no other may be added up. A tile has a row once at most. */
template <typename Engine, scope S>
COT_DEVICE void complete_rows(const fused_warp<S> &w, schedule &s, int tile, int rows)
{
    constexpr int LOOKS = Engine::ROWS / 32;
    const int lane = lane_of_warp(), begin = s.complete;
    const int32_t *const received = w.rank.tile_home + w.first_of(tile);
    uint32_t done[LOOKS];
    int count = 0;
    COT_UNLESS(schedule_tiles_in_turn) __syncwarp(); // another lane may have counted a row of the tile before
    COT_EACH (i, LOOKS) {
        const int row = lane + 32 * i;
        done[i] = __ballot_sync(ALL_LANES, row < rows && --w.rank.row_left[received[row]] == 0);
        count += static_cast<int>(__popc(done[i]));
    }
    int before = 0;
    COT_EACH (i, LOOKS) {
        if (done[i] >> lane & 1) {
            const int at = before + static_cast<int>(__popc(done[i] & lanes_below())),
                      row = received[lane + 32 * i];
            const bool last = at == count - 1 || at % FUSED_CHUNK == FUSED_CHUNK - 1;
            w.rank.complete[begin + at] = last ? -1 - row : row;
        }
        before += static_cast<int>(__popc(done[i]));
    }
    s.complete += count;
    publish(w, task::reply, begin, (count + FUSED_CHUNK - 1) / FUSED_CHUNK, FUSED_CHUNK);
}

/* The complete rows from `first` on, those of one task, are added up and put. */
template <scope S> COT_DEVICE void answer_rows(const fused_warp<S> &w, schedule &s, int first)
{
    const int lane = lane_of_warp();
    const int row = lane < FUSED_CHUNK && first + lane < s.complete ? w.rank.complete[first + lane] : 0;
    const uint32_t ends = __ballot_sync(ALL_LANES, row < 0), last = ends & (0u - ends);
    const bool of_task = (last & lanes_below()) == 0;
    uint32_t mine[2] = {0, 0};
    count_homes(w.net.ranks,
                of_task ? (row < 0 ? -1 - row : row) / static_cast<int>(w.call.layout.tokens) : -1, mine);
    count_answers(w, s, mine);
}

/* All parts of a lane's tile are done. */
template <typename Engine, scope S> COT_DEVICE void end_tile(const fused_warp<S> &w, schedule &s, int lane)
{
    const int tile = __shfl_sync(ALL_LANES, s.tile, lane), rows = __shfl_sync(ALL_LANES, s.rows, lane);
    if (lane_of_warp() == lane) s.busy = false;
    s.tiles_open--;
    if (tile >= 0 && w.call.reduced)
        complete_rows<Engine>(w, s, tile, rows);
    else if (tile >= 0)
        answer_tile<Engine>(w, s, tile, rows);
}

/* All own tokens are routed: packets may go, and the subscriber may have what is for this rank. */
template <scope S> COT_DEVICE void end_gate(const fused_warp<S> &w, schedule &s)
{
    const int ranks = w.net.ranks;
    s.gated = true;
    uint32_t unsound = 0;
    if (lane_of_warp() == 0) unsound = load_relaxed<scope::gpu>(&w.rank.state->unsound);
    unsound = __shfl_sync(ALL_LANES, unsound, 0);
    s.unsound = unsound != ~0u && !w.call.unsound_pass;
    const uint32_t flags = last_flags(s.unsound, w.tokens > 0);
    if (lane_of_warp() == 0) {
        w.rank.state->unsound_token = static_cast<int32_t>(unsound);
        COT_EITHER(schedule_gated, store_release<scope::cta>(&w.shared->gated, flags),
                   store_relaxed<scope::cta>(&w.shared->gated, flags));
    }
    /* Each begins with the rank behind it, so that not all send to one. */
    const int behind = ranks - 1 - w.net.rank;
    publish(w, task::send, 2 * (w.net.rank + 1) + s.unsound, behind, 2);
    publish(w, task::send, 0 + s.unsound, w.net.rank, 2);
}

/* Tells the ranks all of whose rows are answered; whether all are told. */
template <scope S> COT_DEVICE bool tell_homes(const fused_warp<S> &w, schedule &s)
{
    bool all = true;
    COT_EACH (half, 2) {
        const int home = lane_of_warp() + 32 * half;
        if (home >= w.net.ranks) continue;
        if (!s.told[half]) {
            const uint32_t final = load_relaxed<scope::cta>(&w.shared->owed[home]);
            s.told[half] = final && s.answered[half] == final - 1;
            if (s.told[half]) {
                count_messages(w.net, home, 0, 1, PHASE_COMBINE);
                const bool lost = COT_EITHER(fused_reply_is_lost, false, w.net.rank == 1 && home == 2);
                if (!lost) raise<S>(w.net, home, w.reply_signal(w.net.rank), w.epoch);
            }
        }
        all = all && s.told[half];
    }
    return __all_sync(ALL_LANES, all);
}

/* Waits until something has ended or there is news; false: the call has failed. Gives how many ends there are, at most 32, the
 * i-th in `end` of lane i. Where there was one before, more may have come meanwhile: then all lanes look, one each. Other
 * ranks are waited for by the subscriber, which bounds it; own tasks end. */
template <scope S> COT_DEVICE bool next_events(const fused_warp<S> &w, schedule &s, uint64_t &end, int &ends)
{
    const uint64_t *const words = w.rank.finished + s.taken;
    const bool all = s.looked != s.taken;
    bool there = true;
    uint64_t news = s.news;
    s.looked = s.taken;
    end = 0;
    if (all)
        end = COT_EITHER(schedule_acquire_all, load_acquire<scope::gpu>(words + lane_of_warp()),
                         load_relaxed<scope::gpu>(words + lane_of_warp()));
    if (lane_of_warp() == 0) {
        for (bool looked = all;; looked = false) {
            if (!looked) end = load_relaxed<scope::gpu>(words);
            if (end >> 28 == w.epoch) {
                if (!looked)
                    end = COT_EITHER(schedule_acquire, load_acquire<scope::gpu>(words),
                                     load_relaxed<scope::gpu>(words));
                break;
            }
            news = COT_EITHER(schedule_news, load_acquire<scope::cta>(&w.shared->news),
                              load_relaxed<scope::cta>(&w.shared->news));
            if (news != s.news) break;
            if (COT_EITHER(schedule_watch, w.failed(), false)) {
                there = false;
                break;
            }
            back_off();
        }
    }
    COT_UNLESS(schedule_lanes_after_event) __syncwarp();
    s.news = __shfl_sync(ALL_LANES, news, 0);
    const uint32_t missing = ~__ballot_sync(ALL_LANES, end >> 28 == w.epoch);
    ends = static_cast<int>(__popc((missing & (0u - missing)) - 1));
    return __shfl_sync(ALL_LANES, static_cast<int>(there), 0) != 0;
}

COT_DEVICE bool is_void(const schedule &s)
{
    return s.news & COT_FUSED_BAD || !(s.news & COT_FUSED_TOKENS);
}

/* alone: once all tiles are known they may begin, and the last one of them whose UPs are done has the ends behind it. Returns whether all
 * have begun, so that nothing is left to do but what processors do. */
template <typename Engine, scope S> COT_DEVICE bool begin_alone(const fused_warp<S> &w, schedule &s)
{
    if (finals_of(s.news) == 0) return false;
    const int tiles = is_void(s) ? 0 : released_of(s.news) + s.shared_tiles;
    if (!s.counted && lane_of_warp() == 0)
        store_relaxed<scope::gpu>(&w.rank.state->tiles_left, static_cast<uint32_t>(tiles));
    s.counted = true;
    if (tiles) begin_tiles<Engine>(w, s);
    return s.tiles_begun + s.shared_begun == tiles;
}

template <typename Engine, scope S> COT_DEVICE void run_schedule(const fused_warp<S> &w)
{
    const fused_cut gates = gate_cut(static_cast<uint32_t>(w.tokens), w.call.gate.experts, w.call.routing,
                                     Engine::GATE_TILES),
                    combines = combine_cut(static_cast<uint32_t>(w.tokens), w.call.gate.hidden);
    const int combine_tasks = combines.chunks * combines.parts;
    const int down_parts = parts_of_tiles<Engine>(w.call).down;
    schedule s = {};
    s.shared_tiles = shared_tiles(w);
    if (lane_of_warp() == 0) {
        store_relaxed<scope::gpu>(&w.rank.state->gates_left, static_cast<uint32_t>(gates.chunks));
        store_relaxed<scope::gpu>(&w.rank.state->combines_left, static_cast<uint32_t>(combine_tasks));
    }
    for (int i = lane_of_warp(); i < gates.chunks; i += 32)
        store_relaxed<scope::gpu>(w.rank.chunk_left + i, static_cast<uint32_t>(gates.parts));
    publish(w, task::gate, 0, gates.chunks * gates.parts);
    if (!gates.chunks) end_gate(w, s);
    for (;;) {
        uint64_t end;
        int ends;
        if (!next_events(w, s, end, ends)) return;
        for (int i = 0; i < ends; i++) {
            const uint64_t word = __shfl_sync(ALL_LANES, end, i);
            const task kind = kind_of(word);
            if (kind == task::gate) end_gate(w, s);
            if (kind == task::down) end_tile<Engine>(w, s, number_of(word) / down_parts);
            if (kind == task::reply) answer_rows(w, s, number_of(word));
            if (kind == task::combine) s.combined = true;
        }
        s.taken += ends;
        if (w.alone()) {
            if (begin_alone<Engine>(w, s)) break;
            continue;
        }
        begin_tiles<Engine>(w, s);
        const bool all_told = tell_homes(w, s);
        const bool tiles_done =
            s.tiles_open == 0 && s.tiles_begun == released_of(s.news) && s.shared_begun == s.shared_tiles;
        const bool all_in = finals_of(s.news) == w.net.ranks && replied_of(s.news) == w.net.ranks;
        if (!s.combining && all_in && tiles_done) {
            s.combining = true;
            s.combined = is_void(s) || !combine_tasks;
            if (!s.combined) publish(w, task::combine, 0, combine_tasks);
        }
        if (s.combined && all_told) break;
    }
    if (lane_of_warp() == 0) {
        const outcome o = s.news & COT_FUSED_BAD ? outcome::unsound
                          : is_void(s)           ? outcome::empty
                                                 : outcome::fine;
        w.rank.state->outcome = static_cast<int32_t>(o);
    }
    if (!w.alone() || is_void(s)) publish(w, task::end, 0, w.processors());
}

} // namespace cot

#endif
