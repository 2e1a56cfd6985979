#include "harness/moe/fused_watch.h"

#include "harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

void sim_print(const struct sim *sim)
{
    for (int r = 0; r < sim->ranks; r++) {
        const struct sim_rank *rank = &sim->rank[r];
        const cot_fused *m = rank->moe;
        print_error(
            "rank %d of %d, %d threads: step %d of %d%s%s, epoch %llu, tokens %lld + %lld of %lld, gated to "
            "%lld, sent %lld%s, finals %d, signalled %d, replied %d, tiles %d, ready %d - %d, shared %lld, "
            "combined %lld, running %d%s%s%s\n",
            r, sim->ranks, sim->threads, rank->at, sim->steps, rank->in_call ? " (in it)" : "",
            rank->dead ? " dead" : "", (unsigned long long)m->epoch, (long long)m->first,
            (long long)m->tokens, (long long)m->call_tokens, (long long)m->gate_done, (long long)m->send_next,
            m->sent ? " all" : "", m->finals, m->signalled, m->replied, m->tiles, m->ready_begin,
            m->ready_end, (long long)m->shared_done, (long long)m->combine_done, m->running,
            m->wire ? ", wire" : "", m->bad ? ", bad" : "", m->gave_up ? ", void" : "");
        for (int s = 0; s < sim->ranks; s++)
            print_error("  from %d: %lld rows, %lld outstanding, flags %u%s%s\n", s,
                        (long long)m->source[s].rows, (long long)m->source[s].outstanding, m->source[s].flags,
                        m->source[s].signalled ? ", signalled" : "", m->source[s].replied ? ", replied" : "");
    }
}

#define HELD(condition, r, ...)                                                                              \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            print_error("rank %d: ", r);                                                                     \
            print_error(__VA_ARGS__);                                                                        \
            print_error("\n");                                                                               \
            sim_print(sim);                                                                                  \
            fail_msg("'%s' does not hold", #condition);                                                      \
        }                                                                                                    \
    } while (0)

static bool is_on_a_lane(const cot_fused *moe, int32_t tile)
{
    for (int i = 0; i < moe->lanes; i++)
        if (moe->lane[i].tile == tile) return true;
    return false;
}

/* Whether a tile of this rank may still read received bytes [begin, end). */
static bool has_reader(const struct sim_rank *rank, int64_t begin, int64_t end)
{
    const cot_fused *moe = rank->moe;
    const int64_t row_bytes = moe->layout.row_bytes;
    for (int32_t t = 0; t < moe->tiles; t++) {
        if (moe->tile[t].slot < 0 || rank->tile[t].up_done || (moe->gave_up && !is_on_a_lane(moe, t)))
            continue;
        for (int32_t i = 0; i < moe->tile[t].rows; i++) {
            const int64_t at = moe->tile_row[(int64_t)t * COT_FFN_TILE_ROWS + i] * row_bytes;
            if (at < end && begin < at + row_bytes) return true;
        }
    }
    return false;
}

/* The one write of these bytes in this epoch. */
static void watch_write(struct sim *sim, int r, cot_sym where, int64_t bytes, uint64_t epoch)
{
    uint32_t *written = sim->rank[r].written + where;
    for (int64_t i = 0; i < bytes; i++) {
        HELD(written[i] < epoch, r, "byte %lld written twice in epoch %llu", (long long)where + i,
             (unsigned long long)epoch);
        written[i] = (uint32_t)epoch;
    }
}

static void watch_read(struct sim *sim, int r, cot_sym where, int64_t bytes)
{
    const uint64_t epoch = sim->rank[r].moe->epoch;
    for (int64_t i = 0; i < bytes; i++)
        HELD(sim->rank[r].written[where + (cot_sym)i] == epoch, r,
             "byte %lld read in epoch %llu, written in epoch %u", (long long)where + i,
             (unsigned long long)epoch, sim->rank[r].written[where + (cot_sym)i]);
}

static bool is_within(cot_sym where, size_t bytes, cot_sym begin, int64_t length)
{
    return where >= begin && where + bytes <= begin + (cot_sym)length;
}

static void watch_packet(struct sim *sim, int from, int to, cot_sym where, size_t bytes)
{
    const cot_fused *moe = sim->rank[from].moe, *target = sim->rank[to].moe;
    const int64_t block = moe->layout.block_rows * moe->layout.row_bytes;
    HELD(is_within(where, bytes, moe->dispatch_at + (cot_sym)(from * block), block), from,
         "%zu bytes put at %llu, outside its block", bytes, (unsigned long long)where);
    HELD(sim->rank[from].finals[to] < moe->epoch, from, "rows for rank %d after the last", to);
    if (target->epoch < moe->epoch && bytes)
        HELD(target->source[from].flags & COT_FUSED_FINAL || !target->epoch, from,
             "rank %d has not decoded what is overwritten", to);
    const int64_t begin = (int64_t)(where - moe->dispatch_at);
    HELD(!bytes || !has_reader(&sim->rank[to], begin, begin + (int64_t)bytes), from,
         "rank %d still reads there", to);
}

