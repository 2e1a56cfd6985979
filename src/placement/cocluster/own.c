/* The method `coterie`. Each iteration begins somewhere - groups given, grown or random at first, then the best so far
 * with a few experts swapped at random - and climbs: tokens to ranks, experts to tokens while that helps, then swaps at
 * the tokens' prices. Where all groups are few they are all tried. */
#include "placement/cocluster/exhaustive.h"
#include "placement/cocluster/swaps.h"

#include "base/error.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

#ifndef TOL
#define TOL 0.001
#endif
#ifndef BACK
#define BACK 30
#endif
static const double TOLERANCE = TOL;
enum { RANDOM_STARTS = 2, ROUNDS = 40, ALTERNATIONS = 12, MATCH_EXPERTS = 512 };

typedef struct own {
    cot_swaps swaps;
    int32_t *home;     // [E] groups that kicks begin from
    double home_value; // what they are worth
    double best_value;
    int64_t since; // iterations that the best is old
    double home_price[COT_TRACE_MAX_RANKS], best_price[COT_TRACE_MAX_RANKS];
    int32_t *best;
    int32_t *trial; // [E]
    cot_exhaustive all;
} own;

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    own *o = p->state = calloc(1, sizeof *o);
    if (!o) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    o->home = malloc(3 * (size_t)p->E * sizeof *o->home);
    if (!o->home) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    o->trial = o->home + p->E;
    o->best = o->trial + p->E;
    o->best_value = -1;
    o->home_value = -1;
    cot_exhaustive_begin(&o->all, p);
    return cot_swaps_open(&o->swaps, p, error);
}

static void end(cot_cocluster *p)
{
    own *o = p->state;
    cot_swaps_close(&o->swaps);
    free(o->home);
    free(o);
}

static uint64_t draw(const cot_cocluster *p, int64_t iteration, uint64_t k, uint64_t below)
{
    return cot_random_bits(p->options.seed, (uint64_t)iteration, k) % below;
}

static void shuffle(int32_t *rank, const cot_cocluster *p, int64_t iteration)
{
    int32_t e = 0;
    for (int32_t d = 0; d < p->D; d++)
        for (int32_t k = 0; k < p->size[d]; k++) rank[e++] = d;
    for (e = p->E - 1; e > 0; e--) {
        const uint64_t with = draw(p, iteration, (uint64_t)e, (uint64_t)e + 1);
        const int32_t d = rank[e];
        rank[e] = rank[with];
        rank[with] = d;
    }
}

/* Groups grown one by one: the busiest expert left, then whoever is called most by the tokens that call it. */
static cot_status grow(int32_t *rank, const cot_cocluster *p, cot_error *error)
{
    const cot_affinity *a = &p->affinity;
    const int64_t E = p->E;
    double *together = calloc((size_t)(E * E + E), sizeof *together), *pull = together + E * E;
    if (!together) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for pairs of %d experts", p->E);
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++)
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
                together[a->expert[j] * E + a->expert[k]] +=
                    (double)a->count[j] * a->count[k] / (double)p->token_load[i];
    for (int32_t e = 0; e < E; e++) rank[e] = -1;
    for (int32_t d = 0; d < p->D; d++) {
        for (int32_t e = 0; e < E; e++) pull[e] = 1e-9 * (double)p->expert_load[e]; // ties, and the first
        for (int32_t k = 0; k < p->size[d]; k++) {
            int32_t next = -1;
            for (int32_t e = 0; e < E; e++)
                if (rank[e] < 0 && (next < 0 || pull[e] > pull[next])) next = e;
            rank[next] = d;
            for (int32_t e = 0; e < E; e++)
                pull[e] += together[next * E + e] / (1 + (double)p->expert_load[e]);
        }
    }
    free(together);
    return COT_OK;
}

static void settle(own *o)
{
    cot_swaps_price(&o->swaps);
    cot_swaps_settle(&o->swaps);
}

/* Experts to where their tokens are and back, as long as it gains. */
static cot_status alternate(own *o, cot_cocluster *p, cot_error *error)
{
    cot_status status = COT_OK;
    for (int k = 0; status == COT_OK && k < ALTERNATIONS; k++) {
        const double before = o->swaps.value;
        status = cot_cocluster_expert_step(o->trial, p, o->swaps.token_rank, error);
        if (status != COT_OK || !memcmp(o->trial, o->swaps.rank, (size_t)p->E * sizeof *o->trial)) break;
        cot_swaps_set(&o->swaps, o->trial, NULL);
        settle(o);
        if (o->swaps.value <= before) break;
    }
    return status;
}

