/* By what a model is known again: its gates. */
#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/stored.h"

#include <stdlib.h>

static cot_status add_gate(uint64_t *hash, const cot_checkpoint *checkpoint, int64_t layer, float *room,
                           cot_error *error)
{
    const int64_t experts = checkpoint->config.gate.experts, hidden = checkpoint->config.hidden;
    const cot_weight_piece gate = {COT_WEIGHT_GATE, layer, 0, 0, experts, 0, hidden};
    const cot_status status = cot_checkpoint_read(checkpoint, &gate, room, error);
    for (int64_t i = 0; status == COT_OK && i < experts * hidden; i++)
        *hash = cot_mix64(*hash ^ cot_f32_to_bf16(room[i]));
    return status;
}

cot_status cot_checkpoint_hash(uint64_t *hash, const cot_checkpoint *checkpoint, cot_error *error)
{
    const cot_config *c = &checkpoint->config;
    int64_t first = -1, last = -1;
    *hash = 0;
    if (checkpoint->random || !c->moe_layers) return COT_OK;
    uint64_t found = cot_mix64((uint64_t)c->gate.top_k);
    found = cot_mix64(cot_mix64(found ^ (uint64_t)c->gate.experts) ^ (uint64_t)c->hidden);
    for (int64_t l = 0; l < c->layers; l++) {
        if (!c->layer[l].moe) continue;
        found = cot_mix64(found ^ (uint64_t)l);
        first = first < 0 ? l : first;
        last = l;
    }
    float *room = malloc((size_t)(c->gate.experts * c->hidden) * sizeof *room);
    if (!room) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gate");
    cot_status status = add_gate(&found, checkpoint, first, room, error);
    if (status == COT_OK) status = add_gate(&found, checkpoint, last, room, error);
    free(room);
    if (status == COT_OK) *hash = found ? found : 1;
    return status;
}
