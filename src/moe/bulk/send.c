/* From the gate to the packets: what is told before rows, and rows with all there is to know of them. */
#include "base/integers.h"
#include "moe/bulk/state.h"
#include "moe/check.h"

#include <string.h>

static int32_t rank_of(const cot_bulk *moe, const cot_moe_layer *layer, int64_t choice)
{
    return layer->placement.rank[moe->routing.chosen[choice]];
}

/* ---- what there is to send ---- */

/* Rows of this rank for every replica. */
static int32_t *own_counts(cot_bulk *moe)
{
    const bool all = moe->form.a2a == COT_A2A_TWO_PHASE;
    return moe->counts + (all ? moe->options.fabric->rank * moe->replicas : 0);
}

static void count(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens)
{
    int32_t *own = own_counts(moe);
    memset(own, 0, (size_t)moe->replicas * sizeof *own);
    for (int64_t i = 0; i < tokens * moe->form.top_k; i++) own[moe->routing.chosen[i]]++;
    for (int64_t e = 0; e < moe->replicas; e++) {
        cot_bulk_pair *to = &moe->layout.to[layer->placement.rank[e]];
        to->rows = to->entries += own[e];
        moe->layout.longest = cot_larger(moe->layout.longest, own[e]);
    }
}

/* One row a (token, rank), tokens in their order; an entry for each of its experts there. */
static void count_once(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens)
{
    const int64_t top_k = moe->form.top_k;
    for (int64_t t = 0; t < tokens; t++) {
        cot_rank_set there = 0;
        for (int64_t i = t * top_k; i < (t + 1) * top_k; i++) {
            const int32_t rank = rank_of(moe, layer, i);
            cot_bulk_pair *to = &moe->layout.to[rank];
            to->rows += !(there >> rank & 1);
            there |= (cot_rank_set)1 << rank;
            moe->row_of[i] = to->rows - 1;
            moe->entry_of[i] = to->entries++;
        }
    }
}

/* Where every choice's row is in its packet: by replica, then by token. Padded ones have C rows for each replica. */
static void place_rows(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens)
{
    const int32_t *own = own_counts(moe);
    const bool padded = moe->form.a2a == COT_A2A_PADDED;
    int64_t next[COT_MAX_RANKS] = {0};
    for (int64_t e = 0; e < moe->replicas; e++) {
        int64_t *at = &next[layer->placement.rank[e]];
        moe->cursor[e] = (int32_t)*at;
        *at += padded ? moe->layout.longest : own[e];
    }
    for (int64_t i = 0; i < tokens * moe->form.top_k; i++)
        moe->row_of[i] = moe->entry_of[i] = moe->cursor[moe->routing.chosen[i]]++;
}

/* ---- what is told before ---- */

static uint8_t word_of(int64_t tokens, cot_status routed)
{
    return (uint8_t)((routed != COT_OK ? COT_BULK_UNSOUND : 0) | (tokens ? COT_BULK_TOKENS : 0));
}

/* What the words of all ranks mean for the call. */
static cot_status judge(const cot_bulk *moe, const uint8_t *words, cot_status routed, cot_error *error)
{
    uint8_t any = 0;
    if (routed != COT_OK) return routed;
    for (int r = 0; r < moe->form.ranks; r++) {
        if (words[r] & COT_BULK_UNSOUND) return cot_moe_fail_with(r, error);
        any |= words[r];
    }
    return any & COT_BULK_TOKENS ? COT_OK : cot_moe_fail_empty(error);
}

/* A message of a rank that fails says so; else what was wrong with the routing is still in `error`. */
static cot_status exchange(cot_bulk *moe, const void **received, uint8_t *words, const cot_message *block,
                           cot_phase phase, cot_error *error)
{
    cot_error network = {0};
    const cot_status status = cot_exchange(moe->collectives, received, words, block, phase, &network);
    if (status != COT_OK && error) *error = network;
    return status;
}

