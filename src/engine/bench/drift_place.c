/* Placements that do not rebalance by time. */
#include "engine/bench/drift.h"

#include "base/error.h"
#include "coterie/place.h"

#include <stdlib.h>
#include <string.h>

static int32_t slots_of(const cot_bench_drift_options *o)
{
    return (o->half[0].trace->n_experts + o->ranks - 1) / o->ranks + o->spare / o->ranks;
}

static cot_status new_map(cot_expert_map *map, const cot_bench_drift_options *o, cot_error *error)
{
    const cot_trace *t = o->half[0].trace;
    const cot_status status =
        cot_expert_map_new(map, t->n_layers, t->n_experts, o->ranks, slots_of(o), error);
    if (status == COT_OK) memcpy(map->layers, t->layers, (size_t)t->n_layers * sizeof *t->layers);
    return status;
}

static int32_t *slots_at(const cot_expert_map *map, int32_t l, int32_t rank)
{
    return map->expert + ((size_t)l * (size_t)map->n_ranks + (size_t)rank) * (size_t)map->slots_per_rank;
}

static bool put(cot_expert_map *map, int32_t l, int32_t rank, int32_t e)
{
    int32_t *slot = slots_at(map, l, rank);
    for (int32_t i = 0; i < map->slots_per_rank; i++) {
        if (slot[i] == e) return false;
        if (slot[i] >= 0) continue;
        slot[i] = e;
        return true;
    }
    return false;
}

cot_status cot_bench_drift_blocks(cot_expert_map *map, const cot_bench_drift_options *o, cot_error *error)
{
    const cot_status status = new_map(map, o, error);
    if (status != COT_OK) return status;
    for (int32_t l = 0; l < map->n_layers; l++)
        for (int32_t e = 0; e < map->n_experts; e++)
            put(map, l, cot_trace_home(e, map->n_experts, map->n_ranks), e);
    return COT_OK;
}

cot_status cot_bench_drift_eplb(cot_expert_map *map, const double *calls, const cot_bench_drift_options *o,
                                cot_error *error)
{
    const int64_t L = o->half[0].trace->n_layers, E = o->half[0].trace->n_experts,
                  slots = (int64_t)slots_of(o) * o->ranks;
    const cot_eplb_sizes sizes = {L, E, slots, 1, 1, o->ranks, slots - E + 1};
    int64_t *expert = malloc((size_t)(L * slots) * sizeof *expert),
            *replicas = malloc((size_t)(L * E) * sizeof *replicas);
    cot_status status = new_map(map, o, error);
    if (status == COT_OK && (!expert || !replicas))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for EPLB");
    if (status == COT_OK) status = cot_eplb_rebalance(expert, NULL, replicas, calls, &sizes, error);
    for (int64_t i = 0; status == COT_OK && i < L * slots; i++) map->expert[i] = (int32_t)expert[i];
    free(expert);
    free(replicas);
    return status;
}

/* A layer alone, whose slots are the map's own. */
static cot_expert_map layer_of(const cot_expert_map *map, int32_t l)
{
    cot_expert_map one = *map;
    one.n_layers = 1;
    one.layers = map->layers + l;
    one.dense = map->dense + l;
    one.expert = slots_at(map, l, 0);
    return one;
}

cot_status cot_bench_drift_rename(cot_expert_map *map, const cot_expert_map *from, cot_error *error)
{
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < map->n_layers; l++) {
        const cot_expert_map was = layer_of(from, l);
        cot_expert_map now = layer_of(map, l);
        int64_t moves;
        status = cot_place_relabel(&moves, &was, &now, error);
    }
    return status;
}

/* Puts the expert's next replica on the rank with the least load among those with a free slot that lack it. */
static void put_on_least(cot_expert_map *map, int32_t l, int32_t e, double *load, double calls)
{
    int32_t best = -1;
    for (int32_t r = 0; r < map->n_ranks; r++) {
        const int32_t *slot = slots_at(map, l, r);
        bool lacks = slot[map->slots_per_rank - 1] < 0;
        for (int32_t i = 0; i < map->slots_per_rank; i++) lacks &= slot[i] != e;
        if (lacks && (best < 0 || load[r] < load[best])) best = r;
    }
    if (best < 0 || !put(map, l, best, e)) return;
    load[cot_trace_home(e, map->n_experts, map->n_ranks)] -= calls / 2;
    load[best] += calls / 2;
}

static void top_layer(cot_expert_map *map, int32_t l, const double *calls, double *load, bool *taken,
                      int32_t spare)
{
    memset(load, 0, (size_t)map->n_ranks * sizeof *load);
    memset(taken, 0, (size_t)map->n_experts * sizeof *taken);
    for (int32_t e = 0; e < map->n_experts; e++)
        load[cot_trace_home(e, map->n_experts, map->n_ranks)] += calls[e];
    for (int32_t n = 0; n < spare && n < map->n_experts; n++) {
        int32_t most = -1;
        for (int32_t e = 0; e < map->n_experts; e++)
            if (!taken[e] && (most < 0 || calls[e] > calls[most])) most = e;
        taken[most] = true;
        put_on_least(map, l, most, load, calls[most]);
    }
}

cot_status cot_bench_drift_top(cot_expert_map *map, const double *calls, const cot_bench_drift_options *o,
                               cot_error *error)
{
    double *load = malloc((size_t)o->ranks * sizeof *load);
    bool *taken = malloc((size_t)o->half[0].trace->n_experts * sizeof *taken);
    cot_status status = cot_bench_drift_blocks(map, o, error);
    if (status == COT_OK && (!load || !taken))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for replicas");
    for (int32_t l = 0; status == COT_OK && l < map->n_layers; l++)
        top_layer(map, l, calls + (size_t)l * (size_t)map->n_experts, load, taken, o->spare);
    free(load);
    free(taken);
    return status;
}

cot_status cot_bench_drift_layout(cot_expert_layout *layout, const cot_expert_map *map, cot_error *error)
{
    const cot_expert_layout_shape shape = {map->n_layers, map->n_experts, map->n_ranks, map->layers,
                                           map->slots_per_rank};
    return cot_expert_layout_of_map(layout, &shape, map, "a placement", error);
}
