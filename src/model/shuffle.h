/* Rows that go home by themselves: in one hop, or shuffled on a ring (pipeline.h). */
#ifndef COT_MODEL_SHUFFLE_H
#define COT_MODEL_SHUFFLE_H
#include "model/runner.h"

/* Where a step's rows are at home, what foretells it, and the rows at home here. M: most rows at home. */
typedef struct cot_runner_homes {
    float *x;                // [M][H] the rows at home, with what attention gives
    float *update;           // [M][H] what the layer adds to them
    int32_t *token_row;      // [N] of the tables
    int16_t *home;           // [MoE layers + 1][N], the last row for dense layers
    const int16_t *home_of;  // that of the layer in hand
    int16_t *held;           // [MoE layers][N] the rank of most of a row's experts
    int16_t *guess;          // [N] the rank that the gate guessed for the next MoE layer; -1: none
    uint16_t *sure;          // [N] how surely
    uint16_t *asked_experts; // [M][K] what the next gate says too early ...
    float *asked_weights, *asked_logits;    // [M][K], [M][E]
    int16_t *ranks_before;                  // [COT_PREDICT_MAX_ORDER][N]
    int32_t *order;                         // [N] rows as they travel ...
    int32_t order_begin[COT_MAX_RANKS + 1]; // ... and where each rank's begin
    cot_homes_scratch scratch;
} cot_runner_homes;

void cot_runner_lay_out_homes(cot_runner *r, cot_arena *arena);
/* A step with these ids begins; */
void cot_runner_begin_homes(cot_runner *r, const int32_t *ids);
/* a layer begins: which rows are at home where (its number among MoE layers, and whether it is one); */
void cot_runner_choose_homes(cot_runner *r, int64_t moe_layer, bool moe);
/* all ranks' parts of attention, in rows.branch, become the update of the rows at home, with the layer's bias: there are
 * `*rows`, and homes.x has them so; */
cot_status cot_runner_go_home(cot_runner *r, int64_t layer, int64_t *rows, cot_error *error);
/* rows.branch's first rows, what the network makes of them, join the update, which all ranks add to rows.x. */
cot_status cot_runner_return(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error);
/* The row of rows.x that is the i-th at home in the layer in hand. */
int64_t cot_runner_row_at_home(const cot_runner *r, int64_t i);
/* x [n] becomes the sum over ranks, added in their order: metadata, in one hop. */
cot_status cot_runner_add_up(cot_runner *r, float *x, int64_t n, cot_error *error);
/* Bytes of an exchange in one hop, and of what is gathered, at most. */
size_t cot_runner_exchange_bytes(const cot_runner_options *options, int64_t hidden, int ranks);
size_t cot_runner_gathered_bytes(const cot_runner_options *options, int64_t hidden, int ranks);

#endif
