/* A processor: four warps that take one task after the other from their rank's queue. */
#ifndef COT_CUDA_PROCESS_H
#define COT_CUDA_PROCESS_H
#include "cuda/enter.h"
#include "cuda/gate_tile.h"
#include "cuda/number.h"
#include "cuda/queue.h"

namespace cot {

/* A given routing: experts below E and ascending, weights finite. By all lanes. */
COT_DEVICE bool routing_is_sound(const cot_cuda_fused &c, const uint16_t *experts, const float *weights)
{
    bool sound = true;
    for (int k = lane_of_warp(); k < c.gate.top_k; k += 32)
        sound = sound && experts[k] < c.gate.experts && (k == 0 || experts[k] > experts[k - 1]) &&
                isfinite(weights[k]);
    return __all_sync(ALL_LANES, sound);
}

template <scope S> COT_DEVICE void take_given(const fused_warp<S> &w, int t)
{
    const int top_k = w.call.gate.top_k;
    const uint16_t *const experts = w.rank.experts + static_cast<int64_t>(t) * top_k;
    const float *const weights = w.rank.weights + static_cast<int64_t>(t) * top_k;
    const bool sound = routing_is_sound(w.call, experts, weights);
    for (int k = lane_of_warp(); k < top_k; k += 32) {
        w.rank.routed[static_cast<int64_t>(t) * top_k + k] = sound ? experts[k] : static_cast<uint16_t>(k);
        w.rank.routed_weights[static_cast<int64_t>(t) * top_k + k] = weights[k];
    }
    if (!sound && lane_of_warp() == 0)
        min_relaxed<scope::gpu>(&w.rank.state->unsound, static_cast<uint32_t>(t));
}

static_assert(FUSED_CHUNK == gate_tile::TOKENS && GATE_TILE_EXPERTS == gate_tile::EXPERTS,
              "a part is as a tile has it");

/* A part of a chunk's gate: logits of some experts, and a share of rounding the rows to what experts read. Chunks of 16 tokens are computed in
 * tiles where TILES, if rows are aligned for them. */
template <typename Engine, bool TILES = false, scope S>
COT_DEVICE void run_gate(const fused_warp<S> &w, const fused_cut &cut, int number)
{
    using Value = typename Engine::Value;
    const gate_rules &g = w.call.gate;
    const int part = number % cut.parts, begin = number / cut.parts * cut.tokens, left = w.tokens - begin,
              count = left < cut.tokens ? left : cut.tokens;
    const float *const x = w.rank.x + static_cast<int64_t>(begin) * g.hidden;
    if (w.call.routing != routing::given) {
        const int warp = team_thread(w) / 32, first = part * cut.columns,
                  end = first + cut.columns < g.experts ? first + cut.columns : g.experts;
        float *const logits = w.rank.logits + static_cast<int64_t>(begin) * g.experts;
        const int e = first + warp;
        if (cut.tokens == 1) { // a warp takes one expert of one token, or of four, or four tokens
            if (e < end) gate_logits<1, 1>(g, x, count, e, e + 1, logits, g.experts);
        } else if (cut.tokens == GATE_TOKENS_A_WARP) {
            if (e < end) gate_logits<1>(g, x, count, e, e + 1, logits, g.experts);
        } else if (TILES && g.hidden % 4 == 0) {
            gate_tile::compute(g, x, count, first, end, logits, w.stages, this_team(w));
        } else if (warp * GATE_TOKENS_A_WARP < count) {
            const int t = warp * GATE_TOKENS_A_WARP;
            gate_logits<4>(g, x + static_cast<int64_t>(t) * g.hidden,
                           count - t < GATE_TOKENS_A_WARP ? count - t : GATE_TOKENS_A_WARP, first, end,
                           logits + static_cast<int64_t>(t) * g.experts, g.experts);
        }
    }
    Value *const rows =
        reinterpret_cast<Value *>(w.region() + w.row_at(w.net.rank * w.call.layout.block_rows + begin));
    for (int i = part * FUSED_TEAM + team_thread(w); i < count * g.hidden; i += cut.parts * FUSED_TEAM)
        store_as(rows + i, x[i]);
}

/* Whether a processor's part of a chunk was the last one; then it knows what all others did. By all of its threads. */
template <scope S> COT_DEVICE bool ends_chunk(const fused_warp<S> &w, int chunk)
{
    COT_UNLESS(process_part_by_all) team_barrier(w);
    if (team_thread(w) == 0) w.shared->last_part = count_part(w.rank.chunk_left + chunk) == 1;
    COT_UNLESS(process_last_for_all) team_barrier(w);
    return w.shared->last_part;
}

/* Routes the tokens of a chunk whose logits are there. */
template <scope S> COT_DEVICE void run_route(const fused_warp<S> &w, const fused_cut &cut, int chunk)
{
    const gate_rules &g = w.call.gate;
    const int warp = team_thread(w) / 32, lane = lane_of_warp(), tokens = (cut.tokens + 3) / 4, // a warp
        first = chunk * cut.tokens + warp * tokens, end = (chunk + 1) * cut.tokens,
              left = (end < w.tokens ? end : w.tokens) - first, count = left < tokens ? left : tokens;
    if (count <= 0) return;
    if (w.call.routing != routing::given) {
        const gate_tokens all = {w.rank.x, w.rank.routed, w.rank.routed_weights, w.tokens,
                                 &w.rank.state->unsound};
        float *const scratch = reinterpret_cast<float *>(w.stages) + warp * gate_scratch_floats(g.experts);
        const float *const logits = w.rank.logits + static_cast<int64_t>(first) * g.experts;
        for (int e = lane; e < g.experts; e += 32) // each lane its own experts' (gate_logits)
            COT_EACH (t, GATE_TOKENS_A_WARP)
                if (t < count) scratch[t * g.experts + e] = logits[t * g.experts + e];
        gate_choose_all(g, all, first, count, scratch);
    }
    if (w.call.routing != routing::gated)
        for (int t = first; t < first + count; t++) take_given(w, t);
    for (int t = first; t < first + count; t++)
        for (int k = lane; k < g.top_k; k += 32) {
            const int64_t at = static_cast<int64_t>(t) * g.top_k + k;
            w.rank.replica[at] = replica_of(w.call, w.rank.routed[at], w.net.rank, w.before + t);
        }
}

/* How many of a token's experts are on rank `to`. */
template <scope S> COT_DEVICE int entries_for(const fused_warp<S> &w, int t, int to)
{
    const int top_k = w.call.gate.top_k;
    int count = 0;
    for (int k = 0; k < top_k; k++)
        count += w.call.replica_rank[w.rank.replica[static_cast<int64_t>(t) * top_k + k]] == to;
    return count;
}

/* The next packet for rank `to`: as many of the tokens from t on as a cell holds. By one warp; returns the token behind. */
template <scope S> COT_DEVICE int gather_packet(const fused_warp<S> &w, int t, int to)
{
    const int lane = lane_of_warp(), most = static_cast<int>(w.call.layout.cell_tokens);
    fused_shared *const s = w.shared;
    int rows = 0, total = 0;
    while (rows < most && t < w.tokens) {
        const int entries = t + lane < w.tokens ? entries_for(w, t + lane, to) : 0;
        const uint32_t some = __ballot_sync(ALL_LANES, entries > 0);
        const int at = rows + static_cast<int>(__popc(some & ((1u << lane) - 1)));
        const bool mine = entries > 0 && at < most;
        int before = mine ? entries : 0;
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, before, static_cast<unsigned>(by));
            if (lane >= by) before += other;
        }
        if (mine) s->token[at] = t + lane, s->entries[at] = entries, s->before[at] = total + before - entries;
        total += __shfl_sync(ALL_LANES, before, 31);
        const uint32_t taken = __ballot_sync(ALL_LANES, mine),
                       last = __ballot_sync(ALL_LANES, mine && at == most - 1);
        rows += static_cast<int>(__popc(taken));
        t += last ? static_cast<int>(__popc(last - 1)) + 1 : 32;
    }
    if (lane == 0) s->packet_rows = rows, s->packet_entries = total;
    return t;
}

