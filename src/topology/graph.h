/* Building a topology: vertices and links in any order, then one check that everything fits together. */
#ifndef COT_TOPOLOGY_GRAPH_H
#define COT_TOPOLOGY_GRAPH_H
#include "coterie/topology.h"

struct cot_topology_owner {
    char *name;
    char **labels;
    cot_topology_link *links;
    int64_t room_links;
    int32_t room_vertices;
    int32_t *host;
    int64_t *first;      // [V+1] links of vertex v are [first[v], first[v+1])
    int64_t *into;       // [n_links] links by their end
    int64_t *into_first; // [V+1]
};

/* Starts an empty topology. Errors: OUT_OF_MEMORY. Whoever starts one frees it, on failure too. */
cot_status cot_graph_start(cot_topology *graph, const char *name, cot_error *error);
/* Adds a vertex; ranks come first. Returns its number, or -1 when out of memory or at the limit. */
int32_t cot_graph_vertex(cot_topology *graph, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds `n` ranks labelled "rank 0", ... before any other vertex. */
bool cot_graph_ranks(cot_topology *graph, int32_t n);
/* Adds a link in one direction, or in both; false when out of memory or at the limit. */
bool cot_graph_link(cot_topology *graph, cot_topology_link link);
bool cot_graph_cable(cot_topology *graph, cot_topology_link link);
/* Says on which server a rank sits. */
void cot_graph_host(cot_topology *graph, int32_t rank, int32_t host);
/* Ends building: sorts the links and indexes them. `built` false stands for a call above that failed. Ranks that
 * nobody said the server of get one each. Errors: MALFORMED (no rank), OUT_OF_MEMORY. */
cot_status cot_graph_finish(cot_topology *graph, bool built, cot_error *error);

/* A link inside a server: no hop, the fast interconnect's figures. */
static inline cot_topology_link cot_graph_inside(int32_t from, int32_t to, double bandwidth_gbps)
{
    return (cot_topology_link){from, to, 0, 0.5, bandwidth_gbps};
}

/* A tie that nothing is counted for: of a rank to the vertex that stands for its server, its adapter or its node. */
static inline cot_topology_link cot_graph_tie(int32_t from, int32_t to)
{
    return (cot_topology_link){from, to, 0, 0, __builtin_inf()};
}

#endif
