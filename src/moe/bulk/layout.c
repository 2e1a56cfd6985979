#include "moe/bulk/layout.h"

#include <string.h>

static void sum_up(int64_t *begin, int ranks)
{ // begin[r + 1] holds the size of block r
    begin[0] = 0;
    for (int r = 0; r < ranks; r++) begin[r + 1] += begin[r];
}

void cot_bulk_layout_of(cot_bulk_layout *layout, const int32_t *counts, const int32_t *expert_rank,
                        int64_t experts, int rank, int ranks)
{
    memset(layout, 0, sizeof *layout);
    for (int source = 0; source < ranks; source++)
        for (int64_t e = 0; e < experts; e++) {
            int32_t rows = counts[source * experts + e], target = expert_rank[e];
            if (source == rank) layout->send_begin[target + 1] += rows;
            if (target == rank) layout->receive_begin[source + 1] += rows;
            if (source < rank) layout->place[target] += rows;
            if (target < rank) layout->reply_place[source] += rows;
        }
    sum_up(layout->send_begin, ranks);
    sum_up(layout->receive_begin, ranks);
}

void cot_bulk_positions(int32_t *positions, const cot_bulk_layout *layout, const int32_t *counts,
                        const int32_t *expert_rank, int64_t n_experts, const int32_t *experts, int64_t tokens,
                        int64_t top_k, int32_t *cursor)
{
    int64_t block[COT_MAX_RANKS];
    memcpy(block, layout->send_begin, sizeof block);
    for (int64_t e = 0; e < n_experts; e++) {
        cursor[e] = (int32_t)block[expert_rank[e]];
        block[expert_rank[e]] += counts[e];
    }
    for (int64_t i = 0; i < tokens * top_k; i++) positions[i] = cursor[experts[i]]++;
}

void cot_bulk_expert_rows(int32_t *rows, int32_t *totals, const cot_bulk_layout *layout,
                          const int32_t *counts, const int32_t *expert_rank, int64_t experts, int rank,
                          int ranks)
{
    int64_t block[COT_MAX_RANKS];
    memcpy(block, layout->receive_begin, sizeof block);
    for (int64_t e = 0; e < experts; e++) {
        totals[e] = 0;
        if (expert_rank[e] != rank) continue;
        for (int source = 0; source < ranks; source++) {
            int32_t count = counts[source * experts + e];
            for (int32_t i = 0; i < count; i++) *rows++ = (int32_t)block[source]++;
            totals[e] += count;
        }
    }
}