/* The same for everyone: `bytes` at `data`, which arrive in the order of ranks. */
static cot_status tell(cot_bulk *moe, const void **received, const void *data, size_t bytes, int64_t tokens,
                       cot_status routed, cot_error *error)
{
    uint8_t words[COT_MAX_RANKS];
    cot_message block[COT_MAX_RANKS];
    for (int to = 0; to < moe->form.ranks; to++)
        block[to] =
            (cot_message){data, bytes, (size_t)moe->options.fabric->rank * bytes, word_of(tokens, routed)};
    const cot_status status = exchange(moe, received, words, block, COT_PHASE_METADATA, error);
    return status == COT_OK ? judge(moe, words, routed, error) : status;
}

/* Rows of every rank for every replica; from them, what goes from whom to whom. */
static cot_status tell_counts(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens, cot_status routed,
                              cot_error *error)
{
    const size_t bytes = (size_t)moe->replicas * sizeof *moe->counts;
    const void *received;
    const cot_status status = tell(moe, &received, own_counts(moe), bytes, tokens, routed, error);
    if (status != COT_OK) return status;
    memcpy(moe->counts, received, (size_t)moe->form.ranks * bytes);
    memset(moe->pairs, 0, (size_t)(moe->form.ranks * moe->form.ranks) * sizeof *moe->pairs);
    for (int64_t s = 0; s < moe->form.ranks; s++)
        for (int64_t e = 0; e < moe->replicas; e++) {
            cot_bulk_pair *pair = &moe->pairs[s * moe->form.ranks + layer->placement.rank[e]];
            pair->rows = pair->entries += moe->counts[s * moe->replicas + e];
        }
    return COT_OK;
}

static cot_status tell_pairs(cot_bulk *moe, int64_t tokens, cot_status routed, cot_error *error)
{
    const size_t bytes = (size_t)moe->form.ranks * sizeof *moe->pairs;
    const void *received;
    const cot_status status = tell(moe, &received, moe->layout.to, bytes, tokens, routed, error);
    if (status == COT_OK) memcpy(moe->pairs, received, (size_t)moe->form.ranks * bytes);
    return status;
}

/* The longest of all ranks' blocks, which makes every packet as long. */
static cot_status tell_longest(cot_bulk *moe, int64_t tokens, cot_status routed, cot_error *error)
{
    cot_bulk_layout *layout = &moe->layout;
    const int32_t own = (int32_t)layout->longest;
    const void *received;
    const cot_status status = tell(moe, &received, &own, sizeof own, tokens, routed, error);
    if (status != COT_OK) return status;
    for (int r = 0; r < moe->form.ranks; r++)
        layout->longest = cot_larger(layout->longest, ((const int32_t *)received)[r]);
    for (int64_t d = 0; d < moe->form.ranks; d++)
        moe->times.padded_rows += (uint64_t)(layout->replicas[d] * layout->longest);
    for (int64_t s = 0; s < moe->form.ranks; s++)
        for (int64_t d = 0; d < moe->form.ranks; d++)
            moe->pairs[s * moe->form.ranks + d] =
                (cot_bulk_pair){.rows = (int32_t)(layout->replicas[d] * layout->longest)};
    memcpy(layout->to, moe->pairs,
           (size_t)moe->form.ranks * sizeof *layout->to); // those of all ranks are alike
    return COT_OK;
}

static cot_status tell_ahead(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens, cot_status routed,
                             cot_error *error)
{
    if (moe->form.a2a == COT_A2A_ONE_SHOT) return COT_OK;
    if (moe->form.a2a == COT_A2A_PADDED) return tell_longest(moe, tokens, routed, error);
    return moe->form.dedup ? tell_pairs(moe, tokens, routed, error)
                           : tell_counts(moe, layer, tokens, routed, error);
}

/* ---- packets ---- */

static uint8_t *rows_to(const cot_bulk *moe, int to)
{
    return moe->send + (moe->layout.send_at[to] + cot_bulk_lead(&moe->form)) * moe->form.row_bytes;
}