/* All packets for one rank, in order, and its FINAL. Rows go from where they lie straight to where they are read. */
template <scope S> COT_DEVICE void run_send(const fused_warp<S> &w, int to, bool unsound)
{
    const cot_fused_layout &l = w.call.layout;
    const fused_shared *const s = w.shared;
    const int thread = team_thread(w), warp = thread / 32, top_k = w.call.gate.top_k;
    const uint32_t flags = last_flags(unsound, w.tokens > 0);
    int64_t sent = 0;
    for (int t = 0;;) {
        if (warp == 0) t = gather_packet(w, unsound ? w.tokens : t, to);
        COT_UNLESS(process_packet_before_rows) team_barrier(w);
        const int rows = s->packet_rows, entries = s->packet_entries;
        const size_t row_bytes = static_cast<size_t>(l.row_bytes),
                     data = static_cast<size_t>(rows) * row_bytes;
        unsigned char *const cell =
            place_at(w.net, to, w.row_at(cot_fused_cell(&l, w.net.rank, rows ? sent / l.cell_tokens : 0)));
        for (int i = warp; i < rows; i += 4)
            copy_words(cell + static_cast<size_t>(i) * row_bytes,
                       w.region() + w.row_at(w.net.rank * l.block_rows + s->token[i]), row_bytes);
        uint32_t *const heads = reinterpret_cast<uint32_t *>(cell + data);
        for (int i = thread; i < rows; i += FUSED_TEAM) {
            const int64_t at = static_cast<int64_t>(s->token[i]) * top_k;
            cot_fused_entry *entry = reinterpret_cast<cot_fused_entry *>(heads + rows) + s->before[i];
            heads[i] = static_cast<uint32_t>(at) << 8 | static_cast<uint32_t>(s->entries[i]);
            if (w.call.reduced) w.rank.sent_row[s->token[i] * l.ranks + to] = static_cast<int32_t>(sent) + i;
            for (int k = 0; k < top_k; k++) {
                const int replica = w.rank.replica[at + k];
                if (w.call.replica_rank[replica] != to) continue;
                entry->weight = w.rank.routed_weights[at + k];
                entry->slot = static_cast<uint16_t>(w.call.replica_slot[replica]);
                entry->place = static_cast<uint16_t>(k);
                entry++;
            }
        }
        const bool last = rows < l.cell_tokens;
        sent += rows;
        COT_UNLESS(process_rows_before_signal) team_barrier(w);
        if (thread == 0) {
            count_messages(w.net, to, data, 1, PHASE_DISPATCH);
            count_messages(w.net, to,
                           static_cast<size_t>(rows) * COT_FUSED_HEAD_BYTES +
                               static_cast<size_t>(entries) * sizeof(cot_fused_entry),
                           0, PHASE_METADATA);
            const bool lost = COT_EITHER(fused_final_is_lost, false, last && w.net.rank == 0 && to == 1);
            if (!lost)
                raise<S>(w.net, to, w.dispatch_signal(w.net.rank),
                         cot_fused_signal(w.epoch, sent, last ? flags : 0));
        }
        if (last) return;
    }
}

