/* What a rank puts: packets of its tokens' rows, replies, signals. One task at a time does any of this. */
#include "moe/fused/state.h"

#include <string.h>

int64_t cot_fused_entries_for(const cot_fused *moe, cot_fused_entry *entries, int64_t token, int to)
{
    const cot_expert_replicas *placement = &moe->layer->placement;
    const int64_t top_k = moe->layout.top_k, first = (moe->first + token) * top_k;
    int64_t count = 0;
    for (int64_t k = 0; k < top_k; k++) {
        const int32_t replica = moe->routing.chosen[first + k];
        if (placement->rank[replica] == to)
            entries[count++] = (cot_fused_entry){.weight = moe->routing.weights[first + k],
                                                 .slot = (uint16_t)placement->slot[replica],
                                                 .place = (uint16_t)k};
    }
    return count;
}

unsigned cot_fused_flags(const cot_fused *moe)
{
    unsigned flags = COT_FUSED_FINAL;
    if (moe->bad) flags |= COT_FUSED_BAD;
    if (moe->call_tokens) flags |= COT_FUSED_TOKENS;
    if (moe->first + moe->tokens < moe->call_tokens) flags |= COT_FUSED_MORE;
    return flags;
}

/* The replies to a cell's entries take rows that follow each other, those of one expert side by side: so its rank makes them, and
 * puts them. */
static void place_replies(cot_fused *moe, int to)
{
    const cot_fused_layout *l = &moe->layout;
    const cot_fused_cell_out *cell = &moe->cell[to];
    const int64_t slots = moe->options.slots ? moe->options.slots : moe->options.experts;
    uint32_t *heads = moe->staging_heads + to * l->cell_tokens;
    cot_fused_entry *entry = moe->staging_entries + to * l->cell_tokens * l->top_k;
    int32_t *next = moe->slot_replies, before = 0;
    memset(next, 0, (size_t)slots * sizeof *next);
    for (int64_t i = 0; i < cell->entries; i++) next[entry[i].slot]++;
    for (int64_t slot = 0; slot < slots; slot++) {
        const int32_t count = next[slot];
        next[slot] = before;
        before += count;
    }
    for (int64_t r = 0; r < cell->rows; r++) {
        const int64_t token = heads[r] >> 8, count = heads[r] & 0xff;
        for (const cot_fused_entry *end = entry + count; entry < end; entry++) {
            const int32_t place = next[entry->slot]++;
            moe->reply_row[token * l->top_k + entry->place] = (int32_t)moe->reply_rows + place;
            entry->place = (uint16_t)place;
        }
        heads[r] = (uint32_t)(moe->reply_rows << 8 | count);
    }
    moe->reply_rows += cell->entries;
}

/* One put and signal: the rows, and behind them what is to be known about them. */
static void flush(cot_fused *moe, int to, unsigned flags)
{
    const cot_moe_options *o = &moe->options;
    const cot_fused_layout *l = &moe->layout;
    cot_fused_cell_out *cell = &moe->cell[to];
    const int64_t cell_bytes = l->cell_rows * l->row_bytes;
    uint8_t *data = moe->staging + to * cell_bytes, *heads = data + cell->rows * l->row_bytes,
            *entries = heads + cell->rows * COT_FUSED_HEAD_BYTES;
    const size_t entry_bytes = (size_t)cell->entries * sizeof(cot_fused_entry),
                 bytes = (size_t)(entries - data) + entry_bytes;
    if (cell->rows) {
        if (cot_fused_is_exact(moe)) place_replies(moe, to);
        memcpy(heads, moe->staging_heads + to * l->cell_tokens, (size_t)cell->rows * COT_FUSED_HEAD_BYTES);
        memcpy(entries, moe->staging_entries + to * l->cell_tokens * l->top_k, entry_bytes);
    }
    const int64_t number = cell->rows ? cell->sent / l->cell_tokens : 0, // a full block has no cell beyond
        at = cot_fused_cell(l, o->fabric->rank, number) * l->row_bytes;
    cell->sent += cell->rows;
    cot_put_signal(o->fabric, to, moe->dispatch_at + (cot_sym)at, data, bytes,
                   moe->dispatch_signals + (cot_sym)o->fabric->rank * COT_FUSED_LINE,
                   cot_fused_signal(moe->epoch, cell->sent, flags), COT_PHASE_DISPATCH);
    cot_count_as(o->fabric, to, COT_PHASE_DISPATCH, COT_PHASE_METADATA,
                 bytes - (size_t)(cell->rows * l->row_bytes));
    cell->rows = cell->entries = 0;
}

