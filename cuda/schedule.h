/* The scheduler: one warp of a rank that knows which tasks may run, and puts them in the queue that processors take from.
 *
 *   GATE (16 tokens) ... all -> SEND (packets for one rank)
 *   tile (rows of one expert) -> UP (64 columns) ... all -> DOWN (64 columns) ... all of one home -> its reply signal
 *     reduced: ... all of received rows -> REPLY (up to 16 of them) ... all of one home -> its reply signal
 *   reply signals of all ranks -> COMBINE (16 tokens)
 *
 * A tile at work has one of 32 lanes, with room for its activations; lane l of the warp keeps account of it, and of what is
 * owed to ranks l and l + 32. Who publishes a task releases what the scheduler knows, and that is all that led to it. */
#ifndef COT_CUDA_SCHEDULE_H
#define COT_CUDA_SCHEDULE_H
#include "cuda/fused.h"

namespace cot {

/* What a lane alone knows comes first, what is the same in all lanes second. */
struct schedule {
    int tile, left; // of this lane of tiles: -1 and what, or parts to be done
    bool busy, down;
    uint32_t answered[2]; // of ranks `lane` and `lane` + 32
    bool told[2];

    int published, taken;         // tasks; of them known to be done
    int complete;                 // reduced: received rows whose entries are all there
    int gates_left, combine_left; // tasks
    int tiles_begun, tiles_open;  // of released ones; of all at work
    int shared_begun, shared_tiles;
    uint64_t news; // the last that was heard
    bool gated, unsound, combining;
};

/* Puts tasks number, number + 1, ... in the queue. */
template <scope S>
COT_DEVICE void publish(const fused_warp<S> &w, schedule &s, task kind, int number, int count, int step = 1)
{
    COT_UNLESS(schedule_lanes_before_tasks) __syncwarp();
    for (int i = lane_of_warp(); i < count; i += 32) {
        uint64_t *const to = w.rank.ready + s.published + i;
        const uint64_t word = task_word(w.epoch, kind, number + i * step);
        COT_EITHER(schedule_release, store_release<scope::gpu>(to, word),
                   store_relaxed<scope::gpu>(to, word));
    }
    s.published += count;
}

template <typename Engine> COT_DEVICE int parts_of(int columns)
{
    return (columns + Engine::N - 1) / Engine::N;
}

/* Gives free lanes the tiles that may run: experts' first, since others wait for them. */
template <typename Engine, scope S> COT_DEVICE void begin_tiles(const fused_warp<S> &w, schedule &s)
{
    const int expert_parts = parts_of<Engine>(up_columns(w.call.networks[0])),
              shared_parts = parts_of<Engine>(up_columns(w.call.networks[1])),
              most_parts = expert_parts > shared_parts ? expert_parts : shared_parts;
    for (;;) {
        const uint32_t unused = __ballot_sync(ALL_LANES, !s.busy);
        const bool routed = s.tiles_begun < released_of(s.news),
                   own = !routed && s.gated && s.shared_begun < s.shared_tiles;
        if (!unused || !(routed || own)) return;
        const int lane = static_cast<int>(__popc((unused & (0u - unused)) - 1));
        const int parts = routed ? expert_parts : shared_parts;
        if (lane_of_warp() == lane) {
            s.busy = true;
            s.down = false;
            s.tile = routed ? w.rank.released[s.tiles_begun] : -1 - s.shared_begun;
            s.left = parts;
            w.rank.lane_tile[lane] = s.tile;
        }
        s.tiles_begun += routed;
        s.shared_begun += own;
        s.tiles_open++;
        publish(w, s, task::up, lane * most_parts, parts);
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
template <scope S> COT_DEVICE void answer_tile(const fused_warp<S> &w, schedule &s, int tile)
{
    const int lane = lane_of_warp(), rows = w.rank.tile_rows[tile];
    const int32_t *const home = w.rank.tile_home + static_cast<int64_t>(tile) * FUSED_TILE_ROWS;
    uint32_t mine[2] = {0, 0};
    for (int i = 0; i < rows; i++)
        for (int half = 0; half < 2; half++) mine[half] += home[i] == lane + 32 * half;
    count_answers(w, s, mine);
}

/* reduced: a tile's entries are there; received rows that lacked no other may be added up. A tile has a row once at most. */
template <scope S> COT_DEVICE void complete_rows(const fused_warp<S> &w, schedule &s, int tile)
{
    const int lane = lane_of_warp(), rows = w.rank.tile_rows[tile], begin = s.complete;
    const int32_t *const received = w.rank.tile_home + static_cast<int64_t>(tile) * FUSED_TILE_ROWS;
    uint32_t done[2] = {0, 0};
    for (int half = 0; half < 2; half++) {
        const int i = lane + 32 * half;
        done[half] = __ballot_sync(ALL_LANES, i < rows && --w.rank.row_left[received[i]] == 0);
    }
    const int first = static_cast<int>(__popc(done[0])), count = first + static_cast<int>(__popc(done[1]));
    for (int half = 0; half < 2; half++) {
        if (!(done[half] >> lane & 1)) continue;
        const int at = half * first + static_cast<int>(__popc(done[half] & ((1u << lane) - 1))),
                  row = received[lane + 32 * half];
        const bool last = at == count - 1 || at % FUSED_CHUNK == FUSED_CHUNK - 1;
        w.rank.complete[begin + at] = last ? -1 - row : row;
    }
    s.complete += count;
    publish(w, s, task::reply, begin, (count + FUSED_CHUNK - 1) / FUSED_CHUNK, FUSED_CHUNK);
}

/* The complete rows from `first` on, those of one task, are added up and put. */
template <scope S> COT_DEVICE void answer_rows(const fused_warp<S> &w, schedule &s, int first)
{
    const int lane = lane_of_warp();
    uint32_t mine[2] = {0, 0};
    for (bool last = false; !last; first++) {
        const int row = w.rank.complete[first];
        last = row < 0;
        const int home = (last ? -1 - row : row) / static_cast<int>(w.call.layout.tokens);
        for (int half = 0; half < 2; half++) mine[half] += home == lane + 32 * half;
    }
    count_answers(w, s, mine);
}

/* A part of a lane's tile is done. */
template <typename Engine, scope S> COT_DEVICE void end_part(const fused_warp<S> &w, schedule &s, int lane)
{
    const int down_parts = parts_of<Engine>(w.call.gate.hidden);
    const bool whole = lane_of_warp() == lane && --s.left == 0;
    if (!__any_sync(ALL_LANES, whole)) return;
    if (__any_sync(ALL_LANES, whole && s.down)) {
        if (whole) s.busy = false;
        const int tile = __shfl_sync(ALL_LANES, s.tile, lane);
        if (tile >= 0 && w.call.reduced)
            complete_rows(w, s, tile);
        else if (tile >= 0)
            answer_tile(w, s, tile);
        s.tiles_open--;
        return;
    }
    if (whole) s.down = true, s.left = down_parts;
    publish(w, s, task::down, lane * down_parts, down_parts);
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
    publish(w, s, task::send, 2 * (w.net.rank + 1) + s.unsound, behind, 2);
    publish(w, s, task::send, 0 + s.unsound, w.net.rank, 2);
}

/* Tells the ranks all of whose rows are answered. */
template <scope S> COT_DEVICE void tell_homes(const fused_warp<S> &w, schedule &s)
{
    for (int half = 0; half < 2; half++) {
        const int home = lane_of_warp() + 32 * half;
        if (home >= w.net.ranks || s.told[half]) continue;
        const uint32_t final = load_acquire<scope::cta>(&w.shared->owed[home]);
        s.told[half] = final && s.answered[half] == final - 1;
        if (!s.told[half]) continue;
        count_messages(w.net, home, 0, 1, PHASE_COMBINE);
        raise<S>(w.net, home, w.reply_signal(w.net.rank), w.epoch);
    }
}

/* Waits until a task is done (its word) or there is news (0); false: the call has failed. Other ranks are waited for by the
 * subscriber, which bounds it; own tasks end. */
template <scope S>
COT_DEVICE bool next_event(const fused_warp<S> &w, const schedule &s, uint64_t &done, uint64_t &news)
{
    bool there = true;
    if (lane_of_warp() == 0) {
        const uint64_t *const word = w.rank.finished + s.taken;
        for (;;) {
            done = 0;
            if (s.taken < s.published) {
                done = COT_EITHER(schedule_acquire, load_acquire<scope::gpu>(word),
                                  load_relaxed<scope::gpu>(word));
                if (done >> 28 == w.epoch) break;
                done = 0;
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
    done = __shfl_sync(ALL_LANES, done, 0);
    news = __shfl_sync(ALL_LANES, news, 0);
    return __shfl_sync(ALL_LANES, static_cast<int>(there), 0) != 0;
}

COT_DEVICE bool is_void(const schedule &s)
{
    return s.news & COT_FUSED_BAD || !(s.news & COT_FUSED_TOKENS);
}

template <typename Engine, scope S> COT_DEVICE void run_schedule(const fused_warp<S> &w, int processors)
{
    const int chunks = (w.tokens + FUSED_CHUNK - 1) / FUSED_CHUNK;
    schedule s = {};
    s.gates_left = s.combine_left = chunks;
    s.shared_tiles = w.call.networks[1].intermediate ? (w.tokens + FUSED_TILE_ROWS - 1) / FUSED_TILE_ROWS : 0;
    publish(w, s, task::gate, 0, chunks);
    if (!chunks) end_gate(w, s);
    for (;;) {
        uint64_t done = 0;
        uint64_t news = 0;
        if (!next_event(w, s, done, news)) return;
        s.taken += done != 0;
        if (!done) s.news = news;
        const task kind = kind_of(done);
        const bool up = done && kind == task::up, down = done && kind == task::down;
        if (up || down) {
            const int expert_parts = parts_of<Engine>(up_columns(w.call.networks[0])),
                      shared_parts = parts_of<Engine>(up_columns(w.call.networks[1])),
                      up_parts = expert_parts > shared_parts ? expert_parts : shared_parts;
            end_part<Engine>(w, s, number_of(done) / (up ? up_parts : parts_of<Engine>(w.call.gate.hidden)));
        }
        if (done && kind == task::gate && --s.gates_left == 0) end_gate(w, s);
        if (done && kind == task::reply) answer_rows(w, s, number_of(done));
        if (done && kind == task::combine) s.combine_left--;
        begin_tiles<Engine>(w, s);
        tell_homes(w, s);
        const bool tiles_done =
            s.tiles_open == 0 && s.tiles_begun == released_of(s.news) && s.shared_begun == s.shared_tiles;
        const bool all_in = finals_of(s.news) == w.net.ranks && replied_of(s.news) == w.net.ranks;
        if (!s.combining && all_in && tiles_done) {
            s.combining = true;
            if (is_void(s))
                s.combine_left = 0;
            else
                publish(w, s, task::combine, 0, chunks);
        }
        if (s.combining && !s.combine_left && s.taken == s.published) break;
    }
    if (lane_of_warp() == 0) {
        const outcome o = s.news & COT_FUSED_BAD ? outcome::unsound
                          : is_void(s)           ? outcome::empty
                                                 : outcome::fine;
        w.rank.state->outcome = static_cast<int32_t>(o);
    }
    publish(w, s, task::end, 0, processors);
}

} // namespace cot

#endif