/* A unit of entries is counted, or, odd numbers, written. */
template <scope S> COT_DEVICE void run_enter(const fused_warp<S> &w, int number)
{
    const int most = fused_units_most(w.call.layout), source = number / 2 / most, i = number / 2 % most,
              warp = team_thread(w) / 32;
    if (number % 2)
        enter_unit(w, source, i, warp, FUSED_TEAM / 32);
    else
        count_unit(w, source, i, warp, FUSED_TEAM / 32);
}

COT_DEVICE float activate(const network &n, float gate, float up)
{
    if (n.act == activation::gelu) return up * (1 + erff(up * 0.70710678118654752f)) / 2;
    if (n.act == activation::relu) return fmaxf(up, 0);
    if (n.limit <= 0) return gate / (1 + expf(-gate)) * up;
    gate = fminf(gate, n.limit), up = fmaxf(fminf(up, n.limit), -n.limit);
    return (up + 1) * gate / (1 + expf(-n.alpha * gate));
}

/* A tile at work. */
template <typename Value> struct tile_work {
    const network &shape;
    const unsigned char *weights;
    Value *activations; // [rows][I]
    int tile, rows;     // tile < 0: -1 - i, the i-th of the shared expert
};

template <scope S> COT_DEVICE int rows_of_tile(const fused_warp<S> &w, int tile)
{
    return tile < 0 ? shared_tile_rows(w, -1 - tile) : w.rank.tile_rows[tile];
}

template <typename Value, scope S> COT_DEVICE tile_work<Value> work_of(const fused_warp<S> &w, int lane)
{
    const cot_cuda_fused &c = w.call;
    const int tile = w.rank.lane_tile[lane];
    const int64_t widest = c.networks[0].intermediate > c.networks[1].intermediate
                               ? c.networks[0].intermediate
                               : c.networks[1].intermediate;
    Value *const act = reinterpret_cast<Value *>(w.rank.activations) + w.first_of(lane) * widest;
    const bool shared = tile < 0;
    return {c.networks[shared],
            shared ? c.shared_weights
                   : w.rank.slots + static_cast<size_t>(w.rank.tile_slot[tile]) * c.networks[0].bytes,
            act, tile, rows_of_tile(w, tile)};
}

