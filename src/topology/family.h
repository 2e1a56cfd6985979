/* Graphs from parameters: what every family is given. */
#ifndef COT_TOPOLOGY_FAMILY_H
#define COT_TOPOLOGY_FAMILY_H
#include "topology/graph.h"

/* Each parameter that some family knows; a family takes those that its row names. */
enum cot_parameter {
    COT_P_RANKS,
    COT_P_GPUS,
    COT_P_SERVERS,
    COT_P_LEAVES,
    COT_P_SPINES,
    COT_P_PODS,
    COT_P_ROUTERS,
    COT_P_Q,
    COT_P_DOMAIN,
    COT_P_PXN,
    COT_P_LATENCY,
    COT_P_BANDWIDTH,
    COT_P_NVLINK,
    COT_PARAMETERS
};

typedef struct cot_topology_size {
    double value[COT_PARAMETERS];
    int32_t ranks, gpus, n_servers; // ranks = gpus * n_servers
} cot_topology_size;

static inline int32_t cot_topology_parameter(const cot_topology_size *size, enum cot_parameter p)
{
    return (int32_t)size->value[p];
}

/* A network link with the spec's latency and bandwidth. */
static inline cot_topology_link cot_topology_size_link(const cot_topology_size *size, int32_t from,
                                                       int32_t to)
{
    return (cot_topology_link){from, to, 1, size->value[COT_P_LATENCY], size->value[COT_P_BANDWIDTH]};
}

/* Adds ranks and their servers, and tells the vertex of server i in servers[i]: each rank hangs on its server by a
 * link without hops. */
bool cot_topology_servers(cot_topology *graph, const cot_topology_size *size, int32_t *servers);
/* Hangs servers in order, `each` to a switch, on new switches labelled `label` i; the switches' vertices go to
 * `switches`, how many to `*count`. */
bool cot_topology_leaves(cot_topology *graph, const cot_topology_size *size, const int32_t *servers,
                         int32_t each, const char *label, int32_t *switches, int32_t *count);
/* Connects each of a[0..n) with each of b[0..m). */
bool cot_topology_bipartite(cot_topology *graph, const cot_topology_size *size, const int32_t *a, int32_t n,
                            const int32_t *b, int32_t m);

/* One function for each family; `scratch` has room for 3 (ranks + 2) numbers. */
typedef bool cot_topology_family_build(cot_topology *graph, const cot_topology_size *size, int32_t *scratch);
cot_topology_family_build cot_build_fattree, cot_build_fattree_sparse, cot_build_dragonfly,
    cot_build_dragonfly_sparse, cot_build_dragonfly_plus, cot_build_slimfly, cot_build_rail,
    cot_build_complete, cot_build_node;

#endif