static void watch_replies(struct sim *sim, int from, int to)
{
    const cot_fused *moe = sim->rank[from].moe, *target = sim->rank[to].moe;
    HELD(sim->rank[to].in_call && target->epoch == moe->epoch, from,
         "a reply to rank %d, which is in another epoch", to);
    HELD(!target->combine_next, from, "a reply to rank %d, which combines", to);
    HELD(sim->rank[from].told[to] < moe->epoch, from, "a reply to rank %d after the signal", to);
}

static void watch_reply_signal(struct sim *sim, int from, int to, uint64_t value)
{
    struct sim_rank *rank = &sim->rank[from];
    const cot_fused *moe = rank->moe;
    HELD(value == moe->epoch && rank->told[to] < value, from, "signal %llu", (unsigned long long)value);
    rank->told[to] = value;
    HELD(moe->source[to].flags & COT_FUSED_FINAL, from, "rank %d told before its last row", to);
    for (int32_t t = 0; t < moe->tiles; t++) {
        const bool done = to == from ? rank->tile[t].down_done : rank->tile[t].done;
        if (moe->tile[t].slot < 0 || done || (moe->gave_up && !is_on_a_lane(moe, t))) continue;
        const cot_fused_target *target = moe->tile_target + (int64_t)t * COT_FFN_TILE_ROWS;
        for (int32_t i = 0; i < moe->tile[t].rows; i++)
            HELD((cot_fused_is_exact(moe) ? target[i].home : target[i].home / moe->layout.tokens) != to, from,
                 "rank %d told while tile %d is not done", to, t);
    }
}

static void watch_dispatch_signal(struct sim *sim, int from, int to, uint64_t value)
{
    struct sim_rank *rank = &sim->rank[from];
    HELD(cot_fused_signal_epoch(value) == rank->moe->epoch && value > rank->dispatched_value[to], from,
         "signal %#llx", (unsigned long long)value);
    rank->dispatched_value[to] = value;
    if (cot_fused_signal_flags(value)) rank->finals[to] = rank->moe->epoch;
}

void watch_message(void *context, int from, int to, cot_sym where, size_t bytes, cot_sym signal,
                   uint64_t value)
{
    struct sim *sim = context;
    const cot_fused *moe = sim->rank[from].moe, *target = sim->rank[to].moe;
    HELD(target->epoch == moe->epoch || target->epoch + 1 == moe->epoch, from,
         "puts to rank %d in epoch %llu", to, (unsigned long long)target->epoch);
    const cot_sym line = (cot_sym)from * COT_FUSED_LINE;
    if (bytes || signal == moe->dispatch_signals + line) {
        if (bytes && is_within(where, bytes, moe->replies_at, cot_fused_reply_bytes(&moe->layout)))
            watch_replies(sim, from, to);
        else
            watch_packet(sim, from, to, where, bytes);
        watch_write(sim, to, where, (int64_t)bytes, moe->epoch);
    }
    if (!signal) return;
    if (signal == moe->dispatch_signals + line)
        watch_dispatch_signal(sim, from, to, value);
    else if (signal == moe->reply_signals + line)
        watch_reply_signal(sim, from, to, value);
    else
        HELD(false, from, "a signal at %llu", (unsigned long long)signal);
}

void watch_pass(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    memset(rank->tile, 0, (size_t)rank->moe->tiles_most * sizeof *rank->tile);
    rank->passes++;
    for (int other = 0; other < sim->ranks; other++)
        HELD(sim->rank[other].moe->epoch + 1 >= rank->moe->epoch, r, "rank %d is behind", other);
}

