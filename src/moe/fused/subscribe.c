#include "moe/fused/state.h"

#include "base/wait.h"

#include <assert.h>
#include <string.h>

void cot_fused_lock(cot_fused *moe)
{
    for (int round = 0; atomic_flag_test_and_set_explicit(&moe->lock, memory_order_acquire); round++)
        cot_relax(round);
}

void cot_fused_unlock(cot_fused *moe)
{
    atomic_flag_clear_explicit(&moe->lock, memory_order_release);
}

static int32_t new_tile(cot_fused *moe, int32_t slot)
{
    assert(moe->tiles < moe->tiles_most);
    moe->tile[moe->tiles] = (cot_fused_tile){.slot = slot};
    return moe->tiles++;
}

/* A full tile is held back until the next one of its expert is half full, so that what is left at the end can
 * be shared evenly between the two: a pass over the weights for a row or two would be a waste. */
static int32_t tile_for(cot_fused *moe, int32_t slot)
{
    int32_t tile = moe->open_tile[slot];
    if (tile < 0) {
        moe->times.served_experts++;
        return moe->open_tile[slot] = new_tile(moe, slot);
    }
    const int32_t rows = moe->tile[tile].rows;
    if (rows == COT_FFN_TILE_ROWS / 2 && moe->full_tile[slot] >= 0) {
        cot_fused_release(moe, moe->full_tile[slot]);
        moe->full_tile[slot] = -1;
    }
    if (rows < COT_FFN_TILE_ROWS) return tile;
    moe->full_tile[slot] = tile;
    return moe->open_tile[slot] = new_tile(moe, slot);
}

static void add_entry(cot_fused *moe, int32_t slot, int64_t row, float weight, cot_fused_target target)
{
    const int32_t tile = tile_for(moe, slot);
    const int64_t i = (int64_t)tile * COT_FFN_TILE_ROWS + moe->tile[tile].rows++;
    moe->tile_row[i] = (int32_t)row;
    moe->tile_weight[i] = weight;
    moe->tile_target[i] = target;
}

void cot_fused_add_row(cot_fused *moe, int source, int64_t first, int64_t row, int64_t number,
                       const cot_fused_entry *entries, int64_t count)
{
    moe->times.served_rows += (uint64_t)count;
    moe->times.received_rows += source != moe->options.fabric->rank;
    if (cot_fused_is_exact(moe)) {
        moe->source[source].outstanding += count;
        for (int64_t i = 0; i < count; i++)
            add_entry(moe, entries[i].slot, row, entries[i].weight,
                      (cot_fused_target){source, (int32_t)(first + entries[i].place)});
        return;
    }
    const int64_t received = source * moe->layout.tokens + number;
    moe->source[source].outstanding++;
    moe->row_entry[received] = moe->entries;
    moe->row_left[received] = moe->row_entries[received] = (int32_t)count;
    for (int64_t i = 0; i < count; i++)
        add_entry(moe, entries[i].slot, row, entries[i].weight,
                  (cot_fused_target){(int32_t)received, moe->entries++});
}

/* A cell of `rows` rows that begins at row `cell`; its first is the source's `number`-th. */
static void decode_cell(cot_fused *moe, int source, int64_t cell, int64_t number, int64_t rows)
{
    const cot_fused_layout *l = &moe->layout;
    const uint8_t *heads = moe->received + (cell + rows) * l->row_bytes,
                  *next = heads + rows * COT_FUSED_HEAD_BYTES;
    for (int64_t r = 0; r < rows; r++) {
        uint32_t head;
        cot_fused_entry entries[COT_MAX_TOP_K];
        memcpy(&head, heads + r * COT_FUSED_HEAD_BYTES, sizeof head);
        const int64_t count = head & 0xff;
        assert(count >= 1 && count <= l->top_k && head >> 8 < l->tokens * l->top_k);
        memcpy(entries, next, (size_t)count * sizeof *entries);
        next += (size_t)count * sizeof *entries;
        cot_fused_add_row(moe, source, head >> 8, cell + r, number + r, entries, count);
    }
}

static void poll_dispatch(cot_fused *moe, int s)
{
    const cot_fused_layout *l = &moe->layout;
    cot_fused_source *source = &moe->source[s];
    const uint64_t signal =
        cot_signal_load(moe->options.fabric, moe->dispatch_signals + (cot_sym)s * COT_FUSED_LINE);
    if (cot_fused_signal_epoch(signal) < moe->epoch) return;
    assert(cot_fused_signal_epoch(signal) == moe->epoch); // no rank can be a whole pass ahead of another
    const int64_t rows = cot_fused_signal_rows(signal);
    while (source->rows < rows && !moe->gave_up) { // all cells but the last one are full
        const int64_t left = rows - source->rows, count = left < l->cell_tokens ? left : l->cell_tokens;
        decode_cell(moe, s, cot_fused_cell(l, s, source->rows / l->cell_tokens), source->rows, count);
        source->rows += count;
        moe->progress++;
    }
    if (source->flags != cot_fused_signal_flags(signal)) moe->progress++;
    source->flags = cot_fused_signal_flags(signal);
    if (source->flags & COT_FUSED_FINAL) moe->finals++;
}

/* The held and the open tile of an expert share their rows. */
static void share_rows(cot_fused *moe, int32_t full, int32_t open)
{
    const int32_t move = (moe->tile[full].rows - moe->tile[open].rows) / 2;
    if (move <= 0) return;
    const int64_t from = (int64_t)full * COT_FFN_TILE_ROWS + moe->tile[full].rows - move,
                  to = (int64_t)open * COT_FFN_TILE_ROWS + moe->tile[open].rows;
    const size_t count = (size_t)move;
    memcpy(moe->tile_row + to, moe->tile_row + from, count * sizeof *moe->tile_row);
    memcpy(moe->tile_weight + to, moe->tile_weight + from, count * sizeof *moe->tile_weight);
    memcpy(moe->tile_target + to, moe->tile_target + from, count * sizeof *moe->tile_target);
    moe->tile[full].rows -= move;
    moe->tile[open].rows += move;
}

/* All packets are in: experts with fewer rows than a tile holds may run. */
static void close_tiles(cot_fused *moe)
{
    for (int32_t t = 0, tiles = moe->tiles; t < tiles; t++) {
        const int32_t slot = moe->tile[t].slot;
        if (slot < 0 || moe->open_tile[slot] != t) continue;
        if (moe->full_tile[slot] >= 0) {
            share_rows(moe, moe->full_tile[slot], t);
            cot_fused_release(moe, moe->full_tile[slot]);
        }
        cot_fused_release(moe, t);
        moe->open_tile[slot] = moe->full_tile[slot] = -1;
    }
    moe->closed = true;
}

void cot_fused_poll(cot_fused *moe)
{
    const int ranks = moe->options.fabric->ranks, own = moe->options.fabric->rank;
    for (int s = 0; s < ranks && moe->finals < ranks; s++)
        if (s != own && !(moe->source[s].flags & COT_FUSED_FINAL)) poll_dispatch(moe, s);
    for (int s = 0; s < ranks && moe->replied < ranks; s++)
        if (!moe->source[s].replied &&
            cot_signal_load(moe->options.fabric, moe->reply_signals + (cot_sym)s * COT_FUSED_LINE) >=
                moe->epoch) {
            moe->source[s].replied = true;
            moe->replied++;
            moe->progress++;
        }
    if (moe->finals == ranks && !moe->closed) close_tiles(moe);
}
