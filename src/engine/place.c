/* Experts that change their place while an engine runs: epochs of its layout. */
#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/pipeline.h"
#include "engine/replay.h"
#include "engine/tables.h"

#include <stdlib.h>
#include <string.h>

static int64_t slots_of(const cot_expert_layout *l)
{
    return (int64_t)l->n_ranks * l->slots_per_rank;
}

static int64_t slot_at(const cot_placing *p, int32_t layer, int32_t rank, int32_t slot)
{
    const cot_expert_layout *l = &p->epoch[0].layout; // whose sizes stay
    return layer * slots_of(l) + rank * l->slots_per_rank + slot;
}

static int32_t *held_in(const cot_placing *p, int32_t layer, int32_t rank, int32_t slot)
{
    return &p->held[slot_at(p, layer, rank, slot)];
}

cot_status cot_placing_open(cot_placing *p, const cot_runner_options *runner, cot_error *error)
{
    const cot_expert_layout *layout = runner->layout;
    const size_t all = (size_t)(layout->n_layers * slots_of(layout));
    *p = (cot_placing){.held = malloc((all + 1) * sizeof *p->held),
                       .place = malloc((all + 1) * sizeof *p->place)};
    pthread_mutex_init(&p->mutex, NULL);
    if (!p->held || !p->place)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of slots");
    cot_status status = COT_OK;
    for (int i = 0; i < 2 && status == COT_OK; i++)
        status = cot_expert_epoch_open(&p->epoch[i], layout, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < all; i++) {
        const size_t in_layer = i % (size_t)slots_of(layout);
        p->held[i] = -1;
        p->place[i] = cot_runner_first_place(runner, (int32_t)(i / (size_t)slots_of(layout)),
                                             (int32_t)(in_layer % (size_t)layout->slots_per_rank));
    }
    for (int32_t layer = 0; layer < layout->n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, layer);
        for (int32_t e = 0; e < layout->n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                *held_in(p, layer, r.rank[i], r.slot[i]) = e;
    }
    return COT_OK;
}

void cot_placing_close(cot_placing *p)
{
    for (int i = 0; i < 2; i++) cot_expert_epoch_close(&p->epoch[i]);
    if (p->held) pthread_mutex_destroy(&p->mutex);
    free(p->held);
    free(p->place);
    *p = (cot_placing){0};
}

/* Every place that the changes name has the expert's weights; a slot has those of one, so that no two can be there. */
static cot_status check_held(const cot_placing *p, const int32_t *words, int64_t count, cot_error *error)
{
    for (const int32_t *row = words; row < words + count; row += cot_expert_change_words(row))
        for (int32_t i = 0; i < row[2]; i++) {
            const int32_t *at = row + COT_EXPERT_CHANGE_WORDS + 2 * i;
            if (*held_in(p, row[0], at[0], at[1]) != row[1])
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "slot %d of rank %d does not hold expert %d of layer %d", (int)at[1],
                                (int)at[0], (int)row[1], (int)p->epoch[0].layout.layers[row[0]]);
        }
    return COT_OK;
}

cot_status cot_placing_check(const cot_engine *e, const cot_expert_layout *layout, cot_error *error)
{
    const cot_pipeline *pipeline = &e->runner.pipeline;
    cot_status status = COT_OK;
    if (e->runner.replay)
        status = cot_engine_replay_check_layout(&e->replay, layout, (int32_t)e->config->gate.top_k, error);
    if (status == COT_OK && pipeline->s_moe)
        status = cot_engine_pipeline_check_layout(layout, "the placement", error);
    if (status == COT_OK && e->tables)
        status = cot_engine_tables_agree(cot_engine_tables_groups(e->tables, e->first_table), "the tables",
                                         layout, "the placement", error);
    return status;
}

cot_status cot_engine_place(void *context, const int32_t *words, int64_t count, cot_error *error)
{
    cot_engine *e = context;
    cot_placing *p = &e->placing;
    const cot_expert_epoch *now = &p->epoch[p->second];
    cot_expert_epoch *next = &p->epoch[!p->second];
    if (cot_runner_expert_layers(&e->runner) < e->config->moe_layers)
        return cot_fail(error, COT_UNSUPPORTED, "layers that share experts keep them where they are");
    cot_status status = cot_expert_changes_check(&now->layout, words, count, error);
    if (status == COT_OK) status = check_held(p, words, count, error);
    if (status != COT_OK) return status;
    cot_expert_epoch_follow(next, now, words, count);
    status = cot_placing_check(e, &next->layout, error);
    if (status == COT_OK) status = cot_engine_group_place(e->group, words, count, error);
    if (status != COT_OK) return status;
    pthread_mutex_lock(&p->mutex);
    p->second = !p->second;
    pthread_mutex_unlock(&p->mutex);
    return COT_OK;
}

