/* A layer of the conformance suite (harness/moe/world.h) on the emulated device: its memory, launches, and what they left in
 * the form of the CPU operators' runs. */
#ifndef COT_TESTS_CUDA_FUSED_LAYER_H
#define COT_TESTS_CUDA_FUSED_LAYER_H
#include "expect.h"

#include "cuda/module/weights.h"
#include "cuda/run.h"

#include "cuda/c_begin.h"
#include "harness/moe/outcome.h"
#include "harness/moe/plan.h"
#include "harness/moe/run.h"
#include "harness/moe/world.h"
#include "moe/fused/fused.h"
#include "cuda/c_end.h"

#include "oracle_rules.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

static_assert(cot::PHASE_DISPATCH == COT_PHASE_DISPATCH && cot::PHASE_COMBINE == COT_PHASE_COMBINE &&
                  cot::PHASE_METADATA == COT_PHASE_METADATA && cot::PHASES == COT_PHASES,
              "the same phases");
static_assert(static_cast<int>(cot::activation::gelu) == COT_FFN_GELU &&
                  static_cast<int>(cot::activation::relu) == COT_FFN_RELU,
              "the same order");

using mma_engine = cot::mma_engine;
using fma_engine = cot::fma_engine;

/* The operator over ranks of several devices. */
template <typename Engine> void fused_sys(cot_cuda_fused call)
{
    cot::run_fused<Engine, cot::scope::sys>(call);
}

/* How a group of ranks is laid over blocks. */
struct Grid {
    std::vector<int> blocks; // of each rank
    bool devices = false;    // ranks on two devices in turn, by the kernel for that
};

/* An expert as the device reads it. */
inline std::vector<unsigned char> pack_network(const struct oracle_ffn &o)
{
    std::vector<unsigned char> to(cot_cuda_weights.slot_bytes(&o.shape), 0xff);
    oracle_ffn_store(&o, &cot_cuda_weights, to.data());
    return to;
}

struct Outcome_free {
    void operator()(struct outcome *o) const { free(o); }
};
using Outcome = std::unique_ptr<struct outcome, Outcome_free>;

/* Device memory of all ranks; one at a time. Tokens and routing may be changed between launches. */
class Layer {
    const struct world &world;
    const struct plan &plan;
    const Grid grid;
    std::vector<std::string> names;
    size_t region_bytes;

    template <typename T> T *take(size_t n, const char *what, int rank)
    {
        names.push_back(std::string(what) + " of rank " + std::to_string(rank));
        return session.allocate<T>(std::max<size_t>(n, 1), names.back().c_str());
    }

