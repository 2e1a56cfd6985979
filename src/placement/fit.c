#include "placement/fit.h"

#include "base/error.h"
#include "placement/seats.h"

#include <stdlib.h>
#include <string.h>

/* A layer while its slots change. */
typedef struct fitting {
    int32_t S, E, k;
    int32_t *expert;    // [S][k]
    const double *load; // [E]
    int32_t *replicas;  // [E]
    int32_t *filled;    // [S]
    double *sum;        // [S]
} fitting;

/* What each replica would carry if there were `more` of them. */
static double share(const fitting *f, int32_t e, int32_t more)
{
    return f->load[e] / (f->replicas[e] + more);
}

static bool holds(const fitting *f, int32_t r, int32_t e)
{
    const int32_t *slot = f->expert + (size_t)r * (size_t)f->k;
    for (int32_t i = 0; i < f->filled[r]; i++)
        if (slot[i] == e) return true;
    return false;
}

static void add_up(fitting *f)
{
    for (int32_t r = 0; r < f->S; r++) {
        f->sum[r] = 0;
        for (int32_t i = 0; i < f->filled[r]; i++)
            f->sum[r] += share(f, f->expert[(size_t)r * (size_t)f->k + (size_t)i], 0);
    }
}

/* The slot among `n` whose expert is missed least: a replica that carries little, else an only one that does. */
static int32_t least_missed(const fitting *f, const int32_t *slot, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        bool spare = f->replicas[slot[i]] > 1, other = best >= 0 && f->replicas[slot[best]] > 1;
        if (best < 0 || spare > other || (spare == other && share(f, slot[i], 0) < share(f, slot[best], 0)))
            best = i;
    }
    return best;
}

/* Copies what a rank has into its slots, without what does not fit; `was` [wide] is used up. */
static void keep(fitting *f, int32_t r, int32_t *was, int32_t wide)
{
    int32_t n = 0;
    for (int32_t i = 0; i < wide; i++)
        if (was[i] >= 0) was[n++] = was[i];
    while (n > f->k) {
        int32_t gone = least_missed(f, was, n);
        f->replicas[was[gone]]--;
        memmove(was + gone, was + gone + 1, (size_t)(--n - gone) * sizeof *was);
    }
    memcpy(f->expert + (size_t)r * (size_t)f->k, was, (size_t)n * sizeof *was);
    f->filled[r] = n;
}

/* The expert that a rank takes into an empty slot: the hottest without a slot, else whose replicas carry most. */
static int32_t wanted(const fitting *f, int32_t r)
{
    int32_t best = -1, any = 0;
    for (int32_t e = 0; e < f->E; e++) {
        if (share(f, e, 1) > share(f, any, 1)) any = e;
        bool lost = !f->replicas[e], other = best >= 0 && !f->replicas[best];
        if (best >= 0 && (lost < other || (lost == other && share(f, e, 1) <= share(f, best, 1)))) continue;
        if (!holds(f, r, e)) best = e;
    }
    return best >= 0 ? best : any; // it holds them all
}

static void fill(fitting *f)
{
    for (;;) {
        int32_t r = -1;
        add_up(f);
        for (int32_t s = 0; s < f->S; s++)
            if (f->filled[s] < f->k && (r < 0 || f->sum[s] < f->sum[r])) r = s;
        if (r < 0) return;
        int32_t e = wanted(f, r);
        f->expert[(size_t)r * (size_t)f->k + (size_t)f->filled[r]++] = e;
        f->replicas[e]++;
    }
}

/* Experts that lost their last slot take a replica's. There are as many slots as experts, so one is spare. */
static void restore(fitting *f)
{
    for (int32_t e = 0; e < f->E; e++) {
        if (f->replicas[e]) continue;
        int32_t at = least_missed(f, f->expert, f->S * f->k);
        f->replicas[f->expert[at]]--;
        f->replicas[e]++;
        f->expert[at] = e;
    }
}

static cot_status fit_layer(fitting *f, const cot_expert_map *current, int32_t row, int32_t *was, bool all,
                            int32_t layer, cot_error *error)
{
    size_t wide = (size_t)current->slots_per_rank;
    const int32_t *slots = current->expert + (size_t)row * (size_t)f->S * wide;
    memset(f->replicas, 0, (size_t)f->E * sizeof *f->replicas);
    for (size_t i = 0; i < (size_t)f->S * wide; i++)
        if (slots[i] >= 0) f->replicas[slots[i]]++;
    for (int32_t e = 0; e < f->E; e++)
        if (!f->replicas[e])
            return cot_fail(error, COT_MALFORMED,
                            "the running placement has no slot for expert %d of layer %d", e, layer);
    if (!all) {
        memcpy(f->expert, slots, (size_t)f->S * wide * sizeof *slots);
        return COT_OK;
    }
    for (int32_t r = 0; r < f->S; r++) {
        memcpy(was, slots + (size_t)r * wide, wide * sizeof *was);
        keep(f, r, was, (int32_t)wide);
    }
    fill(f);
    restore(f);
    return COT_OK;
}

cot_status cot_place_fit(cot_expert_map *map, const cot_expert_map *current, const cot_costs *costs,
                         int32_t slots_per_rank, cot_error *error)
{
    size_t S = (size_t)costs->n_ranks, E = (size_t)costs->n_experts;
    int32_t k = slots_per_rank ? slots_per_rank : current->slots_per_rank;
    *map = (cot_expert_map){0};
    if (current->n_experts != costs->n_experts || current->n_ranks != costs->n_ranks)
        return cot_fail(error, COT_MALFORMED,
                        "the running placement has %d experts on %d ranks, the load %d on %d",
                        current->n_experts, current->n_ranks, costs->n_experts, costs->n_ranks);
    if (slots_per_rank && S * (size_t)k < E)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%zu slots are too few for %zu experts", S * (size_t)k,
                        E);
    cot_status status = cot_expert_map_new(map, costs->n_layers, costs->n_experts, costs->n_ranks, k, error);
    if (status != COT_OK) return status;
    int32_t *memory = malloc((E + S + (size_t)current->slots_per_rank) * sizeof *memory);
    double *sum = malloc(S * sizeof *sum);
    if (!memory || !sum) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a plan");
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        int32_t row = cot_map_row(current, costs->layers[l]);
        fitting f = {.S = costs->n_ranks,
                     .E = costs->n_experts,
                     .k = k,
                     .expert = map->expert + (size_t)l * S * (size_t)k,
                     .load = costs->load + (size_t)l * E,
                     .replicas = memory,
                     .filled = memory + E,
                     .sum = sum};
        map->layers[l] = costs->layers[l];
        status =
            row < 0
                ? cot_fail(error, COT_MALFORMED, "the running placement lacks layer %d", costs->layers[l])
                : fit_layer(&f, current, row, memory + E + S, slots_per_rank > 0, costs->layers[l], error);
    }
    free(memory);
    free(sum);
    if (status != COT_OK) cot_expert_map_free(map);
    return status;
}