/* What is done with sums of a tile's first product, whose first column is `first`: a function of row, column, two sums. */
template <typename Value, scope S> COT_DEVICE auto end_up(const fused_warp<S> &w, int lane, int first)
{
    return [work = work_of<Value>(w, lane), first](int row, int column, float v, float next) {
        const network &n = work.shape;
        const int i = first + column, columns = up_columns(n);
        if (row >= work.rows || i >= columns) return;
        Value *const out = work.activations + static_cast<int64_t>(row) * n.intermediate;
        if (n.biased) {
            const float *const bias = reinterpret_cast<const float *>(work.weights + n.up_bias);
            v += bias[i], next += i + 1 < columns ? bias[i + 1] : 0;
        }
        if (n.act == activation::swiglu) {
            store_as(out + i / 2, activate(n, v, next));
            return;
        }
        store_as(out + i, activate(n, 0, v));
        if (i + 1 < columns) store_as(out + i + 1, activate(n, 0, next));
    };
}

/* Some columns of a tile's first product (half as many activations, where there is a gate). */
template <typename Engine, scope S>
COT_DEVICE tile_job<typename Engine::Value> job_of_up(const fused_warp<S> &w, int lane, int part)
{
    using Value = typename Engine::Value;
    const tile_work<Value> work = work_of<Value>(w, lane);
    const network &n = work.shape;
    const bool shared = work.tile < 0; // its rows are own tokens', one after the other
    const int tile = shared ? -1 - work.tile : work.tile;
    const int64_t own = shared ? w.net.rank * w.call.layout.block_rows + w.first_of(tile) : 0;
    return {{reinterpret_cast<const Value *>(w.region() + w.row_at(own)), work.rows, n.hidden},
            {reinterpret_cast<const Value *>(work.weights + n.up), up_columns(n), n.hidden},
            {w.rank.tile_row + w.first_of(shared ? 0 : tile), !shared},
            part * Engine::columns_of(work.rows)};
}

/* Brings the beginnings of rows of a tile's second matrix to the second cache, which a processor does that ends a part of UP when no
 * more tasks are known: so memory is not idle from the last UPs to the first DOWNs, which cannot begin before them. A part's share
 * is what the DOWNs of its number (and of those up_parts further) read first. */
constexpr int AHEAD_BYTES = 512; // of a row: what DOWN has under way before it multiplies, and a stage more
template <typename Engine, scope S> COT_DEVICE void fetch_ahead(const fused_warp<S> &w, int lane, int part)
{
    using Value = typename Engine::Value;
    const tile_work<Value> work = work_of<Value>(w, lane);
    const network &n = work.shape;
    const int row_bytes = n.intermediate * static_cast<int>(sizeof(Value)),
              bytes = row_bytes < AHEAD_BYTES ? row_bytes : AHEAD_BYTES,
              pieces = (bytes + PREFETCH_BYTES - 1) / PREFETCH_BYTES, columns = Engine::columns_of(work.rows),
              parts = parts_of<Engine>(up_columns(n), work.rows);
    for (int first = part * columns; first < n.hidden; first += parts * columns) {
        const int rows = n.hidden - first < columns ? n.hidden - first : columns;
        for (int i = team_thread(w); i < rows * pieces; i += FUSED_TEAM)
            prefetch(work.weights + n.down + static_cast<int64_t>(first + i / pieces) * row_bytes +
                     i % pieces * PREFETCH_BYTES);
    }
}

/* Two neighbours of a row in the type that it travels in; the second where it is in the row. */
COT_DEVICE void store_pair(unsigned char *row, bool bf16, int column, float v, float next, bool both)
{
    if (bf16) {
        uint16_t *const to = reinterpret_cast<uint16_t *>(row) + column;
        if (reinterpret_cast<uintptr_t>(to) % 4 == 0 && both) {
            *reinterpret_cast<uint32_t *>(to) = bf16_of(v) | static_cast<uint32_t>(bf16_of(next)) << 16;
            return;
        }
        to[0] = bf16_of(v); // H is odd: such a row ends in half a word, and every other one begins there
        if (both) to[1] = bf16_of(next);
        return;
    }
    float *const to = reinterpret_cast<float *>(row) + column;
    to[0] = v;
    if (both) to[1] = next;
}

