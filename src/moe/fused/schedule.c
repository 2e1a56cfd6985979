#include "base/integers.h"
#include "kernels/pack.h"
#include "moe/fused/state.h"

#include <assert.h>
#include <string.h>

enum {
    REPLY_ROWS = 32,    // complete rows a task adds up and sends (reduced)
    COMBINE_TOKENS = 16 // a chunk
};

void cot_fused_begin_pass(cot_fused *moe)
{
    const int ranks = moe->options.fabric->ranks;
    const bool first = moe->first == 0;
    moe->epoch++;
    moe->running = 0;
    moe->wire = moe->sent = moe->gave_up = moe->closed = false;
    // The first pass gates all tokens of the call, so that an unsound one is known before any result is written.
    moe->gate_next = moe->gate_done = moe->first;
    moe->gate_end = first ? moe->call_tokens : moe->first + moe->tokens;
    moe->send_next = moe->combine_next = moe->combine_done = 0;
    moe->finals = moe->signalled = moe->replied = 0;
    memset(moe->source, 0, (size_t)ranks * sizeof *moe->source);
    memset(moe->cell, 0, (size_t)ranks * sizeof *moe->cell);
    memset(moe->gated, 0, (size_t)((moe->gate_end - moe->first) / COT_FUSED_CHUNK + 1));
    moe->tiles = moe->ready_begin = moe->ready_end = moe->shared_next = 0;
    moe->reply_lanes = 0;
    moe->reply_rows = 0;
    moe->shared_done = moe->layer->shared ? 0 : moe->tokens;
    moe->entries = 0;
    moe->complete_begin = moe->complete_end = 0;
}

void cot_fused_release(cot_fused *moe, int32_t tile)
{
    moe->ready[moe->ready_end++] = tile;
}

static const cot_ffn_shape *shape_of(const cot_fused *moe, const cot_fused_tile *tile)
{
    return tile->slot < 0 ? &moe->options.shared : &moe->options.expert;
}

/* The next tile to begin: an expert's, else one of the shared expert, which nobody waits for. */
static int32_t next_tile(cot_fused *moe)
{
    if (moe->ready_begin < moe->ready_end) return moe->ready[moe->ready_begin++];
    const int64_t gated = moe->gate_next == moe->gate_end ? moe->gate_done - moe->first : 0,
                  begin = (int64_t)moe->shared_next * COT_FFN_TILE_ROWS;
    if (!moe->layer->shared || gated < moe->gate_end - moe->first || begin >= moe->tokens) return -1;
    const int32_t tile = moe->tiles++;
    moe->tile[tile] = (cot_fused_tile){
        .slot = -1, .first = begin, .rows = (int32_t)cot_smaller(moe->tokens - begin, COT_FFN_TILE_ROWS)};
    moe->shared_next++;
    return tile;
}

/* Cuts a tile into tasks: more where few tiles are left, so that no thread is without. */
static void begin_tile(cot_fused *moe, cot_fused_lane *lane, int32_t tile)
{
    const cot_ffn_shape *shape = shape_of(moe, &moe->tile[tile]);
    const int64_t rows = moe->tile[tile].rows, left = 1 + moe->ready_end - moe->ready_begin;
    const cot_ffn_blocks blocks =
        cot_ffn_blocks_of(shape, rows, (8 * moe->options.threads + left - 1) / left);
    const int64_t most = moe->scratch_floats / rows / COT_PANEL * COT_PANEL;
    const int64_t width[2] = {shape->intermediate, shape->hidden};
    lane->tile = tile;
    lane->columns[0] = blocks.up_columns;
    lane->columns[1] = cot_smaller(blocks.down_columns, most);
    for (int i = 0; i < 2; i++) {
        lane->parts[i] = (width[i] + lane->columns[i] - 1) / lane->columns[i];
        lane->next[i] = lane->done[i] = 0;
    }
    moe->times.tile_passes++;
}

static void describe_part(cot_fused *moe, cot_fused_task *task, int32_t lane_number, bool down)
{
    cot_fused_lane *lane = &moe->lane[lane_number];
    const cot_fused_tile *tile = &moe->tile[lane->tile];
    const cot_moe_layer *layer = moe->layer;
    const cot_ffn_shape *shape = shape_of(moe, tile);
    const int64_t part = lane->next[down]++, width = down ? shape->hidden : shape->intermediate;
    const bool shared = tile->slot < 0;
    *task = (cot_fused_task){
        .op = down ? COT_FUSED_DOWN : COT_FUSED_UP,
        .lane = lane_number,
        .begin = part * lane->columns[down],
        .end = cot_smaller((part + 1) * lane->columns[down], width),
        .shape = shape,
        .a = down     ? lane->act
             : shared ? cot_fused_own_rows(moe) + tile->first * moe->layout.row_bytes
                      : moe->received,
        .a_rows = down || shared ? NULL : moe->tile_row + (int64_t)lane->tile * COT_FFN_TILE_ROWS,
        .rows = tile->rows,
        .b = shared ? layer->shared : cot_moe_slot(layer, moe->slots, tile->slot),
        .c = lane->act};
}

