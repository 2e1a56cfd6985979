/* Where every row of one bulk exchange lies: integer arithmetic on all ranks' counts, which every rank does
 * alike.
 *
 *   own rows, in the order in which they are sent          | to rank 0   | to rank 1   | ... | to rank P-1   |
 *   others' rows, in the order in which they are received  | from rank 0 | from rank 1 | ... | from rank P-1 |
 *
 * A row is one (token, expert). A block, all rows from one rank to one other, is ordered by expert, then by token. A
 * reply lies where its row lay, on the expert's rank as on the home rank. */
#ifndef COT_MOE_BULK_LAYOUT_H
#define COT_MOE_BULK_LAYOUT_H
#include "moe/moe.h"

/* All in rows. */
typedef struct cot_bulk_layout {
    int64_t send_begin[COT_MAX_RANKS + 1];    // the block to rank d among own rows
    int64_t receive_begin[COT_MAX_RANKS + 1]; // the block from rank s among the rows received
    int64_t place[COT_MAX_RANKS];       // where the own block begins among the rows that rank d receives
    int64_t reply_place[COT_MAX_RANKS]; // where the own reply begins among the rows that rank s sent
} cot_bulk_layout;

/* counts [P][E]: how many rows of rank s go to expert e. */
void cot_bulk_layout_of(cot_bulk_layout *layout, const int32_t *counts, const int32_t *expert_rank,
                        int64_t experts, int rank, int ranks);

/* positions [T][K]: where the row of each choice lies among the own rows. counts [E] of this rank; cursor is
 * scratch [E]. */
void cot_bulk_positions(int32_t *positions, const cot_bulk_layout *layout, const int32_t *counts,
                        const int32_t *expert_rank, int64_t n_experts, const int32_t *experts, int64_t tokens,
                        int64_t top_k, int32_t *cursor);

/* Where the rows of each expert of this rank lie among the rows received: rows holds them expert after
 * expert, ascending, and by source; totals [E] how many each has (0 for experts that live elsewhere). */
void cot_bulk_expert_rows(int32_t *rows, int32_t *totals, const cot_bulk_layout *layout,
                          const int32_t *counts, const int32_t *expert_rank, int64_t experts, int rank,
                          int ranks);

#endif
