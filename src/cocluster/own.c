/* The method `coterie`. Starts are groups given and k-means, each followed by tokens to ranks and experts to tokens and by
 * swaps while that helps. From the best so far groups are annealed, again and again, each time cooled more slowly; after
 * each time there are new starts, for about as long: where groups are small, annealing does not leave the valley that it
 * begins in, and where they are large, starts end above the valleys' floors. An iteration is a start or one sweep of
 * annealing. Where all groups are few they are all tried. */
#include "cocluster/anneal.h"
#include "cocluster/exhaustive.h"
#include "cocluster/gram.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Temperatures, in what a swap loses in the mean when no swap gains: falling by the same factor each sweep, the last at
 * 0. (Between 0.1 and 0.3 down to 0.02 and 0.002 results differ by 0.2 % at most.) */
static const double hot = 0.15, cold = 0.005;
enum {
    FIRST_CYCLE = 12,
    ALTERNATIONS = 12,
    DESCENTS = 8,
    STARTS = 3,
    SHAKES = 512,
    SHAKES_A_TIME = 16,
    TRIES = 16,
    STREAMS = 64
};

/* Groups whose tokens are worth settling: those whose upper bound is above the best by half the least share of a bound
 * that settling has cost so far. */
static const double trusted = 0.5;

typedef struct own {
    cot_anneal now;
    int32_t *best;  // [E]
    int32_t *trial; // [E]
    double best_value, best_price[COT_TRACE_MAX_RANKS];
    double loss;         // of a swap, the mean
    double gap;          // the least share of `most` that tokens lost when they were settled
    int64_t step, cycle; // sweeps since the cycle began, and in all of it
    int64_t starts;      // that are left before the next cycle
    cot_exhaustive all;
    bool tried_all;
    int shakes; // since then
} own;

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    cot_status status = cot_gram_check(p, error);
    if (status != COT_OK) return status;
    own *o = p->state = calloc(1, sizeof *o);
    if (!o) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    o->best = malloc(2 * (size_t)p->E * sizeof *o->best);
    if (!o->best) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping");
    o->trial = o->best + p->E;
    o->best_value = -1;
    o->cycle = FIRST_CYCLE;
    o->starts = STARTS;
    o->gap = 1;
    cot_exhaustive_begin(&o->all, p);
    return cot_anneal_open(&o->now, p, error);
}

static void end(cot_cocluster *p)
{
    own *o = p->state;
    cot_anneal_close(&o->now);
    free(o->best);
    free(o);
}

/* Settles what may be better than the best, and offers what is. */
static void keep(own *o, cot_cocluster *p, int tries, int64_t iteration)
{
    if (o->now.most * (1 - trusted * o->gap) <= o->best_value) return;
    cot_anneal_settle(&o->now, tries, (uint64_t)iteration * STREAMS);
    o->gap = fmin(o->gap, fmax(0, 1 - o->now.value / o->now.most));
    if (o->now.value <= o->best_value) return;
    o->best_value = o->now.value;
    memcpy(o->best, o->now.rank, (size_t)p->E * sizeof *o->best);
    memcpy(o->best_price, o->now.price, (size_t)p->D * sizeof *o->best_price);
    cot_cocluster_offer(p, o->now.rank, o->now.token_rank);
}

/* Experts to where their tokens are and back, as long as it gains. */
static cot_status alternate(own *o, cot_cocluster *p, cot_error *error)
{
    cot_anneal_settle(&o->now, 0, 0);
    for (int k = 0; k < ALTERNATIONS; k++) {
        const double before = o->now.value;
        const cot_status status = cot_cocluster_expert_step(o->trial, p, o->now.token_rank, error);
        if (status != COT_OK || !memcmp(o->trial, o->now.rank, (size_t)p->E * sizeof *o->trial))
            return status;
        cot_anneal_set(&o->now, o->trial, o->now.price);
        cot_anneal_settle(&o->now, 0, 0);
        if (o->now.value <= before) return COT_OK;
    }
    return COT_OK;
}