/* The tile that begins next is of the same expert as the one that has just begun: their parts are taken in turn,
 * so that the weights come from memory once for both. */
static bool has_sibling(const cot_fused *moe, const cot_fused_lane *lane)
{
    const int32_t slot = moe->tile[lane->tile].slot;
    return slot >= 0 && moe->ready_begin < moe->ready_end &&
           moe->tile[moe->ready[moe->ready_begin]].slot == slot;
}

/* A part of a tile at work, DOWN before UP, since it ends a tile, and of several the one that is furthest
 * behind; else a tile begins, where a lane is free. */
static bool take_part(cot_fused *moe, cot_fused_task *task)
{
    int32_t free_lane = -1, at_work[2] = {-1, -1}; // UP, DOWN
    for (int32_t i = 0; i < moe->lanes; i++) {
        const cot_fused_lane *lane = &moe->lane[i];
        const bool down = lane->tile >= 0 && lane->done[0] == lane->parts[0];
        if (lane->tile < 0)
            free_lane = i;
        else if (lane->next[down] < lane->parts[down] &&
                 (at_work[down] < 0 || lane->next[down] < moe->lane[at_work[down]].next[down]))
            at_work[down] = i;
    }
    const bool down = at_work[1] >= 0;
    int32_t chosen = at_work[down];
    const bool begin = chosen < 0 || (!down && has_sibling(moe, &moe->lane[chosen]));
    if (begin && free_lane >= 0 && !moe->gave_up) {
        const int32_t tile = next_tile(moe);
        if (tile >= 0) {
            begin_tile(moe, &moe->lane[free_lane], tile);
            chosen = free_lane;
        }
    }
    if (chosen >= 0) describe_part(moe, task, chosen, down);
    return chosen >= 0;
}

/* Tokens of the pass that may be sent next: [send_next, their end), 0 long when the next chunk is not gated. */
static int64_t gated_end(const cot_fused *moe)
{
    int64_t end = moe->send_next;
    while (end < moe->tokens && moe->gated[end / COT_FUSED_CHUNK])
        end = cot_smaller(end + COT_FUSED_CHUNK, moe->tokens);
    return end;
}

/* The end of the own packets may be told: they are all out, and the first pass has seen all tokens' routing. */
static bool may_end_packets(const cot_fused *moe)
{
    if (moe->bad || moe->gave_up) return moe->gate_done == moe->gate_next;
    return moe->gate_done == moe->gate_end;
}

static bool take_wire(cot_fused *moe, cot_fused_task *task)
{
    *task = (cot_fused_task){.lane = -1};
    const int ranks = moe->options.fabric->ranks;
    for (int h = 0; h < ranks; h++) {
        const cot_fused_source *source = &moe->source[h];
        if (!source->signalled && source->flags & COT_FUSED_FINAL && !source->outstanding)
            task->homes |= (cot_rank_set)1 << h;
    }
    if (task->homes) {
        task->op = COT_FUSED_SIGNAL;
        return true;
    }
    if (!moe->sent) {
        const bool stop = moe->bad || moe->gave_up;
        task->op = COT_FUSED_SEND;
        task->begin = moe->send_next;
        task->end = stop ? moe->send_next : cot_smaller(gated_end(moe), moe->send_next + 4 * COT_FUSED_CHUNK);
        task->last = (stop || task->end == moe->tokens) && may_end_packets(moe);
        if (task->end > task->begin || task->last) return true;
    }
    if (moe->reply_lanes) {
        task->op = COT_FUSED_REPLY;
        task->lane = moe->reply_lane[--moe->reply_lanes];
        return true;
    }
    if (moe->complete_begin < moe->complete_end) {
        task->op = COT_FUSED_REPLY;
        task->begin = moe->complete_begin;
        task->end = moe->complete_begin = cot_smaller(moe->complete_end, moe->complete_begin + REPLY_ROWS);
        return true;
    }
    return false;
}

