/* Groups of neighbouring layers, brought together (Speculative MoE, section 3.3; ExFlow): how a layer's ranks are called
 * is free, so they are named such that a token's rank in the next layer is the one it is on.
 *
 *     cot_layer_groups            the groups that cot_grouper found, layer by layer
 *     cot_layer_groups_map        the placement that they are
 *     cot_layer_traffic_count     what moves between ranks within layers and from layer to layer
 *     cot_layer_traffic_align     names for each layer's ranks so that most stays
 *     cot_layer_traffic_seat      the same on a topology: ranks for each layer's groups so that distances are small
 *     cot_layer_groups_improve    groups and names together
 *
 * All of it is pure: no clock, no files, the same result for the same input. */
#ifndef COTERIE_GROUP_LAYERS_H
#define COTERIE_GROUP_LAYERS_H

#include "coterie/group.h"
#include "coterie/placement.h"
#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks of all layers' experts and tokens. The arrays belong to it; all zero is empty. */
typedef struct cot_layer_groups {
    int32_t n_layers, n_experts, n_ranks; // L, E, D
    int64_t n_tokens;                     // N
    int32_t *expert_rank;                 // [L][E]
    int32_t *token_rank;                  // [L][N]
} cot_layer_groups;

/* Room for groups of all layers of `affinities`, everything on rank 0. Errors: INVALID_ARGUMENT (`ranks` not 1 ..
 * min(E, COT_TRACE_MAX_RANKS)), OUT_OF_MEMORY. The caller frees. */
cot_status cot_layer_groups_new(cot_layer_groups *groups, const cot_affinities *affinities, int32_t ranks,
                                cot_error *error);
void cot_layer_groups_free(cot_layer_groups *groups); // empty ones are fine
/* Copies a layer's groups, `expert_rank` [E] and `token_rank` [N], 0 .. D-1 each, into layer l. */
void cot_layer_groups_set(cot_layer_groups *groups, int32_t l, const int32_t *expert_rank,
                          const int32_t *token_rank);
/* Rank d of layer l becomes names[l][d]; `names` [L][D], a permutation in each layer. */
void cot_layer_groups_rename(cot_layer_groups *groups, const int32_t *names);

/* The placement that the groups are: every rank's experts in ascending order, as many slots a rank as the fullest needs.
 * `layers` [L] the model's numbers; NULL: 0, 1, ... Errors: INVALID_ARGUMENT (no groups), OUT_OF_MEMORY. The caller
 * frees the map. */
cot_status cot_layer_groups_map(cot_expert_map *map, const cot_layer_groups *groups, const int32_t *layers,
                                cot_error *error);

/* What goes from rank to rank. The arrays belong to it; all zero is empty. */
typedef struct cot_layer_traffic {
    int32_t n_layers, n_ranks; // L, D
    double *calls;             // [L][D][D] activations in a layer: row the token's rank, column the expert's
    double *moves; // [L-1][D][D] from layer l to l + 1: row the rank in l, column the rank in l + 1
} cot_layer_traffic;

/* Counts the traffic of `groups`, made for these affinities. A token moves with its load, the mean of what it has in the
 * two layers. Errors: INVALID_ARGUMENT (sizes that differ), OUT_OF_MEMORY. The caller frees. */
cot_status cot_layer_traffic_count(cot_layer_traffic *traffic, const cot_layer_groups *groups,
                                   const cot_affinities *affinities, cot_error *error);
/* ExFlow's special case: moves are transitions of experts, one from each of a token's experts in layer l to each in l
 * + 1, of all tokens in the trace, or of the sequences that `chosen` [S] says (0: not); nothing is called. Ranks of
 * tokens are not looked at. Errors: INVALID_ARGUMENT (a trace of counts, sizes that differ), OUT_OF_MEMORY. The
 * caller frees. */
cot_status cot_layer_traffic_count_trace(cot_layer_traffic *traffic, const cot_layer_groups *groups,
                                         const cot_trace *trace, const uint8_t *chosen, cot_error *error);
void cot_layer_traffic_free(cot_layer_traffic *traffic); // an empty one is fine

/* The share of moves that stay on their rank, 0 to 1, once ranks are renamed by `names` [L][D] (NULL: as they are); 1
 * where nothing moves. */
double cot_layer_traffic_stay(const cot_layer_traffic *traffic, const int32_t *names);

/* Names with which most stays: the largest assignment between each two layers, applied along the chain; that is the
 * optimum. Layer 0 keeps its names. `size` [L][D], unless NULL: ranks of unequal size are not exchanged, so that every
 * name keeps its size (where the sizes of layers are the same up to order). `names` [L][D]. Errors: OUT_OF_MEMORY. */
cot_status cot_layer_traffic_align(int32_t *names, const cot_layer_traffic *traffic, const int32_t *size,
                                   cot_error *error);

/* Distances, and what counts how much. */
typedef struct cot_seat_options {
    size_t size;            // sizeof(cot_seat_options)
    const double *distance; // [D][D] from row to column, >= 0, as cot_topology_distances writes them
    /* What a unit of moves weighs beside a call, >= 0. A token with a load of K activations moves as one row, so that
     * 1 / K counts rows. */
    double move_weight;
    int32_t starts; // >= 1: beginnings that the search is run from
    uint64_t seed;
} cot_seat_options;

/* The distance that all traffic goes when group d of layer l sits on rank names[l][d] (NULL: where it is): calls go there
 * and back, moves one way. */
double cot_layer_traffic_distance(const cot_layer_traffic *traffic, const cot_seat_options *options,
                                  const int32_t *names);
/* Seats each layer's groups so that this distance is small: a quadratic assignment problem a layer, tied to its
 * neighbours. Local search from the present seats, from the aligned ones (cot_layer_traffic_align) and from drawn ones:
 * exchanges of two ranks in any set of layers at once (the best set, by dynamic programming) and assignments of a whole
 * layer. Never worse than the present seats. `names` [L][D]; `*distance`, unless NULL, what it comes to. Errors:
 * INVALID_ARGUMENT (options), OUT_OF_MEMORY. */
cot_status cot_layer_traffic_seat(int32_t *names, double *distance, const cot_layer_traffic *traffic,
                                  const cot_seat_options *options, cot_error *error);

typedef struct cot_joint_options {
    size_t size;             // sizeof(cot_joint_options)
    cot_group_options group; // of every layer; its `bonus` and `start` are NULL
    /* What a unit of load that stays on its rank is worth, in local activations, >= 0. */
    double stay_weight;
    int32_t rounds;     // >= 0, over all layers; ends early where a round finds nothing
    int64_t iterations; // of a layer's grouper in each round, >= 1
} cot_joint_options;

/* What groups are worth together. */
typedef struct cot_layer_value {
    uint64_t local, total; // activations on their token's rank, and all
    double stays, moves;   // load that stays on its rank from layer to layer, and all
    double joint;          // local + stay_weight * stays
} cot_layer_value;

/* Improves the groups of all layers for both aims: renames ranks, then solves one layer after the other anew with a bonus
 * for staying with its neighbours, and again. The best local + stay_weight * stays is kept; it never falls below what
 * renaming alone gives. `groups` in: feasible ones of each layer. On failure they are valid, but may be of any round.
 * `*value`, unless NULL, what they are worth. Errors: INVALID_ARGUMENT (options, sizes), OUT_OF_MEMORY. */
cot_status cot_layer_groups_improve(cot_layer_groups *groups, cot_layer_value *value,
                                    const cot_affinities *affinities, const cot_joint_options *options,
                                    cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
