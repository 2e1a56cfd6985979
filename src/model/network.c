/* A layer's network on one rank: what the operator is given, and what is counted of its routing. */
#include "model/runner_state.h"

#include <string.h>

void cot_runner_lay_out_network(cot_runner *r, cot_arena *arena)
{
    const cot_config *c = r->c;
    cot_runner_network *s = &r->network;
    const size_t row = (size_t)(r->o.step_tokens * c->hidden),
                 chosen = (size_t)(r->o.step_tokens * c->gate.top_k), routed = (size_t)c->moe_layers * chosen,
                 begin = arena->used;
    r->rows.normed = cot_arena_take(arena, row, sizeof *r->rows.normed);
    r->rows.branch = cot_arena_take(arena, row, sizeof *r->rows.branch);
    s->experts = cot_arena_take(arena, routed, sizeof *s->experts);
    s->weights = cot_arena_take(arena, routed, sizeof *s->weights);
    if (r->o.replay) {
        s->replayed_experts = cot_arena_take(arena, chosen, sizeof *s->replayed_experts);
        s->replayed_weights = cot_arena_take(arena, chosen, sizeof *s->replayed_weights);
    }
    s->operator_bytes = arena->used - begin;
    int64_t dense = 0; // the first layer that is, if any
    while (dense < c->layers && c->layer[dense].moe) dense++;
    if (dense < c->layers)
        s->dense_scratch = cot_arena_take(
            arena, 1, cot_ffn_scratch_bytes(&r->o.networks->dense[dense], r->o.step_tokens, 1));
}

/* Out of line, so that a profiler tells what counting takes (docs/OPERATE.md). */
static __attribute__((noinline)) void count_routing(cot_runner *r, int64_t moe_layer,
                                                    const cot_expert_replicas *replicas,
                                                    const uint16_t *experts, int64_t rows)
{
    const int64_t k = r->c->gate.top_k;
    const int home = r->fabric->rank;
    uint64_t *calls = cot_runner_calls_of(r, home) + moe_layer * r->c->gate.experts;
    uint64_t called[COT_MAX_EXPERTS / 64 + 1]; // a bit an expert
    memset(called, 0, (size_t)(r->c->gate.experts / 64 + 1) * sizeof *called);
    for (int64_t t = 0; t < rows; t++) {
        uint64_t reached = 0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t replica = cot_expert_replica(replicas, experts[t * k + i], home, t);
            const uint16_t expert = experts[t * k + i];
            calls[expert]++;
            r->results.stats.distinct += ~called[expert / 64] >> expert % 64 & 1;
            called[expert / 64] |= (uint64_t)1 << expert % 64;
            reached |= cot_locality_call(&r->results.stats.locality, home, replicas->rank[replica]);
        }
        cot_locality_token(&r->results.stats.locality, reached);
    }
}

/* The routing that takes the place of the gate's, of the rows at home. */
static void replay(cot_runner *r, int64_t moe_layer, cot_moe_layer *moe, int64_t rows)
{
    const int64_t k = r->c->gate.top_k;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = cot_runner_row_at_home(r, i);
        const cot_replay_token token = {.moe_layer = (int32_t)moe_layer,
                                        .sequence = r->rows.sequence[row],
                                        .position = r->rows.position[row],
                                        .recorded = r->rows.recorded[row],
                                        .rank = r->fabric->rank,
                                        .place = i,
                                        .replicas = &moe->placement};
        r->o.replay->choose(r->network.replayed_experts + i * k, r->network.replayed_weights + i * k,
                            r->o.replay, &token);
    }
    moe->replayed_experts = r->network.replayed_experts;
    moe->replayed_weights = r->network.replayed_weights;
}

cot_moe_layer cot_runner_moe_layer(const cot_runner *r, int64_t layer, int64_t moe_layer)
{
    const cot_layer_weights *w = &r->o.whole->layers[layer];
    const int32_t own = (int32_t)(moe_layer % cot_runner_expert_layers(&r->o)); // whose slots it has
    return (cot_moe_layer){.gate = &w->gate,
                           .placement = cot_expert_layout_layer(r->slots.layout, (int32_t)moe_layer),
                           .slots = cot_runner_place_at(r, own, r->slots.pool[own].first),
                           .slot_bytes = (size_t)r->o.networks->slot_bytes[own],
                           .place = cot_runner_places_of(r, own),
                           .shared = w->shared,
                           .shared_gate = w->shared_mix,
                           .unsound_pass = true};
}

cot_status cot_runner_feed_forward(cot_runner *r, int64_t layer, int64_t moe_layer, float *y, const float *x,
                                   int64_t rows, cot_error *error)
{
    const cot_layer_weights *w = &r->o.whole->layers[layer];
    cot_runner_norm(r, &w->ffn_norm, x, rows);
    if (!w->dense) {
        int64_t place = moe_layer * r->o.step_tokens * r->c->gate.top_k;
        cot_moe_layer moe = cot_runner_moe_layer(r, layer, moe_layer);
        if (r->o.replay) replay(r, moe_layer, &moe, rows);
        cot_status status =
            r->network.moe->op->forward(r->network.moe, &moe, y, r->network.experts + place,
                                        r->network.weights + place, r->rows.normed, rows, error);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_DISPATCH,
                             1u << COT_PHASE_DISPATCH | 1u << COT_PHASE_METADATA);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_COMBINE, 1u << COT_PHASE_COMBINE);
        if (status == COT_OK) count_routing(r, moe_layer, &moe.placement, r->network.experts + place, rows);
        return status;
    }
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    cot_ffn_job job = {.weights = w->dense, .count = rows, .x = r->rows.typed, .y = y};
    if (rows)
        cot_ffn_run(r->o.kernels, r->o.pool, &r->o.networks->dense[layer], &job, 1, r->network.dense_scratch);
    r->results.stats.dense_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    return COT_OK;
}