static bool take_gate(cot_fused *moe, cot_fused_task *task)
{
    if (moe->gate_next == moe->gate_end || moe->bad || moe->gave_up) return false;
    *task = (cot_fused_task){.op = COT_FUSED_GATE, .lane = -1, .begin = moe->gate_next};
    task->end = moe->gate_next = cot_smaller(moe->gate_next + COT_FUSED_CHUNK, moe->gate_end);
    return true;
}

static bool take_combine(cot_fused *moe, cot_fused_task *task)
{
    const int ranks = moe->options.fabric->ranks;
    if (moe->gave_up || moe->finals < ranks || moe->replied < ranks || moe->shared_done < moe->tokens ||
        moe->combine_next == moe->tokens)
        return false;
    *task = (cot_fused_task){.op = COT_FUSED_COMBINE, .lane = -1, .begin = moe->combine_next};
    task->end = moe->combine_next = cot_smaller(moe->combine_next + COMBINE_TOKENS, moe->tokens);
    return true;
}

/* When all ranks' last packets are in it is known whether one of them has bad routing, or all have nothing: then
 * the pass is void. What is at work ends, nothing else begins, and all that is owed counts as paid. */
void cot_fused_judge(cot_fused *moe)
{
    const int ranks = moe->options.fabric->ranks;
    unsigned flags = 0;
    for (int s = 0; s < ranks; s++) flags |= moe->source[s].flags;
    if (flags & COT_FUSED_BAD || (moe->finals == ranks && !(flags & COT_FUSED_TOKENS))) moe->gave_up = true;
    if (!moe->gave_up || moe->running || moe->finals < ranks) return;
    for (int i = 0; i < moe->lanes; i++) moe->lane[i].tile = -1;
    for (int s = 0; s < ranks; s++) moe->source[s].outstanding = 0;
    moe->reply_lanes = 0;
    moe->complete_begin = moe->complete_end;
}

static int32_t free_worker(cot_fused *moe)
{
    for (int32_t i = 0; i < moe->options.threads; i++)
        if (!moe->worker_taken[i]) return i;
    return -1;
}

bool cot_fused_take(cot_fused *moe, cot_fused_task *task)
{
    cot_fused_lock(moe);
    const int32_t worker = free_worker(moe);
    bool found = false;
    if (worker >= 0) {
        cot_fused_poll(moe);
        cot_fused_judge(moe);
        found = (!moe->wire && take_wire(moe, task)) || take_gate(moe, task) || take_part(moe, task) ||
                take_combine(moe, task);
    }
    if (found) {
        task->worker = worker;
        moe->worker_taken[worker] = true;
        moe->running++;
        moe->wire |=
            task->op == COT_FUSED_SEND || task->op == COT_FUSED_REPLY || task->op == COT_FUSED_SIGNAL;
    }
    cot_fused_unlock(moe);
    return found;
}

static void end_tile(cot_fused *moe, cot_fused_lane *lane, int32_t lane_number)
{
    const cot_fused_tile *tile = &moe->tile[lane->tile];
    const cot_fused_target *target = moe->tile_target + (int64_t)lane->tile * COT_FFN_TILE_ROWS;
    const int own = moe->options.fabric->rank;
    if (tile->slot < 0) {
        moe->shared_done += tile->rows;
    } else if (cot_fused_is_exact(moe)) {
        int32_t here = 0;
        for (int32_t i = 0; i < tile->rows; i++) here += target[i].home == own;
        moe->source[own].outstanding -= here;
        if (here < tile->rows) {
            moe->reply_lane[moe->reply_lanes++] = lane_number;
            return;
        }
    } else {
        for (int32_t i = 0; i < tile->rows; i++)
            if (!--moe->row_left[target[i].home]) moe->complete[moe->complete_end++] = target[i].home;
    }
    lane->tile = -1;
}

static void end_reply(cot_fused *moe, const cot_fused_task *task)
{
    for (int64_t i = task->begin; i < task->end; i++)
        moe->source[moe->complete[i] / moe->layout.tokens].outstanding--;
    if (task->lane < 0) return;
    cot_fused_lane *lane = &moe->lane[task->lane];
    const cot_fused_target *target = moe->tile_target + (int64_t)lane->tile * COT_FFN_TILE_ROWS;
    for (int32_t i = 0; i < moe->tile[lane->tile].rows; i++)
        if (target[i].home != moe->options.fabric->rank) moe->source[target[i].home].outstanding--;
    lane->tile = -1;
}

