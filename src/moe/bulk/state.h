/* What a bulk operator holds between open and close. */
#ifndef COT_MOE_BULK_STATE_H
#define COT_MOE_BULK_STATE_H
#include "base/arena.h"
#include "fabric/collectives.h"
#include "moe/bulk/layout.h"
#include "moe/route.h"

/* N tokens, E experts in at most M replicas, K of them a token, P ranks; R = N K rows at most, of which B are
 * computed at a time. All arrays but `batch` are sized for the worst routing; what a routing does not touch
 * costs address space alone. */
typedef struct cot_bulk {
    cot_moe moe; // first: a cot_moe * of this operator is a cot_bulk *
    cot_moe_options options;
    cot_moe_times times;
    int64_t lap_ns; // when the phase in hand began
    cot_collectives *collectives;
    size_t row_bytes, reply_bytes; // of a row of H elements on its way there, and of its reply
    int64_t batch_rows;            // B
    int64_t replicas;              // of all experts of the layer in hand
    cot_bulk_layout layout;
    cot_arena arena; // holds all arrays below
    cot_moe_routing routing;
    int32_t *counts;    // [P][M]
    int32_t *totals;    // [M]
    int32_t *positions; // [R]
    int32_t *rows;      // [R]
    float *sent;        // [R] weights in the order of own rows as sent
    float *row_weights; // [R] the weights of rows received
    float *logits;      // [N][E]
    uint8_t *send;      // [R] rows to be sent: own rows, later replies
    uint8_t *scratch;   // what the networks need for B rows
    float *batch;       // [B][H] what the networks make of a batch
    cot_ffn_job *jobs;  // [min(B, M)]
} cot_bulk;

/* The experts of this rank on the rows received; each row times its weight, rounded, goes to its place in
 * `send`. */
void cot_bulk_experts(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received);
/* y [T][H] = the shared expert's rows, times their gate. */
void cot_bulk_shared(cot_bulk *moe, const cot_moe_layer *layer, float *y, const float *x, int64_t tokens);
/* y [T][H] = 0 + the rows of the token's experts in ascending order + (where has_shared) what y held. */
void cot_bulk_sum(cot_bulk *moe, float *y, const uint8_t *replies, int64_t tokens, bool has_shared);

#endif
