/* The network of a layer, dense or of experts, over the rows at home. */
#ifndef COT_MODEL_NETWORK_H
#define COT_MODEL_NETWORK_H
#include "model/runner.h"

/* The operator, and what it reads and writes beside rows.normed and rows.branch, with which it lies side by side from
 * rows.normed on: operator_bytes of the kind of memory that the operator names. */
typedef struct cot_runner_network {
    cot_moe *moe;
    uint16_t *experts; // [MoE layers][N][K] of the home rows
    float *weights;
    uint16_t *replayed_experts; // [N][K] of the home rows in the layer in hand, where routing is replayed
    float *replayed_weights;
    size_t operator_bytes;
    bool pinned;            // they are
    uint8_t *dense_scratch; // one network's over N rows
} cot_runner_network;

void cot_runner_lay_out_network(cot_runner *r, cot_arena *arena);
/* y [rows][H] = the layer's network over the rows of x at home. */
cot_status cot_runner_feed_forward(cot_runner *r, int64_t layer, int64_t moe_layer, float *y, const float *x,
                                   int64_t rows, cot_error *error);
/* What the operator is given of an MoE layer: layer of all, moe_layer of those. */
cot_moe_layer cot_runner_moe_layer(const cot_runner *r, int64_t layer, int64_t moe_layer);

#endif