/* Swaps as long as they gain; settled if that may be worth more than `enough`. */
static void climb(own *o, double enough)
{
    for (int k = 0; k < ROUNDS && cot_swaps_improve(&o->swaps);) k++;
    if (o->swaps.most > enough) cot_swaps_settle(&o->swaps);
}

static void kick(own *o, const cot_cocluster *p, int64_t iteration)
{
    const uint64_t E = (uint64_t)p->E;
    const uint64_t swaps = 2 + draw(p, iteration, 0, 1 + E / 10);
    for (uint64_t k = 0; k < swaps; k++)
        for (uint64_t t = 0; t < 8; t++) {
            const int32_t a = (int32_t)draw(p, iteration, 1 + 32 * k + 2 * t, E);
            const int32_t b = (int32_t)draw(p, iteration, 2 + 32 * k + 2 * t, E);
            if (o->swaps.rank[a] == o->swaps.rank[b] || !cot_swaps_may(&o->swaps, a, b)) continue;
            cot_swaps_swap(&o->swaps, a, b);
            break;
        }
}

/* Where iteration `start` of those that do not kick begins. */
static cot_status begin_at(own *o, cot_cocluster *p, int64_t iteration, int64_t start, cot_error *error)
{
    cot_status status = COT_OK;
    if (start < 0) {
        memcpy(o->trial, p->expert_rank, (size_t)p->E * sizeof *o->trial); // those given have been offered
    } else if (start == 0) {
        status = grow(o->trial, p, error);
    } else {
        shuffle(o->trial, p, iteration);
    }
    if (status != COT_OK) return status;
    cot_swaps_set(&o->swaps, o->trial, NULL);
    settle(o);
    if (start >= 0 && p->E <= MATCH_EXPERTS) status = alternate(o, p, error);
    if (status == COT_OK && !cot_cocluster_is_within(p, o->swaps.rank)) {
        cot_cocluster_worth(p->worth, p, o->swaps.token_rank);
        memcpy(o->trial, o->swaps.rank, (size_t)p->E * sizeof *o->trial);
        cot_cocluster_mend(o->trial, p, p->worth);
        cot_swaps_set(&o->swaps, o->trial, NULL);
        cot_swaps_price(&o->swaps);
    }
    cot_swaps_pairs(&o->swaps);
    return status;
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    own *o = p->state;
    cot_status status = COT_OK;
    if (iteration && o->all.few) return cot_exhaustive_step(&o->all, p, error);
    const int64_t start = iteration - (p->options.start != NULL);
    if (start <= RANDOM_STARTS) {
        status = begin_at(o, p, iteration, start, error);
        if (status != COT_OK) return status;
    } else {
        cot_swaps_set(&o->swaps, o->home, o->home_price);
        kick(o, p, iteration);
        cot_swaps_price(&o->swaps);
    }
    const bool fresh = start <= RANDOM_STARTS;
    const double accept = fresh ? -1 : o->home_value - TOLERANCE * o->best_value;
    o->swaps.value = -1;
    climb(o, accept);
    o->since++;
    const bool best = o->swaps.value > o->best_value;
    if (best || (!fresh && o->swaps.value > accept)) {
        o->home_value = o->swaps.value;
        memcpy(o->home, o->swaps.rank, (size_t)p->E * sizeof *o->home);
        memcpy(o->home_price, o->swaps.price, (size_t)p->D * sizeof *o->home_price);
    }
    if (best) {
        o->best_value = o->swaps.value;
        o->since = 0;
        cot_swaps_pairs(&o->swaps);
        memcpy(o->best, o->home, (size_t)p->E * sizeof *o->best);
        memcpy(o->best_price, o->home_price, (size_t)p->D * sizeof *o->best_price);
        status = cot_cocluster_offer(p, o->swaps.rank, o->swaps.token_rank, error);
    } else if (o->since % BACK == 0) {
        o->home_value = o->best_value;
        memcpy(o->home, o->best, (size_t)p->E * sizeof *o->best);
        memcpy(o->home_price, o->best_price, (size_t)p->D * sizeof *o->best_price);
    }
    return status;
}

const cot_cocluster_method cot_cocluster_own = {
    {"coterie",
     "several starts, tokens at prices, priced swaps, again from its best; all groups where they are few"},
    begin,
    iterate,
    end,
};
