/* The model's networks: what each of them is packed as. A file may store each matrix in a form of its own, and each then stays in that. */
#ifndef COT_MODEL_NETWORKS_H
#define COT_MODEL_NETWORKS_H
#include "checkpoint/checkpoint.h"
#include "moe/weights.h"
#include "model/precision.h"

/* L layers, M of them MoE layers, E experts. Where a layer has no such network its `intermediate` is 0. */
typedef struct cot_networks {
    int64_t experts;       // E
    cot_ffn_shape *expert; // [L][E]
    cot_ffn_shape *shared; // [L]
    cot_ffn_shape *dense;  // [L]
    int64_t *slot_bytes;   // [M] what the operator takes for the widest expert of the layer
} cot_networks;

/* Finds what the checkpoint stores of each network and what that becomes in this precision, slots as `weights` keeps them. Close either
 * way. Errors: OUT_OF_MEMORY. */
cot_status cot_networks_open(cot_networks *networks, const cot_checkpoint *checkpoint,
                             const cot_precision *precision, const cot_moe_weights *weights,
                             cot_error *error);
void cot_networks_close(cot_networks *networks); // an empty one is fine

static inline const cot_ffn_shape *cot_networks_expert(const cot_networks *n, int64_t layer, int64_t expert)
{
    return &n->expert[layer * n->experts + expert];
}

#endif