/* As end_up, of the second product: times the rows' weights, into the home ranks' regions; reduced: to be added up. */
template <typename Value, scope S> COT_DEVICE auto end_down(const fused_warp<S> &w, int lane, int first)
{
    return [&w, work = work_of<Value>(w, lane), first](int row, int column, float v, float next) {
        const network &n = work.shape;
        const int h = first + column;
        if (row >= work.rows || h >= n.hidden) return;
        const bool both = h + 1 < n.hidden;
        if (n.biased) {
            const float *const bias = reinterpret_cast<const float *>(work.weights + n.down_bias);
            v += bias[h], next += both ? bias[h + 1] : 0;
        }
        if (work.tile < 0) {
            const int64_t token = w.first_of(-1 - work.tile) + row;
            store_pair(reinterpret_cast<unsigned char *>(w.rank.shared_rows + token * n.hidden), false, h, v,
                       next, both);
            return;
        }
        const int64_t at = w.first_of(work.tile) + row;
        const float weight = w.rank.tile_weight[at];
        if (w.call.reduced) {
            float *const entry = w.rank.partial + static_cast<int64_t>(w.rank.tile_at[at]) * n.hidden;
            store_pair(reinterpret_cast<unsigned char *>(entry), false, h, v * weight, next * weight, both);
            return;
        }
        const size_t reply = w.call.replies_at + static_cast<size_t>(w.rank.tile_at[at]) *
                                                     static_cast<size_t>(w.call.layout.reply_bytes);
        store_pair(place_at(w.net, w.rank.tile_home[at], reply), w.call.reply_bf16, h, v * weight,
                   next * weight, both);
    };
}

/* Some columns of a tile's second product. */
template <typename Engine, scope S>
COT_DEVICE tile_job<typename Engine::Value> job_of_down(const fused_warp<S> &w, int lane, int part)
{
    using Value = typename Engine::Value;
    const tile_work<Value> work = work_of<Value>(w, lane);
    const network &n = work.shape;
    return {{work.activations, work.rows, n.intermediate},
            {reinterpret_cast<const Value *>(work.weights + n.down), n.hidden, n.intermediate},
            {w.rank.tile_row, false},
            part * Engine::columns_of(work.rows)};
}

/* reduced: adds up the entries of received rows, in the order of experts, into the home ranks' regions: the complete rows from
 * `first` on that are one task, a warp each. */
template <scope S> COT_DEVICE void run_reply(const fused_warp<S> &w, int first)
{
    const cot_fused_layout &l = w.call.layout;
    const int hidden = w.call.gate.hidden;
    bool last = false;
    for (int i = 0; !last; i++) {
        int row = w.rank.complete[first + i];
        last = row < 0;
        if (i % 4 != team_thread(w) / 32) continue;
        if (last) row = -1 - row;
        const int64_t at = w.net.rank * l.tokens + row % l.tokens;
        const int entries = w.rank.row_entries[row];
        const float *const partial = w.rank.partial + static_cast<int64_t>(row) * w.entries_a_row() * hidden;
        unsigned char *const reply = place_at(w.net, static_cast<int>(row / l.tokens),
                                              w.call.replies_at + static_cast<size_t>(at * l.reply_bytes));
        for (int h = 2 * lane_of_warp(); h < hidden; h += 64) {
            const bool both = h + 1 < hidden;
            float v = 0, next = 0;
            for (int64_t e = 0; e < entries; e++) {
                v += partial[e * hidden + h];
                if (both) next += partial[e * hidden + h + 1];
            }
            store_pair(reply, w.call.reply_bf16, h, v, next, both);
        }
    }
}

/* A token's reply rows: K of them, or, reduced, one of each rank that has any of its experts. */
struct reply_rows {
    int count;
    int64_t first;    // exact: they are one after the other
    uint32_t from[2]; // reduced: the ranks; lane l knows the rows of ranks l and l + 32
    int32_t row[2];
};

template <scope S> COT_DEVICE reply_rows find_replies(const fused_warp<S> &w, int t)
{
    const cot_cuda_fused &c = w.call;
    reply_rows found = {c.gate.top_k, static_cast<int64_t>(t) * c.gate.top_k, {0, 0}, {0, 0}};
    if (!c.reduced) return found;
    COT_EACH (half, 2) {
        const int rank = lane_of_warp() + 32 * half;
        const bool any = rank < w.net.ranks && entries_for(w, t, rank) > 0;
        const int number = !any ? 0
                           : rank == w.net.rank
                               ? t
                               : w.rank.sent_row[static_cast<int64_t>(t) * w.net.ranks + rank];
        found.from[half] = __ballot_sync(ALL_LANES, any);
        found.row[half] = rank * static_cast<int>(c.layout.tokens) + number;
    }
    found.count = static_cast<int>(__popc(found.from[0]) + __popc(found.from[1]));
    return found;
}

/* The next one, in the order of experts, or of ranks; by all lanes. */
COT_DEVICE int64_t next_reply(reply_rows &rows, bool reduced)
{
    if (!reduced) return rows.first++;
    const int half = rows.from[0] == 0;
    const uint32_t all = half ? rows.from[1] : rows.from[0], one = all & (0u - all);
    if (half)
        rows.from[1] &= ~one;
    else
        rows.from[0] &= ~one;
    return __shfl_sync(ALL_LANES, half ? rows.row[1] : rows.row[0], static_cast<int>(__popc(one - 1)));
}

