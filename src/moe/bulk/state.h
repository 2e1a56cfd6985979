/* What a bulk operator holds between open and close. */
#ifndef COT_MOE_BULK_STATE_H
#define COT_MOE_BULK_STATE_H
#include "base/arena.h"
#include "fabric/collectives.h"
#include "moe/bulk/layout.h"
#include "moe/route.h"

/* N tokens, E experts in at most M replicas, K of them a token, P ranks; R = N K entries at most, of which B are
 * computed at a time. All arrays but `batch` are sized for the worst routing; what a routing does not touch
 * costs address space alone. */
typedef struct cot_bulk {
    cot_moe moe; // first: a cot_moe * of this operator is a cot_bulk *
    cot_moe_options options;
    cot_moe_times times;
    int64_t lap_ns; // when the phase in hand began
    cot_collectives *collectives;
    cot_bulk_form form;
    int64_t batch_rows; // B
    int64_t replicas;   // of all experts of the layer in hand
    cot_bulk_layout layout;
    int64_t entries; // received, of all packets
    cot_arena arena; // holds all arrays below
    cot_moe_routing routing;
    int32_t *
        counts; // [P][M] two-phase without dedup: rows of every rank for every replica; else the first M are own
    int32_t *cursor;        // [M]
    cot_bulk_pair *pairs;   // [P][P] by source and target; not for one-shot
    int32_t *row_of;        // [N][K] which row of its packet a choice goes by,
    int32_t *entry_of;      // [N][K] and which of its entries it is
    int32_t *entry_row;     // [R] an entry's row among the packets received,
    int32_t *entry_reply;   // [R] its row among the replies made (reduced: that it is added to),
    int32_t *entry_replica; // [R]
    float *entry_weight;    // [R]
    int32_t *order;         // [R] entries by replica, those of one as they were received,
    int32_t *rows;          // [R] and their rows
    int32_t *totals;        // [M] entries of each replica
    float *logits;          // [N][E]
    uint8_t *send;          // packets to be sent, later replies
    float *sums;            // [N][H] reduced: replies until they are rounded
    uint8_t *scratch;       // what the networks need for B rows
    float *batch;           // [B][H] what the networks make of a batch
    cot_ffn_job *jobs;      // [min(B, M)]
} cot_bulk;

/* What ranks tell each other of themselves before anything is computed, beside the signal of a first message. */
enum {
    COT_BULK_UNSOUND = 1, // the routing of its tokens: the call ends on all ranks
    COT_BULK_TOKENS = 2,  // it has tokens in this call
    COT_BULK_ROWS = 4     // this packet has rows (one-shot)
};

/* Sends the rows of this rank's tokens to where their experts are, after what has to be told before; `routed` is how
 * their routing went. On return `*received` has the packets of all ranks, and layout is whole. Errors: INVALID_ARGUMENT on
 * all ranks where it did not go well on one, or none has tokens; what a network gives. */
cot_status cot_bulk_dispatch(cot_bulk *moe, const cot_moe_layer *layer, const void **received, const float *x,
                             int64_t tokens, cot_status routed, cot_error *error);
/* What the packets received say: the entries, their order by replica, totals. */
void cot_bulk_unpack(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received);
/* The experts of this rank on the rows received; each entry's row times its weight goes to its reply in `send`, or is
 * added to it, where rows are reduced. */
void cot_bulk_experts(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received);
/* y [T][H] = the shared expert's rows, times their gate. */
void cot_bulk_shared(cot_bulk *moe, const cot_moe_layer *layer, float *y, const float *x, int64_t tokens);
/* y [T][H] = 0 + the rows of the token's experts in ascending order (reduced: of their ranks, likewise) + (where
 * layer->shared) what y held. */
void cot_bulk_sum(cot_bulk *moe, const cot_moe_layer *layer, float *y, const uint8_t *replies,
                  int64_t tokens);

#endif