static bool is_used(const cot_expert_layout *l, const cot_runner_chunk *c)
{
    const cot_expert_replicas r = cot_expert_layout_layer(l, c->layer);
    for (int32_t i = 0; i < r.begin[l->n_experts]; i++)
        if (r.rank[i] == c->to && r.slot[i] == c->to_slot) return true;
    return false;
}

static bool is_there(const cot_expert_layout *l, int32_t rank, int32_t slot)
{
    return rank >= 0 && rank < l->n_ranks && slot >= 0 && slot < l->slots_per_rank;
}

static cot_status check_chunk(const cot_engine *e, const cot_runner_chunk *c, cot_error *error)
{
    const cot_placing *p = &e->placing;
    const cot_expert_layout *l = &p->epoch[p->second].layout;
    if (c->layer < 0 || c->layer >= l->n_layers || !is_there(l, c->from, c->from_slot) ||
        !is_there(l, c->to, c->to_slot))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "slot %d of rank %d of MoE layer number %d cannot be copied to slot %d of rank %d: "
                        "there are %d layers and %d ranks of %d slots",
                        (int)c->from_slot, (int)c->from, (int)c->layer, (int)c->to_slot, (int)c->to,
                        (int)l->n_layers, (int)l->n_ranks, (int)l->slots_per_rank);
    if (p->place[slot_at(p, c->layer, c->to, c->to_slot)] < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "slot %d of rank %d has no place in layer %d",
                        (int)c->to_slot, (int)c->to, (int)l->layers[c->layer]);
    if (is_used(l, c))
        return cot_fail(error, COT_INVALID_ARGUMENT, "slot %d of rank %d is in use in layer %d",
                        (int)c->to_slot, (int)c->to, (int)l->layers[c->layer]);
    if (*held_in(p, c->layer, c->from, c->from_slot) != c->expert)
        return cot_fail(error, COT_INVALID_ARGUMENT, "slot %d of rank %d does not hold expert %d of layer %d",
                        (int)c->from_slot, (int)c->from, (int)c->expert, (int)l->layers[c->layer]);
    return COT_OK;
}

cot_status cot_engine_copy(cot_engine *e, const cot_runner_chunk *chunk, int64_t count,
                           cot_runner_verdict *verdict, cot_error *error)
{
    const cot_placing *p = &e->placing;
    cot_status status = COT_OK;
    if (cot_runner_expert_layers(&e->runner) < e->config->moe_layers)
        return cot_fail(error, COT_UNSUPPORTED, "layers that share experts keep them where they are");
    for (int64_t i = 0; i < count && status == COT_OK; i++) status = check_chunk(e, &chunk[i], error);
    if (status != COT_OK) return status;
    cot_runner_chunk placed[COT_MAX_RANKS / 2];
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = slot_at(p, chunk[i].layer, chunk[i].to, chunk[i].to_slot);
        placed[i] = chunk[i];
        placed[i].place = p->place[at];
        p->held[at] = -1;
    }
    status = cot_engine_group_copy(e->group, placed, count, verdict, error);
    for (int64_t i = 0; i < count; i++)
        if (chunk[i].last && verdict[i] == COT_RUNNER_SAME)
            *held_in(p, chunk[i].layer, chunk[i].to, chunk[i].to_slot) = chunk[i].expert;
    return status;
}

cot_status cot_engine_layout(cot_engine *e, cot_expert_layout *layout, uint64_t *epoch, cot_error *error)
{
    pthread_mutex_lock(&e->placing.mutex);
    const cot_expert_epoch *now = &e->placing.epoch[e->placing.second];
    const cot_status status = cot_expert_layout_copy(layout, &now->layout, error);
    if (epoch) *epoch = now->number;
    pthread_mutex_unlock(&e->placing.mutex);
    return status;
}
