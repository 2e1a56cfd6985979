/* Where experts live: topology-aware placement of a Mixture-of-Experts model's experts on the ranks of a cluster.
 *
 * A load and a topology make a problem; a method makes a map of it; the verifier says what the map is worth:
 *
 *     cot_costs_open      what it costs that a rank serves an expert: distances seen from the attention's ranks
 *     cot_place           a map, by one of cot_place_methods, with a lower bound where the method proves one
 *     cot_place_verify    every constraint checked again, the objective and the bound computed anew
 *
 * All of it is pure: no clock, no files, no global state, the same result for the same input. */
#ifndef COTERIE_PLACE_H
#define COTERIE_PLACE_H

#include "coterie/load.h"
#include "coterie/placement.h"
#include "coterie/status.h"
#include "coterie/topology.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a layer's tokens come from and go to. */
typedef enum cot_attention_kind {
    COT_ATTENTION_PAPER, // all from one rank, all to one: the set-up inferred from the paper's tables. The l-th layer
    // with load is sent by the first rank of server l (modulo servers) and collected by the next
    // one's sender
    COT_ATTENTION_DP,     // every rank sends in every layer, and gets its own back: data-parallel attention
    COT_ATTENTION_WEIGHTS // rank r sends dispatch[l][r] and gets collect[l][r] of every activation
} cot_attention_kind;

/* Costs of a load's layers with load: the objective is
 *
 *     sum_le load(l,e) cost(l,s)       cost(l,s) = sum_r dispatch(l,r) d(r,s) + collect(l,r) d(s,r)
 *     sum_le pair(l,e,s)               pair(l,e,s) = sum_r n(l,r,e) (d(r,s) + d(s,r)), where sources are known
 *
 * Arrays belong to it; all zero is empty. */
typedef struct cot_costs {
    int32_t n_layers;  // L: layers with load alone
    int32_t n_experts; // E
    int32_t n_ranks;   // S
    int32_t *row;      // [L] the load's row of each
    int32_t *layers;   // [L] the model's number of each
    double *load;      // [L][E] summed over sources
    double *cost;      // [L][S] of one activation; NULL when pair is given
    double *pair;      // [L][E][S] of all of an expert's activations, or NULL
    bool indifferent;  // every rank costs the same in every layer: all placements tie
} cot_costs;

typedef struct cot_costs_options {
    size_t size; // sizeof(cot_costs_options)
    cot_attention_kind attention;
    cot_metric metric;
    const double *dispatch, *collect; // [layers of the load][S], >= 0; of COT_ATTENTION_WEIGHTS
    const double
        *cost; // [layers of the load][S], >= 0: used as it is, instead of topology and attention; or NULL
    int32_t n_ranks; // S, where `cost` is given
} cot_costs_options;

/* Computes the costs of `load` on `topology` (NULL when options->cost is given). Errors: INVALID_ARGUMENT, MALFORMED
 * (a topology in pieces, sources that are not its ranks), OUT_OF_MEMORY. The caller frees. */
cot_status cot_costs_open(cot_costs *costs, const cot_load_counts *load, const cot_topology *topology,
                          const cot_costs_options *options, cot_error *error);
void cot_costs_free(cot_costs *costs); // empty ones are fine

#ifdef __cplusplus
}
#endif
#endif
