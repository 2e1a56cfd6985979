#include "topology/paths.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_paths_row(double *distance, cot_paths *paths, const cot_topology *t, cot_metric metric,
                         int32_t rank, bool to_rank, cot_error *error)
{
    if (!cot_paths_search(paths, t, metric, rank, to_rank))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for distances in '%s'", t->name);
    for (int32_t r = 0; r < t->n_ranks; r++) {
        if (!isfinite(paths->best[r]))
            return cot_fail(error, COT_MALFORMED,
                            "topology '%s' is not connected: no route from '%s' to '%s'", t->name,
                            t->labels[to_rank ? r : rank], t->labels[to_rank ? rank : r]);
        distance[r] = paths->best[r];
    }
    return COT_OK;
}

cot_status cot_topology_distances_of(double *distance, const cot_topology *topology, cot_metric metric,
                                     int32_t rank, bool to_rank, cot_error *error)
{
    cot_paths paths;
    if (rank < 0 || rank >= topology->n_ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d is none of the %d of '%s'", rank,
                        topology->n_ranks, topology->name);
    cot_status status =
        cot_paths_open(&paths, topology)
            ? cot_paths_row(distance, &paths, topology, metric, rank, to_rank, error)
            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for distances in '%s'", topology->name);
    cot_paths_close(&paths);
    return status;
}

cot_status cot_topology_distances(double *distance, const cot_topology *topology, cot_metric metric,
                                  cot_error *error)
{
    cot_paths paths;
    cot_status status =
        cot_paths_open(&paths, topology)
            ? COT_OK
            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for distances in '%s'", topology->name);
    for (int32_t r = 0; status == COT_OK && r < topology->n_ranks; r++)
        status = cot_paths_row(distance + (size_t)r * (size_t)topology->n_ranks, &paths, topology, metric, r,
                               false, error);
    cot_paths_close(&paths);
    return status;
}
