#include "topology/family.h"

bool cot_topology_servers(cot_topology *graph, const cot_topology_size *size, int32_t *servers)
{
    if (!cot_graph_ranks(graph, size->ranks)) return false;
    for (int32_t i = 0; i < size->n_servers; i++) {
        servers[i] = cot_graph_vertex(graph, "server %d", i);
        for (int32_t g = 0; g < size->gpus; g++) {
            int32_t rank = i * size->gpus + g;
            cot_graph_host(graph, rank, i);
            if (!cot_graph_cable(graph, cot_graph_inside(rank, servers[i], size->value[COT_P_NVLINK])))
                return false;
        }
    }
    return true;
}

bool cot_topology_leaves(cot_topology *graph, const cot_topology_size *size, const int32_t *servers,
                         int32_t each, const char *label, int32_t *switches, int32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < size->n_servers; i++) {
        if (i % each == 0) {
            switches[*count] = cot_graph_vertex(graph, "%s %d", label, *count);
            ++*count;
        }
        if (!cot_graph_cable(graph, cot_topology_size_link(size, servers[i], switches[*count - 1])))
            return false;
    }
    return true;
}

bool cot_topology_bipartite(cot_topology *graph, const cot_topology_size *size, const int32_t *a, int32_t n,
                            const int32_t *b, int32_t m)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < m; k++)
            if (!cot_graph_cable(graph, cot_topology_size_link(size, a[i], b[k]))) return false;
    return true;
}

bool cot_build_complete(cot_topology *graph, const cot_topology_size *size, int32_t *servers)
{
    if (!cot_topology_servers(graph, size, servers)) return false;
    for (int32_t i = 0; i + 1 < size->n_servers; i++)
        if (!cot_topology_bipartite(graph, size, servers + i, 1, servers + i + 1, size->n_servers - i - 1))
            return false;
    return true;
}

/* NVLink domains of one server, connected through its host. */
bool cot_build_node(cot_topology *graph, const cot_topology_size *size, int32_t *domains)
{
    int32_t n = 0;
    if (!cot_graph_ranks(graph, size->ranks)) return false;
    int32_t host = cot_graph_vertex(graph, "host");
    for (int32_t r = 0; r < size->ranks; r++) {
        if (r % cot_topology_parameter(size, COT_P_DOMAIN) == 0) {
            domains[n] = cot_graph_vertex(graph, "nvlink domain %d", n);
            if (!cot_graph_cable(graph, cot_topology_size_link(size, domains[n], host))) return false;
            n++;
        }
        cot_graph_host(graph, r, 0);
        if (!cot_graph_cable(graph, cot_graph_inside(r, domains[n - 1], size->value[COT_P_NVLINK])))
            return false;
    }
    return true;
}
