#include "placement/eplb.h"

#include "base/error.h"
#include "coterie/placement.h"
#include "placement/sort.h"

#include <math.h>
#include <stdlib.h>

/* The arrays of a layer, cut from one block: `n` is the larger of experts and slots. */
typedef struct layer_work {
    cot_sort_item *items;   // [2n]
    double *key;            // [n]
    float *weight;          // [n]
    float *sum;             // [n]
    int32_t *order;         // [n]
    int32_t *pack, *place;  // [n] what a thing was packed into, and where in it
    int32_t *held;          // [n]
    int32_t *inner;         // [experts] expert at each place of the grouped order
    int32_t *owner, *which; // [slots] of a node: place of the expert, and which replica
} layer_work;

static layer_work cut(const cot_eplb_shape *shape, void *memory)
{
    size_t n = (size_t)(shape->slots > shape->experts ? shape->slots : shape->experts);
    layer_work w = {.items = memory};
    w.key = (double *)(w.items + 2 * n);
    w.weight = (float *)(w.key + n);
    w.sum = w.weight + n;
    w.order = (int32_t *)(w.sum + n);
    w.pack = w.order + n;
    w.place = w.pack + n;
    w.held = w.place + n;
    w.inner = w.held + n;
    w.owner = w.inner + n;
    w.which = w.owner + n;
    return w;
}

cot_status cot_eplb_check(const cot_eplb_shape *s, cot_error *error)
{
    if (s->experts < 1 || s->groups < 1 || s->nodes < 1 || s->gpus < 1 || s->slots < s->experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "eplb needs at least a slot for each expert: %d slots for %d experts", s->slots,
                        s->experts);
    if (s->slots % s->gpus)
        return cot_fail(error, COT_INVALID_ARGUMENT, "eplb: %d ranks do not divide %d slots", s->gpus,
                        s->slots);
    if (s->groups % s->nodes) return COT_OK; // the global policy asks for no more
    if (s->experts % s->groups)
        return cot_fail(error, COT_INVALID_ARGUMENT, "eplb: %d groups do not divide %d experts", s->groups,
                        s->experts);
    if (s->gpus % s->nodes)
        return cot_fail(error, COT_INVALID_ARGUMENT, "eplb: %d nodes do not divide %d ranks", s->nodes,
                        s->gpus);
    return COT_OK;
}

cot_status cot_eplb_open(cot_eplb_scratch *scratch, const cot_eplb_shape *shape, cot_error *error)
{
    size_t n = (size_t)(shape->slots > shape->experts ? shape->slots : shape->experts);
    scratch->memory =
        malloc(n * (2 * sizeof(cot_sort_item) + sizeof(double) + 2 * sizeof(float) + 7 * sizeof(int32_t)));
    return scratch->memory ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu slots", n);
}

void cot_eplb_close(cot_eplb_scratch *scratch)
{
    free(scratch->memory);
    scratch->memory = NULL;
}

/* Packs n things into equally many packs, the heaviest first, each into the lightest pack with room. Sums are of
 * floats, as the reference's; of equally light packs the first is taken. */
static void pack_evenly(layer_work *w, const float *weight, int32_t n, int32_t packs)
{
    int32_t each = n / packs;
    if (each == 1) {
        for (int32_t i = 0; i < n; i++) {
            w->pack[i] = i;
            w->place[i] = 0;
        }
        return;
    }
    for (int32_t i = 0; i < n; i++) w->key[i] = weight[i];
    cot_sort_indices(w->order, w->key, n, true, w->items);
    for (int32_t p = 0; p < packs; p++) {
        w->sum[p] = 0;
        w->held[p] = 0;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t thing = w->order[i], best = -1;
        for (int32_t p = 0; p < packs; p++)
            if (w->held[p] < each && (best < 0 || w->sum[p] < w->sum[best])) best = p;
        w->pack[thing] = best;
        w->place[thing] = w->held[best]++;
        w->sum[best] += weight[thing];
    }
}

/* Gives each slot beyond the experts to the expert whose replicas are the hottest. */
static void replicate(layer_work *w, int32_t *replicas, const float *weight, int32_t experts, int32_t slots)
{
    for (int32_t e = 0; e < experts; e++) {
        w->owner[e] = e;
        w->which[e] = 0;
        replicas[e] = 1;
        w->sum[e] = weight[e];
    }
    for (int32_t i = experts; i < slots; i++) {
        int32_t hottest = 0;
        for (int32_t e = 1; e < experts; e++)
            if (w->sum[e] > w->sum[hottest]) hottest = e;
        w->owner[i] = hottest;
        w->which[i] = replicas[hottest]++;
        w->sum[hottest] = weight[hottest] / (float)replicas[hottest];
    }
}

/* Groups of experts go to nodes evenly; inner[place] is the expert at each place, node after node. */
static void group_experts(layer_work *w, const float *weight, int32_t experts, int32_t groups, int32_t nodes)
{
    int32_t size = experts / groups, a_node = groups / nodes;
    for (int32_t g = 0; g < groups; g++) {
        float sum = 0;
        for (int32_t e = g * size; e < (g + 1) * size; e++) sum += weight[e];
        w->weight[g] = sum;
    }
    pack_evenly(w, w->weight, groups, nodes);
    for (int32_t g = 0; g < groups; g++)
        for (int32_t i = 0; i < size; i++)
            w->inner[(w->pack[g] * a_node + w->place[g]) * size + i] = g * size + i;
}