static void pack_row(cot_fused *moe, int to, int64_t token)
{
    const cot_fused_layout *l = &moe->layout;
    cot_fused_cell_out *cell = &moe->cell[to];
    cot_fused_entry *entries = moe->staging_entries + to * l->cell_tokens * l->top_k + cell->entries;
    const int64_t count = cot_fused_entries_for(moe, entries, token, to);
    if (!cot_fused_is_exact(moe))
        moe->sent_row[token * l->ranks + to] = count ? (int32_t)(cell->sent + cell->rows) : -1;
    if (!count) return;
    memcpy(moe->staging + (to * l->cell_rows + cell->rows) * l->row_bytes,
           cot_fused_own_rows(moe) + token * l->row_bytes, (size_t)l->row_bytes);
    moe->staging_heads[to * l->cell_tokens + cell->rows] = (uint32_t)(token << 8 | count);
    cell->entries += count;
    if (++cell->rows == l->cell_tokens) flush(moe, to, 0);
}

void cot_fused_send(cot_fused *moe, const cot_fused_task *task)
{
    const int ranks = moe->options.fabric->ranks, own = moe->options.fabric->rank;
    for (int64_t t = task->begin; t < task->end; t++)
        for (int to = 0; to < ranks; to++)
            if (to != own) pack_row(moe, to, t);
    for (int i = 1; i < ranks && task->last; i++) flush(moe, (own + i) % ranks, cot_fused_flags(moe));
}

/* exact: the rows of a lane. */
static void reply_lane(cot_fused *moe, const cot_fused_lane *lane)
{
    const cot_fused_target *target = moe->tile_target + (int64_t)lane->tile * COT_FFN_TILE_ROWS;
    const int64_t bytes = moe->layout.reply_bytes;
    for (int32_t i = 0; i < moe->tile[lane->tile].rows; i++)
        if (target[i].home != moe->options.fabric->rank)
            cot_put(moe->options.fabric, target[i].home, moe->replies_at + (cot_sym)(target[i].at * bytes),
                    lane->out + i * bytes, (size_t)bytes, COT_PHASE_COMBINE);
}

/* reduced: the sum of a received row's entries, in the order of experts. */
static void reply_sum(cot_fused *moe, int64_t received, float *sum)
{
    const cot_moe_options *o = &moe->options;
    const cot_fused_layout *l = &moe->layout;
    const int64_t hidden = o->expert.hidden;
    memset(sum, 0, (size_t)hidden * sizeof *sum);
    for (int32_t i = 0; i < moe->row_entries[received]; i++)
        o->kernels->add(sum, moe->partial + (moe->row_entry[received] + i) * hidden, COT_F32, hidden);
    const int home = (int)(received / l->tokens), own = o->fabric->rank;
    const int64_t at = (own * l->tokens + received % l->tokens) * l->reply_bytes;
    if (home == own) {
        o->kernels->scale(moe->replies + at, o->combine_type, sum, 1, hidden);
        return;
    }
    o->kernels->scale(sum, o->combine_type, sum, 1, hidden);
    cot_put(o->fabric, home, moe->replies_at + (cot_sym)at, sum, (size_t)l->reply_bytes, COT_PHASE_COMBINE);
}

void cot_fused_reply(cot_fused *moe, const cot_fused_task *task)
{
    if (task->lane >= 0) reply_lane(moe, &moe->lane[task->lane]);
    for (int64_t i = task->begin; i < task->end; i++)
        reply_sum(moe, moe->complete[i], moe->scratch + task->worker * moe->scratch_floats);
}

void cot_fused_tell(cot_fused *moe, const cot_fused_task *task)
{
    const cot_moe_options *o = &moe->options;
    for (int h = 0; h < o->fabric->ranks; h++)
        if (task->homes >> h & 1)
            cot_put_signal(o->fabric, h, 0, NULL, 0,
                           moe->reply_signals + (cot_sym)o->fabric->rank * COT_FUSED_LINE, moe->epoch,
                           COT_PHASE_COMBINE);
}
