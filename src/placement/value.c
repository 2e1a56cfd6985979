#include "coterie/place.h"

#include "base/error.h"
#include "placement/seats.h"
#include "placement/double_double.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cot_place_value_free(cot_place_value *value)
{
    free(value->peak_load);
    free(value->peak_bound);
    free(value->rank_load);
    *value = (cot_place_value){0};
}

/* One expert: adds its cost to `sum` and what each rank serves of it to `load` [S]. */
static void serve(cot_double_double *sum, double *load, int32_t *at, int32_t n, const cot_costs *c, int32_t l,
                  int32_t e, cot_dispatch dispatch)
{
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts, i = (size_t)l * E + (size_t)e;
    if (dispatch == COT_DISPATCH_NEAREST && c->round_trip) {
        for (size_t r = 0; r < S; r++) {
            double sent = c->sent ? c->sent[((size_t)l * S + r) * E + (size_t)e] : c->load[i] / (double)S;
            int32_t near = cot_seats_nearest(at, n, c->round_trip + r * S);
            *sum = cot_double_double_add(
                *sum, cot_double_double_product(sent, c->round_trip[r * S + (size_t)at[0]]));
            for (int32_t k = 0; k < near; k++) load[at[k]] += sent / near;
        }
        return;
    }
    const double *cost = c->pair ? c->pair + i * S : c->cost + (size_t)l * S;
    if (dispatch == COT_DISPATCH_NEAREST) n = cot_seats_nearest(at, n, cost);
    cot_double_double all = {0, 0};
    for (int32_t k = 0; k < n; k++) {
        load[at[k]] += c->load[i] / n;
        all = cot_double_double_add(all, c->pair ? cot_double_double_of(cost[at[k]])
                                                 : cot_double_double_product(c->load[i], cost[at[k]]));
    }
    *sum = cot_double_double_add(*sum, n == 1 ? all : cot_double_double_of(all.high / n));
}

static cot_status open_value(cot_place_value *v, const cot_costs *c, cot_error *error)
{
    size_t L = (size_t)c->n_layers, S = (size_t)c->n_ranks;
    *v = (cot_place_value){.n_layers = c->n_layers,
                           .n_ranks = c->n_ranks,
                           .peak_load = calloc(L, sizeof *v->peak_load),
                           .peak_bound = calloc(L, sizeof *v->peak_bound),
                           .rank_load = calloc(L * S, sizeof *v->rank_load)};
    if (v->peak_load && v->peak_bound && v->rank_load) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the loads of %zu layers on %zu ranks", L, S);
}

static cot_status check_sizes(const cot_expert_map *map, const cot_costs *costs, cot_error *error)
{
    if (map->n_experts != costs->n_experts)
        return cot_fail(error, COT_MALFORMED, "the placement has %d experts, the load %d", map->n_experts,
                        costs->n_experts);
    if (map->n_ranks != costs->n_ranks)
        return cot_fail(error, COT_MALFORMED, "the placement has %d ranks, the cluster %d", map->n_ranks,
                        costs->n_ranks);
    return COT_OK;
}

cot_status cot_place_value_of(cot_place_value *value, const cot_expert_map *map, const cot_costs *costs,
                              cot_dispatch dispatch, cot_error *error)
{
    size_t S = (size_t)costs->n_ranks, E = (size_t)costs->n_experts;
    cot_status status = open_value(value, costs, error);
    if (status == COT_OK) status = check_sizes(map, costs, error);
    if (status != COT_OK) {
        cot_place_value_free(value);
        return status;
    }
    cot_seats seats = {0};
    cot_double_double sum = {0, 0};
    status = cot_seats_open(&seats, map, error);
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        double *load = value->rank_load + (size_t)l * S, total = 0, most = 0;
        int32_t row = cot_map_row(map, costs->layers[l]);
        if (row < 0) {
            status = cot_fail(error, COT_MALFORMED, "the placement lacks layer %d", costs->layers[l]);
            break;
        }
        status = cot_seats_find(&seats, map, row, error);
        for (int32_t e = 0; status == COT_OK && e < costs->n_experts; e++) {
            serve(&sum, load, seats.rank + seats.first[e], seats.first[e + 1] - seats.first[e], costs, l, e,
                  dispatch);
            total += costs->load[(size_t)l * E + (size_t)e];
        }
        for (size_t s = 0; s < S; s++) most = fmax(most, load[s]);
        value->peak_load[l] = most / (total / (double)S);
        value->activations += total;
    }
    value->objective = sum.high;
    cot_seats_close(&seats);
    if (status != COT_OK) cot_place_value_free(value);
    return status;
}

static cot_status check_row(const cot_expert_map *map, int32_t row, const cot_place_options *o, int32_t *held,
                            cot_error *error)
{
    for (int32_t s = 0; s < map->n_ranks; s++) {
        const int32_t *slot =
            map->expert + ((size_t)row * (size_t)map->n_ranks + (size_t)s) * (size_t)map->slots_per_rank;
        int32_t here = 0;
        for (int32_t i = 0; i < map->slots_per_rank; i++) here += slot[i] >= 0;
        held[s] += here;
        if (o->c_layer && here > o->c_layer[s])
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "rank %d holds %d experts of layer %d, c_layer is %d", s, here, map->layers[row],
                            o->c_layer[s]);
        if (o->slots && here != o->slots / map->n_ranks)
            return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d fills %d slots of layer %d, expected %d", s,
                            here, map->layers[row], o->slots / map->n_ranks);
        if (o->c_exp && held[s] > o->c_exp[s])
            return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d holds more than %d experts, its c_exp", s,
                            o->c_exp[s]);
    }
    return COT_OK;
}

cot_status cot_place_verify(const cot_expert_map *map, const cot_costs *costs,
                            const cot_place_options *options, cot_error *error)
{
    cot_place_value value;
    cot_status status = cot_place_value_of(&value, map, costs, options->dispatch, error);
    if (status != COT_OK) return status;
    bool hard = options->max_load > 0;
    for (const cot_place_method *m = cot_place_methods; m->name && options->method; m++)
        hard = hard && !(m->soft && !strcmp(m->name, options->method));
    int32_t *held = calloc((size_t)map->n_ranks, sizeof *held);
    if (!held) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to verify a placement");
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        status = check_row(map, cot_map_row(map, costs->layers[l]), options, held, error);
        if (status == COT_OK && hard && value.peak_load[l] > options->max_load * (1 + 1e-12))
            status =
                cot_fail(error, COT_INVALID_ARGUMENT, "layer %d loads a rank %.6g times the mean, limit %.6g",
                         costs->layers[l], value.peak_load[l], options->max_load);
    }
    free(held);
    cot_place_value_free(&value);
    return status;
}