/* sigmoid(x . gate), by all lanes, in an order that H alone gives. */
COT_DEVICE float shared_factor(const float *x, const float *gate, int hidden)
{
    const float *const rows[1] = {gate}, *const token[1] = {x};
    float sum[1][1];
    gate_sum<4>(sum, rows, token, hidden);
    return 1 / (1 + expf(-sum[0][0]));
}

/* Adds up columns begin to end - 1 of a token's replies, in their order, and the shared expert's. Two replies and four columns of
 * a lane are loaded before the first is added. */
template <typename Reply, scope S>
COT_DEVICE void combine_token(const fused_warp<S> &w, int t, int begin, int end)
{
    constexpr int ROWS = 2, COLUMNS = 4;
    const cot_cuda_fused &c = w.call;
    const int64_t at = static_cast<int64_t>(t) * c.gate.hidden;
    const unsigned char *const replies = w.region() + c.replies_at;
    const bool shared = c.networks[1].intermediate;
    const reply_rows all = find_replies(w, t);
    const float factor =
        shared && c.shared_gate ? shared_factor(w.rank.x + at, c.shared_gate, c.gate.hidden) : 1;
    COT_ONE_BY_ONE
    for (int column = begin + lane_of_warp(); column - lane_of_warp() < end; column += 32 * COLUMNS) {
        reply_rows rows = all;
        float sums[COLUMNS] = {};
        COT_ONE_BY_ONE
        for (int left = rows.count; left > 0; left -= ROWS) {
            float v[ROWS][COLUMNS];
            COT_EACH (i, ROWS)
                if (i < left) {
                    const Reply *const row = reinterpret_cast<const Reply *>(
                                                 replies + static_cast<size_t>(next_reply(rows, c.reduced) *
                                                                               c.layout.reply_bytes)) +
                                             column;
                    COT_EACH (j, COLUMNS) v[i][j] = column + 32 * j < end ? float_of(row[32 * j]) : 0;
                }
            COT_EACH (i, ROWS)
                if (i < left)
                    COT_EACH (j, COLUMNS) sums[j] += v[i][j];
        }
        COT_EACH (j, COLUMNS)
            if (column + 32 * j < end) {
                if (shared) sums[j] += w.rank.shared_rows[at + column + 32 * j] * factor;
                w.rank.y[at + column + 32 * j] = sums[j];
            }
    }
}

template <scope S> COT_DEVICE void combine_columns(const fused_warp<S> &w, int t, int begin, int end)
{
    if (w.call.reply_bf16)
        combine_token<uint16_t>(w, t, begin, end);
    else
        combine_token<float>(w, t, begin, end);
}

/* So many threads write down for the caller which experts the gate chose for some tokens. */
template <scope S>
COT_DEVICE void tell_routing(const fused_warp<S> &w, int first, int thread, int tokens, int threads)
{
    const int top_k = w.call.gate.top_k;
    const int64_t at = static_cast<int64_t>(first) * top_k;
    if (w.call.routing != routing::gated) return;
    for (int i = thread; i < tokens * top_k; i += threads) {
        w.rank.experts[at + i] = w.rank.routed[at + i];
        w.rank.weights[at + i] = w.rank.routed_weights[at + i];
    }
}

/* A part of a chunk of tokens, whose rows are added up; tells the routing. A warp takes a quarter of the columns of one token, or
 * all of some tokens. */
template <scope S> COT_DEVICE void run_combine(const fused_warp<S> &w, const fused_cut &cut, int number)
{
    const cot_cuda_fused &c = w.call;
    const int warp = team_thread(w) / 32, part = number % cut.parts, first = number / cut.parts * cut.tokens,
              last = first + cut.tokens < w.tokens ? first + cut.tokens : w.tokens;
    const bool few = cut.tokens == 1;
    const int begin = few ? part * cut.columns + warp * (cut.columns / 4) : 0,
              until = few ? begin + cut.columns / 4 : c.gate.hidden,
              end = until < c.gate.hidden ? until : c.gate.hidden;
    for (int t = few ? first : first + warp; t < last; t += 4) combine_columns(w, t, begin, end);
    if (!part) tell_routing(w, first, team_thread(w), last - first, FUSED_TEAM);
}

/* alone: the columns of a part of DOWN are there for the rows of its tile. Where they are the last ones of a token's block of columns, these
 * are added up, and with a token's first block its routing is told. By one warp of a processor, for all that it met at a barrier. */
