#include "model/networks.h"

#include "base/error.h"

#include <stdlib.h>

/* What one matrix is packed as. */
static cot_format format_of(const cot_checkpoint *checkpoint, const cot_precision *precision,
                            cot_weight weight, int64_t layer, int64_t expert)
{
    return cot_network_format(precision, cot_checkpoint_stored(checkpoint, weight, layer, expert));
}

/* `first`: the weight that is the network's gate, before up and down. Gate and up are multiplied together where one format can hold
 * both as they are. */
static cot_ffn_shape shape_of(const cot_checkpoint *checkpoint, const cot_precision *precision,
                              cot_weight first, int64_t layer, int64_t expert, int64_t intermediate)
{
    const cot_config *config = cot_checkpoint_config(checkpoint);
    cot_ffn_shape shape = {.type = precision->type,
                           .rounded = precision->rounded,
                           .hidden = config->hidden,
                           .intermediate = intermediate};
    shape.gate = format_of(checkpoint, precision, first, layer, expert);
    shape.up = format_of(checkpoint, precision, first + 1, layer, expert);
    shape.down = format_of(checkpoint, precision, first + 2, layer, expert);
    const cot_format both = cot_format_join(shape.gate, shape.up);
    if (both != COT_FORMATS) shape.gate = shape.up = both;
    return shape;
}

static void fill_experts(cot_networks *n, const cot_checkpoint *checkpoint, const cot_precision *precision,
                         int64_t l)
{
    const cot_config *c = cot_checkpoint_config(checkpoint);
    for (int64_t e = 0; e < n->experts; e++) {
        cot_ffn_shape *expert = &n->expert[l * n->experts + e];
        *expert = shape_of(checkpoint, precision, COT_WEIGHT_EXPERT_GATE, l, e, c->moe_intermediate);
        expert->biased = c->expert_bias;
        expert->limit = c->swiglu_limit;
        expert->alpha = c->swiglu_alpha;
    }
}

static void fill_layer(cot_networks *n, const cot_checkpoint *checkpoint, const cot_precision *precision,
                       int64_t l)
{
    const cot_config *c = cot_checkpoint_config(checkpoint);
    if (!c->layer[l].moe) {
        n->dense[l] = shape_of(checkpoint, precision, COT_WEIGHT_DENSE_GATE, l, 0, c->dense_intermediate);
        n->dense[l].biased = c->ffn_bias;
        return;
    }
    fill_experts(n, checkpoint, precision, l);
    if (!c->shared_intermediate) return;
    n->shared[l] = shape_of(checkpoint, precision, COT_WEIGHT_SHARED_GATE, l, 0, c->shared_intermediate);
    n->shared[l].biased = c->ffn_bias;
}

cot_status cot_networks_open(cot_networks *n, const cot_checkpoint *checkpoint,
                             const cot_precision *precision, const cot_moe_weights *weights, cot_error *error)
{
    const cot_config *c = cot_checkpoint_config(checkpoint);
    const size_t layers = (size_t)c->layers;
    *n = (cot_networks){.experts = c->gate.experts};
    n->expert = calloc(layers * (size_t)c->gate.experts, sizeof *n->expert);
    n->shared = calloc(layers, sizeof *n->shared);
    n->dense = calloc(layers, sizeof *n->dense);
    n->slot_bytes = calloc(layers, sizeof *n->slot_bytes);
    if (!n->expert || !n->shared || !n->dense || !n->slot_bytes)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the shapes of %zu layers", layers);
    if (!c->moe_layers) fill_experts(n, checkpoint, precision, 0); // of the operator that is never called
    int64_t m = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        fill_layer(n, checkpoint, precision, l);
        if (!c->layer[l].moe) continue;
        for (int64_t e = 0; e < n->experts; e++) {
            const int64_t bytes = (int64_t)weights->slot_bytes(cot_networks_expert(n, l, e));
            if (bytes > n->slot_bytes[m]) n->slot_bytes[m] = bytes;
        }
        m++;
    }
    return COT_OK;
}

void cot_networks_close(cot_networks *n)
{
    free(n->expert), free(n->shared), free(n->dense), free(n->slot_bytes);
    *n = (cot_networks){0};
}
