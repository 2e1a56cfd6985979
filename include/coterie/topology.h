/* The cluster as a graph: ranks, switches and the links between them; distances between ranks; traffic on links.
 *
 *     vertex 0 .. S-1   the ranks        a link: from, to, hops, latency, bandwidth, one way
 *     vertex S ..       hosts, switches  a rank does not forward for others unless the topology says so
 *
 * A measured matrix is a graph too: one link from every rank to every other, that nothing forwards. */
#ifndef COTERIE_TOPOLOGY_H
#define COTERIE_TOPOLOGY_H

#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    COT_TOPOLOGY_MAX_RANKS = 16384,
    COT_TOPOLOGY_MAX_VERTICES = 1 << 20,
    COT_TOPOLOGY_MAX_LINKS = 1 << 25
};

/* A link in one direction. */
typedef struct cot_topology_link {
    int32_t from, to;
    double hops;           // what it counts as, >= 0; 0 inside a server
    double latency_us;     // >= 0
    double bandwidth_gbps; // GB/s, > 0; infinite where nobody said
} cot_topology_link;

/* A topology in memory. Every pointer belongs to it and is read-only; any number of threads may read one. All zero
 * is an empty topology. */
typedef struct cot_topology {
    const char *name;   // the spec or the file that it came from
    int32_t n_ranks;    // S
    int32_t n_vertices; // ranks first
    int64_t n_links;    // one for each direction
    bool ranks_forward; // routes may lead through ranks
    bool has_costs;     // links carry latency or bandwidth, so that costs mean something
    bool measured;      // a matrix of bandwidths: costs are what it says, every pair is one hop apart
    const cot_topology_link *links; // [n_links] ascending by from
    const char *const *labels;      // [n_vertices] what people call them
    const int32_t *host;            // [S] number of the server that holds a rank, by first appearance
    int32_t n_hosts;
    struct cot_topology_owner *owner; // private
} cot_topology;

/* A family of graphs that a spec names. */
typedef struct cot_topology_family {
    const char *name;       // as in "fattree:ranks=256"
    const char *parameters; // "ranks=256,gpus=4,..." with their defaults
    const char *text;       // what it is, and its distances
} cot_topology_family;
/* All of them; ends with a NULL name. */
extern const cot_topology_family cot_topology_families[];

/* Builds the graph of `spec`, FAMILY or FAMILY:KEY=VALUE,..., see cot_topology_families. `ranks` > 0 is used where
 * the spec does not say how many. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. The caller frees. */
cot_status cot_topology_build(cot_topology *topology, const char *spec, int32_t ranks, cot_error *error);

/* How to read files that leave something open; all zero is fine. */
typedef struct cot_topology_options {
    size_t size; // sizeof(cot_topology_options)
    /* Output of ibnetdiscover alone, which needs it: a file of lines `host,gpu,adapter[,domain]` in the order of ranks,
     * which says which adapter is which rank's. Ranks of one domain, which may be several hosts, are 0 hops apart (a rack
     * of NVLinks). */
    const char *hosts;
    /* NCCL's topology alone, besides the links that it holds: "all" for an NVSwitch that joins all GPUs of a host, or a file
     * that `nvidia-smi topo -m` printed on one, taken for each; NULL: no more. */
    const char *nvlink;
    int32_t ranks; // expected number of ranks; 0: whatever the file holds
    /* Told, a line each, what seems to be missing; NULL: nobody. */
    void (*say)(void *context, const char *line);
    void *context; // passed to say
} cot_topology_options;

/* Reads a topology file, recognised by content: `ibnetdiscover` output (also with -p), an NCCL or RCCL topology dump
 * (XML; of several hosts too), what `nvidia-smi topo -m` prints, a JSON matrix of
 * distances or bandwidths (also SGLang's rank_cost_matrix and Mooncake's measured pairs of adapters), a JSON graph of
 * nodes and edges (topohub). Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED (not recognised), INVALID_ARGUMENT
 * (options), OUT_OF_MEMORY. On failure `*topology` is empty. The caller frees. */
cot_status cot_topology_read(cot_topology *topology, const char *path, const cot_topology_options *options,
                             cot_error *error);
void cot_topology_free(cot_topology *topology); // an empty one is fine

/* What a file of hosts for this `ibnetdiscover` output may hold: a header and a line for each adapter, by host, those that
 * no host has named last and by GUID; adapters that serve no rank are to be taken out. Into malloc'd memory, the caller's.
 * Errors: NOT_FOUND, IO, MALFORMED (no adapter), UNSUPPORTED (not such output), OUT_OF_MEMORY. */
cot_status cot_topology_host_template(char **text, const char *path, cot_error *error);

/* What a distance is. */
typedef struct cot_metric {
    bool cost; // false: hops; true: microseconds = latency along the route + bytes / its narrowest bandwidth
    double bytes; // of the message that a cost is for, >= 0
} cot_metric;

/* Distances from `rank` to every rank (`to_rank` false) or from every rank to it (true), along the route that is
 * shortest under `metric`: `distance` [S]. Errors: INVALID_ARGUMENT (no such rank), MALFORMED (a rank that cannot be
 * reached, both named), OUT_OF_MEMORY. */
cot_status cot_topology_distances_of(double *distance, const cot_topology *topology, cot_metric metric,
                                     int32_t rank, bool to_rank, cot_error *error);
/* All of them: `distance` [S][S], row = from. Errors: as above. */
cot_status cot_topology_distances(double *distance, const cot_topology *topology, cot_metric metric,
                                  cot_error *error);

/* How many ordered pairs of different ranks are how far apart. */
typedef struct cot_distance_count {
    double distance;
    int64_t pairs;
} cot_distance_count;
/* All distances of the topology, ascending, each once: `*counts` [*n] in malloc'd memory, the caller's (NULL and 0 for
 * one rank). Takes no memory for all pairs. Errors: as above. */
cot_status cot_topology_spread(cot_distance_count **counts, size_t *n, const cot_topology *topology,
                               cot_metric metric, cot_error *error);

/* Sends `traffic` [S][S] (row = from, any unit) along the routes of fewest hops; at every vertex it splits evenly over
 * all links that lie on such a route to its destination (ECMP). `load` [n_links] is what each link carries. Errors:
 * MALFORMED (a destination that cannot be reached), OUT_OF_MEMORY. */
cot_status cot_topology_link_loads(double *load, const cot_topology *topology, const double *traffic,
                                   cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
