#include "coterie/place.h"

#include "base/error.h"
#include "placement/seats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cot_place_balancedness(cot_balancedness *b, const cot_place_value *v)
{
    size_t L = (size_t)v->n_layers, S = (size_t)v->n_ranks;
    double means = 0, maxima = 0, total = 0, tops = 0;
    *b = (cot_balancedness){0};
    for (size_t l = 0; l < L; l++) {
        double sum = 0, most = 0;
        for (size_t s = 0; s < S; s++) {
            sum += v->rank_load[l * S + s];
            most = fmax(most, v->rank_load[l * S + s]);
        }
        double mean = sum / (double)S;
        b->sglang += (mean + 1e-5) / (most + 1e-5) / (double)L;
        b->tensorrt_llm += mean > 0 ? (most / mean - 1) / (double)L : 0;
        means += mean;
        maxima += most;
        total += sum;
    }
    for (size_t s = 0; s < S; s++) {
        double most = 0;
        for (size_t l = 0; l < L; l++) most = fmax(most, v->rank_load[l * S + s]);
        tops += most;
    }
    b->vllm = tops > 0 ? total / (double)L / tops : 0;
    b->vllm_layers = maxima > 0 ? means / maxima : 0;
}

/* One activation of an expert on ranks at[0..n): mean over those that serve it. */
static double unit_cost(int32_t *at, int32_t n, const cot_costs *c, int32_t l, int32_t e,
                        cot_dispatch dispatch)
{
    size_t S = (size_t)c->n_ranks, i = (size_t)l * (size_t)c->n_experts + (size_t)e;
    double sum = 0;
    if (dispatch == COT_DISPATCH_NEAREST && c->round_trip) {
        double all = 0;
        for (size_t r = 0; r < S; r++) {
            double sent = c->sent ? c->sent[((size_t)l * S + r) * (size_t)c->n_experts + (size_t)e] : 1;
            cot_seats_nearest(at, n, c->round_trip + r * S);
            sum += sent * c->round_trip[r * S + (size_t)at[0]];
            all += sent;
        }
        return all > 0 ? sum / all : 0;
    }
    const double *cost = c->pair ? c->pair + i * S : c->cost + (size_t)l * S;
    double scale = !c->pair ? 1 : c->load[i] > 0 ? 1 / c->load[i] : 0;
    if (dispatch == COT_DISPATCH_NEAREST) n = cot_seats_nearest(at, n, cost);
    for (int32_t k = 0; k < n; k++) sum += scale * cost[at[k]];
    return sum / n;
}

cot_status cot_place_unit_costs(double *unit, const cot_expert_map *map, const cot_costs *costs,
                                cot_dispatch dispatch, cot_error *error)
{
    cot_seats seats;
    cot_status status = cot_seats_open(&seats, map, error);
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        status = cot_seats_find_layer(&seats, map, costs, l, error);
        for (int32_t e = 0; status == COT_OK && e < costs->n_experts; e++)
            unit[(size_t)l * (size_t)costs->n_experts + (size_t)e] = unit_cost(
                seats.rank + seats.first[e], seats.first[e + 1] - seats.first[e], costs, l, e, dispatch);
    }
    cot_seats_close(&seats);
    return status;
}

/* What rank r sends to an expert of a layer, and gets back from it. */
static void sent_by(double sent[2], const cot_load_counts *load, const cot_costs *c,
                    const cot_costs_options *o, int32_t l, int32_t e, int32_t r)
{
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts, row = (size_t)c->row[l];
    double all = c->load[(size_t)l * E + (size_t)e];
    if (o->attention == COT_ATTENTION_PAPER) {
        sent[0] = r == c->home[l] ? all : 0;
        sent[1] = r == c->home[(l + 1) % c->n_layers] ? all : 0;
    } else if (o->attention == COT_ATTENTION_WEIGHTS) {
        sent[0] = all * o->dispatch_weights[row * S + (size_t)r];
        sent[1] = all * o->collect_weights[row * S + (size_t)r];
    } else
        sent[0] = sent[1] =
            load->sources_known ? load->tokens[(row * S + (size_t)r) * E + (size_t)e] : all / (double)S;
}

static void add_expert(double *traffic, int32_t *at, int32_t n, const cot_load_counts *load,
                       const cot_costs *c, const cot_costs_options *o, int32_t l, int32_t e)
{
    size_t S = (size_t)c->n_ranks, i = (size_t)l * (size_t)c->n_experts + (size_t)e;
    bool nearest = o->dispatch == COT_DISPATCH_NEAREST, by_source = nearest && c->round_trip;
    if (nearest && !by_source)
        n = cot_seats_nearest(at, n, c->pair ? c->pair + i * S : c->cost + (size_t)l * S);
    for (int32_t r = 0; r < c->n_ranks; r++) {
        double sent[2];
        sent_by(sent, load, c, o, l, e, r);
        if (sent[0] == 0 && sent[1] == 0) continue;
        int32_t near = by_source ? cot_seats_nearest(at, n, c->round_trip + (size_t)r * S) : n;
        for (int32_t k = 0; k < near; k++) {
            traffic[(size_t)r * S + (size_t)at[k]] += sent[0] / near;
            traffic[(size_t)at[k] * S + (size_t)r] += sent[1] / near;
        }
    }
}

cot_status cot_place_traffic(double *traffic, const cot_expert_map *map, const cot_load_counts *load,
                             const cot_costs *costs, const cot_costs_options *options, cot_error *error)
{
    cot_seats seats;
    size_t S = (size_t)costs->n_ranks;
    if (options->cost)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a matrix of costs does not say between which ranks tokens go");
    cot_status status = cot_seats_open(&seats, map, error);
    memset(traffic, 0, S * S * sizeof *traffic);
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        status = cot_seats_find_layer(&seats, map, costs, l, error);
        for (int32_t e = 0; status == COT_OK && e < costs->n_experts; e++)
            add_expert(traffic, seats.rank + seats.first[e], seats.first[e + 1] - seats.first[e], load, costs,
                       options, l, e);
    }
    cot_seats_close(&seats);
    return status;
}
