/* Slots: filled from the checkpoint, found by an epoch's layout, copied from rank to rank a chunk at a time. */
#include "model/runner_state.h"

#include <xxhash.h>

void cot_runner_fill_slots(cot_runner *r, cot_loader *load)
{
    for (int32_t m = 0; m < cot_runner_expert_layers(&r->o); m++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(r->slots.layout, m);
        for (int32_t e = 0; e < r->slots.layout->n_experts; e++)
            for (int32_t i = replicas.begin[e]; i < replicas.begin[e + 1]; i++)
                if (replicas.rank[i] == r->fabric->rank)
                    cot_expert_walk(r->o.networks, r->o.op->weights, r->slots.layout->layers[m], e,
                                    cot_local(r->fabric, cot_runner_slot_at(r, m, replicas.slot[i])), load);
    }
}

void cot_runner_place(cot_runner *r, const int32_t *words, int64_t count)
{
    const bool second = r->slots.layout == &r->slots.epoch[1].layout;
    cot_expert_epoch *next = &r->slots.epoch[!second];
    cot_expert_epoch_follow(next, &r->slots.epoch[second], words, count);
    r->slots.layout = &next->layout;
}

cot_status cot_runner_keep_layers(cot_runner *r, cot_error *error)
{
    cot_status status = COT_OK;
    for (int64_t l = 0, m = 0; l < r->c->layers && r->o.op->keep && status == COT_OK; l++) {
        if (!r->c->layer[l].moe) continue;
        const cot_moe_layer layer = cot_runner_moe_layer(r, l, m++);
        status = r->o.op->keep(r->network.moe, &layer, COT_MOE_ALL_SLOTS, error);
    }
    return status;
}

/* ---- copies ---- */

/* The chunk, then its checksum with the signal that all of it is there. */
static void send(cot_runner *r, const cot_runner_chunk *c)
{
    cot_fabric *fabric = r->fabric;
    const uint8_t *own =
        (const uint8_t *)cot_local(fabric, cot_runner_slot_at(r, c->layer, c->from_slot)) + c->begin;
    const uint64_t sum = XXH3_64bits(own, (size_t)c->bytes);
    const cot_sym word = (cot_sym)fabric->rank * sizeof sum;
    cot_put(fabric, c->to, cot_runner_slot_at(r, c->layer, c->to_slot) + (cot_sym)c->begin, own,
            (size_t)c->bytes, COT_PHASE_MIGRATION);
    cot_put_signal(fabric, c->to, r->slots.sums_at + word, &sum, sizeof sum, r->slots.sums_signals + word,
                   r->slots.copies, COT_PHASE_MIGRATION);
}

/* The slot is whole: the operator has it, too. */
static cot_status keep(cot_runner *r, const cot_runner_chunk *c, cot_error *error)
{
    if (!r->o.op->keep) return COT_OK;
    const cot_moe_layer layer = cot_runner_moe_layer(r, r->slots.layout->layers[c->layer], c->layer);
    return r->o.op->keep(r->network.moe, &layer, c->to_slot, error);
}

static cot_status receive(cot_runner *r, const cot_runner_chunk *c, cot_runner_verdict *verdict,
                          cot_error *error)
{
    cot_fabric *fabric = r->fabric;
    const cot_sym word = (cot_sym)c->from * sizeof(uint64_t);
    cot_status status =
        cot_wait(fabric, r->slots.sums_signals + word, r->slots.copies, c->from, COT_PHASE_MIGRATION, error);
    if (status != COT_OK) return status;
    const uint8_t *own =
        (const uint8_t *)cot_local(fabric, cot_runner_slot_at(r, c->layer, c->to_slot)) + c->begin;
    const uint64_t *sum = cot_local(fabric, r->slots.sums_at + word);
    *verdict = XXH3_64bits(own, (size_t)c->bytes) == *sum ? COT_RUNNER_SAME : COT_RUNNER_DIFFERS;
    if (*verdict != COT_RUNNER_SAME || !c->last) return COT_OK;
    status = keep(r, c, error);
    if (status != COT_OK) *verdict = COT_RUNNER_FAILED;
    return status;
}

static cot_status take_part(cot_runner *r, const cot_runner_chunk *c, cot_runner_verdict *verdict,
                            cot_error *error)
{
    cot_status status = COT_OK;
    cot_stage_enter(r->fabric, COT_STAGE_MOVING, 0);
    cot_turns_enter(r->fabric);
    if (c->from == r->fabric->rank) send(r, c);
    if (c->to == r->fabric->rank) status = receive(r, c, verdict, error);
    cot_turns_leave(r->fabric);
    return status;
}

cot_status cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                           cot_runner_verdict *verdict, cot_error *error)
{
    r->slots.copies++;
    for (int64_t i = 0; i < count; i++)
        if (chunk[i].from == r->fabric->rank || chunk[i].to == r->fabric->rank)
            return take_part(r, &chunk[i], verdict, error);
    return COT_OK;
}