void watch_take(struct sim *sim, int r, const cot_fused_task *task)
{
    struct sim_rank *rank = &sim->rank[r];
    const cot_fused *moe = rank->moe;
    if (task->lane >= 0) rank->tile[moe->lane[task->lane].tile].begun = true;
    if (task->op != COT_FUSED_COMBINE) return;
    for (int s = 0; s < sim->ranks; s++)
        for (const struct faulty_message *m = sim->group->queue[s][r].first; m; m = m->next)
            HELD(!m->bytes ||
                     !is_within(m->where, m->bytes, moe->replies_at, cot_fused_reply_bytes(&moe->layout)),
                 r, "combines while a reply of rank %d is on its way", s);
    for (int64_t t = task->begin; t < task->end; t++)
        for (int64_t k = 0; k < (cot_fused_is_exact(moe) ? moe->layout.top_k : moe->layout.ranks); k++) {
            cot_fused_entry entries[COT_MAX_TOP_K];
            int64_t row;
            if (cot_fused_is_exact(moe)) {
                row = moe->reply_row[t * moe->layout.top_k + k];
            } else {
                if (!cot_fused_entries_for(moe, entries, t, (int)k)) continue;
                row = k * moe->layout.tokens + (k == r ? t : moe->sent_row[t * moe->layout.ranks + k]);
            }
            watch_read(sim, r, moe->replies_at + (cot_sym)(row * moe->layout.reply_bytes),
                       moe->layout.reply_bytes);
        }
}

void watch_run(struct sim *sim, int r, const cot_fused_task *task)
{
    const cot_fused *moe = sim->rank[r].moe;
    const cot_fused_layout *l = &moe->layout;
    if (task->op == COT_FUSED_GATE && task->begin < moe->first + moe->tokens)
        watch_write(sim, r,
                    moe->dispatch_at +
                        (cot_sym)((r * l->block_rows + task->begin - moe->first) * l->row_bytes),
                    (task->end - task->begin) * l->row_bytes, moe->epoch);
    if (task->op == COT_FUSED_UP)
        for (int64_t i = 0; i < task->rows; i++) {
            const int64_t row = task->a_rows ? task->a_rows[i]
                                             : ((const uint8_t *)task->a - moe->received) / l->row_bytes + i;
            watch_read(sim, r, moe->dispatch_at + (cot_sym)(row * l->row_bytes), l->row_bytes);
        }
    if (task->op == COT_FUSED_DOWN && cot_fused_is_exact(moe)) {
        const int32_t tile = moe->lane[task->lane].tile;
        const int64_t width = (int64_t)cot_dtype_bytes(moe->options.combine_type);
        const cot_fused_target *target = moe->tile_target + (int64_t)tile * COT_FFN_TILE_ROWS;
        for (int64_t i = 0; i < task->rows && moe->tile[tile].slot >= 0; i++)
            if (target[i].home == r)
                watch_write(sim, r,
                            moe->replies_at + (cot_sym)(target[i].at * l->reply_bytes + task->begin * width),
                            (task->end - task->begin) * width, moe->epoch);
    }
    for (int64_t i = task->begin; task->op == COT_FUSED_REPLY && i < task->end; i++)
        if (moe->complete[i] / l->tokens == r)
            watch_write(sim, r,
                        moe->replies_at +
                            (cot_sym)((r * l->tokens + moe->complete[i] % l->tokens) * l->reply_bytes),
                        l->reply_bytes, moe->epoch);
}

void watch_finish(struct sim *sim, int r, const cot_fused_task *task, int32_t tile)
{
    if (tile < 0) return;
    const cot_fused_lane *lane = &sim->rank[r].moe->lane[task->lane];
    struct sim_tile *seen = &sim->rank[r].tile[tile];
    if (lane->done[0] == lane->parts[0]) seen->up_done = true;
    if (lane->done[1] == lane->parts[1]) seen->down_done = true;
    if (lane->tile < 0) seen->done = true;
}