template <typename Engine, scope S> COT_DEVICE void end_columns(const fused_warp<S> &w, int tile, int part)
{
    const cot_cuda_fused &c = w.call;
    const int top_k = c.gate.top_k, hidden = c.gate.hidden, rows = rows_of_tile(w, tile),
              columns = Engine::columns_of(rows), number = part * columns / FUSED_DONE_COLUMNS,
              begin = number * FUSED_DONE_COLUMNS;
    const auto pieces = [=](int first, int count) {
        return static_cast<uint32_t>(
            fused_pieces(hidden - first < count ? hidden - first : count, FUSED_DONE_PIECE));
    };
    const uint32_t mine = pieces(part * columns, columns),
                   all = pieces(begin, FUSED_DONE_COLUMNS) *
                         static_cast<uint32_t>(top_k + (c.networks[1].intermediate > 0));
    COT_ONE_BY_ONE
    for (int first = 0; first < rows; first += 32) {
        const int row = first + lane_of_warp();
        int token = 0;
        bool last = false;
        if (row < rows) {
            token = tile < 0 ? static_cast<int>(w.first_of(-1 - tile)) + row
                             : w.rank.tile_at[w.first_of(tile) + row] / top_k;
            uint32_t *const done =
                w.rank.columns_done + token * fused_pieces(hidden, FUSED_DONE_COLUMNS) + number;
            last = COT_EITHER(process_columns_count, add_acq_rel<scope::gpu>(done, mine),
                              add_relaxed<scope::gpu>(done, mine)) +
                       mine ==
                   all;
            if (last) store_relaxed<scope::gpu>(done, 0u);
        }
        uint32_t some = __ballot_sync(ALL_LANES, last);
        COT_UNLESS(process_columns_for_all) __syncwarp();
        COT_ONE_BY_ONE
        for (; some; some &= some - 1) {
            const int t = __shfl_sync(ALL_LANES, token, static_cast<int>(__popc((some & (0u - some)) - 1)));
            combine_columns(w, t, begin,
                            begin + FUSED_DONE_COLUMNS < hidden ? begin + FUSED_DONE_COLUMNS : hidden);
            if (begin == 0) tell_routing(w, t, lane_of_warp(), 1, 32);
        }
    }
}

/* Notes that the processor begins or ends a task. By all of its threads. */
template <scope S> COT_DEVICE void note_moment(const fused_warp<S> &w, uint64_t word, bool ended)
{
#ifdef COT_TIMELINE
    fused_moments *const m = w.call.moments;
    if (!m || team_thread(w)) return;
    const uint32_t i = add_relaxed<scope::gpu>(&m->count, 1u);
    if (i < m->room)
        m->at[i] = {global_timer(),
                    word,
                    static_cast<int32_t>(blockIdx.x),
                    static_cast<int8_t>(kind_of(word)),
                    ended,
                    static_cast<int16_t>(w.team())};
#else
    (void)w, (void)word, (void)ended;
#endif
}

COT_DEVICE bool is_product(uint64_t word)
{
    return kind_of(word) == task::up || kind_of(word) == task::down; // NO_TASK is neither
}

template <scope S> COT_DEVICE int parts_of_product(const fused_warp<S> &w, uint64_t word)
{
    return kind_of(word) == task::up ? w.shared->up_parts : w.shared->down_parts;
}

template <typename Engine, scope S>
COT_DEVICE void ask_product(const fused_warp<S> &w, typename Engine::asked &all, uint64_t word)
{
    const int parts = parts_of_product(w, word), lane = number_of(word) / parts,
              part = number_of(word) % parts;
    Engine::ask(all, w.stages,
                kind_of(word) == task::up ? job_of_up<Engine>(w, lane, part)
                                          : job_of_down<Engine>(w, lane, part),
                this_team(w));
}

template <typename Engine, scope S>
COT_DEVICE void put_product(const fused_warp<S> &w, const typename Engine::sums &sums, uint64_t word)
{
    using Value = typename Engine::Value;
    const int parts = parts_of_product(w, word), lane = number_of(word) / parts,
              part = number_of(word) % parts,
              first = part * Engine::columns_of(rows_of_tile(w, w.rank.lane_tile[lane]));
    const tile_team team = this_team(w);
    if (kind_of(word) == task::down) {
        Engine::put(sums, team, end_down<Value>(w, lane, first));
        return;
    }
    Engine::put(sums, team, end_up<Value>(w, lane, first));
    if (w.shared->dry) fetch_ahead<Engine>(w, lane, part);
}