struct packing {
    cot_bulk *moe;
    const cot_moe_layer *layer;
    const float *x;
};

static void pack_token(void *context, int64_t t)
{
    const struct packing *packing = context;
    cot_bulk *moe = packing->moe;
    const cot_moe_options *o = &moe->options;
    cot_rank_set there = 0;
    for (int64_t i = t * o->top_k; i < (t + 1) * o->top_k; i++) {
        const int32_t rank = rank_of(moe, packing->layer, i);
        if (moe->form.dedup && there >> rank & 1) continue;
        there |= (cot_rank_set)1 << rank;
        o->kernels->scale(rows_to(moe, rank) + moe->row_of[i] * moe->form.row_bytes, o->expert.type,
                          packing->x + t * o->expert.hidden, 1, o->expert.hidden);
    }
}

/* Rows may have any even number of bytes: what lies behind them is copied in and out. */
static void put_word(uint8_t *words, int64_t i, const void *value)
{
    memcpy(words + i * COT_BULK_WORD_BYTES, value, COT_BULK_WORD_BYTES);
}

static void pack_header(cot_bulk *moe, int to)
{
    const cot_bulk_form *f = &moe->form;
    const cot_bulk_pair pair = moe->layout.to[to];
    uint8_t *rows = rows_to(moe, to);
    if (cot_bulk_header_bytes(f, pair)) memcpy(rows - COT_BULK_WORD_BYTES, &pair.rows, COT_BULK_WORD_BYTES);
    if (f->dedup)
        memset(rows + pair.rows * f->row_bytes, 0, (size_t)pair.rows * COT_BULK_WORD_BYTES); // heads
}

static void pack_counts(cot_bulk *moe, const cot_moe_layer *layer)
{
    int64_t next[COT_MAX_RANKS] = {0};
    const int32_t *own = own_counts(moe);
    for (int64_t e = 0; e < moe->replicas; e++) {
        const int32_t to = layer->placement.rank[e];
        put_word(rows_to(moe, to) + moe->layout.to[to].rows * moe->form.row_bytes, next[to]++, &own[e]);
    }
}

/* What is to be known of a choice, behind the rows of its packet. */
static void pack_choice(cot_bulk *moe, const cot_moe_layer *layer, int64_t i)
{
    const cot_bulk_form *f = &moe->form;
    const int32_t to = rank_of(moe, layer, i);
    const int64_t rows = moe->layout.to[to].rows;
    const cot_bulk_entry entry = {moe->routing.weights[i], moe->routing.chosen[i]};
    uint8_t *behind = rows_to(moe, to) + rows * f->row_bytes;
    if (f->a2a == COT_A2A_PADDED)
        put_word(behind, moe->layout.replicas[to] + moe->row_of[i], &entry.weight);
    else if (f->a2a == COT_A2A_TWO_PHASE && !f->dedup)
        put_word(behind, moe->row_of[i], &entry.weight);
    else {
        uint8_t *entries = behind + (f->dedup ? rows * COT_BULK_WORD_BYTES : 0);
        memcpy(entries + moe->entry_of[i] * (int64_t)sizeof entry, &entry, sizeof entry);
    }
    if (!f->dedup) return;
    uint32_t head;
    memcpy(&head, behind + moe->row_of[i] * COT_BULK_WORD_BYTES, sizeof head);
    head++;
    put_word(behind, moe->row_of[i], &head);
}

static void pack(cot_bulk *moe, const cot_moe_layer *layer, const float *x, int64_t tokens)
{
    for (int to = 0; to < moe->form.ranks; to++) pack_header(moe, to);
    if (moe->form.a2a == COT_A2A_PADDED && moe->layout.longest) pack_counts(moe, layer);
    for (int64_t i = 0; i < tokens * moe->form.top_k; i++) pack_choice(moe, layer, i);
    cot_pool_run(moe->options.pool, tokens, pack_token, &(struct packing){moe, layer, x});
    moe->times.launches++;
}

