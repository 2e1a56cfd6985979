#include "coterie/layout.h"

#include "base/error.h"
#include "placement/epoch.h"
#include "placement/seats.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static cot_status new_layout(cot_expert_layout *layout, const cot_expert_layout_shape *shape,
                             cot_error *error)
{
    const int64_t L = shape->n_layers, E = shape->n_experts;
    *layout = (cot_expert_layout){0};
    if (L < 0 || E < 0 || E > COT_TRACE_MAX_EXPERTS || (L && !E) || shape->n_ranks < 1 ||
        shape->n_ranks > COT_MAP_MAX_RANKS || shape->slots_per_rank < 0 ||
        shape->slots_per_rank > COT_MAP_MAX_SLOTS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no layout can have %" PRId64 " layers, %" PRId64 " experts and %" PRId32
                        " ranks of %" PRId32 " slots",
                        L, E, shape->n_ranks, shape->slots_per_rank);
    *layout = (cot_expert_layout){.n_layers = shape->n_layers,
                                  .n_experts = shape->n_experts,
                                  .n_ranks = shape->n_ranks,
                                  .layers = malloc((size_t)(L + 1) * sizeof *layout->layers),
                                  .begin = calloc((size_t)(L * (E + 1) + 1), sizeof *layout->begin),
                                  .first = calloc((size_t)(L + 1), sizeof *layout->first)};
    if (layout->layers && layout->begin && layout->first) {
        if (L) memcpy(layout->layers, shape->layers, (size_t)L * sizeof *layout->layers);
        return COT_OK;
    }
    cot_expert_layout_free(layout);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layout of %" PRId64 " layers", L);
}

static cot_status new_replicas(cot_expert_layout *layout, cot_error *error)
{
    const size_t n = (size_t)layout->first[layout->n_layers] + 1;
    layout->rank = malloc(n * sizeof *layout->rank);
    layout->slot = malloc(n * sizeof *layout->slot);
    if (layout->rank && layout->slot) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layout of %zu experts", n - 1);
}

/* The slots of a rank are as many as asked for, or as the fullest rank needs. */
static cot_status settle_slots(cot_expert_layout *layout, const cot_expert_layout_shape *shape, int32_t used,
                               const char *subject, cot_error *error)
{
    layout->slots_per_rank = shape->slots_per_rank ? shape->slots_per_rank : used;
    if (used <= layout->slots_per_rank) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%s uses %" PRId32 " slots of a rank, %" PRId32 " are asked for", subject, used,
                    layout->slots_per_rank);
}

static cot_status finish(cot_expert_layout *layout, cot_status status)
{
    if (status != COT_OK) cot_expert_layout_free(layout);
    return status;
}

cot_status cot_expert_layout_of_ranks(cot_expert_layout *layout, const cot_expert_layout_shape *shape,
                                      const int32_t *expert_rank, cot_error *error)
{
    cot_status status = new_layout(layout, shape, error);
    if (status != COT_OK) return status;
    const int64_t L = layout->n_layers, E = layout->n_experts;
    for (int64_t l = 0; l < L; l++) {
        layout->first[l + 1] = (l + 1) * E;
        for (int64_t e = 0; e <= E; e++) layout->begin[l * (E + 1) + e] = (int32_t)e;
    }
    status = new_replicas(layout, error);
    int32_t *full = calloc((size_t)layout->n_ranks, sizeof *full), used = 0;
    if (status == COT_OK && !full) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layout");
    for (int64_t l = 0; l < L && status == COT_OK; l++) {
        memset(full, 0, (size_t)layout->n_ranks * sizeof *full);
        for (int64_t e = 0; e < E && status == COT_OK; e++) {
            const int32_t r = expert_rank ? expert_rank[l * E + e] : cot_trace_home(e, E, layout->n_ranks);
            if (r < 0 || r >= layout->n_ranks) {
                status = cot_fail(error, COT_INVALID_ARGUMENT,
                                  "layer %" PRId32 ": expert %" PRId64 " is on rank %" PRId32 " of %" PRId32,
                                  layout->layers[l], e, r, layout->n_ranks);
                break;
            }
            layout->rank[l * E + e] = r;
            layout->slot[l * E + e] = full[r]++;
            if (full[r] > used) used = full[r];
        }
    }
    free(full);
    if (status == COT_OK) status = settle_slots(layout, shape, used, "the placement", error);
    return finish(layout, status);
}

/* The map's slots of the model's layer, or NULL: it has no row for it, or marks it as dense. */
static const int32_t *moe_row(const cot_expert_map *map, int32_t layer)
{
    const int32_t row = cot_map_row(map, layer);
    if (row < 0 || map->dense[row]) return NULL;
    return map->expert + (size_t)row * (size_t)map->n_ranks * (size_t)map->slots_per_rank;
}

