/* Groups for all layers of a model at once: each layer solved, on nodes or flat, then for staying in place if that is
 * asked, then its ranks named, or seated on a topology. What coterie/group.h, group_nodes.h and group_layers.h do step by
 * step. Pure: no clock, the same groups for the same seed and number of iterations. */
#ifndef COTERIE_GROUP_SOLVE_H
#define COTERIE_GROUP_SOLVE_H

#include "coterie/group_layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_group_solve_options {
    size_t size;             // sizeof(cot_group_solve_options)
    cot_group_options group; // of every layer; its `bonus` and `start` are NULL
    /* Rounds, of one iteration of all layers; 0: until `proceed` says no. With nodes one round with so many iterations
     * of each node's grouper; 0: rounds of 8 from other seeds until `proceed` says no, one where there is none. */
    int64_t iterations;
    int32_t threads; // over layers, >= 1
    int32_t nodes;   // above 1: experts over nodes first, then over each node's ranks; divides the ranks
    double cost_in,
        cost_out; // with nodes: of an activation within a node and between two, see cot_nodes_options
    /* Above 0: experts are grouped for rows shrunk with this prior (cot_affinity_shrink), then tokens as they were counted go
     * to ranks for these groups; what is said of the groups is of the counts. Neither with nodes nor jointly. */
    double shrink;
    bool joint;         // then groups for both: local activations, and tokens that stay from layer to layer
    double stay_weight; // of the latter, see cot_joint_options
    const double *
        distance; // [D][D] between ranks: groups are seated so that traffic goes short ways. NULL: with nodes
                  // the two costs, else ranks are named so that most tokens stay where they are
    double move_weight; // of a token's move beside a call, where groups are seated; 1 / K counts rows
    /* Asked before every round, `done` of `all` being made (`all` 0: `iterations` does not say): false ends the rounds,
     * but not before the first. With nodes and iterations told of layers, the answer not heeded. NULL: always go on. */
    bool (*proceed)(void *context, int64_t done, int64_t all);
    void *context; // passed to proceed
} cot_group_solve_options;

/* The groups of all layers, and what they are worth: of each layer as cot_grouper_best says it (no `bonus`, with nodes no
 * `expert_peak_bound` and `token_limit`; `bound` and `proven` are of local activations alone, also where the aim is
 * another), and together. The arrays belong to it; all zero is empty. */
typedef struct cot_group_solution {
    cot_layer_groups groups;
    cot_grouping *layer;            // [L]
    int64_t iterations;             // that were made
    double lar, lar_bound;          // ratios of all layers' sums
    double token_peak, expert_peak; // means of the layers'
    double stay, stay_before; // share of load that stays on its rank from layer to layer, and before naming
    bool seated;              // by distances:
    double distance, distance_before; // that all traffic goes, and before seating; 0 unless seated
    double cost;                      // of a mean activation, layer by layer, with nodes; else 0
} cot_group_solution;

/* Groups. Errors: INVALID_ARGUMENT (options), UNSUPPORTED (see the method), OUT_OF_MEMORY. On failure `*solution` is
 * empty; on success the caller frees it. */
cot_status cot_group_solve(cot_group_solution *solution, const cot_affinities *affinities,
                           const cot_group_solve_options *options, cot_error *error);
void cot_group_solution_free(cot_group_solution *solution); // an empty one is fine

#ifdef __cplusplus
}
#endif
#endif
