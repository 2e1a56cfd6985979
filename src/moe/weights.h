/* How an operator keeps an MoE layer's weights. Whoever loads a layer reads what a checkpoint stores and hands it on; what then
 * lies in a slot is the operator's own. */
#ifndef COT_MOE_WEIGHTS_H
#define COT_MOE_WEIGHTS_H
#include "kernels/pack.h"
#include "moe/ffn.h"

/* What a network is made of: matrices [out][in], vectors as one row. */
typedef enum cot_ffn_part {
    COT_FFN_GATE, // [I][H]; no network without a gate has this one or its bias
    COT_FFN_UP,   // [I][H]
    COT_FFN_DOWN, // [H][I]
    COT_FFN_GATE_BIAS,
    COT_FFN_UP_BIAS,  // [I]
    COT_FFN_DOWN_BIAS // [H]
} cot_ffn_part;

/* Consecutive rows of a matrix, from `row` on. */
typedef struct cot_moe_rows {
    int64_t row, count;
    cot_pack_input in; // numbers; or what the shape's format says, where a checkpoint has that
} cot_moe_rows;

/* Memory is the caller's, aligned to 64 bytes. Every row of every part is stored once, a matrix from its first row to its last
 * by one thread; threads may store different parts at once. */
typedef struct cot_moe_weights {
    /* Bytes of one network, of a routed expert or of a shared one: a multiple of 64. */
    size_t (*slot_bytes)(const cot_ffn_shape *shape);
    void (*store_expert)(uint8_t *slot, const cot_ffn_shape *shape, cot_ffn_part part,
                         const cot_moe_rows *rows);
    /* The router's matrix [E][H]. */
    size_t (*gate_bytes)(int64_t hidden, int64_t experts);
    void (*store_gate)(float *gate, int64_t hidden, int64_t experts, const cot_moe_rows *rows);
} cot_moe_weights;

/* In panels, for the CPU: cot_ffn_layout, and cot_gate's packed weights. */
extern const cot_moe_weights cot_moe_packed;

#endif
