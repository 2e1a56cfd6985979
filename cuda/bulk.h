/* The baseline on the device: the same layer as the fused operator's, from the same pieces (process.h, subscribe.h) in the same memory,
 * but a plain kernel a phase, launched one after the other. A phase begins when the one before has ended on every rank, so that
 * nothing waits within a kernel.
 *
 *   gate       logits of tokens, and their rows rounded                         some of them by some experts a block at a time
 *   route      tokens are routed                                                the same tokens
 *   dispatch   packets and their signals                                        a receiver a block
 *   count      entries of own tokens and of packets take numbers                a unit of them a block (enter.h)
 *   receive    slots' entries get tiles; how the call ends                      a rank a block, of one warp
 *   enter      entries are written into tiles                                   as count
 *   up         first products of all tiles, shared experts' too                 a tile and some columns a block
 *   down       second products, times weights, to the home ranks                the same
 *   combine    rows of a token's experts are added                              a part of a token, or some tokens a block
 *
 * Activations are there for all tiles at once (fused: for 32), and lane_tile has all of them: state->next of experts', in the order in
 * which they were released, or of 128 rows in that of their slots, then the shared expert's. `exact` alone. All tiles of a call are of one form, which the host picks by the call's
 * tokens and the device: of up to 64 rows, of up to 128 by mma.sync, or of up to 128 by wgmma (bulk_many.h). A row's bits are the same in all. */
#ifndef COT_CUDA_BULK_H
#define COT_CUDA_BULK_H
#include "cuda/order.h"
#include "cuda/process.h"
#include "cuda/subscribe.h"