static cot_status check_map(const cot_expert_map *map, const cot_expert_layout_shape *shape,
                            const char *subject, cot_error *error)
{
    if (map->n_experts != shape->n_experts || map->n_ranks != shape->n_ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' places %" PRId32 " experts on %" PRId32 " ranks, the model has %" PRId32
                        " experts and the group %" PRId32 " ranks",
                        subject, map->n_experts, map->n_ranks, shape->n_experts, shape->n_ranks);
    for (int32_t l = 0; l < shape->n_layers; l++)
        if (!moe_row(map, shape->layers[l]))
            return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' does not place the experts of layer %" PRId32,
                            subject, shape->layers[l]);
    for (int32_t row = 0, l = 0; row < map->n_layers; row++) { // both ascend, and none is missing
        if (map->dense[row]) continue;
        if (l == shape->n_layers || map->layers[row] != shape->layers[l])
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "'%s' places experts of layer %" PRId32 ", in which the model has none", subject,
                            map->layers[row]);
        l++;
    }
    return COT_OK;
}

cot_status cot_expert_layout_of_map(cot_expert_layout *layout, const cot_expert_layout_shape *shape,
                                    const cot_expert_map *map, const char *subject, cot_error *error)
{
    *layout = (cot_expert_layout){0};
    cot_status status = cot_expert_map_check(map, subject, error);
    if (status == COT_OK) status = check_map(map, shape, subject, error);
    if (status == COT_OK) status = new_layout(layout, shape, error);
    if (status != COT_OK) return status;
    const int64_t L = layout->n_layers, E = layout->n_experts,
                  slots = (int64_t)map->n_ranks * map->slots_per_rank;
    int32_t used = 0;
    for (int64_t l = 0; l < L; l++) { // how many of each, then where those of each begin
        const int32_t *row = moe_row(map, layout->layers[l]);
        int32_t *begin = layout->begin + l * (E + 1);
        for (int64_t i = 0; i < slots; i++)
            if (row[i] >= 0) {
                begin[row[i] + 1]++;
                if (i % map->slots_per_rank >= used) used = (int32_t)(i % map->slots_per_rank) + 1;
            }
        for (int64_t e = 0; e < E; e++) begin[e + 1] += begin[e];
        layout->first[l + 1] = layout->first[l] + begin[E];
    }
    status = new_replicas(layout, error);
    int32_t *next = malloc((size_t)(E + 1) * sizeof *next);
    if (status == COT_OK && !next) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layout");
    for (int64_t l = 0; l < L && status == COT_OK; l++) {
        const int32_t *row = moe_row(map, layout->layers[l]);
        memcpy(next, layout->begin + l * (E + 1), (size_t)E * sizeof *next);
        for (int64_t i = 0; i < slots; i++)
            if (row[i] >= 0) {
                const int64_t at = layout->first[l] + next[row[i]]++;
                layout->rank[at] = (int32_t)(i / map->slots_per_rank);
                layout->slot[at] = (int32_t)(i % map->slots_per_rank);
            }
    }
    free(next);
    if (status == COT_OK) status = settle_slots(layout, shape, used, subject, error);
    return finish(layout, status);
}

cot_status cot_expert_layout_copy_with_room(cot_expert_layout *copy, const cot_expert_layout *from,
                                            int64_t room, cot_error *error)
{
    const size_t L = (size_t)from->n_layers, replicas = (size_t)from->first[L],
                 begins = L * (size_t)(from->n_experts + 1);
    const cot_expert_layout_shape shape = {.n_layers = from->n_layers,
                                           .n_experts = from->n_experts,
                                           .n_ranks = from->n_ranks,
                                           .layers = from->layers,
                                           .slots_per_rank = from->slots_per_rank};
    cot_status status = new_layout(copy, &shape, error);
    if (status != COT_OK) return status;
    copy->slots_per_rank = from->slots_per_rank;
    copy->first[L] = room; // for as many there will be memory
    status = new_replicas(copy, error);
    if (status == COT_OK) {
        memcpy(copy->begin, from->begin, begins * sizeof *copy->begin);
        memcpy(copy->first, from->first, (L + 1) * sizeof *copy->first);
        memcpy(copy->rank, from->rank, replicas * sizeof *copy->rank);
        memcpy(copy->slot, from->slot, replicas * sizeof *copy->slot);
    }
    return finish(copy, status);
}

cot_status cot_expert_layout_copy(cot_expert_layout *copy, const cot_expert_layout *from, cot_error *error)
{
    return cot_expert_layout_copy_with_room(copy, from, from->first[from->n_layers], error);
}

void cot_expert_layout_free(cot_expert_layout *layout)
{
    void *owned[] = {layout->layers, layout->begin, layout->first, layout->rank, layout->slot};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    *layout = (cot_expert_layout){0};
}
