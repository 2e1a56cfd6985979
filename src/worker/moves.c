#include "worker/moves.h"

#include "base/error.h"
#include "coterie/layout.h"
#include "placement/formats/formats.h"

#include <stdlib.h>
#include <string.h>

static cot_status no_experts(cot_error *error)
{
    return cot_fail(error, COT_NOT_FOUND, "the model has no experts");
}

cot_status cot_worker_moves_read(cot_expert_map *map, const cot_engine *engine, const char *text,
                                 size_t bytes, cot_error *error)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const cot_expert_map_options options = {.size = sizeof options,
                                            .ranks = info->ranks,
                                            .n_layers = (int32_t)info->layers,
                                            .moe_layer = info->moe_layer,
                                            .moe_layers = (int32_t)info->moe_layers};
    if (!info->moe_layers) return no_experts(error);
    if (!info->movable)
        return cot_fail(error, COT_UNSUPPORTED, "experts stay where they are (--movable lets them move)");
    return cot_expert_map_parse(map, text, bytes, "the placement", &options, error);
}

_Static_assert((int)COT_MOVE_OUTCOMES <= (int)COT_BACKEND_OUTCOMES, "a backend has room for an engine's");
_Static_assert((int)COT_ENGINE_COPIES <= (int)COT_BACKEND_COPIES, "a backend has room for an engine's");

void cot_worker_moves_of(cot_backend_moves *out, const cot_engine_moves *m)
{
    *out = (cot_backend_moves){.id = m->id,
                               .over = m->over,
                               .copies = m->copies,
                               .copied = m->copied,
                               .drops = m->drops,
                               .dropped = m->dropped,
                               .outcomes = COT_MOVE_OUTCOMES,
                               .outcome = cot_engine_move_outcomes(),
                               .bytes = m->bytes,
                               .chunks = m->chunks,
                               .epochs = m->epochs,
                               .copy_ns = m->copy_ns,
                               .place_ns = m->place_ns,
                               .copying = m->copying};
    memcpy(out->given_up, m->given_up, sizeof m->given_up);
    for (int i = 0; i < m->copying; i++) {
        const cot_engine_copying *c = &m->copy[i];
        out->copy[i] = (struct cot_backend_copy){c->layer, c->expert, c->from, c->to, c->bytes, c->of_bytes};
    }
}

void cot_worker_moves_add(cot_backend_moves *sum, const cot_backend_moves *m)
{
    sum->copies += m->copies;
    sum->copied += m->copied;
    sum->drops += m->drops;
    sum->dropped += m->dropped;
    sum->outcomes = COT_MOVE_OUTCOMES;
    sum->outcome = cot_engine_move_outcomes();
    for (int o = 0; o < COT_MOVE_OUTCOMES; o++) sum->given_up[o] += m->given_up[o];
    sum->bytes += m->bytes;
    sum->chunks += m->chunks;
    sum->epochs += m->epochs;
    sum->copy_ns += m->copy_ns;
    sum->place_ns += m->place_ns;
}

/* ---- cycles ---- */

_Static_assert((int)COT_ENGINE_BUDGET_REASONS <= (int)COT_BACKEND_REASONS, "and of a budget's");
_Static_assert((int)COT_ENGINE_REASONS <= (int)COT_BACKEND_REASONS, "a backend has room for an engine's");

static json_t *layer_json(const struct cot_engine_cycle_layer *l)
{
    return json_pack("{s:i, s:s, s:i, s:f, s:f}", "layer", (int)l->layer, "reason",
                     cot_engine_rebalance_reasons()[l->reason], "moves", (int)l->moves, "before_seconds",
                     l->before_ns / 1e9, "after_seconds", l->after_ns / 1e9);
}

json_t *cot_worker_cycle_json(const cot_engine_cycle *c, bool dry, const char *mode)
{
    json_t *layers = json_array(), *changes = json_array();
    for (int32_t l = 0; l < c->n_layers; l++) json_array_append_new(layers, layer_json(&c->layer[l]));
    for (int64_t i = 0; i < c->copies + c->drops; i++) {
        const struct cot_engine_cycle_change *change = &c->change[i];
        json_array_append_new(changes, json_pack("{s:i, s:i, s:i, s:s}", "layer", (int)change->layer,
                                                 "expert", (int)change->expert, "rank", (int)change->rank,
                                                 "action", change->comes ? "copy" : "drop"));
    }
    return json_pack("{s:o, s:b, s:s, s:I, s:I, s:f, s:f, s:o, s:o}", "id",
                     c->id ? json_integer((json_int_t)c->id) : json_null(), "dry_run", dry, "mode", mode,
                     "copies", (json_int_t)c->copies, "drops", (json_int_t)c->drops, "step_seconds",
                     c->before_ns / 1e9, "saving_seconds", c->saving_ns / 1e9, "layers", layers, "changes",
                     changes);
}

