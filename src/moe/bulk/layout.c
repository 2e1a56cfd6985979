#include "moe/bulk/layout.h"

#include "base/integers.h"

int64_t cot_bulk_lead(const cot_bulk_form *f)
{
    return f->a2a == COT_A2A_ONE_SHOT ? cot_divide_up(COT_BULK_WORD_BYTES, f->row_bytes) : 0;
}

int64_t cot_bulk_header_bytes(const cot_bulk_form *f, cot_bulk_pair pair)
{
    return f->a2a == COT_A2A_ONE_SHOT && pair.rows ? COT_BULK_WORD_BYTES : 0;
}

/* The same for sums over several packets, whose rows and entries may be more than a pair can count. */
static int64_t trailer_bytes(const cot_bulk_form *f, int64_t rows, int64_t entries, int64_t replicas)
{
    const int64_t word = COT_BULK_WORD_BYTES, entry = sizeof(cot_bulk_entry);
    if (f->a2a == COT_A2A_PADDED) return (replicas + rows) * word;
    if (f->dedup) return rows * word + entries * entry;
    return rows * (f->a2a == COT_A2A_ONE_SHOT ? entry : word);
}

int64_t cot_bulk_trailer_bytes(const cot_bulk_form *f, cot_bulk_pair pair, int64_t replicas)
{
    return pair.rows ? trailer_bytes(f, pair.rows, pair.entries, replicas) : 0;
}

int64_t cot_bulk_reply_rows(const cot_bulk_form *f, cot_bulk_pair pair)
{
    return f->a2a == COT_A2A_PADDED || f->reduced ? pair.rows : pair.entries;
}

/* Rows that a packet takes up. */
static int64_t span(const cot_bulk_form *f, cot_bulk_pair pair, int64_t replicas)
{
    return cot_bulk_lead(f) + pair.rows +
           cot_divide_up(cot_bulk_trailer_bytes(f, pair, replicas), f->row_bytes);
}

/* The most that one token means for one rank, of rows and entries. */
static int64_t rows_a_token(const cot_bulk_form *f)
{
    return f->dedup ? 1 : f->top_k;
}

/* Rows that any one-shot packet has room in. */
static int64_t region(const cot_bulk_form *f)
{
    const int64_t rows = f->home_tokens * rows_a_token(f), entries = f->home_tokens * f->top_k;
    return cot_bulk_lead(f) + rows + cot_divide_up(trailer_bytes(f, rows, entries, 0), f->row_bytes);
}

static int64_t reply_region(const cot_bulk_form *f)
{
    return f->home_tokens * (f->reduced ? 1 : f->top_k);
}

void cot_bulk_lay_out_sent(cot_bulk_layout *l, const cot_bulk_form *f, const cot_bulk_pair *pairs, int rank)
{
    int64_t sent = 0, got = 0, received = 0;
    for (int r = 0; r < f->ranks; r++) {
        l->send_at[r] = sent;
        sent += span(f, l->to[r], l->replicas[r]);
        l->reply_receive_at[r] = got;
        if (!pairs) {
            l->place[r] = rank * region(f);
            l->receive_at[r] = r * region(f);
            l->reply_place[r] = rank * reply_region(f);
            got += reply_region(f);
            continue;
        }
        got += cot_bulk_reply_rows(f, l->to[r]);
        l->from[r] = pairs[r * f->ranks + rank];
        l->receive_at[r] = received;
        received += span(f, l->from[r], l->replicas[rank]);
        l->place[r] = l->reply_place[r] = 0;
        for (int before = 0; before < rank; before++) {
            l->place[r] += span(f, pairs[before * f->ranks + r], l->replicas[r]);
            l->reply_place[r] += cot_bulk_reply_rows(f, pairs[r * f->ranks + before]);
        }
    }
}

void cot_bulk_lay_out_replies(cot_bulk_layout *l, const cot_bulk_form *f)
{
    int64_t made = 0;
    for (int r = 0; r < f->ranks; r++) {
        l->reply_send_at[r] = made;
        made += cot_bulk_reply_rows(f, l->from[r]);
    }
}

/* What so many rows and entries come to, however they fall into a packet for each rank. */
static int64_t packets(const cot_bulk_form *f, int64_t rows, int64_t entries, int64_t replicas)
{
    const int64_t trailers = trailer_bytes(f, rows, entries, replicas);
    return rows + cot_divide_up(trailers, f->row_bytes) + f->ranks * (cot_bulk_lead(f) + 1);
}

int64_t cot_bulk_send_rows_most(const cot_bulk_form *f, int64_t replicas)
{
    const int64_t entries = f->home_tokens * f->top_k;
    if (f->a2a == COT_A2A_PADDED)
        return packets(f, f->ranks * replicas * f->home_tokens, entries, f->ranks * replicas);
    return packets(f, f->home_tokens * (f->dedup ? cot_smaller(f->top_k, f->ranks) : f->top_k), entries, 0);
}

int64_t cot_bulk_receive_rows_most(const cot_bulk_form *f, int64_t tokens, int64_t replicas)
{
    if (f->a2a == COT_A2A_ONE_SHOT) return f->ranks * region(f);
    if (f->a2a == COT_A2A_PADDED) return cot_bulk_send_rows_most(f, replicas);
    return packets(f, tokens * rows_a_token(f), tokens * f->top_k, 0);
}

int64_t cot_bulk_replies_made_most(const cot_bulk_form *f, int64_t tokens, int64_t replicas)
{
    if (f->a2a == COT_A2A_PADDED) return f->ranks * replicas * f->home_tokens;
    return tokens * (f->reduced ? 1 : f->top_k);
}

int64_t cot_bulk_replies_got_most(const cot_bulk_form *f, int64_t replicas)
{
    if (f->a2a == COT_A2A_ONE_SHOT) return f->ranks * reply_region(f);
    if (f->a2a == COT_A2A_PADDED) return f->ranks * replicas * f->home_tokens;
    return f->home_tokens * (f->reduced ? cot_smaller(f->top_k, f->ranks) : f->top_k);
}
