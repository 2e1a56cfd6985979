/* What one rank sends one other in a bulk exchange, and where it lies: integer arithmetic that every rank does alike.
 *
 * A packet is all that goes from one rank to one other, in one message. It begins at a whole number of rows, so that a row's
 * number says where it is in any packet, and what is to be known of the rows follows them without a gap:
 *
 *     a2a        dedup   header     rows                                behind them
 *     two-phase  off     -          one a (token, expert), by expert    weights
 *     two-phase  on      -          one a (token, rank)                 heads: how many experts of each row; entries
 *     one-shot   off     rows       one a (token, expert), by expert    entries
 *     one-shot   on      rows       one a (token, rank)                 heads, entries
 *     padded     off     -          C for each expert there             rows in use of each expert; weights of all rows
 *
 * C: most rows of any expert from any rank. An entry is a (token, expert); weights, heads, header and counts have four bytes
 * each, entries eight. What is expected of two-phase is told before, in a round of its own (counts by expert, or of rows and
 * entries where dedup is on), and of padded C is; a one-shot packet without rows has no bytes at all.
 *
 *     own packets, in the order in which they are sent  | to rank 0   | to rank 1   | ... | to rank P-1   |
 *     packets received                                  | from rank 0 | from rank 1 | ... | from rank P-1 |
 *
 * Packets received lie close together where all ranks know all sizes, else each has room for the largest. A reply has a row
 * for each entry of its packet, in their order; for each row, where rows are reduced; for each row, in use or not, where
 * packets are padded. */
#ifndef COT_MOE_BULK_LAYOUT_H
#define COT_MOE_BULK_LAYOUT_H
#include "moe/moe.h"

/* What packets of an operator look like. */
typedef struct cot_bulk_form {
    cot_moe_a2a a2a;
    bool dedup, reduced;
    int64_t ranks, home_tokens, top_k; // P; most tokens of one rank; K
    int64_t row_bytes, reply_bytes;
} cot_bulk_form;

typedef struct cot_bulk_entry {
    float weight;
    int32_t replica;
} cot_bulk_entry;

enum { COT_BULK_WORD_BYTES = 4 }; // of a header, a head, a count, a weight

/* From one rank to one other. Of padded packets `rows` counts all, in use or not. */
typedef struct cot_bulk_pair {
    int32_t rows, entries;
} cot_bulk_pair;

/* Of one call on one rank. */
typedef struct cot_bulk_layout {
    int64_t longest;                 // C
    int64_t replicas[COT_MAX_RANKS]; // that a rank has in the layer in hand
    cot_bulk_pair to[COT_MAX_RANKS], from[COT_MAX_RANKS];
    /* In rows: where a packet begins, among those sent and those received, and where rank d receives it. */
    int64_t send_at[COT_MAX_RANKS], receive_at[COT_MAX_RANKS], place[COT_MAX_RANKS];
    /* In rows of replies, likewise: the reply to rank s, that of rank d, and where rank s receives it. */
    int64_t reply_send_at[COT_MAX_RANKS], reply_receive_at[COT_MAX_RANKS], reply_place[COT_MAX_RANKS];
} cot_bulk_layout;

/* Rows from a packet's beginning to its first row: a header's, rounded up. */
int64_t cot_bulk_lead(const cot_bulk_form *form);
/* Bytes before the first row, and behind the last one. */
int64_t cot_bulk_header_bytes(const cot_bulk_form *form, cot_bulk_pair pair);
int64_t cot_bulk_trailer_bytes(const cot_bulk_form *form, cot_bulk_pair pair, int64_t replicas);
/* Rows of the reply. */
int64_t cot_bulk_reply_rows(const cot_bulk_form *form, cot_bulk_pair pair);

/* Where what goes out lies, and where it arrives; layout->replicas, longest and `to` are known. pairs [P][P], by source and
 * target, are all ranks'; NULL for one-shot, which knows its own alone. */
void cot_bulk_lay_out_sent(cot_bulk_layout *layout, const cot_bulk_form *form, const cot_bulk_pair *pairs,
                           int rank);
/* Where replies go out from; layout->from is known by now. */
void cot_bulk_lay_out_replies(cot_bulk_layout *layout, const cot_bulk_form *form);

/* Most rows, over all packets of a rank that sends, and of one that receives those of `tokens` in all, with so many
 * replicas on a rank; and most rows of the replies that a rank makes, and gets. */
int64_t cot_bulk_send_rows_most(const cot_bulk_form *form, int64_t replicas);
int64_t cot_bulk_receive_rows_most(const cot_bulk_form *form, int64_t tokens, int64_t replicas);
int64_t cot_bulk_replies_made_most(const cot_bulk_form *form, int64_t tokens, int64_t replicas);
int64_t cot_bulk_replies_got_most(const cot_bulk_form *form, int64_t replicas);

#endif
