/* Trees of switches: fat trees, and rails of GPUs. */
#include "topology/family.h"

/* Pods of leaves with `spines` switches above each, and spines^2 cores above those: spine i of every pod meets cores
 * i * spines to (i + 1) * spines - 1. With two halves each has cores of its own, tied by a link to a bridge switch of
 * its core index. */
static bool tree(cot_topology *graph, const cot_topology_size *size, int32_t *scratch, int32_t halves)
{
    int32_t *servers = scratch, *leaves = scratch + size->ranks + 2, n_leaves;
    int32_t each = cot_topology_parameter(size, COT_P_LEAVES),
            spines = cot_topology_parameter(size, COT_P_SPINES), pod[256];
    if (!cot_topology_servers(graph, size, servers) ||
        !cot_topology_leaves(graph, size, servers, cot_topology_parameter(size, COT_P_SERVERS), "leaf",
                             leaves, &n_leaves))
        return false;
    int32_t n_pods = (n_leaves + each - 1) / each;
    int32_t first_core = graph->n_vertices; // [halves][spines][spines]
    for (int32_t h = 0; h < halves; h++)
        for (int32_t i = 0; i < spines * spines; i++)
            if (cot_graph_vertex(graph, halves > 1 ? "core %d of half %d" : "core %d", i, h) < 0)
                return false;
    for (int32_t p = 0; p < n_pods; p++) {
        int32_t half = (int32_t)((int64_t)p * halves / n_pods), from = p * each;
        int32_t n = n_leaves - from < each ? n_leaves - from : each;
        for (int32_t i = 0; i < spines; i++) {
            int32_t core = first_core + (half * spines + i) * spines;
            pod[i] = cot_graph_vertex(graph, "spine %d of pod %d", i, p);
            for (int32_t k = 0; k < spines; k++)
                if (!cot_graph_cable(graph, cot_topology_size_link(size, pod[i], core + k))) return false;
        }
        if (!cot_topology_bipartite(graph, size, leaves + from, n, pod, spines)) return false;
    }
    for (int32_t i = 0; halves > 1 && i < spines * spines; i++) {
        int32_t bridge = cot_graph_vertex(graph, "bridge %d", i), other = first_core + spines * spines + i;
        if (!cot_graph_cable(graph, cot_topology_size_link(size, first_core + i, bridge)) ||
            !cot_graph_cable(graph, cot_topology_size_link(size, other, bridge)))
            return false;
    }
    return true;
}

bool cot_build_fattree(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    return tree(graph, size, scratch, 1);
}

bool cot_build_fattree_sparse(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    return tree(graph, size, scratch, 2);
}

/* Rank g of each server hangs on leaf g of its unit; spines above all leaves. NVLink ties the ranks of a server. */
bool cot_build_rail(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    int32_t *servers = scratch, *leaves = scratch + size->ranks + 2, n_leaves = 0, spines[256];
    if (!cot_topology_servers(graph, size, servers)) return false;
    graph->ranks_forward = cot_topology_parameter(size, COT_P_PXN);
    for (int32_t i = 0; i < size->n_servers; i++) {
        int32_t unit = i / cot_topology_parameter(size, COT_P_SERVERS);
        for (int32_t g = 0; g < size->gpus; g++) {
            if (i % cot_topology_parameter(size, COT_P_SERVERS) == 0)
                leaves[n_leaves++] = cot_graph_vertex(graph, "leaf %d of unit %d", g, unit);
            if (!cot_graph_cable(
                    graph, cot_topology_size_link(size, i * size->gpus + g, leaves[unit * size->gpus + g])))
                return false;
        }
    }
    for (int32_t i = 0; i < cot_topology_parameter(size, COT_P_SPINES); i++)
        spines[i] = cot_graph_vertex(graph, "spine %d", i);
    return cot_topology_bipartite(graph, size, leaves, n_leaves, spines,
                                  cot_topology_parameter(size, COT_P_SPINES));
}