bool cot_worker_rebalancing_of(cot_backend_rebalancing *out, cot_engine *engine)
{
    cot_engine_rebalancing r;
    cot_engine_get_rebalancing(engine, &r);
    *out = (cot_backend_rebalancing){.mode = r.mode,
                                     .moved = r.moved,
                                     .stayed = r.stayed,
                                     .refused = r.refused,
                                     .given_up = r.given_up,
                                     .turns = r.turns,
                                     .compared = r.compared,
                                     .foreseen_ns = r.foreseen_ns,
                                     .realised_ns = r.realised_ns,
                                     .reasons = COT_ENGINE_REASONS,
                                     .reason = cot_engine_rebalance_reasons(),
                                     .copies = r.copies,
                                     .drops = r.drops,
                                     .saving_ns = r.saving_ns,
                                     .since_ns = r.since_ns,
                                     .plan_ns = r.plan_ns,
                                     .budget = {.bytes = r.budget.bytes,
                                                .states_bytes = r.budget.states_bytes,
                                                .pages_bytes = r.budget.pages_bytes,
                                                .slots_bytes = r.budget.slots_bytes,
                                                .replicas_bytes = r.budget.replicas_bytes,
                                                .reasons = COT_ENGINE_BUDGET_REASONS,
                                                .reason = cot_engine_budget_reasons(),
                                                .last = r.budget.last,
                                                .turns = r.budget.turns,
                                                .gain_ns = r.budget.gain_ns}};
    memcpy(out->budget.looks, r.budget.looks, sizeof r.budget.looks);
    memcpy(out->layers, r.layers, sizeof r.layers);
    memcpy(out->last, r.last, sizeof r.last);
    return strcmp(r.mode, "off") != 0;
}

cot_status cot_worker_rebalances(cot_engine *engine, cot_error *error)
{
    cot_backend_rebalancing unused;
    if (!cot_engine_describe(engine)->moe_layers) return no_experts(error);
    if (!cot_worker_rebalancing_of(&unused, engine))
        return cot_fail(error, COT_UNSUPPORTED, "rebalancing is off (--rebalance load or joint turns it on)");
    return COT_OK;
}

/* ---- where they are ---- */

/* Each rank's experts in its first slots, of as many as placements may use. */
static cot_status map_of(cot_expert_map *map, const cot_expert_layout *l, int32_t slots)
{
    const size_t ranks = (size_t)l->n_ranks;
    int32_t *used = calloc((size_t)l->n_layers * ranks, sizeof *used);
    if (!used) return COT_OUT_OF_MEMORY;
    for (int32_t layer = 0; layer < l->n_layers; layer++)
        for (int64_t i = l->first[layer]; i < l->first[layer + 1]; i++) {
            const int32_t n = ++used[(size_t)layer * ranks + (size_t)l->rank[i]];
            slots = n > slots ? n : slots; // in the midst of moves
        }
    cot_status status = cot_expert_map_new(map, l->n_layers, l->n_experts, l->n_ranks, slots, NULL);
    memset(used, 0, (size_t)l->n_layers * ranks * sizeof *used);
    for (int32_t layer = 0; layer < l->n_layers && status == COT_OK; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(l, layer);
        map->layers[layer] = l->layers[layer];
        for (int32_t e = 0; e < l->n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++) {
                const size_t row = (size_t)layer * ranks + (size_t)r.rank[i];
                map->expert[row * (size_t)slots + (size_t)used[row]++] = e;
            }
    }
    free(used);
    return status;
}

static cot_status write_map(char **text, size_t *bytes, const cot_expert_map *map)
{
    FILE *stream = open_memstream(text, bytes);
    if (!stream) return COT_OUT_OF_MEMORY;
    cot_map_write_coterie(stream, map, "", NULL, NULL);
    const bool good = !ferror(stream);
    if (fclose(stream) == 0 && good) return COT_OK;
    free(*text);
    return COT_OUT_OF_MEMORY;
}

cot_status cot_worker_placement_text(char **text, size_t *bytes, cot_engine *engine, cot_error *error)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    cot_expert_layout layout;
    cot_expert_map map = {0};
    if (!info->moe_layers) return no_experts(error);
    cot_status status = cot_engine_layout(engine, &layout, NULL, error);
    if (status != COT_OK) return status;
    status = map_of(&map, &layout, info->expert_slots);
    map.model_hash = info->model_hash;
    if (status == COT_OK) status = write_map(text, bytes, &map);
    if (status != COT_OK) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    cot_expert_map_free(&map);
    cot_expert_layout_free(&layout);
    return status;
}