    void lay_out_rank(int r)
    {
        const cot_moe_options &o = world.options;
        const size_t s = static_cast<size_t>(call.layout.tokens), h = static_cast<size_t>(o.expert.hidden),
                     k = static_cast<size_t>(o.top_k), slots = static_cast<size_t>(plan.slots),
                     entries = s * static_cast<size_t>(plan.ranks) * std::min(k, slots),
                     tiles = entries / cot::FUSED_TILE_ROWS + slots, rows = tiles * cot::FUSED_TILE_ROWS;
        const size_t widest = static_cast<size_t>(std::max(o.expert.intermediate, o.shared.intermediate)),
                     parts = (2 * widest + 63) / 64 + (h + 63) / 64;
        const size_t tasks = static_cast<size_t>(cot::fused_tasks_most(
            call.layout, static_cast<int32_t>(h), call.gate.experts, static_cast<int64_t>(tiles),
            static_cast<int64_t>(parts), call.reduced, grid.blocks[static_cast<size_t>(r)]));
        cot::fused_rank &d = ranks[static_cast<size_t>(r)];
        d.slots = slots_at[static_cast<size_t>(r)] =
            take<unsigned char>(slots * call.networks[0].bytes, "weights", r);
        d.tokens = tokens[static_cast<size_t>(r)] = take<int32_t>(2, "tokens", r);
        d.x = x[static_cast<size_t>(r)] = take<float>(s * h, "x", r);
        d.y = take<float>(s * h, "y", r);
        d.experts = take<uint16_t>(s * k, "experts", r);
        d.weights = take<float>(s * k, "weights of experts", r);
        d.state = take<cot::fused_state>(1, "state", r);
        cot::fused_state fresh = {};
        fresh.unsound = ~0u;
        session.write(d.state, &fresh, sizeof fresh);
        d.routed = take<uint16_t>(s * k, "routed", r);
        d.routed_weights = take<float>(s * k, "routed weights", r);
        d.replica = take<int32_t>(s * k, "replicas", r);
        d.logits = take<float>(s * static_cast<size_t>(call.gate.experts), "logits", r);
        d.chunk_left = take<uint32_t>(static_cast<size_t>(cot::gate_chunks_most(call.layout.tokens)),
                                      "parts of chunks left", r);
        d.ready = take<uint64_t>(tasks, "ready tasks", r);
        d.finished = take<uint64_t>(tasks, "finished tasks", r);
        session.fill(d.ready, 0, tasks * 8);
        session.fill(d.finished, 0, tasks * 8);
        d.released = take<int32_t>(tiles, "released tiles", r);
        d.tile_slot = take<int32_t>(tiles, "tiles' slots", r);
        d.tile_rows = take<int32_t>(tiles, "tiles' sizes", r);
        d.tile_row = take<int32_t>(rows, "tiles' rows", r);
        d.tile_weight = take<float>(rows, "tiles' weights", r);
        d.tile_home = take<int32_t>(rows, "tiles' homes", r);
        d.tile_at = take<int32_t>(rows, "tiles' replies", r);
        d.slot_count = take<uint32_t>(slots, "slots' entries", r);
        d.slot_row = take<int32_t>(2 * slots, "slots' rows", r);
        d.entry_number = take<int32_t>(static_cast<size_t>(plan.ranks) * s * k, "entries' numbers", r);
        d.entered = take<uint32_t>(static_cast<size_t>(plan.ranks), "replies owed", r);
        d.lane_tile = take<int32_t>(cot::FUSED_LANES, "lanes", r);
        const size_t value = o.expert.type == COT_BF16 ? 2 : 4;
        d.activations =
            take<unsigned char>(cot::FUSED_LANES * cot::FUSED_TILE_ROWS * widest * value, "activations", r);
        d.shared_rows = take<float>(s * h, "shared rows", r);
        const size_t done =
            static_cast<size_t>(cot::fused_done_words(call.layout.tokens, static_cast<int32_t>(h)));
        d.columns_done = take<uint32_t>(done, "columns that are there", r);
        session.fill(d.columns_done, 0, done * 4);
        if (!call.reduced) return;
        const size_t received = s * static_cast<size_t>(plan.ranks);
        d.partial = take<float>(entries * h, "entries' rows", r);
        d.row_left = take<int32_t>(received, "entries left", r);
        d.row_entries = take<int32_t>(received, "rows' entries", r);
        d.complete = take<int32_t>(received, "complete rows", r);
        d.sent_row = take<int32_t>(received, "sent rows", r);
    }

  public:
    emulate::Session session;
    cot_cuda_fused call = {};
    std::vector<cot::fused_rank> ranks;
    std::vector<int32_t *> tokens;
    std::vector<float *> x;
    std::vector<unsigned char *> slots_at;
    int32_t *replica_rank, *replica_slot, *replica_begin;