/* Ends a product that all have done: what follows from it is told. By all threads; a warp that adds up a token's columns and the one that counts wait for
 * each other nowhere. */
template <typename Engine, scope S>
COT_DEVICE void end_product(const fused_warp<S> &w, uint64_t word, int tile)
{
    const int warp = team_thread(w) / 32;
    const bool adds = kind_of(word) == task::down && w.alone();
    if (adds && warp == 0) end_columns<Engine>(w, tile, number_of(word) % w.shared->down_parts);
    if (warp == (adds ? 1 : 0)) end_task(w, word);
}

/* Computes the UP or DOWN in hand, and those behind it while the next one is there when its sums are: then its first stages are asked for
 * before the sums are put. The thread that looks ahead is of a warp that does not see to what follows from a task. What a task is is
 * read from shared memory where it is needed, so that no register holds it beside a tile's sums. */
template <typename Engine, scope S> COT_DEVICE void run_products(const fused_warp<S> &w)
{
    constexpr int LOOKER = 64;
    fused_shared *const s = w.shared;
    const tile_team team = this_team(w);
    typename Engine::asked all;
    ask_product<Engine>(w, all, s->task);
    if (team_thread(w) == LOOKER) look_ahead(w);
    COT_ONE_BY_ONE
    for (;;) {
        const typename Engine::sums sums =
            Engine::run(all, w.stages, team, [s] { return is_product(s->coming); });
        const uint64_t word = s->task, next = s->coming;
        const bool goes_on = is_product(next);
        if (goes_on) ask_product<Engine>(w, all, next);
        put_product<Engine>(w, sums, word);
        int tile = 0; // alone: whose columns a DOWN has, while its lane is surely the tile's
        if (kind_of(word) == task::down && w.alone())
            tile = w.rank.lane_tile[number_of(word) / w.shared->down_parts];
        /* Everybody's part is done, and everybody has read what is next. */
        COT_UNLESS(process_product_done_by_all) team_barrier(w);
        note_moment(w, word, true);
        if (goes_on) {
            note_moment(w, next, false);
            if (team_thread(w) == LOOKER) {
                s->task = next;
                s->dry = false; // else it had not been taken early
                look_ahead(w);
            }
        }
        end_product<Engine>(w, word, tile);
        if (!goes_on) return;
    }
}

/* What a team's tasks are told from, in shared memory. By one thread, before the team's others. */
template <typename Engine, scope S> COT_DEVICE void begin_team(const fused_warp<S> &w)
{
    const tile_parts parts = parts_of_tiles<Engine>(w.call);
    w.shared->coming = NO_TASK;
    w.shared->ticket = NO_TICKET;
    w.shared->gate = gate_cut(w.tokens, w.call.gate.experts, w.call.routing, Engine::GATE_TILES);
    w.shared->combine = combine_cut(w.tokens, w.call.gate.hidden);
    w.shared->up_parts = parts.up;
    w.shared->down_parts = parts.down;
    w.shared->processors = w.processors();
}

/* A task that is neither a product nor the end, by the threads of a team; what follows from it is told. */
template <typename Engine, scope S> COT_DEVICE void run_task(const fused_warp<S> &w, uint64_t word)
{
    const int number = number_of(word), gate_parts = w.shared->gate.parts;
    switch (kind_of(word)) {
    case task::gate:
        run_gate<Engine, Engine::GATE_TILES>(w, w.shared->gate, number);
        if (!ends_chunk(w, number / gate_parts)) {
            note_moment(w, word, true);
            return;
        }
        run_route(w, w.shared->gate, number / gate_parts);
        break;
    case task::send:
        run_send(w, number / 2, number % 2 != 0);
        break;
    case task::enter:
        run_enter(w, number);
        break;
    case task::reply:
        run_reply(w, number);
        break;
    case task::combine:
        run_combine(w, w.shared->combine, number);
        break;
    case task::up:
    case task::down:
    case task::end:
        break;
    }
    /* Everybody's part is done, and everybody has read the task. */
    COT_UNLESS(process_done_by_all) team_barrier(w);
    note_moment(w, word, true);
    if (team_thread(w) < 32) end_task(w, word);
}

template <typename Engine, scope S> COT_DEVICE void process(const fused_warp<S> &w)
{
    if (team_thread(w) == 0) begin_team<Engine>(w);
    for (;;) {
        take_task(w);
        const uint64_t word = w.shared->task;
        note_moment(w, word, false);
        if (kind_of(word) == task::end) return;
        if (is_product(word))
            run_products<Engine>(w);
        else
            run_task<Engine>(w, word);
    }
}

} // namespace cot

#endif
