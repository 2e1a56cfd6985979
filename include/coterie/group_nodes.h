/* Token-expert co-clustering where ranks share nodes: experts over nodes first, then over each node's ranks, with what an
 * activation costs that leaves its rank, or its node. Rank d is on node d / (D / nodes). Pure, as coterie/group.h. */
#ifndef COTERIE_GROUP_NODES_H
#define COTERIE_GROUP_NODES_H

#include "coterie/group.h"
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_nodes_options {
    size_t size;             // sizeof(cot_nodes_options)
    cot_group_options group; // of all ranks; its `bonus` and `start` are NULL
    int32_t nodes;           // 1 .. ranks, divides them
    double cost_in;          // of an activation on another rank of the token's node, 0 .. cost_out, any unit
    double cost_out;         // of one on another node, > 0; one on the token's own rank costs 0
    int64_t iterations;      // >= 1, of the grouper of nodes, and of each node's
} cot_nodes_options;

/* What groups cost. */
typedef struct cot_nodes_value {
    /* Activations on the token's rank, elsewhere on its node, and all; LAR = local / total. */
    uint64_t local, in_node, total;
    double cost;                    // of a mean activation
    double token_peak, expert_peak; // loads of the busiest rank's tokens and experts over the mean
} cot_nodes_value;

/* Groups that cot_group_hierarchically found. The arrays belong to it; all zero is empty. */
typedef struct cot_nodes_grouping {
    int32_t *expert_rank; // [E]
    int32_t *token_rank;  // [N]
    cot_nodes_value value;
    double bound;  // no groups have more local activations
    bool feasible; // both limits are met, rank by rank
    bool proven;   // none have more local activations; there may be cheaper ones
} cot_nodes_grouping;

/* Counts what any groups cost, `expert_rank` [E] and `token_rank` [N] being 0 .. D-1: how flat ones compare. Of `options`
 * the ranks, nodes and costs are used. Errors: INVALID_ARGUMENT (options). */
cot_status cot_nodes_value_of(cot_nodes_value *value, const cot_affinity *affinity,
                              const int32_t *expert_rank, const int32_t *token_rank,
                              const cot_nodes_options *options, cot_error *error);

/* Groups a layer: cot_grouper with as many ranks as nodes, then one for each node's experts and the tokens sent there,
 * then both token and expert steps over all ranks with the two costs for as long as they lower the cost. Every rank has
 * E / D experts, up or down. Errors: INVALID_ARGUMENT (options, no activations), UNSUPPORTED (see the method),
 * OUT_OF_MEMORY. On failure `*grouping` is empty; on success the caller frees it. */
cot_status cot_group_hierarchically(cot_nodes_grouping *grouping, const cot_affinity *affinity,
                                    const cot_nodes_options *options, cot_error *error);
void cot_nodes_grouping_free(cot_nodes_grouping *grouping); // an empty one is fine

#ifdef __cplusplus
}
#endif
#endif