    Layer(const struct world &w, const struct plan &p, const Grid &g, bool given = false)
        : world(w), plan(p), grid(g), ranks(static_cast<size_t>(p.ranks)), tokens(ranks.size()),
          x(ranks.size()), slots_at(ranks.size())
    {
        const cot_moe_options &o = w.options;
        const size_t n = static_cast<size_t>(p.ranks);
        const int64_t value = o.expert.type == COT_BF16 ? 2 : 4, h = o.expert.hidden,
                      s = std::max<int64_t>((w.tokens + 31) / 32 * 32, 32); // as the CPU's, up to 512 tokens
        names.reserve(64 * n);
        call.reduced = o.combine == COT_COMBINE_REDUCED;
        call.reply_bf16 = o.combine_type == COT_BF16;
        call.layout =
            cot_fused_layout_of(p.ranks, s, o.top_k, h * value, h * (call.reply_bf16 ? 2 : 4), call.reduced);
        const auto take_bytes = [&](int64_t bytes) {
            const size_t at = region_bytes;
            region_bytes += (static_cast<size_t>(bytes) + 63) / 64 * 64;
            return at;
        };
        region_bytes = 0;
        call.dispatch_at = take_bytes(cot_fused_dispatch_bytes(&call.layout));
        call.replies_at = take_bytes(cot_fused_reply_bytes(&call.layout));
        call.dispatch_signals = take_bytes(p.ranks * COT_FUSED_LINE);
        call.reply_signals = take_bytes(p.ranks * COT_FUSED_LINE);
        std::vector<unsigned char *> regions;
        for (int r = 0; r < p.ranks; r++) {
            regions.push_back(take<unsigned char>(region_bytes, "region", r));
            session.fill(regions.back() + call.dispatch_signals, 0, region_bytes - call.dispatch_signals);
        }
        call.fabric.regions = session.copy(regions.data(), n, "table of regions");
        call.fabric.counters = session.allocate<cot::traffic>(COT_PHASES * n * n, "counters");
        session.fill(call.fabric.counters, 0, COT_PHASES * n * n * sizeof(cot::traffic));
        call.fabric.failure = session.allocate<uint64_t>(1, "failure");
        session.fill(call.fabric.failure, 0, 8);
        call.fabric.timeout_ns = 1000000000;
        call.fabric.ranks = p.ranks;
        const size_t experts = static_cast<size_t>(w.gate.gate.experts);
        call.gate = rules_of(session, w.gate);
        call.routing = given ? cot::routing::given : cot::routing::gated;
        call.networks[0] = cot_cuda_network_of(&o.expert);
        call.networks[1] = cot_cuda_network_of(&o.shared);
        if (o.shared.intermediate) {
            const std::vector<unsigned char> packed = pack_network(w.shared);
            call.shared_weights = session.copy(packed.data(), packed.size(), "shared expert");
        }
        if (w.shared_gate)
            call.shared_gate = session.copy(w.shared_gate, static_cast<size_t>(h), "shared gate");
        const size_t replicas = static_cast<size_t>(p.replica_begin[experts]);
        call.replica_rank = replica_rank = take<int32_t>(replicas, "replicas' ranks", 0);
        call.replica_slot = replica_slot = take<int32_t>(replicas, "replicas' slots", 0);
        call.replica_begin = replica_begin = take<int32_t>(experts + 1, "experts' replicas", 0);
        call.slots = p.slots;
        call.tile_shift = cot::FUSED_TILE_SHIFT;
        std::vector<int32_t> first = {0};
        for (int b : g.blocks) first.push_back(first.back() + b);
        call.first_block = session.copy(first.data(), first.size(), "ranks' blocks");
        for (int r = 0; r < p.ranks; r++) lay_out_rank(r);
        call.ranks = session.copy(ranks.data(), n, "table of ranks");
        give_placement();
        give_tokens();
    }