void watch_idleness(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    const cot_fused *m = rank->moe;
    const cot_fabric *fabric = m->options.fabric;
    unsigned flags = 0;
    bool all = m->sent, replied = true, free_lane = false, due = false;
    for (int s = 0; s < sim->ranks; s++) {
        const cot_sym line = (cot_sym)s * COT_FUSED_LINE;
        const uint64_t word = s == r ? 0 : faulty_load((cot_fabric *)fabric, m->dispatch_signals + line);
        const bool now = word && cot_fused_signal_epoch(word) == m->epoch;
        const bool final = s == r ? m->sent : now && cot_fused_signal_flags(word) & COT_FUSED_FINAL;
        // Words of the next epoch have overwritten this one's: those ranks' last packets are known here.
        const bool later = s != r && cot_fused_signal_epoch(word) > m->epoch;
        flags |= later || s == r ? m->source[s].flags : now ? cot_fused_signal_flags(word) : 0;
        all = all && (final || later);
        replied = replied && faulty_load((cot_fabric *)fabric, m->reply_signals + line) >= m->epoch;
        due = due || ((final || later) && !m->source[s].outstanding && !m->source[s].signalled);
    }
    if (flags & COT_FUSED_BAD || (all && !(flags & COT_FUSED_TOKENS)))
        HELD(m->gave_up, r, "does not know that the pass is void");
    const bool stop = m->bad || m->gave_up;
    HELD(m->wire || !due, r, "a signal is due");
    HELD(m->wire || (m->reply_lanes == 0 && m->complete_begin == m->complete_end), r, "replies wait");
    HELD(stop || m->gate_next == m->gate_end, r, "tokens are to be gated");
    if (!m->wire && !m->sent) {
        HELD(stop || m->send_next == m->tokens || !m->gated[m->send_next / COT_FUSED_CHUNK], r,
             "tokens wait to be sent");
        const bool gated = stop ? m->gate_done == m->gate_next : m->gate_done == m->gate_end;
        HELD(!gated || !(stop || m->send_next == m->tokens), r, "the end of packets is due");
    }
    for (int i = 0; i < m->lanes; i++) {
        const cot_fused_lane *lane = &m->lane[i];
        free_lane = free_lane || lane->tile < 0;
        HELD(lane->tile < 0 || (lane->next[0] == lane->parts[0] &&
                                (lane->done[0] < lane->parts[0] || lane->next[1] == lane->parts[1])),
             r, "a part of tile %d waits", lane->tile);
    }
    for (int32_t t = 0; t < m->tiles && free_lane && !m->gave_up; t++) {
        const int32_t slot = m->tile[t].slot;
        if (slot < 0 || rank->tile[t].begun) continue;
        HELD(!all && (m->open_tile[slot] == t || m->full_tile[slot] == t), r, "tile %d waits", t);
    }
    HELD(!free_lane || m->gave_up || !m->layer->shared || m->gate_done < m->gate_end ||
             m->shared_next * (int64_t)COT_FFN_TILE_ROWS >= m->tokens,
         r, "the shared expert waits");
    HELD(m->gave_up || !all || !replied || m->shared_done < m->tokens || m->combine_next == m->tokens, r,
         "tokens are to be combined");
}

void watch_over(struct sim *sim, int r)
{
    const struct sim_rank *rank = &sim->rank[r];
    const cot_fused *m = rank->moe;
    HELD(!rank->flying && !m->running && !m->wire, r, "tasks run");
    for (int i = 0; i < m->lanes; i++) HELD(m->lane[i].tile < 0, r, "lane %d is not free", i);
    for (int i = 0; i < sim->threads; i++) HELD(!m->worker_taken[i], r, "worker %d is not free", i);
    for (int32_t i = 0; i < sim->slots; i++)
        HELD(m->open_tile[i] < 0 && m->full_tile[i] < 0, r, "a tile of slot %d is open", i);
    for (int s = 0; s < sim->ranks; s++)
        HELD(!m->source[s].outstanding && !m->cell[s].rows && rank->told[s] == m->epoch &&
                 (s == r || rank->finals[s] == m->epoch),
             r, "rank %d waits for something", s);
    HELD(m->reply_lanes == 0 && m->complete_begin == m->complete_end, r, "replies are left");
    for (int32_t t = 0; t < m->tiles && !m->gave_up; t++) HELD(rank->tile[t].done, r, "tile %d is left", t);
}

void watch_passes_over_tiles(struct sim *sim, int r, cot_status status)
{
    const struct sim_rank *rank = &sim->rank[r];
    const int64_t expected = call_tiles(sim->world, sim->script[rank->at].call, r);
    if (status == COT_OK && rank->passes == 1 && expected >= 0)
        HELD(rank->moe->times.tile_passes - rank->tile_passes == (uint64_t)expected, r,
             "%llu passes over tiles, %lld expected",
             (unsigned long long)(rank->moe->times.tile_passes - rank->tile_passes), (long long)expected);
}

bool sim_dies(const struct sim *sim, int r)
{
    const struct sim_rank *rank = &sim->rank[r];
    const cot_fused *m = rank->moe;
    if (rank->at < sim->death_step) return false;
    if (rank->at > sim->death_step) return true;
    switch (sim->moment) {
    case SIM_AT_ONCE:
        return true;
    case SIM_AFTER_GATING:
        return rank->in_call && m->gate_done == m->gate_end;
    case SIM_AMONG_PACKETS:
        return rank->in_call && m->send_next > 0;
    case SIM_BEFORE_REPLIES:
        return rank->in_call && m->finals == sim->ranks;
    case SIM_BEFORE_SIGNALS:
        return rank->in_call && m->finals == sim->ranks && m->ready_begin == m->ready_end;
    default:
        return rank->in_call && m->signalled == sim->ranks;
    }
}