namespace cot {

constexpr scope BULK_SCOPE = scope::gpu;
using bulk_warp = fused_warp<BULK_SCOPE>;

/* Of a rank's blocks, this one's number, and how many there are. */
struct bulk_share {
    int block, blocks;
};

COT_DEVICE bulk_warp bulk_rank(const cot_cuda_fused &c, int r)
{
    unsigned char *const memory = static_cast<unsigned char *>(shared_memory());
    const fused_rank &rank = c.ranks[r];
    /* A kernel has either an engine's stages or what packets are made with. */
    bulk_warp w = {c,
                   rank,
                   c.fabric,
                   epoch_of_call(*rank.state),
                   reinterpret_cast<fused_shared *>(memory),
                   memory,
                   rank.tokens[0],
                   rank.tokens[1]};
    w.net.rank = r;
    return w;
}

COT_DEVICE int bulk_rank_of_block(const cot_cuda_fused &c, bulk_share &share)
{
    const int block = static_cast<int>(blockIdx.x);
    int r = 0;
    while (c.first_block[r + 1] <= block) r++;
    share = {block - c.first_block[r], c.first_block[r + 1] - c.first_block[r]};
    return r;
}

/* Calls work(w, i) for this block's share of 0 to count(w) - 1. */
template <typename Count, typename Work>
COT_DEVICE void bulk_each(const cot_cuda_fused &c, Count count, Work work)
{
    bulk_share share;
    const bulk_warp w = bulk_rank(c, bulk_rank_of_block(c, share));
    const int most = count(w);
    for (int i = share.block; i < most; i += share.blocks) work(w, i);
}

static_assert(BULK_GATE_BYTES == gate_tile::SHARED_BYTES, "what the host asks for");

COT_DEVICE fused_cut bulk_gate_cut(const bulk_warp &w)
{
    return gate_cut(w.tokens, w.call.gate.experts, w.call.routing, true);
}
COT_DEVICE fused_cut bulk_combine_cut(const bulk_warp &w)
{
    return combine_cut(w.tokens, w.call.gate.hidden);
}
COT_DEVICE bool bulk_is_fine(const bulk_warp &w)
{
    return w.rank.state->outcome == static_cast<int32_t>(outcome::fine);
}
COT_DEVICE bool bulk_is_unsound(const bulk_warp &w)
{
    return w.rank.state->unsound != ~0u && !w.call.unsound_pass;
}

template <typename Engine> COT_DEVICE void bulk_gate(const cot_cuda_fused &c)
{
    bulk_each(
        c, [](const bulk_warp &w) { return static_cast<int>(fused_cut_tasks(bulk_gate_cut(w))); },
        [](const bulk_warp &w, int i) { run_gate<Engine, true>(w, bulk_gate_cut(w), i); });
}

COT_DEVICE void bulk_route(const cot_cuda_fused &c)
{
    bulk_each(
        c, [](const bulk_warp &w) { return bulk_gate_cut(w).chunks; },
        [](const bulk_warp &w, int chunk) { run_route(w, bulk_gate_cut(w), chunk); });
}

/* What is counted behind it begins at 0. */
COT_DEVICE void bulk_dispatch(const cot_cuda_fused &c)
{
    bulk_share share;
    const bulk_warp own = bulk_rank(c, bulk_rank_of_block(c, share));
    if (share.block == 0) begin_counts(own, team_thread(own), FUSED_TEAM);
    bulk_each(
        c, [](const bulk_warp &w) { return w.net.ranks - 1; },
        [](const bulk_warp &w, int i) {
            run_send(w, (w.net.rank + 1 + i) % w.net.ranks, bulk_is_unsound(w));
        });
}

/* Calls work(w, source, i) for this block's share of the units of each rank's entries, a unit of every rank for another block. Those of own tokens
 * that cannot be routed are none. */
template <typename Work> COT_DEVICE void bulk_units(const cot_cuda_fused &c, Work work)
{
    bulk_share share;
    const bulk_warp w = bulk_rank(c, bulk_rank_of_block(c, share));
    for (int source = 0; source < w.net.ranks; source++) {
        const int units = source != w.net.rank ? cells_of(w, rows_sent(w, source))
                          : bulk_is_unsound(w) ? 0
                                               : fused_own_units(w.tokens, w.call.gate.top_k);
        for (int i = (share.block + source) % share.blocks; i < units; i += share.blocks) work(w, source, i);
    }
}

COT_DEVICE void bulk_count(const cot_cuda_fused &c)
{
    bulk_units(c, [](const bulk_warp &w, int source, int i) {
        count_unit(w, source, i, team_thread(w) / 32, FUSED_TEAM / 32);
    });
}

COT_DEVICE void bulk_enter(const cot_cuda_fused &c)
{
    bulk_units(c, [](const bulk_warp &w, int source, int i) {
        if (bulk_is_fine(w)) enter_unit(w, source, i, team_thread(w) / 32, FUSED_TEAM / 32);
    });
}

/* By one warp for each rank. */
COT_DEVICE void bulk_receive(const cot_cuda_fused &c)
{
    const bulk_warp w = bulk_rank(c, static_cast<int>(blockIdx.x));
    const int lane = lane_of_warp(), ranks = w.net.ranks;
    const bool unsound = bulk_is_unsound(w);
    subscription all = {};
    begin_open(w);
    all.flags = last_flags(unsound, w.tokens > 0);
    for (int source = 0; source < ranks; source++)
        if (source != w.net.rank)
            all.flags |= static_cast<uint32_t>(
                cot_fused_signal_flags(look_at<BULK_SCOPE>(w.net, w.dispatch_signal(source))));
    sum_entries(w, all);
    release_open(w, all);
    COT_UNLESS(bulk_lanes_after_rows) __syncwarp();
    const int own_tiles = shared_tiles(w);
    const bool many = c.tile_shift == BULK_MANY_SHIFT; // few tiles have a slot alone, most of them
    if (many) order_by_slots(w, w.rank.released, all.released, w.rank.lane_tile, w.rank.slot_count);
    for (int i = lane + (many ? all.released : 0); i < all.released + own_tiles; i += 32)
        w.rank.lane_tile[i] = i < all.released ? w.rank.released[i] >> 8 : -1 - (i - all.released);
    for (int to = lane; to < ranks; to += 32) {
        const uint32_t replies = load_relaxed<scope::gpu>(w.rank.entered + to);
        count_messages(w.net, to, replies * static_cast<size_t>(c.layout.reply_bytes), replies + 1,
                       PHASE_COMBINE); // the replies, and a word that tells of them
    }
    if (lane) return;
    fused_state *const state = w.rank.state;
    state->outcome = static_cast<int32_t>(all.flags & COT_FUSED_BAD         ? outcome::unsound
                                          : !(all.flags & COT_FUSED_TOKENS) ? outcome::empty
                                                                            : outcome::fine);
    state->unsound_token = static_cast<int32_t>(state->unsound);
    state->next = static_cast<uint32_t>(all.released);
    state->unsound = ~0u;
    state->epoch++;
}

enum { BULK_UP, BULK_DOWN }; // which product of a network's two; its number among a slot's maps, too

/* A part of a tile: the i-th of all that a rank has, of tiles that are cut in up to `most`: the first part of each tile, then the second, so
 * that tiles that are cut in fewer leave as much to every block; or BY_TILES all parts of a tile before the next one's, so that those which are multiplied
 * at once are of few slots, whose weights the second cache holds. */
struct bulk_part {
    int tile, part;
};
template <bool BY_TILES> COT_DEVICE bulk_part bulk_part_of(int i, int tiles, int most)
{
    return BY_TILES ? bulk_part{i / most, i % most} : bulk_part{i % tiles, i / tiles};
}

/* How bulk_up and bulk_down have parts of tiles computed: by an engine of tile.h. */
template <typename Engine> struct bulk_by {
    using engine = Engine;
    static constexpr bool BY_TILES =
        Engine::ROWS > FUSED_TILE_ROWS; // several tiles of 64 rows or fewer seldom have a slot

    static __device__ __forceinline__ typename Engine::job job_of(const bulk_warp &, int, int,
                                                                  const typename Engine::job &rows)
    {
        return rows;
    }
    template <typename Next, typename Job, typename Put>
    static __device__ __forceinline__ void compute(const bulk_warp &w, int, int first, Next next, Job job,
                                                   Put put)
    {
        tile_compute_all<Engine>(w.stages, this_team(w), first, next, job, put);
    }
};

/* This block's share of a product's parts, which are cut from columns(network) columns. A part is computed by Form as job(w, lane, part) says, where lanes are places in
 * lane_tile, and its sums are given to put(w, lane, first column). */
template <typename Form, typename Columns, typename Job, typename Put>
COT_DEVICE void bulk_tiles(const cot_cuda_fused &c, int product, int most, Columns columns, Job job, Put put)
{
    using Engine = typename Form::engine;
    using Value = typename Engine::Value;
    bulk_share share;
    const bulk_warp w = bulk_rank(c, bulk_rank_of_block(c, share));
    if (!bulk_is_fine(w)) return;
    const int tiles = static_cast<int>(w.rank.state->next) + shared_tiles(w), all = tiles * most;
    const auto at = [=](int i) { return bulk_part_of<Form::BY_TILES>(i, tiles, most); };
    const auto from = [&](int i) {
        for (; i < all; i += share.blocks) {
            const tile_work<Value> work = work_of<Value>(w, at(i).tile);
            if (at(i).part < parts_of<Engine>(columns(work.shape), work.rows)) return i;
        }
        return -1;
    };
    Form::compute(
        w, product, from(share.block), [&](int i) { return from(i + share.blocks); },
        [&](int i) { return Form::job_of(w, at(i).tile, product, job(w, at(i).tile, at(i).part)); },
        [&](int i) {
            const int lane = at(i).tile;
            return put(w, lane, at(i).part * Engine::columns_of(work_of<Value>(w, lane).rows));
        });
}

COT_DEVICE int columns_of_down(const network &n)
{
    return n.hidden;
}

template <typename Form> COT_DEVICE void bulk_up(const cot_cuda_fused &c)
{
    using Engine = typename Form::engine;
    bulk_tiles<Form>(
        c, BULK_UP, parts_of_tiles<Engine>(c).up, up_columns,
        [](const bulk_warp &w, int lane, int part) { return job_of_up<Engine>(w, lane, part); },
        [](const bulk_warp &w, int lane, int first) {
            return end_up<typename Engine::Value>(w, lane, first);
        });
}

template <typename Form> COT_DEVICE void bulk_down(const cot_cuda_fused &c)
{
    using Engine = typename Form::engine;
    bulk_tiles<Form>(
        c, BULK_DOWN, parts_of_tiles<Engine>(c).down, columns_of_down,
        [](const bulk_warp &w, int lane, int part) { return job_of_down<Engine>(w, lane, part); },
        [](const bulk_warp &w, int lane, int first) {
            return end_down<typename Engine::Value>(w, lane, first);
        });
}

COT_DEVICE void bulk_combine(const cot_cuda_fused &c)
{
    bulk_each(
        c,
        [](const bulk_warp &w) {
            return bulk_is_fine(w) ? static_cast<int>(fused_cut_tasks(bulk_combine_cut(w))) : 0;
        },
        [](const bulk_warp &w, int i) { run_combine(w, bulk_combine_cut(w), i); });
}

} // namespace cot

#endif
