#include "placement/formats/formats.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_map_new_rows(cot_expert_map *map, size_t layers, size_t slots, const cot_map_source *source,
                            cot_error *error)
{
    int32_t ranks = source->options->ranks ? source->options->ranks : 1;
    if (layers < 1 || layers > COT_TRACE_MAX_LAYERS || !slots)
        return cot_fail(error, COT_MALFORMED, "'%s' is a map of %zu layers of %zu slots", source->path,
                        layers, slots);
    if (slots % (size_t)ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has %zu slots a layer, which %" PRId32 " ranks do not divide", source->path,
                        slots, ranks);
    if (slots / (size_t)ranks > COT_MAP_MAX_SLOTS)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has %zu slots a rank, at most %d are read",
                        source->path, slots / (size_t)ranks, COT_MAP_MAX_SLOTS);
    if (!source->options->ranks)
        cot_map_note(source->options, "'%s' does not say how many ranks it is for: read as one",
                     source->path);
    return cot_expert_map_new(map, (int32_t)layers, 1, ranks, (int32_t)(slots / (size_t)ranks), error);
}

void cot_map_count_experts(cot_expert_map *map)
{
    size_t slots = (size_t)map->n_layers * (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    for (size_t i = 0; i < slots; i++)
        if (map->expert[i] >= map->n_experts) map->n_experts = map->expert[i] + 1;
}

static cot_status want_rows(const cot_expert_map *map, int32_t layers, const char *what,
                            const cot_map_source *source, cot_error *error)
{
    if (map->n_layers == layers) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "'%s' has rows for %" PRId32 " %slayers, the model has %" PRId32, source->path,
                    map->n_layers, what, layers);
}

cot_status cot_map_mark_dense_layers(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    const cot_expert_map_options *o = source->options;
    if (!o->moe_layers) return COT_OK;
    const cot_status status = want_rows(map, o->n_layers, "", source, error);
    if (status != COT_OK) return status;
    const size_t slots = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    const int32_t *moe = map->expert + (size_t)o->moe_layer[0] * slots;
    for (int32_t row = 0, l = 0; row < map->n_layers; row++) {
        map->dense[row] = l == o->moe_layers || o->moe_layer[l] != row;
        l += !map->dense[row];
        if (map->dense[row]) memcpy(map->expert + (size_t)row * slots, moe, slots * sizeof *moe);
    }
    return COT_OK;
}

cot_status cot_map_number_moe_layers(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    const cot_expert_map_options *o = source->options;
    int32_t first = o->first_layer;
    if (o->moe_layers) {
        const cot_status status = want_rows(map, o->moe_layers, "MoE ", source, error);
        if (status == COT_OK) memcpy(map->layers, o->moe_layer, (size_t)o->moe_layers * sizeof *map->layers);
        return status;
    }
    if (!first && o->n_layers > map->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has rows for %" PRId32 " MoE layers, the model has %" PRId32
                        " layers: which are they? give the first layer (3 for DeepSeek-R1)",
                        source->path, map->n_layers, o->n_layers);
    if (first > INT32_MAX - map->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "layers from %" PRId32 " on are beyond any model",
                        first);
    for (int32_t l = 0; l < map->n_layers; l++) map->layers[l] = first + l;
    if (!first)
        cot_map_note(source->options,
                     "'%s' counts MoE layers: its row 0 is taken for the model's layer 0, unless a first "
                     "layer is given",
                     source->path);
    return COT_OK;
}

bool cot_map_is_dense(const cot_expert_map *map, int32_t l, const cot_expert_map_options *options)
{
    return map->dense[l] || map->layers[l] < options->first_layer;
}

cot_status cot_map_want_full(const cot_expert_map *map, const char *path,
                             const cot_expert_map_options *options, cot_error *error)
{
    const int32_t *at = map->expert;
    for (int32_t l = 0; l < map->n_layers; l++)
        for (int32_t s = 0; s < map->n_ranks; s++) {
            int32_t filled = 0;
            for (int32_t i = 0; i < map->slots_per_rank; i++) filled += *at++ >= 0;
            if (filled < map->slots_per_rank && !cot_map_is_dense(map, l, options))
                return cot_fail(error, COT_UNSUPPORTED,
                                "cannot write '%s': layer %" PRId32 " has %" PRId32
                                " experts on rank %" PRId32
                                ", the format needs the same number, here %" PRId32 ", on every rank",
                                path, map->layers[l], filled, s, map->slots_per_rank);
        }
    return COT_OK;
}

cot_status cot_map_want_distinct(const cot_expert_map *map, const char *path,
                                 const cot_expert_map_options *options, cot_error *error)
{
    const int32_t *at = map->expert, ranks = map->n_ranks;
    int32_t *seen = calloc((size_t)map->n_experts, sizeof *seen); // the last (layer, rank) of it, from 1
    cot_status status = seen ? COT_OK : cot_map_no_memory(path, error);
    for (int32_t i = 0; status == COT_OK && i < map->n_layers * ranks; i++)
        for (int32_t slot = 0; status == COT_OK && slot < map->slots_per_rank; slot++) {
            const int32_t e = *at++;
            if (e < 0 || cot_map_is_dense(map, i / ranks, options)) continue;
            if (seen[e] == i + 1)
                status = cot_fail(error, COT_UNSUPPORTED,
                                  "cannot write '%s': layer %" PRId32 " has expert %" PRId32
                                  " twice on rank %" PRId32 ", which the format cannot say",
                                  path, map->layers[i / ranks], e, i % ranks);
            seen[e] = i + 1;
        }
    free(seen);
    return status;
}