/* Rows count as dispatch, all else as metadata. */
static cot_status send_packets(cot_bulk *moe, const void **received, uint8_t *words, uint8_t word,
                               cot_error *error)
{
    const cot_bulk_form *f = &moe->form;
    const cot_bulk_layout *l = &moe->layout;
    cot_fabric *fabric = moe->options.fabric;
    cot_message block[COT_MAX_RANKS];
    for (int to = 0; to < f->ranks; to++) {
        const int64_t header = cot_bulk_header_bytes(f, l->to[to]), rows = l->to[to].rows * f->row_bytes,
                      trailer = cot_bulk_trailer_bytes(f, l->to[to], l->replicas[to]);
        const int64_t place = (l->place[to] + cot_bulk_lead(f)) * f->row_bytes;
        block[to] =
            (cot_message){rows_to(moe, to) - header, (size_t)(header + rows + trailer),
                          (size_t)(place - header), (uint8_t)(word | (l->to[to].rows ? COT_BULK_ROWS : 0))};
    }
    const cot_status status = exchange(moe, received, words, block, COT_PHASE_DISPATCH, error);
    for (int to = 0; to < f->ranks; to++)
        cot_count_as(fabric, to, COT_PHASE_DISPATCH, COT_PHASE_METADATA,
                     block[to].bytes - (size_t)(l->to[to].rows * f->row_bytes));
    return status;
}

/* Of a one-shot packet the header says how many rows it has, and what lies behind them how many entries. */
static void read_headers(cot_bulk *moe, const uint8_t *received, const uint8_t *words)
{
    const cot_bulk_form *f = &moe->form;
    for (int from = 0; from < f->ranks; from++) {
        cot_bulk_pair *pair = &moe->layout.from[from];
        const uint8_t *rows = received + (moe->layout.receive_at[from] + cot_bulk_lead(f)) * f->row_bytes;
        *pair = (cot_bulk_pair){0};
        if (!(words[from] & COT_BULK_ROWS)) continue;
        memcpy(&pair->rows, rows - COT_BULK_WORD_BYTES, sizeof pair->rows);
        for (int64_t i = 0; i < pair->rows && f->dedup; i++) {
            int32_t head;
            memcpy(&head, rows + pair->rows * f->row_bytes + i * COT_BULK_WORD_BYTES, sizeof head);
            pair->entries += head;
        }
        if (!f->dedup) pair->entries = pair->rows;
    }
}

cot_status cot_bulk_dispatch(cot_bulk *moe, const cot_moe_layer *layer, const void **received, const float *x,
                             int64_t tokens, cot_status routed, cot_error *error)
{
    const bool one_shot = moe->form.a2a == COT_A2A_ONE_SHOT;
    const int64_t sound = routed == COT_OK ? tokens : 0;
    moe->layout = (cot_bulk_layout){0};
    for (int64_t e = 0; e < moe->replicas; e++) moe->layout.replicas[layer->placement.rank[e]]++;
    if (moe->form.dedup)
        count_once(moe, layer, sound);
    else
        count(moe, layer, sound);
    cot_status status = tell_ahead(moe, layer, tokens, routed, error);
    if (status != COT_OK) return status;
    if (!moe->form.dedup) place_rows(moe, layer, sound);
    cot_bulk_lay_out_sent(&moe->layout, &moe->form, one_shot ? NULL : moe->pairs, moe->options.fabric->rank);
    pack(moe, layer, x, sound);
    uint8_t words[COT_MAX_RANKS];
    status = send_packets(moe, received, words, word_of(tokens, routed), error);
    if (status == COT_OK && one_shot) status = judge(moe, words, routed, error);
    if (status != COT_OK) return status;
    if (one_shot) read_headers(moe, *received, words);
    cot_bulk_lay_out_replies(&moe->layout, &moe->form);
    return COT_OK;
}
