/* Groups of routers with few links between groups. */
#include "topology/family.h"

/* Groups of routers, all of a group connected; the first router of each group is its gateway. */
static bool groups(cot_topology *graph, const cot_topology_size *size, int32_t *scratch, bool ring)
{
    int32_t *servers = scratch, *routers = scratch + size->ranks + 2, n,
            each = cot_topology_parameter(size, COT_P_ROUTERS);
    if (!cot_topology_servers(graph, size, servers) ||
        !cot_topology_leaves(graph, size, servers, cot_topology_parameter(size, COT_P_SERVERS), "router",
                             routers, &n))
        return false;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = i + 1; k < n && k / each == i / each; k++)
            if (!cot_graph_cable(graph, cot_topology_size_link(size, routers[i], routers[k]))) return false;
    int32_t n_groups = (n + each - 1) / each;
    for (int32_t a = 0; a < n_groups; a++)
        for (int32_t b = a + 1; b < n_groups; b++) {
            bool neighbours = b == a + 1 || (a == 0 && b == n_groups - 1);
            if ((!ring || neighbours) &&
                !cot_graph_cable(graph, cot_topology_size_link(size, routers[a * each], routers[b * each])))
                return false;
        }
    return true;
}

bool cot_build_dragonfly(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    return groups(graph, size, scratch, false);
}

bool cot_build_dragonfly_sparse(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    return groups(graph, size, scratch, true);
}

/* Each group is leaves and spines, all connected; one cable for each pair of groups, dealt to the spines in turn. */
bool cot_build_dragonfly_plus(cot_topology *graph, const cot_topology_size *size, int32_t *scratch)
{
    int32_t room = size->ranks + 2, *servers = scratch, *leaves = scratch + room, n;
    int32_t each = cot_topology_parameter(size, COT_P_LEAVES),
            n_spines = cot_topology_parameter(size, COT_P_SPINES);
    if (!cot_topology_servers(graph, size, servers) ||
        !cot_topology_leaves(graph, size, servers, cot_topology_parameter(size, COT_P_SERVERS), "leaf",
                             leaves, &n))
        return false;
    int32_t n_groups = (n + each - 1) / each, first = graph->n_vertices;
    for (int32_t g = 0; g < n_groups; g++) {
        int32_t in_group = n - g * each < each ? n - g * each : each;
        for (int32_t i = 0; i < n_spines; i++) {
            int32_t spine = cot_graph_vertex(graph, "spine %d of group %d", i, g);
            if (spine < 0 || !cot_topology_bipartite(graph, size, leaves + g * each, in_group, &spine, 1))
                return false;
        }
    }
    for (int32_t a = 0; a < n_groups; a++)
        for (int32_t b = a + 1; b < n_groups; b++)
            if (!cot_graph_cable(graph,
                                 cot_topology_size_link(size, first + a * n_spines + (b - 1) % n_spines,
                                                        first + b * n_spines + a % n_spines)))
                return false;
    return true;
}