static void end_gate(cot_fused *moe, const cot_fused_task *task)
{
    moe->gate_done += task->end - task->begin;
    moe->gated[(task->begin - moe->first) / COT_FUSED_CHUNK] = task->status == COT_OK;
    if (task->status == COT_OK || (moe->bad && moe->bad_token < task->begin)) return;
    moe->bad = true;
    moe->bad_token = task->begin;
    moe->bad_error = moe->worker_error[task->worker];
}

static void place_own_replies(cot_fused *moe, int64_t token, cot_fused_entry *entries, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        moe->reply_row[token * moe->layout.top_k + entries[i].place] = (int32_t)(moe->reply_rows + i);
        entries[i].place = (uint16_t)i;
    }
    moe->reply_rows += count;
}

/* Own tokens' rows for own experts go straight into tiles; the last task says what the others are told. */
static void end_send(cot_fused *moe, const cot_fused_task *task)
{
    const int own = moe->options.fabric->rank;
    cot_fused_entry entries[COT_MAX_TOP_K];
    for (int64_t t = task->begin; t < task->end && !moe->gave_up; t++) {
        const int64_t count = cot_fused_entries_for(moe, entries, t, own);
        if (cot_fused_is_exact(moe))
            place_own_replies(moe, t, entries, count);
        else
            moe->sent_row[t * moe->layout.ranks + own] = count ? (int32_t)t : -1;
        if (count)
            cot_fused_add_row(moe, own, moe->reply_rows - count, own * moe->layout.block_rows + t, t, entries,
                              count);
    }
    moe->send_next = task->end;
    if (!task->last) return;
    moe->sent = true;
    moe->source[own].flags = cot_fused_flags(moe);
    moe->finals++;
}

static int64_t *time_of(cot_moe_times *times, const cot_fused_task *task, bool shared)
{
    switch (task->op) {
    case COT_FUSED_GATE:
        return &times->gate_ns;
    case COT_FUSED_SEND:
        return &times->dispatch_ns;
    case COT_FUSED_UP:
    case COT_FUSED_DOWN:
        return shared ? &times->shared_ns : &times->expert_ns;
    default:
        return &times->combine_ns;
    }
}

void cot_fused_finish(cot_fused *moe, const cot_fused_task *task)
{
    cot_fused_lock(moe);
    cot_fused_lane *lane = task->lane < 0 ? NULL : &moe->lane[task->lane];
    *time_of(&moe->times, task, lane && moe->tile[lane->tile].slot < 0) += task->end_ns - task->begin_ns;
    switch (task->op) {
    case COT_FUSED_GATE:
        end_gate(moe, task);
        break;
    case COT_FUSED_SEND:
        end_send(moe, task);
        moe->wire = false;
        break;
    case COT_FUSED_UP:
        lane->done[0]++;
        break;
    case COT_FUSED_DOWN:
        if (++lane->done[1] == lane->parts[1]) end_tile(moe, lane, task->lane);
        break;
    case COT_FUSED_REPLY:
        end_reply(moe, task);
        moe->wire = false;
        break;
    case COT_FUSED_SIGNAL:
        for (int h = 0; h < moe->options.fabric->ranks; h++)
            if (task->homes >> h & 1) moe->source[h].signalled = true;
        moe->signalled += __builtin_popcountll(task->homes);
        moe->wire = false;
        break;
    case COT_FUSED_COMBINE:
        moe->combine_done += task->end - task->begin;
        break;
    }
    moe->worker_taken[task->worker] = false;
    moe->running--;
    moe->progress++;
    cot_fused_unlock(moe);
}

/* Of a void pass a lane may be left at work when nothing runs and nothing is owed: the shared expert's, until the
 * next look for a task frees it. */
static bool lanes_are_free(const cot_fused *moe)
{
    for (int i = 0; i < moe->lanes; i++)
        if (moe->lane[i].tile >= 0) return false;
    return true;
}

bool cot_fused_is_over(const cot_fused *moe, int *waits_for, cot_phase *phase)
{
    const int ranks = moe->options.fabric->ranks;
    *waits_for = moe->options.fabric->rank;
    *phase = moe->finals < ranks ? COT_PHASE_DISPATCH : COT_PHASE_COMBINE;
    for (int s = ranks - 1; s >= 0; s--)
        if (moe->finals < ranks ? !(moe->source[s].flags & COT_FUSED_FINAL) : !moe->source[s].replied)
            *waits_for = s;
    return !moe->running && moe->sent && moe->finals == ranks && moe->signalled == ranks &&
           moe->replied == ranks && (moe->gave_up ? lanes_are_free(moe) : moe->combine_done == moe->tokens);
}
