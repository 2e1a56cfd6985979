/* Shortest routes from one vertex, or to it. */
#ifndef COT_TOPOLOGY_PATHS_H
#define COT_TOPOLOGY_PATHS_H
#include "coterie/topology.h"

/* Room for searches in one graph. */
typedef struct cot_paths {
    struct cot_paths_entry {
        double key, width; // what the search goes by, and the narrowest bandwidth on the way
        int32_t vertex;
    } * heap;
    int64_t n_heap, room;
    double *best;   // [V] result: the least distance found, infinite where there is no route
    double *widest; // [V] widest way so far: a later one counts only when it is wider
    int32_t *order; // [V] vertices as they were reached first, the near ones first
    int32_t n_order;
    bool unit_hops; // every link of the graph counts as no hop or as one
    int32_t *level; // [V] then: vertices to go on from
} cot_paths;

bool cot_paths_open(cot_paths *paths, const cot_topology *graph);
void cot_paths_close(cot_paths *paths);
/* Fills in best: distances from `vertex`, or to it when `backwards`. False when out of memory. */
bool cot_paths_search(cot_paths *paths, const cot_topology *graph, cot_metric metric, int32_t vertex,
                      bool backwards);
/* The same by (hops, number of links): best is hops * COT_PATHS_HOP + links, so that every link has a length and the
 * links on shortest routes form no circle. */
#define COT_PATHS_HOP 0x1p20
bool cot_paths_search_links(cot_paths *paths, const cot_topology *graph, int32_t vertex, bool backwards);

/* Distances from `rank` to every rank, or to it: `distance` [S]. Errors: MALFORMED (no route), OUT_OF_MEMORY. */
cot_status cot_paths_row(double *distance, cot_paths *paths, const cot_topology *t, cot_metric metric,
                         int32_t rank, bool to_rank, cot_error *error);

#endif
