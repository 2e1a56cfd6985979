/* Token-expert co-clustering (Speculative MoE, section 3.4): experts and tokens into as many groups as there are
 * ranks, so that most of what a token calls sits where the token is sent.
 *
 *     cot_affinities_count   how often each token called each expert, layer by layer, from a trace
 *     cot_grouper_open       a layer's problem and a way to solve it
 *     cot_grouper_iterate    looks for better groups; as many iterations as the caller has time for
 *     cot_grouper_best       the best groups so far, and what no groups can exceed
 *
 * All of it is pure: no clock, no files, the same groups for the same seed and number of iterations. */
#ifndef COTERIE_GROUP_H
#define COTERIE_GROUP_H

#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What each token called in one layer, sparse. A token's load is the sum of its row. */
typedef struct cot_affinity {
    int32_t n_experts;      // E, 1 .. COT_TRACE_MAX_EXPERTS
    int64_t n_tokens;       // N, rows
    const int64_t *offsets; // [N+1] from 0, never falling
    const uint16_t *expert; // [offsets[N]] ascending within a row
    const uint32_t *count;  // [offsets[N]] activations, > 0
} cot_affinity;

/* All layers' affinity; the rows are the same tokens in every layer. The arrays belong to it; all zero is empty. */
typedef struct cot_affinities {
    int32_t n_layers, n_experts;
    int64_t n_tokens;
    int32_t *token_ids; // [N] ascending ids of the vocabulary; NULL where rows are positions (no id is known)
    int64_t *positions; // [N] the trace's tokens, where rows are positions; or NULL
    cot_affinity *layer; // [L]
} cot_affinities;

/* Counts a trace's activations by token id; tokens of unknown id are left out, unless none is known: then every
 * position is a row of its own. `chosen` [S], of a trace of kind tokens, says which sequences count (0: not); NULL is
 * all. Errors: INVALID_ARGUMENT (nothing is left to count), OUT_OF_MEMORY. The caller frees. */
cot_status cot_affinities_count(cot_affinities *affinities, const cot_trace *trace, const uint8_t *chosen,
                                cot_error *error);
void cot_affinities_free(cot_affinities *affinities); // empty ones are fine

/* What a layer's tokens would call if they were seen more often, as far as one can tell (shrinkage): a row of n activations
 * becomes n / (n + prior) parts itself and prior / (n + prior) parts the layer's shares of experts, in finer units than
 * activations (16 for one, fewer where a row is very heavy), rounded. Groups made for these rows follow accidents of rare
 * tokens less. Errors: INVALID_ARGUMENT (a prior not above 0), OUT_OF_MEMORY. cot_affinity_free frees it. */
cot_status cot_affinity_shrink(cot_affinity *shrunk, const cot_affinity *affinity, double prior,
                               cot_error *error);
void cot_affinity_free(cot_affinity *affinity); // of cot_affinity_shrink; an empty one is fine

/* A way to group. */
typedef struct cot_group_method {
    const char *name;
    const char *text; // what it does, one line
} cot_group_method;
/* All of them, "coterie" first; ends with a NULL name. */
extern const cot_group_method cot_group_methods[];

typedef struct cot_group_options {
    size_t size;        // sizeof(cot_group_options)
    const char *method; // one of cot_group_methods; NULL: "coterie"
    int32_t ranks;      // D, 1 .. min(E, COT_TRACE_MAX_RANKS): every rank has E / D experts, up or down
    /* f >= 0: the load of no rank's tokens is above (1 + f) times the mean, as far as tokens can be divided so: see
     * token_limit of cot_grouping. The heaviest single token always fits. */
    double token_balance;
    double expert_load; // limit of the load of a rank's experts over the mean, >= 1; 0: none
    uint64_t seed;
    /* For grouping layers jointly: what a token gains by being on a rank, beside its local activations, in the same
     * unit, [N][D], >= 0; NULL: nothing. Must outlive the grouper. */
    const float *bonus;
    /* [E] groups to begin with besides the method's own, of sizes as above, or NULL. Copied. */
    const int32_t *start;
} cot_group_options;

/* Groups of one layer, and their worth. */
typedef struct cot_grouping {
    const int32_t *expert_rank; // [E]
    const int32_t *token_rank;  // [N]
    uint64_t local, total;      // activations on their token's rank, and all: LAR = local / total
    double bonus;               // sum of the bonuses had
    double bound;               // no groups have more local + bonus (token balance and sizes obeyed)
    double token_peak;          // load of the busiest rank's tokens over the mean
    double expert_peak;         // load of the busiest rank's experts over the mean
    double expert_peak_bound;   // no groups of these sizes have a smaller expert_peak
    /* What token_peak was held to: 1 + token_balance, or what the heaviest token has, or what dealing tokens heaviest first
     * to the emptiest rank comes to, where that is more. */
    double token_limit;
    /* Both limits are met, that of tokens as it was asked or with what the heaviest token has; else these are the smallest
     * peaks found. */
    bool feasible;
    bool proven;        // optimal: nothing is left to look for
    int64_t iterations; // that the grouper has made
} cot_grouping;

typedef struct cot_grouper cot_grouper;

/* Begins to group a layer; the affinity must outlive the grouper. Errors: INVALID_ARGUMENT (options, no
 * activations), OUT_OF_MEMORY. The caller closes it. One thread at a time may use one grouper. */
cot_status cot_grouper_open(cot_grouper **grouper, const cot_affinity *affinity,
                            const cot_group_options *options, cot_error *error);
/* Makes `iterations` more, fewer once the method has nothing left to try. Errors: OUT_OF_MEMORY, UNSUPPORTED (METIS; the
 * best so far stays). While METIS runs, SIGTERM and SIGABRT are METIS's: this thread makes them wait, and others of the
 * program should. */
cot_status cot_grouper_iterate(cot_grouper *grouper, int64_t iterations, cot_error *error);
/* The same for `n` groupers, of the layers of a model, on `threads` threads. Errors: as above, those of the first grouper that
 * fails. */
cot_status cot_groupers_iterate(cot_grouper **groupers, int32_t n, int64_t iterations, int32_t threads,
                                cot_error *error);
/* Whether the method has nothing left to try. */
bool cot_grouper_is_done(const cot_grouper *grouper);
/* The best so far, there from the first iteration on; its arrays are the grouper's and hold until the next call. */
void cot_grouper_best(cot_grouping *grouping, const cot_grouper *grouper);
void cot_grouper_close(cot_grouper *grouper); // NULL is fine

#ifdef __cplusplus
}
#endif
#endif
