/* From the packets to the experts: what there is to compute, in the order of experts. */
#include "moe/bulk/state.h"

#include <assert.h>
#include <string.h>

/* A packet as it is read; its reply begins at row `reply` of those made. */
struct packet {
    const uint8_t *behind; // its last row
    int64_t row, reply;    // its first ones
    cot_bulk_pair pair;
};

static void add(cot_bulk *moe, int64_t replica, int64_t row, int64_t reply, float weight)
{
    const int64_t i = moe->entries++;
    assert(i < moe->options.tokens * moe->options.top_k);
    moe->entry_replica[i] = (int32_t)replica;
    moe->entry_row[i] = (int32_t)row;
    moe->entry_reply[i] = (int32_t)reply;
    moe->entry_weight[i] = weight;
    moe->totals[replica]++;
}

static float float_at(const uint8_t *words, int64_t i)
{
    float value;
    memcpy(&value, words + i * COT_BULK_WORD_BYTES, sizeof value);
    return value;
}

static int32_t count_at(const uint8_t *words, int64_t i)
{
    int32_t value;
    memcpy(&value, words + i * COT_BULK_WORD_BYTES, sizeof value);
    return value;
}

/* Rows by replica, of which the counts that were told before, or those in a padded packet, say how many there are. */
static void unpack_counted(cot_bulk *moe, const cot_moe_layer *layer, const struct packet *p, int from)
{
    const bool padded = moe->form.a2a == COT_A2A_PADDED;
    const int rank = moe->options.fabric->rank;
    const uint8_t *weights = p->behind + (padded ? moe->layout.replicas[rank] * COT_BULK_WORD_BYTES : 0);
    int64_t first = 0, own = 0;
    for (int64_t e = 0; e < moe->replicas && p->pair.rows; e++) {
        if (layer->placement.rank[e] != rank) continue;
        const int64_t rows = padded ? count_at(p->behind, own++) : moe->counts[from * moe->replicas + e];
        for (int64_t i = first; i < first + rows; i++)
            add(moe, e, p->row + i, p->reply + i, float_at(weights, i));
        first += padded ? moe->layout.longest : rows;
    }
}

/* Rows that say themselves whose they are. */
static void unpack_told(cot_bulk *moe, const struct packet *p)
{
    const bool dedup = moe->form.dedup;
    const uint8_t *entries = p->behind + (dedup ? p->pair.rows * COT_BULK_WORD_BYTES : 0);
    int64_t i = 0;
    for (int64_t row = 0; row < p->pair.rows; row++)
        for (const int64_t end = i + (dedup ? count_at(p->behind, row) : 1); i < end; i++) {
            cot_bulk_entry entry;
            memcpy(&entry, entries + i * (int64_t)sizeof entry, sizeof entry);
            add(moe, entry.replica, p->row + row, p->reply + (moe->form.reduced ? row : i), entry.weight);
        }
}

/* A counting sort. */
static void sort_by_replica(cot_bulk *moe)
{
    int32_t begin = 0;
    for (int64_t e = 0; e < moe->replicas; e++) {
        moe->cursor[e] = begin;
        begin += moe->totals[e];
    }
    for (int64_t i = 0; i < moe->entries; i++) {
        const int32_t at = moe->cursor[moe->entry_replica[i]]++;
        moe->order[at] = (int32_t)i;
        moe->rows[at] = moe->entry_row[i];
    }
}

void cot_bulk_unpack(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received)
{
    const cot_bulk_form *f = &moe->form;
    moe->entries = 0;
    memset(moe->totals, 0, (size_t)moe->replicas * sizeof *moe->totals);
    for (int from = 0; from < f->ranks; from++) {
        struct packet p = {.row = moe->layout.receive_at[from] + cot_bulk_lead(f),
                           .reply = moe->layout.reply_send_at[from],
                           .pair = moe->layout.from[from]};
        p.behind = received + (p.row + p.pair.rows) * f->row_bytes;
        if (f->a2a == COT_A2A_PADDED || (f->a2a == COT_A2A_TWO_PHASE && !f->dedup))
            unpack_counted(moe, layer, &p, from);
        else
            unpack_told(moe, &p);
    }
    sort_by_replica(moe);
}