void cot_eplb_layer(int32_t *expert, int32_t *replica, int32_t *replicas, const float *weight,
                    const cot_eplb_shape *shape, cot_eplb_scratch *scratch)
{
    layer_work w = cut(shape, scratch->memory);
    bool grouped = shape->groups % shape->nodes == 0;
    int32_t nodes = grouped ? shape->nodes : 1, groups = grouped ? shape->groups : 1;
    int32_t experts = shape->experts / nodes, slots = shape->slots / nodes, gpus = shape->gpus / nodes;
    int32_t a_gpu = shape->slots / shape->gpus;
    group_experts(&w, weight, shape->experts, groups, nodes);
    for (int32_t node = 0; node < nodes; node++) {
        const int32_t *inner = w.inner + (size_t)node * (size_t)experts;
        int32_t *count = replica + (size_t)node * (size_t)slots; // before it is filled in
        for (int32_t e = 0; e < experts; e++) w.weight[e] = weight[inner[e]];
        replicate(&w, count, w.weight, experts, slots);
        for (int32_t e = 0; e < experts; e++) {
            replicas[inner[e]] = count[e];
            w.weight[e] /= (float)count[e];
        }
        // what each slot carries, out of the way of what it was computed from
        for (int32_t i = slots - 1; i >= 0; i--) w.key[i] = w.weight[w.owner[i]];
        for (int32_t i = 0; i < slots; i++) w.weight[i] = (float)w.key[i];
        pack_evenly(&w, w.weight, slots, gpus);
        for (int32_t i = 0; i < slots; i++) {
            int32_t slot = node * slots + w.pack[i] * a_gpu + w.place[i];
            expert[slot] = inner[w.owner[i]];
            replica[slot] = w.which[i];
        }
    }
}

static cot_status rebalance(int64_t *physical_to_logical, int64_t *logical_to_physical, int64_t *replicas,
                            const double *weight, int64_t layers, const cot_eplb_shape *shape,
                            int64_t max_replicas, int32_t *expert, float *row, cot_eplb_scratch *scratch,
                            cot_error *error)
{
    int32_t E = shape->experts, n = shape->slots, *replica = expert + n, *count = replica + n;
    for (int64_t l = 0; l < layers; l++) {
        int64_t *to = logical_to_physical + l * E * max_replicas;
        for (int32_t e = 0; e < E; e++) {
            row[e] = (float)weight[l * E + e];
            if (!(weight[l * E + e] >= 0) || !isfinite(row[e]))
                return cot_fail(error, COT_INVALID_ARGUMENT, "layer %lld: the load of expert %d is %g",
                                (long long)l, e, weight[l * E + e]);
        }
        cot_eplb_layer(expert, replica, count, row, shape, scratch);
        for (int64_t i = 0; i < E * max_replicas; i++) to[i] = -1;
        for (int32_t i = 0; i < n; i++) {
            physical_to_logical[l * n + i] = expert[i];
            if (replica[i] >= max_replicas)
                return cot_fail(error, COT_INVALID_ARGUMENT, "expert %d has more than %lld replicas",
                                expert[i], (long long)max_replicas);
            to[expert[i] * max_replicas + replica[i]] = i;
        }
        for (int32_t e = 0; e < E; e++) replicas[l * E + e] = count[e];
    }
    return COT_OK;
}

cot_status cot_eplb_rebalance(int64_t *physical_to_logical, int64_t *logical_to_physical, int64_t *replicas,
                              const double *weight, int64_t layers, int64_t experts, int64_t slots,
                              int64_t groups, int64_t nodes, int64_t gpus, int64_t max_replicas,
                              cot_error *error)
{
    const int64_t most = 1 << 24;
    if (layers < 0 || experts < 1 || experts > most || slots < 1 || slots > most || groups < 1 ||
        groups > most || nodes < 1 || nodes > most || gpus < 1 || gpus > most || max_replicas < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "eplb cannot place %lld experts in %lld slots of %lld ranks in %lld nodes",
                        (long long)experts, (long long)slots, (long long)gpus, (long long)nodes);
    cot_eplb_shape shape = {(int32_t)experts, (int32_t)slots, (int32_t)groups, (int32_t)nodes, (int32_t)gpus};
    cot_eplb_scratch scratch = {0};
    cot_status status = cot_eplb_check(&shape, error);
    if (status != COT_OK) return status;
    int32_t *expert = malloc((2 * (size_t)slots + (size_t)experts) * sizeof *expert);
    float *row = malloc((size_t)experts * sizeof *row);
    status = expert && row
                 ? cot_eplb_open(&scratch, &shape, error)
                 : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld slots", (long long)slots);
    if (status == COT_OK)
        status = rebalance(physical_to_logical, logical_to_physical, replicas, weight, layers, &shape,
                           max_replicas, expert, row, &scratch, error);
    cot_eplb_close(&scratch);
    free(expert);
    free(row);
    return status;
}