    /* Where the plan has experts now, which are as many as before: tables, and weights in slots. */
    void give_placement()
    {
        const size_t experts = static_cast<size_t>(world.options.experts),
                     replicas = static_cast<size_t>(plan.replica_begin[experts]) * sizeof(int32_t);
        session.write(replica_rank, plan.rank, replicas);
        session.write(replica_slot, plan.slot, replicas);
        session.write(replica_begin, plan.replica_begin, (experts + 1) * sizeof(int32_t));
        for (size_t e = 0; e < experts; e++)
            for (int32_t i = plan.replica_begin[e]; i < plan.replica_begin[e + 1]; i++) {
                const std::vector<unsigned char> packed = pack_network(world.experts[e]);
                session.write(slots_at[static_cast<size_t>(plan.rank[i])] +
                                  static_cast<size_t>(plan.slot[i]) * call.networks[0].bytes,
                              packed.data(), packed.size());
            }
    }

    /* What the world has as tokens now. */
    void give_tokens()
    {
        const size_t h = static_cast<size_t>(world.options.expert.hidden);
        for (int r = 0; r < plan.ranks; r++) {
            const int64_t begin = plan.begin[r];
            const int32_t count = static_cast<int32_t>(plan.begin[r + 1] - begin), words[2] = {count, 0};
            session.write(tokens[static_cast<size_t>(r)], words, sizeof words);
            for (int32_t t = 0; t < count; t++)
                session.write(x[static_cast<size_t>(r)] + static_cast<size_t>(t) * h,
                              world.x + static_cast<size_t>(plan.order[begin + t]) * h, h * sizeof(float));
        }
    }

    emulate::Result launch(emulate::Options options)
    {
        const bool bf16 = world.options.expert.type == COT_BF16;
        const int experts = call.gate.experts;
        unsigned blocks = 0;
        for (size_t r = 0; r < grid.blocks.size(); r++)
            for (int b = 0; b < grid.blocks[r]; b++, blocks++)
                if (grid.devices) options.devices.push_back(static_cast<int>(r % 2));
        const size_t shared = bf16 ? cot::fused_shared_bytes<mma_engine>(experts)
                                   : cot::fused_shared_bytes<fma_engine>(experts);
        return emulate::launch({blocks, cot::FUSED_THREADS, shared}, options,
                               grid.devices ? bf16 ? fused_sys<mma_engine> : fused_sys<fma_engine>
                               : bf16 ? cot_cuda_fused_bf16
                                            : cot_cuda_fused_f32,
                               call);
    }

    /* As the CPU operators' runs leave it. */
    Outcome outcome() const
    {
        const size_t h = static_cast<size_t>(world.options.expert.hidden),
                     k = static_cast<size_t>(world.options.top_k),
                     bytes = sizeof(struct outcome) + static_cast<size_t>(world.tokens) * h * sizeof(float);
        Outcome o(static_cast<struct outcome *>(calloc(1, bytes)));
        for (int r = 0; r < plan.ranks; r++) {
            const cot::fused_rank &d = ranks[static_cast<size_t>(r)];
            const size_t begin = static_cast<size_t>(plan.begin[r]),
                         count = static_cast<size_t>(plan.begin[r + 1]) - begin;
            o->status[r] =
                d.state->outcome == static_cast<int32_t>(cot::outcome::fine) && !*call.fabric.failure
                    ? COT_OK
                    : COT_INVALID_ARGUMENT;
            memcpy(o->y + begin * h, d.y, count * h * sizeof(float));
            memcpy(o->experts + begin * k, d.experts, count * k * sizeof(uint16_t));
            memcpy(o->weights + begin * k, d.weights, count * k * sizeof(float));
            for (int phase = 0; phase < COT_PHASES; phase++)
                for (int to = 0; to < plan.ranks; to++) {
                    const cot::traffic &t = call.fabric.counters[(phase * plan.ranks + r) * plan.ranks + to];
                    o->traffic[r][to][phase] = {t.bytes, t.messages};
                }
        }
        return o;
    }
};

/* So many blocks for each rank. */
inline Grid even_grid(int ranks, int blocks)
{
    return {std::vector<int>(static_cast<size_t>(ranks), blocks), false};
}

#endif