/* Groups to begin with: those given, which have been offered, or k-means over how alike experts' tokens are. */
static cot_status begin_at(own *o, cot_cocluster *p, bool given, int64_t iteration, cot_error *error)
{
    cot_status status = COT_OK;
    if (given) {
        memcpy(o->trial, p->expert_rank, (size_t)p->E * sizeof *o->trial);
    } else {
        double *gram = malloc((size_t)p->E * (size_t)p->E * sizeof *gram);
        if (!gram) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for pairs of %d experts", p->E);
        cot_gram_of_tokens(gram, p, iteration % 3 == 2 ? -2 : -1); // three ways to see them
        if (iteration % 3 != 1) cot_gram_normalise(gram, (size_t)p->E);
        status = cot_gram_kmeans(o->trial, p, gram, p->options.seed, (uint64_t)iteration, error);
        free(gram);
    }
    if (status != COT_OK) return status;
    cot_anneal_set(&o->now, o->trial, NULL);
    if (!given) status = alternate(o, p, error);
    if (status != COT_OK) return status;
    if (!cot_cocluster_is_within(p, o->now.rank)) {
        cot_anneal_settle(&o->now, 0, 0);
        cot_cocluster_worth(p->worth, p, o->now.token_rank);
        memcpy(o->trial, o->now.rank, (size_t)p->E * sizeof *o->trial);
        cot_cocluster_mend(o->trial, p, p->worth);
        cot_anneal_set(&o->now, o->trial, NULL);
    }
    for (int k = 0; k < DESCENTS; k++) {
        const double before = o->now.most;
        o->loss = cot_anneal_sweep(&o->now, 0, iteration);
        if (o->now.most <= before * 1.0005) break;
    }
    keep(o, p, 1, iteration);
    return COT_OK;
}

/* The best groups' tokens again, from prices a little off: which heavy tokens fit is luck. */
static void shake(own *o, cot_cocluster *p, int64_t iteration)
{
    double price[COT_TRACE_MAX_RANKS];
    cot_anneal_set(&o->now, p->expert_rank, NULL);
    memcpy(price, o->now.price, (size_t)p->D * sizeof *price);
    for (uint64_t k = 0, at = 0; k < SHAKES_A_TIME; k++) {
        for (int32_t d = 0; d < p->D; d++)
            o->now.price[d] =
                price[d] * (0.9 + 0.2 * cot_random_uniform(p->options.seed, (uint64_t)iteration, at++));
        cot_anneal_settle(&o->now, 2, (uint64_t)iteration * STREAMS + 2 * k);
        if (o->now.value > (double)p->best.local + p->best.bonus)
            cot_cocluster_offer(p, o->now.rank, o->now.token_rank);
    }
    o->shakes += SHAKES_A_TIME;
}

/* All groups, then the best of them again and again. */
static void try_all(own *o, cot_cocluster *p, int64_t iteration)
{
    if (o->tried_all) {
        shake(o, p, iteration);
        p->done = o->shakes >= SHAKES;
        return;
    }
    cot_exhaustive_step(&o->all, p);
    o->tried_all = p->done;
    p->done = false;
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    own *o = p->state;
    if (!iteration && p->options.start) return begin_at(o, p, true, iteration, error);
    if (o->starts) {
        o->starts--;
        return begin_at(o, p, false, iteration, error);
    }
    if (o->all.few) {
        try_all(o, p, iteration);
        return COT_OK;
    }
    if (!o->step) {
        cot_anneal_set(&o->now, o->best, o->best_price);
        keep(o, p, TRIES, iteration);
    }
    const bool last = ++o->step == o->cycle;
    const double done = (double)o->step / (double)o->cycle;
    cot_anneal_sweep(&o->now, last ? 0 : fmax(0, o->loss) * hot * pow(cold / hot, done), iteration);
    keep(o, p, 2, iteration);
    if (!last) return COT_OK;
    o->starts = o->cycle / DESCENTS;
    o->step = 0;
    o->cycle += o->cycle / 3;
    return COT_OK;
}

const cot_cocluster_method cot_cocluster_own = {
    {"coterie",
     "k-means, then swaps of experts at the tokens' prices, annealed; all groups where they are few"},
    begin,
    iterate,
    end,
};
