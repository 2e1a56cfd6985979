/* Inside a runner: what all of its files share, and a part for each that has a state of its own. */
#ifndef COT_MODEL_RUNNER_STATE_H
#define COT_MODEL_RUNNER_STATE_H
#include "model/attention.h"
#include "model/exchanges.h"
#include "model/network.h"
#include "model/results.h"
#include "model/rows.h"
#include "model/shuffle.h"
#include "model/slots.h"

struct cot_runner {
    cot_runner_options o;
    const cot_config *c;
    cot_fabric *fabric;
    cot_arena arena;
    cot_collectives *collectives;
    cot_runner_step_rows rows;
    cot_runner_heads heads;
    cot_runner_homes homes; // where rows go home by themselves
    cot_runner_network network;
    cot_runner_slots slots;
    cot_runner_results results;
    cot_runner_sent sent; // where exchanges are counted
};

/* Where a place of the layer's pool begins, on every rank. */
static inline cot_sym cot_runner_place_at(const cot_runner *r, int64_t layer, int64_t place)
{
    return r->slots.at + r->slots.pool[layer].at + (size_t)(place * r->o.networks->slot_bytes[layer]);
}
/* The places of the layer's slots on this rank [slots]. */
static inline int32_t *cot_runner_places_of(const cot_runner *r, int64_t layer)
{
    return r->slots.place + layer * r->o.layout->slots_per_rank;
}
static inline uint8_t *cot_runner_slot(const cot_runner *r, int32_t layer, int32_t slot)
{
    const int32_t own = r->slots.pool[layer].first;
    return cot_local(r->fabric, cot_runner_place_at(r, layer, own + cot_runner_places_of(r, layer)[slot]));
}
/* Words of one rank's part of sent.at; 0 where exchanges are not counted. */
static inline size_t cot_runner_sent_words(const cot_runner *r, int ranks)
{
    return !r->o.count_exchanges ? 0 : cot_runner_exchanges(r->c->layers) * (size_t)ranks;
}
/* Counters of one rank: an expert's of a layer each. */
static inline size_t cot_runner_calls(const cot_runner *r)
{
    return (size_t)(r->c->moe_layers * r->c->gate.experts);
}
/* A rank's counters in this rank's memory [MoE layers][E]. */
static inline uint64_t *cot_runner_calls_of(const cot_runner *r, int rank)
{
    return (uint64_t *)cot_local(r->fabric, r->results.calls_at) + (size_t)rank * cot_runner_calls(r);
}
static inline bool cot_runner_splits_heads(const cot_runner *r)
{
    return !r->o.data_parallel && r->fabric->ranks > 1;
}
/* Whether rows go home and back by themselves: in one hop, or shuffled on a ring. */
static inline bool cot_runner_goes_home(const cot_runner *r)
{
    return cot_runner_splits_heads(r) && cot_pipeline_goes_home(&r->o.pipeline);
}
/* Row `row` of a typed [rows][width]. */
static inline uint8_t *cot_runner_row(const cot_runner *r, void *typed, int64_t row, int64_t width)
{
    return (uint8_t *)typed + (size_t)(row * width) * cot_dtype_bytes(r->o.precision.type);
}

#endif
