/* Where everything of a pass lies in symmetric memory, and what its words say: integer arithmetic that every rank
 * and every device does alike: C17, C++ and nvcc compile this text. docs/FUSED.md proves that no two writes meet.
 *
 *   rank d's heap
 *
 *   dispatch  | block of rank 0 | block of rank 1 | ... | block of rank P-1 |     rank s writes block s alone
 *
 *     block s != d:   cell 0                                  cell 1               ...
 *                   | row | row | ... C rows | metadata | - | row | ...            a cell is one put and signal
 *                                              ^ behind the last row, wherever that is: nothing is padded
 *     metadata of n rows:  heads uint32 [n] = first << 8 | entries    entries, n lists one after another
 *     block d:      | own tokens' rows, 0, 1, ... | what other ranks' experts are sent lies here too
 *
 *   replies, exact    S K rows: row first + place for an entry, as the token's rank has chosen and alone knows; written
 *                     by the rank of that expert
 *   replies, reduced  [P][S] rows: (rank d, how many-th row it was sent); written by rank d
 *
 *   signals   dispatch [P], replies [P], a cache line each; word s is raised by rank s alone
 *
 * A cell takes a whole number of rows, so that a row's number says where it is: block s begins at row
 * s * block_rows, its cell c at c * cell_rows more. C rows of H elements, K experts a token, S tokens a rank a
 * pass. */
#ifndef COT_MOE_FUSED_LAYOUT_H
#define COT_MOE_FUSED_LAYOUT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define COT_FUSED_INLINE static __host__ __device__ inline
#else
#define COT_FUSED_INLINE static inline
#endif

enum {
    COT_FUSED_CELL_TOKENS = 64, // C at most
    COT_FUSED_LINE = 64,
    COT_FUSED_TOKENS_MOST = 1 << 20,  // S
    COT_FUSED_REPLIES_MOST = 1 << 24, // S K
    COT_FUSED_HEAD_BYTES = 4
};

/* One expert of a packet's row. */
typedef struct cot_fused_entry {
    float weight;
    uint16_t slot;  // on the rank that receives
    uint16_t place; // of its reply
} cot_fused_entry;

typedef struct cot_fused_layout {
    int64_t ranks, tokens, top_k; // P, S, K
    int64_t row_bytes, reply_bytes;
    int64_t cell_tokens, cell_rows, block_rows;
    int64_t reply_rows;
} cot_fused_layout;

COT_FUSED_INLINE cot_fused_layout cot_fused_layout_of(int64_t ranks, int64_t tokens, int64_t top_k,
                                                      int64_t row_bytes, int64_t reply_bytes, int reduced)
{
    cot_fused_layout l = {ranks, tokens, top_k, row_bytes, reply_bytes, 0, 0, 0, 0};
    l.cell_tokens = tokens < COT_FUSED_CELL_TOKENS ? tokens : (int64_t)COT_FUSED_CELL_TOKENS;
    const int64_t metadata =
        l.cell_tokens * (COT_FUSED_HEAD_BYTES + top_k * (int64_t)sizeof(cot_fused_entry));
    l.cell_rows = l.cell_tokens + (metadata + row_bytes - 1) / row_bytes;
    l.block_rows = (tokens + l.cell_tokens - 1) / l.cell_tokens * l.cell_rows;
    l.reply_rows = reduced ? ranks * tokens : tokens * top_k;
    return l;
}

COT_FUSED_INLINE int64_t cot_fused_dispatch_bytes(const cot_fused_layout *l)
{
    return l->ranks * l->block_rows * l->row_bytes;
}
COT_FUSED_INLINE int64_t cot_fused_reply_bytes(const cot_fused_layout *l)
{
    return l->reply_rows * l->reply_bytes;
}
/* The row where a cell of rank s's block begins. */
COT_FUSED_INLINE int64_t cot_fused_cell(const cot_fused_layout *l, int64_t source, int64_t cell)
{
    return source * l->block_rows + cell * l->cell_rows;
}

/* Dispatch signals: epoch << 28 | rows sent so far << 4 | flags. Flags come with the last put of a pass, so
 * values only grow. A reply signal is the epoch. */
enum {
    COT_FUSED_FINAL = 1,  // nothing more comes in this pass
    COT_FUSED_MORE = 2,   // the rank needs another pass
    COT_FUSED_TOKENS = 4, // the rank has tokens in this call
    COT_FUSED_BAD = 8     // its routing is not sound: the call ends on all ranks
};
COT_FUSED_INLINE uint64_t cot_fused_signal(uint64_t epoch, int64_t rows, unsigned flags)
{
    return epoch << 28 | (uint64_t)rows << 4 | flags;
}
COT_FUSED_INLINE uint64_t cot_fused_signal_epoch(uint64_t signal)
{
    return signal >> 28;
}
COT_FUSED_INLINE int64_t cot_fused_signal_rows(uint64_t signal)
{
    return (int64_t)(signal >> 4 & 0xffffff);
}
COT_FUSED_INLINE unsigned cot_fused_signal_flags(uint64_t signal)
{
    return (unsigned)(signal & 15);
}

#endif
