#include "topology/graph.h"
#include "topology/paths.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* A link lies on a shortest route to the destination: its end is nearer by exactly its length, and may forward. */
static bool on_route(const cot_topology *t, const double *to_go, const cot_topology_link *link,
                     int32_t destination)
{
    bool forwards = link->to >= t->n_ranks || link->to == destination || t->ranks_forward;
    return forwards && to_go[link->to] + link->hops * COT_PATHS_HOP + 1 == to_go[link->from];
}

/* All traffic to one rank flows down its tree of shortest routes, the farthest vertices first. */
static cot_status send_to(double *load, double *flow, const cot_paths *paths, const cot_topology *t,
                          const double *traffic, int32_t destination, cot_error *error)
{
    const struct cot_topology_owner *o = t->owner;
    for (int32_t v = 0; v < t->n_vertices; v++) flow[v] = 0;
    for (int32_t r = 0; r < t->n_ranks; r++) {
        flow[r] = traffic[(size_t)r * (size_t)t->n_ranks + (size_t)destination];
        if (flow[r] > 0 && !isfinite(paths->best[r]))
            return cot_fail(error, COT_MALFORMED,
                            "topology '%s' is not connected: no route from '%s' to '%s'", t->name,
                            t->labels[r], t->labels[destination]);
    }
    for (int32_t i = paths->n_order - 1; i > 0; i--) {
        int32_t v = paths->order[i], ways = 0;
        if (flow[v] <= 0) continue;
        for (int64_t k = o->first[v]; k < o->first[v + 1]; k++)
            ways += on_route(t, paths->best, &t->links[k], destination);
        for (int64_t k = o->first[v]; k < o->first[v + 1]; k++)
            if (on_route(t, paths->best, &t->links[k], destination)) {
                load[k] += flow[v] / ways;
                flow[t->links[k].to] += flow[v] / ways;
            }
    }
    return COT_OK;
}

cot_status cot_topology_link_loads(double *load, const cot_topology *topology, const double *traffic,
                                   cot_error *error)
{
    cot_paths paths;
    double *flow = malloc((size_t)topology->n_vertices * sizeof *flow);
    bool room = cot_paths_open(&paths, topology) && flow;
    cot_status status = COT_OK;
    for (int64_t k = 0; k < topology->n_links; k++) load[k] = 0;
    for (int32_t r = 0; room && status == COT_OK && r < topology->n_ranks; r++) {
        room = cot_paths_search_links(&paths, topology, r, true);
        if (room) status = send_to(load, flow, &paths, topology, traffic, r, error);
    }
    if (!room)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for routes in '%s'", topology->name);
    cot_paths_close(&paths);
    free(flow);
    return status;
}
